# SPDX-License-Identifier: Apache-2.0
"""deep_ep's normal mode: each token once to each rank, an unweighted sum home, and handles that outlive their round.

A dispatch leaves a plan behind, which its handle holds. Its round stays open: the combine that follows ends it, and any other call
with the same exchange releases it first and goes by plans. All ranks make the same calls, so all do the same.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import weakref
from typing import Any, Callable, Deque, Dict, Iterator, List, MutableMapping, NamedTuple, Optional, Tuple

import numpy as np
import numpy.typing as npt
import torch

from .. import _abi
from .._library import library
from ..arrays import Dtype
from ..config import Config, Device, Layout, Mode, Reduce, Scale, Weights
from ..errors import InvalidError, StateError
from ..errors import check as code
from ..exchange import Exchange
from ..plan import Plan
from ..received import Wanted
from .exchanges import Exchanges, check, device_of
from .places import Places, nr_slots
from .streams import Call, capturing, check_capture

_MOST = 32
"""Ranks or experts that one token can go to."""
_FEW = 8
"""Ranks among which an exchange has room for all tokens of all, so that a dispatch may begin before it is known how many come."""


def _nothing() -> Optional[Plan]:
    """Of a round without a plan."""
    return None


def _power(nr: int) -> int:
    return 1 << max(int(nr) - 1, 0).bit_length()


class Rows(NamedTuple):
    """x as it is passed: BF16, or FP8 and its scales."""

    x: Any
    scales: Any
    packed: bool
    """Scales are UE8M0, four in an int32."""

    @classmethod
    def of(cls, x: Any) -> "Rows":
        if not isinstance(x, tuple):
            return cls(check("x", x, (None, None), torch.bfloat16), None, False)
        if len(x) != 2:
            raise InvalidError(f"x is a tuple of {len(x)}; it has to be (x, scales)")
        rows = check("x[0]", x[0], (None, None), torch.float8_e4m3fn)
        scales, blocks = x[1], -(-rows.shape[1] // 128)
        packed = scales.dtype == torch.int32
        if packed and blocks % 4:
            raise InvalidError(f"x[1] is int32, four scales in each; x[0] has {blocks} blocks of 128, which is no multiple of 4")
        scales = check("x[1]", scales.contiguous(), (rows.shape[0], blocks // 4 if packed else blocks), torch.float32, torch.int32)
        return cls(rows, scales.view(torch.uint8) if packed else scales, packed)

    def changes(self) -> Dict[str, Any]:
        """Settings of the exchange that depend on it."""
        if self.scales is None:
            return dict(hidden=self.x.shape[1], x_dtype=Dtype.BF16, dispatch_dtype=Dtype.BF16, scale=Scale.NONE)
        scale = Scale.UE8M0 if self.packed else Scale.FP32
        return dict(hidden=self.x.shape[1], x_dtype=Dtype.FP8_E4M3, dispatch_dtype=Dtype.FP8_E4M3, scale=scale)

    def form(self) -> Tuple[Any, ...]:
        """What those settings follow from."""
        return self.x.dtype, self.packed, self.x.shape[1]

    def like(self, nr: int) -> "Rows":
        """New ones."""
        scales = None if self.scales is None else self.scales.new_empty((nr, self.scales.shape[1]))
        return Rows(self.x.new_empty((nr, self.x.shape[1])), scales, self.packed)

    def given(self) -> Any:
        """As the caller gets them."""
        if self.scales is None:
            return self.x
        return self.x, self.scales.view(torch.int32) if self.packed else self.scales


class Route:
    """Where a dispatch's rows went, for as long as a handle is held."""

    def __init__(self, plan: Plan, form: Tuple[Any, ...], ids: Any, nr_rows: int, nr_tokens: int, ended: Deque[Plan]):
        self.plan, self.form = plan, form
        self.config: Config = plan.exchange.config
        self.ids = ids
        self.nr_rows, self.nr_tokens = nr_rows, nr_tokens
        self.others: Dict[Config, Plan] = {}
        """For rows of other types or widths that were asked for."""
        self._ended = ended

    def __del__(self) -> None:
        self._ended.append(self.plan)  # closed by the next call: another may be under way
        self._ended.extend(self.others.values())


