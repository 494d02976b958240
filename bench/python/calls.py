# SPDX-License-Identifier: Apache-2.0
"""What a pair of calls, dispatch and combine, costs from Python: one rank, one token, so that nothing else takes time. Medians in us,
on the host; on GPUs of calls that only launch. scripts/calls.sh prints it beside the C bench.

    c_calls     the same two calls of the library, bound once to their arrays, in ctypes: what no Python code around them could beat
    pair        Exchange.dispatch and combine, rows looked at, result in an array of the caller's
    new arrays  the same with new arrays of the same shapes in each round, and a new result
    operators   the torch operators
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from typing import Any, Callable, Dict, List

import numpy as np

import tern_ep
from tern_ep.bench import PRESETS

BATCH = 20  # pairs between two waits for a GPU
TURNS = 8  # of all figures, one after the other, as machines have slow moments


class Case:
    def __init__(self, group: tern_ep.Group, arrays: str, device: tern_ep.Device, preset: str):
        hidden, nr_experts, topk = PRESETS[preset]
        config = tern_ep.Config(hidden=hidden, nr_experts=nr_experts, topk=topk, max_tokens=128, device=device)
        self.moe = tern_ep.Exchange(group, config, arrays=arrays)
        x = tern_ep.empty((1, hidden), np.uint16)
        x[...] = 0x3F80
        ids = np.arange(topk, dtype=np.int32).reshape(1, topk)
        weights = np.full((1, topk), 1 / topk, np.float32)
        self.given: List[Any] = [x, ids, weights]
        self.out: Any = np.zeros_like(x)
        self.y: Any = tern_ep.empty((self.moe.max_rows, hidden), np.uint16)
        if arrays == "torch":
            self._to_torch("cuda" if device else "cpu")

    def _to_torch(self, device: str) -> None:
        import torch

        x, ids, weights = (torch.from_numpy(a.view(np.int16) if a.dtype == np.uint16 else a).to(device) for a in self.given)
        self.given = [x.view(torch.bfloat16), ids, weights]
        self.out = torch.zeros_like(self.given[0])
        self.y = torch.from_numpy(self.y.view(np.int16)).to(device).view(torch.bfloat16)

    def pair(self) -> None:
        received = self.moe.dispatch(*self.given)
        self.moe.combine(received.x, out=self.out)

    def new_arrays(self, kept: Any) -> None:
        received = self.moe.dispatch(*kept)
        self.moe.combine(received.x)

    def c_calls(self) -> Callable[[], None]:
        """After pair() the slot's arguments are those of its arrays."""
        self.pair()
        moe, state = self.moe, self.moe._slots[0]
        native, lib = moe.native, moe._lib
        dispatch, combine, address = lib.tern_dispatch, lib.tern_combine, moe.kind.address(self.out)
        sent, received, results = (ctypes.byref(struct) for struct in (state.dispatch, state.received, state.combine))

        def calls() -> None:
            code = dispatch(native, sent, received) or combine(native, results, address, 0)
            if code:
                raise RuntimeError(f"{code}: {lib.tern_last_error()}")

        return calls


def batches(function: Callable[[], None], rounds: int, wait: Callable[[], None]) -> List[float]:
    """Times of a call, as means of batches: a GPU is waited for between them."""
    took = []
    for _ in range(max(rounds // BATCH, 2)):
        begun = time.perf_counter_ns()
        for _ in range(BATCH):
            function()
        took.append((time.perf_counter_ns() - begun) / BATCH / 1000)
        wait()
    return took


def functions_of(case: Case, arrays: str) -> Dict[str, Callable[[], None]]:
    copies = [[a.copy() if isinstance(a, np.ndarray) else a.clone() for a in case.given] for _ in range(7)]
    turn = iter(range(10**9))
    for _ in range(200):
        case.pair()
    functions = {"c_calls": case.c_calls(), "pair": case.pair, "new arrays": lambda: case.new_arrays(copies[next(turn) % 7])}
    if arrays == "torch":
        import torch

        import tern_ep.torch

        ops = tern_ep.torch.Ops(case.moe)

        def operators() -> None:
            ops.combine(ops.dispatch(*case.given).x, 1)

        for _ in range(100):
            operators()
        functions["operators"] = operators
    return functions


def measure(case: Case, arrays: str, rounds: int, wait: Callable[[], None]) -> Dict[str, float]:
    functions = functions_of(case, arrays)
    wait()
    took: Dict[str, List[float]] = {name: [] for name in functions}
    for _ in range(TURNS):
        for name, function in functions.items():
            case.pair()  # the slot's arguments are those of the arrays that c_calls has
            took[name] += batches(function, rounds // TURNS, wait)
    return {name: sorted(times)[len(times) // 2] for name, times in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="What a pair of calls costs from Python.")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="gpt-oss-120b")
    parser.add_argument("--rounds", type=int, default=4000)
    parser.add_argument("--count", metavar="ARRAYS.FIGURE", help="only this one's rounds, such as torch.pair, for who counts instructions")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    cuda = chosen.device == "cuda"
    kinds = ["torch"] if cuda else ["numpy"]
    wait: Callable[[], None] = lambda: None
    try:
        if chosen.count and chosen.count.startswith("numpy."):
            raise ModuleNotFoundError("torch takes minutes to begin where instructions are counted")
        import torch

        torch.set_grad_enabled(False)
        wait = torch.cuda.synchronize if cuda else wait
        kinds = ["torch"] if cuda else ["numpy", "torch"]
    except ModuleNotFoundError:
        if cuda:
            raise
    results = []
    with tern_ep.Group.alone() as group:
        for kind in kinds:
            if chosen.count and chosen.count.partition(".")[0] != kind:
                continue
            case = Case(group, kind, tern_ep.Device.CUDA if cuda else tern_ep.Device.CPU, chosen.preset)
            if chosen.count:
                function = functions_of(case, kind)[chosen.count.partition(".")[2]]
                case.pair()
                for _ in range(chosen.rounds):
                    function()
                return
            found = measure(case, kind, chosen.rounds, wait)
            case.moe.close()
            results.append({"arrays": kind, "device": chosen.device, **{k.replace(" ", "_") + "_us": round(v, 2) for k, v in found.items()}})
            if not chosen.json:
                print(f"{kind:<8}" + "".join(f"{name} {us:.1f} us   " for name, us in found.items()))
    if chosen.json:
        print("\n".join(json.dumps(result) for result in results))


if __name__ == "__main__":
    main()
