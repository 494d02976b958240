# SPDX-License-Identifier: Apache-2.0
"""The transfer engine: registered memory into a peer's registered memory, over any network. The contract is that of
include/tern_engine.h.

    with Engine(group, transport="ofi") as engine:
        mine = engine.register(pool)                              # a numpy array, a tensor, a buffer
        theirs = [engine.remote(d) for d in group.allgather(mine.descriptor)]
        engine.write(mine, theirs[1], nbytes=4096, immediate=7).wait()
        engine.expect(7).wait()                                   # on rank 1: the bytes are there
"""

from __future__ import annotations

import collections
import ctypes
import threading
from dataclasses import dataclass, fields
from typing import Any, Deque, Dict, Optional, Sequence, Tuple, Union

import numpy as np

from . import _abi
from . import arrays as memory
from ._handles import Handle, opened
from ._library import library
from .arrays import Array
from .errors import CapacityError, InvalidError, StateError, WaitTimeoutError, check
from .group import Group

IMMEDIATE = _abi.ENUMS["tern_op_flags"]["TERN_IMMEDIATE"]


@dataclass(frozen=True)
class EngineStats:
    """Since creation: struct tern_engine_stats."""

    operations: int
    failed: int
    writes: int
    bytes: int
    again: int
    immediates: int
    immediates_lost: int
    messages_sent: int
    messages_received: int
    heartbeats_sent: int
    drains: int
    sleeps: int
    steps: int


class Region:
    """Local memory that peers may write, kept until it is deregistered or its engine closed."""

    def __init__(self, engine: "Engine", nbytes: int, pointer: int):
        self._engine, self._pointer = engine, pointer
        self.nbytes = nbytes
        descriptor = _abi.tern_descriptor()
        check(library().tern_region_descriptor(pointer, ctypes.byref(descriptor)))
        self.descriptor = bytes(descriptor)
        """What a peer needs to write here; to be sent to it by any means."""

    def deregister(self, wait_ms: int = 30000) -> None:
        """Waits until none of this engine's operations uses it. Whether peers still write it, only the caller can know."""
        self._engine._give_up(self, "tern_region_deregister", wait_ms)


class Remote:
    """A peer's memory, known by its descriptor."""

    def __init__(self, engine: "Engine", rank: int, nbytes: int, pointer: int):
        self._engine, self._pointer = engine, pointer
        self.rank = rank
        self.nbytes = nbytes

    def forget(self, wait_ms: int = 30000) -> None:
        """Waits until none of this engine's operations uses it."""
        self._engine._give_up(self, "tern_remote_forget", wait_ms)


class Peers:
    """Peers made ready for many operations, with memory of theirs or without."""

    def __init__(self, engine: "Engine", ranks: Tuple[int, ...], pointer: int):
        self._engine, self._pointer = engine, pointer
        self.ranks = ranks

    def destroy(self, wait_ms: int = 30000) -> None:
        """Waits until none of this engine's operations uses it."""
        self._engine._give_up(self, "tern_peers_destroy", wait_ms)


_Object = Union[Region, Remote, Peers]


class Operation:
    """Something under way. What it reads is kept until it has ended, also when this object goes before."""

    def __init__(self, engine: "Engine", op: int, keep: Any):
        self._engine, self._op = engine, op
        engine._under_way[op] = keep

    def _ended(self, code: int) -> bool:
        if code == WaitTimeoutError.code:
            return False
        op, self._op = self._op, 0
        self._engine._under_way.pop(op, None)
        check(code)
        return True

    def done(self) -> bool:
        """Whether it has ended well; raises how it failed. True from then on."""
        if self._op == 0:
            return True
        with self._engine._call() as native:
            return self._ended(library().tern_op_poll(native, self._op))

    def wait(self, wait_ms: int = 30000) -> None:
        """Until it has ended; raises how it failed, or WaitTimeoutError: it is still under way, and may be waited for again."""
        if self._op == 0:
            return
        with self._engine._call() as native:
            code = library().tern_op_wait(native, self._op, wait_ms)
            if not self._ended(code):
                check(code)

    def __del__(self) -> None:
        if self._op:
            self._engine._left.append(self._op)


