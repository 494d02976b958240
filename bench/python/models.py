#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a model of transformers takes with its experts on several ranks: over Tern, by what transformers has, and whole on one GPU, in one
run with the same random weights.

    torchrun --nproc-per-node 2 bench/python/models.py --size qwen3-30b-a3b --batches 1,8,32

logits    how far those of the same tokens are from one process's, as the norm of the difference over the norm
generate  eager, each rank a batch of its own: ms a step
graph     a decoding step as a CUDA graph: ms; of it, what kernels of Tern take, with and without waits for other ranks
prefill   --prefill tokens a rank, eager: ms
Each is of the slowest rank: medians, and the mean step of generate. all_reduce is of a batch that all ranks share.

Of random weights all tokens choose nearly the same experts, from the second layer on: eight get three quarters of the routes, and one
rank may have most of them. So times are of experts that are drawn for each token and layer (--routing own: as the model chooses).
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import AutoModelForCausalLM, StaticCache
from transformers.distributed.expert_parallel import EPImplementationInterface, EpDispatchExpertsParallel

import tern_ep.transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "serve"))
from serve import SIZES, join, spread  # noqa: E402

PROMPT = 16
ONE = "one"
SHARED = ("all_reduce", "deepgemm_megamoe")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=sorted(SIZES), default="qwen3-30b-a3b")
    parser.add_argument("--layers", type=int, help="so many of its layers (all)")
    parser.add_argument("--small", action="store_true", help="its hidden sizes, experts and vocabulary divided, for a try on CPUs")
    parser.add_argument("--batches", default="1,8,32", help="sequences of a rank (%(default)s)")
    parser.add_argument("--ways", default=f"{ONE},tern,all_to_all,all_reduce", help="%(default)s; also deepgemm_megamoe, and tern:torch, which has torch compute the experts")
    parser.add_argument("--parts", default="logits,generate,graph,prefill", help="%(default)s")
    parser.add_argument("--steps", type=int, default=24, help="of generate (%(default)s)")
    parser.add_argument("--replays", type=int, default=60, help="of a graph (%(default)s)")
    parser.add_argument("--prefill", type=int, default=4096, help="tokens of a rank (%(default)s)")
    parser.add_argument("--routing", choices=("drawn", "own"), default="drawn", help="of all but logits (%(default)s)")
    parser.add_argument("--kernels", type=int, default=0, metavar="N", help="name the N that take most of a graph's step")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


def build(options: argparse.Namespace, device: torch.device) -> Any:
    """The same random weights on every rank, made where they stay."""
    config = SIZES[options.size]()
    if options.layers:
        config.num_hidden_layers = options.layers
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[: options.layers]
    if options.small:
        config.hidden_size, config.vocab_size, config.head_dim = 64, 512, 16
        config.num_attention_heads, config.num_key_value_heads = 4, 2
        config.intermediate_size = 64
        if hasattr(config, "moe_intermediate_size"):
            config.moe_intermediate_size = 32
    torch.manual_seed(1)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32)
    return model.eval()


class Clock:
    def __init__(self, device: torch.device):
        self.device, self.cuda = device, device.type == "cuda"

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def slowest(self, ms: float) -> float:
        worst = torch.tensor([ms], dtype=torch.float64, device=self.device)
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        return float(worst)

    def ms(self, call: Callable[[], Any], times: int = 1) -> float:
        """The median of calls that all ranks begin together."""
        took = []
        for _ in range(times):
            dist.barrier()
            self.wait()
            begun = time.perf_counter()
            call()
            self.wait()
            took.append(self.slowest(1e3 * (time.perf_counter() - begun)))
        return statistics.median(took)


