# SPDX-License-Identifier: Apache-2.0
"""Times dispatch and combine in Python, and puts other libraries beside Tern in the same processes with the same inputs.

    tern run -n 4 -- python3 -m tern_ep.bench --preset deepseek-v3 --tokens 128
    mpirun -n 4 python3 -m tern_ep.bench --against mpi
    torchrun --nproc-per-node 4 -m tern_ep.bench --against torch
    ...                                        --against my_module:make

make(job) returns a contender: an object with dispatch(), which moves job.x to the ranks of its experts, and combine(), which returns
[n][hidden] sums of job.dtype. Experts give back what they get, so each token has to come home as itself times the sum of its weights;
that is compared before anything is timed. Times are those of the slowest rank in each round, Python's share included.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import numpy.typing as npt

from .arrays import Dtype, empty
from .config import Config, Mode
from .exchange import Exchange
from .group import Group

PRESETS = {
    "deepseek-v3": (7168, 256, 8),
    "qwen3-30b-a3b": (2048, 128, 8),
    "gpt-oss-120b": (2880, 128, 4),
}
DTYPES = {"bf16": Dtype.BF16, "fp32": Dtype.FP32}
Floats = npt.NDArray[Any]


def to_float(rows: Floats) -> Floats:
    """bf16 bits or float32 as float32."""
    return (rows.astype(np.uint32) << 16).view(np.float32) if rows.dtype == np.uint16 else rows


def from_float(values: Floats, dtype: Dtype) -> Floats:
    """float32 as bf16 bits, to the nearest even, or as it is. No NaN here."""
    if dtype == Dtype.FP32:
        return values
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class Job:
    """One rank's inputs: uniform routing, without duplicates in a row."""

    def __init__(self, group: Group, hidden: int, nr_experts: int, topk: int, nr_tokens: int, dtype: Dtype, mode: Mode, seed: int):
        self.group, self.hidden, self.nr_experts, self.topk, self.dtype, self.mode = group, hidden, nr_experts, topk, dtype, mode
        self.nr_tokens = nr_tokens
        random = np.random.default_rng([seed, group.rank])
        self.x = empty((nr_tokens, hidden), np.uint16 if dtype == Dtype.BF16 else np.float32)
        self.x[...] = from_float(random.standard_normal((nr_tokens, hidden), dtype=np.float32), dtype)
        self.topk_ids = np.ascontiguousarray(random.random((nr_tokens, nr_experts)).argsort(axis=1)[:, :topk].astype(np.int32))
        weights = random.random((nr_tokens, topk), dtype=np.float32)
        self.topk_weights = weights / weights.sum(axis=1, keepdims=True)

    def wrong(self, out: Any) -> int:
        """Elements that are off by more than the roundings on the way may make them."""
        x = to_float(self.x)
        error = np.abs(to_float(np.asarray(out)) - x * self.topk_weights.sum(axis=1, keepdims=True))
        return int((error > np.abs(x) * (2.0**-7 if self.dtype == Dtype.BF16 else 1e-5) + 1e-30).sum())


class Tern:
    """Rows are used where they arrive, and given back from there."""

    def __init__(self, job: Job):
        config = Config(
            hidden=job.hidden,
            nr_experts=job.nr_experts,
            topk=job.topk,
            max_tokens=max(job.nr_tokens, 1),
            mode=job.mode,
            x_dtype=job.dtype,
            dispatch_dtype=job.dtype,
            combine_dtype=job.dtype,
        )
        self.job, self.moe = job, Exchange(job.group, config)
        self.out = empty(job.x.shape, job.x.dtype)

    def dispatch(self) -> None:
        self.received = self.moe.dispatch(self.job.x, self.job.topk_ids, self.job.topk_weights)
        self.y = self.received.x

    def combine(self) -> Any:
        return self.moe.combine(self.y, out=self.out)


Alltoall = Callable[[Floats, List[int], List[int]], Floats]


