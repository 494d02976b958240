# SPDX-License-Identifier: Apache-2.0
"""vLLM's and SGLang's own classes over tern_ep.deep_ep, driven by ranks that are processes of this program:

    python3 python/tests/engine_ranks.py [--ranks 2] [--device cpu|cuda] [--engines build/engines] [PART ...]

From routed tokens to their sums: the engine's prepare or dispatch, experts in plain torch, the engine's finalize or combine. Rank 0
compares each token with a dense layer that it computes alone. Which files are the engines', and what stands for the rest of them, says
engines.py."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import deep_ep_ranks as ranks
import engines
import torch
import torch.distributed as dist
from deep_ep_ranks import back, difference

import tern_ep.deep_ep

HIDDEN, INTER, LOCAL, TOPK, MOST, LAYERS = 2048, 64, 4, 3, 64, 3
"""2048 is the narrowest that vLLM's low latency takes."""
BOUND = {"bf16": 1e-5, "fp8": 9e-4, "ue8m0": 9e-4}
"""Of deep_ep's own tests, for all tokens together."""
OF_A_TOKEN = 1e-5
"""For each; of FP8 against what that leaves of rows."""


def quantised(x: Any, packed: bool = False) -> Tuple[Any, Any]:
    """Blocks of 128 as FP8. Scales are floats, or powers of two, four in an int32."""
    blocks = x.float().view(len(x), HIDDEN // 128, 128)
    most = blocks.abs().amax(2).clamp(1e-4)
    scales, factors = most / 448, torch.full_like(most, 448) / most
    if packed:
        exponents = (scales.view(torch.int32) + 0x7FFFFF) >> 23  # of the power of two that is no less, biased
        scales, factors = exponents.to(torch.uint8).view(torch.int32), (254 - exponents << 23).view(torch.float32)
    return (blocks * factors[:, :, None]).to(torch.float8_e4m3fn).view(x.shape), scales


def as_sent(x: Any, form: str) -> Any:
    """What travelling in that form leaves of rows."""
    return x if form == "bf16" else back(quantised(x, form == "ue8m0"))


# ---- experts -------------------------------------------------------------------------------------------------------


class Weights:
    """Of all experts of a layer; every rank draws the same."""

    def __init__(self, seed: int, nr_experts: int):
        random = torch.Generator("cpu").manual_seed(1000 + seed)

        def drawn(*shape: int) -> Any:
            return (torch.randn(shape, generator=random, device="cpu") / shape[-1] ** 0.5).to(torch.bfloat16).to(ranks.DEVICE)

        self.w1, self.w2 = drawn(nr_experts, 2 * INTER, HIDDEN), drawn(nr_experts, HIDDEN, INTER)


def product(x: Any, w1: Any, w2: Any) -> Any:
    """Of an expert, or of several side by side, in floats."""
    gate, up = (x.float() @ w1.float().mT).chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up) @ w2.float().mT


def routes(x: Any, ids: Any, w1: Any, w2: Any) -> Any:
    """[N][K][H] of rows and local experts, with -1: what each made of each row, in BF16."""
    found = torch.zeros((*ids.shape, HIDDEN), dtype=torch.bfloat16)
    for expert in range(LOCAL):
        at = ids == expert
        found[at] = product(x, w1[expert], w2[expert]).to(torch.bfloat16)[at.nonzero()[:, 0]]
    return found


def side_by_side(x: Any, counts: Any, w1: Any, w2: Any) -> Any:
    """[L][M][H]. Nobody may look at what is behind a count."""
    behind = torch.arange(x.shape[1])[None, :] >= counts[:, None]
    y = product(x.float().masked_fill(behind[:, :, None], 0), w1, w2)
    return y.masked_fill(behind[:, :, None], float("nan")).to(torch.bfloat16)


# ---- what all ranks draw, and the verdict --------------------------------------------------------------------------


