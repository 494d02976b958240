# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine as torch.library ops, so that torch.compile can trace a layer that contains them.

    moe = tern.Exchange(group, config, arrays="torch")
    layer = tern.torch.Ops(moe)

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
from typing import Any, Callable, List, NamedTuple, Optional, Tuple, TypeVar

import torch
from torch import Tensor

from .arrays import NAMES, Dtype, Torch
from .config import Layout, Mode, Scale
from .errors import InvalidError
from .exchange import Exchange
from .received import Received

_exchanges: "weakref.WeakValueDictionary[int, Exchange]" = weakref.WeakValueDictionary()
_keys = itertools.count(1)

Function = TypeVar("Function", bound=Callable[..., Any])
_Rows = Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


class Rows(NamedTuple):
    """Received rows as tensors. See Received; here they last."""

    x: Tensor
    scales: Optional[Tensor]
    counts: Tensor
    offsets: Tensor
    weights: Tensor
    """The gate weight of each row, [rows]; [0] BY_SOURCE."""
    topk_ids: Optional[Tensor]
    topk_weights: Optional[Tensor]


def _exchange(key: int) -> Exchange:
    moe = _exchanges.get(int(key))
    if moe is None:
        raise InvalidError(f"exchange {key} is gone")
    return moe


def _scale_dtype(moe: Exchange) -> torch.dtype:
    return torch.float32 if moe.config.scale == Scale.FP32 else torch.uint8


def _outputs(moe: Exchange, device: torch.device) -> _Rows:
    """Tensors of the shapes that dispatch returns: what the op fills, and what the compiler reckons with."""
    config, nr_rows = moe.config, moe.max_rows
    by_source = config.layout == Layout.BY_SOURCE
    fp8 = config.dispatch_dtype == Dtype.FP8_E4M3
    nr_lists = moe.nr_ranks if by_source else moe.nr_local
    routes = (nr_rows if by_source else 0, config.topk)

    def new(shape: Any, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    return (
        new((nr_rows, config.received_width), getattr(torch, NAMES[Dtype(config.dispatch_dtype)])),
        new((nr_rows if fp8 else 0, config.nr_blocks), _scale_dtype(moe)),
        new((nr_lists,), torch.int32),
        new((nr_lists,), torch.int64),
        new((0 if by_source else nr_rows,), torch.float32),
        new(routes, torch.int32),
        new(routes, torch.float32),
    )


def _weights(received: Received) -> Tensor:
    rows = received.rows
    return rows[:, 3].view(torch.float32) if isinstance(rows, Tensor) else torch.from_numpy(rows["weight"].copy())


def _fill(outputs: _Rows, received: Received) -> None:
    """All but the rows themselves."""
    _, _, counts, offsets, weights, topk_ids, topk_weights = outputs
    extent = received.extent
    counts.copy_(received.counts)
    offsets.copy_(received.offsets[: offsets.numel()])  # a device has two more
    if weights.numel():
        weights[:extent].copy_(_weights(received))
    if topk_ids.numel():
        topk_ids[:extent].copy_(received.topk_ids)
        topk_weights[:extent].copy_(received.topk_weights)


def _op(name: str) -> Callable[[Function], Function]:
    """Every op claims to change `order`, its first argument."""
    declare: Callable[[Function], Function] = torch.library.custom_op(name, mutates_args=("order",))
    return declare


@_op("tern::dispatch")
def _dispatch(
    order: Tensor, exchange: int, slot: int, x: Tensor, scales: Optional[Tensor], topk_ids: Tensor, topk_weights: Optional[Tensor]
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    moe = _exchange(exchange)
    outputs = _outputs(moe, x.device)
    rows, row_scales = outputs[:2]
    if moe.config.mode == Mode.LOW_LATENCY and moe.max_rows:
        into_scales = row_scales if row_scales.numel() else None
        received = moe.dispatch(x, topk_ids, topk_weights, scales=scales, slot=slot, into_x=rows, into_scales=into_scales)
    else:
        received = moe.dispatch(x, topk_ids, topk_weights, scales=scales, slot=slot)
        rows[: received.extent].copy_(received.x)
        if row_scales.numel():
            row_scales[: received.extent].copy_(received.scales)
    _fill(outputs, received)
    return outputs


def _dispatch_fake(order: Tensor, exchange: int, slot: int, x: Tensor, scales: Any, topk_ids: Tensor, topk_weights: Any) -> _Rows:
    return _outputs(_exchange(exchange), x.device)


@_op("tern::combine")
def _combine(order: Tensor, exchange: int, slot: int, y: Tensor, nr_tokens: int) -> Tensor:
    moe = _exchange(exchange)
    out = _combined(moe, y, nr_tokens)
    moe.combine(y, slot=slot, out=out)
    return out


def _combined(moe: Exchange, y: Tensor, nr_tokens: int) -> Tensor:
    return torch.empty((nr_tokens, moe.config.hidden), dtype=getattr(torch, NAMES[Dtype(moe.config.combine_dtype)]), device=y.device)


def _combine_fake(order: Tensor, exchange: int, slot: int, y: Tensor, nr_tokens: int) -> Tensor:
    return _combined(_exchange(exchange), y, nr_tokens)


@_op("tern::release")
def _release(order: Tensor, exchange: int, slot: int) -> None:
    _exchange(exchange).release(slot)


def _release_fake(order: Tensor, exchange: int, slot: int) -> None:
    return None


torch.library.register_fake("tern::dispatch", _dispatch_fake)
torch.library.register_fake("tern::combine", _combine_fake)
torch.library.register_fake("tern::release", _release_fake)


class Ops:
    """The ops of one exchange, which has to be made with arrays="torch"."""

    def __init__(self, exchange: Exchange):
        if not isinstance(exchange.kind, Torch):
            raise InvalidError('the exchange of torch ops has to be made with arrays="torch"')
        self.exchange = exchange
        self._fp8 = exchange.config.dispatch_dtype == Dtype.FP8_E4M3
        self._by_source = exchange.config.layout == Layout.BY_SOURCE
        self._order = torch.zeros(1, dtype=torch.int64, device="cuda" if exchange.on_device else "cpu")
        self._key = next(_keys)
        _exchanges[self._key] = exchange

    def dispatch(
        self, x: Tensor, topk_ids: Tensor, topk_weights: Optional[Tensor] = None, *, scales: Optional[Tensor] = None, slot: int = 0
    ) -> Rows:
        """Exchange.dispatch."""
        given: List[Any] = list(_dispatch(self._order, self._key, slot, x, scales, topk_ids, topk_weights))
        if not self._fp8:
            given[1] = None
        if not self._by_source:
            given[5] = given[6] = None
        return Rows(*given)

    def combine(self, y: Tensor, nr_tokens: int, *, slot: int = 0) -> Tensor:
        """Exchange.combine. nr_tokens: what this rank passed to dispatch."""
        result: Tensor = _combine(self._order, self._key, slot, y, nr_tokens)
        return result

    def release(self, *, slot: int = 0) -> None:
        """Exchange.release."""
        _release(self._order, self._key, slot)
