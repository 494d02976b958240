# SPDX-License-Identifier: Apache-2.0
"""Groups: this rank's membership among the others, and how ranks find each other."""

from __future__ import annotations

import ctypes
import enum
import itertools
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Callable, List, NamedTuple, Optional, Protocol, Tuple, TypeVar, Union

from . import _abi
from ._handles import Handle, opened
from ._library import library
from ._calls import OneAtATime
from .errors import BootstrapError, InvalidError, StateError, check

Allgather = Callable[[bytes], List[bytes]]
"""Gathers what each rank passes, in rank order, on every rank."""

Result = TypeVar("Result")


class Path(enum.IntEnum):
    """How a rank is reached: enum tern_path."""

    SELF = 0
    MAPPED = 1
    NONE = 2
    ENGINE = 3


class Change(enum.IntEnum):
    """What can be proposed: enum tern_change."""

    LEAVE = 1
    EXPEL = 2


class View(NamedTuple):
    """The members of an elastic group."""

    number: int
    """Changes since the group was made."""
    alive: Tuple[int, ...]
    """Ranks that are members."""
    gone: Tuple[int, ...]
    """Ranks that went with the last change."""
    change_ns: int
    """That change took, from where this rank noticed it."""
    joined: Tuple[int, ...] = ()
    """Ranks that came with the last change; in `gone`, too: a new process has come in its place."""


class Rendezvous(Protocol):
    """Where the processes of a group, and those that join it later, find each other: byte strings by name."""

    def set(self, key: str, value: bytes) -> None:
        """In place of what was there before."""

    def get(self, key: str) -> Optional[bytes]:
        """None where there is nothing of that name."""


class StoreRendezvous:
    """A torch.distributed Store, such as a TCPStore that outlives the ranks. Jobs that share one have prefixes of their own."""

    def __init__(self, store: Any, prefix: str = ""):
        self._store, self._prefix = store, prefix

    def set(self, key: str, value: bytes) -> None:
        self._store.set(self._prefix + key, value.hex())

    def get(self, key: str) -> Optional[bytes]:
        if not self._store.check([self._prefix + key]):
            return None
        return bytes.fromhex(self._store.get(self._prefix + key).decode())


ENVIRONMENT = "environment"
"""As a rendezvous: the one that `tern run` keeps for its ranks."""


def restarts() -> int:
    """How often this rank was started anew by `tern run --restart`: if it was, Group.join is the way in."""
    return check(library().tern_boot_restarts())


def _pass_on(connected: socket.socket, data: bytes, deadline: float) -> None:
    connected.settimeout(max(deadline - time.monotonic(), 0.001))
    connected.sendall(struct.pack("!I", len(data)) + data)


def _take_in(connected: socket.socket, nbytes: int, deadline: float) -> bytes:
    """As many bytes as this end has sent: gatherings are of one size."""
    told = b""
    while len(told) < 4 + nbytes:
        connected.settimeout(max(deadline - time.monotonic(), 0.001))
        part = connected.recv(4 + nbytes - len(told))
        if not part:
            raise ConnectionError("it was closed")
        told += part
        if len(told) >= 4 and struct.unpack("!I", told[:4])[0] != nbytes:
            raise ConnectionError(f"it sent {struct.unpack('!I', told[:4])[0]} bytes where {nbytes} were due: is it of another version?")
    return told[4:]


