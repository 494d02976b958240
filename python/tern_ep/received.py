# SPDX-License-Identifier: Apache-2.0
"""Received rows, as arrays over the library's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple, Optional, Tuple

import numpy as np

from . import _calls
from .arrays import Array, Dtype, Torch, View, dense, look
from .config import Layout, Scale
from .errors import InvalidError, StateError

if TYPE_CHECKING:
    from .exchange import Exchange

ROW = np.dtype([("rank", np.int32), ("token", np.int32), ("k", np.int32), ("weight", np.float32)])
"""Where a received row came from: struct tern_row."""

FIELDS = ("x", "scales", "counts", "offsets", "rows", "topk_ids", "topk_weights", "weight")
"""Of Received, as the compiled part numbers them; into_x and into_scales are the first two."""
_SCALES_AT = 1


class Shape(NamedTuple):
    """Of what is shown, for each row position or, of counts and offsets, for each list."""

    tail: Tuple[int, ...]
    dtype: Any
    const: bool
    finish: Callable[[Any], Any]
    field: str
    """Of struct tern_received."""
    lists: int = -1
    """How many entries; -1: the rows' extent."""


def shapes(moe: "Exchange") -> Dict[str, Shape]:
    config, kind = moe.config, moe.kind
    by_source = config.layout == Layout.BY_SOURCE
    nr_lists = moe.nr_ranks if by_source else moe.nr_local
    dtype = Dtype(config.dispatch_dtype)
    found = {
        "x": Shape((config.received_width,), kind.dtype(dtype), False, lambda array: kind.of(array, dtype), "x"),
        "counts": Shape((), kind.integers(4), kind.const, kind.plain, "counts", nr_lists),
        "offsets": Shape((), kind.integers(8), kind.const, kind.plain, "offsets", nr_lists + (2 if moe.on_device else 0)),
        "rows": Shape((4,), "int32", kind.const, kind.plain, "rows") if moe.on_device else Shape((), ROW, kind.const, lambda array: array, "rows"),
    }
    if dtype == Dtype.FP8_E4M3:
        found["scales"] = Shape((config.nr_blocks,), "float32" if config.scale == Scale.FP32 else "uint8", False, kind.plain, "scales")
    if isinstance(kind, Torch):
        found["weight"] = Shape((4,), "float32", kind.const, lambda array: kind.plain(array)[:, 3], "rows")
    if by_source:
        found["topk_ids"] = Shape((config.topk,), "int32", kind.const, kind.plain, "topk_ids")
        found["topk_weights"] = Shape((config.topk,), "float32", kind.const, kind.plain, "topk_weights")
    return found


class Wanted(NamedTuple):
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


def _dense(name: str, array: Array, shape: Tuple[int, ...], dtypes: Tuple[str, ...]) -> View:
    view = look(array)
    if view.shape == shape and view.dtype in dtypes and view.writable:
        if all(n == 1 or s == d for n, s, d in zip(view.shape, view.strides, dense(view.shape, view.item_bytes))):
            return view
    raise InvalidError(
        f"{name} is {view.dtype}{list(view.shape)} with strides of {list(view.strides)} bytes; it has to be dense, writable {list(shape)} of {' or '.join(dtypes)}"
    )


class Received(_calls.Received):
    """The rows of one dispatch. Everything here shows the library's memory without a copy, or the
    caller's into_x and into_scales, in the same form.

    The rows are there until combine_send, combine or release of this slot; from then on the properties raise StateError, and arrays
    that were taken from them before are still readable memory, but the next round writes there. What has to live longer has to be
    copied.
    """

    def _array(self, field: int, name: str) -> Any:
        """Of the library's memory, which lies where it lay, one array is kept, and parts of it are shown."""
        shape = self._moe._shapes.get(name)
        if shape is None:
            return None
        nr = self.extent if shape.lists < 0 else shape.lists
        into = None if self._into is None or field > _SCALES_AT else self._into[field]
        if into is not None:
            address = getattr(self._state.received, name)
            return shape.finish(self._moe.kind.show(address, (nr, *shape.tail), shape.dtype, into, shape.const))
        whole = self._whole(field, shape, nr)
        return whole[:nr] if shape.dtype is ROW else self._moe.kind.head(whole, nr)

    def _whole(self, field: int, shape: Shape, nr: int) -> Any:
        """An array of at least that many entries."""
        address = getattr(self._state.received, shape.field) or 0
        whole = self._state.shown(field, address, nr)
        if whole is not None:
            return whole
        with self._moe.kind.lasting():
            whole = shape.finish(self._moe.kind.show(address, (nr, *shape.tail), shape.dtype, self._moe.handle, shape.const))
        if nr and address:
            self._state.show(field, address, nr, whole)
        return whole

    def copy(self, name: str, to: Any, nr: int) -> None:
        """torch: the first entries, without a tensor for each step on the way."""
        shape = self._moe._shapes[name]
        source = self._whole(FIELDS.index(name), shape, nr)
        if source.shape[0] != nr:
            source = source.narrow(0, 0, nr)
        (to if to.shape[0] == nr else to.narrow(0, 0, nr)).copy_(source)

    @property
    def x(self) -> Any:
        """The rows: [extent][H] of dispatch_dtype, or [extent][payload_bytes]. Positions between the lists hold nothing of use."""
        return self._show(0, "x")

    @property
    def scales(self) -> Any:
        """[extent][ceil(H / 128)] float32, or uint8 for UE8M0; None unless FP8."""
        return self._show(1, "scales")

    @property
    def counts(self) -> Any:
        """Rows of each local expert; BY_SOURCE: of each source."""
        return self._show(2, "counts")

    @property
    def offsets(self) -> Any:
        """First row position of each local expert; BY_SOURCE: of each source. On a device two more: the number of rows, and extent."""
        return self._show(3, "offsets")

    @property
    def rows(self) -> Any:
        """Where each row came from, by row position: a numpy array of (rank, token, k, weight). Only those that hold a row are set. On a
        device a tensor of int32, [extent][4], with the weight's bits."""
        return self._show(4, "rows")

    @property
    def topk_ids(self) -> Any:
        """BY_SOURCE: [rows][K] local expert ids, -1: not here; else None."""
        return self._show(5, "topk_ids")

    @property
    def topk_weights(self) -> Any:
        """BY_SOURCE: [rows][K], 0 where the id is -1; else None."""
        return self._show(6, "topk_weights")

    def expert(self, local: int) -> slice:
        """The row positions of a local expert; BY_SOURCE: of a source. On a device this waits for the counts."""
        if self._moe.on_device and self._moe.kind.capturing():
            raise StateError("received.expert() waits for counts, and a graph is being captured: use counts and offsets on the device")
        start = int(self.offsets[local])
        return slice(start, start + int(self.counts[local]))
