# SPDX-License-Identifier: Apache-2.0
"""deep_ep's normal mode: each token once to each rank, an unweighted sum home, and handles that outlive their round.

A dispatch leaves a plan behind, which its handle holds. Its round stays open: the combine that follows ends it, and any other call
with the same exchange releases it first and goes by plans. All ranks make the same calls, so all do the same.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, Deque, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
import torch

from .._calls import count_routes, routes_agree, word_becomes
from ..arrays import Dtype
from ..config import Config, Device, Layout, Mode, Reduce, Scale, Weights
from ..errors import InvalidError, StateError
from ..errors import check as code
from ..exchange import Exchange
from ..group import Group
from ..plan import Plan
from ..received import Wanted
from .exchanges import Exchanges, check, device_of
from .places import Places, nr_slots
from .streams import Call, capturing, check_capture

_MOST = 32
"""Ranks or experts that one token can go to."""
_FEW = 8
"""Ranks among which an exchange has room for all tokens of all, so that a dispatch may begin before it is known how many come."""


_NO_EXPERTS = 1
_OTHER = {2: "num_tokens_per_rank", 3: "num_tokens_per_expert", 4: "is_token_in_rank"}
"""What the compiled part says of ids and counts."""


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

    __slots__ = ("plan", "form", "config", "nr_rows", "nr_tokens", "others", "_kept", "_told", "_matrix", "_ended")

    def __init__(self, plan: Plan, form: Tuple[Any, ...], nr_rows: int, nr_tokens: int, kept: Any, told: Any, ended: Deque[Plan]):
        """kept: each row's token on its rank, then the ids of this rank's tokens, [n][K]. told: what all ranks have, or the matrix."""
        self.plan, self.form = plan, form
        self.config: Config = plan.exchange.config
        self.nr_rows, self.nr_tokens = nr_rows, nr_tokens
        self.others: Dict[Config, Plan] = {}
        """For rows of other types or widths that were asked for."""
        self._kept, self._ended = kept, ended
        self._told, self._matrix = (told, None) if isinstance(told, bytes) else (b"", told)

    @property
    def ids(self) -> Any:
        return self._kept[self.nr_rows :].view(self.nr_tokens, self.config.topk)

    def sources(self) -> Any:
        """recv_src_idx: the number of each row's token on its rank."""
        return self._kept[: self.nr_rows]

    def matrix(self) -> Any:
        """rank_prefix_matrix: rows that ranks up to i send to rank j."""
        if self._matrix is None:
            nr_ranks = self.plan.exchange.nr_ranks
            told = np.frombuffer(self._told, np.int32).reshape(nr_ranks, -1)
            sums = told[:, _TOLD_COUNTS : _TOLD_COUNTS + nr_ranks].cumsum(0, dtype=np.int32)
            self._matrix = torch.from_numpy(sums).to(self._kept.device)
        return self._matrix

    def tensors(self) -> Tuple[Any, ...]:
        """Those that there are."""
        return self._matrix, self._kept

    def __del__(self) -> None:
        self._ended.append(self.plan)  # closed by the next call: another may be under way
        self._ended.extend(self.others.values())


class Handle(Tuple[Any, ...]):
    """As V1's six entries: (rank_prefix_matrix, the route, the same, recv_src_idx, is_token_in_rank, None). The first and the fourth are
    made when they are looked at: what the first is of is on the host, and the way to a device waits for that."""

    __slots__ = ()

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return tuple(self)[at]
        found = super().__getitem__(at)
        if found is not None:
            return found
        return self[1].matrix() if at in (0, -6) else self[1].sources() if at in (3, -3) else None

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def tensors(self) -> Tuple[Any, ...]:
        """Those that the call has made."""
        return self[1].tensors()  # type: ignore[no-any-return]


_TOLD_COUNTS = 2
"""Before the counts in what a rank tells: tokens, and held slots."""
Told = Tuple[int, int, int, List[int], int, Any]
"""Most tokens of a rank; most rows that a rank receives; rows that this one receives, or has room for; routes to its experts; slots that
somebody holds; what a Route makes its matrix of."""
_NONE = -1


class Rounds(Exchange):
    """An exchange of normal mode, and the round that no combine has ended yet."""

    def __init__(self, group: Group, config: Config, *, arrays: str = "torch"):
        super().__init__(group, config, arrays=arrays)
        self.places = Places(self)
        self.begins_early = config.capacity >= config.max_tokens * self.nr_ranks
        """There is room for all tokens that it may be given."""
        self.sms = 0
        self.open_slot, self.open_plan, self.open_in_graph = _NONE, 0, False
        """Its slot, the number of its plan, and whether it is in a captured graph."""

    def begun(self, slot: int, plan: int, in_graph: bool) -> None:
        self.open_slot, self.open_plan, self.open_in_graph = slot, plan, in_graph


