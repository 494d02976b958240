# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine as torch.library ops, so that torch.compile can trace a layer that contains them.

    moe = tern_ep.Exchange(group, config, arrays="torch")
    layer = tern_ep.torch.Ops(moe)

    @torch.compile(fullgraph=True)
    def forward(x, topk_ids, topk_weights):
        received = layer.dispatch(x, topk_ids, topk_weights)
        y = experts(received.x, received.counts, received.offsets)
        return layer.combine(y, x.shape[0])

Results are tensors of their own, never the library's memory, so nothing that the compiler keeps can change under it. They have
Exchange.max_rows rows whatever the routing, so that shapes are known when a graph is made; rows that no count covers hold nothing of
use. In low-latency mode the library writes into them. In high-throughput mode it cannot, and rows are copied once more: set a
capacity there, as without one the size is the worst case's.

Every op also takes a small tensor that it claims to change. That keeps the ops of one exchange in the order in which they were
written, on every rank, and keeps the compiler from dropping one. There are no gradients.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from .arrays import NAMES, Dtype, Torch
from .config import Layout, Mode, Scale, Weights
from .errors import InvalidError
from .exchange import Exchange

_keys = itertools.count(1)


class Rows(NamedTuple):
    """Received rows as tensors. See Received; here they last."""

    x: Tensor
    counts: Tensor
    offsets: Tensor
    weights: Optional[Tensor] = None
    """Weights.PASS: the gate weight of each row, [rows]; None BY_SOURCE."""
    topk_ids: Optional[Tensor] = None
    topk_weights: Optional[Tensor] = None
    scales: Optional[Tensor] = None


class _Sizes:
    """Shapes and types of what dispatch returns, which depend on the exchange alone."""

    def __init__(self, moe: Exchange):
        config, nr_rows = moe.config, moe.max_rows
        self.exchange = weakref.ref(moe)
        by_source = config.layout == Layout.BY_SOURCE
        fp8 = config.dispatch_dtype == Dtype.FP8_E4M3
        nr_lists = moe.nr_ranks if by_source else moe.nr_local
        self.fp8, self.by_source, self.weights = fp8, by_source, config.weights == Weights.PASS
        self.direct = config.mode == Mode.LOW_LATENCY and nr_rows > 0
        self.out = (config.hidden, getattr(torch, NAMES[Dtype(config.combine_dtype)]))
        outputs: Dict[str, Tuple[Tuple[int, ...], torch.dtype]] = {
            "x": ((nr_rows, config.received_width), getattr(torch, NAMES[Dtype(config.dispatch_dtype)])),
            "counts": ((nr_lists,), torch.int32),
            "offsets": ((nr_lists,), torch.int64),
        }
        if by_source:
            outputs["topk_ids"] = ((nr_rows, config.topk), torch.int32)
            outputs["topk_weights"] = ((nr_rows, config.topk), torch.float32)
        elif config.weights == Weights.PASS:
            outputs["weights"] = ((nr_rows,), torch.float32)
        if fp8:
            outputs["scales"] = ((nr_rows, config.nr_blocks), torch.float32 if config.scale == Scale.FP32 else torch.uint8)
        self.names = tuple(outputs)
        self.outputs = tuple(outputs.values())

    def new(self, x: Tensor) -> Tuple[Tensor, ...]:
        """What the op fills, and what the compiler reckons with. new_empty takes a third of the time of torch.empty."""
        return tuple([x.new_empty(shape, dtype=dtype) for shape, dtype in self.outputs])

    def combined(self, nr_tokens: int, y: Tensor) -> Tensor:
        return y.new_empty((nr_tokens, self.out[0]), dtype=self.out[1])


_known: Dict[int, _Sizes] = {}


def _of(key: int) -> Tuple[_Sizes, Exchange]:
    sizes = _known.get(key)
    moe = None if sizes is None else sizes.exchange()
    if sizes is None or moe is None:
        raise InvalidError(f"exchange {key} is gone")
    return sizes, moe


