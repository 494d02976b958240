# SPDX-License-Identifier: Apache-2.0
"""Experts' tensors between ranks for an engine that balances by itself: vLLM's EplbCommunicator, in each of its forms, over an Engine.

    communicator = tern_ep.eplb.Communicator(tern_ep.Group.from_torch(cpu_group))
    communicator.add_send([w13[3], w2[3]], dst_rank=2, expert_id=17)     # on the rank that has it
    communicator.add_recv([b13[0], b2[0]], src_rank=0, expert_id=17)     # on rank 2
    communicator.execute()                                               # collective; they are there

It needs no NCCL, takes no SMs, and hears of a peer's death. Who receives says where there is room, and who sends writes there: pieces
in staging of a fixed size on both sides, so nothing is registered anew, and tensors may be anywhere, also on a GPU.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Deque, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from .engine import Engine, Operation, Peers, Remote
from .errors import Error, InvalidError, ProtocolError, StateError, WaitTimeoutError
from .group import Group

SLOTS = 16
"""Pieces under way to a rank, and from it."""

_WORD = struct.Struct("<QqIIQQQI")


class _Word(NamedTuple):
    """From who receives: there is room for this piece in that slot."""

    turn: int
    expert: int
    tensor: int
    nr_tensors: int
    nbytes: int  # of the tensor
    at: int
    length: int
    slot: int


_Wanted = Tuple[int, _Word, torch.Tensor]
"""From whom, what, and the whole tensor."""


@dataclass
class _Piece:
    """Of a tensor that is received: under way into a slot."""

    source: int
    into: torch.Tensor
    arrival: Operation


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)


class Communicator:
    """Collective, as is execute, and used by one thread at a time. After an error it has to be closed: ranks may have different halves of
    a turn behind them."""

    needs_profile_buffer_reservation = False

    def __init__(self, group: Group, *, transport: str = "shm+ofi:tcp;ofi_rxm", staging_bytes: int = 64 << 20, wait_ms: int = 30000):
        """transport: networks, the best first, as Engine takes them. staging_bytes: on each side. wait_ms: without any progress."""
        if staging_bytes < SLOTS * 64:
            raise InvalidError(f"staging_bytes is {staging_bytes}; it has to be at least {SLOTS * 64}")
        self.rank, self.nr_ranks, self._wait_ms = group.rank, group.nr_ranks, wait_ms
        self._piece = staging_bytes // SLOTS // 64 * 64
        pinned = torch.cuda.is_available()
        self._from = torch.empty((SLOTS, self._piece), dtype=torch.uint8, pin_memory=pinned)
        self._into = torch.empty((SLOTS, self._piece), dtype=torch.uint8, pin_memory=pinned)
        self._stream: Any = None
        self._turn = 0
        self._later: List[Tuple[int, _Word]] = []
        self._broken = ""
        self._sends: Dict[Tuple[int, int], List[torch.Tensor]] = {}
        self._receives: Dict[Tuple[int, int], List[torch.Tensor]] = {}
        engine = Engine(group, transport=transport)
        self._engine: Optional[Engine] = engine
        self._region, mine = engine.register(self._from), engine.register(self._into)
        told = group.allgather(struct.pack("<Q", self._piece) + mine.descriptor)
        for rank, word in enumerate(told):
            if word[:8] != told[0][:8]:
                raise InvalidError(f"staging_bytes: pieces of rank {rank} have {struct.unpack('<Q', word[:8])[0]} bytes, of rank 0 {self._piece}")
        self._remotes: List[Remote] = [engine.remote(word[8:]) for word in told]
        self._peers: List[Peers] = [engine.peers([rank]) for rank in range(self.nr_ranks)]

    # ---- what is to be moved ----

    def add_send(self, tensors: Union[torch.Tensor, Sequence[torch.Tensor]], dst_rank: int, expert_id: Optional[int] = None) -> None:
        """The tensors of one expert, which stay as they are until execute has returned. Without an id the n-th that is sent to a rank is
        the n-th that it receives from here."""
        self._add("dst_rank", self._sends, tensors, dst_rank, expert_id)

    def add_recv(self, tensors: Union[torch.Tensor, Sequence[torch.Tensor]], src_rank: int, expert_id: Optional[int] = None) -> None:
        """Where an expert's tensors are to be."""
        self._add("src_rank", self._receives, tensors, src_rank, expert_id)

    def _add(self, name: str, to: Dict[Tuple[int, int], List[torch.Tensor]], tensors: Any, rank: int, expert: Optional[int]) -> None:
        self._there()
        if not 0 <= rank < self.nr_ranks or rank == self.rank:
            raise InvalidError(f"{name} is {rank}; it has to be another of {self.nr_ranks} ranks than {self.rank}")
        given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        for i, tensor in enumerate(given):
            if not tensor.is_contiguous():
                raise InvalidError(f"tensors[{i}] has strides {list(tensor.stride())}; it has to be contiguous")
        if expert is None:
            expert = -1 - sum(1 for other, number in to if other == rank and number < 0)
        elif expert < 0:
            raise InvalidError(f"expert_id is {expert}")
        if (rank, expert) in to:
            raise InvalidError(f"expert_id is {expert}, which is there already for rank {rank}")
        to[rank, expert] = given

    def set_stream(self, cuda_stream: Any) -> None:
        """On which tensors of a GPU are copied; None: the current one."""
        self._stream = cuda_stream

    def set_transfer_context(self, old_indices: Any, layer_idx: int) -> None:
        """For communicators that read at their peers; this one needs none."""

    # ---- moving ----

    def execute(self, old_indices: Any = None) -> None:
        """Moves what was added since the last time. Returns when all that is to come is there and all that was to go may be overwritten.
        Raises who is gone, or what of this turn does not fit together; WaitTimeoutError: nothing has come for wait_ms."""
        engine = self._there()
        self._turn += 1
        try:
            with torch.cuda.stream(self._stream) if self._stream is not None else contextlib.nullcontext():
                _Turn(self, engine).run()
        except BaseException as error:
            self._broken = error.text if isinstance(error, Error) else str(error) or type(error).__name__
            self._tell(engine)
            raise
        finally:
            self._sends.clear()
            self._receives.clear()

    def _there(self) -> Engine:
        if self._engine is None:
            raise StateError("the communicator is closed")
        if self._broken:
            raise StateError(f"the communicator is of no use any more: {self._broken}")
        return self._engine

    def _tell(self, engine: Engine) -> None:
        """Peers of this turn would wait for what does not come. What is no word's length is a text."""
        for rank in {rank for rank, _ in (*self._sends, *self._receives)}:
            with contextlib.suppress(Exception):
                engine.send(rank, self._broken.encode()[:200].ljust(_WORD.size + 1))

    def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Turn:
    """One execute."""

    def __init__(self, moves: Communicator, engine: Engine):
        self.moves, self.engine = moves, engine
        self.to_ask: Deque[_Wanted] = deque(self._wanted())
        self.nr_to_write = {key: nr for key, tensors in moves._sends.items() if (nr := sum(-(-t.nbytes // moves._piece) for t in tensors))}
        self.granted: Deque[Tuple[int, _Word]] = deque()
        self.coming: Dict[int, _Piece] = {}  # by slot
        self.going: Dict[int, Operation] = {}
        later, moves._later = moves._later, []
        for peer, word in later:
            self._heard(peer, word)

    def _wanted(self) -> Iterator[_Wanted]:
        """Pieces to come, from each rank in turn."""
        moves = self.moves
        by_rank: Dict[int, List[_Wanted]] = {}
        for (source, expert), tensors in moves._receives.items():
            for i, tensor in enumerate(tensors):
                for at in range(0, tensor.nbytes, moves._piece):
                    length = min(moves._piece, tensor.nbytes - at)
                    word = _Word(moves._turn, expert, i, len(tensors), tensor.nbytes, at, length, 0)
                    by_rank.setdefault(source, []).append((source, word, tensor))
        for round_robin in itertools.zip_longest(*by_rank.values()):
            yield from filter(None, round_robin)

    def run(self) -> None:
        last = time.monotonic()
        while self.to_ask or self.coming or self.nr_to_write or self.going:
            if self._ask() | self._listen() | self._write() | self._landed() | self._arrived():
                last = time.monotonic()
                continue
            for rank, _ in self.nr_to_write:
                self.engine.peer(rank)  # raises that it is gone
            if time.monotonic() - last > self.moves._wait_ms / 1000:
                raise WaitTimeoutError(self._missing())
            self._doze()

    def _doze(self) -> None:
        """A word may come, or a piece, of which only the first wakes."""
        with contextlib.suppress(WaitTimeoutError):
            if self.coming:
                next(iter(self.coming.values())).arrival.wait(wait_ms=1)
            else:
                self._hear(wait_ms=1)

    def _missing(self) -> str:
        sources = sorted({piece.source for piece in self.coming.values()} | {source for source, _, _ in self.to_ask})
        askers = sorted({rank for rank, _ in self.nr_to_write})
        return (
            f"rank {self.moves.rank} waited {self.moves._wait_ms} ms in turn {self.moves._turn}; pieces are due from ranks "
            f"{sources}, and ranks {askers} have not asked for theirs"
        )

    # ---- receiving ----

    def _ask(self) -> bool:
        any_asked = False
        while self.to_ask and len(self.coming) < SLOTS:
            source, word, tensor = self.to_ask.popleft()
            slot = next(slot for slot in range(SLOTS) if slot not in self.coming)
            arrival = self.engine.expect(slot, peers=self.moves._peers[source])
            self.coming[slot] = _Piece(source, _flat(tensor)[word.at : word.at + word.length], arrival)
            self.engine.send(source, _WORD.pack(*word._replace(slot=slot)))
            any_asked = True
        return any_asked

    def _arrived(self) -> bool:
        there = [slot for slot, piece in self.coming.items() if piece.arrival.done()]
        for slot in there:
            into = self.coming[slot].into
            into.copy_(self.moves._into[slot, : len(into)], non_blocking=True)
        if any(self.coming[slot].into.is_cuda for slot in there):
            torch.cuda.current_stream().synchronize()  # before the slot is given to another piece
        for slot in there:
            del self.coming[slot]
        return bool(there)

    # ---- sending ----

    def _hear(self, wait_ms: int) -> None:
        peer, data = self.engine.recv(wait_ms=wait_ms)
        if len(data) != _WORD.size:
            raise ProtocolError(f"rank {peer} has given up: {data.decode(errors='replace')}")
        self._heard(peer, _Word(*_WORD.unpack(data)))

    def _heard(self, peer: int, word: _Word) -> None:
        """A rank that is a turn ahead may ask already."""
        if word.turn > self.moves._turn:
            self.moves._later.append((peer, word))
            return
        tensors = self.moves._sends.get((peer, word.expert))
        if tensors is None or len(tensors) != word.nr_tensors or tensors[word.tensor].nbytes != word.nbytes:
            sizes = "nothing" if tensors is None else f"tensors of {[t.nbytes for t in tensors]} bytes"
            raise InvalidError(
                f"expert {word.expert}: rank {peer} wants tensor {word.tensor} of {word.nr_tensors}, of {word.nbytes} bytes; "
                f"rank {self.moves.rank} sends {sizes} to it"
            )
        self.granted.append((peer, word))

    def _listen(self) -> bool:
        try:
            self._hear(wait_ms=0)
        except WaitTimeoutError:
            return False
        return True

    def _write(self) -> bool:
        begun: List[Tuple[int, _Word, int]] = []
        while self.granted and len(self.going) + len(begun) < SLOTS:
            peer, word = self.granted.popleft()
            used = set(self.going).union(slot for _, _, slot in begun)
            slot = next(slot for slot in range(SLOTS) if slot not in used)
            tensor = self.moves._sends[peer, word.expert][word.tensor]
            self.moves._from[slot, : word.length].copy_(_flat(tensor)[word.at : word.at + word.length], non_blocking=True)
            begun.append((peer, word, slot))
        if any(self.moves._sends[peer, word.expert][word.tensor].is_cuda for peer, word, _ in begun):
            torch.cuda.current_stream().synchronize()
        for peer, word, slot in begun:
            self._begin(peer, word, slot)
        return bool(begun)

    def _begin(self, peer: int, word: _Word, slot: int) -> None:
        piece = self.moves._piece
        self.going[slot] = self.engine.write(
            self.moves._region,
            self.moves._remotes[peer],
            local_offset=slot * piece,
            remote_offset=word.slot * piece,
            nbytes=word.length,
            immediate=word.slot,
        )
        self.nr_to_write[peer, word.expert] -= 1
        if not self.nr_to_write[peer, word.expert]:
            del self.nr_to_write[peer, word.expert]

    def _landed(self) -> bool:
        landed = [slot for slot, op in self.going.items() if op.done()]
        for slot in landed:
            del self.going[slot]
        return bool(landed)