class Handle(Tuple[Any, ...]):
    """As V1's six entries: (rank_prefix_matrix, the route, the same, recv_src_idx, is_token_in_rank, None). The first is made when it is
    looked at: it is on the host, and the way to a device waits for that."""

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        if isinstance(at, slice):
            return tuple(one() if isinstance(one, _Later) else one for one in found)
        return found() if isinstance(found, _Later) else found

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def tensors(self) -> Tuple[Any, ...]:
        """Those that the call has made."""
        prefix = super().__getitem__(0)
        return (None if isinstance(prefix, _Later) else prefix, self[3], self[1].ids)


class _Later:
    def __init__(self, make: Callable[[], Any]):
        self._make, self._made = make, None

    def __call__(self) -> Any:
        if self._made is None:
            self._made = self._make()
        return self._made


class Sizes(NamedTuple):
    """What ranks know of a dispatch."""

    nr_tokens: int
    """Most tokens of a rank."""
    capacity: int
    """Rows that any rank can receive."""
    nr_rows: int
    """That this rank receives, or has room for."""
    by_expert: List[int]
    prefix: Optional[Callable[[], Any]]
    """Makes [R][R]: rows that ranks up to i send to rank j."""
    held: int
    """A bit for each slot whose rows somebody holds, on any rank."""


class Round(NamedTuple):
    """One that no combine has ended yet."""

    slot: int
    plan: Callable[[], Optional[Plan]]
    """If a handle still has it."""
    in_graph: bool


