# SPDX-License-Identifier: Apache-2.0
"""Elastic groups: a member goes, the others make its round again."""

import gc
from typing import Any, Iterator, List, Tuple

import numpy as np
import pytest

import tern_ep as tern

RANKS, EXPERTS, HIDDEN, TOKENS, ROUNDS = 4, 8, 16, 5, 12


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Errors that were raised hold on to frames, and these to exchanges."""
    yield
    gc.collect()


def config(mode: tern.Mode) -> tern.Config:
    experts = list(range(EXPERTS)) * 2
    ranks = [e % RANKS for e in range(EXPERTS)] + [(e + 1) % RANKS for e in range(EXPERTS)]
    return tern.Config(
        hidden=HIDDEN,
        nr_experts=EXPERTS,
        topk=2,
        max_tokens=TOKENS,
        mode=mode,
        reduce=tern.Reduce.HOME,
        x_dtype=tern.Dtype.FP32,
        dispatch_dtype=tern.Dtype.FP32,
        combine_dtype=tern.Dtype.FP32,
        placement=tern.Placement(2 * EXPERTS, experts, ranks),
        elastic=True,
    )


def make_round(moe: tern.Exchange, locals_: List[int], x: Any, ids: Any, tag: int) -> Any:
    received = moe.dispatch(x, ids, tag=tag)
    y = moe.empty_y(received)
    for i, expert in enumerate(locals_):
        y[received.expert(i)] = received.x[received.expert(i)] * (expert + 1) + tag
    return moe.combine(y)


def recover(group: tern.Group, moe: tern.Exchange, locals_: List[int]) -> tern.View:
    while True:
        try:
            view = group.view_change()
            tag = moe.owed()
            if tag is not None:
                make_round(moe, locals_, np.zeros((0, HIDDEN), np.float32), np.zeros((0, 2), np.int32), tag)
            return view
        except tern.MembersError:
            pass


def serve(group: tern.Group, mode: tern.Mode) -> Tuple[int, ...]:
    with tern.Exchange(group, config(mode)) as moe:
        locals_ = [e for e in list(range(EXPERTS)) if e % RANKS == group.rank] + [e for e in range(EXPERTS) if (e + 1) % RANKS == group.rank]
        for number in range(ROUNDS):
            random = np.random.default_rng(100 * number + group.rank)
            x = random.integers(0, 50, (TOKENS, HIDDEN)).astype(np.float32)
            ids = np.stack([random.permutation(EXPERTS)[:2] for _ in range(TOKENS)]).astype(np.int32)
            if number == 6 and group.rank == 2:
                group.propose(tern.Change.LEAVE, 2)
                left = group.view_change()
                assert 2 not in left.alive
                with pytest.raises(tern.ExpelledError):
                    make_round(moe, locals_, x, ids, number)
                return left.alive
            while True:
                try:
                    out = make_round(moe, locals_, x, ids, number)
                    break
                except tern.MembersError:
                    assert group.pending
                    view = recover(group, moe, locals_)
                    assert view.gone == (2,) and view.number == 1
            due = sum(x * (ids[:, k : k + 1] + 1) + number for k in range(2))
            assert np.array_equal(out, due), number
        while True:
            try:
                group.allgather(b"x")
                break
            except tern.MembersError:
                recover(group, moe, locals_)
        return group.view_change().alive


@pytest.mark.parametrize("mode", [tern.Mode.LOW_LATENCY, tern.Mode.HIGH_THROUGHPUT])
def test_one_leaves(mode: tern.Mode) -> None:
    assert tern.run_threads(RANKS, lambda group: serve(group, mode), elastic=True) == [(0, 1, 3)] * RANKS


def test_refused() -> None:
    with tern.Group.alone() as group:
        with pytest.raises(tern.InvalidError):
            group.view_change()
        with pytest.raises(tern.InvalidError):
            tern.Exchange(group, tern.Config(hidden=HIDDEN, nr_experts=1, topk=1, max_tokens=1, reduce=tern.Reduce.HOME, elastic=True))
    with tern.Group.alone(elastic=True) as group:
        with pytest.raises(tern.InvalidError):
            tern.Exchange(group, tern.Config(hidden=HIDDEN, nr_experts=1, topk=1, max_tokens=1, elastic=True))
        assert group.view_change() == (0, (0,), (), 0) and not group.pending
