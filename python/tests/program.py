# SPDX-License-Identifier: Apache-2.0
"""A rank of test_groups.py, as a process."""

import os
import signal
import sys
from typing import Any

import numpy as np
from reference import World, fill_results, judge_combined, judge_received

import tern_ep

CONFIG = tern_ep.Config(hidden=64, nr_experts=8, topk=3, max_tokens=8, combine_dtype=tern_ep.Dtype.FP32)


def rounds(group: tern_ep.Group) -> None:
    with tern_ep.Exchange(group, CONFIG) as moe:
        for seed in range(20):
            world = World(CONFIG, group.nr_ranks, [(seed + 3 * r) % 9 for r in range(group.nr_ranks)], seed)
            received = moe.dispatch(world.x[group.rank], world.ids[group.rank], world.weights[group.rank])
            judge_received(world, group.rank, received)
            y = moe.empty_y(received)
            fill_results(world, group.rank, y)
            judge_combined(world, group.rank, moe.combine(y))
    print(f"rank{group.rank}:ok\n", end="", flush=True)


def die(group: tern_ep.Group) -> None:
    with tern_ep.Exchange(group, CONFIG) as moe:
        received = moe.dispatch(np.zeros((2, 64), np.uint16), np.array([[0, 3, 6]] * 2, np.int32))
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            moe.combine(moe.empty_y(received))
        except tern_ep.Error as error:
            assert error.report is not None
            print(f"{type(error).__name__} {error.code} peer {error.report.peer} {error}\n", end="", flush=True)


def main(what: str) -> None:
    group: Any = tern_ep.Group.from_mpi() if what == "mpi" else tern_ep.Group.from_environment()
    with group:
        {"rounds": rounds, "mpi": rounds, "die": die}[what](group)


main(sys.argv[1])
