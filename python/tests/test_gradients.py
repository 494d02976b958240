# SPDX-License-Identifier: Apache-2.0
"""Gradients of dispatch and combine, on integers: every sum is exact in fp32, and has to be the dense layer's in fp64, bit for bit."""

from __future__ import annotations

import dataclasses
import gc
from typing import Any, List, Tuple

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tern_ep  # noqa: E402
import tern_ep.torch  # noqa: E402
from tern_ep import Config, Dtype, Layout, Mode, Reduce  # noqa: E402

EXPERTS, HIDDEN, TOPK, TOKENS = 6, 16, 2, 7


def config(mode: Mode, reduce: Reduce = Reduce.EXPERT, **more: Any) -> Config:
    types = dict(x_dtype=Dtype.FP32, dispatch_dtype=Dtype.FP32, combine_dtype=Dtype.FP32)
    return Config(hidden=HIDDEN, nr_experts=EXPERTS, topk=TOPK, max_tokens=TOKENS, mode=mode, reduce=reduce, combine_floats=True, **types, **more)


class Batch:
    """A rank's tokens, routes and gate weights; matrices of all experts; and what the result is multiplied with."""

    def __init__(self, seed: int, nr_tokens: int):
        random = torch.Generator().manual_seed(seed)
        self.x = torch.randint(-4, 5, (nr_tokens, HIDDEN), generator=random)
        self.ids = torch.stack([torch.randperm(EXPERTS, generator=random)[:TOPK] for _ in range(nr_tokens)] or [torch.zeros(TOPK)]).to(torch.int64)[:nr_tokens]
        if nr_tokens:
            self.ids[0, 1] = -1
        self.weights = torch.randint(1, 5, (nr_tokens, TOPK), generator=random)
        self.direction = torch.randint(-3, 4, (nr_tokens, HIDDEN), generator=random)
        self.matrices = torch.randint(-2, 3, (EXPERTS, HIDDEN, HIDDEN), generator=torch.Generator().manual_seed(99))


def dense(batches: List[Batch]) -> Tuple[List[Any], List[Any], Any]:
    """Gradients of x and weights of each rank, and of the experts' matrices: y = w * (x @ A)^2, so that each depends on all others."""
    matrices = batches[0].matrices.to(torch.float64).requires_grad_()
    given = [(b.x.to(torch.float64).requires_grad_(), b.weights.to(torch.float64).requires_grad_()) for b in batches]
    for batch, (x, weights) in zip(batches, given):
        here = (batch.ids >= 0).to(torch.float64)
        y = torch.einsum("nh,nkhj->nkj", x, matrices[batch.ids.clamp(min=0)]).square()
        ((weights * here)[:, :, None] * y).sum(1).mul(batch.direction).sum().backward()
    return [x.grad for x, _ in given], [weights.grad for _, weights in given], matrices.grad


def experts(rows: Any, counts: Any, matrices: Any) -> Any:
    return torch.cat([part @ matrix for part, matrix in zip(rows.split(counts.tolist()), matrices.unbind(0))]).square()


def forward(ops: Any, x: Any, ids: Any, weights: Any, matrices: Any) -> Any:
    rows, row_weights, counts, plan = ops.dispatch(x, ids, weights)
    return ops.combine(experts(rows, counts, matrices) * row_weights[:, None], plan, x.shape[0])


@pytest.mark.parametrize("reduce", list(Reduce))
@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("sizes", [(7,), (5, 7), (4, 0, 7)])
def test_exact(sizes: Tuple[int, ...], mode: Mode, reduce: Reduce) -> None:
    batches = [Batch(rank, n) for rank, n in enumerate(sizes)]
    gx, gw, gm = dense(batches)

    def body(group: tern_ep.Group) -> None:
        batch = batches[group.rank]
        with tern_ep.Exchange(group, config(mode, reduce), arrays="torch") as moe:
            ops = tern_ep.torch.Differentiable(moe)
            x, weights = batch.x.to(torch.float32).requires_grad_(), batch.weights.to(torch.float32).requires_grad_()
            mine = list(moe.local_experts)
            matrices = batch.matrices[mine].to(torch.float32).requires_grad_()
            # Twice, with both graphs alive at once: what accumulates is twice the gradient.
            losses = [forward(ops, x, batch.ids, weights, matrices).mul(batch.direction).sum() for _ in range(2)]
            for loss in losses:
                loss.backward()
            assert torch.equal(x.grad.double(), 2 * gx[group.rank])
            assert torch.equal(weights.grad.double(), 2 * gw[group.rank])
            assert torch.equal(matrices.grad.double(), 2 * gm[mine])

    tern_ep.run_threads(len(sizes), body)


