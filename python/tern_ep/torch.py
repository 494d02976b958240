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
written, on every rank, and keeps the compiler from dropping one. There are no gradients; Differentiable has ops with them.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from .arrays import NAMES, Dtype, Torch
from .config import Layout, Mode, Scale, Weights
from .errors import InvalidError, StateError
from .exchange import Exchange
from .plan import Plan

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
        self.direct = moe.mode == Mode.LOW_LATENCY and nr_rows > 0
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
        assert isinstance(moe.kind, Torch)
        self.templates = [moe.kind.template(shape, dtype) for shape, dtype in self.outputs]

    def fakes(self, x: Tensor) -> Tuple[Tensor, ...]:
        """What the compiler reckons with."""
        return tuple([x.new_empty(shape, dtype=dtype) for shape, dtype in self.outputs])


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
    kind = moe.kind
    assert isinstance(kind, Torch)
    outputs = tuple([kind.like(template) for template in sizes.templates])
    rows, counts, offsets = outputs[:3]
    into_x = rows if sizes.direct else None
    into_scales = outputs[-1] if sizes.direct and sizes.fp8 else None
    address = kind.address
    received = moe._calls.dispatch_for_good(moe, slot, x, topk_ids, topk_weights, scales, into_x, into_scales, address(counts), address(offsets))
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
    return _of(int(exchange))[0].fakes(x)


def _combine(order: Tensor, exchange: int, slot: int, y: Tensor, nr_tokens: int) -> Tensor:
    sizes, moe = _of(exchange)
    kind = moe.kind
    assert isinstance(kind, Torch)
    out: Tensor = kind.new((nr_tokens, sizes.out[0]), sizes.out[1])
    moe.combine(y, slot=slot, out=out)
    return out


def _combine_fake(order: Tensor, exchange: int, slot: int, y: Tensor, nr_tokens: int) -> Tensor:
    width, dtype = _of(int(exchange))[0].out
    return y.new_empty((nr_tokens, width), dtype=dtype)


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


def _seen(x: Tensor) -> bool:
    """Whether somebody looks at the ops that are called: a compiler, a mode, autograd. Where nobody does, torch's dispatcher would cost as
    much as the call."""
    return torch.compiler.is_compiling() or type(x) is not Tensor or x.requires_grad or torch._C._len_torch_dispatch_stack() > 0


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
        op = self._dispatch if _seen(x) else _dispatch
        given = op(self._order, self._key, slot, x, scales, topk_ids, topk_weights)
        return Rows(*given) if self._in_order else Rows(**dict(zip(self._names, given)))

    def combine(self, y: Tensor, nr_tokens: int, *, slot: int = 0) -> Tensor:
        """Exchange.combine. nr_tokens: what this rank passed to dispatch."""
        op = _combine_op if _seen(y) else _combine
        result: Tensor = op(self._order, self._key, slot, y, nr_tokens)
        return result

    def release(self, *, slot: int = 0) -> None:
        """Exchange.release."""
        _release_op(self._order, self._key, slot)


# ---- with gradients ------------------------------------------------------------------------------------------------
#
# Each op is a whole round: rows are copied out and given back, and results go home by the round's plan. So the ops of forward and
# backward passes, of several micro-batches and of recomputed layers may come in any order that is the same on all ranks.


class _Planned:
    """The plans of an exchange, by number. A plan lives as long as the memory of the tensor that carries its number, which autograd
    saves: with the graph it goes."""

    def __init__(self, moe: Exchange):
        self.exchange = weakref.ref(moe)
        self.dtype = getattr(torch, NAMES[Dtype(moe.config.dispatch_dtype)])
        self.plans: Dict[int, Plan] = {}
        self.gone: List[int] = []

    def keep(self, plan: Plan) -> Tensor:
        number = bytearray(plan._number.to_bytes(8, "little"))
        carrier = _Carrier(number)
        self.plans[plan._number] = plan
        # Not closed here: memory may be freed in the middle of a call.
        weakref.finalize(carrier, self.gone.append, plan._number).atexit = False
        return torch.frombuffer(carrier, dtype=torch.int64)

    def plan(self, carried: Tensor) -> Plan:
        number = int(carried)
        if number not in self.plans:
            raise StateError(f"plan {number} is gone: the tensor that carried it was copied, and freed")
        return self.plans[number]

    def sweep(self) -> None:
        while self.gone:
            self.plans.pop(self.gone.pop()).close()


class _Carrier(bytearray):
    """A bytearray that weak references can watch."""


_planned: Dict[int, _Planned] = {}


def _planned_of(key: int) -> Tuple[_Planned, Exchange]:
    planned = _planned.get(key)
    moe = None if planned is None else planned.exchange()
    if planned is None or moe is None:
        raise InvalidError(f"exchange {key} is gone")
    planned.sweep()
    return planned, moe


def _spread(x: Tensor, topk_ids: Tensor, topk_weights: Tensor, exchange: int) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    planned, moe = _planned_of(exchange)
    received = moe.dispatch(x.detach(), topk_ids, topk_weights.detach())
    plan = moe.plan()
    rows = x.new_empty((received.extent, moe.config.hidden))
    weights = x.new_empty((received.extent,), dtype=torch.float32)
    received.copy("x", rows, received.extent)
    received.copy("weight", weights, received.extent)
    counts = received.counts.clone()
    moe.release()
    return rows, weights, counts, planned.keep(plan)


def _spread_fake(x: Tensor, topk_ids: Tensor, topk_weights: Tensor, exchange: int) -> Any:
    _, moe = _planned_of(int(exchange))
    # The host knows the number of rows on CPUs alone.
    nr_rows = moe.max_rows if moe.on_device else torch.library.get_ctx().new_dynamic_size()
    rows, weights = x.new_empty((nr_rows, moe.config.hidden)), x.new_empty((nr_rows,), dtype=torch.float32)
    return rows, weights, x.new_empty((moe.nr_local,), dtype=torch.int32), torch.empty(1, dtype=torch.int64)