_TOLD_US = 50000
"""For so long the host looks for counts of a layout; then it waits for the stream, which may have much ahead of them."""


class LaidOut(NamedTuple):
    """The last layout on a device: its tensors, and where its counts come to on the host, under a number."""

    by_rank: Any
    by_expert: Any
    told: int
    number: int


class ToldCounts:
    """Where counts of a stream's layouts come to, by the kernel that counts. A place is taken again by the fourth one behind."""

    _PLACES = 4

    def __init__(self, nr: int):
        self._memory = torch.zeros((self._PLACES, 1 + nr), dtype=torch.int32, device="cpu", pin_memory=True)
        self._at, self._bytes = self._memory.data_ptr(), 4 * (1 + nr)
        self._number = 0

    def next(self) -> Tuple[int, int]:
        self._number = self._number % (2**32 - 1) + 1
        return self._at + self._number % self._PLACES * self._bytes, self._number


class Counts:
    """Tokens for ranks and routes to experts, on their way to the host."""

    def __init__(self, by_rank: Any, by_expert: Any, laid_out: LaidOut, pinned: Dict[int, Tuple[Any, Any]]):
        self._by_rank, self._by_expert, self._pinned = by_rank, by_expert, pinned
        self._laid_out = laid_out if laid_out.by_rank is by_rank and laid_out.by_expert is by_expert else None
        if by_rank.is_cuda and self._laid_out is None:
            self._copied = self._copy()

    def _copy(self) -> Tuple[Any, Any]:
        """Behind what is on the stream. They are there with the event."""
        nr = self._by_rank.shape[0] + self._by_expert.shape[0]
        found = self._pinned.get(nr)
        if found is None:
            found = self._pinned[nr] = torch.empty(nr, dtype=torch.int32, device="cpu", pin_memory=True), torch.cuda.Event()
        found[0].copy_(torch.cat((self._by_rank, self._by_expert)), non_blocking=True)
        found[1].record()
        return found

    def addresses(self) -> Tuple[int, int]:
        if not self._by_rank.is_cuda:
            return self._by_rank.data_ptr(), self._by_expert.data_ptr()
        laid_out, nr_ranks = self._laid_out, self._by_rank.shape[0]
        if laid_out is not None:
            if word_becomes(laid_out.told, laid_out.number, _TOLD_US):
                return laid_out.told + 4, laid_out.told + 4 + 4 * nr_ranks
            self._copied = self._copy()
        pinned, event = self._copied
        event.synchronize()
        return pinned.data_ptr(), pinned.data_ptr() + 4 * nr_ranks


