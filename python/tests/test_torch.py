# SPDX-License-Identifier: Apache-2.0
"""torch tensors, torch.distributed and the ops under torch.compile, on the CPU. Skipped where torch is not installed."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from reference import World, bits, fill_results, judge_combined, judge_received  # noqa: E402
from test_calls import counted  # noqa: E402

import tern_ep  # noqa: E402
import tern_ep.torch  # noqa: E402
from tern_ep import Config, Dtype, Layout, Mode, Reduce, Scale, Weights  # noqa: E402
from tern_ep._calls import Calls, Reader  # noqa: E402
from tern_ep._library import library  # noqa: E402
from tern_ep.arrays import NAMES, look  # noqa: E402
from tern_ep.exchange import Arguments  # noqa: E402

PLAIN = Config(hidden=64, nr_experts=8, topk=2, max_tokens=6)
TYPES = {Dtype.BF16: torch.bfloat16, Dtype.FP16: torch.float16, Dtype.FP32: torch.float32, Dtype.FP8_E4M3: torch.float8_e4m3fn}


def tensor(array: Any, dtype: Dtype) -> Any:
    """A numpy array of the reference as a tensor of its true type."""
    kind = {1: np.uint8, 2: np.int16, 4: np.float32}[array.dtype.itemsize]
    return torch.from_numpy(np.ascontiguousarray(array).view(kind)).view(TYPES.get(dtype, torch.uint8))


def as_numpy(given: Any) -> Any:
    """Back to bits, for the reference's judges."""
    return given if given is None else given.view(torch.uint8 if given.element_size() == 1 else torch.int16 if given.element_size() == 2 else torch.int32).numpy()


class Shown:
    """Received rows as the judges want them."""

    def __init__(self, received: Any, config: Config):
        self.nr_rows, self.extent, self.rows = received.nr_rows, received.extent, received.rows
        self.counts, self.offsets = received.counts.tolist(), received.offsets.tolist()
        self.x = as_numpy(received.x)
        self.scales = None if received.scales is None else received.scales.numpy()
        self.topk_ids = None if received.topk_ids is None else received.topk_ids.numpy()
        self.topk_weights = None if received.topk_weights is None else received.topk_weights.numpy()


@pytest.mark.parametrize("dtype", list(TYPES))
def test_look(dtype: Dtype) -> None:
    t = torch.zeros((4, 32), dtype=TYPES[dtype])[:, :16]
    view = look(t)
    size = t.element_size()
    assert view[:7] == (t.data_ptr(), (4, 16), (32 * size, size), NAMES[dtype], size, None, True)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("x,dispatch,scale,combine", [(Dtype.BF16, Dtype.BF16, Scale.NONE, Dtype.BF16), (Dtype.FP16, Dtype.FP8_E4M3, Scale.FP32, Dtype.FP16), (Dtype.FP8_E4M3, Dtype.FP8_E4M3, Scale.UE8M0, Dtype.FP32)])
def test_tensors(mode: Mode, layout: Layout, x: Dtype, dispatch: Dtype, scale: Scale, combine: Dtype) -> None:
    by_source = layout == Layout.BY_SOURCE
    config = dataclasses.replace(
        PLAIN,
        mode=mode,
        layout=layout,
        x_dtype=x,
        dispatch_dtype=dispatch,
        scale=scale,
        combine_dtype=combine,
        reduce=Reduce.EXPERT if by_source else Reduce.HOME,
        weights=Weights.PASS if by_source else Weights.COMBINE,
    )
    world = World(config, 2, [6, 3], 9)

    def body(group: tern_ep.Group) -> None:
        rank = group.rank
        with tern_ep.Exchange(group, config, arrays="torch") as moe:
            scales = None if world.scales[rank] is None else torch.from_numpy(world.scales[rank])
            received = moe.dispatch(tensor(world.x[rank], x), torch.from_numpy(world.ids[rank]), torch.from_numpy(world.weights[rank]), scales=scales)
            assert received.x.dtype == TYPES[dispatch]
            judge_received(world, rank, Shown(received, config))
            y = moe.empty_y(received)
            assert y.dtype == TYPES[combine]
            fill_results(world, rank, as_numpy(y).view({2: np.uint16, 4: np.float32}[y.element_size()]) if combine != Dtype.FP16 else as_numpy(y).view(np.float16))
            judge_combined(world, rank, as_numpy(moe.combine(y)))

    tern_ep.run_threads(2, body)


