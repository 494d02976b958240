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
from .config import Config, Layout, Mode, Scale
from .errors import InvalidError, StateError, UnsupportedError, WaitReport, check, wait_report
from .group import Group, OneAtATime

ROW = np.dtype([("rank", np.int32), ("token", np.int32), ("k", np.int32), ("weight", np.float32)])
"""Where a received row came from: struct tern_row."""

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


class Received:
    """The rows of one dispatch. Everything here shows the library's memory (or the caller's into_x) without a copy.

    The rows are there until combine_send, combine or release of this slot; from then on the properties raise StateError, and arrays
    that were taken from them before are still readable memory, but the next round writes there. What has to live longer has to be
    copied.
    """

    def __init__(self, moe: "Exchange", slot: int, struct: Any, x: Any, scales: Any):
        self.slot = slot
        self.nr_rows: int = struct.nr_rows
        """Rows received, without padding."""
        self.extent: int = struct.extent
        """Row positions spanned, padding included."""
        self._moe: Optional["Exchange"] = moe
        self._struct = struct
        self._given = {"x": x, "scales": scales}
        self._shown: Dict[str, Any] = {}

    def _end(self) -> None:
        self._moe = None
        self._shown.clear()
        self._given.clear()

    def _show(self, name: str, shape: Tuple[int, ...], dtype: Any) -> Any:
        if self._moe is None:
            raise StateError(f"received.{name}: these rows were given back by combine or release of slot {self.slot}")
        if self._given.get(name) is not None:
            return self._given[name]
        if name not in self._shown:
            kind = self._moe.kind
            const = kind.const and name not in ("x", "scales")
            typed = kind.dtype(dtype) if isinstance(dtype, Dtype) else dtype
            array = memory.show(getattr(self._struct, name), shape, typed, self._moe.handle, const)
            self._shown[name] = kind.of(array, dtype) if isinstance(dtype, Dtype) else array if name == "rows" else kind.plain(array)
        return self._shown[name]

    @property
    def _config(self) -> Config:
        if self._moe is None:
            raise StateError(f"these rows were given back by combine or release of slot {self.slot}")
        return self._moe.config

    @property
    def _nr_lists(self) -> int:
        moe = self._moe
        return 0 if moe is None else moe.nr_ranks if moe.config.layout == Layout.BY_SOURCE else moe.nr_local

    @property
    def x(self) -> Any:
        """The rows: [extent][H] of dispatch_dtype, or [extent][payload_bytes]. Positions between the lists hold nothing of use."""
        config = self._config
        return self._show("x", (self.extent, config.received_width), Dtype(config.dispatch_dtype))

    @property
    def scales(self) -> Any:
        """[extent][ceil(H / 128)] float32, or uint8 for UE8M0; None unless FP8."""
        config = self._config
        if config.dispatch_dtype != Dtype.FP8_E4M3:
            return None
        return self._show("scales", (self.extent, config.nr_blocks), "float32" if config.scale == Scale.FP32 else "uint8")

    @property
    def counts(self) -> Any:
        """Rows of each local expert; BY_SOURCE: of each source."""
        return self._show("counts", (self._nr_lists,), self._integers(4))

    @property
    def offsets(self) -> Any:
        """First row position of each local expert; BY_SOURCE: of each source."""
        return self._show("offsets", (self._nr_lists,), self._integers(8))

    @property
    def rows(self) -> npt.NDArray[Any]:
        """Where each row came from, by row position, as a numpy array of (rank, token, k, weight). Only those that hold a row are set."""
        rows: npt.NDArray[Any] = self._show("rows", (self.extent,), ROW)
        return rows

    @property
    def topk_ids(self) -> Any:
        """BY_SOURCE: [rows][K] local expert ids, -1: not here; else None."""
        config = self._config
        return self._show("topk_ids", (self.extent, config.topk), "int32") if config.layout == Layout.BY_SOURCE else None

    @property
    def topk_weights(self) -> Any:
        """BY_SOURCE: [rows][K], 0 where the id is -1; else None."""
        config = self._config
        return self._show("topk_weights", (self.extent, config.topk), "float32") if config.layout == Layout.BY_SOURCE else None

    def _integers(self, item_bytes: int) -> str:
        if self._moe is None:
            raise StateError(f"these rows were given back by combine or release of slot {self.slot}")
        return self._moe.kind.integers(item_bytes)

    def expert(self, local: int) -> slice:
        """The row positions of a local expert; BY_SOURCE: of a source."""
        start = int(self.offsets[local])
        return slice(start, start + int(self.counts[local]))