def test_replicas() -> None:
    """Ranks 0 and 1 hold one batch, 2 and 3 another: each gets the whole gradient of its batch."""
    batches = [Batch(3, 5), Batch(4, 7)]
    gx, gw, gm = dense(batches)

    def body(group: tern_ep.Group) -> None:
        batch = batches[group.rank // 2]
        with tern_ep.Exchange(group, config(Mode.HIGH_THROUGHPUT, replica_ranks=2), arrays="torch") as moe:
            x, weights = batch.x.to(torch.float32).requires_grad_(), batch.weights.to(torch.float32).requires_grad_()
            matrices = batch.matrices[list(moe.local_experts)].to(torch.float32).requires_grad_()
            forward(tern_ep.torch.Differentiable(moe), x, batch.ids, weights, matrices).mul(batch.direction).sum().backward()
            assert torch.equal(x.grad.double(), gx[group.rank // 2])
            assert torch.equal(weights.grad.double(), gw[group.rank // 2])
            assert torch.equal(matrices.grad.double(), gm[list(moe.local_experts)])

    tern_ep.run_threads(4, body)


def test_adjoint() -> None:
    """Both are linear: <A x, y> = <x, At y>, for any x and y, which finite differences would only approach."""
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, config(Mode.LOW_LATENCY), arrays="torch") as moe:
        ops = tern_ep.torch.Differentiable(moe)
        batch = Batch(5, 6)
        x, weights = batch.x.float().requires_grad_(), batch.weights.float().requires_grad_()
        rows, row_weights, _, plan = ops.dispatch(x, batch.ids, weights)
        to_rows, to_weights = (torch.randint(-9, 10, t.shape).float() for t in (rows, row_weights))
        value = (rows * to_rows).sum() + (row_weights * to_weights).sum()
        value.backward()
        assert float(value.detach()) == float((x * x.grad).sum().detach() + (weights * weights.grad).sum().detach())
        y = torch.randint(-9, 10, rows.shape).float().requires_grad_()
        out = ops.combine(y, plan, 6)
        direction = torch.randint(-9, 10, out.shape).float()
        out.backward(direction)
        assert float((out * direction).sum().detach()) == float((y * y.grad).sum().detach())


def test_plans_go_with_their_graphs() -> None:
    batch = Batch(6, 7)
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, config(Mode.HIGH_THROUGHPUT), arrays="torch") as moe:
        ops = tern_ep.torch.Differentiable(moe)
        matrices = batch.matrices.float().requires_grad_()
        plans = tern_ep.torch._planned[ops._key].plans
        for step in range(5):
            out = forward(ops, batch.x.float().requires_grad_(), batch.ids, batch.weights.float(), matrices)
            assert len(plans) == 1, f"step {step}"
            out.sum().backward(retain_graph=step == 2)
            if step == 2:
                out.sum().backward()
            del out
            gc.collect()
            tern_ep.torch._planned_of(ops._key)
            assert not plans


def test_checkpointing_goes_the_same_way() -> None:
    batches = [Batch(7, 5), Batch(8, 7)]
    gx, gw, gm = dense(batches)

    def body(group: tern_ep.Group) -> None:
        from torch.utils.checkpoint import checkpoint

        batch = batches[group.rank]
        with tern_ep.Exchange(group, config(Mode.HIGH_THROUGHPUT), arrays="torch") as moe:
            ops = tern_ep.torch.Differentiable(moe)
            x, weights = batch.x.float().requires_grad_(), batch.weights.float().requires_grad_()
            matrices = batch.matrices[list(moe.local_experts)].float().requires_grad_()
            checkpoint(forward, ops, x, batch.ids, weights, matrices, use_reentrant=False).mul(batch.direction).sum().backward()
            assert torch.equal(x.grad.double(), gx[group.rank]) and torch.equal(weights.grad.double(), gw[group.rank])
            assert torch.equal(matrices.grad.double(), gm[list(moe.local_experts)])
            assert moe.stats().rounds == 3  # forward, the same again, backward

    tern_ep.run_threads(2, body)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(backend: str) -> None:
    torch.compiler.reset()
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, config(Mode.HIGH_THROUGHPUT), arrays="torch") as moe:
        ops = tern_ep.torch.Differentiable(moe)

        def layer(x: Any, ids: Any, weights: Any) -> Any:
            rows, row_weights, _, plan = ops.dispatch(x, ids, weights)
            return ops.combine(rows.square() * row_weights[:, None], plan, x.shape[0])

        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            compiled = torch.compile(layer, backend=backend, fullgraph=True)
            for seed in range(2):
                batch = Batch(seed, 6)
                x, weights = batch.x.float().requires_grad_(), batch.weights.float().requires_grad_()
                compiled(x, batch.ids, weights).mul(batch.direction).sum().backward()
                here = (batch.ids >= 0).float()
                assert torch.equal(x.grad, 2 * x.detach() * (weights.detach() * here).sum(1, keepdim=True) * batch.direction)
                assert torch.equal(weights.grad, here * (x.detach().square() * batch.direction).sum(1, keepdim=True))


def test_fakes() -> None:
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, config(Mode.HIGH_THROUGHPUT), arrays="torch") as moe:
        ops, batch = tern_ep.torch.Differentiable(moe), Batch(1, 5)
        x, weights = batch.x.float(), batch.weights.float()
        checks = ("test_schema", "test_faketensor", "test_autograd_registration")
        rows, row_weights, _, plan = ops.dispatch(x, batch.ids, weights)
        for op, arguments in [
            (tern_ep.torch._spread_op, (x.requires_grad_(), batch.ids, weights.requires_grad_(), ops._key)),
            (tern_ep.torch._gather_op, (rows.requires_grad_(), plan, 5, ops._key)),
            (tern_ep.torch._spread_again_op, (x.detach(), plan, rows.shape[0], ops._key)),
            (tern_ep.torch._gather_floats_op, (rows.detach(), row_weights, plan, 5, TOPK, ops._key)),
        ]:
            torch.library.opcheck(op, arguments, test_utils=checks)


def test_refused() -> None:
    with tern_ep.Group.alone() as group:
        for wrong in (dict(combine_floats=False), dict(combine_dtype=Dtype.BF16), dict(layout=Layout.BY_SOURCE, weights=tern_ep.Weights.PASS)):
            settings = dataclasses.replace(config(Mode.HIGH_THROUGHPUT), **wrong)
            with tern_ep.Exchange(group, settings, arrays="torch") as moe, pytest.raises(tern_ep.InvalidError, match="gradients need"):
                tern_ep.torch.Differentiable(moe)
        with tern_ep.Exchange(group, config(Mode.LOW_LATENCY)) as moe, pytest.raises(tern_ep.InvalidError, match='arrays="torch"'):
            tern_ep.torch.Differentiable(moe)