class Job:
    def __init__(self, seed: int, sizes: List[int], rank: int, topk: int = TOPK, drop: float = 0.1):
        self.nr_experts = LOCAL * len(sizes)
        random = torch.Generator("cpu").manual_seed(seed)
        parts = []
        for nr in sizes:
            ids = torch.rand((nr, self.nr_experts), generator=random, device="cpu").argsort(1)[:, :topk].clone()
            ids[torch.rand((nr, topk), generator=random, device="cpu") < drop] = -1
            x = torch.randn((nr, HIDDEN), generator=random, device="cpu").to(torch.bfloat16)
            parts.append((x, ids, torch.rand((nr, topk), generator=random, device="cpu") + 0.1))
        self.x, self.ids, self.weights = (part.to(ranks.DEVICE) for part in parts[rank])


def sizes_of(nr_ranks: int) -> List[List[int]]:
    """Of rounds, one after the other: unequal ones, ranks without tokens, none at all."""
    cycles = [(37, 5, 20, 1), (0, 41), (MOST, 0), (0,)]
    return [[cycle[rank % len(cycle)] for rank in range(nr_ranks)] for cycle in cycles]


def handed_on(x: Any, out: Any) -> Any:
    """To the next layer."""
    return torch.nn.functional.rms_norm((x + out).float(), (HIDDEN,)).to(torch.bfloat16)


def dense(x: Any, ids: Any, weights: Any, layer: Weights) -> Any:
    found = torch.zeros(x.shape, dtype=torch.float32)
    for expert in range(len(layer.w1)):
        found += product(x, layer.w1[expert], layer.w2[expert]) * (weights * (ids == expert)).sum(1)[:, None]
    return found


class Judge:
    """On rank 0, of all ranks' tokens."""

    def __init__(self, group: Any, part: str):
        self.group, self.part = group, part
        self.seen: Dict[str, Tuple[int, int, float, float]] = {}

    def __call__(self, case: str, form: str, layer: Weights, x: Any, ids: Any, weights: Any, out: Any) -> None:
        mine = [tensor.cpu() for tensor in (x, ids, weights, out)]
        parts: List[Any] = [None] * self.group.size()
        dist.gather_object(mine, parts if self.group.rank() == 0 else None, group=self.group)
        if self.group.rank():
            return
        x, ids, weights, out = (torch.cat(given).to(ranks.DEVICE) for given in zip(*parts))
        assert out.dtype == torch.bfloat16 and out.shape == x.shape, (self.part, case)
        assert not out[(ids < 0).all(1)].any(), (self.part, case)
        found = difference(out, dense(x, ids, weights, layer))
        assert found < BOUND[form], (self.part, case, found)
        near = dense(as_sent(x, form), ids, weights, layer).double()
        squares = (out.double() ** 2 + near**2).sum(1)
        each = torch.where(squares > 0, 1 - 2 * (out.double() * near).sum(1) / squares, 0)
        worst = float(each.max()) if len(each) else 0.0
        assert worst < OF_A_TOKEN, (self.part, case, int(each.argmax()), worst)
        rounds, tokens, *most = self.seen.get(case, (0, 0, 0.0, 0.0))
        self.seen[case] = (rounds + 1, tokens + len(x), max(most[0], found), max(most[1], worst))

    def tell(self) -> None:
        for case, (rounds, tokens, found, worst) in self.seen.items():
            print(f"{self.part}, {case}: {rounds} rounds, {tokens} tokens; difference {found:.1e}, of a token {worst:.1e}\n", end="", flush=True)


# ---- vLLM ----------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    name: str
    form: str = "bf16"
    topk: int = TOPK
    weigh_first: bool = False
    """Rows are weighted before they are sent, of one expert a token."""
    reduced: bool = True
    """Experts sum what they make of a row; else vLLM does."""
    moved: Any = None
    """Experts live elsewhere: global id to physical id."""


