#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a Mixture-of-Experts model of transformers with its experts spread over all ranks.

    python3 train.py --losses one.json                                     # one process
    torchrun --nproc-per-node 2 train.py --losses two.json                 # the same batches, shared out

Attention, embeddings and routers are on every rank, which takes its share of each batch; Tern brings tokens to the
experts, and gradients back. See README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any, Tuple

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.distributed.expert_parallel import apply_expert_parallelism

import tern_ep.transformers

HERE = Path(__file__).resolve().parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains a Mixture-of-Experts model of bytes over Tern.")
    parser.add_argument("--model", default=str(HERE.parent / "generate" / "model"), help="folder with config.json (and weights)")
    parser.add_argument("--pretrained", action="store_true", help="begin with the folder's weights, not with random ones")
    parser.add_argument("--text", nargs="+", type=Path, default=sorted((HERE.parents[1] / "docs").glob("*.md")), help="files to learn from, byte by byte")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=4, help="sequences of a step, of all ranks together")
    parser.add_argument("--length", type=int, default=64, help="bytes of a sequence")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--checkpoint-layers", action="store_true", help="compute activations again in the backward pass")
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--warm", type=int, default=20, help="steps until the rate is reached")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--losses", type=Path, help="where rank 0 writes each step's loss, as JSON")
    return parser.parse_args()


def join() -> Tuple[int, int, torch.device]:
    """This rank, all ranks, and its device. Without torchrun: one process."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    backend = "nccl" if cuda else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return dist.get_rank(), dist.get_world_size(), device


def build(options: argparse.Namespace, nr_ranks: int, device: torch.device) -> Any:
    torch.manual_seed(options.seed)  # the same random weights on every rank, of which each keeps its experts
    if options.pretrained:
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    else:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(options.model), dtype=torch.float32)
    model = model.to(device).train()
    if options.checkpoint_layers:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if nr_ranks > 1:
        mesh = dist.device_mesh.init_device_mesh(device.type, (nr_ranks, 1), mesh_dim_names=("experts", "replicas"))
        plan = model._expand_parallel_plan(model.ep_plan)
        apply_expert_parallelism(model, mesh["experts"], mesh["replicas"], plan, "tern")
    return model


def batches(options: argparse.Namespace) -> Any:
    """Sequences of all ranks, the same on each."""
    text = torch.frombuffer(bytearray(b"\n".join(path.read_bytes() for path in options.text)), dtype=torch.uint8)
    random = torch.Generator().manual_seed(options.seed)
    for _ in range(options.steps):
        starts = torch.randint(len(text) - options.length, (options.batch,), generator=random)
        yield torch.stack([text[start : start + options.length] for start in starts.tolist()]).to(torch.int64)


def step(options: argparse.Namespace, model: Any, optimizer: Any, mine: Any, nr_ranks: int) -> Any:
    loss = torch.zeros((), device=mine.device)
    for part in mine.chunk(options.accumulate):
        share = model(part, labels=part).loss * part.shape[0] / mine.shape[0]
        share.backward()
        loss += share.detach()
    if nr_ranks > 1:
        tern_ep.transformers.average_gradients(model)
        dist.all_reduce(loss)
    optimizer.step()
    optimizer.zero_grad()
    return loss / nr_ranks


def main() -> None:
    options = arguments()
    rank, nr_ranks, device = join()
    if options.batch % nr_ranks:
        raise SystemExit(f"--batch {options.batch} does not divide by {nr_ranks} ranks")
    model = build(options, nr_ranks, device)
    # With a smaller eps, and without a slow beginning, steps follow the signs of gradients that are almost 0, and the last bits of
    # sums, which are made in another order, soon decide where training goes.
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, eps=1e-5, foreach=False)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: min(1.0, (number + 1) / max(options.warm, 1)))
    losses, begun = [], time.monotonic()
    for number, batch in enumerate(batches(options)):
        loss = step(options, model, optimizer, batch.chunk(nr_ranks)[rank].to(device), nr_ranks)
        rate.step()
        losses.append(float(loss))
        if rank == 0 and (number % 20 == 0 or number == options.steps - 1):
            print(f"step {number:4}  loss {losses[-1]:.5f}  {(number + 1) / (time.monotonic() - begun):.2f} steps/s", flush=True)
    if rank == 0 and options.losses:
        options.losses.write_text(json.dumps({"ranks": nr_ranks, "losses": losses}) + "\n")
    tern_ep.transformers.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
