# SPDX-License-Identifier: Apache-2.0
"""What a dispatch makes of rows beside them, and dispatch by rank."""

from typing import Any

import numpy as np
import pytest

import tern_ep
from tern_ep import Config, Dtype, Layout, Reduce, Scale, Wanted, Weights

RANKS, EXPERTS, HIDDEN, TOKENS, TOPK = 3, 6, 640, 9, 2


def config(layout: Layout, scale: Scale) -> Config:
    by_source = layout == Layout.BY_SOURCE
    return Config(
        hidden=HIDDEN,
        nr_experts=EXPERTS,
        topk=TOPK,
        max_tokens=TOKENS,
        layout=layout,
        reduce=Reduce.EXPERT,
        weights=Weights.PASS if by_source else Weights.COMBINE,
        x_dtype=Dtype.FP32,
        dispatch_dtype=Dtype.FP8_E4M3,
        scale=scale,
    )


def by_columns(received: Any, packed: bool) -> Any:
    """[columns][rows] of what the rows' scales are."""
    scales = np.ascontiguousarray(received.scales)
    if not packed:
        return scales.T
    four = np.zeros((len(scales), -(-scales.shape[1] // 4) * 4), np.uint8)
    four[:, : scales.shape[1]] = scales
    return four.view(np.uint32).T


def play(group: tern_ep.Group, layout: Layout, scale: Scale) -> bool:
    random = np.random.default_rng(group.rank)
    packed, by_source = scale == Scale.UE8M0, layout == Layout.BY_SOURCE
    with tern_ep.Exchange(group, config(layout, scale)) as moe:
        stride = -(-moe.max_rows // 4) * 4
        want = Wanted(
            wide_ids=np.zeros((moe.max_rows, TOPK), np.int64) if by_source else None,
            expert_counts=np.zeros(moe.nr_local, np.int32),
            into_counts=np.full(moe.nr_ranks if by_source else moe.nr_local, -1, np.int32),
            expert_totals=np.zeros(moe.nr_local, np.int64),
            gemm_scales=np.zeros((2 if packed else 5, stride), np.uint32 if packed else np.float32),
            counts_alignment=4,
            waited_ns=np.zeros(RANKS, np.int64),
        )
        totals = np.zeros(moe.nr_local, np.int64)
        for _ in range(3):
            ids = np.stack([random.permutation(EXPERTS)[:TOPK] for _ in range(TOKENS)]).astype(np.int32)
            received = moe.dispatch(random.standard_normal((TOKENS, HIDDEN)).astype(np.float32), ids, want=want)
            assert moe.received_sizes() == (received.nr_rows, received.extent)
            counts = np.array([(received.topk_ids == i).sum() for i in range(moe.nr_local)]) if by_source else received.counts
            totals += counts
            assert received.counts.ctypes.data == want.into_counts.ctypes.data and (by_source or np.array_equal(want.into_counts, counts))
            assert np.array_equal(want.expert_counts, -(-counts // 4) * 4) and np.array_equal(want.expert_totals, totals)
            assert np.array_equal(want.gemm_scales[:, : received.extent], by_columns(received, packed))
            if by_source:
                assert np.array_equal(want.wide_ids[: received.nr_rows], received.topk_ids)
                assert (want.wide_ids[received.nr_rows :] == -1).all()
            moe.release()
            before = want.expert_totals.copy()
            moe.dispatch(np.zeros((0, HIDDEN), np.float32), np.zeros((0, TOPK), np.int32))
            assert np.array_equal(want.expert_totals, before)
            moe.release()
        with pytest.raises(tern_ep.InvalidError, match="wide_ids is"):
            moe.dispatch(np.zeros((0, HIDDEN), np.float32), np.zeros((0, TOPK), np.int32), want=Wanted(wide_ids=np.zeros((3, TOPK), np.int64)))
    return True


@pytest.mark.parametrize("layout", [Layout.CONTIGUOUS, Layout.BY_SOURCE])
@pytest.mark.parametrize("scale", [Scale.FP32, Scale.UE8M0])
def test_wanted(layout: Layout, scale: Scale) -> None:
    assert tern_ep.run_threads(RANKS, lambda group: play(group, layout, scale)) == [True] * RANKS


def to_ranks(group: tern_ep.Group) -> bool:
    """An exchange whose experts are its ranks sends each token to those that a mask names."""
    random = np.random.default_rng(group.rank)
    settings = Config(
        hidden=32,
        nr_experts=RANKS,
        topk=RANKS,
        max_tokens=TOKENS,
        layout=Layout.BY_SOURCE,
        weights=Weights.PASS,
        x_dtype=Dtype.FP32,
        dispatch_dtype=Dtype.FP32,
        combine_dtype=Dtype.FP32,
    )
    with tern_ep.Exchange(group, settings) as moe:
        x = random.integers(0, 50, (TOKENS, 32)).astype(np.float32)
        mask = random.random((TOKENS, RANKS)) < 0.5
        received = moe.dispatch(x, np.where(mask, np.arange(RANKS), -1).astype(np.int32))
        assert np.array_equal(received.topk_ids[:, group.rank], np.zeros(received.nr_rows))
        assert np.array_equal(moe.combine(received.x), x * mask.sum(1, keepdims=True))
    return True


def test_by_rank() -> None:
    assert tern_ep.run_threads(RANKS, to_ranks) == [True] * RANKS
