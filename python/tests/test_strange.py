# SPDX-License-Identifier: Apache-2.0
"""Arrays of all kinds, after others that were accepted: the compiled calls let through what they have seen, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from test_calls import PLAIN, inputs, told  # noqa: E402

import tern_ep  # noqa: E402


class Subclass(np.ndarray):  # type: ignore[type-arg]
    pass


ARRAYS = st.tuples(
    st.sampled_from(["uint16", "int16", "float16", ">u2", "float32", "int32", "int64", "int8", "uint8"]),
    st.sampled_from([(3,), (3, 64), (3, 2), (3, 63), (0, 64), (2, 64), (7, 64), (3, 1, 64), (1, 1, 1, 1), (384,)]),
    st.sampled_from(["as it is", "every other row", "columns first", "backwards", "read-only", "a subclass", "a list", "bytes"]),
)


def made_of(dtype: str, shape: Any, how: str) -> Any:
    array = np.zeros(shape, dtype)
    if how == "every other row":
        array = np.zeros((2 * shape[0], *shape[1:]), dtype)[::2]
    elif how == "columns first":
        array = np.asfortranarray(array)
    elif how == "backwards":
        array = array[::-1]
    elif how == "read-only":
        array.flags.writeable = False
    elif how == "a subclass":
        array = array.view(Subclass)
    return array.tolist() if how == "a list" else array.tobytes() if how == "bytes" else array


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(["x", "topk_ids", "topk_weights", "scales", "into_x", "y", "out"]), ARRAYS, st.booleans())
def test_strange_arrays_are_judged_as_at_first(name: str, strange: Any, twice: bool) -> None:
    """Whatever comes after arrays that were accepted is taken, or refused with the same text, as where nothing came before."""
    for bad in [made_of(*strange)]:
        said = []
        for warm in (True, False):
            with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN) as moe:
                if warm:
                    moe.combine(moe.dispatch(*inputs()).x, out=np.zeros((3, 64), np.uint16))
                for _ in range(1 + twice):
                    given = dict(zip(("x", "topk_ids", "topk_weights"), inputs()))
                    if name in ("y", "out"):
                        y = moe.dispatch(**given).x
                        out = np.zeros((3, 64), np.uint16)
                        found = told(lambda: moe.combine(bad if name == "y" else y, out=bad if name == "out" else out))
                        told(lambda: moe.release())
                    else:
                        given[name] = bad
                        found = told(lambda: moe.dispatch(**given))
                        told(lambda: moe.release())
                said.append(found)
                moe.combine(moe.dispatch(*inputs()).x)
        assert said[0] == said[1]