class Normal:
    def __init__(self, exchanges: Exchanges):
        self._exchanges = exchanges
        self._rank, self._nr_ranks = exchanges.rank, exchanges.nr_ranks
        self._made: Dict[Any, Rounds] = {}
        """By shape: with room for the most tokens and rows so far."""
        self._ended: Deque[Plan] = collections.deque()
        self._laid_out = LaidOut(None, None, 0, 0)
        self._told: Dict[Tuple[int, int], ToldCounts] = {}
        """By stream and number of counts."""
        self._pinned: Dict[int, Tuple[Any, Any]] = {}

    # ---- what is asked for ----

    def layout(self, topk_idx: Any, nr_experts: int) -> Tuple[Any, Any, Any, Any]:
        """Tokens for each rank, node (of 8 ranks, where there are more) and expert; whether a token goes to a rank."""
        ids = check("topk_idx", topk_idx, (None, None), torch.int64)
        nr_ranks = self._nr_ranks
        if nr_experts <= 0 or nr_experts % nr_ranks:
            raise InvalidError(f"num_experts is {nr_experts}; it has to be a multiple of {nr_ranks} ranks")
        nr, topk = ids.shape
        counts = ids.new_empty(nr_ranks + nr_experts + 1, dtype=torch.int32)  # and a word for who counts
        in_rank = ids.new_empty((nr, nr_ranks), dtype=torch.bool)
        told, number = 0, 0
        if topk:
            told, number = self._count(ids, nr, topk, nr_experts, counts.data_ptr(), in_rank.data_ptr())
        else:
            counts.zero_()
        by_rank, by_expert, _ = counts.split_with_sizes((nr_ranks, nr_experts, 1))
        if told:
            self._laid_out = LaidOut(by_rank, by_expert, told, number)
        by_node = None
        if nr_ranks > 8 and nr_ranks % 8 == 0:
            by_node = in_rank.unflatten(1, (nr_ranks // 8, 8)).any(2).sum(0, dtype=torch.int32)
        return by_rank, by_node, by_expert, in_rank

    def _count(self, ids: Any, nr: int, topk: int, nr_experts: int, counts: int, in_rank: int) -> Tuple[int, int]:
        """Where the counts come to on the host, and the number under which they do; 0: they do not."""
        device = stream = told = number = 0
        if ids.is_cuda:
            self._exchanges.load_cuda()
            device, stream = int(Device.CUDA), torch._C._cuda_getCurrentRawStream(ids.device.index)
            if not capturing(True):
                key = stream, self._nr_ranks + nr_experts
                told, number = (self._told.get(key) or self._told.setdefault(key, ToldCounts(key[1]))).next()
        found = count_routes(ids.data_ptr(), nr, topk, self._nr_ranks, nr_experts, counts, counts + 4 * self._nr_ranks, in_rank, device, stream, told, number)
        if found:
            self._refuse_ids(found, ids, nr_experts)
        return told, number

    def _refuse_ids(self, found: int, ids: Any, nr_experts: int) -> None:
        if found == _NO_EXPERTS:
            raise InvalidError(f"topk_idx is from {int(ids.min())} to {int(ids.max())}; num_experts is {nr_experts}, and -1 is none")
        code(found)

    def _worst(self, nr: int, worst: int) -> Told:
        most = -(-worst // self._nr_ranks)
        if nr > most:
            raise InvalidError(f"num_worst_tokens is {worst} for {self._nr_ranks} ranks, {most} tokens of each; x has {nr}")
        return most, worst, worst, [], 0, None

    def _exchange(self, key: Any, rows: Rows, topk: int, nr_experts: int, nr_tokens: int, nr_rows: int, worst: int) -> Rounds:
        """With room for that many, the same on all ranks. It grows by doubling, and what was before is given up."""
        there = self._made.get(key)
        known = None if there is None else there.config
        if there is not None and nr_tokens <= there.config.max_tokens and nr_rows <= there.config.capacity:
            return there
        tokens, capacity = _power(nr_tokens), worst or _power(nr_rows)
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
        found = self._exchanges.get(config, Rounds)
        self._made[key] = found
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

    def _ready(self, moe: Rounds, sms: int, captured: bool) -> None:
        """Without a round under way. captured: whether what is called now goes into a graph."""
        if not captured and self._ended:
            for _ in range(len(self._ended)):
                self._ended.popleft().close()
        if sms != moe.sms and moe.on_device:
            moe.set_sms(sms)
            moe.sms = sms
        if moe.open_slot >= 0:
            check_capture(captured, moe.open_in_graph)
            moe._calls.release(moe, moe.open_slot, None)
            moe.open_slot = _NONE

    def _taken(self, moe: Rounds, slot: int, received: Any, rows: Rows, nr_rows: int, call: Call) -> Tuple[Any, Any]:
        """Received rows as the caller gets them, which last as long as he has them, and weights, if these do too. On a GPU extent is the
        most there can be, and nr_rows is known."""
        state = moe._slots[slot]
        extent = state.extent = min(received.extent, nr_rows)
        if slot:
            x, scales, weights = moe.places.lend(state, nr_rows, call)
            return x if scales is None else (x, scales), weights
        taken = rows.like(nr_rows)
        for name, to in (("x", taken.x), ("scales", taken.scales)):
            if to is not None and extent:
                received.copy(name, to if to.shape[0] == extent else to[:extent], extent)
        return taken.given(), None

    def _weights(self, received: Any, extent: int, nr_rows: int, topk: int) -> Any:
        """Of rows that were copied."""
        if extent == nr_rows:
            return received.topk_weights[:extent].clone()
        weights = received.topk_weights.new_zeros((nr_rows, topk))
        weights[:extent].copy_(received.topk_weights[:extent])
        return weights

    def _begin(self, moe: Rounds, rows: Rows, ids: Any, weights: Any, sms: int, call: Call, captured: bool, wide: Any = None) -> Tuple[int, Any]:
        """The slot, and what it receives."""
        self._ready(moe, sms, captured)
        slot = 0 if captured else moe.places.take(call)
        want = None if wide is None else Wanted(wide_ids=wide)
        received = moe._calls.dispatch(moe, slot, None, rows.x, ids, weights, rows.scales, 0, None, None, want)
        moe.begun(slot, 0, captured)
        return slot, received

    def _round(
        self, key: Any, rows: Rows, nr: int, ids: Any, weights: Any, topk: int, by_rank: Any, by_expert: Any, alignment: int, sms: int, call: Call
    ) -> Tuple[Rounds, int, Any, Told]:
        """A round of sizes that only now become known. Where the exchange has room for all tokens that it may be given, it begins at
        once, and ranks tell each other meanwhile; without tokens if these are more, which the others are told. Then it is ended, and made
        again by a larger one."""
        counts = Counts(by_rank, by_expert, self._laid_out, self._pinned)
        moe, nr_experts = self._made.get(key), by_expert.shape[0]
        early, slot, received, held = False, 0, None, 0
        if moe is not None:
            early, held = moe.begins_early, moe.places.held()
            if early and nr <= moe.config.max_tokens:
                slot, received = self._begin(moe, rows, ids, weights, sms, call, False)
            elif early:
                none = Rows(rows.x[:0], None if rows.scales is None else rows.scales[:0], rows.packed)
                slot, received = self._begin(moe, none, ids[:0], None if weights is None else weights[:0], sms, call, False)
        told = self._exchanges.board.tell(nr, held, *counts.addresses(), nr_experts, alignment)
        if moe is not None:
            moe.places.agree(told[4], slot)
            if early and told[0] <= moe.config.max_tokens:
                return moe, slot, received, told
            if early:
                self._ready(moe, sms, False)
        moe = self._exchange(key, rows, topk, nr_experts if topk else 0, told[0], told[1], 0)
        slot, received = self._begin(moe, rows, ids, weights, sms, call, False)
        return moe, slot, received, told

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
        nr, nr_ranks = rows.x.shape[0], self._nr_ranks
        in_rank = check("is_token_in_rank", in_rank, (nr, nr_ranks), torch.bool)
        by_rank = check("num_tokens_per_rank", by_rank, (nr_ranks,), torch.int32)
        by_expert = check("num_tokens_per_expert", by_expert, (None,), torch.int32)
        nr_experts, topk = by_expert.shape[0], 0
        if not nr_experts or nr_experts % nr_ranks:
            raise InvalidError(f"num_tokens_per_expert has {nr_experts} entries; it has to be a multiple of {nr_ranks} ranks")
        if alignment < 1 or worst < 0:
            raise InvalidError(f"expert_alignment is {alignment} and num_worst_tokens {worst}; from 1, and from 0 on are possible")
        if (topk_idx is None) != (topk_weights is None):
            raise InvalidError("topk_idx and topk_weights go together")
        if topk_idx is not None:
            ids = check("topk_idx", topk_idx, (nr, None), torch.int64)
            topk = ids.shape[1]
            weights = check("topk_weights", topk_weights, (nr, topk), torch.float32)
            if not ids.is_cuda:
                self._agree(ids, nr, topk, by_rank, in_rank, by_expert, nr_experts)
        elif worst:
            raise InvalidError("num_worst_tokens takes topk_idx and topk_weights")
        else:
            ids, weights = self._ids_of_ranks(in_rank), None
        form = rows.form()
        key = (rows.x.device, nr_experts if topk else 0, topk, worst, *form)
        captured, wide = capturing(ids.is_cuda), None
        if worst:
            told = self._worst(nr, worst)
            moe, wide = self._exchange(key, rows, topk, nr_experts if topk else 0, told[0], told[1], worst), ids.new_empty((worst, topk))
            slot, received = self._begin(moe, rows, ids, weights, sms, call, captured, wide)
        elif captured:
            raise StateError("num_worst_tokens: without it ranks tell each other their sizes, which no graph can hold")
        else:
            moe, slot, received, told = self._round(key, rows, nr, ids, weights, topk, by_rank, by_expert, alignment, sms, call)
        nr_rows = told[2]
        taken, recv_weights = self._taken(moe, slot, received, rows, nr_rows, call)
        extent = moe._slots[slot].extent
        if not topk:
            recv_weights = None
        elif recv_weights is None or extent != nr_rows:
            recv_weights = self._weights(received, extent, nr_rows, topk)
        recv_ids: Any = wide
        kept = by_rank.new_empty(nr_rows + nr * moe.config.topk)
        if topk and not worst:
            recv_ids = ids.new_empty((nr_rows, topk))
        at = kept.data_ptr()
        plan = Plan(moe, slot, nr_rows, 0 if worst or not topk else recv_ids.data_ptr(), at, at + 4 * nr_rows)
        route = Route(plan, form, nr_rows, nr, kept, self._column(received, ids.device) if worst else told[5], self._ended)
        moe.open_plan = plan._number
        return taken, recv_ids, recv_weights, told[3], Handle((None, route, route, None, in_rank, None))

    def _agree(self, ids: Any, nr: int, topk: int, by_rank: Any, in_rank: Any, by_expert: Any, nr_experts: int) -> None:
        """On the CPU, where looking costs little: what was counted is of these ids."""
        found = routes_agree(ids.data_ptr(), nr, topk, self._nr_ranks, nr_experts, by_rank.data_ptr(), by_expert.data_ptr(), in_rank.data_ptr())
        if found in _OTHER:
            raise InvalidError(f"{_OTHER[found]} is not of topk_idx: get_dispatch_layout gives it")
        if found:
            self._refuse_ids(found, ids, nr_experts)

    def _column(self, received: Any, device: Any) -> Any:
        """rank_prefix_matrix of worst sizes: this rank knows what it received, its own column."""
        matrix = torch.full((self._nr_ranks, self._nr_ranks), -1, dtype=torch.int32, device=device)
        matrix[:, self._rank] = received.counts.cumsum(0)
        return matrix

    # ---- with a handle ----

    def _route(self, handle: Any) -> Route:
        route = tuple.__getitem__(handle, 1) if isinstance(handle, tuple) and len(handle) == 6 else None
        if not isinstance(route, Route):
            raise InvalidError("handle is none of a dispatch by Tern")
        return route

    def _plan(self, route: Route, rows: Rows, sms: int, captured: bool) -> Plan:
        """For rows of another type or width: of a round with the same ids, whose rows come to the same places."""
        if rows.form() == route.form:
            return route.plan
        config = dataclasses.replace(route.config, **rows.changes())
        plan = route.others.get(config)
        if plan is None:
            moe = self._exchanges.get(config, Rounds)
            self._ready(moe, sms, captured)
            received = moe.dispatch(rows.x, route.ids, scales=rows.scales)
            moe.begun(0, 0, captured)
            moe._slots[0].extent = min(received.extent, route.nr_rows)
            plan = route.others[config] = moe.plan()
            self._ready(moe, sms, captured)
        return plan

    def dispatch_again(self, x: Any, handle: Any, sms: int, call: Call) -> Any:
        route, rows = self._route(handle), Rows.of(x)
        if rows.x.shape[0] != route.nr_tokens:
            raise InvalidError(f"x has {rows.x.shape[0]} rows; handle is of {route.nr_tokens} tokens")
        captured = capturing(rows.x.is_cuda)
        plan = self._plan(route, rows, sms, captured)
        moe: Any = plan.exchange
        self._ready(moe, sms, captured)
        slot = 0 if captured else moe.places.take(call)
        received = moe._calls.dispatch_plan(moe, slot, plan, moe._of_plans, plan._open(), plan.nr_tokens, rows.x, rows.scales, 0, None, None, None)
        moe.begun(slot, plan._number, captured)
        return self._taken(moe, slot, received, rows, route.nr_rows, call)[0]

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
        nr, hidden, captured = route.nr_tokens, y.shape[1], capturing(y.is_cuda)
        if biases:
            biases = tuple(check(f"bias[{i}]", bias, (nr, hidden), torch.bfloat16) for i, bias in enumerate(biases))
        out = y.new_empty((nr, hidden))
        plan = route.plan if hidden == config.hidden else self._plan(route, Rows(y.new_zeros((nr, hidden)), None, False), sms, captured)
        moe: Any = plan.exchange
        if moe.open_slot >= 0 and moe.open_plan == plan._number:
            check_capture(captured, moe.open_in_graph)
            moe._slots[moe.open_slot].no_floats = floats is None
            moe._calls.combine(moe, moe.open_slot, None, y, out, False, None, floats, out_floats)
            moe.open_slot = _NONE
        else:
            self._ready(moe, sms, captured)
            moe._slots[0].no_floats = floats is None
            moe._calls.combine_plan(moe, 0, plan._open(), plan.nr_tokens, plan.extent, 0, y, out, False, None, floats, out_floats)
        if biases:
            out.copy_(sum((bias.float() for bias in biases), out.float()))
        return out, out_floats
