# SPDX-License-Identifier: Apache-2.0
"""Experts' weights, moved between ranks while they serve: include/tern_weights.h.

    with Engine(group) as engine, WeightStore(engine, [[w13, w2]], nr_experts=8, nr_physical=12) as store:
        store.hold(0, place, expert)                  # this rank's weights lie there
        group.allgather(b"")                          # all hold what they have
        move = store.move(0, plan.copies)             # tern_ep.Balance
        while not move.done():                        # a page each time
            ...                                       # a round
        store.use(0, plan.logical)
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, fields
from typing import Any, Callable, List, NamedTuple, Optional, Sequence

import numpy as np

from . import _abi
from . import arrays as memory
from ._handles import Handle, opened
from ._library import library
from .arrays import Array
from .balance import Copy, _array
from .engine import Engine
from .errors import InvalidError, WaitTimeoutError, check

Load = Callable[[int, int, int, memoryview], None]


class Progress(NamedTuple):
    nr_copies: int
    nr_whole: int
    nr_failed: int
    bytes_left: int


@dataclass(frozen=True)
class WeightStats:
    """Since creation: struct tern_weights_stats."""

    copies: int
    failed: int
    pages: int
    bytes: int
    pages_wrong: int
    pages_given: int
    sources_left: int
    pages_loaded: int


class Move:
    """Places of this rank that are being filled."""

    def __init__(self, store: "WeightStore", ticket: int):
        self._store, self._ticket = store, ticket
        self.progress = Progress(0, 0, 0, 0)
        """As of the last call."""

    def _ended(self, code: int, progress: Any) -> bool:
        self.progress = Progress(progress.nr_copies, progress.nr_whole, progress.nr_failed, progress.bytes_left)
        if code == WaitTimeoutError.code:
            return False
        self._ticket = 0
        self._store._checked(code)
        return True

    def done(self) -> bool:
        """Handles one page at most. Whether all places are whole; raises what became of the first that is not: LostExpertsError names
        the ranks that were tried. True from then on."""
        if not self._ticket:
            return True
        progress = _abi.sized(_abi.tern_weights_progress)
        with self._store._lock:
            return self._ended(library().tern_weights_poll(self._store._native, self._ticket, ctypes.byref(progress)), progress)

    def wait(self, wait_ms: int = 30000) -> None:
        """The same again and again; WaitTimeoutError: it is still under way, and may be waited for again."""
        if not self._ticket:
            return
        progress = _abi.sized(_abi.tern_weights_progress)
        with self._store._lock:
            code = library().tern_weights_wait(self._store._native, self._ticket, wait_ms, ctypes.byref(progress))
            if not self._ended(code, progress):
                check(code)


class WeightStore:
    """What this rank holds. Collective over the engine's group; the engine's messages belong to the store.

    tensors: for each layer those of all places of this rank, dense, their first dimension the places: [nr_local, ...]. They are
    kept, and peers read them. nr_physical: places of all ranks; rank: of each, None: contiguous blocks. load(layer, expert, offset,
    into): the checkpoint, asked last; it fills `into`, or raises. rate: bytes per second, 0: no bound."""

    def __init__(
        self,
        engine: Engine,
        tensors: Sequence[Sequence[Array]],
        *,
        nr_experts: int,
        nr_physical: int,
        rank: Optional[Sequence[int]] = None,
        nr_backups: int = 0,
        page_bytes: int = 0,
        window: int = 0,
        silence_ms: int = 0,
        rate: int = 0,
        load: Optional[Load] = None,
    ):
        self.nr_physical, self.nr_ranks, self.nr_layers = nr_physical, engine.nr_peers, len(tensors)
        self._lock = threading.Lock()
        self._failure: Optional[BaseException] = None
        nr_parts = len(tensors[0]) if tensors else 0
        if not nr_parts or any(len(layer) != nr_parts for layer in tensors):
            raise InvalidError("tensors: at least one layer, and as many tensors in each")
        parts = (_abi.tern_weights_part * (len(tensors) * nr_parts))()
        kept: List[Any] = []
        for i, tensor in enumerate(t for layer in tensors for t in layer):
            view = memory.look(tensor)
            if view.strides != memory.dense(view.shape, view.item_bytes) or not view.writable or not view.shape:
                raise InvalidError(f"tensor {i % nr_parts} of layer {i // nr_parts} is not dense, or read-only")
            each = int(np.prod(view.shape[1:], dtype=np.int64)) * view.item_bytes
            parts[i] = _abi.tern_weights_part(view.address, each, each)
            kept.append(view.owner)
        config = _abi.sized(_abi.tern_weights_config)
        config.nr_layers, config.nr_experts, config.nr_physical, config.nr_parts = len(tensors), nr_experts, nr_physical, nr_parts
        config.rank, config.parts = _array(ctypes.c_int32, "rank", rank, nr_physical), parts
        config.nr_backups, config.page_bytes, config.window = nr_backups, page_bytes, window
        config.silence_ms, config.rate = silence_ms, rate
        loader = _abi.tern_load_fn(self._loader(load)) if load else None
        if loader:
            config.load = loader
        pointer = ctypes.c_void_p()
        with engine._call() as native:
            check(library().tern_weights_create(native, ctypes.byref(config), ctypes.byref(pointer)))
        self._handle: Optional[Handle] = Handle("tern_weights_destroy", pointer.value or 0, (engine._handle, kept, loader))

    def _loader(self, load: Load) -> Callable[..., int]:
        def call(_ctx: Any, layer: int, expert: int, offset: int, into: int, nbytes: int) -> int:
            try:
                load(layer, expert, offset, memoryview((ctypes.c_uint8 * nbytes).from_address(into)).cast("B"))
                return 0
            except BaseException as failure:  # told by the call that polls
                self._failure = failure
                return -1

        return call

    def _checked(self, code: int) -> None:
        failure, self._failure = self._failure, None
        if failure and code:
            try:
                check(code)
            except Exception as error:
                raise error from failure
        check(code)

    @property
    def _native(self) -> int:
        return opened(self._handle, "the store of weights")

    def hold(self, layer: int, place: int, expert: int) -> None:
        """This rank has put the expert's weights into that place of its own; -1: it holds nothing any more."""
        with self._lock:
            check(library().tern_weights_hold(self._native, layer, place, expert))

    def held(self, layer: int) -> List[int]:
        """What each place holds whole: -1 nothing, and other ranks' places."""
        held = (ctypes.c_int32 * self.nr_physical)()
        with self._lock:
            check(library().tern_weights_held(self._native, layer, held))
        return list(held)

    def use(self, layer: int, logical: Optional[Sequence[int]]) -> None:
        """Rounds use this placement from now on: StateError if a place of this rank does not hold its expert whole."""
        table = _array(ctypes.c_int32, "logical", logical, self.nr_physical)
        with self._lock:
            check(library().tern_weights_use(self._native, layer, table))

    def move(self, layer: int, copies: Sequence[Copy]) -> Move:
        """Begins to fill those places of `copies` that are this rank's."""
        table = (_abi.tern_copy * max(len(copies), 1))(*[_abi.tern_copy(*copy) for copy in copies])
        ticket = ctypes.c_uint64()
        with self._lock:
            check(library().tern_weights_move(self._native, layer, table, len(copies), ctypes.byref(ticket)))
        return Move(self, ticket.value)

    def backup(self, layer: int, logical: Sequence[int], alive: Optional[Sequence[bool]] = None) -> Move:
        """Begins to fill this rank's backups for that layer."""
        table = _array(ctypes.c_int32, "logical", logical, self.nr_physical)
        living = _array(ctypes.c_uint8, "alive", alive, self.nr_ranks)
        ticket = ctypes.c_uint64()
        with self._lock:
            check(library().tern_weights_backup(self._native, layer, table, living, ctypes.byref(ticket)))
        return Move(self, ticket.value)

    @property
    def stats(self) -> WeightStats:
        stats = _abi.sized(_abi.tern_weights_stats)
        with self._lock:
            check(library().tern_weights_stats(self._native, ctypes.byref(stats)))
        return WeightStats(**{field.name: getattr(stats, field.name) for field in fields(WeightStats)})

    def close(self) -> None:
        """Moves under way end. The engine goes after this."""
        with self._lock:
            self._handle = None

    def __enter__(self) -> "WeightStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
