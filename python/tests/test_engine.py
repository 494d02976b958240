# SPDX-License-Identifier: Apache-2.0
"""The transfer engine from Python: bytes, immediates, refusals, and who keeps what for how long."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, List, Optional

import numpy as np
import pytest

import tern_ep
from tern_ep import Engine, Group

NETWORKS = ["shm", "ofi:tcp;ofi_rxm"]


def offered(network: str) -> bool:
    try:
        with Group.alone() as group, Engine(group, transport=network):
            return True
    except tern_ep.UnsupportedError:
        return False


@pytest.fixture(params=NETWORKS)
def network(request: Any) -> str:
    if not offered(request.param):
        pytest.skip(f"{request.param} is not here")
    return str(request.param)


def on_ranks(nr: int, network: str, body: Callable[[Group, Engine], Any], **settings: Any) -> List[Any]:
    def rank(group: Group) -> Any:
        with Engine(group, transport=network, **settings) as engine:
            found = body(group, engine)
            group.allgather(b"")  # nobody leaves before all are through
            return found

    return tern_ep.run_threads(nr, rank)


def test_write_and_immediates(network: str) -> None:
    def body(group: Group, engine: Engine) -> None:
        memory = np.zeros(64, np.uint32)
        mine = engine.register(memory)
        theirs = [engine.remote(d) for d in group.allgather(mine.descriptor)]
        assert (engine.rank, engine.nr_peers, theirs[1].rank, theirs[1].nbytes, mine.nbytes) == (group.rank, 2, 1, 256, 256)
        if group.rank == 0:
            memory[:16] = np.arange(16) + 100
            engine.write(mine, theirs[1], nbytes=64, remote_offset=128, immediate=7).wait()
            engine.write(immediate=8, peer=1).wait()
            op = engine.write(mine, theirs[1], local_offset=4, nbytes=4)
            while not op.done():
                time.sleep(0)
            assert op.done() and engine.count(7) == 0
        else:
            engine.expect(8).wait()
            engine.expect(7, 1).wait()
            assert memory[32:48].tolist() == list(range(100, 116)) and memory[48:].sum() == 0

    on_ranks(2, network, body)


def test_pages(network: str) -> None:
    def body(group: Group, engine: Engine) -> None:
        rank, other = group.rank, 1 - group.rank
        memory = np.zeros((32, 96), np.uint8)
        memory[:16] = np.arange(16)[:, None] + 1 + 100 * rank
        mine = engine.register(memory)
        theirs = [engine.remote(d) for d in group.allgather(mine.descriptor)]
        engine.write_pages(mine, theirs[other], [3, 0, 15], np.array([20, 31, 16], np.int64), page_bytes=96, immediate=5).wait()
        engine.expect(5).wait()
        assert memory[[20, 31, 16], :].tolist() == [[n + 1 + 100 * other] * 96 for n in (3, 0, 15)]
        group.allgather(b"")
        engine.write_pages(mine, theirs[other], [1], [2], page_bytes=10, local_offset=5, remote_offset=16 * 96, local_stride=96, remote_stride=200, immediate=6)
        engine.expect(6).wait()
        assert memory.reshape(-1)[16 * 96 + 400 : 16 * 96 + 410].tolist() == [2 + 100 * other] * 10
        with pytest.raises(tern_ep.InvalidError, match="0 pages"):
            engine.write_pages(mine, theirs[other], [], [], page_bytes=8, immediate=9)

    on_ranks(2, network, body)


def test_scatter_barrier_and_messages(network: str) -> None:
    def body(group: Group, engine: Engine) -> None:
        rank = group.rank
        memory = np.zeros((6, 16), np.uint8)
        memory[:3] = 10 * rank + np.arange(3)[:, None] + 1
        mine = engine.register(memory)
        theirs = [engine.remote(d) for d in group.allgather(mine.descriptor)]
        peers = engine.peers(range(3), theirs)
        engine.scatter(mine, peers, [(16 * p, 16 * (3 + rank), 16) for p in range(3)], immediates=[40] * 3).wait()
        engine.expect(40, 3, peers=peers).wait()
        assert memory[3:].tolist() == [[10 * source + rank + 1] * 16 for source in range(3)]
        engine.barrier(41, engine.peers([p for p in range(3)])).wait()
        for peer in range(3):
            engine.send(peer, b"from %d" % rank + b"!" * 100)
        assert sorted(engine.recv() for _ in range(3)) == [(p, b"from %d" % p + b"!" * 100) for p in range(3)]
        with pytest.raises(tern_ep.WaitTimeoutError):
            engine.recv(0)
        assert engine.stats().immediates >= 3

    on_ranks(3, network, body)


def test_operations_that_nobody_waits_for() -> None:
    """Their lists are kept until they have ended, and their handles come back."""

    def body(group: Group, engine: Engine) -> None:
        memory = np.zeros((64, 8), np.uint8)
        mine = engine.register(memory)
        theirs = [engine.remote(d) for d in group.allgather(mine.descriptor)]
        for i in range(200):
            engine.write_pages(mine, theirs[0], list(range(32)), list(range(32, 64)), page_bytes=8, immediate=1)
            if i % 10 == 9:
                engine.expect(1, 10).wait()
        engine.count(1)
        engine.write(immediate=2, peer=0).wait()
        assert len(engine._under_way) <= 8

    on_ranks(1, "shm", body, nr_operations=8)


def test_memory_is_kept() -> None:
    with Group.alone() as group:
        engine = Engine(group)
        memory = np.zeros(64, np.uint8)
        alive = weakref.ref(memory)
        region = engine.register(memory)
        descriptor = region.descriptor
        del memory, region
        gc.collect()
        assert alive() is not None
        source = engine.register(np.full(64, 3, np.uint8))
        engine.write(source, engine.remote(descriptor)).wait()
        assert alive().tolist() == [3] * 64  # type: ignore[union-attr]
        source.deregister()
        with pytest.raises(tern_ep.StateError, match="given up"):
            source.deregister()
        del engine, source
        gc.collect()
        assert alive() is None


REFUSED: List[Any] = [
    (lambda e, m, r: e.write(m, r, nbytes=65), "65|bytes"),
    (lambda e, m, r: e.write(m, r, nbytes=8, local_offset=2**64 - 4), "bytes"),
    (lambda e, m, r: e.write(m, r, nbytes=-1), "bytes is -1; 0 to"),
    (lambda e, m, r: e.write(m, r, immediate=2**32), "immediate is 4294967296; 0 to 4294967295"),
    (lambda e, m, r: e.write(m, None), "local and remote, or a peer"),
    (lambda e, m, r: e.write(peer=0, nbytes=4), "local and remote, or a peer"),
    (lambda e, m, r: e.write(immediate=1, peer=9), "9"),
    (lambda e, m, r: e.write(r, m), "Region|Remote|rank"),
    (lambda e, m, r: e.write_pages(m, r, [0, 1], [0], page_bytes=4), "2 local pages and 1 remote"),
    (lambda e, m, r: e.write_pages(m, r, [0.5], [0], page_bytes=4), "local_pages has to be a list"),
    (lambda e, m, r: e.write_pages(m, r, [0], [-1], page_bytes=4), "remote_pages has to be a list"),
    (lambda e, m, r: e.write_pages(m, r, [0], [16], page_bytes=4), "16|page"),
    (lambda e, m, r: e.register(bytes(8)), "read-only"),
    (lambda e, m, r: e.register(np.zeros((4, 4))[:, :2]), "dense"),
    (lambda e, m, r: e.register(3), "no array"),
    (lambda e, m, r: e.remote(b"short"), "5 bytes"),
    (lambda e, m, r: e.remote(bytes(120)), "descriptor"),
    (lambda e, m, r: e.peers([0, 0]), "twice|once|0"),
    (lambda e, m, r: e.scatter(m, e.peers([0], [r]), []), "0 slices"),
    (lambda e, m, r: e.send(0, bytes(10**5)), "100000|message"),
]


@pytest.mark.parametrize("call,words", REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_refused(call: Callable[..., Any], words: str) -> None:
    """With the library's text where the library refuses; nothing was written."""
    with Group.alone() as group, Engine(group) as engine:
        memory = np.zeros(64, np.uint8)
        mine = engine.register(memory)
        remote = engine.remote(mine.descriptor)
        before = engine.stats().writes
        with pytest.raises(tern_ep.InvalidError, match=words):
            call(engine, mine, remote)
        engine.write(immediate=1, peer=0).wait()
        assert engine.stats().writes <= before + 1 and not memory.any()