class Model:
    """One model, whose experts are reached one way or another."""

    def __init__(self, options: argparse.Namespace, device: torch.device):
        self.options, self.device = options, device
        self.rank, self.nr_ranks = dist.get_rank(), dist.get_world_size()
        self.model = build(options, device)
        self.vocabulary: int = self.model.config.vocab_size
        self.way = ONE
        self.drawn = False
        self.draw()
        self.experts: List[Any] = []

    def go(self, way: str) -> None:
        """Experts stay on all ranks only until the first way but ONE."""
        if way == ONE:
            assert not self.experts, f"{ONE} comes first"
            return
        if not self.experts:
            whole = {id(m): m.num_experts for m in self.model.modules() if hasattr(m, "num_experts") and hasattr(m, "down_proj")}
            self.model = spread(self.model, self.nr_ranks, self.device)
            self.experts = [m for m in self.model.modules() if id(m) in whole]
        implementation, _, experts = way.partition(":")
        tern_ep.transformers.close()
        tern_ep.transformers.configure(experts=experts or "auto")
        mesh = dist.device_mesh.init_device_mesh(self.device.type, (self.nr_ranks, 1), mesh_dim_names=("experts", "replicas"))
        for module in self.experts:
            del module.forward
            batch = mesh["experts"] if way in SHARED else mesh["replicas"]
            EpDispatchExpertsParallel().install_forward(module, mesh["experts"], tp_mesh=batch, ep_implementation=implementation)
        self.way = way

    def draw(self) -> None:
        """Routers choose experts that were drawn beforehand, with equal weights, wherever `drawn` is set. They are on the device, so that
        a graph can hold it."""
        config = self.model.config
        nr_experts, topk = getattr(config, "num_experts", None) or config.num_local_experts, config.num_experts_per_tok
        most = max(self.options.prefill, 64 * PROMPT)
        routers = [m for name, m in self.model.named_modules() if name.endswith(("mlp.gate", "mlp.router"))]
        assert routers, "no router is known by its name"
        for i, router in enumerate(routers):
            seeds = [1000 * i + seed for seed in (1 + self.rank, 0)]
            drawn = [torch.rand((most, nr_experts), generator=torch.Generator().manual_seed(seed)).argsort(1)[:, :topk].to(self.device) for seed in seeds]
            router.register_forward_hook(functools.partial(self._choose, drawn))

    def _choose(self, drawn: List[Tensor], router: Any, inputs: Any, output: Any) -> Any:
        """In place of what a router of transformers returns: logits, weights, and experts. Those of a shared batch are the same on all ranks."""
        if not self.drawn:
            return None
        logits, weights, experts = output
        chosen = drawn[self.way in SHARED][: experts.shape[0]]
        return logits, torch.full_like(weights, 1 / experts.shape[1]), chosen.to(experts.dtype)

    def tokens(self, batch: int, length: int, shared: bool = False) -> Tensor:
        seed = 100 * batch + length + (0 if shared or self.way in SHARED else 10000 * (1 + self.rank))
        made = torch.randint(1, self.vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed))
        return made.to(self.device)

    def logits(self) -> Tensor:
        return self.model(self.tokens(4, 64, shared=True), use_cache=False).logits.float()

    def generate(self, batch: int) -> float:
        given, steps = self.tokens(batch, PROMPT), self.options.steps
        mask = torch.ones_like(given)

        def all_steps() -> None:
            self.model.generate(given, attention_mask=mask, max_new_tokens=steps, min_new_tokens=steps, do_sample=False, pad_token_id=0)

        all_steps()
        return Clock(self.device).ms(all_steps) / steps

    def prefill(self) -> float:
        given = self.tokens(1, self.options.prefill)

        def once() -> None:
            self.model(given, use_cache=False, logits_to_keep=1)

        once()
        return Clock(self.device).ms(once, 5)


