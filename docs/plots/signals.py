#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The put-with-signal experiment of docs/signals.md.

    signals.py run      runs `tern bench signal` for all experiments, writes signals.json (virtual time: the same on every machine)
    signals.py fit      finds the three fitted parameters anew, and prints them beside the command's defaults
    signals.py render   draws the plots and fills the tables of docs/signals.md from signals.json

TERN names the command (build/tern)."""
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "signals.json")
PAGE = os.path.join(HERE, "..", "signals.md")
TERN = os.environ.get("TERN", os.path.join(HERE, "..", "..", "build", "tern"))

# What was published (arXiv 2605.00686): microseconds and shares.
PUBLISHED_FENCE_US = {4096: {2: 960, 8: 6100}, 1 << 20: {2: 3500, 8: 9200}}
PUBLISHED_SHARE = {"coupled": 0.02, "perseus": 0.74}
PUBLISHED_GROUPS_MS = {"coupled": 22.7, 1: 19.9, 28: 12.3}
PUBLISHED_ABLATION = {"nic-fence": (1.3, 2.6), "decoupled": (1.2, 1.6), "perseus": (1.5, 3.5)}
PUBLISHED_ZIPF = {"S = 1K": (2.7, 2.0), "S = 8K": (1.5, 2.1)}
ALL_PEERS = "coupled-all-peers"
GROUPS = (1, 2, 4, 7, 14, 28)
BYTES = (4096, 65536, 1 << 20)
COMPUTE_MS = (0.5, 1, 2, 4, 8, 16)
ZIPF_COMPUTE_MS = (2, 8)
LAYERS = {"coupled": (ALL_PEERS, {}), "groups of 1": ("decoupled", {"group": 1, "drained": 31}), "of 28": ("decoupled", {"group": 28, "drained": 31}),
          "nic-fence": ("nic-fence", {"group": 1}), "perseus": ("perseus", {"group": 1}), "imm": ("imm", {})}


def bench(policies, **flags):
    """One run: {policy: result}."""
    words = [TERN, "bench", "signal", "--json", "-", "--policy", ",".join(policies)]
    for name, value in flags.items():
        words += ["--" + name.replace("_", "-")] + ([] if value is True else [str(value)])
    out = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    bench.model = out["model"]
    return {result["policy"]: result for result in out["results"]}


def name_bytes(n):
    return f"{n >> 20} MB" if n >= 1 << 20 else f"{n >> 10} KB" if n >= 1024 else f"{n} B"


# ---- experiments -----------------------------------------------------------------------------------------------

def run_concurrency():
    policies = ("put-only", "coupled", ALL_PEERS, "decoupled", "nic-fence", "perseus", "imm")
    return {c: {p: r["time_us"] for p, r in bench(policies, concurrency=c, bytes=4096).items()} for c in (32, 64, 96, 192, 384)}


def run_nodes():
    rows = []
    for size in BYTES:
        for spread in ("all", "remote"):
            for nodes in (2, 4, 8, 16):
                got = bench(("coupled", ALL_PEERS), bytes=size, nodes=nodes, spread=spread, iters=2)
                rows.append({"bytes": size, "spread": spread, "nodes": nodes, "transfers": got["coupled"]["transfers"],
                             **{p: r["fence_us"] for p, r in got.items()}})
    return rows


def run_groups():
    rows = {}
    for size in BYTES:
        got = {"coupled": bench((ALL_PEERS,), bytes=size, iters=2)[ALL_PEERS]["time_us"],
               "coupled, one drained": bench(("coupled",), bytes=size, iters=2)["coupled"]["time_us"]}
        for g in GROUPS:
            got[g] = bench(("decoupled",), bytes=size, group=g, drained=31, iters=2)["decoupled"]["time_us"]
            got[f"{g}, one drained"] = bench(("decoupled",), bytes=size, group=g, iters=2)["decoupled"]["time_us"]
            got[f"{g}, perseus"] = bench(("perseus",), bytes=size, group=g, iters=2)["perseus"]["time_us"]
        rows[size] = got
    return rows


def run_ablation():
    rows = {}
    for size in BYTES:
        got = bench(("put-only", "coupled", ALL_PEERS, "nic-fence", "perseus", "imm"), bytes=size, group=1, iters=2)
        got["decoupled"] = bench(("decoupled",), bytes=size, group=1, drained=31, iters=2)["decoupled"]
        rows[size] = {p: r["time_us"] for p, r in got.items()}
    return rows


def run_sizes():
    policies = ("put-only", "coupled", ALL_PEERS, "decoupled", "nic-fence", "perseus", "imm")
    sizes = [1 << s for s in range(6, 23, 2)]
    return {n: {p: r["time_us"] for p, r in bench(policies, bytes=n, concurrency=1, one_sender=True, spread="remote", jitter_ns=0,
                                                  iters=1).items()} for n in sizes}


def run_zipf():
    rows = {}
    for zipf in (0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5):
        got = bench(("put-only", ALL_PEERS, "perseus", "imm"), zipf=zipf, iters=20)
        rows[zipf] = {p: r["time_us"] for p, r in got.items()}
        got = bench(("put-only", ALL_PEERS, "perseus", "imm"), zipf=zipf, bytes=65536, iters=10)
        rows[zipf].update({p + " 64 KB": r["time_us"] for p, r in got.items()})
    return rows


def layer_us(name, compute_ms, **flags):
    policy, more = LAYERS[name]
    return bench((policy,), compute_ns=int(1e6 * compute_ms), iters=2, **more, **flags)[policy]["layer_us"]


def run_layer():
    return {ms: {name: layer_us(name, ms) for name in LAYERS} for ms in COMPUTE_MS}


def run_layer_zipf():
    return {zipf: {ms: {name: layer_us(name, ms, zipf=zipf) for name in ("coupled", "perseus")} for ms in ZIPF_COMPUTE_MS}
            for zipf in (0, 0.5, 1.0, 1.5)}


def run_queue_pairs():
    """A quicker proxy, so that the NIC's fences are what limits."""
    rows = {}
    for nr in (1, 2, 4, 7, 14, 28):
        got = bench(("put-only", "nic-fence", "perseus", "imm"), queue_pairs=nr, post_ns=100, signal_post_ns=50, group=1)
        rows[nr] = {p: {"time_us": r["time_us"], "held": r["fences_held"]} for p, r in got.items()}
    return rows


