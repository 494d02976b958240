#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what Hugging Face transformers computes from the committed weights.

    python3 golden.py MODEL_DIR

writes MODEL_DIR/golden.safetensors, for each prompt i: `i.input_ids` [n],
`i.logits` [n, vocab] and `i.greedy` [48], the bytes that greedy decoding adds;
and for ROUTED_PROMPT `router.ids` and `router.weights` [layers, n, topk].
Weights are bf16 as stored, arithmetic is float32 on the CPU.
"""
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Qwen3MoeForCausalLM

PROMPTS = [
    "In the beginning God created",
    "Navigator, n. One who navigates or sails; esp., one who directs ",
    "And it came to pass in those days, that a man went down from the mountain unto the sea; and he "
    "lifted up his eyes, and saw a ship afar off:\n",
]
ROUTED_PROMPT = 1
GREEDY_BYTES = 48
# A greedy choice closer than this could fall either way with another order of summation.
LEAST_MARGIN = 2e-3


def record_routing(model, ids) -> dict:
    chosen = []
    hooks = [layer.mlp.gate.register_forward_hook(lambda m, i, out: chosen.append((out[2], out[1])))
             for layer in model.model.layers]
    model(ids)
    for hook in hooks:
        hook.remove()
    return {"router.ids": torch.stack([c[0] for c in chosen]).int().contiguous(),
            "router.weights": torch.stack([c[1] for c in chosen]).float().contiguous()}


def greedy(model, ids) -> torch.Tensor:
    start = ids.shape[1]
    for _ in range(GREEDY_BYTES):
        logits = model(ids).logits[0, -1]
        top = logits.topk(2).values
        assert top[0] - top[1] > LEAST_MARGIN, "a near tie: choose another prompt"
        ids = torch.cat((ids, logits.argmax().view(1, 1)), dim=1)
    return ids[0, start:]


@torch.no_grad()
def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    model = Qwen3MoeForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    out = {}
    for index, prompt in enumerate(PROMPTS):
        ids = torch.tensor([list(prompt.encode())])
        out[f"{index}.input_ids"] = ids[0].int()
        out[f"{index}.logits"] = model(ids).logits[0].contiguous()
        out[f"{index}.greedy"] = greedy(model, ids).int()
        print(repr(prompt), "->", repr(bytes(out[f"{index}.greedy"].tolist()).decode("latin-1")))
        if index == ROUTED_PROMPT:
            out |= record_routing(model, ids)
    save_file(out, folder / "golden.safetensors")


if __name__ == "__main__":
    main()
