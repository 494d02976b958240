# SPDX-License-Identifier: Apache-2.0
"""Received rows, as arrays over the library's memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple, Optional, Tuple

import numpy as np

from .arrays import Array, Dtype, Torch, View, dense, look
from .config import Layout, Scale
from .errors import InvalidError, StateError

if TYPE_CHECKING:
    from .exchange import Exchange, _Slot

ROW = np.dtype([("rank", np.int32), ("token", np.int32), ("k", np.int32), ("weight", np.float32)])
"""Where a received row came from: struct tern_row."""


class Shape(NamedTuple):
    """Of what is shown, for each row position or, of counts and offsets, for each list."""

    tail: Tuple[int, ...]
    dtype: Any
    const: bool
    finish: Callable[[Any], Any]
    lists: int = -1
    """How many entries; -1: the rows' extent."""
    field: str = ""
    """Of struct tern_received, where it is not called so."""


def shapes(moe: "Exchange") -> Dict[str, Shape]:
    config, kind = moe.config, moe.kind
    by_source = config.layout == Layout.BY_SOURCE
    nr_lists = moe.nr_ranks if by_source else moe.nr_local
    dtype = Dtype(config.dispatch_dtype)
    found = {
        "x": Shape((config.received_width,), kind.dtype(dtype), False, lambda array: kind.of(array, dtype)),
        "counts": Shape((), kind.integers(4), kind.const, kind.plain, nr_lists),
        "offsets": Shape((), kind.integers(8), kind.const, kind.plain, nr_lists + (2 if moe.on_device else 0)),
        "rows": Shape((4,), "int32", kind.const, kind.plain) if moe.on_device else Shape((), ROW, kind.const, lambda array: array),
    }
    if dtype == Dtype.FP8_E4M3:
        found["scales"] = Shape((config.nr_blocks,), "float32" if config.scale == Scale.FP32 else "uint8", False, kind.plain)
    if isinstance(kind, Torch):
        found["weight"] = Shape((4,), "float32", kind.const, lambda array: kind.plain(array)[:, 3], field="rows")
    if by_source:
        found["topk_ids"] = Shape((config.topk,), "int32", kind.const, kind.plain)
        found["topk_weights"] = Shape((config.topk,), "float32", kind.const, kind.plain)
    return found