def _gather(y: Tensor, plan: Tensor, nr_tokens: int, exchange: int) -> Tensor:
    planned, moe = _planned_of(exchange)
    out = y.new_empty((nr_tokens, moe.config.hidden))
    planned.plan(plan).combine(y.detach(), out=out, unweighted=True)
    return out


def _gather_fake(y: Tensor, plan: Tensor, nr_tokens: int, exchange: int) -> Tensor:
    return y.new_empty((nr_tokens, y.shape[1]))


def _spread_again(x: Tensor, plan: Tensor, nr_rows: int, exchange: int) -> Tensor:
    planned, moe = _planned_of(exchange)
    received = planned.plan(plan).dispatch(x.detach())
    rows = x.new_empty((nr_rows, moe.config.hidden))
    received.copy("x", rows, received.extent)
    moe.release()
    return rows


def _spread_again_fake(x: Tensor, plan: Tensor, nr_rows: int, exchange: int) -> Tensor:
    return x.new_empty((nr_rows, x.shape[1]))


def _gather_floats(y: Tensor, floats: Tensor, plan: Tensor, nr_tokens: int, topk: int, exchange: int) -> Tuple[Tensor, Tensor]:
    planned, moe = _planned_of(exchange)
    out, out_floats = _gather_floats_fake(y, floats, plan, nr_tokens, topk, exchange)
    planned.plan(plan).combine(y.detach(), out=out, unweighted=True, floats=floats.detach(), out_floats=out_floats)
    return out, out_floats


def _gather_floats_fake(y: Tensor, floats: Tensor, plan: Tensor, nr_tokens: int, topk: int, exchange: int) -> Tuple[Tensor, Tensor]:
    return y.new_empty((nr_tokens, y.shape[1])), floats.new_empty((nr_tokens, topk))


def _differentiable(name: str, signature: str, function: Any, fake: Any) -> Any:
    _library.define(f"{name}{signature}", tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"tern_ep::{name}", fake, lib=_library)
    return getattr(torch.ops.tern_ep, name).default


_spread_op = _differentiable(
    "spread", "(Tensor x, Tensor topk_ids, Tensor topk_weights, int exchange) -> (Tensor, Tensor, Tensor, Tensor)", _spread, _spread_fake
)
_gather_op = _differentiable("gather", "(Tensor y, Tensor plan, SymInt nr_tokens, int exchange) -> Tensor", _gather, _gather_fake)
_spread_again_op = _differentiable("spread_again", "(Tensor x, Tensor plan, SymInt nr_rows, int exchange) -> Tensor", _spread_again, _spread_again_fake)
_gather_floats_op = _differentiable(
    "gather_floats",
    "(Tensor y, Tensor floats, Tensor plan, SymInt nr_tokens, SymInt topk, int exchange) -> (Tensor, Tensor)",
    _gather_floats,
    _gather_floats_fake,
)


def _spread_context(ctx: Any, inputs: Any, output: Any) -> None:
    x, topk_ids, _, ctx.exchange = inputs
    ctx.nr_tokens, ctx.topk = x.shape[0], topk_ids.shape[1]
    ctx.save_for_backward(output[3])


def _spread_backward(ctx: Any, rows: Tensor, weights: Tensor, *_: Any) -> Tuple[Any, ...]:
    x, topk_weights = _gather_floats_op(rows.contiguous(), weights.contiguous(), ctx.saved_tensors[0], ctx.nr_tokens, ctx.topk, ctx.exchange)
    return x, None, topk_weights, None


def _gather_context(ctx: Any, inputs: Any, output: Any) -> None:
    y, plan, _, ctx.exchange = inputs
    ctx.nr_rows = y.shape[0]
    ctx.save_for_backward(plan)


def _gather_backward(ctx: Any, out: Tensor) -> Tuple[Any, ...]:
    return _spread_again_op(out.contiguous(), ctx.saved_tensors[0], ctx.nr_rows, ctx.exchange), None, None, None


torch.library.register_autograd("tern_ep::spread", _spread_backward, setup_context=_spread_context, lib=_library)
torch.library.register_autograd("tern_ep::gather", _gather_backward, setup_context=_gather_context, lib=_library)


class Differentiable:
    """Dispatch and combine with gradients, those of the gate weights included. The exchange has arrays="torch", combine_floats, one
    type for x, rows and results, and a layout by experts. All ranks run the backward pass, as they did the forward pass."""

    def __init__(self, exchange: Exchange):
        config = exchange.config
        if not isinstance(exchange.kind, Torch):
            raise InvalidError('the exchange of torch ops has to be made with arrays="torch"')
        if not config.combine_floats or config.layout == Layout.BY_SOURCE or not config.x_dtype == config.dispatch_dtype == config.combine_dtype:
            raise InvalidError("gradients need Config.combine_floats, a layout by experts, and one type for x, rows and results")
        self.exchange = exchange
        self._key = next(_keys)
        _planned[self._key] = _Planned(exchange)
        weakref.finalize(exchange, _planned.pop, self._key)

    def dispatch(self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rows by expert, their gate weights, the counts of local experts, and the plan, which combine takes. Nothing is in the rows
        behind the last, which only devices have."""
        return _spread_op(x, topk_ids, topk_weights, self._key)  # type: ignore[no-any-return]

    def combine(self, y: Tensor, plan: Tensor, nr_tokens: int) -> Tensor:
        """The sums of rows as they are: the experts' results, which the caller has weighted."""
        return _gather_op(y, plan, nr_tokens, self._key)  # type: ignore[no-any-return]