class _Boot:
    """A struct tern_boot, and what has to live as long as its group."""

    def __init__(self, keep: Any = None):
        self.struct = _abi.tern_boot()
        self.keep = keep
        self.keep_rendezvous: Any = None
        self.joins = False
        self.raised: Optional[BaseException] = None

    def meet_at(self, rendezvous: Union[Rendezvous, str, None]) -> Any:
        """A struct tern_rendezvous."""
        struct = _abi.tern_rendezvous()
        if rendezvous is None:
            return struct
        if isinstance(rendezvous, str):
            if rendezvous != ENVIRONMENT:
                raise InvalidError(f'rendezvous is "{rendezvous}"; as a string it can be "{ENVIRONMENT}"')
            check(library().tern_rendezvous_env(ctypes.byref(struct)))
            return struct
        place: Rendezvous = rendezvous

        def set_value(_: Any, key: bytes, value: int, nr_bytes: int, __: int) -> int:
            try:
                place.set(key.decode(), ctypes.string_at(value, nr_bytes))
                return 0
            except BaseException as error:  # as above
                self.raised = error
                return -1

        def get_value(_: Any, key: bytes, value: int, nr_bytes: Any, __: int) -> int:
            try:
                found = place.get(key.decode())
                if found is None:
                    return 1
                if len(found) > nr_bytes[0]:
                    raise BootstrapError(f"the rendezvous has {len(found)} bytes of {key.decode()}, and not {nr_bytes[0]}")
                ctypes.memmove(value, found, len(found))
                nr_bytes[0] = len(found)
                return 0
            except BaseException as error:  # as above
                self.raised = error
                return -1

        struct.set, struct.get = _abi.tern_rendezvous_set_fn(set_value), _abi.tern_rendezvous_get_fn(get_value)
        self.keep_rendezvous = (struct.set, struct.get, rendezvous)
        return struct

    def gather_with(self, rank: int, nr_ranks: int, allgather: Allgather) -> None:
        def call(_: Any, mine: int, everybody: int, nr_bytes: int) -> int:
            try:
                parts = list(allgather(ctypes.string_at(mine, nr_bytes)))
                if len(parts) != nr_ranks or any(len(part) != nr_bytes for part in parts):
                    raise BootstrapError(f"allgather returned parts of {[len(p) for p in parts]} bytes; {nr_ranks} of {nr_bytes} were due")
                ctypes.memmove(everybody, b"".join(parts), nr_ranks * nr_bytes)
                return 0
            except BaseException as error:  # it cannot pass through C: the creating call raises it
                self.raised = error
                return -1

        self.struct.rank, self.struct.nr_ranks = rank, nr_ranks
        self.struct.allgather = _abi.tern_allgather_fn(call)
        self.keep = (self.struct.allgather, allgather)


