# SPDX-License-Identifier: Apache-2.0
"""The pages of a KV cache by tern_ep.Engine, as bench/raw/pages.c sends them by libfabric alone: rank 0 writes all pages in one operation,
rank 1 answers with an immediate when theirs has come. scripts/pages.sh puts both beside each other.

    tern run -n 2 -- python3 bench/python/pages.py 512 16384 50
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

import tern_ep

WARM = 3


def main() -> None:
    nr, page_bytes, rounds = (int(a) for a in (sys.argv[1:] + ["512", "16384", "50"][len(sys.argv) - 1 :]))
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
        took = []
        for _ in range(rounds + WARM):
            begun = time.perf_counter_ns()
            if group.rank == 0:
                written = engine.write_pages(region, remotes[1], ours, theirs, page_bytes=page_bytes, immediate=1)
                engine.expect(2, peers=peers).wait()
                written.wait()
            else:
                engine.expect(1, peers=peers).wait()
                engine.write(immediate=2, peer=0).wait()
            took.append(time.perf_counter_ns() - begun)
        group.allgather(b"")
        if group.rank == 1 and not np.array_equal(memory[theirs], content[ours]):
            sys.exit("pages.py: other bytes came than were sent")
        if group.rank == 0:
            p50 = sorted(took[WARM:])[rounds // 2]
            print(json.dumps(dict(pages=nr, page_bytes=page_bytes, p50_us=p50 / 1000, gb_s=round(nr * page_bytes / p50, 3))))
        engine.close()


if __name__ == "__main__":
    main()