def experts_of(mk: Any, reduce: Any, batched: bool, case: Case) -> Any:
    """vLLM's base class of experts, with plain torch inside."""

    def yes(*given: Any) -> bool:
        return True

    class Experts(mk.FusedMoEExpertsModular):
        _supports_current_device = _supports_no_act_and_mul = _supports_quant_scheme = staticmethod(yes)
        _supports_activation = _supports_parallel_config = staticmethod(yes)

        @staticmethod
        def activation_format() -> Any:
            return mk.FusedMoEActivationFormat.BatchedExperts if batched else mk.FusedMoEActivationFormat.Standard

        def supports_packed_ue8m0_act_scales(self) -> bool:
            return case.form == "ue8m0"

        def finalize_weight_and_reduce_impl(self) -> Any:
            return reduce

        def workspace_shapes(self, M: int, N: int, K: int, topk: int, nr_experts: int, nr_local: int, meta: Any, activation: Any) -> Any:
            whole = (nr_local, M, K) if batched else (M, K) if case.reduced else (M, topk, K)
            return whole, (1,), whole

        def made(self, rows: Any, scales: Any, meta: Any, ids: Any, weights: Any, w1: Any, w2: Any, expert_map: Any) -> Any:
            assert (None if scales is None else scales.dtype) == {"bf16": None, "fp8": torch.float32, "ue8m0": torch.int32}[case.form]
            x = rows if scales is None else back((rows, scales))
            counts = meta.expert_num_tokens
            if batched:
                return side_by_side(x, counts, w1, w2)
            if not len(x):
                return x.to(torch.bfloat16)
            local = expert_map[ids]
            assert counts.tolist() == [int((local == expert).sum()) for expert in range(LOCAL)] == meta.expert_num_tokens_cpu.tolist()
            y = routes(x, local, w1, w2)
            if not case.reduced:
                return y
            return (y.float() if case.weigh_first else y.float() * weights[:, :, None]).sum(1).to(torch.bfloat16)

        def apply(  # type: ignore[no-untyped-def]
            self, output, hidden_states, w1, w2, topk_weights, topk_ids, activation, global_num_experts, expert_map, a1q_scale, a2_scale, workspace13, workspace2, expert_tokens_meta, apply_router_weight_on_input
        ) -> None:
            output.copy_(self.made(hidden_states, a1q_scale, expert_tokens_meta, topk_ids, topk_weights, w1, w2, expert_map))

    return Experts


