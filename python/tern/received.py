# SPDX-License-Identifier: Apache-2.0
"""Received rows, as arrays over the library's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

import numpy as np

from .arrays import Dtype, View
from .config import Config, Layout, Scale
from .errors import StateError

if TYPE_CHECKING:
    from .exchange import Exchange

ROW = np.dtype([("rank", np.int32), ("token", np.int32), ("k", np.int32), ("weight", np.float32)])
"""Where a received row came from: struct tern_row."""


class Received:
    """The rows of one dispatch. Everything here shows the library's memory without a copy, or the
    caller's into_x and into_scales, in the same form.

    The rows are there until combine_send, combine or release of this slot; from then on the properties raise StateError, and arrays
    that were taken from them before are still readable memory, but the next round writes there. What has to live longer has to be
    copied.
    """

    def __init__(self, moe: "Exchange", slot: int, struct: Any, into: Dict[str, View]):
        self.slot = slot
        self.nr_rows: int = struct.nr_rows
        """Rows received, without padding. On a device, where the host does not know, the most there can be; so is extent."""
        self.extent: int = struct.extent
        """Row positions spanned, padding included."""
        self._moe: Optional["Exchange"] = moe
        self._struct = struct
        self._into = into
        self._shown: Dict[str, Any] = {}

    def _end(self) -> None:
        self._moe = None
        self._shown.clear()
        self._into = {}

    def _show(self, name: str, shape: Tuple[int, ...], dtype: Any) -> Any:
        if self._moe is None:
            raise StateError(f"received.{name}: these rows were given back by combine or release of slot {self.slot}")
        if name not in self._shown:
            kind = self._moe.kind
            const = kind.const and name not in ("x", "scales")
            typed = kind.dtype(dtype) if isinstance(dtype, Dtype) else dtype
            owner = self._into.get(f"into_{name}", self._moe.handle)
            array = kind.show(getattr(self._struct, name), shape, typed, owner, const)
            self._shown[name] = kind.of(array, dtype) if isinstance(dtype, Dtype) else array if dtype is ROW else kind.plain(array)
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
        """First row position of each local expert; BY_SOURCE: of each source. On a device two more: the number of rows, and extent."""
        more = 2 if self._moe is not None and self._moe.on_device else 0
        return self._show("offsets", (self._nr_lists + more,), self._integers(8))

    @property
    def rows(self) -> Any:
        """Where each row came from, by row position: a numpy array of (rank, token, k, weight). Only those that hold a row are set. On a
        device a tensor of int32, [extent][4], with the weight's bits."""
        if self._moe is not None and self._moe.on_device:
            return self._show("rows", (self.extent, 4), "int32")
        return self._show("rows", (self.extent,), ROW)

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
        """The row positions of a local expert; BY_SOURCE: of a source. On a device this waits for the counts."""
        start = int(self.offsets[local])
        return slice(start, start + int(self.counts[local]))
