#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generates text with a Mixture-of-Experts model of transformers whose experts are spread over all ranks.

    torchrun --nproc-per-node 2 serve.py                                          # the demo's model
    torchrun --nproc-per-node 2 serve.py --model /path/to/checkpoint
    torchrun --nproc-per-node 2 serve.py --size qwen3-30b-a3b --layers 4          # real sizes, random weights

Each rank takes its share of the prompts, and ends when it likes: see README.md.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer, GptOssConfig, Qwen3MoeConfig
from transformers.distributed.expert_parallel import apply_expert_parallelism

import tern_ep.transformers

DEMO = Path(__file__).resolve().parents[1] / "generate" / "model"
PROMPTS = ["And it came to pass", "Tern, n.", "In the beginning", "Bread, n.", "Thus saith the LORD", "A day, n."]
SIZES = {
    "qwen3-30b-a3b": lambda: Qwen3MoeConfig(
        vocab_size=151936, hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768, num_hidden_layers=48, num_attention_heads=32,
        num_key_value_heads=4, head_dim=128, num_experts=128, num_experts_per_tok=8, norm_topk_prob=True,
    ),
    "gpt-oss-120b": lambda: GptOssConfig(),
}  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Generates text with a Mixture-of-Experts model over Tern.")
    parser.add_argument("--model", default=str(DEMO), help="folder of a checkpoint, or its name")
    parser.add_argument("--size", choices=sorted(SIZES), help="a model of real size with random weights, in place of a checkpoint")
    parser.add_argument("--layers", type=int, help="so many layers of it")
    parser.add_argument("--prompts", nargs="+", default=PROMPTS, help="rank r takes the r-th, and so on")
    parser.add_argument("--tokens", type=int, default=40, help="to make for each prompt")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), help="default: float32 on CPUs, else bfloat16")
    parser.add_argument("--check", action="store_true", help="make the same alone, and compare")
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


def load(options: argparse.Namespace, device: torch.device) -> Any:
    """Whole, in host memory: a checkpoint, or random weights, which are the same on every rank."""
    name = options.dtype or ("float32" if device.type == "cpu" else "bfloat16")
    dtype = getattr(torch, name)
    if not options.size:
        return AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype).eval()
    config = SIZES[options.size]()
    if options.layers:
        config.num_hidden_layers = options.layers
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[: options.layers]
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def spread(model: Any, nr_ranks: int, device: torch.device) -> Any:
    """The experts over all ranks; all else stays on every rank, which has prompts of its own. A layer at a time, so that no more than
    one is there whole and in parts."""
    mesh = dist.device_mesh.init_device_mesh(device.type, (nr_ranks, 1), mesh_dim_names=("experts", "replicas"))
    layers: Dict[str, Dict[str, str]] = {}
    for name, style in model._expand_parallel_plan(model.ep_plan).items():
        layers.setdefault(name.partition(".experts")[0], {})[name] = style
    for plan in layers.values():
        apply_expert_parallelism(model, mesh["experts"], mesh["replicas"], plan, "tern")
    return model.to(device)


class Words:
    """Of a checkpoint's tokenizer; bytes, for a model that has none."""

    def __init__(self, options: argparse.Namespace):
        files = Path(options.model).glob("tokenizer*")
        plain = options.size or (Path(options.model).is_dir() and not any(files))
        self.tokenizer = None if plain else AutoTokenizer.from_pretrained(options.model, padding_side="left")

    def read(self, prompts: List[str]) -> Dict[str, Any]:
        if self.tokenizer is not None:
            if self.tokenizer.pad_token is None:
                self.tokenizer.pad_token = self.tokenizer.eos_token
            return dict(self.tokenizer(prompts, return_tensors="pt", padding=True))
        texts = [list(prompt.encode()) for prompt in prompts]
        longest = max(map(len, texts))
        ids = [[0] * (longest - len(text)) + text for text in texts]
        mask = [[0] * (longest - len(text)) + [1] * len(text) for text in texts]
        return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}

    def write(self, ids: Any) -> List[str]:
        if self.tokenizer is not None:
            return list(self.tokenizer.batch_decode(ids, skip_special_tokens=True))
        return [bytes(i for i in row if 0 < i < 256).decode(errors="replace") for row in ids.tolist()]


def generate(options: argparse.Namespace, model: Any, given: Dict[str, Any], device: torch.device) -> Any:
    given = {name: tensor.to(device) for name, tensor in given.items()}
    made = model.generate(**given, max_new_tokens=options.tokens, do_sample=False, pad_token_id=0)
    return made.cpu()


def main() -> None:
    options = arguments()
    rank, nr_ranks, device = join()
    prompts, words, model = options.prompts[rank::nr_ranks], Words(options), load(options, device)
    given = words.read(prompts) if prompts else {}
    alone = generate(options, model.to(device), given, device) if options.check and prompts else None
    model = spread(model.cpu(), nr_ranks, device)
    begun, made = time.monotonic(), None
    with tern_ep.transformers.together(model):
        if prompts:
            made = generate(options, model, given, device)
    took = time.monotonic() - begun
    for turn in range(nr_ranks):
        dist.barrier()
        if turn == rank and made is not None:
            for text in words.write(made):
                print(f"--- rank {rank}\n{text}", flush=True)
            same = "" if alone is None else f", {'the same' if torch.equal(alone, made) else 'OTHER'} as alone"
            print(f"--- rank {rank}: {len(prompts) * options.tokens / took:.1f} tokens/s{same}", flush=True)
    tern_ep.transformers.close()
    dist.destroy_process_group()
    if alone is not None and made is not None and not torch.equal(alone, made):
        raise SystemExit("the tokens differ from those of one process")


if __name__ == "__main__":
    main()
