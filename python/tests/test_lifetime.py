# SPDX-License-Identifier: Apache-2.0
"""Arrays, exchanges and groups that go in any order."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
from typing import Any, List

import numpy as np
import pytest

import tern_ep
from tern_ep import Config, Dtype, Layout, Mode, Reduce, Weights

PLAIN = Config(hidden=64, nr_experts=4, topk=2, max_tokens=6, combine_dtype=Dtype.FP32)
X = np.arange(3 * 64, dtype=np.uint16).reshape(3, 64)
IDS = np.array([[0, 1], [2, 3], [1, 0]], np.int32)


def windows() -> int:
    """Mappings of exchanges' windows in this process."""
    with open("/proc/self/maps") as maps:
        return sum("tern-window" in line for line in maps)


def test_nothing_is_left() -> None:
    gc.collect()  # what exceptions of other tests hold, in their frames
    before = windows()
    for _ in range(200):
        with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN) as moe:
            moe.dispatch(X, IDS)
            moe.release()
    assert windows() == before


@pytest.mark.parametrize("mode", list(Mode))
def test_arrays_keep_their_memory(mode: Mode) -> None:
    config = Config(hidden=64, nr_experts=4, topk=2, max_tokens=6, mode=mode, layout=Layout.BY_SOURCE, reduce=Reduce.EXPERT, weights=Weights.PASS)
    group = tern_ep.Group.alone()
    moe = tern_ep.Exchange(group, config)
    received = moe.dispatch(X, IDS)
    kept: List[Any] = [received.x, received.rows, received.counts, received.offsets, received.topk_ids, received.topk_weights]
    copies = [array.copy() for array in kept]
    part = kept[0][1:, 8:]
    moe.close()
    group.close()
    del moe, group, received
    gc.collect()
    assert windows() == 1
    for array, copy in zip(kept, copies):
        np.testing.assert_array_equal(array, copy)
    kept.clear()
    del array
    gc.collect()
    assert windows() == 1
    np.testing.assert_array_equal(part, copies[0][1:, 8:])
    del part
    gc.collect()
    assert windows() == 0


def test_rows_end_with_combine_and_release() -> None:
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN) as moe:
        for end in (lambda r: moe.combine(moe.empty_y(r)), lambda r: moe.release()):
            received = moe.dispatch(X, IDS)
            assert received.x is received.x and received.x.shape == (6, 64)
            end(received)
            for name in ("x", "rows", "counts", "offsets", "scales", "topk_ids"):
                with pytest.raises(tern_ep.StateError, match="given back by combine or release of slot 0"):
                    getattr(received, name)


def test_what_is_the_librarys_is_read_only() -> None:
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN) as moe:
        received = moe.dispatch(X, IDS)
        received.x[0] = 1  # in place is fine for experts
        for name in ("counts", "offsets", "rows"):
            assert not getattr(received, name).flags.writeable
        moe.release()


def test_forgotten_without_close() -> None:
    group = tern_ep.Group.alone()
    moe = tern_ep.Exchange(group, PLAIN)
    x = moe.dispatch(X, IDS).x
    del moe, group
    gc.collect()
    assert windows() == 1 and x[0, 1] == 1
    del x
    gc.collect()
    assert windows() == 0


def test_no_rows() -> None:
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN) as moe:
        received = moe.dispatch(np.zeros((0, 64), np.uint16), np.zeros((0, 2), np.int32), np.zeros((0, 2), np.float32))
        assert received.x.shape == (0, 64) and received.rows.shape == (0,) and list(received.counts) == [0, 0, 0, 0]
        assert moe.combine(None).shape == (0, 64)


def _child(moe: tern_ep.Exchange, group: tern_ep.Group, queue: Any) -> None:
    try:
        moe.stats()
    except tern_ep.StateError as error:
        queue.put(str(error))
    moe.close()
    group.close()
    gc.collect()


def test_a_forked_child_leaves_its_parents_objects_alone() -> None:
    context = multiprocessing.get_context("fork")
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN) as moe:
        received = moe.dispatch(X, IDS)
        queue = context.SimpleQueue()
        child = context.Process(target=_child, args=(moe, group, queue))
        child.start()
        child.join(30)
        assert child.exitcode == 0 and "after a fork" in queue.get()
        assert moe.combine(np.ones((received.extent, 64), np.float32)).shape == (3, 64)


EXITS = """
import numpy as np, tern_ep
group = tern_ep.Group.alone()
moe = tern_ep.Exchange(group, tern_ep.Config(hidden=64, nr_experts=4, topk=1, max_tokens=6))
received = moe.dispatch(np.zeros((3, 64), np.uint16), np.zeros((3, 1), np.int32))
x = received.x
"""


@pytest.mark.parametrize("last", ["", "import sys; sys.exit(0)", "moe.close()", "del group, moe", "import gc; moe.me = moe; del moe, x, received, group; gc.collect()"])
def test_a_process_may_end_at_any_point(last: str) -> None:
    done = subprocess.run([sys.executable, "-X", "dev", "-c", EXITS + last], env=dict(os.environ), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done.stderr
