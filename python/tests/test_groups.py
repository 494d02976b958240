# SPDX-License-Identifier: Apache-2.0
"""How ranks find each other: threads, processes under `tern run`, the caller's allgather, mpi4py, torch.distributed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any, Dict, List

import pytest

import tern_ep
from tern_ep._library import library
from tern_ep.command import native

PROGRAM = Path(__file__).with_name("program.py")


def command() -> str:
    """The command `tern` that belongs to the library."""
    found = native()
    if not found:
        pytest.skip("the command tern is neither beside the library nor on PATH")
    return found


def run(arguments: List[str], **environment: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "TERN_LIBRARY": str(Path(library().path).resolve()), **environment}
    return subprocess.run(arguments, env=env, capture_output=True, text=True, timeout=120)


def test_alone() -> None:
    for make in (tern_ep.Group.alone, tern_ep.Group.from_environment):
        with make() as group:
            assert (group.rank, group.nr_ranks, group.nr_nodes, group.node(0), group.path(0)) == (0, 1, 1, 0, tern_ep.Path.SELF)
            assert group.paths  # in words
            assert group.allgather(b"mine") == [b"mine"]


def test_threads() -> None:
    def body(group: tern_ep.Group) -> Any:
        return group.rank, group.allgather(bytes([group.rank] * 3)), group.path((group.rank + 1) % 3)

    found = tern_ep.run_threads(3, body)
    assert [rank for rank, _, _ in found] == [0, 1, 2]
    assert all(everybody == [b"\0\0\0", b"\1\1\1", b"\2\2\2"] and path == tern_ep.Path.MAPPED for _, everybody, path in found)


def test_bad_ranks() -> None:
    with tern_ep.Group.alone() as group:
        for call in (group.node, group.path):
            with pytest.raises(tern_ep.InvalidError):
                call(1)
    with pytest.raises(tern_ep.InvalidError):
        tern_ep.run_threads(0, lambda group: None)


def test_settings_are_passed_on() -> None:
    def body(group: tern_ep.Group) -> Any:
        return group.nr_nodes

    threads = tern_ep.Threads(2)
    found: Dict[int, Any] = {}

    def rank(r: int) -> None:
        with threads.group(r, node=f"node{r}", transport="shm") as group:
            found[r] = (group.nr_nodes, group.path(1 - r))

    members = [threading.Thread(target=rank, args=(r,)) for r in range(2)]
    [member.start() for member in members]
    [member.join() for member in members]
    assert found == {0: (2, tern_ep.Path.ENGINE), 1: (2, tern_ep.Path.ENGINE)}
    with pytest.raises(tern_ep.Error, match="nonsense"):
        tern_ep.run_threads(2, body, force_engine=True, transport="nonsense")


class Meeting:
    """An allgather for threads that is none of Tern's."""

    def __init__(self, nr_ranks: int):
        self.barrier, self.parts = threading.Barrier(nr_ranks, timeout=30), [b""] * nr_ranks

    def of(self, rank: int) -> Any:
        def allgather(mine: bytes) -> List[bytes]:
            self.parts[rank] = mine
            self.barrier.wait()
            everybody = list(self.parts)
            self.barrier.wait()
            return everybody

        return allgather


def in_threads(nr_ranks: int, body: Any) -> List[Any]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(nr_ranks) as pool:
        return [f.result() for f in [pool.submit(body, rank) for rank in range(nr_ranks)]]


def test_the_callers_allgather() -> None:
    meeting = Meeting(3)

    def body(rank: int) -> Any:
        with tern_ep.Group.from_allgather(rank, 3, meeting.of(rank)) as group:
            assert (group.rank, group.nr_ranks) == (rank, 3)
            with tern_ep.Exchange(group, tern_ep.Config(hidden=64, nr_experts=3, topk=1, max_tokens=1)) as moe:
                return moe.local_experts

    assert in_threads(3, body) == [(0,), (1,), (2,)]


def test_what_the_callers_allgather_raises_is_raised() -> None:
    class Broken(Exception):
        pass

    def raises(mine: bytes) -> List[bytes]:
        raise Broken("no network today")

    with pytest.raises(Broken, match="no network today"):
        tern_ep.Group.from_allgather(0, 2, raises)
    with pytest.raises(tern_ep.BootstrapError, match="1 of|2 of"):
        tern_ep.Group.from_allgather(0, 2, lambda mine: [mine])
    with pytest.raises(tern_ep.BootstrapError):
        tern_ep.Group.from_allgather(0, 2, lambda mine: [mine, b""])


def test_tern_run() -> None:
    done = run([command(), "run", "-n", "3", "--", sys.executable, str(PROGRAM), "rounds"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.split()) == ["rank0:ok", "rank1:ok", "rank2:ok"]


def test_a_killed_rank_is_named() -> None:
    done = run([command(), "run", "-n", "3", "--keep-going", "--", sys.executable, str(PROGRAM), "die"])
    assert done.returncode == 128 + 9, done.stdout + done.stderr
    said = sorted(done.stdout.splitlines())
    assert len(said) == 2 and all("PeerDeadError -8 peer 1 TERN_ERR_PEER_DEAD: rank 1 died" in line for line in said), done.stdout


def test_mpi() -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    mpirun = shutil.which("mpirun")
    if not mpirun:
        pytest.skip("mpirun is not installed")
    done = run([mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, str(PROGRAM), "mpi"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.split()) == ["rank0:ok", "rank1:ok"]


def test_library_that_is_not_there() -> None:
    done = run([sys.executable, "-c", "import tern_ep; tern_ep.Group.alone()"], TERN_LIBRARY="/nowhere/libtern.so")
    assert done.returncode == 1 and "LibraryError: libtern was not found (set TERN_LIBRARY" in done.stderr, done.stderr


def test_library_that_is_another_one() -> None:
    program = textwrap.dedent(
        """
        import tern_ep
        try:
            tern_ep.Group.alone()
        except tern_ep.LibraryError as error:
            print(error)
        """
    )
    done = run([sys.executable, "-c", program], TERN_LIBRARY="libc.so.6")
    assert "libc.so.6 has no tern_strerror: it is not Tern" in done.stdout, done.stdout + done.stderr