class Vllm:
    """A manager, and a kernel for each layer, made the way vLLM makes them of its settings."""

    def __init__(self, group: Any, gloo: Any, setting: engines.Setting, backend: str, case: Case):
        import vllm.model_executor.layers.fused_moe.modular_kernel as mk
        from vllm.distributed.device_communicators import all2all
        from vllm.model_executor.layers.fused_moe import all2all_utils, config, topk_weight_and_reduce
        from vllm.v1.worker import workspace

        rank, nr_ranks, batched = group.rank(), group.size(), backend == "deepep_low_latency"
        self.case, self.nr_experts = case, LOCAL * nr_ranks
        self.manager = setting.manager = (all2all.DeepEPLLAll2AllManager if batched else all2all.DeepEPHTAll2AllManager)(gloo)
        self.activation = mk.MoEActivation.SILU
        parallel = config.FusedMoEParallelConfig(1, 1, nr_ranks, nr_ranks, 0, 0, rank, rank, 1, use_ep=True, all2all_backend=backend, enable_eplb=False)
        assert (parallel.dp_size, parallel.ep_size, parallel.dp_rank, parallel.ep_rank) == (nr_ranks, nr_ranks, rank, rank)
        moe = config.FusedMoEConfig(
            num_experts=self.nr_experts,
            experts_per_token=case.topk,
            hidden_dim=HIDDEN,
            intermediate_size=INTER,
            num_local_experts=LOCAL,
            num_logical_experts=self.nr_experts,
            activation=self.activation,
            device=ranks.DEVICE,
            routing_method=config.RoutingMethodType.Default,
            moe_parallel_config=parallel,
            in_dtype=torch.bfloat16,
            max_num_tokens=MOST,
        )
        fp8 = case.form != "bf16"
        self.quant = config.FusedMoEQuantConfig.make(torch.float8_e4m3fn if fp8 else None, block_shape=[128, 128] if fp8 else None)
        kinds = topk_weight_and_reduce
        experts = experts_of(mk, kinds.TopKWeightAndReduceDelegate() if batched or not case.reduced else kinds.TopKWeightAndReduceNoOP(), batched, case)
        sizes = dict(max_num_tokens=MOST, num_dispatchers=nr_ranks) if batched else {}
        here = slice(rank * LOCAL, (rank + 1) * LOCAL)
        self.expert_map = torch.full((self.nr_experts,), -1, dtype=torch.int32)
        self.expert_map[here] = torch.arange(LOCAL, dtype=torch.int32)
        of = torch.arange(self.nr_experts) if case.moved is None else case.moved.argsort()
        self.here = of[here]
        tables = None if case.moved is None else (case.moved, of, self.here)
        workspace.reset_workspace_manager()
        workspace.init_workspace_manager(torch.device(ranks.DEVICE))
        self.kernels = []
        for _ in range(LAYERS):
            made = all2all_utils.maybe_make_prepare_finalize(moe, self.quant, routing_tables=tables, allow_new_interface=True)
            self.kernels.append(mk.FusedMoEKernel(made, experts(moe, self.quant, **sizes)))
        buffers = {kernel.prepare_finalize.buffer for kernel in self.kernels}
        assert len(buffers) == 1 and isinstance(buffers.pop(), tern_ep.deep_ep.Buffer)

    def layer(self, at: int, x: Any, job: Job, layer: Weights, apart: bool = False) -> Any:
        """By vLLM's kernel, which calls prepare_async and finalize_async; or apart, by prepare and finalize."""
        kernel, w1, w2, first = self.kernels[at], layer.w1[self.here], layer.w2[self.here], self.case.weigh_first
        if not apart:
            return kernel.apply(x, w1, w2, job.weights, job.ids, self.activation, self.nr_experts, self.expert_map, first)
        there, experts = kernel.prepare_finalize, kernel.fused_experts
        rows, scales, meta, ids, weights = there.prepare(x, job.weights, job.ids, self.nr_experts, self.expert_map, first, self.quant)
        ids, weights = (job.ids if ids is None else ids), (job.weights if weights is None else weights)
        y, out = experts.made(rows, scales, meta, ids, weights, w1, w2, self.expert_map), torch.empty_like(x)
        there.finalize(out, y, weights, ids, first, experts.finalize_weight_and_reduce_impl())
        return out


def vllm(group: Any, backend: str) -> None:
    setting, judge, gloo, low = loaded(group), Judge(group, f"vLLM {backend}"), dist.new_group(backend="gloo"), backend == "deepep_low_latency"
    cases = [Case("BF16"), Case("FP8", "fp8"), Case("BF16, weighted first", topk=1, weigh_first=True)]
    if low:
        moved = torch.randperm(LOCAL * group.size(), generator=torch.Generator("cpu").manual_seed(3), device="cpu").to(ranks.DEVICE)
        cases += [Case("FP8, UE8M0", "ue8m0"), Case("BF16, experts moved", moved=moved)]
    else:
        cases += [Case("BF16, summed by vLLM", reduced=False)]
    for case in cases:
        made = Vllm(group, gloo, setting, backend, case)
        for turn, sizes in enumerate(sizes_of(group.size())):
            job = Job(turn, sizes, group.rank(), case.topk, drop=0.1 if case.moved is None else 0)  # moved ids index a table
            x = job.x
            for at in range(LAYERS):
                layer = Weights(at, job.nr_experts)
                for apart in (False, True):
                    out = made.layer(at, x, job, layer, apart)
                    if case.weigh_first:
                        judge(case.name, case.form, layer, x * job.weights.to(x.dtype), job.ids, torch.ones_like(job.weights), out)
                    else:
                        judge(case.name, case.form, layer, x, job.ids, job.weights, out)
                x = handed_on(x, out)
        if low and ranks.DEVICE == "cuda" and not case.weigh_first:
            in_a_graph(group, judge, case.name, case.form, made.layer)
        made.manager.destroy()
    judge.tell()


