# SPDX-License-Identifier: Apache-2.0
"""Plans that outlive their round."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import tern_ep
from tern_ep import Config, Dtype, Layout, Mode, Reduce, Weights

RANKS, EXPERTS, HIDDEN, TOKENS = 3, 6, 32, 7


def config(mode: Mode) -> Config:
    return Config(
        hidden=HIDDEN,
        nr_experts=EXPERTS,
        topk=2,
        max_tokens=TOKENS,
        mode=mode,
        nr_slots=2,
        x_dtype=Dtype.FP32,
        dispatch_dtype=Dtype.FP32,
        combine_dtype=Dtype.FP32,
    )


def tokens(random: Any) -> Any:
    return random.integers(0, 50, (TOKENS, HIDDEN)).astype(np.float32)


def scaled(moe: tern_ep.Exchange, received: Any) -> Any:
    y = moe.empty_y(received)
    for i, expert in enumerate(moe.local_experts):
        y[received.expert(i)] = received.x[received.expert(i)] * (expert + 1)
    return y


def play(group: tern_ep.Group, mode: Mode) -> bool:
    random = np.random.default_rng(group.rank)
    with tern_ep.Exchange(group, config(mode)) as moe:
        ids = np.stack([random.permutation(EXPERTS)[:2] for _ in range(TOKENS)]).astype(np.int32)
        gains = (ids + 1).sum(axis=1, keepdims=True).astype(np.float32)
        x = tokens(random)
        received = moe.dispatch(x, ids)
        with moe.plan() as plan:
            y = scaled(moe, received)
            assert np.array_equal(moe.combine(y), x * gains)
            assert np.array_equal(plan.combine(2 * y), 2 * x * gains)
            assert np.array_equal(plan.combine(3 * y, slot=1), 3 * x * gains)
            x = tokens(random)
            again = plan.dispatch(x, slot=1)
            assert np.array_equal(moe.combine(scaled(moe, again), slot=1), x * gains)
            plan.dispatch(x)
            moe.release()
            with pytest.raises(tern_ep.InvalidError, match="6 rows; the plan has 7"):
                plan.dispatch(x[:6])
            with pytest.raises(tern_ep.InvalidError, match="y is None"):
                plan.combine(None)
            assert np.array_equal(plan.combine(y), plan.combine(y, slot=1))
        with pytest.raises(tern_ep.StateError, match="plan is closed"):
            plan.combine(y)
        with pytest.raises(tern_ep.StateError, match="dispatch_send"):
            moe.plan()
    return True


@pytest.mark.parametrize("mode", [Mode.LOW_LATENCY, Mode.HIGH_THROUGHPUT])
def test_plans_of_different_tokens(mode: Mode) -> None:
    """What one plan takes is no other's, though both were looked at."""
    x, ids = np.ones((TOKENS, HIDDEN), np.float32), np.array([[0, 1]] * TOKENS, np.int32)
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, config(mode)) as moe:
        plans = []
        for nr in (3, 5):
            moe.dispatch(x[:nr], ids[:nr])
            plans.append(moe.plan())
            moe.release()
        for _ in range(2):
            for plan, nr in zip(plans, (3, 5)):
                assert plan.dispatch(x[:nr]).nr_rows == 2 * nr
                moe.release()
                with pytest.raises(tern_ep.InvalidError, match=f"{8 - nr} rows; the plan has {nr} tokens"):
                    plan.dispatch(x[: 8 - nr])


def gradients(group: tern_ep.Group, layout: Layout) -> bool:
    """What a backward pass does: weights of the combine, none, and the gates' gradients, which come home as floats."""
    by_source = layout == Layout.BY_SOURCE
    random = np.random.default_rng(group.rank)
    settings = dataclasses.replace(
        config(Mode.HIGH_THROUGHPUT),
        layout=layout,
        reduce=Reduce.EXPERT if by_source else Reduce.HOME,
        weights=Weights.PASS if by_source else Weights.COMBINE,
        combine_floats=True,
    )
    with tern_ep.Exchange(group, settings) as moe:
        ids = np.stack([random.permutation(EXPERTS)[:2] for _ in range(TOKENS)]).astype(np.int32)
        ids[3, 1] = -1
        routed = ids >= 0
        x, weights = tokens(random), random.integers(1, 9, (TOKENS, 2)).astype(np.float32)
        received = moe.dispatch(x, ids, weights)
        gates = np.full((TOKENS, 2), 5, np.float32)
        if by_source:
            floats = np.where(received.topk_ids >= 0, received.topk_weights + 1, -1).astype(np.float32)
            ranks = np.array([[len(set(r[r >= 0] // 2))] for r in ids], np.float32)
            out = moe.combine(received.x, floats=floats, out_floats=gates)
            assert np.array_equal(out, x * ranks) and np.array_equal(gates, np.where(routed, weights + 1, 0))
            return True
        with moe.plan() as plan:
            y, floats = scaled(moe, received), received.x[:, 0] + 1
            gains = (ids + 1) * routed
            assert np.array_equal(moe.combine(y, unweighted=True), x * gains.sum(1, keepdims=True))
            out = plan.combine(y, topk_weights=2 * weights, floats=floats, out_floats=gates)
            assert np.array_equal(out, x * (gains * 2 * weights).sum(1, keepdims=True))
            assert np.array_equal(gates, np.where(routed, x[:, :1] + 1, 0))
            assert np.array_equal(plan.combine(y), x * (gains * weights).sum(1, keepdims=True))
            with pytest.raises(tern_ep.InvalidError, match="and unweighted"):
                plan.combine(y, topk_weights=weights, unweighted=True)
            with pytest.raises(tern_ep.InvalidError, match="floats is float64"):
                plan.combine(y, floats=floats.astype(np.float64))
            with pytest.raises(tern_ep.InvalidError, match="out_floats is float32"):
                plan.combine(y, out_floats=gates[:3])
            assert np.array_equal(plan.combine(y), x * (gains * weights).sum(1, keepdims=True))
    return True


@pytest.mark.parametrize("layout", [Layout.CONTIGUOUS, Layout.BY_SOURCE])
def test_gradients(layout: Layout) -> None:
    assert tern_ep.run_threads(RANKS, lambda group: gradients(group, layout)) == [True] * RANKS


@pytest.mark.parametrize("mode", [Mode.LOW_LATENCY, Mode.HIGH_THROUGHPUT])
def test_used_again(mode: Mode) -> None:
    assert tern_ep.run_threads(RANKS, lambda group: play(group, mode)) == [True] * RANKS


def test_goes_with_its_exchange() -> None:
    with tern_ep.Group.alone() as group:
        moe = tern_ep.Exchange(group, config(Mode.LOW_LATENCY))
        moe.dispatch(tokens(np.random.default_rng(1)), np.zeros((TOKENS, 2), np.int32) + [0, 1])
        before = moe.memory().private_bytes
        plan, other = moe.plan(), moe.plan()
        assert moe.memory().private_bytes > before
        other.close()
        other.close()
        plan.close()
        assert moe.memory().private_bytes == before
        plan = moe.plan()
        moe.close()
        plan.close()
