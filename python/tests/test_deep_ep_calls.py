# SPDX-License-Identifier: Apache-2.0
"""How published engines call deep_ep, as scripts/deep_ep_calls.py has found it, bound to the signatures of the shim."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from tern_ep import deep_ep  # noqa: E402

SHAPES = json.loads(Path(__file__).with_name("deep_ep_calls.json").read_text())
# Arguments that V1 has not, and that engines pass to libraries of their own in some cases alone: a TypeError names them.
FOREIGN = {
    "Buffer.low_latency_dispatch": {"topk_weights", "use_nvfp4", "x_global_scale"},
    "Buffer.low_latency_combine": {"block_m", "comp_signal", "num_sms", "overlap", "packed_recv_count", "src_signal_expect_value", "src_signals", "threshold"},
}


def target(callee: str) -> Any:
    found: Any = deep_ep
    for name in callee.split("."):
        holder, found = found, inspect.getattr_static(found, name) if isinstance(found, type) else getattr(found, name)
    if isinstance(found, staticmethod):
        return found.__func__, 0
    return found, int(isinstance(holder, type))


def name_of(shape: Any) -> str:
    return f"{shape['callee']}({shape['positional']}{''.join(', ' + name for name in shape['keywords'])})"


@pytest.mark.parametrize("shape", SHAPES, ids=name_of)
def test_binds(shape: Any) -> None:
    function, of_self = target(shape["callee"])
    signature = inspect.signature(function)
    foreign = FOREIGN.get(shape["callee"], set())
    optional = set(shape["optional"])
    for keywords in (shape["keywords"], set(shape["keywords"]) | (optional - foreign)):
        signature.bind(*[None] * (shape["positional"] + of_self), **dict.fromkeys(keywords))
    for name in optional & foreign:
        with pytest.raises(TypeError, match=name):
            signature.bind(*[None] * (shape["positional"] + of_self), **dict.fromkeys([*shape["keywords"], name]))


def test_every_engine_is_there() -> None:
    packages = {package for shape in SHAPES for package in shape["in"]}
    assert {"vllm", "sglang", "megatron-core"} <= packages
    callees = {shape["callee"] for shape in SHAPES}
    assert {"Buffer", "Buffer.dispatch", "Buffer.combine", "Buffer.low_latency_dispatch", "Buffer.low_latency_combine"} <= callees
