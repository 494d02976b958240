#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the demo model on the text of corpus.py, for a bounded time.

    python3 train.py --corpus DIR --out DIR --seconds 240

Writes config.json, model.safetensors (bf16) and train.json (what was measured),
and asserts that Hugging Face transformers computes the same logits from them.
"""
import argparse
import json
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from qwen3_moe import Config, Qwen3Moe, export

MIX = {"kjv": 0.21, "webster": 0.77, "devil": 0.02}
JUDGES = ("kjv", "webster")  # the best checkpoint is the one that predicts these best
BALANCE_COEF = 0.01
SAMPLE_PROMPTS = ["In the beginning ", "And it came to pass, ", "Courage, n. ", "ARCHITECT, n. ",
                  "Sea, n. ", "The LORD is my "]


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=240, help="bound on set-up and training")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-compile", action="store_true")
    return parser.parse_args()


class Corpus:
    """Random windows from the books, drawn by weight; whole books sit on the device."""

    def __init__(self, folder: Path, split: str, device):
        self.books = {}
        for name in MIX:
            data = bytearray((folder / f"{name}.{split}.txt").read_bytes())
            self.books[name] = torch.frombuffer(data, dtype=torch.uint8).to(device)

    def batch(self, rows: int, length: int):
        parts, left = [], rows
        for index, (name, share) in enumerate(MIX.items()):
            data = self.books[name]
            take = left if index == len(MIX) - 1 else round(rows * share)
            left -= take
            start = torch.randint(len(data) - length - 1, (take, 1), device=data.device)
            parts.append(data[start + torch.arange(length + 1, device=data.device)])
        window = torch.cat(parts).long()
        return window[:, :-1], window[:, 1:]


@torch.no_grad()
def bits_per_byte(model, data, context: int):
    """Held-out text in consecutive windows; every byte but each window's first counts."""
    nll, count, shares = 0.0, 0, []
    for start in range(0, len(data) - 1, context):
        window = data[start:start + context + 1].long().unsqueeze(0)
        logits, _, share = model(window[:, :-1])
        nll += F.cross_entropy(logits[0].float(), window[0, 1:], reduction="sum").item()
        count += window.shape[1] - 1
        shares.append(share * (window.shape[1] - 1))
    return nll / count / math.log(2), torch.stack(shares).sum(0) / count


def evaluate(model, val: Corpus, context: int) -> dict:
    model.eval()
    out = {}
    for name, data in val.books.items():
        bits, share = bits_per_byte(model, data, context)
        busiest = share.max(dim=1).values * model.cfg.num_experts
        out[name] = {"bits_per_byte": round(bits, 4), "bytes": len(data),
                     "busiest_expert_over_mean": [round(v, 2) for v in busiest.tolist()]}
    model.train()
    return out


class Best:
    """The weights that predicted the held-out text best so far."""

    def __init__(self):
        self.bits, self.step, self.weights = math.inf, 0, None

    def offer(self, model, step: int, held_out: dict) -> None:
        bits = sum(held_out[name]["bits_per_byte"] for name in JUDGES)
        if bits < self.bits:
            self.bits, self.step = bits, step
            self.weights = {k: v.detach().clone() for k, v in model.state_dict().items()}


@torch.no_grad()
def sample(model, prompt: str, length: int, temperature: float, device) -> str:
    ids = torch.tensor([list(prompt.encode())], device=device)
    for _ in range(length):
        logits = model(ids)[0][0, -1].float()
        if temperature == 0:
            chosen = logits.argmax().view(1)
        else:
            chosen = torch.multinomial((logits / temperature).softmax(-1), 1)
        ids = torch.cat((ids, chosen.view(1, 1)), dim=1)
    return bytes(ids[0].tolist()).decode("latin-1")


def learning_rate(progress: float, peak: float) -> float:
    warmup = 0.02
    if progress < warmup:
        return peak * (progress + 1e-3) / warmup
    turn = (progress - warmup) / (1 - warmup)
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, turn))))


def make_optimizer(model, lr: float, device):
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=device.type == "cuda")


def train_step(forward, model, optimizer, ids, target, device):
    with torch.autocast(device.type, dtype=torch.bfloat16):
        logits, balance, _ = forward(ids)
    loss = F.cross_entropy(logits.float().flatten(0, 1), target.flatten())
    (loss + BALANCE_COEF * balance).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach(), balance.detach()


def train(model, corpus: Corpus, val: Corpus, args, device, began: float) -> dict:
    optimizer = make_optimizer(model, args.lr, device)
    forward = model if args.no_compile else torch.compile(model)
    step, first, last_eval, best = 0, None, 0.0, Best()
    while True:
        now = time.monotonic()
        # The first steps compile; the schedule runs over the time that is left.
        progress = 0.0 if first is None else (now - first) / (began + args.seconds - first)
        if progress >= 1.0:
            break
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(progress, args.lr)
        ids, target = corpus.batch(args.batch, args.context)
        loss, balance = train_step(forward, model, optimizer, ids, target, device)
        step += 1
        if step == 3:
            loss.item()
            first = time.monotonic()
            print(f"ready to train after {first - began:.1f} s", flush=True)
        if step % 50 == 0:
            loss_now = loss.item()
            if progress - last_eval >= 0.05:
                last_eval = progress
                held_out = evaluate(model, val, args.context)
                best.offer(model, step, held_out)
                bits = {name: book["bits_per_byte"] for name, book in held_out.items()}
                print(f"step {step} {progress:.0%} loss {loss_now / math.log(2):.4f} bits, "
                      f"balance {balance.item():.3f}, held out {bits}", flush=True)
    best.offer(model, step, evaluate(model, val, args.context))
    model.load_state_dict(best.weights)
    model.eval()
    return {"steps": step, "best_step": best.step, "tokens": step * args.batch * args.context,
            "seconds": round(time.monotonic() - began, 1)}


def check_transformers(model, folder: Path, val: Corpus) -> float:
    """Largest logit difference between this forward pass and transformers', in float32."""
    from transformers import Qwen3MoeForCausalLM
    device = next(model.parameters()).device
    theirs = Qwen3MoeForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    ids = next(iter(val.books.values()))[:256].long().unsqueeze(0)
    with torch.no_grad():
        error = (theirs(ids).logits - model(ids)[0]).abs().max().item()
    assert error < 2e-3, f"transformers disagrees by {error}"
    return error


def round_to_bf16(model) -> None:
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(param.to(torch.bfloat16).float())


def main():
    args = parse_args()
    began = time.monotonic()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    corpus, val = Corpus(args.corpus, "train", device), Corpus(args.corpus, "val", device)
    model = Qwen3Moe(Config(dropout=args.dropout)).to(device)
    nr_params = sum(p.numel() for p in model.parameters())
    print(f"{nr_params} parameters on {device}", flush=True)

    report = train(model, corpus, val, args, device, began)
    round_to_bf16(model)
    export(model, args.out)
    report |= {"parameters": nr_params, "batch": args.batch, "context": args.context,
               "lr": args.lr, "seed": args.seed, "mix": MIX,
               "dropout": args.dropout, "held_out": evaluate(model, val, args.context)}
    model.eval()
    (args.out / "train.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report), flush=True)
    print(f"transformers: largest logit difference {check_transformers(model, args.out, val):.2e}",
          flush=True)
    for prompt in SAMPLE_PROMPTS:
        print("---", sample(model, prompt, 240, 0.6, device), sep="\n", flush=True)


if __name__ == "__main__":
    main()