def test_what_is_another_engines_or_gone() -> None:
    with Group.alone() as group, Engine(group) as engine, Engine(group) as other:
        memory = np.zeros(64, np.uint8)
        mine, foreign = engine.register(memory), other.register(memory)
        remote = engine.remote(mine.descriptor)
        with pytest.raises(tern_ep.InvalidError, match="the Region is another engine's"):
            engine.write(foreign, remote)
        remote.forget()
        with pytest.raises(tern_ep.StateError, match="the Remote was given up"):
            engine.write(mine, remote)
        with pytest.raises(tern_ep.StateError, match="given up"):
            remote.forget()
        other.close()
        other.close()
        for call in (lambda: other.register(memory), lambda: other.write(immediate=1, peer=0), lambda: other.recv(0), other.stats, lambda: other.count(1), foreign.deregister):
            with pytest.raises(tern_ep.StateError, match="closed|given up"):
                call()
        with pytest.raises(tern_ep.InvalidError, match="depth is -1"):
            Engine(group, depth=-1)
        with pytest.raises(tern_ep.Error, match="nonsense"):
            Engine(group, transport="nonsense")
        with pytest.raises(tern_ep.InvalidError, match="5 devices"):
            Engine(group, devices=["a"] * 5)


def test_closing_under_a_call_is_refused() -> None:
    with Group.alone() as group, Engine(group) as engine:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(engine.recv, 20000)
            while not engine._nr_calls:
                time.sleep(0)
            with pytest.raises(tern_ep.StateError, match="1 calls of other threads"):
                engine.close()
            engine.send(0, b"go on").wait()
            assert waiting.result() == (0, b"go on")


