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
from .arrays import Array, Dtype, Form, View
from .config import Config, Device, Layout, Mode, Scale
from .errors import InvalidError, UnsupportedError, WaitReport, WaitTimeoutError, check, wait_report
from .group import Group, OneAtATime
from .plan import Plan
from .received import NOTHING, Received, Wanted, shapes

_NOTHING: Dict[str, Array] = {}
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


class _Slot:
    """What Python has to remember of a slot, so that no array is too small for what the library does with it; and the arguments of
    its calls. Arrays whose form is that of the last ones are not looked at again: only their addresses are new."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.nr_tokens = 0
        self.extent = 0
        self.turn = 0  # rows of earlier turns were given back
        self.stream = 0  # the library's default
        self.nr_tokens_at: Any = None
        self.dispatch = _abi.sized(_abi.tern_dispatch)
        self.received = _abi.sized(_abi.tern_received)
        self.combine = _abi.sized(_abi.tern_combine)
        self.dispatch.slot = self.combine.slot = number
        self.dispatch_at, self.received_at, self.combine_at = (ctypes.byref(s) for s in (self.dispatch, self.received, self.combine))
        self.dispatch_form: Form = None
        self.y_form: Form = None
        self.out_form: Form = None
        self.into_form: Form = None
        self.y_rows = self.out_rows = self.out_stride = 0
        self.wanted = False  # something, by the last dispatch
        self.wanted_form: Any = None
        self.beside: Any = None  # what the last combine took along, which lives until it has ended
        self.beside_form: Any = None
        self.shown: Dict[str, Tuple[int, int, Any]] = {}  # address, rows, array

    def give_back(self) -> None:
        self.turn += 1


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
        self._slots = [_Slot(number) for number in range(config.nr_slots)]
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

    def _slot(self, slot: int) -> _Slot:
        if not 0 <= slot < len(self._slots):
            raise InvalidError(f"slot is {slot} of {len(self._slots)}")
        return self._slots[slot]

    def _check(self, code: int) -> None:
        if code:
            check(code, self.native)

    def _use(self, state: _Slot, stream: Optional[int]) -> int:
        """Before a half: it goes to the caller's stream. What kernels read is not kept: memory of that stream is not given to others
        before they have run, and of another stream the caller has to take care. Returns the tern_moe's address."""
        native = opened(self._handle, "exchange")
        if not self.on_device:
            if stream is not None:
                raise UnsupportedError("a stream is given; this exchange was made with device CPU")
            return native
        assert isinstance(self.kind, memory.TorchCuda)
        wanted = self.kind.stream() if stream is None else stream
        if wanted != state.stream:
            self._check(self._lib.tern_moe_set_stream(native, state.number, wanted))
            state.stream = wanted
        return native

    def _here(self, views: Dict[str, View]) -> None:
        """Arrays are where the exchange is. On a device the library looks itself for what is on none."""
        kind = self.kind
        for name, view in views.items():
            if view.cuda is not None and not self.on_device:
                raise UnsupportedError(f"{name} is in the memory of CUDA device {view.cuda}; this exchange was made with device CPU")
            if isinstance(kind, memory.TorchCuda) and isinstance(view.owner, kind.fast) and view.cuda not in (None, kind.device.index):
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
        with self._busy:
            state = self._slot(slot)
            self._set_dispatch(state, x, topk_ids, topk_weights, scales)
            state.dispatch.tag = tag
            native = self._use(state, stream)
            self._begun(state, self._lib.tern_dispatch_send(native, state.dispatch_at))

    def _begun(self, state: _Slot, code: int) -> None:
        """After a time-out the tokens may be on their way."""
        if code == 0 or code == WaitTimeoutError.code:
            state.nr_tokens = state.dispatch.nr_tokens
        if code:
            self._check(code)

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
        with self._busy:
            state = self._slot(slot)
            into = self._set_received(state, into_x, into_scales)
            if want is not None or state.wanted:
                self._set_wanted(state, want)
            native = self._use(state, stream)
            self._check(self._lib.tern_dispatch_recv(native, slot, state.received_at))
            return self._received(state, into)

    def _received(self, state: _Slot, into: Dict[str, Array]) -> Received:
        received = Received(self, state, into)
        state.extent = received.extent
        return received

    def received_sizes(self, slot: int = 0) -> Tuple[int, int]:
        """How many rows the slot's last dispatch brought, and the positions that they span. On a device it waits for the stream."""
        nr_rows, extent = ctypes.c_uint64(), ctypes.c_uint64()
        with self._busy:
            state = self._slot(slot)
            self._check(self._lib.tern_received_sizes(self._use(state, None), slot, ctypes.byref(nr_rows), ctypes.byref(extent)))
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
        with self._busy:
            state = self._slot(slot)
            self._set_combine(state, y)
            if unweighted or topk_weights is not None or floats is not None or out_floats is not None or state.beside is not None:
                self._set_beside(state, unweighted, topk_weights, floats, out_floats)
            native = self._use(state, stream)
            self._check(self._lib.tern_combine_send(native, state.combine_at))
            state.give_back()

    def combine_recv(self, slot: int = 0, *, out: Optional[Array] = None, stream: Optional[int] = None) -> Any:
        """Waits for all ranks, and returns the weighted sums [n][H] of combine_dtype: in out, or in a new array."""
        with self._busy:
            state = self._slot(slot)
            out, address = self._out(state, out)
            native = self._use(state, stream)
            self._check(self._lib.tern_combine_recv(native, slot, address, state.out_stride))
            return out

    def release(self, slot: int = 0, *, stream: Optional[int] = None) -> None:
        """Gives the received rows back; takes the place of both combine halves. All ranks do so in the same round."""
        with self._busy:
            state = self._slot(slot)
            native = self._use(state, stream)
            self._check(self._lib.tern_release(native, slot))
            state.give_back()

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
        self._busy.enter()
        try:
            state = self._slot(slot)
            self._set_dispatch(state, x, topk_ids, topk_weights, scales)
            state.dispatch.tag = tag
            into = self._set_received(state, into_x, into_scales)
            if want is not None or state.wanted:
                self._set_wanted(state, want)
            native = self._use(state, stream)
            self._begun(state, self._lib.tern_dispatch(native, state.dispatch_at, state.received_at))
            return self._received(state, into)
        finally:
            self._busy.leave()

    def _dispatch_for_good(
        self,
        x: Array,
        topk_ids: Array,
        topk_weights: Optional[Array],
        scales: Optional[Array],
        slot: int,
        into_x: Optional[Array],
        into_scales: Optional[Array],
        counts: Array,
        offsets: Array,
    ) -> Received:
        """dispatch for the torch operators, whose results last: they have made the last four as they have to be."""
        self._busy.enter()
        try:
            state = self._slot(slot)
            self._set_dispatch(state, x, topk_ids, topk_weights, scales)
            state.dispatch.tag = 0
            if state.wanted:
                self._set_wanted(state, None)
            args, address = state.received, self.kind.address
            args.into_x = None if into_x is None else address(into_x)
            args.into_scales = None if into_scales is None else address(into_scales)
            args.into_counts, args.into_offsets = address(counts), address(offsets)
            try:
                native = self._use(state, None)
                self._begun(state, self._lib.tern_dispatch(native, state.dispatch_at, state.received_at))
            finally:
                args.into_counts = args.into_offsets = None
            return self._received(state, _NOTHING if into_x is None else {"into_x": into_x, "into_scales": into_scales})
        finally:
            self._busy.leave()

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
        self._busy.enter()
        try:
            state = self._slot(slot)
            self._set_combine(state, y)
            if unweighted or topk_weights is not None or floats is not None or out_floats is not None or state.beside is not None:
                self._set_beside(state, unweighted, topk_weights, floats, out_floats)
            out, address = self._out(state, out)
            native = self._use(state, stream)
            code = self._lib.tern_combine(native, state.combine_at, address, state.out_stride)
            if code:
                self._check(code)
            state.turn += 1
            return out
        finally:
            self._busy.leave()

    # ---- arguments ----

    def _form(self, one: Optional[Array], two: Optional[Array], three: Optional[Array] = None, four: Optional[Array] = None) -> Form:
        """None: not all of them have one."""
        kind = self.kind
        fast, form = kind.fast, kind.form
        if (one is not None and type(one) is not fast) or (two is not None and type(two) is not fast):
            return None
        if (three is not None and type(three) is not fast) or (four is not None and type(four) is not fast):
            return None
        return (
            None if one is None else form(one),
            None if two is None else form(two),
            None if three is None else form(three),
            None if four is None else form(four),
        )

    def _set_dispatch(self, state: _Slot, x: Array, topk_ids: Array, topk_weights: Optional[Array], scales: Optional[Array]) -> None:
        form = self._form(x, topk_ids, topk_weights, scales)
        if form is None or form != state.dispatch_form:
            state.dispatch_form = None
            self._look_at_dispatch(state.dispatch, x, topk_ids, topk_weights, scales)
            state.dispatch_form = form
            return
        args, address = state.dispatch, self.kind.address
        args.x, args.topk_ids = address(x), address(topk_ids)
        args.topk_weights = None if topk_weights is None else address(topk_weights)
        args.scales = None if scales is None else address(scales)

    def _look_at_dispatch(self, args: Any, x: Array, topk_ids: Array, topk_weights: Optional[Array], scales: Optional[Array]) -> None:
        config = self.config
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

    def _set_combine(self, state: _Slot, y: Optional[Array]) -> None:
        args = state.combine
        if y is None:
            if state.extent:
                raise InvalidError(f"y is None; the received rows span {state.extent} positions")
            state.y_form, args.y, args.y_stride = None, None, 0
            return
        form = self.kind.form(y) if type(y) is self.kind.fast else None
        if form is None or form != state.y_form:
            state.y_form = None
            rows = memory.rows("y", y, self.config.hidden, self._combine_dtype)
            self._here({"y": rows.view})
            args.y, args.y_stride, state.y_rows = rows.address, rows.stride, rows.nr
            state.y_form = form
        else:
            args.y = self.kind.address(y)
        if state.y_rows < state.extent:
            raise InvalidError(f"y has {state.y_rows} rows; the received rows span {state.extent} positions")

    def _set_beside(
        self,
        state: _Slot,
        unweighted: bool = False,
        topk_weights: Optional[Array] = None,
        floats: Optional[Array] = None,
        out_floats: Optional[Array] = None,
    ) -> None:
        """Nothing: as the next combine has it that says nothing."""
        args, topk = state.combine, self.config.topk
        given = (topk_weights, floats, out_floats)
        form = self._form(*given)
        if form is not None and (form, unweighted, state.nr_tokens, state.extent) == state.beside_form:
            address = self.kind.address
            args.topk_weights = None if topk_weights is None else address(topk_weights)
            args.floats = None if floats is None else address(floats)
            args.out_floats = None if out_floats is None else address(out_floats)
            state.beside = given
            return
        state.beside_form = None
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
        state.beside = given if unweighted or views else None
        if form is not None and state.beside is not None:
            state.beside_form = (form, unweighted, state.nr_tokens, state.extent)

    def _out(self, state: _Slot, out: Optional[Array]) -> Tuple[Any, int]:
        """The array, and its address; its stride is the slot's."""
        if out is None:
            out = self.kind.empty((state.nr_tokens, self.config.hidden), self._combine_dtype)
        form = self.kind.form(out) if type(out) is self.kind.fast else None
        if form is None or form != state.out_form:
            state.out_form = None
            rows = memory.rows("out", out, self.config.hidden, self._combine_dtype, writable=True)
            self._here({"out": rows.view})
            state.out_rows, state.out_stride, address = rows.nr, rows.stride, rows.address
            state.out_form = form
        else:
            address = self.kind.address(out)
        if state.out_rows != state.nr_tokens:
            raise InvalidError(f"out has {state.out_rows} rows; {state.nr_tokens} tokens were dispatched")
        return out, address

    def _set_received(self, state: _Slot, into_x: Optional[Array], into_scales: Optional[Array]) -> Dict[str, Array]:
        """What was given, which the rows' arrays have to keep."""
        if into_x is None and into_scales is None:
            state.received.into_x = state.received.into_scales = None
            return _NOTHING
        form = self._form(into_x, into_scales)
        if form is not None and form == state.into_form:
            state.received.into_x = self.kind.address(into_x)
            state.received.into_scales = None if into_scales is None else self.kind.address(into_scales)
            return {"into_x": into_x, "into_scales": into_scales}
        state.into_form = None
        views = self._look_at_into(into_x, into_scales)
        self._here(views)
        state.received.into_x = views["into_x"].address
        state.received.into_scales = views["into_scales"].address if "into_scales" in views else None
        state.into_form = form
        return {"into_x": into_x, "into_scales": into_scales}

    def _set_wanted(self, state: _Slot, want: Optional[Wanted]) -> None:
        state.wanted = want is not None
        want = want or NOTHING
        form = self._form(want.wide_ids, want.expert_counts, want.expert_totals, want.waited_ns)
        more = None if form is None else self._form(want.gemm_scales, want.into_counts)
        form = None if more is None else (form, more)
        if form is not None and (form, want.counts_alignment) == state.wanted_form:
            want.set_addresses(state.received, self.kind.address)
            return
        state.wanted_form = None
        self._here(want.fill(self, state.received))
        if form is not None:
            state.wanted_form = (form, want.counts_alignment)

    def _look_at_into(self, into_x: Optional[Array], into_scales: Optional[Array]) -> Dict[str, View]:
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
                state.shown.clear()
            if self._handle is not None and self._handle.here:
                self._check(library().tern_moe_leave(self._handle.pointer))
            self._handle = None

    def __enter__(self) -> "Exchange":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