def test_refused() -> None:
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN, arrays="torch") as moe:
        ids = torch.zeros((3, 2), dtype=torch.int32)
        with pytest.raises(tern_ep.InvalidError, match="requires grad"):
            moe.dispatch(torch.zeros((3, 64), dtype=torch.bfloat16, requires_grad=True), ids)
        with pytest.raises(tern_ep.InvalidError, match="x is float32"):
            moe.dispatch(torch.zeros((3, 64)), ids)
        with pytest.raises(tern_ep.UnsupportedError, match="meta"):
            moe.dispatch(torch.zeros((3, 64), dtype=torch.bfloat16, device="meta"), ids)
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN) as moe:
        with pytest.raises(tern_ep.InvalidError, match='arrays="torch"'):
            tern_ep.torch.Ops(moe)


# ---- ops -----------------------------------------------------------------------------------------------------------


def layer(ops: Any, factor: float) -> Any:
    """Each expert multiplies by its local number + 1; rows that hold nothing are not looked at."""

    def forward(x: Any, ids: Any, weights: Any) -> Any:
        received = ops.dispatch(x, ids, weights)
        position = torch.arange(received.x.shape[0])
        expert = torch.searchsorted(received.offsets, position, right=True) - 1
        held = position < (received.offsets + received.counts)[expert]
        y = torch.where(held[:, None], received.x * (expert + 1)[:, None] * factor, 0)
        return ops.combine(y.to(torch.bfloat16), x.shape[0]) + 1

    return forward


def expected(x: Any, ids: Any, weights: Any, nr_local: int, factor: float) -> Any:
    """The same without any exchange."""
    sums = torch.zeros(x.shape, dtype=torch.float32)
    for k in range(ids.shape[1]):
        y = (x * (ids[:, k] % nr_local + 1)[:, None] * factor).to(torch.bfloat16).float()
        sums = sums + torch.where(ids[:, k, None] >= 0, weights[:, k, None] * y, torch.zeros(()))
    return sums.to(torch.bfloat16) + 1


def inputs(seed: int, n: int) -> Any:
    world = World(PLAIN, 1, [n], seed)
    return tensor(world.x[0], Dtype.BF16), torch.from_numpy(world.ids[0]), torch.from_numpy(world.weights[0])


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch.compiler.reset()  # a compiled function belongs to its exchange; the limit is eight of them for one piece of code


@pytest.mark.parametrize("dtype", [Dtype.BF16, Dtype.FP8_E4M3])
@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("mode", list(Mode))
def test_fakes_say_what_the_op_returns(mode: Mode, layout: Layout, dtype: Dtype) -> None:
    """Not torch.library.opcheck, which calls an op several times in a row: a second dispatch is out of order."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    by_source = layout == Layout.BY_SOURCE
    config = dataclasses.replace(
        PLAIN,
        mode=mode,
        layout=layout,
        dispatch_dtype=dtype,
        scale=Scale.UE8M0 if dtype == Dtype.FP8_E4M3 else Scale.NONE,
        reduce=Reduce.EXPERT,
        weights=Weights.PASS if by_source else Weights.COMBINE,
    )
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, config, arrays="torch") as moe:
        ops = tern_ep.torch.Ops(moe)
        x, ids, weights = inputs(1, 5)
        arguments = (ops._order, ops._key, 0, x, None, ids, weights)
        with FakeTensorMode(shape_env=ShapeEnv()) as fake:
            made = ops._dispatch(*[fake.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments])
        real = ops._dispatch(*arguments)
        for a, b in zip(made, real):
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        assert int(real[1].sum()) == (5 if by_source else int((ids >= 0).sum()))
        ops.release()


class Seen(torch.utils._python_dispatch.TorchDispatchMode):
    """Names of the ops that pass torch's dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Any = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", list(Mode))
def test_ops_pass_the_dispatcher_where_somebody_looks(mode: Mode) -> None:
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, dataclasses.replace(PLAIN, mode=mode), arrays="torch") as moe:
        forward, given = layer(tern_ep.torch.Ops(moe), 0.5), inputs(3, 4)
        plain = forward(*given)
        with Seen() as seen:
            assert torch.equal(forward(*given), plain)
        assert [name for name in seen.names if name.startswith("tern_ep::")] == ["tern_ep::dispatch_3", "tern_ep::combine"]
        assert torch.equal(plain, expected(*given, 8, 0.5))


