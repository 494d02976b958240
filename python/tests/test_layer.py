# SPDX-License-Identifier: Apache-2.0
"""The experts between dispatch and combine, against numpy."""

from typing import Any

import numpy as np
import pytest

import tern_ep
from tern_ep import Activation, Config, Dtype, Layer, Mode

RANKS, EXPERTS, HIDDEN, INNER, TOKENS = 2, 4, 16, 12, 5


def config(**changed: Any) -> Config:
    settings = dict(hidden=HIDDEN, nr_experts=EXPERTS, topk=2, max_tokens=TOKENS, nr_slots=2)
    types = dict(x_dtype=Dtype.FP32, dispatch_dtype=Dtype.FP32, combine_dtype=Dtype.FP32)
    return Config(**{**settings, **types, **changed})  # type: ignore[arg-type]


def weights(expert: int) -> Any:
    random = np.random.default_rng(100 + expert)
    return [random.normal(size=shape).astype(np.float32) for shape in ((INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER))]


def dense(x: Any, ids: Any, gains: Any) -> Any:
    out = np.zeros_like(x, np.float64)
    for t in range(len(x)):
        for k, expert in enumerate(ids[t]):
            gate, up, down = (w.astype(np.float64) for w in weights(expert))
            g = gate @ x[t]
            out[t] += gains[t, k] * (down @ (g / (1 + np.exp(-g)) * (up @ x[t])))
    return out


def play(group: tern_ep.Group, mode: Mode) -> bool:
    random = np.random.default_rng(group.rank)
    with tern_ep.Exchange(group, config(mode=mode)) as moe:
        gate, up, down = (np.stack(w) for w in zip(*(weights(e) for e in moe.local_experts)))
        with Layer(moe, tern_ep.stack_gate_up(gate, up), down) as layer:
            assert layer.inner == INNER and layer.memory_bytes > 0
            for slot in 0, 1, 0:
                n = random.integers(0, TOKENS + 1)
                x = random.normal(size=(n, HIDDEN)).astype(np.float32)
                ids = np.stack([random.permutation(EXPERTS)[:2] for _ in range(TOKENS)]).astype(np.int32)[:n]
                gains = random.random((n, 2), np.float32)
                assert np.allclose(layer(x, ids, gains, slot=slot), dense(x, ids, gains), atol=1e-4)
                received = moe.dispatch(x, ids, gains, slot=slot)
                y = layer.experts(received, slot=slot)
                assert np.allclose(moe.combine(y, slot=slot), dense(x, ids, gains), atol=1e-4)
    return True


@pytest.mark.parametrize("mode", [Mode.LOW_LATENCY, Mode.HIGH_THROUGHPUT])
def test_against_numpy(mode: Mode) -> None:
    assert tern_ep.run_threads(RANKS, lambda group: play(group, mode)) == [True] * RANKS


def test_refusals() -> None:
    gate_up, down = np.zeros((EXPERTS, 2 * INNER, HIDDEN), np.float32), np.zeros((EXPERTS, HIDDEN, INNER), np.float32)
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, config()) as moe:
        with pytest.raises(tern_ep.InvalidError, match=r"gate_up is \[3, 24, 16\]; it has to be \[4\]\[2I\]\[16\]"):
            Layer(moe, gate_up[:3], down)
        with pytest.raises(tern_ep.InvalidError, match="down is float64"):
            Layer(moe, gate_up, down.astype(np.float64))
        with pytest.raises(tern_ep.InvalidError, match="down has gaps"):
            Layer(moe, gate_up, down.transpose(0, 2, 1).copy().transpose(0, 2, 1))
        with pytest.raises(tern_ep.InvalidError, match=r"down is \[4, 8, 12\]"):
            Layer(moe, gate_up, down[:, :8].copy())
        with pytest.raises(tern_ep.InvalidError, match="FP8 weights have scales"):
            Layer(moe, gate_up, down, down_scales=np.ones((EXPERTS, 1, 1), np.float32))
        layer = Layer(moe, gate_up, down, activation=Activation.LINEAR_GATED)
        x, ids = np.zeros((3, HIDDEN), np.float32), np.zeros((3, 2), np.int32) + [0, 1]
        received = moe.dispatch(x, ids)
        with pytest.raises(tern_ep.StateError, match="combine_send or release"):
            layer(x[:1], ids[:1])
        with pytest.raises(tern_ep.InvalidError, match="y has 5 rows"):
            layer.experts(received, np.zeros((5, HIDDEN), np.float32))
        assert moe.combine(layer.experts(received)).shape == (3, HIDDEN)  # of the round that nothing has disturbed
        layer.close()
        with pytest.raises(tern_ep.StateError, match="layer is closed"):
            layer(x, ids)


def test_outlives_its_exchange() -> None:
    """Whichever is closed first."""
    with tern_ep.Group.alone() as group:
        moe = tern_ep.Exchange(group, config())
        layer = Layer(moe, np.zeros((EXPERTS, 2 * INNER, HIDDEN), np.float32), np.zeros((EXPERTS, HIDDEN, INNER), np.float32))
        moe.close()
        layer.close()
        del layer, moe


def test_quantised_weights() -> None:
    torch = pytest.importorskip("torch")
    values = torch.randn(2, 200, 130, dtype=torch.float32) * torch.tensor([1e-3, 50])[:, None, None]
    elements, scales = tern_ep.quantise_weights(values)
    assert elements.dtype == torch.float8_e4m3fn and elements.shape == values.shape and scales.shape == (2, 2, 2)
    back = elements.float() * scales.repeat_interleave(128, 1).repeat_interleave(128, 2)[:, :200, :130]
    assert bool(((back - values).abs() <= values.abs() / 16 + scales.max(dim=2).values.max() * 2**-10).all())


def test_gates_are_for_devices() -> None:
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, config()) as moe:
        with pytest.raises(tern_ep.InvalidError, match="not on a device"):
            moe.gate()
        with pytest.raises(tern_ep.InvalidError, match="slot is 2 of 2"):
            moe.gate(2)
