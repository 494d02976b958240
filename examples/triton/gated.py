#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A grouped product in Triton that reads received rows while the dispatch still brings others.

    torchrun --nproc-per-node 2 gated.py --check            each token against a dense product, with gates and without
    torchrun --nproc-per-node 2 gated.py --tokens 128       dispatch, product and combine in one graph, us

Each expert is one matrix [H][H] of BF16. README.md says how the kernel waits.
"""

from __future__ import annotations

import argparse
import os
import statistics
from typing import Any, Tuple

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from triton.language.extra import cuda as after

import tern_ep

TILE_ROWS = 128
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

# ---- the kernel -------------------------------------------------------------------------------------------------------------------------


@triton.jit
def behind(word, wanted):
    """How far the word is from `wanted`, below 0 before it, round the corner of 2^32. What is read after it is what was there when the
    word was told."""
    return tl.atomic_add(word, 0, sem="acquire", scope="gpu") - wanted


@triton.jit
def wait_word(word, wanted, failed, looks):
    """False: it has not come so far after so many looks, or the exchange has failed."""
    far = behind(word, wanted)
    while (far < 0) & (looks > 0):
        looks = tl.where(behind(failed, 0) == 0, looks - 1, 0)
        far = behind(word, wanted)
    return far >= 0


@triton.jit
def product(x, weights, y, rows, row, column, HIDDEN: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    """y of `rows` rows from `row` on, and COLUMNS columns from `column` on: x [.][H] by weights [H][H], transposed."""
    i, j, k = tl.arange(0, TILE), tl.arange(0, COLUMNS), tl.arange(0, DEPTH)
    at = (row + i.to(tl.int64)) * HIDDEN
    lines = (column + j.to(tl.int64)) * HIDDEN
    here, there = i < rows, column + j < HIDDEN
    sums = tl.zeros((TILE, COLUMNS), tl.float32)
    for first in range(0, HIDDEN, DEPTH):
        inside = first + k < HIDDEN
        left = tl.load(x + at[:, None] + (first + k)[None, :], mask=here[:, None] & inside[None, :], other=0.0)
        right = tl.load(weights + lines[None, :] + (first + k)[:, None], mask=there[None, :] & inside[:, None], other=0.0)
        sums = tl.dot(left, right, sums)
    tl.store(y + at[:, None] + (column + j)[None, :], sums.to(y.dtype.element_ty), mask=here[:, None] & there[None, :])


@triton.jit
def grouped(
    x, weights, y, nr_local, counts, offsets, words, ready, failed, tiles, whole, looks,
    HIDDEN: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GATED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """All local experts' rows: each program takes every so many blocks of y. After a tile that did not come it computes no more."""
    counts, offsets = counts.to(tl.pointer_type(tl.int32)), offsets.to(tl.pointer_type(tl.int64))
    words, ready, failed = words.to(tl.pointer_type(tl.int32)), ready.to(tl.pointer_type(tl.int32)), failed.to(tl.pointer_type(tl.int32))
    good, wanted, expert, number = nr_local > 0, 0, 0, tl.program_id(0)
    if GATED:
        wanted = behind(words, 0)  # the round that the dispatch ahead has begun
        good = wait_word(words + 1, wanted, failed, looks)
        wanted *= whole
    while good & (expert < nr_local):
        rows, first = tl.load(counts + expert), tl.load(offsets + expert)
        blocks = tl.cdiv(rows, TILE) * tl.cdiv(HIDDEN, COLUMNS)
        while good & (number < blocks):
            tile, column = number // tl.cdiv(HIDDEN, COLUMNS), number % tl.cdiv(HIDDEN, COLUMNS)
            if GATED:
                good = wait_word(ready + tile, wanted, failed, looks)
            if good:
                product(x, weights, y, rows - tile * TILE, first + tile * TILE, column * COLUMNS, HIDDEN, TILE, COLUMNS, DEPTH)
            number += tl.num_programs(0)
        number -= blocks
        weights += HIDDEN * HIDDEN
        ready += tiles
        expert += 1
    if EARLY:
        after.gdc_wait()  # what comes behind this kernel comes behind the dispatch, too


LOOK_NS = 500  # a look at a word takes at least so long


