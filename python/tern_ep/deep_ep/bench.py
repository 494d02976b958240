# SPDX-License-Identifier: Apache-2.0
"""Times each call of tern_ep.deep_ep and, with --against, of another deep_ep of version 1, in one run with the same inputs.

    torchrun --nproc-per-node 2 -m tern_ep.deep_ep.bench --against deep_ep --sms 24 --most 128 1024

On GPUs where there are any, over NCCL; else on the CPU over gloo. alone: from a barrier to the call's end on the slowest rank, what
Python takes included; in a row: calls one after the other, the device waited for once. graph: low-latency pairs replayed. Sums are
looked at before anything is timed. Times are medians in microseconds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
import torch.distributed as dist

from .. import deep_ep

Calls = List[Tuple[str, Callable[[], Any]]]


class Job:
    """One rank's inputs: uniform routing, without duplicates in a row."""

    def __init__(self, args: Any, nr_tokens: int, device: Any):
        self.nr_experts, self.nr_ranks, self.device = args.experts, dist.get_world_size(), device
        random = torch.Generator().manual_seed(1000 * nr_tokens + dist.get_rank())
        self.x = torch.randn((nr_tokens, args.hidden), generator=random).to(torch.bfloat16).to(device)
        self.ids = torch.rand((nr_tokens, args.experts), generator=random).argsort(1)[:, : args.topk].contiguous().to(device)
        self.weights = torch.rand((nr_tokens, args.topk), generator=random).to(device)

    def judge(self, what: str, found: Any, times: Any) -> None:
        """Rows came home as often as they were sent, or weighted."""
        expected = self.x.float() * times[:, None]
        error = float((found.float() - expected).norm() / expected.norm().clamp_min(1e-30))
        if not error < 5e-2:  # of E4M3
            raise SystemExit(f"{what}: sums are off by {error:.2g} of their size on rank {dist.get_rank()}")