class _Call:
    """Calls come from any thread; giving the engine up needs that there is none."""

    def __init__(self, engine: "Engine"):
        self._engine = engine

    def __enter__(self) -> int:
        engine = self._engine
        with engine._lock:
            native = opened(engine._handle, "engine")
            engine._nr_calls += 1
        return native

    def __exit__(self, *_: object) -> None:
        engine = self._engine
        with engine._lock:
            engine._nr_calls -= 1


class Engine:
    """A transfer engine over the ranks of a group, itself among them. Collective. Calls come from any thread.

    transport: the networks that this rank offers, the best first, as "verbs+ofi:tcp;ofi_rxm", "ofi", "shm". What is None has the
    library's default; see struct tern_engine_config.
    """

    def __init__(
        self,
        group: Group,
        *,
        transport: str = "shm",
        nr_nics: Optional[int] = None,
        devices: Sequence[str] = (),
        nr_operations: Optional[int] = None,
        depth: Optional[int] = None,
        peer_depth: Optional[int] = None,
        message_bytes: Optional[int] = None,
        message_credits: Optional[int] = None,
        core: Optional[int] = None,
        wait_ms: Optional[int] = None,
        heartbeat_ms: Optional[int] = None,
        timeout_ms: Optional[int] = None,
    ):
        lib = library()
        config = lib.initial(_abi.tern_engine_config)
        given: Dict[str, Any] = dict(nr_nics=nr_nics, nr_operations=nr_operations, depth=depth, peer_depth=peer_depth)
        given.update(message_bytes=message_bytes, message_credits=message_credits, core=core, wait_ms=wait_ms)
        given.update(heartbeat_ms=heartbeat_ms, timeout_ms=timeout_ms)
        for name, value in given.items():
            if value is not None:
                signed = name in ("core", "wait_ms", "heartbeat_ms", "timeout_ms")
                setattr(config, name, _number(name, value, -(2**31) if signed else 0, 2**31 - 1 if signed else 2**32 - 1))
        config.transport = transport.encode()
        if len(devices) > _abi.TERN_MAX_NICS:
            raise InvalidError(f"{len(devices)} devices; {_abi.TERN_MAX_NICS} are possible")
        for i, device in enumerate(devices):
            config.devices[i] = device.encode()
        self._lock = threading.Lock()
        self._nr_calls = 0
        self._memory: Dict[int, Any] = {}  # what keeps registered memory, by region
        self._under_way: Dict[int, Any] = {}  # lists that operations name
        self._left: Deque[int] = collections.deque()  # operations whose objects went before they had ended
        self._message_bytes: int = config.message_bytes
        self._nr_operations: int = config.nr_operations
        self._wait_ms: int = config.wait_ms
        pointer = ctypes.c_void_p()
        with group._busy:
            group._checked(lib.tern_engine_create(group.native, ctypes.byref(config), ctypes.byref(pointer)))
        self._handle: Optional[Handle] = Handle("tern_engine_destroy", pointer.value or 0, (group.handle, self._memory, self._under_way))
        self.rank: int = lib.tern_engine_rank(pointer)
        self.nr_peers: int = lib.tern_engine_nr_peers(pointer)
        self.networks: str = lib.tern_engine_describe(pointer).decode()
        """What the networks are, for people."""

    def _call(self) -> _Call:
        return _Call(self)

    # ---- memory ----

    def register(self, array: Array) -> Region:
        """Memory that peers may write: a dense, writable array, tensor or buffer. It is kept until deregister, or the engine's end."""
        view = memory.look(array)
        if view.strides != memory.dense(view.shape, view.item_bytes):
            raise InvalidError(f"the memory is {view.dtype}{list(view.shape)} with strides of {list(view.strides)} bytes; it has to be dense")
        if not view.writable:
            raise InvalidError("the memory is read-only, and peers may write what is registered")
        nbytes = int(np.prod(view.shape, dtype=np.int64)) * view.item_bytes
        pointer = ctypes.c_void_p()
        with self._call() as native:
            check(library().tern_engine_register(native, view.address, nbytes, ctypes.byref(pointer)))
            self._memory[pointer.value or 0] = view.owner
            return Region(self, nbytes, pointer.value or 0)

    def remote(self, descriptor: bytes) -> Remote:
        """A peer's region, of its descriptor."""
        if len(descriptor) != ctypes.sizeof(_abi.tern_descriptor):
            raise InvalidError(f"a descriptor of {len(descriptor)} bytes; it has {ctypes.sizeof(_abi.tern_descriptor)}")
        struct = _abi.tern_descriptor.from_buffer_copy(descriptor)
        pointer = ctypes.c_void_p()
        with self._call() as native:
            check(library().tern_engine_import(native, ctypes.byref(struct), ctypes.byref(pointer)))
            return Remote(self, struct.rank, struct.bytes, pointer.value or 0)

    def peers(self, ranks: Sequence[int], remotes: Optional[Sequence[Optional[Remote]]] = None) -> Peers:
        """Peers for scatter, expect and barrier. remotes[i]: memory of ranks[i], or None where only immediates are sent."""
        theirs = tuple(remotes) if remotes is not None else (None,) * len(ranks)
        if len(theirs) != len(ranks):
            raise InvalidError(f"{len(theirs)} remotes for {len(ranks)} ranks")
        numbers = (ctypes.c_uint32 * len(ranks))(*[_number("rank", rank, 0, 2**32 - 1) for rank in ranks])
        pointers = (ctypes.c_void_p * len(ranks))(*[None if remote is None else self._pointer(remote, Remote) for remote in theirs])
        pointer = ctypes.c_void_p()
        with self._call() as native:
            check(library().tern_peers_create(native, numbers, pointers, len(ranks), ctypes.byref(pointer)))
            return Peers(self, tuple(ranks), pointer.value or 0)

    def _give_up(self, made: _Object, function: str, wait_ms: int) -> None:
        with self._call() as native:
            pointer = self._pointer(made, type(made))
            self._sweep(native)
            check(getattr(library(), function)(pointer, wait_ms))
            made._pointer = 0
            self._memory.pop(pointer, None)

    def _pointer(self, made: Any, kind: Any) -> int:
        """Of an object that is this engine's and still there: the library does not look itself."""
        if not isinstance(made, kind):
            raise InvalidError(f"a {type(made).__name__} is given where a {kind.__name__} is due")
        if made._engine is not self:
            raise InvalidError(f"the {type(made).__name__} is another engine's")
        if not made._pointer:
            raise StateError(f"the {type(made).__name__} was given up")
        return int(made._pointer)

    # ---- operations ----

    def _begin(self, function: str, struct: Any, keep: Any) -> Operation:
        op = ctypes.c_uint64()
        with self._call() as native:
            self._sweep(native)
            check(getattr(library(), function)(native, ctypes.byref(struct), ctypes.byref(op)))
            return Operation(self, op.value, keep)

    def _sweep(self, native: int) -> None:
        """Gives the handles of operations back whose objects went, once they have ended; and waits for the oldest of them where they
        hold half of all handles."""
        for _ in range(len(self._left)):
            op = self._left.popleft()
            wait_ms = self._wait_ms if len(self._left) >= self._nr_operations // 2 else 0
            if library().tern_op_wait(native, op, wait_ms) == WaitTimeoutError.code:
                self._left.append(op)
            else:
                self._under_way.pop(op, None)

    def write(
        self,
        local: Optional[Region] = None,
        remote: Optional[Remote] = None,
        *,
        local_offset: int = 0,
        remote_offset: int = 0,
        nbytes: Optional[int] = None,
        immediate: Optional[int] = None,
        peer: Optional[int] = None,
    ) -> Operation:
        """nbytes (all of local) to a peer's memory; then the immediate, which it counts. Without local and remote only the immediate goes,
        to peer."""
        struct = _abi.sized(_abi.tern_write)
        if local is not None and remote is not None:
            struct.local, struct.remote, struct.peer = self._pointer(local, Region), self._pointer(remote, Remote), remote.rank
            nbytes = local.nbytes - local_offset if nbytes is None else nbytes
        elif local is not None or remote is not None or peer is None or nbytes:
            raise InvalidError("write needs local and remote, or a peer and an immediate alone")
        else:
            struct.peer = _number("peer", peer, 0, 2**32 - 1)
        self._set_immediate(struct, immediate)
        for name, value in (("local_offset", local_offset), ("remote_offset", remote_offset), ("bytes", nbytes or 0)):
            setattr(struct, name, _number(name, value, 0, 2**64 - 1))
        return self._begin("tern_engine_write", struct, None)

    def write_pages(
        self,
        local: Region,
        remote: Remote,
        local_pages: Sequence[int],
        remote_pages: Sequence[int],
        *,
        page_bytes: int,
        local_offset: int = 0,
        remote_offset: int = 0,
        local_stride: Optional[int] = None,
        remote_stride: Optional[int] = None,
        immediate: Optional[int] = None,
    ) -> Operation:
        """Page i: page_bytes from local_offset + local_pages[i] * local_stride to remote_offset + remote_pages[i] * remote_stride; strides
        are page_bytes unless given. One immediate in all."""
        ours, theirs = _pages("local_pages", local_pages), _pages("remote_pages", remote_pages)
        if len(ours) != len(theirs):
            raise InvalidError(f"{len(ours)} local pages and {len(theirs)} remote ones")
        struct = _abi.sized(_abi.tern_paged_write)
        struct.local, struct.remote, struct.peer = self._pointer(local, Region), self._pointer(remote, Remote), remote.rank
        self._set_immediate(struct, immediate)
        struct.nr_pages = len(ours)
        struct.local_pages, struct.remote_pages = ours.ctypes.data, theirs.ctypes.data
        numbers = dict(page_bytes=page_bytes, local_offset=local_offset, remote_offset=remote_offset)
        numbers["local_stride"] = page_bytes if local_stride is None else local_stride
        numbers["remote_stride"] = page_bytes if remote_stride is None else remote_stride
        for name, value in numbers.items():
            setattr(struct, name, _number(name, value, 0, 2**64 - 1))
        return self._begin("tern_engine_write_pages", struct, (ours, theirs))

    def scatter(self, local: Region, peers: Peers, slices: Sequence[Tuple[int, int, int]], *, immediates: Optional[Sequence[int]] = None) -> Operation:
        """slices[i] = (local offset, remote offset, bytes) goes to the i-th of peers, then immediates[i]."""
        if len(slices) != len(peers.ranks) or (immediates is not None and len(immediates) != len(slices)):
            raise InvalidError(f"{len(slices)} slices and {'no' if immediates is None else len(immediates)} immediates for {len(peers.ranks)} peers")
        made = (_abi.tern_slice * len(slices))()
        for i, one in enumerate(slices):
            made[i].local_offset, made[i].remote_offset, made[i].bytes = (_number("slice", value, 0, 2**64 - 1) for value in one)
            made[i].immediate = 0 if immediates is None else _number("immediate", immediates[i], 0, 2**32 - 1)
        struct = _abi.sized(_abi.tern_scatter)
        struct.flags = 0 if immediates is None else IMMEDIATE
        struct.peers, struct.local, struct.slices = self._pointer(peers, Peers), self._pointer(local, Region), made
        return self._begin("tern_engine_scatter", struct, made)

    def expect(self, immediate: int, count: int = 1, *, peers: Optional[Peers] = None) -> Operation:
        """Ends when so many immediates of this value have come that no earlier expectation took. With peers, the end of one of them ends
        it: that is how a death is heard of while one waits."""
        struct = _abi.sized(_abi.tern_expect)
        struct.immediate = _number("immediate", immediate, 0, 2**32 - 1)
        struct.count = _number("count", count, 0, 2**64 - 1)
        struct.peers = None if peers is None else self._pointer(peers, Peers)
        return self._begin("tern_engine_expect", struct, None)

    def count(self, immediate: int) -> int:
        """Immediates of this value that came and that no expectation has taken yet."""
        found = ctypes.c_uint64()
        with self._call() as native:
            check(library().tern_engine_count(native, _number("immediate", immediate, 0, 2**32 - 1), ctypes.byref(found)))
        return found.value

    def barrier(self, immediate: int, peers: Peers) -> Operation:
        """Sends the immediate to all of peers, and ends when one from each has come."""
        struct = _abi.sized(_abi.tern_barrier)
        struct.immediate, struct.peers = _number("immediate", immediate, 0, 2**32 - 1), self._pointer(peers, Peers)
        return self._begin("tern_engine_barrier", struct, None)

    def _set_immediate(self, struct: Any, immediate: Optional[int]) -> None:
        if immediate is not None:
            struct.flags = IMMEDIATE
            struct.immediate = _number("immediate", immediate, 0, 2**32 - 1)

    # ---- messages ----

    def send(self, peer: int, data: bytes) -> Operation:
        """A small message, at most message_bytes; in order for each peer."""
        struct = _abi.sized(_abi.tern_send)
        kept = ctypes.create_string_buffer(bytes(data), max(len(data), 1))
        struct.peer, struct.data, struct.bytes = _number("peer", peer, 0, 2**32 - 1), ctypes.addressof(kept), len(data)
        return self._begin("tern_engine_send", struct, kept)

    def recv(self, wait_ms: int = 30000) -> Tuple[int, bytes]:
        """The next message of any peer, and whose it is. WaitTimeoutError when none came."""
        peer, room = ctypes.c_uint32(), self._message_bytes
        with self._call() as native:
            while True:
                data, nbytes = ctypes.create_string_buffer(room + 1), ctypes.c_uint32(room)
                code = library().tern_engine_recv(native, ctypes.byref(peer), data, ctypes.byref(nbytes), wait_ms)
                if code != CapacityError.code or nbytes.value <= room:
                    break
                room = nbytes.value
            check(code)
            return peer.value, data.raw[: nbytes.value]

    # ---- what happened ----

    def peer(self, rank: int) -> None:
        """Raises PeerDeadError or PeerLeftError once that peer is gone."""
        with self._call() as native:
            check(library().tern_engine_peer(native, _number("rank", rank, 0, 2**32 - 1)))

    def stats(self) -> EngineStats:
        told = _abi.sized(_abi.tern_engine_stats)
        with self._call() as native:
            check(library().tern_engine_stats(native, ctypes.byref(told)))
        return EngineStats(*[getattr(told, field.name) for field in fields(EngineStats)])

    @property
    def native(self) -> int:
        """The tern_engine's address, for other bindings of the same library."""
        return opened(self._handle, "engine")

    def close(self) -> None:
        """Leaves. What is to be sent is given wait_ms to land; peers are told. No other thread may be in a call."""
        with self._lock:
            if self._nr_calls:
                raise StateError(f"{self._nr_calls} calls of other threads are under way on this engine: close it when they are over")
            handle, self._handle = self._handle, None
        del handle  # here the library's engine ends; until then what it reads and peers write is kept
        self._memory.clear()
        self._under_way.clear()
        self._left.clear()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _number(name: str, value: Any, low: int, high: int) -> int:
    """ctypes would cut off what does not fit."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = low - 1
    if number != value or not low <= number <= high:
        raise InvalidError(f"{name} is {value!r}; {low} to {high} are possible")
    return number


def _pages(name: str, pages: Sequence[int]) -> Any:
    given = np.asarray(pages)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu") or (given.size and not 0 <= int(given.min()) <= int(given.max()) < 2**32):
        raise InvalidError(f"{name} has to be a list of page numbers, 0 to 4294967295")
    return np.ascontiguousarray(given, np.uint32).copy()

