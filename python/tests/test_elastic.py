# SPDX-License-Identifier: Apache-2.0
"""Elastic groups: a member goes, the others make its round again."""

import dataclasses
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


def with_plan(moe: tern.Exchange, plan: tern.Plan, locals_: List[int], ids: Any) -> None:
    """A plan of a view that is over is combined when it was dispatched with once more; and a round is released."""
    x = np.full((TOKENS, HIDDEN), 3, np.float32)
    due = sum(x * (ids[:, k : k + 1] + 1) for k in range(2))
    with pytest.raises(tern.StateError, match="is not whole"):
        plan.combine(None if plan.extent == 0 else np.zeros((plan.extent, HIDDEN), np.float32))
    received = plan.dispatch(x, tag=1)
    y = moe.empty_y(received)
    for i, expert in enumerate(locals_):
        y[received.expert(i)] = received.x[received.expert(i)] * (expert + 1)
    assert np.array_equal(moe.combine(y), due)
    assert np.array_equal(plan.combine(2 * y, tag=2), 2 * due)
    moe.dispatch(x, ids, tag=3)
    moe.release()
    plan.close()


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
            if number == 3:
                moe.dispatch(x, ids)
                plan, ids_of_plan = moe.plan(), ids
                moe.release()
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
        with_plan(moe, plan, locals_, ids_of_plan)
    with tern.Exchange(group, config(mode)) as moe:
        out = make_round(moe, locals_, x, ids, 1)
        assert np.array_equal(out, sum(x * (ids[:, k : k + 1] + 1) + 1 for k in range(2)))
    return group.view_change().alive


@pytest.mark.parametrize("mode", [tern.Mode.LOW_LATENCY, tern.Mode.HIGH_THROUGHPUT])
def test_one_leaves(mode: tern.Mode) -> None:
    assert tern.run_threads(RANKS, lambda group: serve(group, mode), elastic=True) == [(0, 1, 3)] * RANKS


def refuse_replica_ranks(group: tern.Group) -> None:
    wanted = dataclasses.replace(config(tern.Mode.LOW_LATENCY), replica_ranks=2)
    with pytest.raises(tern.UnsupportedError, match="compute one token together"):
        tern.Exchange(group, wanted)


def test_replica_ranks() -> None:
    tern.run_threads(RANKS, refuse_replica_ranks, elastic=True)


def test_refused() -> None:
    with tern.Group.alone() as group:
        with pytest.raises(tern.InvalidError):
            group.view_change()
        with pytest.raises(tern.InvalidError):
            tern.Exchange(group, tern.Config(hidden=HIDDEN, nr_experts=1, topk=1, max_tokens=1, reduce=tern.Reduce.HOME, elastic=True))
    with tern.Group.alone(elastic=True) as group:
        with pytest.raises(tern.InvalidError):
            tern.Exchange(group, tern.Config(hidden=HIDDEN, nr_experts=1, topk=1, max_tokens=1, elastic=True))
        assert group.view_change() == (0, (0,), (), 0, ()) and not group.pending