class Step:
    """A decoding step as a CUDA graph. The cache knows how long it is, so each replay is a step."""

    def __init__(self, model: Model, batch: int):
        self.model, self.replays = model, model.options.replays
        self.cache = cache = StaticCache(config=model.model.config, max_cache_len=PROMPT + 2 * self.replays + 16)  # the graph writes there
        self.token = model.tokens(batch, 1)
        given = model.tokens(batch, PROMPT)
        model.model(given, past_key_values=cache, use_cache=True, logits_to_keep=1)

        def step() -> Tensor:
            return model.model(self.token, past_key_values=cache, use_cache=True, logits_to_keep=1).logits

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.made = step()

    def ms(self) -> float:
        return Clock(self.model.device).ms(self.graph.replay, self.replays)

    def of_tern(self) -> Tuple[float, float]:
        """What its dispatches and combines add to a step, from the end of what was ahead of each, as they begin early: on the slowest rank,
        with waits for others in it; and of each the rank for which it took least, as that one came last and had nobody to wait for."""
        nr = min(8, self.replays)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(nr):
                self.graph.replay()
            torch.cuda.synchronize()
        for e in sorted(profile.key_averages(), key=lambda e: -e.self_device_time_total)[: self.model.options.kernels]:
            print(f"rank {dist.get_rank()}: {e.self_device_time_total / nr / 1e3:8.3f} ms, {e.count // nr:5d} x  {e.key[:100]}", flush=True)
        kernels = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
        kernels.sort(key=lambda e: e.time_range.start)
        added, ended = [], 0.0
        for e in kernels:
            if e.name.startswith(("tern", "void tern")):
                added.append(max(0.0, e.time_range.end - max(e.time_range.start, ended)))
            ended = max(ended, e.time_range.end)
        mine = torch.tensor(added, dtype=torch.float64, device=self.model.device)
        least = mine.clone()
        dist.all_reduce(least, dist.ReduceOp.MIN)  # ranks have the same kernels, in the same order
        return Clock(self.model.device).slowest(float(mine.sum()) / nr / 1e3), float(least.sum()) / nr / 1e3


def measure(model: Model, batches: List[int], one: Dict[str, Any]) -> Dict[str, Any]:
    parts = model.options.parts.split(",")
    found: Dict[str, Any] = {}
    if "logits" in parts:
        model.drawn = False
        logits = model.logits()
        one.setdefault("logits", logits)
        found["logits"] = float((logits - one["logits"]).norm() / one["logits"].norm())
    model.drawn = model.options.routing == "drawn"
    for batch in batches if "generate" in parts else []:
        found[f"generate {batch}"] = model.generate(batch)
    for batch in batches if "graph" in parts and model.device.type == "cuda" and model.way != "all_to_all" else []:
        step = Step(model, batch)
        found[f"graph {batch}"] = step.ms()
        if model.way.startswith("tern"):
            found[f"graph {batch}, of it Tern's"], found[f"graph {batch}, without waits"] = step.of_tern()
        del step
    if "prefill" in parts:
        found["prefill"] = model.prefill()
    return found


def table(found: Dict[str, Dict[str, Any]]) -> List[str]:
    ways = list(found)
    names = list(dict.fromkeys(name for way in ways for name in found[way]))
    lines = ["| | " + " | ".join(ways) + " |", "|---|" + "---|" * len(ways)]
    for name in names:
        cells = [found[way].get(name) for way in ways]
        shown = ["" if c is None else c if isinstance(c, str) else f"{c:.1e}" if name == "logits" else f"{c:.2f}" for c in cells]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return lines


def main() -> None:
    options = arguments()
    rank, nr_ranks, device = join()
    tern_ep.transformers.configure(lockstep=True, decode_tokens=64, max_tokens=max(4096, options.prefill))
    model = Model(options, device)
    found: Dict[str, Dict[str, Any]] = {}
    one: Dict[str, Any] = {}
    known = [ONE, *EPImplementationInterface()]
    for way in options.ways.split(","):
        if way.partition(":")[0] not in known:
            raise SystemExit(f"{way} is no way; there are {', '.join(known)}")
        failed: Optional[str] = None
        try:
            with torch.no_grad():
                model.go(way)
                found[way] = measure(model, [int(b) for b in options.batches.split(",")], one)
        except (ImportError, NotImplementedError, ValueError) as error:  # what a peer needs and is not there
            failed = f"{type(error).__name__}: {error}"
            found[way] = {"not run": failed.splitlines()[0]}
        if rank == 0:
            print(f"{way}: {found[way]}", flush=True)
    if rank == 0:
        name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
        print(f"{options.size}, {model.model.config.num_hidden_layers} layers, {nr_ranks} ranks, {name}, torch {torch.__version__}")
        print("\n".join(table(found)))
        if options.json:
            Path(options.json).write_text(json.dumps({"size": options.size, "ranks": nr_ranks, "device": name, "found": found}, indent=1))
    tern_ep.transformers.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
