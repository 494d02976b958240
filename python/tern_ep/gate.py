# SPDX-License-Identifier: Apache-2.0
"""What a kernel needs that reads received rows while the dispatch still brings others: struct tern_gate."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

from . import _abi

if TYPE_CHECKING:
    from .exchange import Exchange


class Gate(NamedTuple):
    """Of a slot, for as long as its exchange lives; what lies on the device is given as an address. docs/layer.md has how it is used."""

    nr_local: int
    """L, the local experts."""
    tile_rows: int
    """Config.gate_rows."""
    tiles: int
    """Of an expert, at most."""
    whole: int
    """What each round adds to a tile's word."""
    wait_ns: int
    """The longest wait."""
    counts: int
    """uint32 [L]: rows of each local expert, once they are counted."""
    offsets: int
    """uint64 [L]: their first positions."""
    words: int
    """uint32 [2]: rounds that have begun, and of which rows are counted."""
    ready: int
    """uint32 [L][tiles]: a tile is whole when its word has come as far as rounds * whole, round the corner of 2**32."""
    done: int
    """uint32 [L][tiles]: marks of tiles of y."""
    failed: int
    """uint32: not 0 when the exchange has ended."""


def gate_of(moe: "Exchange", slot: int) -> Gate:
    """Inside OneAtATime."""
    found = _abi.tern_gate()
    found.size = ctypes.sizeof(found)
    moe._check(moe._lib.tern_moe_gate(moe.native, slot, ctypes.byref(found)))
    return Gate(*(getattr(found, name) for name in Gate._fields))
