# SPDX-License-Identifier: Apache-2.0
"""The pages of a KV cache by tern_ep.Engine, as bench/raw/pages.c sends them by libfabric alone: in a round rank 0 writes all pages in
one operation, rank 1 answers with an immediate when theirs has come, and a few rounds are under way at a time, as layers are in
examples/kv. scripts/pages.sh puts both beside each other.

    tern run -n 2 -- python3 bench/python/pages.py 512 16384 50 4
"""

from __future__ import annotations

import collections
import json
import sys
import time
from typing import Any, Callable, Deque

import numpy as np

import tern_ep

WARM = 3


def send(engine: tern_ep.Engine, write: Callable[[], Any], peers: tern_ep.Peers, nr_rounds: int, ahead: int) -> int:
    """The time from the answer to the WARM-th round to that of the last one."""
    under_way: Deque[Any] = collections.deque()
    nr_answers = begun = 0
    for sent in range(nr_rounds + ahead):
        if sent < nr_rounds:
            under_way.append((engine.expect(2, peers=peers), write()))
        if sent + 1 >= ahead and under_way:
            answer, written = under_way.popleft()
            answer.wait()
            nr_answers += 1
            if nr_answers == WARM:
                begun = time.perf_counter_ns()
            if nr_answers == nr_rounds:
                return time.perf_counter_ns() - begun
            written.wait()
    raise AssertionError("no end")


def answer(engine: tern_ep.Engine, peers: tern_ep.Peers, nr_rounds: int) -> None:
    for _ in range(nr_rounds):
        engine.expect(1, peers=peers).wait()
        answered = engine.write(immediate=2, peer=0)
    answered.wait()


def main() -> None:
    nr, page_bytes, rounds, ahead = (int(a) for a in (sys.argv[1:] + ["512", "16384", "50", "4"][len(sys.argv) - 1 :]))
    with tern_ep.Group.from_environment() as group, tern_ep.Engine(group, transport="ofi:tcp;ofi_rxm") as engine:
        i = np.arange(nr, dtype=np.uint64)
        ours, theirs = (i * 7919 + 1) % nr, (i * 104729 + 5) % nr
        memory = np.zeros((nr, page_bytes), np.uint8)
        content = np.random.default_rng(1).integers(0, 256, (nr, page_bytes), np.uint8)
        if group.rank == 0:
            memory[...] = content
        region = engine.register(memory)
        remotes = [engine.remote(d) for d in group.allgather(region.descriptor)]
        peers = engine.peers([1 - group.rank])
        took = 0
        if group.rank == 0:
            took = send(engine, lambda: engine.write_pages(region, remotes[1], ours, theirs, page_bytes=page_bytes, immediate=1), peers, rounds + WARM, ahead)
        else:
            answer(engine, peers, rounds + WARM)
        group.allgather(b"")
        if group.rank == 1 and not np.array_equal(memory[theirs], content[ours]):
            sys.exit("pages.py: other bytes came than were sent")
        if group.rank == 0:
            print(json.dumps(dict(pages=nr, page_bytes=page_bytes, ahead=ahead, gb_s=round(nr * page_bytes * rounds / took, 3))))
        engine.close()


if __name__ == "__main__":
    main()