def test_a_peer_that_leaves_ends_what_waits_for_it(network: str) -> None:
    gone = threading.Event()

    def rank(group: Group) -> None:
        with Engine(group, transport=network, timeout_ms=3000) as engine:
            if group.rank == 1:
                engine.expect(1).wait()
                return
            waits = engine.expect(2, peers=engine.peers([1]))
            engine.write(immediate=1, peer=1).wait()
            with pytest.raises((tern_ep.PeerLeftError, tern_ep.PeerDeadError), match="1"):
                waits.wait()
            with pytest.raises((tern_ep.PeerLeftError, tern_ep.PeerDeadError)):
                engine.peer(1)
            with pytest.raises((tern_ep.PeerLeftError, tern_ep.PeerDeadError)):
                engine.write(immediate=1, peer=1).wait()
            gone.set()

    tern_ep.run_threads(2, rank)
    assert gone.is_set()


def test_groups_over_a_socket() -> None:
    """Peers join one after the other, each in a group and an engine of its own, over one memory."""
    pool = np.zeros((3, 32), np.uint8)

    def joins(number: int, end: socket.socket) -> None:
        with end, Group.from_socket(end, 1) as group, Engine(group) as engine:
            remote = engine.remote(group.allgather(bytes(120))[0])
            engine.write(engine.register(np.full(32, number + 1, np.uint8)), remote, remote_offset=32 * number, immediate=9).wait()
            engine.expect(1).wait()

    for number in range(3):
        ours, theirs = socket.socketpair()
        with ThreadPoolExecutor(1) as threads, ours:
            joined = threads.submit(joins, number, theirs)
            with Group.from_socket(ours, 0) as group, Engine(group) as engine:
                assert (group.rank, group.nr_ranks) == (0, 2)
                group.allgather(engine.register(pool).descriptor)
                engine.expect(9).wait()
                engine.write(immediate=1, peer=1).wait()
                joined.result()
    assert pool.tolist() == [[1] * 32, [2] * 32, [3] * 32]


def test_a_socket_that_says_nothing_or_nonsense() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with pytest.raises(tern_ep.InvalidError, match="0 and 1"):
            Group.from_socket(ours, 2)
        with pytest.raises(tern_ep.BootstrapError, match="said nothing for 50 ms"):
            Group.from_socket(ours, 0, wait_ms=50)
        theirs.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with pytest.raises(tern_ep.BootstrapError, match="gone: it sent"):
            Group.from_socket(ours, 0, wait_ms=5000)
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(tern_ep.BootstrapError, match="gone"):
        Group.from_socket(ours, 0, wait_ms=5000)


def late_ns() -> int:
    """How long this process's threads could have run and did not, in sum: tests/late.h."""
    late = 0
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/schedstat") as file:
                late += int(file.read().split()[1])
        except OSError:
            pass
    return late


def test_a_target_stays_awake_for_pages() -> None:
    """Where bytes land only while the target polls, plain writes are no news to it: it slept between two pages, 0.2 ms each time."""
    if not offered("ofi:tcp;ofi_rxm"):
        pytest.skip("no libfabric here")

    def body(group: Group, engine: Engine) -> Optional[int]:
        memory = np.zeros((256, 65536), np.uint8)
        mine = engine.register(memory)
        theirs = [engine.remote(d) for d in group.allgather(mine.descriptor)]
        best: Optional[int] = None  # of the rounds in which no thread was kept from running: who waits for such a one does sleep
        for _ in range(60):
            if group.allgather(bytes([best is None or best >= 128]))[1] == b"\0":
                break
            before, late = engine.stats().sleeps, late_ns()
            if group.rank == 0:
                engine.write_pages(mine, theirs[1], range(256), range(256), page_bytes=65536, immediate=1).wait()
            else:
                engine.expect(1).wait()
                slept = engine.stats().sleeps - before
                if late_ns() - late < 10_000_000:
                    best = slept if best is None else min(best, slept)
        return best

    best = on_ranks(2, "ofi:tcp;ofi_rxm", body)[1]
    if best is None:
        pytest.skip("others kept this process's threads from running in every round")
    assert best < 128
