# SPDX-License-Identifier: Apache-2.0
"""Random settings, shapes and routings, bit for bit. Hypothesis shrinks what fails, and prints it."""

from __future__ import annotations

import os
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from reference import World, fill_results, judge_combined, judge_received  # noqa: E402

import tern_ep  # noqa: E402
from tern_ep import Config, Dtype, Layout, Mode, Placement, Reduce, Scale, Weights  # noqa: E402

EXAMPLES = max(1, 150 // int(os.environ.get("TERN_TEST_DIVISOR", "1")))
WIDTH = 16  # elements: a row of any type is a multiple of 16 bytes


@st.composite
def types(draw: Any) -> Any:
    x = draw(st.sampled_from(list(Dtype)))
    quantised = x not in (Dtype.BYTES, Dtype.FP8_E4M3) and draw(st.booleans())
    dispatch = Dtype.FP8_E4M3 if quantised else x
    scale = draw(st.sampled_from([Scale.FP32, Scale.UE8M0])) if dispatch == Dtype.FP8_E4M3 else Scale.NONE
    return x, dispatch, scale


@st.composite
def placements(draw: Any, nr_experts: int, nr_ranks: int) -> Any:
    extra = draw(st.lists(st.integers(0, nr_experts - 1), max_size=4))
    logical = draw(st.permutations(list(range(nr_experts)) + extra))
    return Placement(len(logical), logical, [draw(st.integers(0, nr_ranks - 1)) for _ in logical])


@st.composite
def worlds(draw: Any) -> World:
    nr_ranks, replica_ranks = draw(st.sampled_from([(1, 1), (2, 1), (2, 2), (3, 1), (4, 1), (4, 2), (5, 1), (6, 3)]))
    nr_experts = draw(st.integers(1, 12))
    x, dispatch, scale = draw(types())
    layout = draw(st.sampled_from(list(Layout)))
    by_source = layout == Layout.BY_SOURCE
    max_tokens = draw(st.integers(1, 5))
    config = Config(
        hidden=WIDTH * draw(st.sampled_from([1, 3, 8, 17])),
        nr_experts=nr_experts,
        topk=draw(st.integers(1, min(nr_experts, 6))),
        max_tokens=max_tokens,
        mode=draw(st.sampled_from(list(Mode))),
        layout=layout,
        reduce=Reduce.EXPERT if by_source else draw(st.sampled_from(list(Reduce))),
        weights=Weights.PASS if by_source else draw(st.sampled_from(list(Weights))),
        x_dtype=x,
        dispatch_dtype=dispatch,
        scale=scale,
        payload_bytes=16 * draw(st.integers(1, 5)) if x == Dtype.BYTES else 0,
        combine_dtype=draw(st.sampled_from([Dtype.BF16, Dtype.FP16, Dtype.FP32])),
        alignment=draw(st.sampled_from([1, 1, 4, 128])) if layout == Layout.CONTIGUOUS else 1,
        placement=draw(st.none() | placements(nr_experts, nr_ranks)),
        replica_ranks=replica_ranks,
        first_epoch=draw(st.sampled_from([0, 1, 2**31, 2**32 - 1])),
    )
    counts = [draw(st.integers(0, max_tokens)) for _ in range(nr_ranks)]
    return World(config, nr_ranks, counts, draw(st.integers(0, 2**32 - 1)))


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(worlds(), st.integers(1, 3))
def test_random_worlds(world: World, nr_rounds: int) -> None:
    def body(group: tern_ep.Group) -> None:
        rank = group.rank
        with tern_ep.Exchange(group, world.config) as moe:
            for _ in range(nr_rounds):
                received = moe.dispatch(world.x[rank], world.ids[rank], world.weights[rank], scales=world.scales[rank])
                judge_received(world, rank, received)
                y = moe.empty_y(received)
                fill_results(world, rank, y)
                judge_combined(world, rank, moe.combine(y))

    tern_ep.run_threads(world.nr_ranks, body)


@settings(max_examples=EXAMPLES * 2)
@given(st.binary(max_size=96), st.integers(0, 3), st.integers(0, 8), st.integers(0, 4), st.sampled_from(["u1", "i4", "i8", "f4", "<u2"]), st.data())
def test_any_arrays_are_taken_or_refused(content: bytes, rows: int, width: int, offset: int, dtype: str, data: Any) -> None:
    """Whatever is passed: a round that completes, or an error of Tern's that leaves the slot as it was."""
    import numpy as np

    def drawn(shape: Any) -> Any:
        memory = np.frombuffer(content + bytes(4096), dtype=np.uint8)
        kind = np.dtype(dtype)
        need = int(np.prod(shape)) * kind.itemsize
        return memory[offset : offset + need].view(kind).reshape(shape) if need else np.empty(shape, kind)

    good_x, good_ids = np.zeros((rows, 16), np.uint16), np.full((rows, 2), -1, np.int32)
    config = Config(hidden=16, nr_experts=4, topk=2, max_tokens=3)
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, config) as moe:
        x = data.draw(st.sampled_from([good_x, drawn((rows, width)), content]))
        ids = data.draw(st.sampled_from([good_ids, drawn((rows, 2)), drawn((rows, width))]))
        weights = data.draw(st.sampled_from([None, drawn((rows, 2))]))
        try:
            received = moe.dispatch(x, ids, weights)
            assert moe.combine(moe.empty_y(received)).shape[1] == 16
        except tern_ep.InvalidError:
            pass
        received = moe.dispatch(good_x, good_ids)
        assert received.nr_rows == 0
        assert not moe.combine(None).any()
