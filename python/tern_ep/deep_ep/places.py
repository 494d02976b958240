# SPDX-License-Identifier: Apache-2.0
"""Slots of an exchange whose received rows callers have without a copy, and which of them are free on all ranks.

Tensors over a slot's memory are handed out, and the slot is not dispatched into before all that hold that memory are gone: torch
counts them. Which slot a round takes has to be known to all ranks alike. So each tells which of its slots are held wherever ranks
tell each other sizes, and what is held by nobody then is taken in turn, until it is told again. Slot 0 is never handed out: where no
other is free, or a graph is captured, rows are copied out of it.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from ..exchange import Exchange
from ..received import FIELDS
from .streams import Call, capturing

_SHOWN = 3
_MOST_BYTES = 1 << 30
"""Of rows, and of results that come home, in the slots that are handed out."""
_holders: Optional[Callable[[int], int]] = getattr(torch._C, "_storage_Use_Count", None)


def nr_slots(row_bytes: int, rows: int) -> int:
    """For rows of that many bytes, their results among them."""
    return 1 if _holders is None else 1 + min(_SHOWN, _MOST_BYTES // max(row_bytes * rows, 1))


class Place:
    """Tensors over all that a slot can receive, and how many hold their memory when nobody else does."""

    def __init__(self, moe: Exchange, slot: int, received: Any):
        self.address = moe._slots[slot].received.x
        self.tensors = [self._whole(moe, received, name) for name in ("x", "scales", "topk_weights")]
        self.topk_ids = self._whole(moe, received, "topk_ids")
        self.sources: Any = None
        """On a device: the number of each row's token on its rank."""
        if moe.on_device:
            self.sources = self._whole(moe, received, "rows")[:, 1]
        self.stream: Any = None
        """That of the caller who has been given them last."""
        self._stores = [tensor.untyped_storage() for tensor in self.tensors if tensor is not None]
        self._idle = self._count()

    @staticmethod
    def _whole(moe: Exchange, received: Any, name: str) -> Any:
        shape = moe._shapes.get(name)
        return None if shape is None else received._whole(FIELDS.index(name), shape, moe.max_rows)

    def _count(self) -> List[int]:
        assert _holders is not None
        return [_holders(store._cdata) for store in self._stores]

    def is_held(self) -> bool:
        return self._count() != self._idle


class Places:
    def __init__(self, moe: Exchange):
        self._moe = moe
        self._all = range(1, len(moe._slots))
        self._free = list(self._all)
        """On all ranks, in the order in which they are taken."""
        self._places: Dict[int, Place] = {}

    def take(self, call: Call) -> int:
        """The slot of the next round. Kernels that may still read what it held were put on streams before this call."""
        if not self._free or capturing(self._moe.on_device):
            return 0
        slot = self._free.pop(0)
        place = self._places.get(slot)
        if place is not None:
            call.wait_for(place.stream)
        return slot

    def held(self) -> int:
        """A bit for each slot that this rank's callers hold."""
        return sum(1 << slot for slot, place in self._places.items() if slot and place.is_held())

    def agree(self, held: int, under_way: int) -> None:
        """held: by any rank."""
        self._free = [slot for slot in self._all if slot != under_way and not held >> slot & 1]

    def of(self, slot: int, received: Any) -> Place:
        place = self._places.get(slot)
        if place is None or place.address != self._moe._slots[slot].received.x:
            place = self._places[slot] = Place(self._moe, slot, received)
        return place

    def show(self, slot: int, received: Any, nr_rows: int, call: Call) -> Tuple[Any, Any, Any]:
        """Rows, scales and weights of a round in that slot."""
        place = self.of(slot, received)
        place.stream = call.current
        x, scales, weights = (None if tensor is None else _first(tensor, nr_rows) for tensor in place.tensors)
        return x, scales, weights


def _first(tensor: Any, nr_rows: int) -> Any:
    """Rows of its memory, as a tensor that is nobody's view: autograd would not let its functions hand out one and others write to it."""
    return tensor.new_empty(0).set_(tensor.untyped_storage(), 0, (nr_rows, tensor.shape[1]), tensor.stride())
