# SPDX-License-Identifier: Apache-2.0
"""python -m tern_ep.bench measures, compares, and notices a contender that is wrong."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_groups import command, run

from tern_ep.bench import Job, Plain

SMALL = ["--preset", "gpt-oss-120b", "--tokens", "3", "--rounds", "4", "--warmup", "1", "--json"]


def right(job: Job) -> Any:
    """Plain over the group's own allgather: slow, and another way to the same sums."""

    def alltoall(rows: Any, sent: Any, taken: Any) -> Any:
        width, rank = rows.shape[1] * rows.itemsize, job.group.rank
        starts = np.concatenate([[0], np.cumsum(sent)])
        pieces = [np.ascontiguousarray(rows[starts[r] : starts[r + 1]]).tobytes() for r in range(len(sent))]
        lengths = [np.frombuffer(part, np.int64) for part in job.group.allgather(np.array([len(p) for p in pieces], np.int64).tobytes())]
        most = max(int(of.sum()) for of in lengths)
        everybody = job.group.allgather(b"".join(pieces).ljust(most, b"\0"))
        mine = b"".join(part[int(of[:rank].sum()) : int(of[: rank + 1].sum())] for part, of in zip(everybody, lengths))
        return np.frombuffer(mine, np.uint8).reshape(sum(taken), width).view(rows.dtype)

    return Plain(job, alltoall)


def wrong(job: Job) -> Any:
    """The same with one element changed on one rank."""
    made = right(job)
    combine = made.combine

    def changed() -> Any:
        out = combine().copy()
        out[0, 7] ^= 0x4000 if job.group.rank == 1 else 0
        return out

    made.combine = changed
    return made


@pytest.mark.parametrize("mode", ["ll", "ht"])
@pytest.mark.parametrize("contender,nr_wrong", [("right", 0), ("wrong", 1)])
def test_bench(contender: str, nr_wrong: int, mode: str) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    arguments = ["run", "-n", "2", "--", sys.executable, "-m", "tern_ep.bench", *SMALL, "--mode", mode, "--against", f"test_bench:{contender}"]
    done = run([command(), *arguments], PYTHONPATH=path)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == (1 if nr_wrong else 0), done.stdout + done.stderr
    assert [(r["contender"], r["wrong"], r["ranks"]) for r in results] == [("tern_ep", 0, 2), (f"test_bench:{contender}", nr_wrong, 2)]
    for result in results:
        assert 0 < result["dispatch_p50_us"] <= result["dispatch_p99_us"] and result["both_p50_us"] >= result["combine_p50_us"]
