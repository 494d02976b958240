# SPDX-License-Identifier: Apache-2.0
"""Exchanges of torch tensors on GPUs: one rank for each device, up to four, bit for bit; streams, graphs and status."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from reference import World, judge_combined, judge_received  # noqa: E402
from test_torch import Shown, as_numpy, tensor  # noqa: E402

import tern_ep  # noqa: E402
from tern_ep import Config, Device, Dtype, Layout, Reduce, Scale, Weights  # noqa: E402

PLAIN = Config(hidden=256, nr_experts=8, topk=2, max_tokens=6, device=Device.CUDA, wait_ms=5000)


def test_without_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with tern_ep.Group.alone() as group, pytest.raises(tern_ep.UnsupportedError, match="no CUDA device"):
        tern_ep.Exchange(group, PLAIN, arrays="torch")


on_gpus = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
RANKS = min(torch.cuda.device_count(), 4)


def on_devices(body: Any) -> None:
    def rank(group: tern_ep.Group) -> None:
        torch.cuda.set_device(group.rank)
        body(group)

    tern_ep.run_threads(RANKS, rank)


class OnHost(Shown):
    """A device's received rows, counted and copied."""

    def __init__(self, received: Any, config: Config):
        counts, offsets = received.counts.cpu(), received.offsets.cpu()
        nr_rows, extent = (int(n) for n in offsets[-2:])
        raw = received.rows[:extent].cpu().numpy()
        self.nr_rows, self.extent, self.counts, self.offsets = nr_rows, extent, counts.tolist(), offsets[:-2].tolist()
        self.rows = np.ascontiguousarray(raw).view(tern_ep.received.ROW).reshape(-1)
        self.x = as_numpy(received.x[:extent].cpu())
        self.scales = None if received.scales is None else received.scales[:extent].cpu().numpy()
        self.topk_ids = None if received.topk_ids is None else received.topk_ids[:extent].cpu().numpy()
        self.topk_weights = None if received.topk_weights is None else received.topk_weights[:extent].cpu().numpy()


def results(world: World, rank: int, received: Any) -> Any:
    """y for all positions there can be."""
    config = world.config
    y = np.zeros((received.extent, config.hidden), {2: np.uint16, 4: np.float32}[tern_ep.arrays.ELEMENT_BYTES[config.combine_dtype]])
    for position, (source, token, k, _, here) in world.received(rank)["rows"].items():
        y[position] = world.results(source, token, k, here)
    return tensor(y, config.combine_dtype).cuda()


@on_gpus
@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("x,dispatch,scale", [(Dtype.BF16, Dtype.BF16, Scale.NONE), (Dtype.BF16, Dtype.FP8_E4M3, Scale.FP32)])
@pytest.mark.parametrize("halves", [False, True])
def test_rounds(layout: Layout, x: Dtype, dispatch: Dtype, scale: Scale, halves: bool) -> None:
    by_source = layout == Layout.BY_SOURCE
    config = dataclasses.replace(
        PLAIN,
        layout=layout,
        dispatch_dtype=dispatch,
        scale=scale,
        reduce=Reduce.EXPERT if by_source else Reduce.HOME,
        weights=Weights.PASS if by_source else Weights.COMBINE,
    )
    worlds = [World(config, RANKS, [(3 * r + seed) % 7 for r in range(RANKS)], seed) for seed in range(3)]

    def body(group: tern_ep.Group) -> None:
        rank = group.rank
        with tern_ep.Exchange(group, config, arrays="torch") as moe, torch.cuda.stream(torch.cuda.Stream()):
            for world in worlds:
                given = [tensor(world.x[rank], x).cuda(), torch.from_numpy(world.ids[rank]).cuda(), torch.from_numpy(world.weights[rank]).cuda()]
                if halves:
                    moe.dispatch_send(*given)
                    received = moe.dispatch_recv()
                else:
                    received = moe.dispatch(*given)
                judge_received(world, rank, OnHost(received, config))
                y = results(world, rank, received)
                if halves:
                    moe.combine_send(y)
                    out = moe.combine_recv()
                else:
                    out = moe.combine(y)
                judge_combined(world, rank, as_numpy(out.cpu()))
                moe.status()
            torch.cuda.current_stream().synchronize()

    on_devices(body)


