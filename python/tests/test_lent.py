# SPDX-License-Identifier: Apache-2.0
"""What deep_ep's normal mode has of compiled parts, without torch: tensors over a slot's rows, counts told by all ranks to all, and
routes counted and compared. test_deep_ep.py has them with it."""

from __future__ import annotations

import weakref
from typing import Any, List

import numpy as np
import pytest
from test_calls import Framework, Tensor, inputs

import tern_ep
from tern_ep import Config, Dtype, Layout, Mode, Reduce, Weights, _abi
from tern_ep._calls import Lent, Reader, count_routes, routes_agree

SOURCES = Config(
    hidden=64, nr_experts=8, topk=2, max_tokens=6, nr_slots=2, mode=Mode.HIGH_THROUGHPUT, layout=Layout.BY_SOURCE, reduce=Reduce.EXPERT, weights=Weights.PASS
)


class Owner:
    pass


def test_tensors_over_a_slot() -> None:
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, SOURCES) as moe:
        x, ids, weights = inputs()
        weights[:] = [[1, 2], [3, 4], [5, 6]]
        received = moe.dispatch(x, ids, weights, slot=1)
        torch, owner, at = Framework(), Owner(), _abi.tern_received
        alive = weakref.ref(owner)
        lent = Lent(torch.reader(), owner, 2, 7, ((at.x.offset, 64, 4, 16), (at.topk_weights.offset, 2, 2, 32)))
        del owner
        assert lent.held() == 0
        rows, scales = lent.lend(moe._slots[1], 3)
        assert rows.version & 0xFFFFFFFF == 1 and rows.flags == 0
        assert (rows.shape, rows.strides, rows.type) == ([3, 64], [64, 1], (4, 16, 1, 2, 7)) and rows.bytes == received.x.tobytes()
        assert (scales.shape, scales.strides, scales.type) == ([3, 2], [2, 1], (2, 32, 1, 2, 7)) and scales.bytes == weights.tobytes()
        assert lent.held() == 2
        del rows
        assert lent.held() == 2
        none = lent.lend(moe._slots[1], 0)
        del scales
        assert none[0].shape == [0, 64] and lent.held() == 2
        kept = lent.lend(moe._slots[0], 0)
        none = None
        assert lent.held() == 1
        del lent
        assert alive() is not None, "a tensor keeps what owns its memory"
        kept = None
        assert alive() is None


def test_a_framework_that_takes_nothing() -> None:
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, SOURCES) as moe:
        moe.dispatch(*inputs())
        torch, at = Framework(), _abi.tern_received
        lent = Lent(torch.reader(), Owner(), 1, 0, ((at.x.offset, 64, 4, 16),))
        torch.fails = True
        with pytest.raises(RuntimeError, match="has made no tensor"):
            lent.lend(moe._slots[0], 3)
        assert lent.held() == 1, "nobody knows whether it has been given back"
        with pytest.raises(TypeError):
            lent.lend(moe._slots[0], "3")
        with pytest.raises(ValueError):
            lent.lend(moe._slots[0], -1)
        with pytest.raises(tern_ep.InvalidError, match="4 fields"):
            Lent(torch.reader(), moe.handle, 1, 0, ((0, 64, 4, 16),) * 4)
        with pytest.raises(TypeError, match="no framework's functions"):
            Lent(Reader(Tensor, None, None, False, None, -1), moe.handle, 1, 0, ())


# ---- what ranks tell each other ------------------------------------------------------------------------------------

RANKS, EXPERTS, PART = 3, 12, 32


def board(group: tern_ep.Group) -> Any:
    """As deep_ep's, of small parts."""
    moe = tern_ep.Exchange(
        group,
        Config(
            hidden=8,
            nr_experts=RANKS,
            topk=RANKS,
            max_tokens=1,
            layout=Layout.BY_SOURCE,
            reduce=Reduce.EXPERT,
            weights=Weights.PASS,
            x_dtype=Dtype.BYTES,
            dispatch_dtype=Dtype.BYTES,
            payload_bytes=PART,
        ),
    )
    x, ids = np.zeros((1, PART), np.uint8), np.arange(RANKS, dtype=np.int32).reshape(1, RANKS)
    moe._look_at_dispatch(moe._slots[0], x, ids, None, None)
    return moe, (x, ids)