class Group:
    """This rank's membership among nr_ranks ranks. Made by one of the from_ functions, which are collective, as are alone().

    All take: wait_ms, the longest wait while joining; node, this rank's virtual node, for tests; transport, of the engine to ranks
    of other nodes; force_engine, to map nobody's memory, for tests; elastic: members may die, and the others go on; silence_ms:
    how long a rank of another node is silent before it counts as dead, from 500 on; rendezvous: where others may join later.
    """

    def __init__(
        self,
        boot: _Boot,
        *,
        wait_ms: int = 30000,
        node: Optional[str] = None,
        transport: Optional[str] = None,
        force_engine: bool = False,
        elastic: bool = False,
        silence_ms: int = 0,
        rendezvous: Union[Rendezvous, str, None] = None,
    ):
        lib = library()
        config = lib.initial(_abi.tern_group_config)
        config.boot = boot.struct
        config.wait_ms = wait_ms
        config.node = node.encode() if node is not None else None
        config.transport = transport.encode() if transport is not None else None
        config.force_engine = int(force_engine)
        config.elastic = int(elastic)
        config.silence_ms = silence_ms
        config.rendezvous = boot.meet_at(rendezvous)
        create = lib.tern_group_join if boot.joins else lib.tern_group_create
        self._boot = boot
        self._busy = OneAtATime("group")
        pointer = ctypes.c_void_p()
        self._checked(create(ctypes.byref(config), ctypes.byref(pointer)))
        self._handle: Optional[Handle] = Handle("tern_group_destroy", pointer.value or 0, boot)
        self.rank: int = lib.tern_group_rank(pointer)
        """This rank."""
        self.nr_ranks: int = lib.tern_group_nr_ranks(pointer)
        self.joins: bool = boot.joins
        """It takes the place of a rank that has gone: Group.join says what is due."""
        self.nr_nodes: int = lib.tern_group_nr_nodes(pointer)
        self.paths: str = lib.tern_group_describe(pointer).decode()
        """How the other ranks are reached and why so, for people."""

    def _checked(self, code: int) -> None:
        """Raises what the caller's allgather raised, rather than the library's word for it."""
        raised, self._boot.raised = self._boot.raised, None
        if code < 0 and raised is not None:
            raise raised
        check(code)

    # ---- how ranks find each other ----

    @classmethod
    def from_environment(cls, **settings: Any) -> "Group":
        """Ranks started by `tern run`, mpirun, prterun or srun; without any of them, one rank alone."""
        boot = _Boot()
        check(library().tern_boot_env(ctypes.byref(boot.struct)))
        return cls(boot, **settings)

    @classmethod
    def alone(cls, **settings: Any) -> "Group":
        """One rank, whatever the environment says."""
        boot = _Boot()
        check(library().tern_boot_self(ctypes.byref(boot.struct)))
        return cls(boot, **settings)

    @classmethod
    def from_allgather(cls, rank: int, nr_ranks: int, allgather: Allgather, **settings: Any) -> "Group":
        """Ranks that can gather: `allgather(mine)` returns the bytes of all ranks, in rank order. Called by creating calls only. What
        it raises, the creating call raises."""
        boot = _Boot()
        boot.gather_with(rank, nr_ranks, allgather)
        return cls(boot, **settings)

    @classmethod
    def from_torch(cls, process_group: Any = None, **settings: Any) -> "Group":
        """The ranks of a torch.distributed process group; None is the default one."""
        import torch.distributed as dist

        nr_ranks = dist.get_world_size(process_group)

        def allgather(mine: bytes) -> List[bytes]:
            parts: List[Any] = [None] * nr_ranks
            dist.all_gather_object(parts, mine, group=process_group)
            return parts

        return cls.from_allgather(dist.get_rank(process_group), nr_ranks, allgather, **settings)

    @classmethod
    def from_store(cls, store: Any, rank: int, nr_ranks: int, prefix: str = "", **settings: Any) -> "Group":
        """Over a torch.distributed Store, such as a TCPStore that outlives the ranks; jobs that share one have prefixes of their own.
        With elastic=True others may join, and this rank does where one of its number was there before: then `joins` is true, and what
        Group.join says is due. Starting ranks, also again, is the launcher's: torchrun with one rank for each of it, Kubernetes."""
        elastic = settings.pop("elastic", False)
        if elastic:
            settings.setdefault("rendezvous", StoreRendezvous(store, prefix))
            if store.add(f"{prefix}tern.starts.{rank}", 1) > 1:
                return cls.join(rank, nr_ranks, **settings)
        wait = timedelta(milliseconds=settings.get("wait_ms", 30000))
        numbers = itertools.count()

        def allgather(mine: bytes) -> List[bytes]:
            keys = [f"{prefix}tern.gather.{number}.{r}" for number in (next(numbers),) for r in range(nr_ranks)]
            store.set(keys[rank], mine.hex())
            store.wait(keys, wait)
            return [bytes.fromhex(store.get(key).decode()) for key in keys]

        return cls.from_allgather(rank, nr_ranks, allgather, elastic=elastic, **settings)

    @classmethod
    def from_mpi(cls, comm: Any = None, **settings: Any) -> "Group":
        """The ranks of an mpi4py communicator; None is COMM_WORLD."""
        if comm is None:
            from mpi4py import MPI

            comm = MPI.COMM_WORLD
        return cls.from_allgather(comm.Get_rank(), comm.Get_size(), comm.allgather, **settings)

    @classmethod
    def from_socket(cls, connected: socket.socket, rank: int, **settings: Any) -> "Group":
        """Two ranks, one at each end of a connected stream socket: 0 and 1. For peers that come one by one, as each gets a group of its
        own. The socket is used while the group and what belongs to it is made, and stays the caller's. Nobody is authenticated."""
        if rank not in (0, 1):
            raise InvalidError(f"rank is {rank}; a socket has the ends 0 and 1")
        wait_ms = settings.get("wait_ms", 30000)

        def allgather(mine: bytes) -> List[bytes]:
            deadline = time.monotonic() + wait_ms / 1000
            before = connected.gettimeout()
            try:
                _pass_on(connected, mine, deadline)
                theirs = _take_in(connected, len(mine), deadline)
            except (TimeoutError, socket.timeout):
                raise BootstrapError(f"the other end of the socket said nothing for {wait_ms} ms") from None
            except OSError as error:
                raise BootstrapError(f"the other end of the socket is gone: {error}") from None
            finally:
                connected.settimeout(before)
            return [mine, theirs] if rank == 0 else [theirs, mine]

        return cls.from_allgather(rank, 2, allgather, **settings)

    @classmethod
    def join(cls, rank: int, nr_ranks: int, rendezvous: Union[Rendezvous, str], **settings: Any) -> "Group":
        """Takes the place of a rank that is no member any more. Then it makes the others' exchanges, in their order, calls view_change,
        and, with all of them, allgather: from there on it serves."""
        boot = _Boot()
        boot.struct.rank, boot.struct.nr_ranks = rank, nr_ranks
        boot.joins = True
        return cls(boot, elastic=True, rendezvous=rendezvous, **settings)

    # ---- what is asked of it ----

    @property
    def native(self) -> int:
        """The tern_group's address, for other bindings of the same library."""
        return opened(self._handle, "group")

    @property
    def handle(self) -> Handle:
        opened(self._handle, "group")
        assert self._handle is not None
        return self._handle

    def node(self, rank: int) -> int:
        """The node of a rank, numbered from 0."""
        return check(library().tern_group_node(self.native, rank))

    def path(self, rank: int) -> Path:
        """How a rank is reached."""
        return Path(check(library().tern_group_path(self.native, rank)))

    def allgather(self, mine: bytes) -> List[bytes]:
        """What every rank passes, in rank order; all pass the same number of bytes. Collective."""
        with self._busy:
            size = len(mine)
            everybody = ctypes.create_string_buffer(self.nr_ranks * size + 1)
            self._checked(library().tern_group_allgather(self.native, mine, everybody, size))
        return [everybody.raw[r * size : (r + 1) * size] for r in range(self.nr_ranks)]

    # ---- elastic groups ----

    @property
    def pending(self) -> bool:
        """A change of members is wanted. One load: it may be asked while another thread is in a call."""
        return bool(check(library().tern_group_pending(self.native)))

    def view_change(self) -> View:
        """Agrees with the other members on who is left; at once where no change is wanted. Collective of those that live, after
        MembersError; then Exchange.owed for each elastic exchange and slot, and what raised it again."""
        view = _abi.sized(_abi.tern_view)
        with self._busy:
            self._checked(library().tern_group_view_change(self.native, ctypes.byref(view)))
        alive, gone, joined = (
            tuple(rank for rank in range(self.nr_ranks) if words[rank // 64] >> rank % 64 & 1)
            for words in (view.alive, view.gone, view.joined)
        )
        return View(view.number, alive, gone, view.change_ns, joined)

    def propose(self, change: Change, rank: int) -> None:
        """This rank leaves, or another is to be ended: with the next view_change of all."""
        with self._busy:
            check(library().tern_group_propose(self.native, int(change), rank))

    def close(self) -> None:
        """Leaves. While exchanges or arrays of this group are there, leaving waits for the last of them to go."""
        self._handle = None

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Threads:
    """Ranks as threads of this process, for tests: one Threads for all, and group(rank) in each rank's thread."""

    def __init__(self, nr_ranks: int, wait_ms: int = 30000):
        pointer = ctypes.c_void_p()
        check(library().tern_threads_create(nr_ranks, wait_ms, ctypes.byref(pointer)))
        self.nr_ranks = nr_ranks
        self._handle = Handle("tern_threads_destroy", pointer.value or 0)

    def group(self, rank: int, **settings: Any) -> Group:
        """Collective, in rank's thread."""
        boot = _Boot(self._handle)
        check(library().tern_threads_boot(self._handle.pointer, rank, ctypes.byref(boot.struct)))
        return Group(boot, **settings)


def run_threads(nr_ranks: int, function: Callable[[Group], Result], **settings: Any) -> List[Result]:
    """Calls function(group) in one thread for each rank, and returns their results by rank. If ranks fail, raises the first error
    that is not about another rank."""
    if nr_ranks < 1:
        raise InvalidError(f"{nr_ranks} ranks")
    threads = Threads(nr_ranks, settings.get("wait_ms", 30000))

    def rank_of(rank: int) -> Result:
        with threads.group(rank, **settings) as group:
            return function(group)

    with ThreadPoolExecutor(nr_ranks) as pool:
        futures = [pool.submit(rank_of, rank) for rank in range(nr_ranks)]
        errors = [error for error in (future.exception() for future in futures) if error is not None]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, (ConnectionError, TimeoutError)))
    return [future.result() for future in futures]