def run(x: torch.Tensor, weights: torch.Tensor, y: torch.Tensor, gate: tern_ep.Gate, gated: bool, programs: int) -> None:
    """y = x W of the rows that a dispatch brings, on the current stream. gated: launched so that it starts while the dispatch runs."""
    looks = min(gate.wait_ns // LOOK_NS, 2**31 - 1)
    early = gated and not INTERPRETED
    options = {"launch_pdl": True, "num_warps": 8} if early else {"num_warps": 8}
    grouped[(programs,)](
        x, weights, y, gate.nr_local, gate.counts, gate.offsets, gate.words, gate.ready, gate.failed, gate.tiles, gate.whole, looks,
        HIDDEN=x.shape[1], TILE=gate.tile_rows, COLUMNS=128, DEPTH=64, GATED=gated, EARLY=early, **options,
    )  # fmt: skip


# ---- the program ------------------------------------------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A grouped product in Triton behind Tern's gates.")
    parser.add_argument("--hidden", type=int, default=2048, help="H, elements of a row (%(default)s)")
    parser.add_argument("--experts", type=int, default=64, help="of all ranks (%(default)s)")
    parser.add_argument("--topk", type=int, default=8, help="%(default)s")
    parser.add_argument("--tokens", type=int, default=128, help="of a rank (%(default)s)")
    parser.add_argument("--rounds", type=int, default=200, help="graph replays (%(default)s)")
    parser.add_argument("--check", action="store_true", help="compare each token with a dense product, in place of times")
    return parser.parse_args()


def matrix(expert: int, hidden: int, device: torch.device) -> torch.Tensor:
    drawn = torch.randn(hidden, hidden, generator=torch.Generator().manual_seed(expert)) / hidden**0.5
    return drawn.to(device, torch.bfloat16)


class Round:
    """Dispatch, product and combine over buffers that stay where they are."""

    def __init__(self, moe: tern_ep.Exchange, options: argparse.Namespace, device: torch.device, rank: int):
        random = torch.Generator().manual_seed(100 + rank)
        n, hidden = options.tokens, options.hidden
        self.moe = moe
        self.x = torch.randn(n, hidden, generator=random).to(device, torch.bfloat16)
        self.ids = torch.rand(n, options.experts, generator=random).argsort(1)[:, : options.topk].to(device, torch.int32)
        self.gains = torch.rand(n, options.topk, generator=random).to(device)
        self.weights = torch.stack([matrix(e, hidden, device) for e in moe.local_experts])
        self.y = torch.zeros(moe.max_rows, hidden, device=device, dtype=torch.bfloat16)
        self.out = torch.zeros(n, hidden, device=device, dtype=torch.bfloat16)
        self.programs = torch.cuda.get_device_properties(device).multi_processor_count

    def __call__(self, gated: bool) -> None:
        received = self.moe.dispatch(self.x, self.ids, self.gains)
        run(received.x, self.weights, self.y, self.moe.gate(), gated, self.programs)
        self.moe.combine(self.y, out=self.out)

    def dense(self, options: argparse.Namespace) -> torch.Tensor:
        sums = torch.zeros(self.x.shape, device=self.x.device)
        for expert in range(options.experts):
            token, k = (self.ids == expert).nonzero(as_tuple=True)
            rows = (self.x[token].float() @ matrix(expert, options.hidden, self.x.device).float().T).bfloat16().float()
            sums.index_add_(0, token, rows * self.gains[token, k][:, None])
        return sums


def far(made: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((made.float() - wanted).norm() / wanted.norm().clamp(min=1e-9))


def check(one: Round, options: argparse.Namespace) -> float:
    """By calls and by a graph that is replayed with other tokens; the largest distance, as norms."""
    worst = 0.0
    for gated in (False, True):
        one(gated)
        worst = max(worst, far(one.out, one.dense(options)))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            one(gated)
        for turn in range(8):
            one.x.copy_(torch.randn(one.x.shape, generator=torch.Generator().manual_seed(turn)))
            one.ids.copy_(one.ids[:, 0:1].add(1 + turn + torch.arange(options.topk, device=one.ids.device)).remainder(options.experts))
            one.out.fill_(float("nan"))
            one.y.fill_(float("nan"))
            graph.replay()
            worst = max(worst, far(one.out, one.dense(options)))
    return worst


def times(one: Round, options: argparse.Namespace) -> Tuple[float, float]:
    """us a round, medians of the slowest rank: without gates, with them."""
    found = []
    for gated in (False, True):
        one(gated)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            one(gated)
        events: Any = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(options.rounds)]
        for first, last in events:
            dist.barrier()
            first.record()
            graph.replay()
            last.record()
        torch.cuda.synchronize()
        took = torch.tensor([first.elapsed_time(last) for first, last in events], device=one.x.device)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        found.append(1e3 * statistics.median(took.tolist()))
    return found[0], found[1]


def main() -> None:
    options = arguments()
    if not torch.cuda.is_available():
        raise SystemExit("gates are for GPUs, and torch finds none here")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    bf16 = tern_ep.Dtype.BF16
    config = tern_ep.Config(
        hidden=options.hidden, nr_experts=options.experts, topk=options.topk, max_tokens=options.tokens, gate_rows=TILE_ROWS,
        mode=tern_ep.Mode.LOW_LATENCY, device=tern_ep.Device.CUDA, x_dtype=bf16, dispatch_dtype=bf16, combine_dtype=bf16,
    )  # fmt: skip
    with tern_ep.Group.from_torch() as group, tern_ep.Exchange(group, config, arrays="torch") as moe:
        one = Round(moe, options, device, group.rank)
        if options.check:
            worst = torch.tensor([check(one, options)], device=device)
            dist.all_reduce(worst, dist.ReduceOp.MAX)
            good = float(worst) < 0.01
            if group.rank == 0:
                print(f"{'right' if good else 'WRONG'}: at most {100 * float(worst):.2f} % from a dense product, on {group.nr_ranks} ranks")
        else:
            good = True
            plain, gated = times(one, options)
            if group.rank == 0:
                print(f"{options.tokens} tokens, {group.nr_ranks} x {torch.cuda.get_device_name()}: {plain:.1f} us, with gates {gated:.1f}")
        torch.cuda.synchronize()
        dist.barrier()
    dist.destroy_process_group()
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
