# SPDX-License-Identifier: Apache-2.0
"""What calls of tern_ep.deep_ep's normal mode cost on the host: CPU ranks over gloo, few tokens, so that little else takes time.

    PYTHONPATH=python python bench/python/deep_ep.py --ranks 2

Medians and minima in us of rank 0, calls in turn. Between ranks they wait for each other. "held" is a dispatch while rows of the ones
before are held, so that no slot is free. --count CALL: that call alone, for who counts instructions.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from typing import Any, Callable, Dict, List, Tuple

import torch
import torch.distributed as dist

from tern_ep import deep_ep


class Alone:
    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1


class Calls:
    """Each with what the one before has left."""

    def __init__(self, group: Any, args: Any):
        self.buffer = deep_ep.Buffer(group, explicitly_destroy=True)
        random = torch.Generator().manual_seed(group.rank())
        self.nr_experts = args.experts * group.size()
        self.x = torch.ones((args.tokens, args.hidden), dtype=torch.bfloat16)
        self.ids = torch.rand((args.tokens, self.nr_experts), generator=random).argsort(1)[:, : args.topk].clone()
        self.weights = torch.ones((args.tokens, args.topk))
        self.kept: List[Any] = []

    def layout(self) -> None:
        self.given = self.buffer.get_dispatch_layout(self.ids, self.nr_experts)

    def dispatch(self) -> None:
        ranks, _, experts, there, _ = self.given
        self.rows = self.recv_weights = None
        self.rows, _, self.recv_weights, _, self.handle, _ = self.buffer.dispatch(self.x, None, ranks, None, there, experts, self.ids, self.weights)

    def combine(self) -> None:
        self.out = self.buffer.combine(self.rows, self.handle)[0]

    def combine_weights(self) -> None:
        self.out = self.buffer.combine(self.rows, self.handle, topk_weights=self.recv_weights)[0]

    def again(self) -> None:
        self.rows = None
        self.rows = self.buffer.dispatch(self.x, handle=self.handle)[0]

    def held(self) -> None:
        self.kept = self.kept[-4:] + [self.rows]
        self.rows = None
        self.dispatch()

    def let_go(self) -> None:
        self.kept = []

    def all(self) -> List[Tuple[str, Callable[[], None]]]:
        return [
            ("layout", self.layout),
            ("dispatch", self.dispatch),
            ("combine", self.combine),
            ("dispatch, handle", self.again),
            ("combine, handle, weights", self.combine_weights),
            ("held", self.held),
        ]


def play(group: Any, args: Any) -> None:
    calls = Calls(group, args)
    for _ in range(3):
        for _, call in calls.all():
            call()
    calls.let_go()
    if args.count is not None:
        call = dict(calls.all()).get(args.count, lambda: None)
        calls.dispatch()
        for _ in range(args.rounds):
            call()
        return
    times: Dict[str, List[float]] = {name: [] for name, _ in calls.all()}
    for part in (calls.all()[:5], calls.all()[5:]):
        for _ in range(args.rounds):
            for name, call in part:
                begun = time.perf_counter_ns()
                call()
                times[name].append((time.perf_counter_ns() - begun) / 1000)
    if group.rank() == 0:
        for name, took in times.items():
            print(f"{group.size()} ranks  {name:<26}median {sorted(took)[len(took) // 2]:7.1f}  least {min(took):7.1f} us", flush=True)
    calls.let_go()
    calls.buffer.destroy()


def rank_of(rank: int, room: str, args: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{room}/meeting", rank=rank, world_size=args.ranks)
    play(dist.group.WORLD, args)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description="What calls of deep_ep's normal mode cost on the host.")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--experts", type=int, default=8, help="of each rank")
    parser.add_argument("--topk", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--count", metavar="CALL", help="only this call's rounds; none: only what is before them")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    if args.ranks == 1:
        torch.distributed.all_gather_object = lambda parts, mine, group: parts.__setitem__(0, mine)
        play(Alone(), args)
        return
    with tempfile.TemporaryDirectory() as room:
        children = []
        for rank in range(args.ranks):
            child = os.fork()
            if not child:
                rank_of(rank, room, args)
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