class _Slot:
    """What Python has to remember of a slot, so that no array is too small for what the library does with it."""

    def __init__(self) -> None:
        self.dispatching = False  # dispatch_send is done, dispatch_recv is not
        self.combining = False
        self.nr_tokens = 0
        self.extent = 0
        self.received: Optional[Received] = None

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
        self.kind = memory.kind(arrays)
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
            args, nr_tokens, _keep = self._dispatch_args(x, topk_ids, topk_weights, scales, slot, stream)
            self._send(args, nr_tokens, slot)

    def _send(self, args: Any, nr_tokens: int, slot: int) -> None:
        state = self._slot(slot)
        self._check(library().tern_dispatch_send(self.native, ctypes.byref(args)))
        state.nr_tokens = nr_tokens
        state.dispatching = True

    def dispatch_recv(self, slot: int = 0, *, into_x: Optional[Array] = None, into_scales: Optional[Array] = None) -> Received:
        """Waits for all sources, and shows the rows. In low-latency mode they may go into the caller's into_x [max_rows][H] (and
        into_scales)."""
        with self._busy:
            return self._recv(slot, into_x, into_scales)

    def _recv(self, slot: int, into_x: Optional[Array], into_scales: Optional[Array]) -> Received:
        state = self._slot(slot)
        struct = _abi.sized(_abi.tern_received)
        if into_x is not None or into_scales is not None:
            self._into(struct, into_x, into_scales)
        self._check(library().tern_dispatch_recv(self.native, slot, ctypes.byref(struct)))
        state.dispatching = False
        state.extent = struct.extent
        x = None if into_x is None else into_x[: struct.extent]
        scales = None if into_scales is None else into_scales[: struct.extent]
        state.received = Received(self, slot, struct, x, scales)
        return state.received

    def combine_send(self, y: Optional[Array], *, slot: int = 0, stream: Optional[int] = None) -> None:
        """Sends the experts' results home: y [extent or more][H] of combine_dtype, rows at the positions of the received x rows. None is
        possible with no rows. Gives the received rows back."""
        with self._busy:
            self._send_home(y, slot, stream)

    def _send_home(self, y: Optional[Array], slot: int, stream: Optional[int]) -> None:
        state = self._slot(slot)
        args = _abi.sized(_abi.tern_combine)
        args.slot = slot
        if y is not None:
            rows = memory.rows("y", y, self.config.hidden, Dtype(self.config.combine_dtype))
            _check_device("y", rows.view, stream)
            if rows.nr < state.extent:
                raise InvalidError(f"y has {rows.nr} rows; the received rows span {state.extent} positions")
            args.y, args.y_stride = rows.address, rows.stride
        elif state.extent:
            raise InvalidError(f"y is None; the received rows span {state.extent} positions")
        self._check(library().tern_combine_send(self.native, ctypes.byref(args)))
        state.combining = True
        state.give_back()

    def combine_recv(self, slot: int = 0, *, out: Optional[Array] = None) -> Any:
        """Waits for all ranks, and returns the weighted sums [n][H] of combine_dtype: in out, or in a new array."""
        with self._busy:
            return self._recv_home(slot, out)

    def _recv_home(self, slot: int, out: Optional[Array]) -> Any:
        state = self._slot(slot)
        if out is None:
            out = self.kind.empty((state.nr_tokens, self.config.hidden), Dtype(self.config.combine_dtype))
        rows = memory.rows("out", out, self.config.hidden, Dtype(self.config.combine_dtype), writable=True)
        _check_device("out", rows.view, None)
        if rows.nr != state.nr_tokens:
            raise InvalidError(f"out has {rows.nr} rows; {state.nr_tokens} tokens were dispatched")
        self._check(library().tern_combine_recv(self.native, slot, rows.address, rows.stride))
        state.combining = False
        return out

    def release(self, slot: int = 0) -> None:
        """Gives the received rows back; takes the place of both combine halves. All ranks do so in the same round."""
        with self._busy:
            state = self._slot(slot)
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
        """dispatch_send and dispatch_recv. After WaitTimeoutError the same call goes on waiting."""
        with self._busy:
            if not self._slot(slot).dispatching:
                args, nr_tokens, _keep = self._dispatch_args(x, topk_ids, topk_weights, scales, slot, stream)
                self._send(args, nr_tokens, slot)
            return self._recv(slot, into_x, into_scales)

    def combine(self, y: Optional[Array], *, slot: int = 0, out: Optional[Array] = None, stream: Optional[int] = None) -> Any:
        """combine_send and combine_recv. After WaitTimeoutError the same call goes on waiting."""
        with self._busy:
            if not self._slot(slot).combining:
                self._send_home(y, slot, stream)
            return self._recv_home(slot, out)

    # ---- arguments ----

    def _dispatch_args(
        self, x: Array, topk_ids: Array, topk_weights: Optional[Array], scales: Optional[Array], slot: int, stream: Optional[int]
    ) -> Tuple[Any, int, Dict[str, View]]:
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
        for name, view in keep.items():
            _check_device(name, view, stream)
        return args, rows.nr, keep

    def _into(self, struct: Any, into_x: Optional[Array], into_scales: Optional[Array]) -> None:
        config = self.config
        if into_x is None or config.mode != Mode.LOW_LATENCY:
            raise InvalidError("into_x is for low-latency mode, and into_scales goes with it")
        rows = memory.rows("into_x", into_x, config.received_width, Dtype(config.dispatch_dtype), writable=True)
        _check_device("into_x", rows.view, None)
        if rows.nr < self.max_rows or rows.stride != config.row_bytes:
            raise InvalidError(f"into_x has {rows.nr} rows, {rows.stride} bytes apart; {self.max_rows} dense ones of {config.row_bytes} bytes are needed")
        struct.into_x = rows.address
        if config.dispatch_dtype != Dtype.FP8_E4M3:
            if into_scales is not None:
                raise InvalidError("into_scales is given, but rows are not FP8")
            return
        if into_scales is None:
            raise InvalidError("into_x is given without into_scales, and rows are FP8")
        view = memory.table("into_scales", into_scales, rows.nr, config.nr_blocks, _SCALES[Scale(config.scale)])
        if not view.writable:
            raise InvalidError("into_scales is read-only")
        struct.into_scales = view.address

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


def _check_device(name: str, view: View, stream: Optional[int]) -> None:
    """The one place that knows that this ABI has neither devices nor streams yet."""
    if view.cuda is not None or stream is not None:
        what = f"a stream for {name}" if view.cuda is None else f"{name} in the memory of CUDA device {view.cuda}"
        raise UnsupportedError(f"{what}: this version of libtern exchanges host memory alone")
