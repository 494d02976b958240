# SPDX-License-Identifier: Apache-2.0
"""The exchange: dispatch and combine, whole and in halves."""

from __future__ import annotations

import ctypes
import functools
import sys
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import numpy.typing as npt

from . import _abi
from . import arrays as memory
from ._handles import Handle, opened
from ._library import library, load_cuda
from ._calls import Calls, OneAtATime, Slot
from .arrays import Array, Dtype, View
from .config import Config, Device, Layout, Mode, Scale
from .errors import InvalidError, UnsupportedError, WaitReport, check, wait_report
from .gate import Gate, gate_of
from .group import Group
from .plan import Plan
from .received import Received, Wanted, shapes

_IDS = ("int32", "int64")
_SCALES = {Scale.FP32: ("float32",), Scale.UE8M0: ("uint8", "float8_e8m0fnu")}


@dataclass(frozen=True)
class Memory:
    """What an exchange takes: struct tern_memory."""

    window_bytes: int
    output_bytes: int
    private_bytes: int
    staging_bytes: int


@dataclass(frozen=True)
class Stats:
    """Since creation or the last reset, on this rank: struct tern_stats."""

    rounds: int
    tokens: int
    routes: int
    rows: int
    rows_away: int
    tokens_away: int
    dispatch_bytes: int
    combine_bytes: int
    rows_received: int
    engine_bytes: int


@functools.lru_cache(maxsize=1)
def _leave_alone() -> None:
    from . import _dynamo, _handles, errors, group, plan, received

    _dynamo.leave_alone(sys.modules[__name__], _handles, errors, group, memory, plan, received)


class Arguments(Slot):
    """A slot's, or a plan's: what the calls remember of a slot, and the structs of its calls."""

    def __init__(self, reader: Any, number: int) -> None:
        self.nr_tokens_at: Any = None
        self.dispatch = _abi.tern_dispatch.from_address(self.dispatch_at)
        self.received = _abi.tern_received.from_address(self.received_at)
        self.combine = _abi.tern_combine.from_address(self.combine_at)


