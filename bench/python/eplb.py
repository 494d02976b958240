# SPDX-License-Identifier: Apache-2.0
"""Experts moved by tern_ep.eplb.Communicator, and by gloo's isend and irecv, as vLLM's torch_gloo does: each rank sends one expert to
the next one, in turns of both. Rank 0 prints GB/s of a rank's sends: median, and slowest.

    tern run -n 4 -- python3 bench/python/eplb.py [MiB of an expert's three tensors, 66] [turns, 15] [transport, shm]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from typing import Callable, List

import torch
import torch.distributed as dist

import tern_ep
from tern_ep.eplb import Communicator


def main() -> None:
    mib, turns = int(sys.argv[1]) if len(sys.argv) > 1 else 66, int(sys.argv[2]) if len(sys.argv) > 2 else 15
    transport = sys.argv[3] if len(sys.argv) > 3 else "shm"
    with tern_ep.Group.from_environment() as group:
        rank, nr = group.rank, group.nr_ranks
        path = group.allgather(tempfile.mktemp().encode())[0].decode()
        dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=nr)
        mine = [torch.full(((mib << 20) // 6,), rank + 1, dtype=torch.bfloat16) for _ in range(3)]
        into = [torch.zeros_like(tensor) for tensor in mine]
        to, source = (rank + 1) % nr, (rank - 1) % nr

        def gloo() -> None:
            ops = [dist.P2POp(dist.isend, tensor, to) for tensor in mine] + [dist.P2POp(dist.irecv, tensor, source) for tensor in into]
            for request in dist.batch_isend_irecv(ops):
                request.wait()

        with Communicator(group, transport=transport) as communicator:

            def tern() -> None:
                communicator.add_send(mine, to, expert_id=rank)
                communicator.add_recv(into, source, expert_id=source)
                communicator.execute()

            def seconds(move: Callable[[], None]) -> float:
                for tensor in into:
                    tensor.zero_()
                group.allgather(b"")
                began = time.perf_counter()
                move()
                took = time.perf_counter() - began
                assert all(bool((tensor == source + 1).all()) for tensor in into)
                return max(float(word.decode()) for word in group.allgather(repr(took).encode().ljust(32)))

            names: List[str] = ["gloo", "tern"]
            found = {name: [] for name in names}  # type: dict[str, List[float]]
            for turn in range(turns + 2):
                for name, move in zip(names, (gloo, tern)):
                    took = seconds(move)
                    if turn > 1:
                        found[name].append(mib / 1024 / took)
            if rank == 0:
                print(f"{nr} ranks, {mib} MiB from each, {turns} turns, {transport}, slowest rank")
                for name in names:
                    print(f"{name:6} {statistics.median(found[name]):6.2f} GiB/s, at least {min(found[name]):.2f}")
        dist.destroy_process_group()
        if rank == 0 and os.path.exists(path):
            os.unlink(path)


if __name__ == "__main__":
    main()
