#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws losses that train.py wrote, one process's first, and their distance from it: plot.py one.json two.json ... OUT.svg"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "tern"  # the same file for the same figures
import matplotlib.pyplot as plt  # noqa: E402


def main() -> None:
    *files, out = sys.argv[1:]
    runs = [json.loads(Path(file).read_text()) for file in files]
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(7, 4.5), height_ratios=(3, 1), layout="constrained")
    for run, style in zip(runs, ("-", "--", ":", "-.")):
        above.plot(run["losses"], style, label="one process" if run["ranks"] == 1 else f"{run['ranks']} ranks over Tern")
    for run in runs[1:]:
        distance = [abs(a - b) for a, b in zip(run["losses"], runs[0]["losses"])]
        below.semilogy(distance, color="black", label=f"{run['ranks']} ranks")
        print(f"{run['ranks']} ranks: loss {run['losses'][-1]:.5f}, one process {runs[0]['losses'][-1]:.5f}, at most {max(distance):.2e} apart")
    above.set_ylabel("loss, nats a byte")
    above.legend()
    below.set_ylabel("distance")
    below.set_xlabel("step")
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    main()