@on_gpus
def test_graph_with_routing_that_changes() -> None:
    worlds = [World(PLAIN, RANKS, [6] * RANKS, seed) for seed in range(4)]
    ready = threading.Barrier(RANKS, timeout=60)

    def body(group: tern_ep.Group) -> None:
        rank, stream = group.rank, torch.cuda.Stream()
        with tern_ep.Exchange(group, PLAIN, arrays="torch") as moe, torch.cuda.stream(stream):
            x, ids, weights = tensor(worlds[0].x[rank], Dtype.BF16).cuda(), torch.from_numpy(worlds[0].ids[rank]).cuda(), torch.from_numpy(worlds[0].weights[rank]).cuda()
            received = moe.dispatch(x, ids, weights)
            moe.combine(received.x)
            stream.synchronize()
            ready.wait()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                received = moe.dispatch(x, ids, weights)
                out = moe.combine(received.x)
            for world in worlds:
                x.copy_(tensor(world.x[rank], Dtype.BF16))
                ids.copy_(torch.from_numpy(world.ids[rank]))
                weights.copy_(torch.from_numpy(world.weights[rank]))
                graph.replay()
                stream.synchronize()
                for r in range(RANKS):  # experts give back what they get
                    world.y[r][...] = world.x[r][:, None, :]
                judge_combined(world, rank, as_numpy(out.cpu()))
            assert moe.stats().rounds == 1 + len(worlds)  # replays count, the capture does not

    on_devices(body)


@on_gpus
def test_ids_out_of_range_are_told_later() -> None:
    def body(group: tern_ep.Group) -> None:
        with tern_ep.Exchange(group, PLAIN, arrays="torch") as moe:
            received = moe.dispatch(torch.zeros((1, 256), dtype=torch.bfloat16, device="cuda"), torch.tensor([[0, 99]], device="cuda"))
            moe.combine(received.x)
            torch.cuda.synchronize()
            with pytest.raises(tern_ep.InvalidError, match="99"):
                moe.status()
            moe.status()

    on_devices(body)


@on_gpus
def test_capture_in_a_wrong_state_and_wrong_devices() -> None:
    """One rank is enough: nothing is sent."""
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN, arrays="torch") as moe:
        given = [torch.zeros((3, 256), dtype=torch.bfloat16, device="cuda"), torch.zeros((3, 1), dtype=torch.int64, device="cuda") + torch.arange(2, device="cuda")]
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            moe.combine(moe.dispatch(*given).x)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                received = moe.dispatch(*given)
                with pytest.raises(tern_ep.StateError, match="a graph is being captured"):
                    received.expert(0)
                with pytest.raises(tern_ep.InvalidError, match="y is"):
                    moe.combine(received.x[:, :128])
                out = moe.combine(received.x)
            graph.replay()
            stream.synchronize()
            assert (out == 0).all()
        before = moe.stats()
        with pytest.raises(tern_ep.InvalidError, match="not"):  # in host memory
            moe.dispatch(given[0].cpu(), given[1])
        with pytest.raises(tern_ep.InvalidError, match="strides"):
            moe.dispatch(given[0].t().contiguous().t(), given[1])
        if torch.cuda.device_count() > 1:
            with pytest.raises(tern_ep.InvalidError, match="CUDA device 1; this exchange was made on device 0"):
                moe.dispatch(given[0].to("cuda:1"), given[1])
        assert moe.stats() == before


@on_gpus
def test_compiled_into_graphs() -> None:
    """torch.compile(mode="reduce-overhead"): cudagraph trees capture the operators, break nowhere and skip nothing."""
    from torch._dynamo.utils import counters

    import tern_ep.torch

    nr_local = PLAIN.nr_experts
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN, arrays="torch") as moe:
        ops = tern_ep.torch.Ops(moe)

        def forward(x: Any, ids: Any, weights: Any) -> Any:
            received = ops.dispatch(x, ids, weights)
            position = torch.arange(received.x.shape[0], device="cuda")
            expert = torch.searchsorted(received.offsets, position, right=True) - 1
            held = position < (received.offsets + received.counts)[expert]
            y = torch.where(held[:, None], received.x * (expert + 1)[:, None], 0)
            return ops.combine(y.to(torch.bfloat16), x.shape[0]) + 1

        counters.clear()
        compiled = torch.compile(forward, mode="reduce-overhead", fullgraph=True)
        with torch.no_grad():
            for seed in range(12):
                world = World(PLAIN, 1, [6], seed)
                given = [tensor(world.x[0], Dtype.BF16).cuda(), torch.from_numpy(world.ids[0]).cuda(), torch.from_numpy(world.weights[0]).cuda()]
                torch.compiler.cudagraph_mark_step_begin()
                out, plain = compiled(*given).clone(), forward(*given)
                assert torch.equal(out, plain), seed
        assert not counters["graph_break"] and not counters["inductor"]["cudagraph_skips"], counters
        assert moe.stats().rounds == 24 and nr_local == moe.nr_local
