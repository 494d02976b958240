#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Experts of the demo's model, placed by the first half of a recorded trace and judged on the other: prints the figures of
docs/balance.md and draws balance.png beside this file.

    balance.py          BUILD has tern and generate (build)"""
import json
import os
import subprocess
import tempfile

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.join(HERE, "..", "..")
BUILD = os.environ.get("BUILD", os.path.join(TREE, "build"))
RANKS, PLACES, LAYERS, EXPERTS = 8, 40, 4, 32


def record(room):
    """Routes of each layer's experts: of the first half of tokens, of the second."""
    model = os.path.join(TREE, "examples", "generate", "model")
    command = [os.path.join(BUILD, "generate"), "-m", model, "-n", "400", "--no-check", "--no-live", "--trace", f"{room}/trace"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    ids = np.load(f"{room}/trace_ids.npy").reshape(LAYERS, -1)
    half = ids.shape[1] // 2
    return [np.array([np.bincount(part, minlength=EXPERTS) for part in parts], np.int32) for parts in (ids[:, :half], ids[:, half:])]


def ranks(load, logical):
    """Loads over the mean."""
    count = np.bincount(logical, minlength=EXPERTS)
    return (load[logical] / count[logical]).reshape(RANKS, -1).sum(axis=1) / load.sum() * RANKS


def main():
    with tempfile.TemporaryDirectory() as room:
        first, second = record(room)
        np.save(f"{room}/first.npy", first)
        np.save(f"{room}/second.npy", second)
        command = [os.path.join(BUILD, "tern"), "balance", f"{room}/first.npy", "--ranks", str(RANKS), "--places", str(PLACES)]
        command += ["--judge", f"{room}/second.npy", "--out", f"{room}/next.npy", "--json", f"{room}/json"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        logical = np.load(f"{room}/next.npy")
        with open(f"{room}/json", encoding="utf-8") as file:
            layers = json.load(file)["layers"]
    figure, axes = plt.subplots(1, LAYERS, figsize=(11, 3), sharey=True)
    for i, (axis, layer) in enumerate(zip(axes, layers)):
        blocks = ranks(second[i], np.arange(EXPERTS))
        planned = ranks(second[i], logical[i])
        axis.bar(np.arange(RANKS) - 0.2, blocks, 0.4, label="blocks", color="#bbbbbb")
        axis.bar(np.arange(RANKS) + 0.2, planned, 0.4, label="planned on the first half", color="#2266aa")
        axis.axhline(1, color="black", linewidth=0.7)
        axis.set_title(f"layer {i}: {blocks.max():.2f} -> {planned.max():.2f}", fontsize=10)
        axis.set_xlabel("rank")
        print(f"| {i} | {blocks.max():.3f} | {layer['after']:.4f} | {layer['judged']:.3f} |")
    axes[0].set_ylabel("load over the mean, second half")
    axes[1].legend(fontsize=8, loc="upper right")
    figure.tight_layout()
    figure.savefig(os.path.join(HERE, "balance.png"), dpi=110)


main()