def test_calls_of_ops() -> None:
    """Of a pair that nobody looks at. More is allowed only for a reason."""
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN, arrays="torch") as moe:
        ops, given = tern_ep.torch.Ops(moe), inputs(2, 4)

        def pair() -> None:
            ops.combine(ops.dispatch(*given).x, 4)

        pair()
        found = counted(pair)
        assert found["call"] <= 40 and found["c_call"] <= 36, found


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("mode", list(Mode))
def test_compiled(backend: str, mode: Mode) -> None:
    config = dataclasses.replace(PLAIN, mode=mode)

    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, config, arrays="torch") as moe:
        forward = torch.compile(layer(tern_ep.torch.Ops(moe), 0.5), backend=backend, fullgraph=True)
        for seed in range(4):
            given = inputs(seed, 1 + seed)
            with torch.no_grad():
                assert torch.equal(forward(*given), expected(*given, 8, 0.5)), seed


def test_order_is_kept_and_nothing_dropped() -> None:
    """Two layers in one graph, and a dispatch whose rows nobody looks at."""
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN, arrays="torch") as moe:
        ops = tern_ep.torch.Ops(moe)

        @torch.compile(backend="aot_eager", fullgraph=True)
        def forward(x: Any, ids: Any, weights: Any) -> Any:
            ops.dispatch(x, ids, weights)
            ops.release()
            y = layer(ops, 1.0)(x, ids, weights)
            return layer(ops, 0.25)(y, ids, weights)

        given = inputs(3, 6)
        with torch.no_grad():
            out = forward(*given)
            once = expected(*given, 8, 1.0)
        assert torch.equal(out, expected(once, *given[1:], 8, 0.25))
        assert moe.stats().rounds == 3


RANK = """
import sys, torch, torch.distributed as dist, tern_ep, tern_ep.torch
sys.path.insert(0, sys.argv[1])
import dataclasses
from test_torch import PLAIN, inputs, layer, expected
PLAIN = dataclasses.replace(PLAIN, reduce=tern_ep.Reduce.HOME)  # expected() knows no sums at the experts' ranks
dist.init_process_group("gloo")
with tern_ep.Group.from_torch() as group, tern_ep.Exchange(group, PLAIN, arrays="torch") as moe:
    assert (group.rank, group.nr_ranks) == (dist.get_rank(), dist.get_world_size())
    forward = torch.compile(layer(tern_ep.torch.Ops(moe), 1.0), backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        for seed in range(3):
            given = inputs(10 * group.rank + seed, 2 + seed)
            assert torch.equal(forward(*given), expected(*given, moe.nr_local, 1.0))
dist.destroy_process_group()
"""


def test_torch_distributed() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo", "TERN_LIBRARY": str(Path(library().path).resolve())}
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(Path(__file__).parent)], env={**env, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for rank in ranks:
        said = rank.communicate(timeout=200)[1]
        assert rank.returncode == 0, said


# ---- plain calls ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(Mode))
def test_tensors_are_not_kept(mode: Mode) -> None:
    """cudagraph trees refuse tensors of their pool that somebody else still has."""
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, dataclasses.replace(PLAIN, mode=mode), arrays="torch") as moe:
        for _ in range(2):
            given = list(inputs(2, 4))
            into = [moe.empty_x()[0]] if mode == Mode.LOW_LATENCY else []
            alive = [weakref.ref(t) for t in given + into]
            received = moe.dispatch(*given, **({"into_x": into[0]} if into else {}))
            given.clear()
            into.clear()
            y = received.x * 2
            alive.append(weakref.ref(y))
            del received
            moe.combine(y)
            del y
            assert all(ref() is None for ref in alive)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_plain_calls_end_a_graph_and_harm_nothing(backend: str) -> None:
    torch._dynamo.reset()
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN, arrays="torch") as moe:

        @torch.compile(backend=backend)
        def forward(x: Any, ids: Any, weights: Any) -> Any:
            received = moe.dispatch(x * 1, ids, weights)
            return moe.combine(received.x * 2) + 1

        with torch.no_grad():
            for seed in range(3):
                x, ids, weights = inputs(seed, 5)
                sums = (2 * x.float() * (weights * (ids >= 0)).sum(1, keepdim=True)).to(torch.bfloat16) + 1
                assert torch.allclose(forward(x, ids, weights).float(), sums.float(), rtol=2**-6, atol=1e-2)


def test_a_call_in_inference_mode_leaves_plain_tensors() -> None:
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN, arrays="torch") as moe:
        with torch.inference_mode():
            moe.combine(moe.dispatch(*inputs(1, 4)).x)
        received = moe.dispatch(*inputs(1, 4))
        assert not received.x.is_inference() and not received.counts.is_inference()
        moe.combine(received.x)


def given_tensors(nr_tokens: int = 3) -> Any:
    x = torch.ones((nr_tokens, 64), dtype=torch.bfloat16)
    return x, torch.tensor([[0, 1]] * nr_tokens, dtype=torch.int32), torch.ones((nr_tokens, 2))