class Plain:
    """What one writes without a library: a row for each route, counts first, sorted by expert on arrival. numpy does the work."""

    def __init__(self, job: Job, alltoall: Alltoall):
        self.job, self.alltoall, self.nr_ranks = job, alltoall, job.group.nr_ranks
        block, larger = divmod(job.nr_experts, self.nr_ranks)
        self.rank_of = np.repeat(np.arange(self.nr_ranks), [block + (r < larger) for r in range(self.nr_ranks)])

    def dispatch(self) -> None:
        ids = self.job.topk_ids.reshape(-1)
        self.order = np.argsort(self.rank_of[ids], kind="stable")
        sent = np.bincount(self.rank_of[ids], minlength=self.nr_ranks)
        ones = [1] * self.nr_ranks
        self.sent = [int(n) for n in sent]
        self.taken = [int(n) for n in self.alltoall(sent.astype(np.int64).reshape(-1, 1), ones, ones).reshape(-1)]
        experts = self.alltoall(ids[self.order].reshape(-1, 1), self.sent, self.taken).reshape(-1)
        rows = self.alltoall(self.job.x[self.order // self.job.topk], self.sent, self.taken)
        self.by_expert = np.argsort(experts, kind="stable")
        self.y = rows[self.by_expert]

    def combine(self) -> Any:
        results = np.empty_like(self.y)
        results[self.by_expert] = self.y
        home = self.alltoall(results, self.taken, self.sent)
        routes = np.empty_like(home)
        routes[self.order] = home
        terms = to_float(routes).reshape(self.job.nr_tokens, self.job.topk, self.job.hidden)
        return from_float(np.einsum("nkh,nk->nh", terms, self.job.topk_weights), self.job.dtype)


def plain_mpi(job: Job) -> Plain:
    from mpi4py import MPI

    def alltoall(rows: Floats, sent: List[int], taken: List[int]) -> Floats:
        width = rows.shape[1] * rows.itemsize
        into = np.empty((sum(taken), rows.shape[1]), rows.dtype)
        send, receive = [n * width for n in sent], [n * width for n in taken]
        MPI.COMM_WORLD.Alltoallv([np.ascontiguousarray(rows), send, MPI.BYTE], [into, receive, MPI.BYTE])
        return into

    return Plain(job, alltoall)


def plain_torch(job: Job) -> Plain:
    import torch
    import torch.distributed as dist

    def alltoall(rows: Floats, sent: List[int], taken: List[int]) -> Floats:
        into = np.empty((sum(taken), rows.shape[1] * rows.itemsize), np.uint8)
        given = np.ascontiguousarray(rows).view(np.uint8)
        dist.all_to_all_single(torch.from_numpy(into), torch.from_numpy(given), taken, sent)
        return into.view(rows.dtype)

    return Plain(job, alltoall)


AGAINST: Dict[str, Callable[[Job], Any]] = {"mpi": plain_mpi, "torch": plain_torch}


def contender(name: str) -> Callable[[Job], Any]:
    if name in AGAINST:
        return AGAINST[name]
    module, _, function = name.partition(":")
    made: Callable[[Job], Any] = getattr(importlib.import_module(module), function)
    return made


def everybody(group: Group, values: List[float]) -> Floats:
    """[ranks][values]"""
    parts = group.allgather(np.array(values, np.float64).tobytes())
    return np.array([np.frombuffer(part, np.float64) for part in parts])


def measure(job: Job, name: str, make: Callable[[Job], Any], warmup: int, rounds: int) -> Dict[str, Any]:
    """Microseconds of the slowest rank, over the rounds."""
    one = make(job)
    one.dispatch()
    wrong = int(everybody(job.group, [float(job.wrong(one.combine()))]).sum())
    took: List[float] = []
    for i in range(warmup + rounds):
        job.group.allgather(b"ready")
        begun = time.perf_counter()
        one.dispatch()
        between = time.perf_counter()
        one.combine()
        ended = time.perf_counter()
        if i >= warmup:
            took += [between - begun, ended - between, ended - begun]
    slowest = everybody(job.group, took).max(axis=0).reshape(rounds, 3) * 1e6
    result: Dict[str, Any] = {"contender": name, "wrong": wrong}
    for column, what in enumerate(("dispatch", "combine", "both")):
        result[f"{what}_p50_us"], result[f"{what}_p99_us"] = (round(float(p), 1) for p in np.percentile(slowest[:, column], (50, 99)))
    return result


def join(against: List[str]) -> Group:
    """The group of whoever started this process."""
    if "torch" in against:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        return Group.from_torch()
    return Group.from_mpi() if "mpi" in against else Group.from_environment()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tern_ep.bench", description="Times dispatch and combine, beside other libraries.")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="deepseek-v3")
    parser.add_argument("--tokens", type=int, default=128, help="of each rank")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    parser.add_argument("--mode", choices=("ll", "ht"), default="ll")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--against", action="append", default=[], metavar="NAME", help="mpi, torch or module:function; may be repeated")
    parser.add_argument("--json", action="store_true", help="one object a line instead of a table")
    return parser.parse_args()


def show(results: List[Dict[str, Any]]) -> None:
    columns = [name for name in results[0] if name != "contender"]
    print(f"{'':24}" + "".join(f"{name:>17}" for name in columns))
    for result in results:
        print(f"{result['contender']:24}" + "".join(f"{result[name]:>17}" for name in columns))


def main() -> int:
    chosen = arguments()
    contenders: List[Tuple[str, Callable[[Job], Any]]] = [("tern_ep", Tern)] + [(name, contender(name)) for name in chosen.against]
    with join(chosen.against) as group:
        mode = Mode.HIGH_THROUGHPUT if chosen.mode == "ht" else Mode.LOW_LATENCY
        job = Job(group, *PRESETS[chosen.preset], chosen.tokens, DTYPES[chosen.dtype], mode, chosen.seed)
        results = [measure(job, name, make, chosen.warmup, chosen.rounds) for name, make in contenders]
        if group.rank == 0:
            for result in results if chosen.json else []:
                print(json.dumps({**vars(chosen), "ranks": group.nr_ranks, **result}))
            if not chosen.json:
                print(f"{chosen.preset}, {group.nr_ranks} ranks, {chosen.tokens} tokens each, {chosen.dtype}, {chosen.mode}")
                show(results)
    return 1 if any(result["wrong"] for result in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