class Library:
    """A deep_ep and its buffer."""

    def __init__(self, name: str, module: Any, args: Any, group: Any):
        self.name, self.module = name, module
        nr_ranks, most = group.size(), max(args.most)
        hidden_bytes = 2 * args.hidden
        configs = [module.Config(sms) for sms in args.sms]
        nvl = max(config.get_nvl_buffer_size_hint(hidden_bytes, nr_ranks) for config in configs)
        rdma = module.Buffer.get_low_latency_rdma_size_hint(most, args.hidden, nr_ranks, args.experts)
        self.buffer = module.Buffer(group, nvl, rdma, low_latency_mode=True, num_qps_per_rank=max(args.experts // nr_ranks, 1), explicitly_destroy=True)

    def normal(self, job: Job, sms: int) -> Calls:
        """The calls of normal mode, each with what the one before has left."""
        buffer = self.buffer
        left: Dict[str, Any] = {}
        config = self.module.Config(sms)

        def layout() -> None:
            left["layout"] = buffer.get_dispatch_layout(job.ids, job.nr_experts)

        def dispatch() -> None:
            ranks, nodes, experts, there, _ = left["layout"]
            given = dict(num_tokens_per_rank=ranks, num_tokens_per_rdma_rank=nodes, is_token_in_rank=there, num_tokens_per_expert=experts)
            left["rows"], _, left["weights"], _, left["handle"], _ = buffer.dispatch(job.x, topk_idx=job.ids, topk_weights=job.weights, config=config, **given)

        def again() -> None:
            left["rows"] = buffer.dispatch(job.x, handle=left["handle"], config=config)[0]

        def combine() -> None:
            left["out"] = buffer.combine(left["rows"], left["handle"], config=config)[0]

        layout()
        dispatch()
        combine()
        job.judge(f"{self.name}: combine", left["out"], left["layout"][3].sum(1))
        return [("get_dispatch_layout", layout), ("dispatch", dispatch), ("combine", combine), ("dispatch, handle", again), ("combine, handle", combine)]

    def low_latency(self, job: Job, most: int, fp8: bool) -> Calls:
        buffer = self.buffer
        left: Dict[str, Any] = {}
        out = torch.empty_like(job.x)

        def dispatch() -> None:
            left["rows"], _, left["handle"], _, _ = buffer.low_latency_dispatch(job.x, job.ids, most, job.nr_experts, use_fp8=fp8)

        def combine() -> None:
            buffer.low_latency_combine(left["y"], job.ids, job.weights, left["handle"], out=out)

        def pair() -> None:
            dispatch()
            combine()

        dispatch()
        rows = left["rows"]
        left["y"] = rows if not fp8 else (rows[0].float().unflatten(-1, (-1, 128)) * rows[1][..., None]).flatten(-2).to(torch.bfloat16)
        combine()
        job.judge(f"{self.name}: low_latency_combine", out, job.weights.sum(1))
        kind = "fp8" if fp8 else "bf16"
        return [(f"low_latency_dispatch, {kind}", dispatch), ("low_latency_combine", combine), (f"low_latency pair, {kind}", pair)]


class Clock:
    def __init__(self, device: Any, rounds: int):
        self.cuda, self.device, self.rounds = device.type == "cuda", device, rounds

    def _wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def slowest(self, mine: List[float]) -> float:
        """The median over rounds of the slowest rank's time."""
        parts = [torch.empty(len(mine), dtype=torch.float64, device=self.device) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, torch.tensor(mine, dtype=torch.float64, device=self.device))
        return float(torch.stack(parts).amax(0).median()) * 1e6

    def alone(self, calls: Calls) -> Dict[str, float]:
        times: Dict[str, List[float]] = {name: [] for name, _ in calls}
        for _ in range(self.rounds):
            for name, call in calls:
                dist.barrier()
                self._wait()
                begin = time.perf_counter()
                call()
                self._wait()
                times[name].append(time.perf_counter() - begin)
        return {name: self.slowest(found) for name, found in times.items()}

    def in_a_row(self, calls: Calls) -> float:
        """All of them, over and over. The median of five times that, behind one that is not counted."""
        times = []
        for _ in range(6):
            dist.barrier()
            self._wait()
            begin = time.perf_counter()
            for _ in range(self.rounds):
                for _, call in calls:
                    call()
            self._wait()
            times.append((time.perf_counter() - begin) / self.rounds)
        return self.slowest(times[1:])

    def graph(self, call: Callable[[], Any]) -> Optional[float]:
        if not self.cuda:
            return None
        call()
        self._wait()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(10):
                call()
        dist.barrier()
        self._wait()
        times = []
        for _ in range(self.rounds):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            self._wait()
            times.append(begin.elapsed_time(end) / 1e4)
        return self.slowest(times)


def measured(args: Any, libraries: List[Library], clock: Clock, device: Any) -> Iterator[Dict[str, Any]]:
    for nr_tokens in args.tokens:
        job = Job(args, nr_tokens, device)
        for sms in args.sms:
            found = {library.name: (calls := library.normal(job, sms), clock.alone(calls), clock.in_a_row(calls[:3])) for library in libraries}
            for name, _ in found[libraries[0].name][0]:
                yield dict(call=name, tokens=nr_tokens, sms=sms, **{library: times[1][name] for library, times in found.items()})
            yield dict(call="layout, dispatch, combine in a row", tokens=nr_tokens, sms=sms, **{library: times[2] for library, times in found.items()})
        for most in args.most:
            if nr_tokens > most:
                continue
            for fp8 in (False, True):
                made = {library.name: library.low_latency(job, most, fp8) for library in libraries}
                alone = {library: clock.alone(calls[:2]) for library, calls in made.items()}
                for name, _ in made[libraries[0].name][:2]:
                    yield dict(call=name, tokens=nr_tokens, most=most, **{library: times[name] for library, times in alone.items()})
                pair = made[libraries[0].name][2][0]
                yield dict(call=f"{pair} in a row", tokens=nr_tokens, most=most, **{library: clock.in_a_row(calls[2:]) for library, calls in made.items()})
                graphs = {library: clock.graph(calls[2][1]) for library, calls in made.items()} if args.graph else {}
                if all(graphs.values()) and graphs:
                    yield dict(call=f"{pair} in a graph", tokens=nr_tokens, most=most, **graphs)


def line(row: Dict[str, Any], names: List[str]) -> str:
    room = f"{row['sms']} SMs" if "sms" in row else f"for {row['most']}"
    times = "".join(f"{row[name]:12.1f}" for name in names)
    ratio = f"{row[names[0]] / row[names[1]]:8.2f}" if len(names) > 1 else ""
    return f"{row['call']:38}{row['tokens']:6} tokens {room:>9}{times}{ratio}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tern_ep.deep_ep.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="MODULE", help="another deep_ep, by the path that imports it")
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--topk", type=int, default=8)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 32, 128, 4096])
    parser.add_argument("--most", type=int, nargs="+", default=[128, 1024], help="tokens that low latency is made for")
    parser.add_argument("--sms", type=int, nargs="+", default=[24], help="of normal mode")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="CUDA where torch sees it")
    parser.add_argument("--graph", action="store_true", help="low-latency pairs in CUDA graphs too")
    parser.add_argument("--json", action="store_true", help="a line for each figure")
    args = parser.parse_args()
    cuda = torch.cuda.is_available() if args.device is None else args.device == "cuda"
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    made = not dist.is_initialized()
    if made:
        dist.init_process_group("nccl" if cuda else "gloo")
    group = dist.group.WORLD
    libraries = [Library("tern", deep_ep, args, group)]
    if args.against:
        libraries.append(Library(args.against, importlib.import_module(args.against), args, group))
    names = [library.name for library in libraries]
    clock = Clock(device, args.rounds)
    if dist.get_rank() == 0 and not args.json:
        print(f"{dist.get_world_size()} ranks on {device.type}, hidden {args.hidden}, {args.experts} experts, top-{args.topk}; us: {', '.join(names)}")
    for row in measured(args, libraries, clock, device):
        if dist.get_rank() == 0:
            print(json.dumps(row) if args.json else line(row, names), flush=True)
    for library in libraries:
        library.buffer.destroy()
    if made:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
