# SPDX-License-Identifier: Apache-2.0
"""The exchange: dispatch and combine, whole and in halves."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import numpy.typing as npt

from . import _abi
from . import arrays as memory
from ._handles import Handle, opened
from ._library import library
from .arrays import Array, Dtype, View
from .config import Config, Device, Mode, Scale
from .errors import InvalidError, UnsupportedError, WaitReport, WaitTimeoutError, check, wait_report
from .group import Group, OneAtATime
from .received import Received

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


class _Slot:
    """What Python has to remember of a slot, so that no array is too small for what the library does with it."""

    def __init__(self) -> None:
        self.nr_tokens = 0
        self.extent = 0
        self.received: Optional[Received] = None
        self.stream = 0  # the library's default
        self.kept: List[Any] = []  # what kernels still read
        self.nr_tokens_at: Any = None

    def give_back(self) -> None:
        if self.received is not None:
            self.received._end()
        self.received = None


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
        pointer = ctypes.c_void_p()
        with group._busy:
            group._checked(lib.tern_moe_create(group.native, ctypes.byref(struct), ctypes.byref(pointer)))
        self._handle: Optional[Handle] = Handle("tern_moe_destroy", pointer.value or 0, group.handle)
        self.nr_local: int = check(lib.tern_moe_nr_local(pointer))
        """Experts on this rank, L."""
        self.local_experts = tuple(check(lib.tern_moe_local_expert(pointer, i)) for i in range(self.nr_local))
        """The logical id of each local expert."""
        self.max_rows = config.max_rows(self.nr_ranks, self.nr_local)
        """The most row positions that this rank can receive; into_x needs as many."""
        self._slots = [_Slot() for _ in range(config.nr_slots)]

    @property
    def handle(self) -> Handle:
        opened(self._handle, "exchange")
        assert self._handle is not None
        return self._handle

    @property
    def native(self) -> int:
        """The tern_moe's address, for other bindings of the same library."""
        return opened(self._handle, "exchange")

    def _slot(self, slot: int) -> _Slot:
        if not 0 <= slot < len(self._slots):
            raise InvalidError(f"slot is {slot} of {len(self._slots)}")
        return self._slots[slot]

    def _check(self, code: int) -> None:
        if code:
            check(code, self.native)

    def _use(self, state: _Slot, slot: int, stream: Optional[int], views: Dict[str, View]) -> None:
        """Before a half: arrays are where the exchange is, and the half goes to the caller's stream. What kernels read is kept until the
        slot's next dispatch."""
        if not self.on_device:
            for name, view in views.items():
                if view.cuda is not None:
                    raise UnsupportedError(f"{name} is in the memory of CUDA device {view.cuda}; this exchange was made with device CPU")
            if stream is not None:
                raise UnsupportedError("a stream is given; this exchange was made with device CPU")
            return
        assert isinstance(self.kind, memory.TorchCuda)
        wanted = self.kind.stream() if stream is None else stream
        if wanted != state.stream:
            self._check(library().tern_moe_set_stream(self.native, slot, wanted))
            state.stream = wanted
        state.kept.extend(views.values())

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
    ) -> None:
        """Sends each token once to every rank that holds one of its experts.

        x is [n][H] of x_dtype (or its bits), topk_ids [n][K] int32 or int64 with -1 for no expert, topk_weights [n][K] float32, None
        for all 1, scales [n][ceil(H / 128)] if x_dtype is FP8. All may be overwritten when it returns. Waits only in high-throughput mode.
        """
        with self._busy:
            state = self._slot(slot)
            args, views = self._dispatch_args(x, topk_ids, topk_weights, scales, slot)
            self._use(state, slot, stream, views)
            code = library().tern_dispatch_send(self.native, ctypes.byref(args))
            self._begun(state, code, args, views)

    def _begun(self, state: _Slot, code: int, args: Any, views: Dict[str, View]) -> None:
        """After a time-out the tokens may be on their way."""
        if code in (0, WaitTimeoutError.code):
            state.nr_tokens = args.nr_tokens
            state.kept = list(views.values()) if self.on_device else []
        self._check(code)

    def dispatch_recv(
        self, slot: int = 0, *, into_x: Optional[Array] = None, into_scales: Optional[Array] = None, stream: Optional[int] = None
    ) -> Received:
        """Waits for all sources, and shows the rows. In low-latency mode they may go into the caller's into_x [max_rows][H] (and
        into_scales)."""
        with self._busy:
            state = self._slot(slot)
            struct, views = self._received_args(into_x, into_scales)
            self._use(state, slot, stream, views)
            self._check(library().tern_dispatch_recv(self.native, slot, ctypes.byref(struct)))
            return self._received(state, slot, struct, views)

    def _received(self, state: _Slot, slot: int, struct: Any, into: Dict[str, View]) -> Received:
        state.extent = struct.extent
        state.received = Received(self, slot, struct, into)
        return state.received

    def combine_send(self, y: Optional[Array], *, slot: int = 0, stream: Optional[int] = None) -> None:
        """Sends the experts' results home: y [extent or more][H] of combine_dtype, rows at the positions of the received x rows. None is
        possible with no rows. Gives the received rows back."""
        with self._busy:
            state = self._slot(slot)
            args, views = self._combine_args(state, y, slot)
            self._use(state, slot, stream, views)
            self._check(library().tern_combine_send(self.native, ctypes.byref(args)))
            state.give_back()

    def _combine_args(self, state: _Slot, y: Optional[Array], slot: int) -> Tuple[Any, Dict[str, View]]:
        args = _abi.sized(_abi.tern_combine)
        args.slot = slot
        views = {}
        if y is not None:
            rows = memory.rows("y", y, self.config.hidden, Dtype(self.config.combine_dtype))
            views["y"] = rows.view
            if rows.nr < state.extent:
                raise InvalidError(f"y has {rows.nr} rows; the received rows span {state.extent} positions")
            args.y, args.y_stride = rows.address, rows.stride
        elif state.extent:
            raise InvalidError(f"y is None; the received rows span {state.extent} positions")
        return args, views

    def combine_recv(self, slot: int = 0, *, out: Optional[Array] = None, stream: Optional[int] = None) -> Any:
        """Waits for all ranks, and returns the weighted sums [n][H] of combine_dtype: in out, or in a new array."""
        with self._busy:
            state = self._slot(slot)
            out, rows = self._out(state, out)
            self._use(state, slot, stream, {"out": rows.view})
            self._check(library().tern_combine_recv(self.native, slot, rows.address, rows.stride))
            return out

    def _out(self, state: _Slot, out: Optional[Array]) -> Tuple[Any, memory.Rows]:
        if out is None:
            out = self.kind.empty((state.nr_tokens, self.config.hidden), Dtype(self.config.combine_dtype))
        rows = memory.rows("out", out, self.config.hidden, Dtype(self.config.combine_dtype), writable=True)
        if rows.nr != state.nr_tokens:
            raise InvalidError(f"out has {rows.nr} rows; {state.nr_tokens} tokens were dispatched")
        return out, rows

    def release(self, slot: int = 0, *, stream: Optional[int] = None) -> None:
        """Gives the received rows back; takes the place of both combine halves. All ranks do so in the same round."""
        with self._busy:
            state = self._slot(slot)
            self._use(state, slot, stream, {})
            self._check(library().tern_release(self.native, slot))
            state.give_back()

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
    ) -> Received:
        """dispatch_send and dispatch_recv. All arguments are checked before anything is sent. After
        WaitTimeoutError the same call goes on waiting."""
        with self._busy:
            state = self._slot(slot)
            args, views = self._dispatch_args(x, topk_ids, topk_weights, scales, slot)
            struct, into = self._received_args(into_x, into_scales)
            views.update(into)
            self._use(state, slot, stream, views)
            code = library().tern_dispatch(self.native, ctypes.byref(args), ctypes.byref(struct))
            self._begun(state, code, args, views)
            return self._received(state, slot, struct, into)

    def combine(self, y: Optional[Array], *, slot: int = 0, out: Optional[Array] = None, stream: Optional[int] = None) -> Any:
        """combine_send and combine_recv. All arguments are checked before anything is sent. After
        WaitTimeoutError the same call goes on waiting."""
        with self._busy:
            state = self._slot(slot)
            args, views = self._combine_args(state, y, slot)
            out, rows = self._out(state, out)
            views["out"] = rows.view
            self._use(state, slot, stream, views)
            self._check(library().tern_combine(self.native, ctypes.byref(args), rows.address, rows.stride))
            state.give_back()
            return out

    # ---- arguments ----

    def _dispatch_args(
        self, x: Array, topk_ids: Array, topk_weights: Optional[Array], scales: Optional[Array], slot: int
    ) -> Tuple[Any, Dict[str, View]]:
        config = self.config
        self._slot(slot)
        args = _abi.sized(_abi.tern_dispatch)
        rows = memory.rows("x", x, config.x_width, Dtype(config.x_dtype))
        ids = memory.table("topk_ids", topk_ids, rows.nr, config.topk, _IDS)
        keep = {"x": rows.view, "topk_ids": ids}
        args.slot, args.nr_tokens = slot, rows.nr
        args.x, args.x_stride = rows.address, rows.stride
        args.topk_ids, args.topk_ids_bits = ids.address, 8 * ids.item_bytes
        if topk_weights is not None:
            keep["topk_weights"] = memory.table("topk_weights", topk_weights, rows.nr, config.topk, ("float32",))
            args.topk_weights = keep["topk_weights"].address
        if scales is not None:
            if config.x_dtype != Dtype.FP8_E4M3:
                raise InvalidError("scales are given, but x is not FP8")
            keep["scales"] = memory.table("scales", scales, rows.nr, config.nr_blocks, _SCALES[Scale(config.scale)])
            args.scales = keep["scales"].address
        return args, keep

    def _received_args(self, into_x: Optional[Array], into_scales: Optional[Array]) -> Tuple[Any, Dict[str, View]]:
        struct = _abi.sized(_abi.tern_received)
        config = self.config
        if into_x is None and into_scales is None:
            return struct, {}
        if into_x is None or config.mode != Mode.LOW_LATENCY:
            raise InvalidError("into_x is for low-latency mode, and into_scales goes with it")
        rows = memory.rows("into_x", into_x, config.received_width, Dtype(config.dispatch_dtype), writable=True)
        if rows.nr < self.max_rows or rows.stride != config.row_bytes:
            raise InvalidError(f"into_x has {rows.nr} rows, {rows.stride} bytes apart; {self.max_rows} dense ones of {config.row_bytes} bytes are needed")
        struct.into_x = rows.address
        if config.dispatch_dtype != Dtype.FP8_E4M3:
            if into_scales is not None:
                raise InvalidError("into_scales is given, but rows are not FP8")
            return struct, {"into_x": rows.view}
        if into_scales is None:
            raise InvalidError("into_x is given without into_scales, and rows are FP8")
        view = memory.table("into_scales", into_scales, rows.nr, config.nr_blocks, _SCALES[Scale(config.scale)])
        if not view.writable:
            raise InvalidError("into_scales is read-only")
        struct.into_scales = view.address
        return struct, {"into_x": rows.view, "into_scales": view}

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
            if self._handle is not None and self._handle.here:
                self._check(library().tern_moe_leave(self._handle.pointer))
            self._handle = None

    def __enter__(self) -> "Exchange":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
