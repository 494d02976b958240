#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a wire costs, by published figures: T = a + bytes that leave the node / b, fitted to DeepEP's low-latency kernels, and what it says elsewhere. docs/cluster.md has the tables that this prints."""
from math import comb

TOKENS, TOPK, HIDDEN = 128, 8, 7168
FP8_ROW, RESULT = HIDDEN + HIDDEN // 128 * 4 + 16, HIDDEN * 2  # DeepEP's: a row of a dispatch with scales and its header; a row of a combine
# deepseek-ai/DeepEP at 0297fc8, its page of version 1: H800, ConnectX-7, 8 GPUs a node; us
DEEPEP = ((16, 118, 195), (32, 155, 273), (64, 173, 314), (128, 192, 369), (256, 194, 360))
# uccl-project/uccl at 021c2c0, the page of its expert parallelism
OTHERS = (("UCCL, MI300X, ConnectX-7", ((16, 136, 207), (32, 224, 341))), ("UCCL, H200, EFA", ((16, 226, 293), (32, 465, 694))))


def points(figures):
    """Bytes of a rank's half that leave the node, and microseconds."""
    for ranks, dispatch, combine in figures:
        for us, row in ((dispatch, FP8_ROW), (combine, RESULT)):
            yield TOKENS * TOPK * row * (ranks - 8) / ranks, us


def error(model, point):
    return (model[0] + point[0] / model[1]) / point[1] - 1


def fit(known):
    """The line with the least squares."""
    x, y = (sum(p[i] for p in known) / len(known) for i in (0, 1))
    slope = sum((p[0] - x) * (p[1] - y) for p in known) / sum((p[0] - x) ** 2 for p in known)
    return y - slope * x, 1 / slope


def show_fit():
    known = list(points(DEEPEP))
    model = fit(known)
    left_out = [error(fit(known[:i] + known[i + 1 :]), p) for i, p in enumerate(known)]
    print(f"T = {model[0]:.1f} us + bytes / {model[1] / 1000:.1f} GB/s; mean error {mean(error(model, p) for p in known):.1f} %, of a figure that was left out {mean(left_out):.1f} %")
    for name, figures in (("DeepEP, H800, ConnectX-7", DEEPEP), *OTHERS):
        for i, p in enumerate(points(figures)):
            kind = ("dispatch", "combine")[i % 2]
            print(f"| {name} | {figures[i // 2][0]} | {kind} | {p[0] / 1e6:.2f} | {p[1]} | {model[0] + p[0] / model[1]:.0f} | {100 * error(model, p):+.0f} % |")
    return model


def mean(errors):
    errors = list(errors)
    return 100 * sum(map(abs, errors)) / len(errors)


def show_ours(model, experts=256, nodes=2, per_node=8):
    """A token's experts are drawn among all, each once."""
    ranks = nodes * per_node
    misses_rank = comb(experts - experts // ranks, TOPK) / comb(experts, TOPK)
    misses_node = comb(experts - experts // nodes, TOPK) / comb(experts, TOPK)
    for name, rows in (("to each rank", (ranks - per_node) * (1 - misses_rank)), ("once to a node", (nodes - 1) * (1 - misses_node))):
        for kind, row in (("dispatch", HIDDEN + HIDDEN // 128 * 4), ("combine", RESULT)):
            size = TOKENS * rows * row
            print(f"| {kind}, {name} | {size / 1e6:.2f} | {model[0] + size / model[1]:.0f} | {2 * size / 50e3:.0f} to {2 * size / 40e3:.0f} |")


show_ours(show_fit())