def run():
    bench(("put-only",), iters=1)
    data = {"model": bench.model}
    for name in ("concurrency", "nodes", "groups", "ablation", "sizes", "zipf", "layer", "layer_zipf", "queue_pairs"):
        data[name] = globals()["run_" + name]()
        print("ran", name)
    with open(DATA, "w") as file:
        json.dump(data, file, indent=1)
        file.write("\n")


# ---- the fit ---------------------------------------------------------------------------------------------------

def bisect(f, low, high):
    """Where f, which grows, is 0: to 1 ns."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if f(middle) < 0 else (low, middle)
    return high


def fit():
    flags = {"post_ns": 1400, "signal_post_ns": 450, "drain_ns": 2200}
    for _ in range(3):
        flags["drain_ns"] = bisect(lambda ns: bench((ALL_PEERS,), nodes=2, iters=3, **{**flags, "drain_ns": ns})[ALL_PEERS]["fence_us"]
                                   - PUBLISHED_FENCE_US[4096][2], 0, 10000)

        def share(ns, policy):
            got = bench(("put-only", policy), iters=3, **{**flags, **ns})
            return got["put-only"]["time_us"] / got[policy]["time_us"]
        flags["post_ns"] = bisect(lambda ns: share({"post_ns": ns}, ALL_PEERS) - PUBLISHED_SHARE["coupled"], 0, 10000)
        flags["signal_post_ns"] = bisect(lambda ns: PUBLISHED_SHARE["perseus"] - share({"signal_post_ns": ns}, "perseus"), 1, 10000)
    bench(("put-only",), iters=1)
    for name, value in flags.items():
        print(f"{name}: fitted {value}, default {bench.model[name]}")


# ---- tables and plots ------------------------------------------------------------------------------------------

def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def off(model, published):
    return f"{100 * (model / published - 1):+.0f}%"


def table_model(data):
    m = data["model"]
    return table(("parameter", "value", "where from"), (
        ("NIC bandwidth, each way", f"{m['bytes_per_second'] / 1e9:g} GB/s", "Slingshot 200 Gbit/s, a NIC for each rank: nominal"),
        ("one-way latency", f"{m['latency_ns']} ns + up to {m['jitter_ns']} ns", "assumed: the size that small-message latencies of such networks have"),
        ("completion, after the acknowledgement", f"{m['completion_ns']} ns", "assumed"),
        ("NIC, least time between requests", f"{m['request_ns']} ns", "assumed: not a limit in any of these runs"),
        ("proxy, each look of a drain", f"{m['drain_ns']} ns", "**fitted** on 0.96 ms of fences at 2 nodes, 4 KB"),
        ("proxy, posting a put", f"{m['post_ns']} ns", "**fitted** on coupled = 2% of put-only, 96 x 4 KB, 8 nodes"),
        ("proxy, posting a signal", f"{m['signal_post_ns']} ns", "**fitted** on perseus = 74% of put-only, the same")))


def table_share(data):
    row = data["concurrency"]["96"]
    share = {p: row["put-only"] / row[p] for p in row}
    published = {ALL_PEERS: "2% (fitted on it)", "perseus": "74% (fitted on it)"}
    return table(("policy", "time, us", "of put-only", "published"),
                 [(p, f"{row[p]:.0f}", f"{100 * share[p]:.1f}%", published.get(p, "")) for p in row])


def find_row(data, **want):
    return next(r for r in data["nodes"] if all(r[k] == v for k, v in want.items()))


def table_fences(data):
    rows = []
    for size in (4096, 1 << 20):
        for nodes in (2, 8):
            r = find_row(data, bytes=size, nodes=nodes, spread="all")
            s = find_row(data, bytes=size, nodes=nodes, spread="remote")
            p = PUBLISHED_FENCE_US[size][nodes]
            rows.append((name_bytes(size), nodes, f"{p / 1e3:.2f}", f"{r[ALL_PEERS] / 1e3:.2f} ({off(r[ALL_PEERS], p)})",
                         f"{r['coupled'] / 1e3:.2f}", f"{s[ALL_PEERS] / 1e3:.2f}", f"{s['coupled'] / 1e3:.2f}"))
        growth = [PUBLISHED_FENCE_US[size][8] / PUBLISHED_FENCE_US[size][2]]
        for spread in ("all", "remote"):
            a, b = (find_row(data, bytes=size, nodes=n, spread=spread) for n in (2, 8))
            growth += [b[ALL_PEERS] / a[ALL_PEERS], b["coupled"] / a["coupled"]]
        rows.append((name_bytes(size), "growth", *(f"{g:.1f}x" for g in growth)))
    return table(("bytes", "nodes", "published, ms", "all others drained", "one drained", "all others, 96 remote", "one, 96 remote"), rows)


def table_groups(data):
    rows = []
    published = PUBLISHED_GROUPS_MS
    for key in ["coupled"] + [str(g) for g in GROUPS]:
        shown = published.get(key if key == "coupled" else int(key), "")
        rows.append((key, shown, *(f"{data['groups'][str(n)][key] / 1e3:.2f}" for n in BYTES),
                     f"{data['groups']['4096'][key + ', one drained'] / 1e3:.2f}",
                     "" if key == "coupled" else f"{data['groups']['4096'][key + ', perseus'] / 1e3:.2f}"))
    return table(("peers in a group", "published, end to end, ms", *(name_bytes(n) for n in BYTES), "4 KB, one drained", "4 KB, perseus"), rows)


def table_ablation(data):
    rows = []
    for policy in ("nic-fence", "decoupled", "perseus", "imm"):
        low, high = PUBLISHED_ABLATION.get(policy, (None, None))
        rows.append((policy, f"{low} to {high}x" if low else "", *(f"{data['ablation'][str(n)][ALL_PEERS] / data['ablation'][str(n)][policy]:.1f}x" for n in BYTES),
                     *(f"{with_compute(data, 4096, policy, c):.1f}x" for c in compute_bounds(data))))
    low, high = compute_bounds(data)
    return table(("instead of coupled", "published, end to end", *(name_bytes(n) for n in BYTES), f"4 KB + {low / 1e3:.1f} ms of compute",
                  f"4 KB + {high / 1e3:.1f} ms"), rows)


def with_compute(data, size, policy, compute_us):
    row = data["ablation"][str(size)]
    return (compute_us + row[ALL_PEERS]) / (compute_us + row[policy])


def compute_bounds(data):
    """The compute times under which `perseus` alone gains what was published for it: its ends."""
    row = data["ablation"]["4096"]
    return [(row[ALL_PEERS] - gain * row["perseus"]) / (gain - 1) for gain in reversed(PUBLISHED_ABLATION["perseus"])]


def line_fit(points):
    n = len(points)
    mx, my = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    slope = sum((x - mx) * (y - my) for x, y in points) / sum((x - mx) ** 2 for x, _ in points)
    return my - slope * mx, slope


def table_alpha_beta(data):
    rows = []
    for policy in data["sizes"]["64"]:
        points = [(int(n), row[policy]) for n, row in data["sizes"].items()]
        alpha, beta = line_fit(points)
        worst = max(abs((alpha + beta * x) / y - 1) for x, y in points)
        rows.append((policy, f"{alpha:.2f}", f"{1e-3 / beta:.2f}", f"{100 * worst:.2f}%"))
    return table(("policy", "alpha, us", "1/beta, GB/s", "largest error of the line"), rows)


def table_zipf(data):
    rows = []
    first = data["zipf"]["0"]
    compute = {}
    for name, suffix in (("S = 1K", ""), ("S = 8K", " 64 KB")):
        gain = PUBLISHED_ZIPF[name][0]
        compute[suffix] = (first[ALL_PEERS + suffix] - gain * first["perseus" + suffix]) / (gain - 1)
    for zipf, row in data["zipf"].items():
        cells = [zipf]
        for suffix in ("", " 64 KB"):
            c = compute[suffix]
            cells += [f"{row['put-only' + suffix]:.0f}", f"{row[ALL_PEERS + suffix]:.0f}", f"{row['perseus' + suffix]:.0f}",
                      f"{row[ALL_PEERS + suffix] / row['perseus' + suffix]:.1f}x",
                      f"{(c + row[ALL_PEERS + suffix]) / (c + row['perseus' + suffix]):.2f}x"]
        rows.append(cells)
    return table(("zipf", "4 KB: put-only, us", "coupled", "perseus", "gain", f"with {compute[''] / 1e3:.1f} ms of compute",
                  "64 KB: put-only", "coupled", "perseus", "gain", f"with {compute[' 64 KB'] / 1e3:.1f} ms of compute"), rows)


def table_layer(data):
    rows = []
    for ms, row in data["layer"].items():
        behind = with_compute(data, 4096, "perseus", 1e3 * float(ms))
        rows.append((ms, *(f"{us / 1e3:.2f}" for us in row.values()), f"{row['coupled'] / row['of 28']:.2f}x", f"{row['coupled'] / row['perseus']:.2f}x",
                     f"{behind:.2f}x"))
    return table(("compute of a rank, ms", *(f"{name}, ms" for name in LAYERS), "gain of groups of 28", "of perseus", "of perseus, compute behind all"), rows)


def table_layer_zipf(data):
    rows = [(zipf, *(cell for ms in row.values() for cell in (f"{ms['coupled'] / 1e3:.2f}", f"{ms['perseus'] / 1e3:.2f}", f"{ms['coupled'] / ms['perseus']:.2f}x")))
            for zipf, row in data["layer_zipf"].items()]
    head = [f"{what} {ms} ms" for ms in ZIPF_COMPUTE_MS for what in ("coupled, ms, with", "perseus, with", "gain, with")]
    return table(("zipf", *head), rows)


def table_queue_pairs(data):
    return table(("queue pairs", "put-only, us", "nic-fence", "held by fences", "perseus", "held", "imm"),
                 [(nr, f"{r['put-only']['time_us']:.1f}", f"{r['nic-fence']['time_us']:.1f}", f"{r['nic-fence']['held']:.0f}",
                   f"{r['perseus']['time_us']:.1f}", f"{r['perseus']['held']:.0f}", f"{r['imm']['time_us']:.1f}")
                  for nr, r in data["queue_pairs"].items()])


def fill_page(data):
    with open(PAGE) as file:
        text = file.read()
    for name in [key[6:] for key in globals() if key.startswith("table_")]:
        begin, end = f"<!-- {name} -->\n", f"<!-- end {name} -->"
        before, rest = text.split(begin)
        text = before + begin + globals()["table_" + name](data) + "\n" + end + rest.split(end)[1]
    with open(PAGE, "w") as file:
        file.write(text)


def plot_fences(plt, data):
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
    for axis, size in zip(axes, (4096, 1 << 20)):
        for policy, style in ((ALL_PEERS, "o-"), ("coupled", "s--")):
            rows = [r for r in data["nodes"] if r["bytes"] == size and r["spread"] == "all"]
            axis.plot([r["nodes"] for r in rows], [r[policy] / 1e3 for r in rows], style,
                      label="model, " + ("all others drained" if policy == ALL_PEERS else "one drained"))
        published = PUBLISHED_FENCE_US[size]
        axis.plot(list(published), [us / 1e3 for us in published.values()], "k*", markersize=11, label="published")
        axis.set(xlabel="nodes of 4 ranks", ylabel="fence time of a rank, ms", title=f"96 transfers of {name_bytes(size)}", ylim=(0, None))
        axis.legend()
    return figure


def plot_share(plt, data):
    figure, axis = plt.subplots(figsize=(6, 3.4))
    for policy in list(data["concurrency"]["96"])[1:]:
        axis.plot([int(c) for c in data["concurrency"]], [100 * r["put-only"] / r[policy] for r in data["concurrency"].values()],
                  "s--" if policy in ("nic-fence", "decoupled") else "o-", label=policy)
    axis.plot([96, 96], [2, 74], "k*", markersize=11, label="published: coupled, perseus")
    axis.set(xlabel="transfers of a rank, 4 KB, 8 nodes", ylabel="throughput, % of put-only", xscale="log", yscale="log")
    axis.set_xticks([32, 64, 96, 192, 384], ["32", "64", "96", "192", "384"])
    axis.minorticks_off()
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def plot_groups(plt, data):
    figure, axis = plt.subplots(figsize=(6, 3.4))
    row = data["groups"]["4096"]
    for suffix, label in (("", "all others drained"), (", one drained", "one drained"), (", perseus", "perseus: no drain")):
        axis.plot(GROUPS, [row[f"{g}{suffix}"] / 1e3 for g in GROUPS], "o-", label="model, " + label)
    axis.axhline(row["coupled"] / 1e3, color="gray", linestyle=":", label="model, coupled")
    axis.set(xlabel="peers in a group", ylabel="ms", xscale="log", title="96 transfers of 4 KB, 8 nodes", ylim=(0, None))
    axis.set_xticks(GROUPS, [str(g) for g in GROUPS])
    axis.minorticks_off()
    axis.legend(fontsize=8)
    return figure


def plot_ablation(plt, data):
    figure, axis = plt.subplots(figsize=(6, 3.4))
    compute = [c * 100 for c in range(151)]
    for policy, color in (("perseus", "C0"), ("nic-fence", "C1"), ("decoupled", "C2")):
        axis.plot([c / 1e3 for c in compute], [with_compute(data, 4096, policy, c) for c in compute], color=color,
                  linestyle="--" if policy == "nic-fence" else "-", label=f"model, {policy}")
        axis.axhspan(*PUBLISHED_ABLATION[policy], color=color, alpha=0.12, label=f"published, {policy}")
    axis.set(xlabel="compute beside 96 transfers of 4 KB, ms", ylabel="gain over coupled", ylim=(1, 5), xlim=(0, 15))
    axis.legend(fontsize=7)
    return figure


def render():
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with open(DATA) as file:
        data = json.load(file)
    fill_page(data)
    for name in ("fences", "share", "groups", "ablation"):
        figure = globals()["plot_" + name](plt, data)
        figure.tight_layout()
        figure.savefig(os.path.join(HERE, f"signals-{name}.png"), dpi=90, metadata={"Software": None})


if __name__ == "__main__":
    actions = {"run": run, "fit": fit, "render": render}
    if len(sys.argv) != 2 or sys.argv[1] not in actions:
        sys.exit(__doc__)
    actions[sys.argv[1]]()
