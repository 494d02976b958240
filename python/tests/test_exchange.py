# SPDX-License-Identifier: Apache-2.0
"""Rounds between threads, every bit held against the numpy reference."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
from typing import Any, Callable, List

import numpy as np
import pytest
from reference import World, bf16_encode, decode, fill_results, judge_combined, judge_received, quantise

import tern_ep
from tern_ep import Config, Dtype, Layout, Mode, Placement, Reduce, Replicas, Scale, Weights

PLAIN = Config(hidden=64, nr_experts=8, topk=2, max_tokens=6, combine_dtype=Dtype.FP32)


def run_round(world: World, moe: tern_ep.Exchange, rank: int, slot: int = 0) -> None:
    ids = world.ids[rank] if world.nr_ranks % 2 else world.ids[rank].astype(np.int32)
    received = moe.dispatch(world.x[rank], ids, world.weights[rank], scales=world.scales[rank], slot=slot)
    judge_received(world, rank, received)
    y = moe.empty_y(received)
    fill_results(world, rank, y)
    judge_combined(world, rank, moe.combine(y, slot=slot))


def run_worlds(config: Config, nr_ranks: int, token_counts: List[List[int]], seed: int = 1, **settings: Any) -> None:
    worlds = [World(config, nr_ranks, counts, seed + i) for i, counts in enumerate(token_counts)]

    def body(group: tern_ep.Group) -> None:
        with tern_ep.Exchange(group, config) as moe:
            for world in worlds:
                run_round(world, moe, group.rank)
            assert moe.stats().rounds == len(worlds)

    tern_ep.run_threads(nr_ranks, body, **settings)


MODES = list(itertools.product(Mode, Layout, Reduce))


@pytest.mark.parametrize("mode,layout,reduce", MODES)
@pytest.mark.parametrize("combine", [Dtype.BF16, Dtype.FP16, Dtype.FP32])
def test_modes(mode: Mode, layout: Layout, reduce: Reduce, combine: Dtype) -> None:
    if layout == Layout.BY_SOURCE and reduce == Reduce.HOME:
        reduce = Reduce.EXPERT
    weights = Weights.PASS if layout == Layout.BY_SOURCE else Weights.COMBINE
    config = dataclasses.replace(PLAIN, mode=mode, layout=layout, reduce=reduce, weights=weights, combine_dtype=combine, topk=3, alignment=4 if layout == Layout.CONTIGUOUS else 1)
    run_worlds(config, 3, [[6, 0, 3], [1, 5, 2]])


TYPES = [
    (Dtype.BF16, Dtype.BF16, Scale.NONE),
    (Dtype.FP16, Dtype.FP16, Scale.NONE),
    (Dtype.FP32, Dtype.FP32, Scale.NONE),
    (Dtype.FP8_E4M3, Dtype.FP8_E4M3, Scale.FP32),
    (Dtype.FP8_E4M3, Dtype.FP8_E4M3, Scale.UE8M0),
    (Dtype.BF16, Dtype.FP8_E4M3, Scale.FP32),
    (Dtype.FP16, Dtype.FP8_E4M3, Scale.UE8M0),
    (Dtype.FP32, Dtype.FP8_E4M3, Scale.FP32),
    (Dtype.FP32, Dtype.FP8_E4M3, Scale.UE8M0),
]


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("x,dispatch,scale", TYPES)
def test_types(mode: Mode, x: Dtype, dispatch: Dtype, scale: Scale) -> None:
    config = dataclasses.replace(PLAIN, mode=mode, hidden=272, x_dtype=x, dispatch_dtype=dispatch, scale=scale)
    run_worlds(config, 2, [[4, 6]])


@pytest.mark.parametrize("x", [Dtype.BF16, Dtype.FP16, Dtype.FP32])
@pytest.mark.parametrize("scale", [Scale.FP32, Scale.UE8M0])
def test_scales_at_edges(x: Dtype, scale: Scale) -> None:
    """A block for each number: 448 times a power of two, where FP16 has it, and its neighbours; the smallest; zeros."""
    powers = (-127, -126, -125, -15, 0) if x != Dtype.FP16 else (-14, -15, 0)
    numbers = np.array([448 * 2.0**power for power in powers], np.float32)
    codes = bf16_encode(numbers) if x == Dtype.BF16 else numbers.astype(np.float16 if x == Dtype.FP16 else np.float32).view(np.uint16 if x == Dtype.FP16 else np.uint32)
    codes = np.concatenate([codes - 1, codes, codes + 1, [1, 0]]).astype(codes.dtype)
    config = dataclasses.replace(PLAIN, hidden=128 * len(codes), max_tokens=1, x_dtype=x, dispatch_dtype=Dtype.FP8_E4M3, scale=scale)
    world = World(config, 1, [1], 1)
    row = world.x[0].view(codes.dtype)
    row[:] = 0
    row[0, 1::128] = codes
    tern_ep.run_threads(1, lambda group: run_round(world, tern_ep.Exchange(group, config), 0))
    amax = decode(x, world.x[0][0])[1::128].astype(np.float64)
    _, scales = quantise(scale, decode(x, world.x[0][0]))
    if scale == Scale.UE8M0:
        scales = 2.0 ** (scales.astype(np.float64) - 127)
        assert all(s == 1 if a == 0 else s == 2.0**-126 or s / 2 < a / 448 for s, a in zip(scales, amax))
    assert scales[-1] == 1 and scales.min() >= 2.0**-126
    assert all(448 * s >= a * (1 - 2.0**-23) for s, a in zip(scales.astype(np.float64), amax))


@pytest.mark.parametrize("mode", list(Mode))
def test_bytes(mode: Mode) -> None:
    config = dataclasses.replace(PLAIN, mode=mode, x_dtype=Dtype.BYTES, dispatch_dtype=Dtype.BYTES, payload_bytes=48)
    run_worlds(config, 2, [[4, 6]])


@pytest.mark.parametrize("hidden", [1024, 2880, 3072, 3584, 6144, 7168, 16384])
def test_hidden(hidden: int) -> None:
    run_worlds(dataclasses.replace(PLAIN, hidden=hidden, max_tokens=2, dispatch_dtype=Dtype.FP8_E4M3, scale=Scale.FP32), 2, [[2, 1]])


@pytest.mark.parametrize("topk,experts", [(1, 8), (2, 60), (4, 128), (6, 160), (8, 256), (8, 384), (16, 512), (22, 512), (32, 64)])
def test_experts(topk: int, experts: int) -> None:
    run_worlds(dataclasses.replace(PLAIN, topk=topk, nr_experts=experts), 3, [[2, 3, 1]])


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("nr_ranks", [1, 2, 3, 5, 8, 16])
def test_ranks(mode: Mode, nr_ranks: int) -> None:
    run_worlds(dataclasses.replace(PLAIN, mode=mode, nr_experts=18), nr_ranks, [[(3 * r + 1) % 7 for r in range(nr_ranks)]])


@pytest.mark.parametrize("mode", list(Mode))
def test_no_tokens(mode: Mode) -> None:
    run_worlds(dataclasses.replace(PLAIN, mode=mode), 3, [[0, 0, 0], [6, 6, 6], [0, 1, 0]])


def test_fewer_experts_than_ranks() -> None:
    run_worlds(dataclasses.replace(PLAIN, nr_experts=2), 4, [[3, 1, 0, 2]])


ROUTINGS = {"one expert": [[3, -1]], "own": None, "nowhere": [[-1, -1]]}


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("routing", list(ROUTINGS))
def test_routings(mode: Mode, routing: str) -> None:
    config = dataclasses.replace(PLAIN, mode=mode)
    world = World(config, 2, [6, 6], 7)
    for rank in range(2):
        world.ids[rank][...] = ROUTINGS[routing] if ROUTINGS[routing] else [[4 * rank, 4 * rank + 1]]

    def body(group: tern_ep.Group) -> None:
        with tern_ep.Exchange(group, config) as moe:
            run_round(world, moe, group.rank)

    tern_ep.run_threads(2, body)


def test_weights_that_are_not_finite_harm_their_token_alone() -> None:
    world = World(PLAIN, 2, [6, 6], 3)
    for rank in range(2):
        world.ids[rank][...] = [[0, 5]] * 6
    world.weights[0][2, 1] = np.nan
    world.weights[1][4, 0] = np.inf

    def body(group: tern_ep.Group) -> Any:
        with tern_ep.Exchange(group, PLAIN) as moe:
            received = moe.dispatch(world.x[group.rank], world.ids[group.rank], world.weights[group.rank])
            y = moe.empty_y(received)
            fill_results(world, group.rank, y)
            return moe.combine(y)

    outs = tern_ep.run_threads(2, body)
    assert np.isnan(outs[0][2]).all() and not np.isfinite(outs[1][4]).any()
    for rank, bad in ((0, 2), (1, 4)):
        rest = [t for t in range(6) if t != bad]
        np.testing.assert_array_equal(outs[rank][rest], world.combined(rank)[rest])


def test_without_weights() -> None:
    world = World(PLAIN, 2, [6, 2], 3)
    for weights in world.weights:
        weights[...] = 1

    def body(group: tern_ep.Group) -> None:
        with tern_ep.Exchange(group, PLAIN) as moe:
            received = moe.dispatch(world.x[group.rank], world.ids[group.rank])
            judge_received(world, group.rank, received)
            y = moe.empty_y(received)
            fill_results(world, group.rank, y)
            judge_combined(world, group.rank, moe.combine(y))

    tern_ep.run_threads(2, body)


@pytest.mark.parametrize("mode", list(Mode))
def test_placement(mode: Mode) -> None:
    """Uneven, with replicas, and ranks in no order."""
    logical = [0, 1, 2, 3, 4, 5, 6, 7, 1, 1, 6]
    ranks = [2, 0, 0, 1, 2, 0, 0, 0, 1, 2, 1]
    config = dataclasses.replace(PLAIN, mode=mode, placement=Placement(11, logical, ranks))
    run_worlds(config, 3, [[6, 5, 4]])
    run_worlds(dataclasses.replace(config, replicas=Replicas.IN_TURN), 3, [[6, 5, 4]])


@pytest.mark.parametrize("mode", list(Mode))
def test_experts_move(mode: Mode) -> None:
    """Between rounds; ranks that have them elsewhere are told so."""
    logical = [0, 1, 2, 3, 4, 5, 6, 7, 1, 1, 6]
    config = dataclasses.replace(PLAIN, mode=mode, placement=Placement(11, logical))

    def body(group: tern_ep.Group) -> None:
        rank = group.rank
        with tern_ep.Exchange(group, config) as moe:
            for version in range(4):
                tables = logical[version:] + logical[:version]
                if version:
                    moe.place(version, tables)
                world = World(config, 3, [6, 5, 4], version)
                world.place(tables)
                assert moe.local_experts == tuple(tables[p] for p in world.local[rank])
                received = moe.dispatch(world.x[rank], world.ids[rank], world.weights[rank])
                assert received.version == version
                judge_received(world, rank, received)
                y = moe.empty_y(received)
                fill_results(world, rank, y)
                judge_combined(world, rank, moe.combine(y))
            with pytest.raises(tern_ep.InvalidError, match="a table of 3 places; the exchange has 11"):
                moe.place(5, [1, 2, 3])
            with pytest.raises(tern_ep.InvalidError, match="version is -1"):
                moe.place(-1, logical)
            moe.place(8 if rank == 1 else 7, logical)
            with pytest.raises(tern_ep.MismatchError, match="rank . by version [78]"):
                moe.dispatch(world.x[rank], world.ids[rank], world.weights[rank])
            group.allgather(b"x")

    tern_ep.run_threads(3, body)


@pytest.mark.parametrize("mode", list(Mode))
def test_replica_ranks(mode: Mode) -> None:
    run_worlds(dataclasses.replace(PLAIN, mode=mode, replica_ranks=2), 4, [[5, 5, 2, 2], [0, 0, 6, 6]])


@pytest.mark.parametrize("mode", list(Mode))
def test_epochs_wrap(mode: Mode) -> None:
    run_worlds(dataclasses.replace(PLAIN, mode=mode, first_epoch=2**32 - 2), 2, [[3, 2]] * 5)


def test_over_the_engine() -> None:
    run_worlds(PLAIN, 2, [[5, 3], [0, 6]], force_engine=True, transport="shm")


def test_halves_and_two_slots() -> None:
    config = dataclasses.replace(PLAIN, nr_slots=2)
    worlds = [World(config, 2, [6, 3], 11), World(config, 2, [1, 4], 12)]

    def body(group: tern_ep.Group) -> None:
        rank = group.rank
        with tern_ep.Exchange(group, config) as moe:
            for slot, world in enumerate(worlds):
                moe.dispatch_send(world.x[rank], world.ids[rank], world.weights[rank], slot=slot)
            for slot, world in enumerate(worlds):
                received = moe.dispatch_recv(slot)
                judge_received(world, rank, received)
                y = moe.empty_y(received)
                fill_results(world, rank, y)
                moe.combine_send(y, slot=slot)
            for slot, world in enumerate(worlds):
                out = tern_ep.empty((world.tokens[rank], 64), np.float32)
                assert moe.combine_recv(slot, out=out) is out
                judge_combined(world, rank, out)

    tern_ep.run_threads(2, body)


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("dtype", [Dtype.BF16, Dtype.FP8_E4M3])
def test_into_the_callers_memory(layout: Layout, dtype: Dtype) -> None:
    by_source = layout == Layout.BY_SOURCE
    config = dataclasses.replace(
        PLAIN,
        layout=layout,
        dispatch_dtype=dtype,
        scale=Scale.FP32 if dtype == Dtype.FP8_E4M3 else Scale.NONE,
        alignment=8 if layout == Layout.CONTIGUOUS else 1,
        reduce=Reduce.EXPERT,
        weights=Weights.PASS if by_source else Weights.COMBINE,
    )
    world = World(config, 3, [6, 6, 6], 5)

    def body(group: tern_ep.Group) -> None:
        with tern_ep.Exchange(group, config) as moe:
            x, scales = moe.empty_x()
            received = moe.dispatch(world.x[group.rank], world.ids[group.rank], world.weights[group.rank], into_x=x, into_scales=scales)
            assert np.shares_memory(received.x, x)
            judge_received(world, group.rank, received)
            moe.release()

    tern_ep.run_threads(3, body)


def in_one_piece(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


FORMS: List[Callable[[np.ndarray], Any]] = [
    in_one_piece,
    lambda array: memoryview(in_one_piece(array)),
    lambda array: (ctypes.c_uint8 * array.nbytes).from_buffer(array),
    lambda array: in_one_piece(array).view(np.int8).reshape(len(array), -1),
]


@pytest.mark.parametrize("form", FORMS, ids=["bytes", "memoryview", "ctypes", "rows of bytes"])
@pytest.mark.parametrize("dtype", [Dtype.BF16, Dtype.FP32, Dtype.FP8_E4M3, Dtype.BYTES])
def test_into_the_callers_bytes(dtype: Dtype, form: Callable[[np.ndarray], Any]) -> None:
    """In whatever form the caller's memory is, rows are shown as they are in the library's."""
    fp8 = dtype == Dtype.FP8_E4M3
    config = dataclasses.replace(
        PLAIN,
        x_dtype=Dtype.BF16 if fp8 else dtype,
        dispatch_dtype=dtype,
        scale=Scale.UE8M0 if fp8 else Scale.NONE,
        payload_bytes=48 if dtype == Dtype.BYTES else 0,
    )
    world = World(config, 2, [6, 4], 6)

    def body(group: tern_ep.Group) -> None:
        with tern_ep.Exchange(group, config) as moe:
            memory, scales = moe.empty_x()
            given = form(memory)
            x, ids, weights = (of[group.rank] for of in (world.x, world.ids, world.weights))
            received = moe.dispatch(x, ids, weights, into_x=given, into_scales=scales)
            assert received.x.shape == (received.extent, config.received_width)
            assert received.x.dtype == memory.dtype
            assert np.shares_memory(received.x, memory)
            judge_received(world, group.rank, received)
            rows = received.x
            before = rows.copy()
            del memory, given, scales
            moe.release()
        assert np.array_equal(rows, before)

    tern_ep.run_threads(2, body)


def test_two_exchanges_and_release() -> None:
    world = World(PLAIN, 2, [6, 3], 2)

    def body(group: tern_ep.Group) -> None:
        with tern_ep.Exchange(group, PLAIN) as one, tern_ep.Exchange(group, PLAIN) as other:
            for _ in range(3):
                judge_received(world, group.rank, one.dispatch(world.x[group.rank], world.ids[group.rank], world.weights[group.rank]))
                run_round(world, other, group.rank)
                one.release()

    tern_ep.run_threads(2, body)


def test_many_rounds_without_a_barrier() -> None:
    run_worlds(dataclasses.replace(PLAIN, hidden=16, topk=1), 3, [[r % 3, (r + 1) % 4, r % 2] for r in range(300)])


def test_figures() -> None:
    world = World(PLAIN, 2, [6, 3], 2)

    def body(group: tern_ep.Group) -> None:
        with tern_ep.Exchange(group, PLAIN) as moe:
            run_round(world, moe, group.rank)
            ids = world.ids[group.rank]
            stats = moe.stats()
            assert (stats.rounds, stats.tokens, stats.routes) == (1, world.tokens[group.rank], int((ids >= 0).sum()))
            np.testing.assert_array_equal(moe.expert_load(), np.bincount(ids[ids >= 0], minlength=8))
            assert moe.memory().window_bytes > 0
            moe.reset_stats()
            assert moe.stats().rounds == 0 and moe.expert_load().sum() == 0

    tern_ep.run_threads(2, body)
