# SPDX-License-Identifier: Apache-2.0
"""Slots of an exchange whose received rows callers have without a copy, and which of them are free on all ranks.

Tensors over a slot's memory are handed out, and the slot is not dispatched into before all that see that memory are gone (Lent, of
the compiled part). Which slot a round takes has to be known to all ranks alike. So each tells which of its slots are held wherever
ranks tell each other sizes, and what is held by nobody then is taken in turn, until it is told again. Slot 0 is never handed out:
where no other is free, or a graph is captured, rows are copied out of it.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from .. import _abi
from .._calls import Lent, Slot
from ..arrays import Dtype, Torch
from ..config import Scale
from ..exchange import Exchange
from .exchanges import TENSORS
from .streams import Call

_SHOWN = 5
"""A dispatch and one by its handle, which training has in each layer: rows of both are held, and what was before them is known to be free
only when ranks have told each other, which the second dispatch does not."""
_MOST_BYTES = 1 << 31
"""Of rows, and of results that come home, in the slots that are handed out."""
_HOST, _CUDA = 1, 2
# DLPack's code and bits.
_TYPES = {"bf16": (4, 16), "e4m3": (10, 8), "float": (2, 32), "exponents": (0, 32)}


def nr_slots(row_bytes: int, rows: int) -> int:
    """For rows of that many bytes, their results among them."""
    return 1 + min(_SHOWN, _MOST_BYTES // max(row_bytes * rows, 1)) if TENSORS.direct else 1


class Places:
    def __init__(self, moe: Exchange):
        self._all = range(1, len(moe._slots))
        self._free: List[int] = list(self._all)
        """On all ranks, in the order in which they are taken."""
        self._streams: Dict[int, Any] = {}
        """Of the caller who has been given a slot's rows last."""
        self._lent: Optional[Lent] = None
        if self._free:
            assert isinstance(moe.kind, Torch)
            self._lent = Lent(TENSORS, moe.handle, _CUDA if moe.on_device else _HOST, moe.kind.device.index or 0, self._fields(moe))

    @staticmethod
    def _fields(moe: Exchange) -> Tuple[Tuple[int, int, int, int], ...]:
        """Rows, scales if there are any, and weights. Four exponents are one number."""
        config, at = moe.config, _abi.tern_received
        fp8 = config.dispatch_dtype == Dtype.FP8_E4M3
        fields = [(at.x.offset, config.hidden, *_TYPES["e4m3" if fp8 else "bf16"])]
        if fp8 and config.scale == Scale.UE8M0:
            fields.append((at.scales.offset, config.nr_blocks // 4, *_TYPES["exponents"]))
        elif fp8:
            fields.append((at.scales.offset, config.nr_blocks, *_TYPES["float"]))
        fields.append((at.topk_weights.offset, config.topk, *_TYPES["float"]))
        return tuple(fields)

    def take(self, call: Call) -> int:
        """The slot of the next round. Kernels that may still read what it held were put on streams before this call."""
        if not self._free:
            return 0
        slot = self._free.pop(0)
        if slot in self._streams:
            call.wait_for(self._streams[slot])
        return slot

    def held(self) -> int:
        """A bit for each slot that this rank's callers hold."""
        return self._lent.held() if self._lent is not None else 0

    def agree(self, held: int, under_way: int) -> None:
        """held: by any rank."""
        self._free = [slot for slot in self._all if slot != under_way and not held >> slot & 1]

    def lend(self, slot: Slot, nr_rows: int, call: Call) -> Tuple[Any, ...]:
        """Rows, scales (None: there are none) and weights of a round in that slot."""
        assert self._lent is not None
        if call.current is not None:
            self._streams[slot.number] = call.current
        found = self._lent.lend(slot, nr_rows)
        return found if len(found) == 3 else (found[0], None, found[1])
