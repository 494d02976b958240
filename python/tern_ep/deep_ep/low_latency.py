# SPDX-License-Identifier: Apache-2.0
"""deep_ep's low-latency mode: rows by expert, padded, FP8 on the way if wanted, and a weighted sum.

An exchange has two slots, so two rounds may be under way, as in deep_ep. A dispatch takes them in turn: a round that is still in its
slot is ended first. A combine whose round was ended so makes it again, with the same ids and rows that nobody looks at.

Rows, counts and scales of a slot's dispatches lie in the same tensors, as deep_ep says of its own: no more than two rounds' results
can be held at a time.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

import numpy as np
import torch

from .. import _calls
from ..arrays import Dtype, Torch
from ..config import Config, Device, Layout, Mode, Reduce, Scale, Weights
from ..errors import InvalidError, UnsupportedError, WaitTimeoutError
from ..exchange import Exchange
from ..received import Wanted
from .exchanges import Exchanges, check, device_of
from .streams import OnCpu, capturing, check_capture
from .utils import no_event

_SLOTS = 2


def _tensors(moe: Exchange) -> Torch:
    """What makes tensors where the exchange has its own."""
    assert isinstance(moe.kind, Torch)
    return moe.kind


class Round(_calls.Round):
    """A dispatch, until its combine."""

    __slots__ = ()

    def finish(self) -> None:
        if self.pending is not None:
            self.pending()
            self.pending = None


class Handle(Tuple[Any, ...]):
    """(src_info, layout_range, num_max_dispatch_tokens_per_rank, hidden, num_experts). The first two are made when they are looked at,
    which has to be before the combine."""

    round: Round

    def _info(self, at: int) -> Any:
        a_round, moe = self.round, self.round.lane.moe
        a_round.finish()
        nr_local, positions = moe.nr_local, moe.max_rows // moe.nr_local
        rows = a_round.received.rows
        tokens, ranks = (rows[:, 1], rows[:, 0]) if moe.on_device else (torch.from_numpy(np.ascontiguousarray(rows[name])) for name in ("token", "rank"))
        if at == 0:
            info = tokens.new_full((nr_local * positions,), -1)
            info[: len(tokens)] = tokens
            return info.view(nr_local, positions)
        whose = ranks.new_zeros((nr_local * positions,), dtype=torch.int64)
        whose[: len(ranks)] = ranks
        whose = whose.view(nr_local, positions)
        held = torch.arange(positions, device=whose.device) < a_round.counts[:, None]
        whose = torch.where(held, whose, moe.nr_ranks)
        counts = whose.new_zeros((nr_local, moe.nr_ranks + 1)).scatter_add_(1, whose, torch.ones_like(whose))[:, :-1]
        return (counts.cumsum(1) - counts << 32) | counts

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return tuple(self)[at]
        found = super().__getitem__(at)
        return self._info(at % 5) if found is None else found

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))


class Results:
    """What a dispatch fills and hands out. unpacked: scales are powers of two, and handed out as floats."""

    def __init__(self, lane: "Lane", slot: int, unpacked: bool):
        moe, config = lane.moe, lane.moe.config
        nr_local, positions, fp8 = moe.nr_local, moe.max_rows // moe.nr_local, config.scale != Scale.NONE
        new = _tensors(moe).new
        rows = new((nr_local, positions, config.hidden), torch.float8_e4m3fn if fp8 else torch.bfloat16)
        self.into_x = rows.view(-1, config.hidden)
        self.counts = new((nr_local,), torch.int32)
        self.into_scales: Any = None
        self.columns: Any = None
        self.shown: Any = None
        """Scales, [L][R * T][columns], column-major."""
        if fp8:
            self._scales(lane, slot, unpacked)
        self.recv_x = (rows, self.shown) if fp8 else rows
        self.want = Wanted(into_counts=self.counts, gemm_scales=self.columns)
        self.bytes = rows.numel() * rows.element_size()

    def _scales(self, lane: "Lane", slot: int, unpacked: bool) -> None:
        """As rows bring them, and column by column. On a GPU kernels store columns at once, and those alone."""
        moe, config = lane.moe, lane.moe.config
        nr_local, positions = moe.nr_local, moe.max_rows // moe.nr_local
        blocks, packed = config.nr_blocks, config.scale == Scale.UE8M0
        columns, stride = -(-blocks // 4) if packed and not unpacked else blocks, -(-positions // 4) * 4
        made = _tensors(moe).new((nr_local, columns, stride), torch.int32 if packed and not unpacked else torch.float32)
        self.shown = made[:, :, :positions].transpose(1, 2)
        if not unpacked:
            self.columns = made
        if unpacked or not moe.on_device or (packed and blocks % 4) or made.numel() >= 2**32:
            self.into_scales = lane.row_scales(slot)

    def tensors(self) -> Tuple[Any, ...]:
        return (*self.recv_x, self.counts) if isinstance(self.recv_x, tuple) else (self.recv_x, self.counts)

    def unpack(self) -> None:
        nr_local, positions, _ = self.shown.shape
        self.shown.copy_((self.into_scales.view(nr_local, positions, -1).to(torch.int32) << 23).view(torch.float32))


_MOST_KEPT = 1 << 32
"""Bytes of rows that a slot keeps; more are made anew each time, and belong to the caller alone. Up to 1024 tokens of 256 experts, what V1's own
buffer takes of memory for each of its halves."""


Kind = Tuple[int, int, bool, bool, bool]
"""What a dispatch says of an exchange: most tokens, experts, use_fp8, round_scale, use_ue8m0."""


class Lane(_calls.Turns):
    """An exchange and what its slots are busy with."""

    def __new__(cls, moe: Exchange, streams: OnCpu) -> "Lane":
        entries = None, None, moe.config.max_tokens, moe.config.hidden, moe.config.nr_experts
        made: Lane = super().__new__(cls, moe._calls, moe, streams, Round, Handle, entries, lambda: capturing(True), no_event)
        return made

    def __init__(self, moe: Exchange, streams: OnCpu):
        self.combine_buffers: List[Any] = [None] * _SLOTS
        self.shape = (moe.nr_local, moe.max_rows // moe.nr_local, moe.config.hidden)
        self._scales: List[Any] = [None] * _SLOTS
        self._results: Dict[Tuple[int, bool], Results] = {}

    def results(self, slot: int, unpacked: bool) -> Results:
        found = self._results.get((slot, unpacked))
        if found is None:
            with _tensors(self.moe).lasting():
                found = Results(self, slot, unpacked)
            if found.bytes <= _MOST_KEPT and not capturing(self.moe.on_device):
                self._results[slot, unpacked] = found
        return found

    def begun(self, made: Round) -> Handle:
        """It is the slot's."""
        self.rounds[made.slot] = made
        self.next = 1 - made.slot
        handle = Handle(self.entries)
        handle.round = made
        return handle

    def is_kept(self, slot: int, results: Results) -> bool:
        return self._results.get((slot, False)) is results

    def row_scales(self, slot: int) -> Any:
        """Of FP8, row by row, as they travel: where they cannot go into columns at once."""
        config = self.moe.config
        if config.scale != Scale.NONE and self._scales[slot] is None:
            kind = torch.float32 if config.scale == Scale.FP32 else torch.uint8
            self._scales[slot] = _tensors(self.moe).new((self.moe.max_rows, config.nr_blocks), kind)
        return self._scales[slot]

    def clear(self, slot: int) -> None:
        """Ends the round that is in the slot."""
        there = self.rounds[slot]
        if there is not None:
            check_capture(capturing(self.moe.on_device), there.in_graph)
            there.finish()
            if not there.combining:
                self.moe.release(slot)
            self.rounds[slot] = None