def _dispatch(
    order: Tensor, exchange: int, slot: int, x: Tensor, scales: Optional[Tensor], topk_ids: Tensor, topk_weights: Optional[Tensor]
) -> Tuple[Tensor, ...]:
    sizes, moe = _of(exchange)
    outputs = sizes.new(x)
    rows, counts, offsets = outputs[:3]
    into_x = rows if sizes.direct else None
    into_scales = outputs[-1] if sizes.direct and sizes.fp8 else None
    received = moe._dispatch_for_good(x, topk_ids, topk_weights, scales, slot, into_x, into_scales, counts, offsets)
    extent = received.extent
    if not sizes.direct:
        received.copy("x", rows, extent)
        if sizes.fp8:
            received.copy("scales", outputs[-1], extent)
    if sizes.by_source:
        received.copy("topk_ids", outputs[3], extent)
        received.copy("topk_weights", outputs[4], extent)
    elif sizes.weights:
        received.copy("weight", outputs[3], extent)
    return outputs


def _dispatch_fake(order: Tensor, exchange: int, slot: int, x: Tensor, scales: Any, topk_ids: Tensor, topk_weights: Any) -> Any:
    return _of(int(exchange))[0].new(x)


def _combine(order: Tensor, exchange: int, slot: int, y: Tensor, nr_tokens: int) -> Tensor:
    sizes, moe = _of(exchange)
    out = sizes.combined(nr_tokens, y)
    moe.combine(y, slot=slot, out=out)
    return out


def _combine_fake(order: Tensor, exchange: int, slot: int, y: Tensor, nr_tokens: int) -> Tensor:
    return _of(int(exchange))[0].combined(nr_tokens, y)


def _release(order: Tensor, exchange: int, slot: int) -> None:
    _of(exchange)[1].release(slot)


def _release_fake(order: Tensor, exchange: int, slot: int) -> None:
    return None


_library = torch.library.Library("tern_ep", "DEF")


def _op(name: str, signature: str, function: Any, fake: Any) -> Any:
    """Every op claims to change `order`. What torch.library.custom_op adds in Python would cost more than the call."""
    _library.define(f"{name}(Tensor(a!) order, int exchange, int slot{signature}", tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"tern_ep::{name}", fake, lib=_library)
    return getattr(torch.ops.tern_ep, name).default


def _dispatch_returning(nr: int) -> Any:
    tensors = ", ".join(["Tensor"] * nr)
    signature = f", Tensor x, Tensor? scales, Tensor topk_ids, Tensor? topk_weights) -> ({tensors})"
    return _op(f"dispatch_{nr}", signature, _dispatch, _dispatch_fake)


# By how many tensors they return: a list of them cannot be made functional.
_dispatch_ops = {nr: _dispatch_returning(nr) for nr in (3, 4, 5, 6)}
_combine_op = _op("combine", ", Tensor y, SymInt nr_tokens) -> Tensor", _combine, _combine_fake)
_release_op = _op("release", ") -> ()", _release, _release_fake)


class Ops:
    """The ops of one exchange, which has to be made with arrays="torch"."""

    def __init__(self, exchange: Exchange):
        if not isinstance(exchange.kind, Torch):
            raise InvalidError('the exchange of torch ops has to be made with arrays="torch"')
        self.exchange = exchange
        self._order = torch.zeros(1, dtype=torch.int64, device="cuda" if exchange.on_device else "cpu")
        # As torch._dynamo.mark_static_address, without importing it: cudagraph trees take no other input that an op changes.
        self._order._dynamo_static_input_type = "unguarded"  # type: ignore[attr-defined]
        self._key = next(_keys)
        sizes = _known[self._key] = _Sizes(exchange)
        weakref.finalize(exchange, _known.pop, self._key)
        self._names = sizes.names
        self._dispatch = _dispatch_ops[len(sizes.names)]
        self._in_order = sizes.names == Rows._fields[: len(sizes.names)]

    def dispatch(
        self, x: Tensor, topk_ids: Tensor, topk_weights: Optional[Tensor] = None, *, scales: Optional[Tensor] = None, slot: int = 0
    ) -> Rows:
        """Exchange.dispatch."""
        given = self._dispatch(self._order, self._key, slot, x, scales, topk_ids, topk_weights)
        return Rows(*given) if self._in_order else Rows(**dict(zip(self._names, given)))

    def combine(self, y: Tensor, nr_tokens: int, *, slot: int = 0) -> Tensor:
        """Exchange.combine. nr_tokens: what this rank passed to dispatch."""
        result: Tensor = _combine_op(self._order, self._key, slot, y, nr_tokens)
        return result

    def release(self, *, slot: int = 0) -> None:
        """Exchange.release."""
        _release_op(self._order, self._key, slot)
