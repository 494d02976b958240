#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What it would change to sum results on a node before they cross to another: how many elements of out get other bits than the contract's, and what is spared of bytes. docs/protocol.md has it."""
import numpy as np

RANKS, PER_NODE, EXPERTS, TOPK, TOKENS, HIDDEN = 16, 8, 256, 8, 2000, 512


def bf16(x):
    """Rounded to the nearest, ties to even; as FP32."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def add(total, rows):
    """In FP32, one after the other, as a home adds what comes from ranks."""
    total = total.copy()
    for row in rows:
        total += row
    return total


def results(draw, spread):
    """Of one token, what each rank sends home, and whether it does: expert's outputs are normal, and of 2^-spread to 2^spread times that size."""
    ranks = draw.choice(EXPERTS, TOPK, replace=False) // (EXPERTS // RANKS)
    weights = draw.dirichlet(np.ones(TOPK)).astype(np.float32)
    size = np.exp2(draw.uniform(-spread, spread, (TOPK, 1)))
    y = bf16(draw.standard_normal((TOPK, HIDDEN)) * size)
    rows = np.zeros((RANKS, HIDDEN), np.float32)
    for k in range(TOPK):
        rows[ranks[k]] += weights[k] * y[k]
    return bf16(rows), np.isin(np.arange(RANKS), ranks)


def differing(draw, spread):
    """Elements with other bits where node 1's results cross as one row in FP32, or rounded; the home is on node 0."""
    nothing = np.zeros(HIDDEN, np.float32)
    other, crossed, nodes = [0, 0], 0, 0
    for _ in range(TOKENS):
        rows, come = results(draw, spread)
        near, far = (rows[n * PER_NODE : (n + 1) * PER_NODE][come[n * PER_NODE : (n + 1) * PER_NODE]] for n in (0, 1))
        first, there = add(nothing, near), add(nothing, far)
        right = bf16(add(first, far)).view(np.uint32)
        for i, row in enumerate((there, bf16(there))):
            other[i] += np.count_nonzero(bf16(first + row).view(np.uint32) != right)
        crossed += len(far)
        nodes += len(far) > 0
    return other, crossed / nodes


for spread in (0, 4, 8, 12):
    (exact, rounded), times = differing(np.random.default_rng(1), spread)
    nr = TOKENS * HIDDEN
    print(f"| 2^{-spread} to 2^{spread} | {exact} ({1e6 * exact / nr:.0f} in a million), {times / 2:.2f} times fewer bytes | {rounded} ({100 * rounded / nr:.1f} %), {times:.2f} times |")