class Exchange:
    """One exchange over a group: shapes, types and buffers; all layers of a model can share one. Collective.

    `arrays` says in which form rows come: "numpy" (BF16 as uint16, FP8 as uint8), "ml_dtypes" or "torch".
    """

    def __init__(self, group: Group, config: Config, *, arrays: str = "numpy"):
        lib = library()
        self.config = config
        self.rank, self.nr_ranks = group.rank, group.nr_ranks
        self.on_device = config.device != Device.CPU
        self.kind = memory.kind(arrays, self.on_device)
        self._busy = OneAtATime("exchange")
        struct = config.struct()
        if self.on_device:
            load_cuda()
        if isinstance(self.kind, memory.Torch):
            _leave_alone()
        pointer = ctypes.c_void_p()
        with group._busy:
            group._checked(lib.tern_moe_create(group.native, ctypes.byref(struct), ctypes.byref(pointer)))
        self._handle: Optional[Handle] = Handle("tern_moe_destroy", pointer.value or 0, group.handle)
        self._lib = lib
        self.nr_local: int = check(lib.tern_moe_nr_local(pointer))
        self.mode = Mode(check(lib.tern_moe_mode(pointer)))
        """What Mode.AUTO has chosen."""
        """Experts on this rank, L."""
        self.local_experts = self._look_at_experts(pointer)
        """The logical id of each local expert."""
        self.max_rows = config.max_rows(self.nr_ranks, self.nr_local)
        """The most row positions that this rank can receive; into_x needs as many."""
        self._slots = tuple(Arguments(self.kind.reader, number) for number in range(config.nr_slots))
        self._of_plans = Arguments(self.kind.reader, 0)
        """What dispatches with a plan pass."""
        self._calls = Calls(self.kind.reader, self._busy, self._slots, Received, self.native, self.on_device)
        self._shapes = shapes(self)
        self._combine_dtype = Dtype(config.combine_dtype)

    @property
    def handle(self) -> Handle:
        opened(self._handle, "exchange")
        assert self._handle is not None
        return self._handle

    @property
    def native(self) -> int:
        """The tern_moe's address, for other bindings of the same library."""
        return opened(self._handle, "exchange")

    def _slot(self, slot: int) -> Arguments:
        if not 0 <= slot < len(self._slots):
            raise InvalidError(f"slot is {slot} of {len(self._slots)}")
        return self._slots[slot]

    def _check(self, code: int) -> None:
        if code:
            check(code, self.native)

    def _stream(self, stream: Optional[int]) -> int:
        """The one that is current for the calling thread, where none is given."""
        assert isinstance(self.kind, memory.TorchCuda)
        return self.kind.stream() if stream is None else stream

    def _here(self, views: Dict[str, View]) -> None:
        """Arrays are where the exchange is. On a device the library looks itself for what is on none."""
        kind = self.kind
        for name, view in views.items():
            if view.cuda is not None and not self.on_device:
                raise UnsupportedError(f"{name} is in the memory of CUDA device {view.cuda}; this exchange was made with device CPU")
            if isinstance(kind, memory.TorchCuda) and isinstance(view.owner, kind.tensor) and view.cuda not in (None, kind.device.index):
                raise InvalidError(f"{name} is in the memory of CUDA device {view.cuda}; this exchange was made on device {kind.device.index}")

    # ---- the halves ----

    def dispatch_send(
        self,
        x: Array,
        topk_ids: Array,
        topk_weights: Optional[Array] = None,
        *,
        scales: Optional[Array] = None,
        slot: int = 0,
        stream: Optional[int] = None,
        tag: int = 0,
    ) -> None:
        """Sends each token once to every rank that holds one of its experts.

        x is [n][H] of x_dtype (or its bits), topk_ids [n][K] int32 or int64 with -1 for no expert, topk_weights [n][K] float32, None
        for all 1, scales [n][ceil(H / 128)] if x_dtype is FP8. All may be overwritten when it returns. Waits only in high-throughput mode.
        tag: in elastic exchanges the caller's name of the round, such as its layer, which owed() tells others.
        """
        self._calls.dispatch_send(self, slot, stream, x, topk_ids, topk_weights, scales, tag)

    def dispatch_recv(
        self,
        slot: int = 0,
        *,
        into_x: Optional[Array] = None,
        into_scales: Optional[Array] = None,
        stream: Optional[int] = None,
        want: Optional[Wanted] = None,
    ) -> Received:
        """Waits for all sources, and shows the rows. In low-latency mode they may go into the caller's into_x [max_rows][H] (and
        into_scales). want: what else is to be made of them."""
        received: Received = self._calls.dispatch_recv(self, slot, stream, into_x, into_scales, want)
        return received

    def received_sizes(self, slot: int = 0) -> Tuple[int, int]:
        """How many rows the slot's last dispatch brought, and the positions that they span. On a device it waits for the stream."""
        nr_rows, extent = ctypes.c_uint64(), ctypes.c_uint64()
        with self._busy:
            self._check(self._lib.tern_received_sizes(self._calls.use(self, slot, None), slot, ctypes.byref(nr_rows), ctypes.byref(extent)))
        return nr_rows.value, extent.value

    def combine_send(
        self,
        y: Optional[Array],
        *,
        slot: int = 0,
        stream: Optional[int] = None,
        unweighted: bool = False,
        topk_weights: Optional[Array] = None,
        floats: Optional[Array] = None,
        out_floats: Optional[Array] = None,
    ) -> None:
        """Sends the experts' results home: y [extent or more][H] of combine_dtype, rows at the positions of the received x rows. None is
        possible with no rows. Gives the received rows back.

        unweighted: rows are summed as they are. topk_weights [n][K]: with Reduce.HOME, in place of those of the dispatch. With
        Config.combine_floats: floats [extent or more] (BY_SOURCE [extent or more][K]), one for each received row, come home into
        out_floats [n][K], which is written when the combine has ended; 0 where the id is -1."""
        self._calls.combine_send(self, slot, stream, y, unweighted, topk_weights, floats, out_floats)

    def combine_recv(self, slot: int = 0, *, out: Optional[Array] = None, stream: Optional[int] = None) -> Any:
        """Waits for all ranks, and returns the weighted sums [n][H] of combine_dtype: in out, or in a new array."""
        return self._calls.combine_recv(self, slot, stream, out)

    def release(self, slot: int = 0, *, stream: Optional[int] = None) -> None:
        """Gives the received rows back; takes the place of both combine halves. All ranks do so in the same round."""
        self._calls.release(self, slot, stream)

    def owed(self, slot: int = 0) -> Optional[int]:
        """Elastic exchanges, after Group.view_change: the tag of a round that others make again and this rank has completed: it takes
        part once more, without tokens. None: there is none."""
        tag = ctypes.c_uint64()
        with self._busy:
            self._slot(slot).give_back()
            owes = check(library().tern_moe_owed(self.native, slot, ctypes.byref(tag)), self.native)
        return tag.value if owes else None

    def plan(self, slot: int = 0) -> Plan:
        """Where the rows of the slot's dispatch went, kept for other tokens and results: before its combine or release."""
        return Plan(self, slot)

    def gate(self, slot: int = 0) -> Gate:
        """For kernels that read the slot's rows while they come: on devices, with Config.gate_rows."""
        with self._busy:
            return gate_of(self, slot)

    # ---- both halves in one ----

    def dispatch(
        self,
        x: Array,
        topk_ids: Array,
        topk_weights: Optional[Array] = None,
        *,
        scales: Optional[Array] = None,
        slot: int = 0,
        stream: Optional[int] = None,
        into_x: Optional[Array] = None,
        into_scales: Optional[Array] = None,
        tag: int = 0,
        want: Optional[Wanted] = None,
    ) -> Received:
        """dispatch_send and dispatch_recv. All arguments are checked before anything is sent. After
        WaitTimeoutError the same call goes on waiting."""
        received: Received = self._calls.dispatch(self, slot, stream, x, topk_ids, topk_weights, scales, tag, into_x, into_scales, want)
        return received

    def combine(
        self,
        y: Optional[Array],
        *,
        slot: int = 0,
        out: Optional[Array] = None,
        stream: Optional[int] = None,
        unweighted: bool = False,
        topk_weights: Optional[Array] = None,
        floats: Optional[Array] = None,
        out_floats: Optional[Array] = None,
    ) -> Any:
        """combine_send and combine_recv. All arguments are checked before anything is sent. After
        WaitTimeoutError the same call goes on waiting."""
        return self._calls.combine(self, slot, stream, y, out, unweighted, topk_weights, floats, out_floats)

    # ---- arguments that the compiled calls have not seen before, or not in this form ----

    def _look_at_dispatch(self, state: Arguments, x: Array, topk_ids: Array, topk_weights: Optional[Array], scales: Optional[Array]) -> None:
        config, args = self.config, state.dispatch
        rows = memory.rows("x", x, config.x_width, Dtype(config.x_dtype))
        views = {"x": rows.view, "topk_ids": memory.table("topk_ids", topk_ids, rows.nr, config.topk, _IDS)}
        if topk_weights is not None:
            views["topk_weights"] = memory.table("topk_weights", topk_weights, rows.nr, config.topk, ("float32",))
        if scales is not None:
            views["scales"] = self._scales(scales, rows.nr)
        self._here(views)
        args.nr_tokens, args.x, args.x_stride = rows.nr, rows.address, rows.stride
        args.topk_ids, args.topk_ids_bits = views["topk_ids"].address, 8 * views["topk_ids"].item_bytes
        args.topk_weights = views["topk_weights"].address if topk_weights is not None else None
        args.scales = views["scales"].address if scales is not None else None

    def _scales(self, scales: Array, nr: int) -> View:
        config = self.config
        if config.x_dtype != Dtype.FP8_E4M3:
            raise InvalidError("scales are given, but x is not FP8")
        return memory.table("scales", scales, nr, config.nr_blocks, _SCALES[Scale(config.scale)])

    def _look_at_y(self, state: Arguments, y: Array) -> None:
        """PADDED: a torch tensor may also be [L][positions][H], dense."""
        if isinstance(self.kind, memory.Torch) and isinstance(y, self.kind.tensor) and y.dim() == 3 and y.is_contiguous():
            y = y.view(-1, y.shape[2])
        rows = memory.rows("y", y, self.config.hidden, self._combine_dtype)
        self._here({"y": rows.view})
        state.combine.y, state.combine.y_stride, state.y_rows = rows.address, rows.stride, rows.nr

    def _look_at_beside(
        self, state: Arguments, unweighted: bool, topk_weights: Optional[Array], floats: Optional[Array], out_floats: Optional[Array]
    ) -> None:
        args, topk = state.combine, self.config.topk
        views = {}
        if topk_weights is not None:
            views["topk_weights"] = memory.table("topk_weights", topk_weights, state.nr_tokens, topk, ("float32",))
        if floats is not None:
            views["floats"] = memory.numbers("floats", floats, state.extent, topk if self.config.layout == Layout.BY_SOURCE else 0)
        if out_floats is not None:
            views["out_floats"] = memory.table("out_floats", out_floats, state.nr_tokens, topk, ("float32",))
            if not views["out_floats"].writable:
                raise InvalidError("out_floats is read-only")
        self._here(views)
        args.unweighted = unweighted
        args.topk_weights, args.floats, args.out_floats = (
            views[name].address if name in views else None for name in ("topk_weights", "floats", "out_floats")
        )

    def _new_out(self, nr_tokens: int) -> Any:
        return self.kind.empty((nr_tokens, self.config.hidden), self._combine_dtype)

    def _look_at_out(self, state: Arguments, out: Array) -> int:
        """Its address."""
        rows = memory.rows("out", out, self.config.hidden, self._combine_dtype, writable=True)
        self._here({"out": rows.view})
        state.out_rows, state.out_stride = rows.nr, rows.stride
        return rows.address

    def _look_at_wanted(self, state: Arguments, want: Wanted) -> None:
        self._here(want.fill(self, state.received))

    def _look_at_into(self, state: Arguments, into_x: Optional[Array], into_scales: Optional[Array]) -> None:
        views = self._into(into_x, into_scales)
        self._here(views)
        state.received.into_x = views["into_x"].address
        state.received.into_scales = views["into_scales"].address if "into_scales" in views else None

    def _into(self, into_x: Optional[Array], into_scales: Optional[Array]) -> Dict[str, View]:
        config = self.config
        if into_x is None or self.mode != Mode.LOW_LATENCY:
            raise InvalidError("into_x is for low-latency mode, and into_scales goes with it")
        rows = memory.rows("into_x", into_x, config.received_width, Dtype(config.dispatch_dtype), writable=True)
        if rows.nr < self.max_rows or rows.stride != config.row_bytes:
            raise InvalidError(f"into_x has {rows.nr} rows, {rows.stride} bytes apart; {self.max_rows} dense ones of {config.row_bytes} bytes are needed")
        if config.dispatch_dtype != Dtype.FP8_E4M3:
            if into_scales is not None:
                raise InvalidError("into_scales is given, but rows are not FP8")
            return {"into_x": rows.view}
        if into_scales is None and self.on_device:  # the library says whether gemm_scales are enough
            return {"into_x": rows.view}
        if into_scales is None:
            raise InvalidError("into_x is given without into_scales, and rows are FP8")
        view = memory.table("into_scales", into_scales, rows.nr, config.nr_blocks, _SCALES[Scale(config.scale)])
        if not view.writable:
            raise InvalidError("into_scales is read-only")
        return {"into_x": rows.view, "into_scales": view}

    def empty_x(self) -> Tuple[Any, Any]:
        """Arrays for into_x and into_scales (None unless FP8)."""
        config = self.config
        x = self.kind.empty((self.max_rows, config.received_width), Dtype(config.dispatch_dtype))
        if config.dispatch_dtype != Dtype.FP8_E4M3:
            return x, None
        scales = memory.empty((self.max_rows, config.nr_blocks), "float32" if config.scale == Scale.FP32 else "uint8")
        return x, self.kind.plain(scales)

    def empty_y(self, received: Received) -> Any:
        """An array for the results of received rows: [extent][H] of combine_dtype."""
        return self.kind.empty((received.extent, self.config.hidden), Dtype(self.config.combine_dtype))

    # ---- what happened ----

    def status(self) -> None:
        """Raises what ended the exchange, or what kernels have found since: ids that are none. Waits for nothing."""
        with self._busy:
            self._check(library().tern_moe_status(self.native))

    def set_sms(self, nr_sms: int) -> None:
        """Devices: the most SMs that a half may take; 0: as many as are fastest."""
        with self._busy:
            self._check(library().tern_moe_set_sms(self.native, nr_sms))

    def set_nr_tokens_at(self, nr_tokens: Optional[Array], slot: int = 0) -> None:
        """Devices: a 4-byte integer in device memory from which kernels take the number of tokens, at most x's; None: x's."""
        with self._busy:
            view = None if nr_tokens is None else memory.look(nr_tokens)
            if view is not None and (view.dtype not in ("int32", "uint32") or int(np.prod(view.shape, dtype=np.int64)) != 1):
                raise InvalidError(f"nr_tokens is {view.dtype}{list(view.shape)}; it has to be one int32 or uint32")
            self._check(library().tern_moe_set_nr_tokens_at(self.native, slot, None if view is None else view.address))
            self._slot(slot).nr_tokens_at = view

    def set_wait(self, wait_ms: int) -> None:
        """The longest wait of one call from now on; 0 polls once."""
        with self._busy:
            self._check(library().tern_moe_set_wait(self.native, wait_ms))

    def place(self, version: int, logical: Sequence[int]) -> None:
        """Other experts in the same places, from the next dispatch on: place p serves logical[p]. All ranks call it alike, between
        the same rounds, with a number of their choice for these tables. local_experts says what this rank has then, and
        Received.version by which tables rows have come."""
        with self._busy:
            if not 0 <= version < 2**32:
                raise InvalidError(f"version is {version}; 0 to {2**32 - 1} are possible")
            table = (ctypes.c_int32 * len(logical))(*logical)
            self._check(library().tern_moe_place(self.native, version, table, len(logical)))
            self.local_experts = self._look_at_experts(self.native)

    def _look_at_experts(self, pointer: Any) -> Tuple[int, ...]:
        return tuple(check(library().tern_moe_local_expert(pointer, i)) for i in range(self.nr_local))

    def mask(self, rank: int) -> None:
        """From here on this rank neither sends to that one nor waits for it; nobody else is told, and nothing is agreed upon.
        A call that has expired because of it is made again. Takes Config.masks."""
        with self._busy:
            self._check(library().tern_moe_mask(self.native, rank))

    def wait_report(self) -> Optional[WaitReport]:
        """Who was waited for when the last wait failed; None: none has."""
        with self._busy:
            return wait_report(self.native)

    def memory(self) -> Memory:
        """What this exchange takes."""
        return Memory(*self._told(_abi.tern_memory, library().tern_moe_memory))

    def stats(self) -> Stats:
        """What this rank has sent and received."""
        return Stats(*self._told(_abi.tern_stats, library().tern_moe_stats))

    def _told(self, struct: Any, function: Any) -> List[int]:
        told = _abi.sized(struct)
        with self._busy:
            self._check(function(self.native, ctypes.byref(told)))
        return [getattr(told, name) for name, _ in struct._fields_[1:]]

    def expert_load(self) -> npt.NDArray[np.uint64]:
        """Routes that this rank's tokens took to each logical expert."""
        counts = np.zeros(self.config.nr_experts, np.uint64)
        pointer = counts.ctypes.data_as(ctypes.POINTER(ctypes.c_uint64))
        with self._busy:
            self._check(library().tern_moe_expert_load(self.native, pointer, len(counts)))
        return counts

    def reset_stats(self) -> None:
        with self._busy:
            self._check(library().tern_moe_stats_reset(self.native))

    def close(self) -> None:
        """Leaves the exchange, and peers that still wait for this rank learn of it. Its memory goes with the last array that shows it."""
        with self._busy:
            for state in self._slots:
                state.give_back()
                state.hide()
            if self._handle is not None and self._handle.here:
                self._check(library().tern_moe_leave(self._handle.pointer))
            self._calls.close()
            self._handle = None

    def __enter__(self) -> "Exchange":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