def vllm_ht(group: Any) -> None:
    vllm(group, "deepep_high_throughput")


def vllm_ll(group: Any) -> None:
    vllm(group, "deepep_low_latency")


# ---- SGLang --------------------------------------------------------------------------------------------------------


class SGLang:
    """Two dispatchers for each layer, the second for the other of two micro-batches; all of one buffer."""

    def __init__(self, group: Any, mode: str, form: str, hook: bool):
        from sglang.srt.layers import deep_gemm_wrapper
        from sglang.srt.layers.moe.token_dispatcher import deepep
        from sglang.srt.layers.moe.utils import DeepEPMode
        from sglang.srt.runtime_context import get_resources

        self.deepep, self.form, self.here = deepep, form, slice(group.rank() * LOCAL, (group.rank() + 1) * LOCAL)
        deep_gemm_wrapper.DEEPGEMM_BLACKWELL = deep_gemm_wrapper.DEEPGEMM_SCALE_UE8M0 = form == "ue8m0"
        get_resources().buffers.clear()

        def dispatcher() -> Any:
            made = deepep.DeepEPDispatcher(
                group=group,
                router_topk=TOPK,
                permute_fusion=True,
                num_experts=LOCAL * group.size(),
                num_local_experts=LOCAL,
                hidden_size=HIDDEN,
                params_dtype=torch.bfloat16,
                deepep_mode=DeepEPMode(mode),
                async_finish=True,
                return_recv_hook=hook,
            )
            made.set_quant_config({"dispatcher_output_dtype": "bf16" if form == "bf16" else "fp8"})
            return made

        self.dispatchers = [(dispatcher(), dispatcher()) for _ in range(LAYERS)]

    def _experts(self, got: Any, layer: Weights) -> Any:
        w1, w2, scales = layer.w1[self.here], layer.w2[self.here], got.hidden_states_scale
        assert (None if scales is None else scales.dtype) == {"bf16": None, "fp8": torch.float32, "ue8m0": torch.int32}[self.form]
        x = got.hidden_states if scales is None else back((got.hidden_states, scales))
        if got.format.is_deepep_ll():
            return self.deepep.DeepEPLLCombineInput(side_by_side(x, got.masked_m, w1, w2), got.topk_ids, got.topk_weights)
        counts = [int((got.topk_ids == expert).sum()) for expert in range(LOCAL)]
        assert got.num_recv_tokens_per_expert == [-(-count // 128) * 128 for count in counts]
        y = (routes(x, got.topk_ids, w1, w2).float() * got.topk_weights[:, :, None]).sum(1).to(torch.bfloat16)
        return self.deepep.DeepEPNormalCombineInput(y, got.topk_ids, got.topk_weights)

    def layer(self, at: int, x: Any, job: Job, layer: Weights, apart: bool = False) -> Any:
        """Whole; or apart, in two micro-batches whose halves take turns."""

        def chosen(part: slice) -> Any:
            return SimpleNamespace(topk_ids=job.ids[part].int(), topk_weights=job.weights[part])

        both = self.dispatchers[at]
        if not apart:
            return both[0].combine(self._experts(both[0].dispatch(x, chosen(slice(None))), layer))
        half = len(x) // 2
        for one, part in zip(both, (slice(0, half), slice(half, None))):
            one.dispatch_a(x[part], chosen(part))
        for one in both:
            one.combine_a(self._experts(one.dispatch_b(), layer))
        return torch.cat([one.combine_b() for one in both])


def sglang(group: Any, mode: str) -> None:
    setting, judge = loaded(group), Judge(group, f"SGLang {mode}")
    by_nccl = ranks.DEVICE == "cuda" and torch.cuda.device_count() >= group.size()  # which wants a GPU for each
    wide = dist.new_group(backend="nccl") if by_nccl else group
    for name, form, hook in (("BF16", "bf16", True), ("BF16, no hooks", "bf16", False), ("FP8", "fp8", True), ("FP8, UE8M0", "ue8m0", True)):
        made = SGLang(wide, mode, form, hook)
        for turn, sizes in enumerate(sizes_of(group.size())):
            for prefill in (True, False) if mode == "auto" else (mode == "normal",):
                setting.prefill = prefill
                job = Job(turn, sizes, group.rank())
                x = job.x
                for at in range(LAYERS):
                    layer = Weights(at, job.nr_experts)
                    for apart in (False, True):
                        out = made.layer(at, x, job, layer, apart)
                        judge(name, form, layer, x, job.ids, job.weights, out)
                    x = handed_on(x, out)
        if ranks.DEVICE == "cuda" and mode != "normal":
            in_a_graph(group, judge, name, form, made.layer)
    judge.tell()


def sglang_normal(group: Any) -> None:
    sglang(group, "normal")


def sglang_ll(group: Any) -> None:
    sglang(group, "low_latency")


def sglang_auto(group: Any) -> None:
    """Prefill by normal mode and decode by low latency, of one buffer."""
    sglang(group, "auto")


# ---- ranks ---------------------------------------------------------------------------------------------------------


def loaded(group: Any) -> engines.Setting:
    tern_ep.deep_ep.install()
    setting = engines.Setting(group.rank(), group.size(), quantised)
    engines.load(GIVEN.engines, setting)
    if ranks.DEVICE == "cpu":  # SGLang asks a GPU how many SMs it has
        torch.cuda.get_device_properties = lambda device: SimpleNamespace(multi_processor_count=132)
    return setting


def in_a_graph(group: Any, judge: Judge, case: str, form: str, call: Callable[..., Any]) -> None:
    """All layers in one graph, replayed with other tokens, ids and weights."""
    sizes = [(17, 3, MOST, 9)[rank % 4] for rank in range(group.size())]
    job = Job(50, sizes, group.rank(), drop=0)
    layers = [Weights(at, job.nr_experts) for at in range(LAYERS)]

    def all_layers() -> List[Tuple[Any, Any]]:
        x, found = job.x, []
        for at, layer in enumerate(layers):
            out = call(at, x, job, layer)
            found.append((x, out))
            x = handed_on(x, out)
        return found

    for _ in range(2):
        all_layers()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = all_layers()
    for turn in range(10):
        other = Job(60 + turn, sizes, group.rank(), drop=0)
        for to, of in ((job.x, other.x), (job.ids, other.ids), (job.weights, other.weights)):
            to.copy_(of)
        graph.replay()
        torch.cuda.synchronize()
        for layer, (x, out) in zip(layers, found):
            judge(f"{case}, in a graph", form, layer, x, job.ids, job.weights, out)


PARTS = {f.__name__: f for f in (vllm_ht, vllm_ll, sglang_normal, sglang_ll, sglang_auto)}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--engines", type=Path, default=Path(__file__).resolve().parents[2] / "build" / "engines")
    parser.add_argument("parts", nargs="*", metavar="PART", default=list(PARTS), help=f"of {' '.join(PARTS)} (all)")
    return parser.parse_args()


if __name__ == "__main__":
    GIVEN = arguments()
    if not engines.is_there(GIVEN.engines):
        sys.exit(f"{GIVEN.engines} lacks files of vLLM and SGLang: python3 python/tests/engines.py {GIVEN.engines}")
    ranks.DEVICE = GIVEN.device
    ranks.PARTS.update(PARTS)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    sys.exit(0 if all([ranks.play(GIVEN.ranks, part, []) for part in GIVEN.parts]) else 1)
