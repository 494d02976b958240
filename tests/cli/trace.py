# SPDX-License-Identifier: Apache-2.0
"""trace.py FILE RANKS CASES [engine | gpus | layers]: whether a file of tern bench --trace is whole, and what is in it can have been so: of
cases in low latency, and on GPUs in both modes.
"""
import collections
import json
import sys

path, ranks, cases = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
engine = "engine" in sys.argv[4:]
ROUNDS = 4
events = json.load(open(path))["traceEvents"]
spans = collections.defaultdict(list)
names = {}
writes = collections.Counter()
for e in events:
    if e["ph"] == "M" and e["name"] == "thread_name":
        names[e["pid"], e["tid"]] = e["args"]["name"]
    elif e["ph"] == "X":
        spans[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"], e["name"]))
    elif e["ph"] in "be":
        writes[e["id"]] += 1 if e["ph"] == "b" else -1
    elif e["ph"] == "i":
        assert e["name"].startswith(("came from ", "command")), e

cases_line = [key for key, name in names.items() if name == "cases"]
assert len(cases_line) == 1, names
labels = spans.pop(cases_line[0])
assert len(labels) == cases, labels
for key, of_thread in spans.items():
    assert key in names, key
    of_thread.sort(key=lambda s: (s[0], -s[1]))
    open_ones = []
    for span in of_thread: # one is inside another, or beside it; printed in thousandths of a microsecond
        while open_ones and open_ones[-1][1] <= span[0] + 0.002:
            open_ones.pop()
        assert not open_ones or span[1] <= open_ones[-1][1] + 0.002, (key, open_ones[-1], span)
        open_ones.append(span)
counts = [collections.Counter(s[2] for key in spans for s in spans[key] if key[0] == rank) for rank in range(ranks)]


def check_gpu(count, most_blocks):
    """One case a mode; a block counts where it began what it ended."""
    assert count["plan"] == ROUNDS, count # of high throughput, one block's
    for name in ("await plans", "positions", "send results"):
        assert count[name] and count[name] % ROUNDS == 0 and count[name] <= ROUNDS * most_blocks, count
    for name in ("send rows", "rows", "results and sums at home"):
        assert count[name] > count["positions"], count # both modes'
    for name in ("gate and up", "down"):
        assert (count[name] >= 2 * ROUNDS) == ("layers" in sys.argv[4:]), count


def check_cpu(count):
    for name in ("round", "dispatch: send", "dispatch: receive", "combine: send", "combine: receive", "sum at home"):
        assert count[name] == ROUNDS * cases, (name, count)
    for peer in range(ranks):
        assert count[f"sum for {peer}"] == ROUNDS * cases, (peer, count)
        assert 0 < count[f"pack for {peer}"] == count[f"unpack of {peer}"], (peer, count) # low latency's


if {"gpus", "layers"} & set(sys.argv[4:]):
    for count in counts:
        check_gpu(count, 1024)
    sys.exit()
for count in counts:
    check_cpu(count)
# A round of one rank overlaps that of each other rank: nobody comes out of an exchange before all are in it.
rounds = [sorted(s for key in spans if key[0] == r for s in spans[key] if s[2] == "round") for r in range(ranks)]
for i in range(ROUNDS * cases):
    assert max(r[i][0] for r in rounds) <= min(r[i][1] for r in rounds), [r[i] for r in rounds]
assert not any(writes.values()), "a write without its end"
assert bool(writes) == engine, len(writes)
assert ("tern-proxy" in names.values()) == engine, names