class Wrapped(torch.Tensor):  # type: ignore[misc]
    pass


def test_torch_is_asked_directly_where_it_can_be() -> None:
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN, arrays="torch") as moe:
        assert moe.kind.reader.direct == hasattr(torch.Tensor, "__dlpack_c_exchange_api__")


def test_tensors_of_an_older_torch() -> None:
    """Without the exchange functions, the same: by attributes."""
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN, arrays="torch") as moe:
        kind: Any = moe.kind
        reader = Reader(kind.tensor, kind.form, kind.address, False, None, -1)
        assert not reader.direct
        moe._slots = tuple(Arguments(reader, 0) for _ in range(1))
        moe._calls = Calls(reader, moe._busy, moe._slots, tern_ep.Received, moe.native, False)
        strange_tensors_after(moe)


def test_strange_tensors_after_others() -> None:
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN, arrays="torch") as moe:
        strange_tensors_after(moe)


def strange_tensors_after(moe: Any) -> None:
    """What was accepted once is refused when it has changed, with the text that it has at first; or taken, where nothing is wrong."""
    x, ids, weights = given_tensors()

    def right(*given: Any) -> None:
        assert (moe.combine(moe.dispatch(*given).x) == 2).all()

    right(x, ids, weights)
    learns = x.clone().requires_grad_()
    for bad, text in (
        (learns, "requires grad"),
        (torch.nn.Parameter(x.float()).to(torch.bfloat16), "requires grad"),
        (x.to(torch.float16), "x is float16"),
        (x.t().contiguous().t(), "with strides of"),
        (torch.ones((3, 64), dtype=torch.bfloat16, device="meta"), "a tensor on meta"),
        (x[:, :63], "x is bfloat16.3, 63."),
        (x[:2], "topk_ids is int32.3, 2."),
        (x.unsqueeze(0).unsqueeze(0), "x is bfloat16.1, 1, 3, 64."),
    ):
        with pytest.raises(tern_ep.Error, match=text):
            moe.dispatch(bad, ids, weights)
        right(x, ids, weights)  # nothing was sent
    x.requires_grad_()
    with pytest.raises(tern_ep.InvalidError, match="requires grad"):
        moe.dispatch(x, ids, weights)
    x.requires_grad_(False)
    right(x, ids, weights)
    right(x.as_subclass(Wrapped), ids, weights)
    right(torch.ones((6, 64), dtype=torch.bfloat16)[::2], ids, weights)
    with torch.inference_mode():
        right(x.clone(), ids, weights)
    right(learns.detach(), ids, weights)
    x.resize_(3, 32)
    with pytest.raises(tern_ep.InvalidError, match="x is bfloat16.3, 32."):
        moe.dispatch(x, ids, weights)
    received = moe.dispatch(*given_tensors())
    with pytest.raises(tern_ep.InvalidError, match="a tensor that requires grad"):
        moe.combine(received.x, out=torch.zeros((3, 64), dtype=torch.bfloat16, requires_grad=True))
    assert (moe.combine(received.x, out=torch.zeros((3, 64), dtype=torch.bfloat16)) == 2).all()


def test_a_batched_tensor_is_refused() -> None:
    """torch.func's are of torch.Tensor itself, and lie nowhere."""
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN, arrays="torch") as moe:
        x, ids, weights = given_tensors()
        moe.combine(moe.dispatch(x, ids, weights).x)
        with pytest.raises((RuntimeError, tern_ep.Error)):
            torch.func.vmap(lambda one: moe.dispatch(one, ids, weights).x)(x.unsqueeze(0))
        assert (moe.combine(moe.dispatch(x, ids, weights).x) == 2).all()


def test_operators_after_a_call_that_wanted_more() -> None:
    """What the last plain call wanted beside rows is not written again."""
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN, arrays="torch") as moe:
        ops = tern_ep.torch.Ops(moe)
        x, ids, weights = given_tensors()
        totals = torch.zeros(8, dtype=torch.int64)
        counts = torch.zeros(8, dtype=torch.int32)
        moe.combine(moe.dispatch(x, ids, weights, want=tern_ep.Wanted(expert_totals=totals, into_counts=counts)).x)
        rows = ops.dispatch(x, ids, weights)
        assert (ops.combine(rows.x, 3) == 2).all()
        assert totals.tolist() == counts.tolist() == rows.counts.tolist() == [3, 3] + [0] * 6
        with pytest.raises(TypeError, match="want takes a Wanted"):
            moe.dispatch(x, ids, weights, want=(totals,))  # type: ignore[arg-type]