@dataclass(frozen=True)
class Wanted:
    """Arrays that a dispatch fills beside the rows, in the exchange's kind of memory, each dense; they have to live until it is done."""

    wide_ids: Optional[Array] = None
    """BY_SOURCE: [max_rows][K] int64: topk_ids, and -1 in all rows behind the last."""
    expert_counts: Optional[Array] = None
    """[L] 32 bits: rows for each local expert, BY_SOURCE routes to it; rounded up to a multiple of counts_alignment."""
    expert_totals: Optional[Array] = None
    """[L] 64 bits: the same, not rounded, is added."""
    waited_ns: Optional[Array] = None
    """[R] 64 bits: the time for which each source was waited for is added. On GPUs in low-latency mode."""
    gemm_scales: Optional[Array] = None
    """FP8: scales column by column, [columns][stride], PADDED [L][columns][stride]: float32, a column a block; UE8M0 32-bit integers,
    of four blocks each. The stride is a multiple of 4, and no less than max_rows (PADDED: than an expert's part of them)."""
    counts_alignment: int = 1
    into_counts: Optional[Array] = None
    """[L], or [R] BY_SOURCE, 32 bits: where Received.counts lie, in place of the library's memory. On GPUs not of dispatch_recv in
    high-throughput mode."""

    def fill(self, moe: "Exchange", args: Any) -> Dict[str, View]:
        """Sets the fields of struct tern_received. Returns what it looked at."""
        config, nr_local = moe.config, moe.nr_local
        views: Dict[str, View] = {}
        if self.wide_ids is not None:
            views["wide_ids"] = _dense("wide_ids", self.wide_ids, (moe.max_rows, config.topk), ("int64",))
        if self.expert_counts is not None:
            views["expert_counts"] = _dense("expert_counts", self.expert_counts, (nr_local,), ("int32", "uint32"))
        if self.expert_totals is not None:
            views["expert_totals"] = _dense("expert_totals", self.expert_totals, (nr_local,), ("int64", "uint64"))
        if self.waited_ns is not None:
            views["waited_ns"] = _dense("waited_ns", self.waited_ns, (moe.nr_ranks,), ("int64", "uint64"))
        if self.gemm_scales is not None:
            packed = config.scale == Scale.UE8M0
            columns = -(-config.nr_blocks // 4) if packed else config.nr_blocks
            view = look(self.gemm_scales)
            stride = view.shape[-1] if view.shape else 0
            shape = (nr_local, columns, stride) if config.layout == Layout.PADDED else (columns, stride)
            views["gemm_scales"] = _dense("gemm_scales", self.gemm_scales, shape, ("int32", "uint32") if packed else ("float32",))
            args.gemm_scales_stride = stride
        if self.into_counts is not None:
            lists = moe.nr_ranks if config.layout == Layout.BY_SOURCE else nr_local
            views["into_counts"] = _dense("into_counts", self.into_counts, (lists,), ("int32", "uint32"))
        for name in ("wide_ids", "expert_counts", "expert_totals", "waited_ns", "gemm_scales", "into_counts"):
            setattr(args, name, views[name].address if name in views else None)
        args.counts_alignment = self.counts_alignment
        return views

    def set_addresses(self, args: Any, address: Callable[[Any], int]) -> None:
        """Of arrays in the form that `fill` has looked at: only they lie elsewhere."""
        args.wide_ids = None if self.wide_ids is None else address(self.wide_ids)
        args.expert_counts = None if self.expert_counts is None else address(self.expert_counts)
        args.expert_totals = None if self.expert_totals is None else address(self.expert_totals)
        args.waited_ns = None if self.waited_ns is None else address(self.waited_ns)
        args.gemm_scales = None if self.gemm_scales is None else address(self.gemm_scales)
        args.into_counts = None if self.into_counts is None else address(self.into_counts)


NOTHING = Wanted()


def _dense(name: str, array: Array, shape: Tuple[int, ...], dtypes: Tuple[str, ...]) -> View:
    view = look(array)
    if view.shape == shape and view.dtype in dtypes and view.writable:
        if all(n == 1 or s == d for n, s, d in zip(view.shape, view.strides, dense(view.shape, view.item_bytes))):
            return view
    raise InvalidError(
        f"{name} is {view.dtype}{list(view.shape)} with strides of {list(view.strides)} bytes; it has to be dense, writable {list(shape)} of {' or '.join(dtypes)}"
    )


class Received:
    """The rows of one dispatch. Everything here shows the library's memory without a copy, or the
    caller's into_x and into_scales, in the same form.

    The rows are there until combine_send, combine or release of this slot; from then on the properties raise StateError, and arrays
    that were taken from them before are still readable memory, but the next round writes there. What has to live longer has to be
    copied.
    """

    def __init__(self, moe: "Exchange", state: "_Slot", into: Dict[str, Any]):
        struct = state.received
        self.slot = state.number
        self.nr_rows: int = struct.nr_rows
        """Rows received, without padding. On a device, where the host does not know, the most there can be; so is extent."""
        self.extent: int = struct.extent
        """Row positions spanned, padding included."""
        self.version: int = struct.version
        """Of the placement by which rows were routed: Exchange.place."""
        self._moe = moe
        self._state = state
        self._turn = state.turn
        self._into = into
        self._shown: Dict[str, Any] = {}

    def _show(self, name: str) -> Any:
        state = self._state
        if self._turn != state.turn:
            self._shown.clear()
            self._into = {}
            raise StateError(f"received.{name}: these rows were given back by combine or release of slot {self.slot}")
        shown = self._shown.get(name)
        if shown is None:
            shape = self._moe._shapes.get(name)
            if shape is None:
                return None
            nr = self.extent if shape.lists < 0 else shape.lists
            shown = self._shown[name] = self._array(state, name, shape, nr)
        return shown

    def _array(self, state: "_Slot", name: str, shape: Shape, nr: int) -> Any:
        """Of the library's memory, which lies where it lay, one array is kept, and parts of it are shown."""
        kind, address = self._moe.kind, getattr(state.received, shape.field or name)
        into = self._into.get("into_" + name)
        if into is not None:
            return shape.finish(kind.show(address, (nr, *shape.tail), shape.dtype, into, shape.const))
        whole = self._whole(state, name, shape, address, nr)
        return whole[:nr] if shape.dtype is ROW else kind.head(whole, nr)

    def _whole(self, state: "_Slot", name: str, shape: Shape, address: Optional[int], nr: int) -> Any:
        """An array of at least that many entries."""
        known = state.shown.get(name)
        if known is not None and known[0] == address and known[1] >= nr:
            return known[2]
        with self._moe.kind.lasting():
            whole = shape.finish(self._moe.kind.show(address, (nr, *shape.tail), shape.dtype, self._moe.handle, shape.const))
        if nr and address:
            state.shown[name] = (address, nr, whole)
        return whole

    def copy(self, name: str, to: Any, nr: int) -> None:
        """torch: the first entries, without a tensor for each step on the way."""
        shape = self._moe._shapes[name]
        source = self._whole(self._state, name, shape, getattr(self._state.received, shape.field or name), nr)
        if source.shape[0] != nr:
            source = source.narrow(0, 0, nr)
        (to if to.shape[0] == nr else to.narrow(0, 0, nr)).copy_(source)

    @property
    def x(self) -> Any:
        """The rows: [extent][H] of dispatch_dtype, or [extent][payload_bytes]. Positions between the lists hold nothing of use."""
        return self._show("x")

    @property
    def scales(self) -> Any:
        """[extent][ceil(H / 128)] float32, or uint8 for UE8M0; None unless FP8."""
        return self._show("scales")

    @property
    def counts(self) -> Any:
        """Rows of each local expert; BY_SOURCE: of each source."""
        return self._show("counts")

    @property
    def offsets(self) -> Any:
        """First row position of each local expert; BY_SOURCE: of each source. On a device two more: the number of rows, and extent."""
        return self._show("offsets")

    @property
    def rows(self) -> Any:
        """Where each row came from, by row position: a numpy array of (rank, token, k, weight). Only those that hold a row are set. On a
        device a tensor of int32, [extent][4], with the weight's bits."""
        return self._show("rows")

    @property
    def topk_ids(self) -> Any:
        """BY_SOURCE: [rows][K] local expert ids, -1: not here; else None."""
        return self._show("topk_ids")

    @property
    def topk_weights(self) -> Any:
        """BY_SOURCE: [rows][K], 0 where the id is -1; else None."""
        return self._show("topk_weights")

    def expert(self, local: int) -> slice:
        """The row positions of a local expert; BY_SOURCE: of a source. On a device this waits for the counts."""
        if self._moe.on_device and self._moe.kind.capturing():
            raise StateError("received.expert() waits for counts, and a graph is being captured: use counts and offsets on the device")
        start = int(self.offsets[local])
        return slice(start, start + int(self.counts[local]))
