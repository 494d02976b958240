# SPDX-License-Identifier: Apache-2.0
"""Experts moved for an engine that balances by itself: bytes, sizes, both forms of the interface, and ranks that disagree or go."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tern_ep  # noqa: E402
from tern_ep.eplb import SLOTS, Communicator  # noqa: E402

DTYPES = [torch.bfloat16, torch.float8_e4m3fn, torch.float32, torch.int8]
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def on_ranks(nr: int, body: Callable[[tern_ep.Group, Communicator], Any], **settings: Any) -> List[Any]:
    def rank(group: tern_ep.Group) -> Any:
        with Communicator(group, transport="shm", **settings) as communicator:
            found = body(group, communicator)
            group.allgather(b"")  # nobody leaves before all are through
            return found

    return tern_ep.run_threads(nr, rank)


def drawn(rng: np.random.Generator) -> Tuple[List[Tuple[int, int, int]], List[Tuple[Tuple[int, ...], Any]]]:
    """(from, to, expert), and an expert's tensors: the same on all ranks."""
    moves = {(int(a), int(b), int(e)) for a, b, e in zip(*(rng.integers(0, n, 12) for n in (4, 4, 9))) if a != b}
    shapes = [(tuple(int(n) for n in rng.integers(0 if i == 2 else 1, 70, 2)), DTYPES[int(rng.integers(0, 4))]) for i in range(3)]
    return sorted(moves), shapes


def weights(turn: int, expert: int, shapes: Any, device: str) -> List[Any]:
    rng = np.random.default_rng((turn, expert))
    made = []
    for shape, dtype in shapes:
        nbytes = int(np.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
        made.append(torch.from_numpy(rng.integers(0, 256, nbytes, np.uint8)).view(dtype).reshape(shape).to(device))
    return made


def same(one: Any, other: Any) -> bool:
    return bool(torch.equal(one.contiguous().view(torch.uint8).cpu(), other.contiguous().view(torch.uint8).cpu()))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("by_id", [True, False])
def test_moves(by_id: bool, device: str) -> None:
    """Random moves turn after turn, of odd sizes, more pieces than slots; with ids in any order, without in the order of adding."""

    def body(group: tern_ep.Group, communicator: Communicator) -> int:
        nr_wrong, rng, own = 0, np.random.default_rng(5), np.random.default_rng(group.rank)
        for turn in range(12):
            moves, shapes = drawn(rng)
            into: Dict[Tuple[int, int], List[Any]] = {}
            if by_id:
                moves = [moves[i] for i in own.permutation(len(moves))]
            for source, to, expert in moves:
                tensors = weights(turn, expert, shapes, device)
                if source == group.rank and by_id:
                    communicator.add_send(tensors, to, expert)
                elif source == group.rank:
                    for tensor in tensors:
                        communicator.add_send(tensor, to)
                if to == group.rank:
                    into[source, expert] = [torch.full_like(tensor.view(torch.uint8), 165).view(tensor.dtype) for tensor in tensors]
                    if by_id:
                        communicator.add_recv(into[source, expert], source, expert)
                    else:
                        for tensor in into[source, expert]:
                            communicator.add_recv(tensor, source)
            communicator.execute()
            for (_, expert), found in into.items():
                nr_wrong += sum(not same(a, b) for a, b in zip(found, weights(turn, expert, shapes, device)))
        return nr_wrong

    assert on_ranks(4, body, staging_bytes=SLOTS * 512) == [0] * 4


def test_a_rank_ahead() -> None:
    """One that has nothing to wait for in a turn is in the next one."""

    def body(group: tern_ep.Group, communicator: Communicator) -> List[float]:
        found = []
        for turn in range(40):
            tensor = torch.full((300,), float(turn))
            if turn % 3 == group.rank:
                communicator.add_send([tensor], (group.rank + 1) % 3, 1)
            if turn % 3 == (group.rank - 1) % 3:
                communicator.add_recv([tensor.zero_()], (group.rank - 1) % 3, 1)
            communicator.execute()
            found.append(float(tensor[-1]))
        return found

    for rank, found in enumerate(on_ranks(3, body)):
        assert found == [float(turn) for turn in range(40)], rank


def outcome(call: Callable[[], None]) -> Any:
    try:
        call()
    except tern_ep.Error as error:
        return type(error), error.text
    return None, ""


def test_ranks_that_disagree() -> None:
    """Both hear of it, and neither uses it any more."""

    def body(group: tern_ep.Group, communicator: Communicator) -> Any:
        if group.rank == 0:
            communicator.add_send([torch.zeros(8)], 1, 3)
        else:
            communicator.add_recv([torch.zeros(9)], 0, 3)
        found = outcome(communicator.execute)
        assert outcome(communicator.execute)[0] is tern_ep.StateError
        return found

    (kind, text), (other_kind, other_text) = on_ranks(2, body, wait_ms=20000)
    assert kind is tern_ep.InvalidError and "expert 3: rank 1 wants tensor 0 of 1, of 36 bytes; rank 0 sends tensors of [32] bytes" in text
    assert other_kind is tern_ep.ProtocolError and "rank 0 has given up: expert 3" in other_text


def test_nobody_asks() -> None:
    def body(group: tern_ep.Group, communicator: Communicator) -> Any:
        if group.rank == 0:
            communicator.add_send([torch.zeros(8)], 1, 3)
        return outcome(communicator.execute)

    (kind, text), other = on_ranks(2, body, wait_ms=300)
    assert kind is tern_ep.WaitTimeoutError and "ranks [1] have not asked for theirs" in text and other == (None, "")


def test_a_peer_that_goes() -> None:
    def body(group: tern_ep.Group) -> Any:
        communicator = Communicator(group, transport="shm")
        if group.rank == 1:
            communicator.close()
            return None
        communicator.add_recv([torch.zeros(8)], 1, 3)
        return outcome(communicator.execute)

    kind, text = tern_ep.run_threads(2, body)[0]
    assert kind is tern_ep.PeerLeftError and "rank 1" in text


def test_refusals() -> None:
    def body(group: tern_ep.Group, communicator: Communicator) -> Any:
        tensor = torch.zeros((4, 4))
        found = [
            outcome(lambda: communicator.add_send([tensor], group.rank, 1)),
            outcome(lambda: communicator.add_send([tensor], 2, 1)),
            outcome(lambda: communicator.add_recv([tensor.T], 1 - group.rank, 1)),
            outcome(lambda: communicator.add_recv([tensor], 1 - group.rank, -2)),
        ]
        communicator.execute()  # of nothing: what was refused has added nothing
        communicator.add_recv([tensor], 1 - group.rank, 1)
        found.append(outcome(lambda: communicator.add_recv([tensor], 1 - group.rank, 1)))
        communicator.close()
        assert outcome(communicator.execute)[0] is tern_ep.StateError
        return found

    texts = [text for kind, text in on_ranks(2, body)[0] if kind is tern_ep.InvalidError]
    assert [part in text for part, text in zip(["dst_rank is 0", "dst_rank is 2", "strides [1, 4]", "expert_id is -2", "there already"], texts)] == [True] * 5
    with pytest.raises(tern_ep.InvalidError, match="staging_bytes is 7"):
        tern_ep.run_threads(1, lambda group: Communicator(group, staging_bytes=7))
    with pytest.raises(tern_ep.InvalidError, match="pieces of rank 1"):
        tern_ep.run_threads(2, lambda group: Communicator(group, transport="shm", staging_bytes=(group.rank + 1) << 20))
