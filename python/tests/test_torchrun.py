# SPDX-License-Identifier: Apache-2.0
"""An elastic group whose ranks torchrun starts, each by an agent of its own, or what is like a kubelet, over a TCPStore that outlives
them: one is killed, is started anew, and it takes its place again. Skipped where torch is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Callable, List

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.distributed import TCPStore  # noqa: E402

import tern_ep as tern  # noqa: E402

RANKS = 4
PROGRAM = Path(__file__).with_name("joining.py")


def store() -> Any:
    return TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)


def test_a_store_keeps_bytes() -> None:
    one, other = (tern.StoreRendezvous(s, p) for s, p in zip([store()] * 2, ("a.", "b.")))
    assert one.get("k") is None
    one.set("k", b"\0\xff" * 200)
    assert one.get("k") == b"\0\xff" * 200
    one.set("k", b"")
    assert one.get("k") == b""
    assert other.get("k") is None


def test_ranks_meet_over_a_store() -> None:
    meeting = store()
    parts: List[Any] = [None] * 3
    failures: List[BaseException] = []

    def rank(number: int) -> None:
        try:
            client = TCPStore("127.0.0.1", meeting.port, None, False)
            with tern.Group.from_store(client, number, 3, "three.", wait_ms=20000) as group:
                parts[number] = (group.joins, group.allgather(bytes([number])))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=rank, args=(r,)) for r in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert parts == [(False, [b"\0", b"\1", b"\2"])] * 3


def test_one_that_does_not_come() -> None:
    with pytest.raises(Exception, match="tern.gather.0.1|imeout"):
        tern.Group.from_store(store(), 0, 2, wait_ms=200)


def torchrun(rank: int) -> List[str]:
    return (
        [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "1", "--max-restarts", "1"]
        + ["--monitor-interval", "0.1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", f"rank{rank}"]
    )


def container(_: int) -> List[str]:
    """As in a pod whose containers share its processes: file systems of their own, and a kubelet that starts each again, here twice at
    most."""
    return ["sh", "-c", 'unshare --mount "$@" || unshare --mount "$@"', "kubelet", sys.executable]


@pytest.mark.parametrize(("launcher", "nodes"), [(torchrun, 1), (container, 1), (torchrun, 2)])
def test_brings_a_rank_back(launcher: Callable[[int], List[str]], nodes: int) -> None:
    if launcher is container and subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("no namespaces can be made here")
    meeting = store()
    agents = [
        subprocess.Popen(
            launcher(r) + [str(PROGRAM), "127.0.0.1", str(meeting.port), str(r)],
            env={**os.environ, "TERN_NODE": str(r * nodes // RANKS)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(RANKS)
    ]
    said = [agent.communicate() for agent in agents]
    assert [agent.returncode for agent in agents] == [0] * RANKS, [err[-2000:] for _, err in said]
    assert [out.count("joined") for out, _ in said] == [0, 0, 1, 0], said
    assert [out.count("went on") for out, _ in said] == [1, 1, 0, 1], said
