#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One round of a file of tern bench --trace, all ranks below each other on one clock: of ranks'
threads, or of GPUs' blocks, each a thin line. Several files are drawn below each other, as long as
their rounds take.

    trace.py TRACE.json... PICTURE.png [--case N] [--round N] [--title TEXT]...

N from 0 (0, 1); a title for each file."""
import argparse
import collections
import json
import re

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {"pack": "#4c78a8", "pack for": "#4c78a8", "unpack of": "#72b7b2", "sum for": "#f58518", "sum at home": "#e45756", "wait": "#d9d9d9",
           "experts": "#54a24b", "write to": "#b279a2", "plan": "#9d755d", "send rows": "#4c78a8", "await plans": "#d9d9d9", "positions": "#9d755d",
           "rows": "#72b7b2", "gate and up": "#54a24b", "down": "#88d27a", "wait to send": "#d9d9d9", "send results": "#f58518",
           "results and sums at home": "#e45756"}
ROLES = ["plans", "sends", "receives", "gate, up", "down", "results", "home"]  # of a GPU's blocks, in the order of a layer
REST = 15  # us in which no block does anything: between rounds
SENT = re.compile(r"(.*?) ?(\d*)$")


def read(path):
    """Spans of each line: (rank, thread) -> [(from, to, what, peer)]; cases: [(from, to, name)]; names of threads."""
    lines, cases, names, open_writes = collections.defaultdict(list), [], {}, {}
    events = json.load(open(path))["traceEvents"]
    for e in events:
        if e["ph"] == "M" and e["name"] == "thread_name":
            names[e["pid"], e["tid"]] = e["args"]["name"]
    for e in events:
        key = e["pid"], e.get("tid")
        what, peer = SENT.match(e["name"]).groups()
        if e["ph"] == "X" and names[key] == "cases":
            cases.append((e["ts"], e["ts"] + e["dur"], e["name"]))
        elif e["ph"] == "X":
            lines[key].append((e["ts"], e["ts"] + e["dur"], what, peer))
        elif e["ph"] == "b":
            open_writes[e["id"]] = e["ts"]
        elif e["ph"] == "e":
            lines[key].append((open_writes.pop(e["id"]), e["ts"], what, peer))
    return lines, sorted(cases), names


def rows_of(spans):
    """Spans that overlap and are not of one thread, one below the other."""
    ends = []
    for span in sorted(spans):
        row = next((i for i, end in enumerate(ends) if end <= span[0]), len(ends))
        ends[row:row + 1] = [span[1]]
        yield row, span


def rounds_of(lines):
    """Where threads say when rounds are, these; else what lies between rests of all blocks: [(from, to)]."""
    named = [sorted((b, e) for b, e, what, _ in spans if what == "round") for spans in lines.values()]
    named = [of_rank for of_rank in named if of_rank]
    if named:
        return [(min(b for b, _ in same), max(e for _, e in same)) for same in zip(*named)]
    rounds = []
    for begin, end, what, _ in sorted(span for spans in lines.values() for span in spans):
        if what not in COLOURS:
            continue
        if not rounds or begin > rounds[-1][1] + REST:
            rounds.append((begin, end))
        rounds[-1] = (rounds[-1][0], max(end, rounds[-1][1]))
    return rounds


def draw_threads(axes, lines, names, first, last):
    ticks, y = [], 0
    for key in sorted(lines, key=lambda k: (k[0], names[k] == "tern-proxy")):
        inside = [s for s in lines[key] if s[2] in COLOURS and s[0] >= first and s[1] <= last]
        rows = list(rows_of(inside)) if any(s[2] == "write to" for s in inside) else [(0, s) for s in sorted(inside)]
        if not rows:
            continue
        height = 1 / (1 + max(row for row, _ in rows))
        for row, (begin, end, what, peer) in rows:
            axes.barh(y + row * height, end - begin, height * 0.9, begin - first, color=COLOURS[what], align="edge", linewidth=0)
            if peer and end - begin > (last - first) / 60 and height > 0.3:
                axes.text((begin + end) / 2 - first, y + (row + 0.45) * height, peer, ha="center", va="center", fontsize=7, color="white")
        ticks.append((y + 0.45, f"rank {key[0]}" + ("" if names[key] != "tern-proxy" else ", proxy")))
        y += 1.15
    return ticks


def draw_blocks(axes, lines, names, first, last):
    """Each role of a rank's blocks is a band, each block a line in it."""
    ticks, y = [], 0
    for rank in sorted({pid for pid, _ in lines}):
        for role in ROLES:
            blocks = sorted((int(names[k].split()[0]), k) for k in lines if k[0] == rank and names[k].split(" ", 1)[-1] == role)
            spans = [(number / len(blocks), s) for number, (_, k) in enumerate(blocks) for s in lines[k] if s[0] >= first and s[1] <= last]
            if not spans:
                continue
            for at, (begin, end, what, _) in spans:
                axes.barh(y + at, end - begin, 1 / len(blocks), begin - first, color=COLOURS[what], align="edge", linewidth=0)
            ticks.append((y + 0.5, f"rank {rank}: {role}"))
            y += 1.1
        y += 0.3
    return ticks


def draw(axes, trace, case, number, title):
    """Returns how long the round takes, how many bands it has, and what is done in it."""
    lines, cases, names = trace
    case = cases[case]
    lines = {k: [s for s in spans if case[0] <= s[0] <= case[1]] for k, spans in lines.items()}
    first, last = rounds_of(lines)[number]
    ticks = (draw_blocks if of_blocks(names) else draw_threads)(axes, lines, names, first, last)
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
    axes.invert_yaxis()
    axes.set_title(title or case[2], fontsize=10)
    inside = (s for spans in lines.values() for s in spans if first <= s[0] and s[1] <= last)
    return last - first, len(ticks), {s[2] for s in inside}


def of_blocks(names):
    return any(name.split(" ", 1)[-1] in ROLES for name in names.values())


def height_of(trace):
    lines, _, names = trace
    return 5.5 if of_blocks(names) else 0.55 * len(lines)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    arguments.add_argument("traces", nargs="+")
    arguments.add_argument("picture")
    arguments.add_argument("--case", type=int, default=0)
    arguments.add_argument("--round", type=int, default=1)
    arguments.add_argument("--title", action="append", default=[])
    a = arguments.parse_args()
    traces = [read(path) for path in a.traces]
    nr = len(traces)
    height = 0.5 + sum(map(height_of, traces)) * (1 if nr == 1 else 0.75)
    figure, axes = plt.subplots(nr, figsize=(11, height), sharex=True, squeeze=False)
    titles = a.title + [None] * nr
    drawn = [draw(*each, a.case, a.round, title) for *each, title in zip(axes[:, 0], traces, titles)]
    bottom = axes[-1][0]
    bottom.set_xlim(0, max(took for took, _, _ in drawn))
    bottom.set_xlabel("us")
    used = set().union(*(what for _, _, what in drawn))
    shown = [w for w in COLOURS if w in used]
    bottom.legend([plt.Rectangle((0, 0), 1, 1, color=COLOURS[w]) for w in shown],
                  [re.sub(" (for|of|to)$", "", w) for w in shown], ncols=len(shown), frameon=False,
                  fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12 - 0.35 / drawn[-1][1]))
    figure.savefig(a.picture, dpi=90, bbox_inches="tight")


main()