def telling(group: tern_ep.Group) -> List[Any]:
    moe, _kept = board(group)
    counts = np.random.default_rng(group.rank).integers(0, 9, RANKS + EXPERTS, np.int32)
    found = [moe._calls.gather(moe, RANKS, bytes([group.rank + 1]) * nr) for nr in (1, PART, PART + 1, 0)]
    at = counts.ctypes.data
    found.append(moe._calls.tell(moe, RANKS, group.rank, 5 * group.rank, 1 << group.rank, at, at + 4 * RANKS, EXPERTS, 4))
    with pytest.raises(TypeError):
        moe._calls.gather(moe, RANKS, "text")
    with pytest.raises(TypeError):
        moe._calls.tell(moe, RANKS)
    moe.close()
    with pytest.raises(tern_ep.StateError, match="exchange is closed"):
        moe._calls.gather(moe, RANKS, b"x")
    return [*found, counts]


def test_all_ranks_tell_all() -> None:
    told = tern_ep.run_threads(RANKS, telling)
    all_counts = np.stack([found[-1] for found in told])
    received = all_counts[:, :RANKS].sum(0)
    for rank, (one, part, more, nothing, sums, _) in enumerate(told):
        assert (one, nothing) == (b"\1\2\3", b"")
        assert part == b"".join(bytes([r + 1]) * PART for r in range(RANKS)) and more == b"".join(bytes([r + 1]) * (PART + 1) for r in range(RANKS))
        most, capacity, mine, by_expert, held, everything = sums
        local = slice(RANKS + rank * EXPERTS // RANKS, RANKS + (rank + 1) * EXPERTS // RANKS)
        assert (most, capacity, mine, held) == (10, received.max(), received[rank], 0b111)
        assert by_expert == (-(-all_counts[:, local].sum(0) // 4) * 4).tolist()
        rows = np.frombuffer(everything, np.int32).reshape(RANKS, -1)
        assert rows[:, :2].tolist() == [[5 * r, 1 << r] for r in range(RANKS)] and np.array_equal(rows[:, 2:], all_counts)


def leaving(group: tern_ep.Group) -> str:
    moe, _kept = board(group)
    if group.rank == RANKS - 1:
        moe.close()
        return ""
    with pytest.raises(ConnectionError) as raised:
        moe._calls.gather(moe, RANKS, b"x")
    return str(raised.value)


def test_a_rank_that_has_left_is_named() -> None:
    assert all(f"rank {RANKS - 1}" in text for text in tern_ep.run_threads(RANKS, leaving)[:-1])


# ---- counts --------------------------------------------------------------------------------------------------------


def test_routes_are_counted_and_compared() -> None:
    ids = np.array([[0, 5], [-1, 1], [7, 6], [-1, -1]], np.int64)
    counts, in_rank = np.full(2 + 8, 99, np.int32), np.full((4, 2), 99, np.uint8)
    at = counts.ctypes.data
    given = (ids.ctypes.data, 4, 2, 2, 8)
    arrays = (at, at + 8, in_rank.ctypes.data)
    assert count_routes(*given, *arrays, 0, 0, 0, 0) == 0
    assert counts.tolist() == [2, 2, 1, 1, 0, 0, 0, 1, 1, 1] and in_rank.tolist() == [[1, 1], [1, 0], [0, 1], [0, 0]]
    assert routes_agree(*given, *arrays) == 0
    for array, index, code in ((counts, 0, 2), (counts, 9, 3), (in_rank.reshape(-1), 7, 4)):
        array[index] += 1
        assert routes_agree(*given, *arrays) == code
        array[index] -= 1
    for bad in (8, -2, 2**40):
        ids[2, 1] = bad
        assert count_routes(*given, *arrays, 0, 0, 0, 0) == routes_agree(*given, *arrays) == 1
    ids[2, 1] = 6
    assert routes_agree(given[0], 0, 2, 2, 8, np.zeros(2, np.int32).ctypes.data, np.zeros(8, np.int32).ctypes.data, 0) == 0
    assert count_routes(given[0], 4, 2, 3, 8, *arrays, 0, 0, 0, 0) < 0, "experts in unequal parts"
    with pytest.raises(TypeError):
        count_routes(1)