class Normal:
    def __init__(self, exchanges: Exchanges):
        self._exchanges = exchanges
        self._rank, self._nr_ranks = exchanges.rank, exchanges.nr_ranks
        self._made: Dict[Any, Exchange] = {}
        """By shape: with room for the most tokens and rows so far."""
        self._open: MutableMapping[Exchange, Round] = weakref.WeakKeyDictionary()
        self._places: MutableMapping[Exchange, Places] = weakref.WeakKeyDictionary()
        self._sms: MutableMapping[Exchange, int] = weakref.WeakKeyDictionary()
        self._ended: Deque[Plan] = collections.deque()
        self._pinned: Dict[int, Tuple[Any, Any]] = {}

    # ---- what is asked for ----

    def layout(self, topk_idx: Any, nr_experts: int) -> Tuple[Any, Any, Any, Any]:
        """Tokens for each rank, node (of 8 ranks, where there are more) and expert; whether a token goes to a rank."""
        ids = check("topk_idx", topk_idx, (None, None), torch.int64)
        if nr_experts <= 0 or nr_experts % self._nr_ranks:
            raise InvalidError(f"num_experts is {nr_experts}; it has to be a multiple of {self._nr_ranks} ranks")
        (nr, topk), nr_ranks, on_cpu = ids.shape, self._nr_ranks, ids.device.type == "cpu"
        if on_cpu and ids.numel() and not -1 <= int(ids.min()) <= int(ids.max()) < nr_experts:
            raise InvalidError(f"topk_idx is from {int(ids.min())} to {int(ids.max())}; num_experts is {nr_experts}, and -1 is none")
        counts = ids.new_empty(nr_ranks + nr_experts, dtype=torch.int32)
        in_rank = ids.new_empty((nr, nr_ranks), dtype=torch.bool)
        by_rank, by_expert = counts.split_with_sizes((nr_ranks, nr_experts))
        if topk:
            self._count(ids, counts.data_ptr(), in_rank.data_ptr(), nr_experts, on_cpu)
        else:
            counts.zero_()
        by_node = None
        if nr_ranks > 8 and nr_ranks % 8 == 0:
            by_node = in_rank.unflatten(1, (nr_ranks // 8, 8)).any(2).sum(0, dtype=torch.int32)
        return by_rank, by_node, by_expert, in_rank

    def _count(self, ids: Any, counts: int, in_rank: int, nr_experts: int, on_cpu: bool) -> None:
        routes = _abi.sized(_abi.tern_routes)
        routes.nr_tokens, routes.topk = ids.shape
        routes.nr_ranks, routes.nr_experts = self._nr_ranks, nr_experts
        routes.topk_ids, routes.topk_ids_bits = ids.data_ptr(), 64
        routes.rank_tokens, routes.expert_routes, routes.in_rank = counts, counts + 4 * self._nr_ranks, in_rank
        if not on_cpu:
            self._exchanges.load_cuda()
            routes.device, routes.stream = Device.CUDA, torch._C._cuda_getCurrentRawStream(ids.device.index)
        code(library().tern_count_routes(ctypes.byref(routes)))

    def _counts(self, by_rank: Any, by_expert: Any) -> Callable[[], npt.NDArray[np.int32]]:
        """Both on the host. On a device their way begins here, ahead of what is put on the stream from now on; the function waits."""
        nr_ranks = by_rank.shape[0]
        nr = nr_ranks + by_expert.shape[0]
        if by_expert.data_ptr() == by_rank.data_ptr() + 4 * nr_ranks and by_expert.untyped_storage().data_ptr() == by_rank.untyped_storage().data_ptr():
            both = by_rank.as_strided((nr,), (1,))  # as the layout has them
        else:
            both = torch.cat((by_rank, by_expert))
        if both.device.type == "cpu":
            return lambda: both.numpy()  # type: ignore[no-any-return]
        pinned, event = self._pinned.get(nr) or self._pinned.setdefault(nr, (torch.empty(nr, dtype=torch.int32, device="cpu", pin_memory=True), torch.cuda.Event()))
        pinned.copy_(both, non_blocking=True)
        event.record()

        def wait() -> npt.NDArray[np.int32]:
            event.synchronize()
            return pinned.numpy()  # type: ignore[no-any-return]

        return wait

    def _worst(self, rows: Rows, worst: int) -> Sizes:
        nr, nr_ranks = rows.x.shape[0], self._nr_ranks
        most = -(-worst // nr_ranks)
        if nr > most:
            raise InvalidError(f"num_worst_tokens is {worst} for {nr_ranks} ranks, {most} tokens of each; x has {nr}")
        return Sizes(most, worst, worst, [], None, 0)

    def _told(self, nr: int, counts: npt.NDArray[np.int32], held: int, alignment: int) -> Sizes:
        """By all ranks to all."""
        nr_ranks, nr_counts = self._nr_ranks, counts.shape[0]
        mine = np.empty(2 + nr_counts, np.int32)
        mine[0], mine[1] = nr, held
        mine[2:] = counts
        told = self._exchanges.board.gather(mine)
        most = held = 0
        received = [0] * nr_ranks
        for tokens, slots, *to in told[:, : 2 + nr_ranks].tolist():
            most, held = max(most, tokens), held | slots
            received = [sum(both) for both in zip(received, to)]
        nr_local = (nr_counts - nr_ranks) // nr_ranks
        first = 2 + nr_ranks + self._rank * nr_local
        found = told[:, first : first + nr_local].sum(0)
        if alignment > 1:
            found = -(-found // alignment) * alignment
        prefix = lambda: told[:, 2 : 2 + nr_ranks].cumsum(0, dtype=np.int32)  # noqa: E731
        return Sizes(most, max(received), received[self._rank], found.tolist(), prefix, held)

    def _exchange(self, key: Any, rows: Rows, topk: int, nr_experts: int, sizes: Sizes, worst: int) -> Exchange:
        """With room for that many, the same on all ranks. It grows by doubling, and what was before is given up."""
        there = self._made.get(key)
        known = None if there is None else there.config
        if there is not None and sizes.nr_tokens <= there.config.max_tokens and sizes.capacity <= there.config.capacity:
            return there
        tokens, capacity = _power(sizes.nr_tokens), worst or _power(sizes.capacity)
        if known is not None:
            self._exchanges.drop(known)
            tokens, capacity = max(tokens, known.max_tokens), max(capacity, known.capacity)
        capacity = tokens * self._nr_ranks if self._nr_ranks <= _FEW and not worst else min(capacity, tokens * self._nr_ranks)
        changes = rows.changes()
        config = Config(
            nr_experts=nr_experts or self._nr_ranks,
            topk=topk or min(self._nr_ranks, _MOST),
            max_tokens=tokens,
            mode=Mode.HIGH_THROUGHPUT,
            layout=Layout.BY_SOURCE,
            reduce=Reduce.EXPERT,
            weights=Weights.PASS,
            combine_dtype=Dtype.BF16,
            capacity=capacity,
            slots_in_turn=True,
            nr_slots=nr_slots(rows.x.shape[1] * (rows.x.element_size() + 2), capacity),
            combine_floats=topk > 0,
            wait_ms=self._exchanges.wait_ms,
            device=device_of(rows.x),
            **changes,
        )
        found = self._made[key] = self._exchanges.get(config)
        return found

    def _places_of(self, moe: Exchange) -> Places:
        found = self._places.get(moe)
        if found is None:
            found = self._places[moe] = Places(moe)
        return found

    def _ids_of_ranks(self, in_rank: Any) -> Any:
        """Without top-k, experts are ranks."""
        ranks = torch.arange(self._nr_ranks, dtype=torch.int32, device=in_rank.device)
        if self._nr_ranks <= _MOST:
            return torch.where(in_rank, ranks, -1)
        if in_rank.device.type == "cpu" and int(in_rank.sum(1).max()) > _MOST:
            raise InvalidError(f"is_token_in_rank: a token goes to more than {_MOST} ranks")
        there, first = in_rank.to(torch.int8).topk(_MOST, dim=1)
        return torch.where(there > 0, first.to(torch.int32), -1)

    # ---- rounds ----

    def _ready(self, moe: Exchange, sms: int) -> Exchange:
        """Without a round under way."""
        if not capturing(moe.on_device):
            for _ in range(len(self._ended)):
                self._ended.popleft().close()
        if moe.on_device and self._sms.get(moe, 0) != sms:
            moe.set_sms(sms)
            self._sms[moe] = sms
        opened = self._open.get(moe)
        if opened is not None:
            check_capture(moe.on_device, opened.in_graph)
            moe.release(opened.slot)
            del self._open[moe]
        return moe

    def _begun(self, moe: Exchange, slot: int, plan: Optional[Plan] = None) -> None:
        left: Callable[[], Optional[Plan]] = _nothing
        if plan is not None:
            left = weakref.ref(plan)
        self._open[moe] = Round(slot, left, capturing(moe.on_device))

    def _taken(self, moe: Exchange, slot: int, received: Any, rows: Rows, nr_rows: int, call: Call) -> Tuple[Rows, Any]:
        """Received rows, which last as long as the caller has them, and weights, if these do too. On a GPU extent is the most there can
        be, and nr_rows is known."""
        state = moe._slots[slot]
        state.extent = min(received.extent, nr_rows)
        if slot:
            x, scales, weights = self._places_of(moe).show(slot, received, nr_rows, call)
            return Rows(x, scales, rows.packed), weights
        taken = rows.like(nr_rows)
        for name, to in (("x", taken.x), ("scales", taken.scales)):
            if to is not None and state.extent:
                received.copy(name, to if to.shape[0] == state.extent else to[: state.extent], state.extent)
        return taken, None

    def _begin(self, moe: Exchange, rows: Rows, ids: Any, weights: Any, sms: int, call: Call, wide: Any = None) -> Tuple[int, Any]:
        """The slot, and what it receives."""
        self._ready(moe, sms)
        slot = self._places_of(moe).take(call)
        received = moe.dispatch(rows.x, ids, weights, scales=rows.scales, slot=slot, want=None if wide is None else Wanted(wide_ids=wide))
        self._begun(moe, slot)
        return slot, received

    def _round(
        self, key: Any, rows: Rows, ids: Any, weights: Any, topk: int, nr_experts: int, counts: Tuple[Any, Any], alignment: int, sms: int, call: Call
    ) -> Tuple[Exchange, int, Any, Sizes]:
        """A round of sizes that only now become known. Where the exchange has room for all tokens that it may be given, it begins at
        once, and ranks tell each other meanwhile; without tokens if these are more, which the others are told. Then it is ended, and made
        again by a larger one."""
        on_device = rows.x.device.type != "cpu"
        if capturing(on_device):
            raise StateError("num_worst_tokens: without it ranks tell each other their sizes, which no graph can hold")
        wait = self._counts(*counts)
        moe, nr = self._made.get(key), rows.x.shape[0]
        early = moe is not None and moe.config.capacity >= moe.config.max_tokens * self._nr_ranks
        slot, received, held = 0, None, 0
        if moe is not None:
            held = self._places_of(moe).held()
            if early and nr <= moe.config.max_tokens:
                slot, received = self._begin(moe, rows, ids, weights, sms, call)
            elif early:
                none = Rows(rows.x[:0], None if rows.scales is None else rows.scales[:0], rows.packed)
                slot, received = self._begin(moe, none, ids[:0], None if weights is None else weights[:0], sms, call)
        sizes = self._told(nr, wait(), held, alignment)
        if moe is not None:
            self._places_of(moe).agree(sizes.held, slot)
        if early and moe is not None and sizes.nr_tokens <= moe.config.max_tokens:
            return moe, slot, received, sizes
        if early and moe is not None:
            self._ready(moe, sms)
        moe = self._exchange(key, rows, topk, nr_experts, sizes, 0)
        slot, received = self._begin(moe, rows, ids, weights, sms, call)
        return moe, slot, received, sizes

    def dispatch(
        self,
        x: Any,
        topk_idx: Any,
        topk_weights: Any,
        by_rank: Any,
        in_rank: Any,
        by_expert: Any,
        alignment: int,
        worst: int,
        sms: int,
        call: Call,
    ) -> Tuple[Any, Any, Any, List[int], Tuple[Any, ...]]:
        rows = Rows.of(x)
        nr = rows.x.shape[0]
        in_rank = check("is_token_in_rank", in_rank, (nr, self._nr_ranks), torch.bool)
        by_rank = check("num_tokens_per_rank", by_rank, (self._nr_ranks,), torch.int32)
        by_expert = check("num_tokens_per_expert", by_expert, (None,), torch.int32)
        nr_experts, topk = by_expert.shape[0], 0
        if not nr_experts or nr_experts % self._nr_ranks:
            raise InvalidError(f"num_tokens_per_expert has {nr_experts} entries; it has to be a multiple of {self._nr_ranks} ranks")
        if alignment < 1 or worst < 0:
            raise InvalidError(f"expert_alignment is {alignment} and num_worst_tokens {worst}; from 1, and from 0 on are possible")
        if (topk_idx is None) != (topk_weights is None):
            raise InvalidError("topk_idx and topk_weights go together")
        if topk_idx is not None:
            ids = check("topk_idx", topk_idx, (nr, None), torch.int64)
            topk = ids.shape[1]
            weights = check("topk_weights", topk_weights, (nr, topk), torch.float32)
            if ids.device.type == "cpu":
                self._agree(ids, by_rank, in_rank, by_expert)
        elif worst:
            raise InvalidError("num_worst_tokens takes topk_idx and topk_weights")
        else:
            ids, weights = self._ids_of_ranks(in_rank), None
        experts, wide = nr_experts if topk else 0, None
        key = (rows.x.device, experts, topk, worst, *rows.form())
        if worst:
            sizes = self._worst(rows, worst)
            moe, wide = self._exchange(key, rows, topk, experts, sizes, worst), ids.new_empty((worst, topk))
            slot, received = self._begin(moe, rows, ids, weights, sms, call, wide)
        else:
            moe, slot, received, sizes = self._round(key, rows, ids, weights, topk, experts, (by_rank, by_expert), alignment, sms, call)
        taken, recv_weights = self._taken(moe, slot, received, rows, sizes.nr_rows, call)
        extent = moe._slots[slot].extent
        route = Route(moe.plan(slot), rows.form(), ids.clone(), sizes.nr_rows, nr, self._ended)
        self._begun(moe, slot, route.plan)
        recv_ids = None
        if topk:
            recv_ids = wide if worst else self._places_of(moe).of(slot, received).topk_ids[:extent].to(torch.int64)
            if recv_weights is None and extent == sizes.nr_rows:
                recv_weights = received.topk_weights[:extent].clone()
            elif recv_weights is None or extent != sizes.nr_rows:
                recv_weights = weights.new_zeros((sizes.nr_rows, topk))
                recv_weights[:extent].copy_(received.topk_weights[:extent])
        else:
            recv_weights = None
        device = ids.device
        prefix: Any = None
        if sizes.prefix is None:
            prefix = self._column(received, device)
        else:
            made = sizes.prefix
            prefix = _Later(lambda: torch.from_numpy(made()).to(device))
        handle = Handle((prefix, route, route, self._sources(moe, slot, received, sizes.nr_rows, device), in_rank, None))
        return taken.given(), recv_ids, recv_weights, sizes.by_expert, handle

    def _agree(self, ids: Any, by_rank: Any, in_rank: Any, by_expert: Any) -> None:
        """On the CPU, where looking costs little: what was counted is of these ids."""
        ranks, _, experts, there = self.layout(ids, by_expert.shape[0])
        for name, given, counted in (
            ("num_tokens_per_rank", by_rank, ranks),
            ("num_tokens_per_expert", by_expert, experts),
            ("is_token_in_rank", in_rank, there),
        ):
            if not torch.equal(given, counted):
                raise InvalidError(f"{name} is not of topk_idx: get_dispatch_layout gives it")

    def _column(self, received: Any, device: Any) -> Any:
        """rank_prefix_matrix of worst sizes: this rank knows what it received, its own column."""
        matrix = torch.full((self._nr_ranks, self._nr_ranks), -1, dtype=torch.int32, device=device)
        matrix[:, self._rank] = received.counts.cumsum(0)
        return matrix

    def _sources(self, moe: Exchange, slot: int, received: Any, nr_rows: int, device: Any) -> Any:
        """recv_src_idx: the number of each row's token on its rank."""
        extent = moe._slots[slot].extent
        if moe.on_device and extent == nr_rows:
            return self._places_of(moe).of(slot, received).sources[:extent].clone(memory_format=torch.contiguous_format)
        rows = received.rows
        found = torch.empty(nr_rows, dtype=torch.int32, device=device)
        if extent:
            tokens = rows[:extent, 1] if moe.on_device else torch.from_numpy(np.ascontiguousarray(rows["token"][:extent]))
            found[:extent].copy_(tokens)
        return found

    # ---- with a handle ----

    def _route(self, handle: Any) -> Route:
        if not isinstance(handle, tuple) or len(handle) != 6 or not isinstance(handle[1], Route):
            raise InvalidError("handle is none of a dispatch by Tern")
        return handle[1]

    def _plan(self, route: Route, rows: Rows, sms: int) -> Plan:
        """For rows of another type or width: of a round with the same ids, whose rows come to the same places."""
        if rows.form() == route.form:
            return route.plan
        config = dataclasses.replace(route.config, **rows.changes())
        plan = route.others.get(config)
        if plan is None:
            moe = self._ready(self._exchanges.get(config), sms)
            received = moe.dispatch(rows.x, route.ids, scales=rows.scales)
            self._begun(moe, 0)
            moe._slots[0].extent = min(received.extent, route.nr_rows)
            plan = route.others[config] = moe.plan()
            self._ready(moe, sms)
        return plan

    def dispatch_again(self, x: Any, handle: Any, sms: int, call: Call) -> Any:
        route, rows = self._route(handle), Rows.of(x)
        if rows.x.shape[0] != route.nr_tokens:
            raise InvalidError(f"x has {rows.x.shape[0]} rows; handle is of {route.nr_tokens} tokens")
        plan = self._plan(route, rows, sms)
        moe = self._ready(plan.exchange, sms)
        slot = self._places_of(moe).take(call)
        received = plan.dispatch(rows.x, scales=rows.scales, slot=slot)
        self._begun(moe, slot, plan)
        return self._taken(moe, slot, received, rows, route.nr_rows, call)[0].given()

    def combine(self, x: Any, handle: Any, topk_weights: Any, biases: Tuple[Any, ...], sms: int) -> Tuple[Any, Any]:
        route = self._route(handle)
        y = check("x", x, (route.nr_rows, None), torch.bfloat16)
        config = route.config
        floats = out_floats = None
        if topk_weights is not None:
            if not config.combine_floats:
                raise InvalidError("topk_weights: handle is of a dispatch without topk_idx")
            floats = check("topk_weights", topk_weights, (route.nr_rows, config.topk), torch.float32)
            out_floats = floats.new_empty((route.nr_tokens, config.topk))
        nr, hidden = route.nr_tokens, y.shape[1]
        biases = tuple(check(f"bias[{i}]", bias, (nr, hidden), torch.bfloat16) for i, bias in enumerate(biases))
        out = y.new_empty((nr, hidden))
        plan = route.plan if hidden == config.hidden else self._plan(route, Rows(y.new_zeros((nr, hidden)), None, False), sms)
        moe = plan.exchange
        opened = self._open.get(moe)
        slot = opened.slot if opened is not None and opened.plan() is plan else 0
        moe._slots[slot].combine.no_floats = floats is None
        if opened is not None and opened.plan() is plan:
            check_capture(moe.on_device, opened.in_graph)
            moe.combine(y, slot=opened.slot, out=out, floats=floats, out_floats=out_floats)
            del self._open[moe]
        else:
            self._ready(moe, sms)
            plan.combine(y, out=out, floats=floats, out_floats=out_floats)
        if biases:
            out.copy_(sum((bias.float() for bias in biases), out.float()))
        return out, out_floats

