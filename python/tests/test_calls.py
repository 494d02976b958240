# SPDX-License-Identifier: Apache-2.0
"""What a call costs in Python functions, counted, so that it does not grow unnoticed; and that calls keep nothing of the caller's.
What it costs in time: scripts/calls.sh."""

from __future__ import annotations

import sys
import weakref
from typing import Any, Callable, Dict

import numpy as np
import pytest

import tern_ep
from tern_ep import Config, Layout, Mode, Reduce, Weights

PLAIN = Config(hidden=64, nr_experts=8, topk=2, max_tokens=6)


def inputs(nr_tokens: int = 3) -> Any:
    x = np.full((nr_tokens, 64), 0x3F80, np.uint16)
    return x, np.array([[0, 1]] * nr_tokens, np.int32), np.ones((nr_tokens, 2), np.float32)


def counted(function: Callable[[], Any]) -> Dict[str, int]:
    """Calls of Python functions and of compiled ones."""
    found = {"call": 0, "c_call": 0}

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event in found:
            found[event] += 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    found["call"] -= 1  # the function itself
    found["c_call"] -= 1  # setprofile
    return found


@pytest.mark.parametrize("given_out", [True, False])
def test_calls_on_the_fast_path(given_out: bool) -> None:
    """A pair over arrays of known shapes. More is allowed only for a reason."""
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN) as moe:
        out = np.zeros((3, 64), np.uint16) if given_out else None

        def pair(given: Any = inputs()) -> None:
            moe.combine(moe.dispatch(*given).x, out=out)

        pair()
        warm = counted(pair)
        fresh = inputs()
        assert counted(lambda: pair(fresh))["call"] == warm["call"] + 1, "new arrays of the same shapes are looked at again"
        assert warm["call"] <= (29 if given_out else 34) and warm["c_call"] <= (23 if given_out else 28), warm


def test_another_form_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a second look skips depends on shape, strides, type and writability; each change is refused as at first."""
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN) as moe:
        x, ids, weights = inputs()
        read_only = np.zeros((3, 64), np.uint16)
        read_only.flags.writeable = False
        moe.combine(moe.dispatch(x, ids, weights).x, out=np.zeros((3, 64), np.uint16))
        for bad in ((x.astype(np.float32), ids, weights), (x[:, ::2], ids, weights), (x[:2], ids, weights), (x, ids.astype(np.int16), weights)):
            with pytest.raises(tern_ep.InvalidError):
                moe.dispatch(*bad)
            y = moe.dispatch(x, ids, weights).x  # the refused call has sent nothing, and left no form behind
            with pytest.raises(tern_ep.InvalidError, match="read-only"):
                moe.combine(y, out=read_only)
            with pytest.raises(tern_ep.InvalidError, match="y has 2 rows"):
                moe.combine(y[:2])
            assert (moe.combine(y) == 0x4000).all()  # 1 from each of two experts


@pytest.mark.parametrize("mode", list(Mode))
def test_nothing_of_a_call_is_kept(mode: Mode) -> None:
    config = Config(hidden=64, nr_experts=8, topk=2, max_tokens=6, mode=mode, layout=Layout.BY_SOURCE, reduce=Reduce.EXPERT, weights=Weights.PASS)
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, config) as moe:
        given = list(inputs())
        alive = [weakref.ref(a) for a in given]
        into: Any = [moe.empty_x()[0]] if mode == Mode.LOW_LATENCY else []
        alive += [weakref.ref(a) for a in into]
        received = moe.dispatch(*given, **({"into_x": into[0]} if into else {}))
        given.clear()
        into.clear()
        assert [ref() is None for ref in alive[:3]] == [True] * 3
        y = moe.empty_y(received)
        alive.append(weakref.ref(y))
        del received
        moe.combine(y)
        del y
        assert all(ref() is None for ref in alive)