class LowLatency:
    def __init__(self, exchanges: Exchanges, shrink: bool):
        self._exchanges = exchanges
        self._shrink = shrink
        self._lanes: Dict[Any, Lane] = {}
        self.plain: Dict[Kind, Lane] = {}
        """Of the last dispatch of that kind, where there was nothing to do but to dispatch."""
        self._at_home = False
        """Weights cannot travel: ranks are on several nodes, or not over NVLink."""
        self.masked: Set[int] = set()

    # ---- masks ----

    def mask(self, rank: int) -> None:
        for lane in self._lanes.values():
            if not lane.moe.config.masks:
                raise UnsupportedError("rank_to_mask: ranks can be masked on the CPU alone")
        for lane in self._lanes.values():
            lane.moe.mask(rank)
        self.masked.add(rank)

    def _waiting(self, moe: Exchange, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """With enable_shrink a rank that lets others wait for too long is masked, as deep_ep does, and the call goes on."""
        while True:
            try:
                return call(*given, **named)
            except WaitTimeoutError as error:
                if not moe.config.masks or error.report is None:
                    raise
                self.mask(error.report.peer)

    # ---- dispatch ----

    def _made(self, x: Any, topk: int, most: int, nr_experts: int, scale: Scale) -> Exchange:
        """Sums are made at the expert where weights can travel there, and at home elsewhere."""
        device = device_of(x)
        config = Config(
            hidden=x.shape[1],
            nr_experts=nr_experts,
            topk=topk,
            max_tokens=most,
            mode=Mode.LOW_LATENCY,
            layout=Layout.PADDED,
            reduce=Reduce.HOME,
            weights=Weights.COMBINE,
            dispatch_dtype=Dtype.BF16 if scale == Scale.NONE else Dtype.FP8_E4M3,
            scale=scale,
            nr_slots=_SLOTS,
            slots_in_turn=True,
            wait_ms=self._exchanges.wait_ms,
            device=device,
            caller_output=device != Device.CPU,
            masks=self._shrink and device == Device.CPU,
        )
        if device == Device.CPU or self._at_home:
            return self._exchanges.get(config, Exchange)
        try:
            return self._exchanges.get(dataclasses.replace(config, reduce=Reduce.EXPERT, late_weights=True), Exchange)
        except UnsupportedError:
            self._at_home = True
            return self._exchanges.get(config, Exchange)

    def lane(self, x: Any, topk_idx: Any, kind: Kind) -> Tuple[Lane, Any, Any]:
        """Where they go, and they as that takes them: without a graph of gradients."""
        most, nr_experts, fp8, round_scale, ue8m0 = kind
        if ue8m0 and not (fp8 and round_scale):
            raise InvalidError("use_ue8m0 takes use_fp8 and round_scale")
        scale = Scale.NONE if not fp8 else Scale.UE8M0 if round_scale else Scale.FP32
        x = check("x", x, (None, None), torch.bfloat16)
        nr, hidden = x.shape
        ids = check("topk_idx", topk_idx, (nr, None), torch.int64)
        nr_ranks = self._exchanges.nr_ranks
        if nr_experts <= 0 or nr_experts % nr_ranks:
            raise InvalidError(f"num_experts is {nr_experts}; it has to be a multiple of {nr_ranks} ranks")
        if nr > most:
            raise InvalidError(f"x has {nr} rows; num_max_dispatch_tokens_per_rank is {most}")
        topk = ids.shape[1]
        key = (x.device, hidden, topk, most, nr_experts, scale)
        found = self._lanes.get(key)
        if found is None:
            found = self._lanes[key] = Lane(self._made(x, topk, most, nr_experts, scale), self._exchanges.streams(x.device))
            for rank in self.masked:
                found.moe.mask(rank)
        return found, x, ids

    def _check_counts(self, totals: Any, waited: Any, lane: Lane) -> None:
        if totals is not None:
            check("cumulative_local_expert_recv_stats", totals, (lane.moe.nr_local,), torch.int32)
        if waited is not None:
            check("dispatch_wait_recv_cost_stats", waited, (self._exchanges.nr_ranks,), torch.int64)

    def dispatch(
        self, lane: Lane, x: Any, ids: Any, kind: Kind, totals: Any, waited: Any, hook: bool
    ) -> Tuple[Results, Handle, Optional[Callable[[], None]]]:
        self._check_counts(totals, waited, lane)
        moe, slot = lane.moe, lane.next
        if lane.rounds[slot] is not None:
            lane.clear(slot)
        unpacked = kind[2] and kind[3] and not kind[4]
        results = lane.results(slot, unpacked)
        made = Round(lane, slot, ids, results.counts, capturing(moe.on_device))
        want = results.want if waited is None else results.want._replace(waited_ns=waited)

        def arrived() -> None:
            if unpacked:
                results.unpack()
            if totals is not None:
                totals.add_(results.counts)

        def receive() -> None:
            made.received = self._waiting(moe, moe.dispatch_recv, slot, into_x=results.into_x, into_scales=results.into_scales, want=want)
            arrived()

        if hook:
            self._waiting(moe, moe.dispatch_send, x, ids, slot=slot)
            made.pending = receive
        else:
            made.received = self._waiting(moe, moe.dispatch, x, ids, slot=slot, into_x=results.into_x, into_scales=results.into_scales, want=want)
            arrived()
        if lane.is_kept(slot, results) and not moe.config.masks:
            lane.keep(slot, (results.into_x, results.into_scales, results.want, results.recv_x, results.counts))
            self.plain[kind] = lane
        return results, lane.begun(made), made.finish if hook else None

    # ---- combine ----

    @staticmethod
    def round(handle: Any) -> Round:
        if not isinstance(handle, Handle):
            raise InvalidError("handle is none of a low_latency_dispatch by Tern")
        return handle.round

    def combine_buffer(self, handle: Any) -> Any:
        there = self.round(handle)
        lane = there.lane
        if lane.combine_buffers[there.slot] is None:
            lane.combine_buffers[there.slot] = there.ids.new_empty(lane.shape, dtype=torch.bfloat16)
        return lane.combine_buffers[there.slot]

    def combine(
        self, there: Round, x: Any, topk_idx: Any, topk_weights: Any, zero_copy: bool, hook: bool, out: Any
    ) -> Tuple[Any, Optional[Callable[[], None]]]:
        lane, nr = there.lane, there.ids.shape[0]
        moe = lane.moe
        topk, hidden = moe.config.topk, moe.config.hidden
        x = check("x", x, lane.shape, torch.bfloat16)
        ids = check("topk_idx", topk_idx, (nr, topk), torch.int64)
        weights = check("topk_weights", topk_weights, (nr, topk), torch.float32)
        if zero_copy:
            x = lane.combine_buffers[there.slot]
            if x is None:
                raise InvalidError("zero_copy: get_next_low_latency_combine_buffer was not asked for this handle")
        if out is None:
            out = _tensors(moe).new((nr, hidden), torch.bfloat16)
        check("out", out, (nr, hidden), torch.bfloat16)
        if lane.rounds[there.slot] is not there or there.combining:
            there = self._again(there, ids)
        there.finish()
        slot = there.slot

        def receive() -> None:
            self._waiting(moe, moe.combine_recv, slot, out=out)
            lane.rounds[slot] = None

        if hook:
            self._waiting(moe, moe.combine_send, x, slot=slot, topk_weights=weights)
            there.combining, there.pending = True, receive
            return out, there.finish
        self._waiting(moe, moe.combine, x, slot=slot, topk_weights=weights, out=out)
        lane.rounds[slot] = None
        return out, None

    def _again(self, ended: Round, ids: Any) -> Round:
        lane, moe = ended.lane, ended.lane.moe
        slot = lane.next
        lane.clear(slot)
        made = Round(lane, slot, ids, ended.counts, capturing(moe.on_device))
        config = moe.config
        x = ids.new_zeros((ids.shape[0], config.hidden), dtype=torch.bfloat16)
        kind = torch.bfloat16 if config.scale == Scale.NONE else torch.float8_e4m3fn
        into = ids.new_empty((moe.max_rows, config.hidden), dtype=kind)
        made.received = self._waiting(moe, moe.dispatch, x, ids, slot=slot, into_x=into, into_scales=lane.row_scales(slot))
        lane.begun(made)
        return made
