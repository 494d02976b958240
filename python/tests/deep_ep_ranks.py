# SPDX-License-Identifier: Apache-2.0
"""Ranks of test_deep_ep.py as processes over gloo: `deep_ep_ranks.py NR_RANKS PART [arguments]`. torch is imported once, then ranks
are forked off. With TERN_TEST_DEVICE=cuda tensors are on GPUs, which ranks share if there are fewer."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import tempfile
import traceback
from typing import Any, Callable, List, Tuple

import torch
import torch.distributed as dist

import tern_ep
import tern_ep.deep_ep as deep_ep

DEVICE = os.environ.get("TERN_TEST_DEVICE", "cpu")
TOKENS, HIDDEN, EXPERTS, TOPK = 23, 1024, 12, 3


def difference(a: Any, b: Any) -> float:
    """What deep_ep's own tests judge by: 0 for equal tensors."""
    x, y = a.double() + 1, b.double() + 1
    return float(1 - 2 * (x * y).sum() / (x * x + y * y).sum()) if x.numel() else 0.0


def everybodys(mine: Any, group: Any) -> Any:
    """[R] what each rank has."""
    parts: List[Any] = [None] * group.size()
    dist.all_gather_object(parts, mine.cpu(), group)
    return [part.to(DEVICE) for part in parts]


def quantised(x: Any) -> Tuple[Any, Any]:
    blocks = x.float().view(len(x), -1, 128)
    scales = blocks.abs().amax(2).clamp(1e-4) / 448
    return (blocks / scales[:, :, None]).to(torch.float8_e4m3fn).view(x.shape), scales


def back(x: Any) -> Any:
    """As floats, whatever came: scales as floats, or packed."""
    if not isinstance(x, tuple):
        return x.float()
    rows, scales = x
    if scales.dtype == torch.int32:
        scales = (scales.contiguous().view(torch.uint8).to(torch.int32) << 23).view(torch.float32)
    blocks = rows.float().unflatten(-1, (-1, 128))
    return (blocks * scales[..., None]).flatten(-2)


class Job:
    """What all ranks draw; every rank knows all of it."""

    def __init__(self, group: Any, seed: int, nr_tokens: Any = None, drop: float = 0.15):
        self.rank, self.nr_ranks = group.rank(), group.size()
        random = torch.Generator("cpu").manual_seed(seed)
        self.nr = nr_tokens or [TOKENS - 3 * r for r in range(self.nr_ranks)]
        self.local = EXPERTS // self.nr_ranks
        self.xs, self.idss, self.weightss = [], [], []
        for nr in self.nr:
            ids = torch.rand((nr, EXPERTS), generator=random, device="cpu").argsort(1)[:, :TOPK].clone()
            ids[torch.rand((nr, TOPK), generator=random, device="cpu") < drop] = -1
            self.idss.append(ids.to(DEVICE))
            self.xs.append(torch.randn((nr, HIDDEN), generator=random, device="cpu").to(torch.bfloat16).to(DEVICE))
            self.weightss.append(torch.rand((nr, TOPK), generator=random, device="cpu").to(DEVICE))
        self.x, self.ids, self.weights = self.xs[self.rank], self.idss[self.rank], self.weightss[self.rank]

    def there(self, source: int, rank: int) -> Any:
        """[n] which of a source's tokens go to a rank."""
        return ((self.idss[source] >= 0) & (self.idss[source] // self.local == rank)).any(1)

    def received(self, of: Callable[[int], Any]) -> Any:
        """Rows of all sources for this rank, in their order, of of(source)."""
        return torch.cat([of(r)[self.there(r, self.rank)] for r in range(self.nr_ranks)])

    def received_ids(self) -> Any:
        ids = self.received(lambda r: self.idss[r])
        return torch.where((ids >= 0) & (ids // self.local == self.rank), ids % self.local, -1)

    def nr_ranks_of(self) -> Any:
        return torch.stack([self.there(self.rank, r) for r in range(self.nr_ranks)], 1).sum(1)


def laid_out(buffer: Any, job: Job) -> Any:
    per_rank, per_node, per_expert, in_rank, event = buffer.get_dispatch_layout(job.ids, EXPERTS)
    assert per_node is None and event.event is None
    assert per_rank.dtype == per_expert.dtype == torch.int32 and in_rank.dtype == torch.bool
    assert torch.equal(in_rank, torch.stack([job.there(job.rank, r) for r in range(job.nr_ranks)], 1))
    assert per_rank.tolist() == in_rank.sum(0).tolist()
    assert per_expert.tolist() == [int((job.ids == e).sum()) for e in range(EXPERTS)]
    return dict(num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert)


# ---- normal mode ---------------------------------------------------------------------------------------------------


def check_counts(job: Job, counts: List[int], alignment: int) -> None:
    ids = job.received_ids()
    assert counts == [-(-int((ids == e).sum()) // alignment) * alignment for e in range(job.local)]


def check_home(job: Job, combined: Any, rows: Any, bound: float) -> None:
    """Rows came home as they were sent: each token as often as it was sent."""
    times = job.nr_ranks_of()[:, None]
    assert combined.dtype == torch.bfloat16 and combined.shape == job.x.shape
    assert difference(combined, rows.float() * times) < bound
    assert bool((combined[times[:, 0] == 0] == 0).all())


def normal(group: Any) -> None:
    buffer = deep_ep.Buffer(group, 1 << 20, 0, explicitly_destroy=True)
    for seed, form in enumerate(("bf16", "fp8", "packed", "columns")):
        job = Job(group, seed)
        layout = laid_out(buffer, job)
        sent: Any = job.x
        if form != "bf16":
            rows, scales = quantised(job.x)
            if form == "packed":
                exponents = torch.ceil(torch.log2(scales)).to(torch.int32) + 127
                rows = (job.x.float().view(len(job.x), -1, 128) / torch.exp2((exponents - 127).float())[:, :, None]).to(torch.float8_e4m3fn).view(job.x.shape)
                scales = exponents.to(torch.uint8).contiguous().view(torch.int32)
            if form == "columns":
                scales = scales.T.contiguous().T
            sent = (rows, scales)
        parts = everybodys(back(sent), group)
        expected = job.received(lambda r: parts[r])
        for topk in (True, False):
            chosen = dict(topk_idx=job.ids, topk_weights=job.weights) if topk else {}
            for alignment in (1, 4, 128):
                for events in (False, True):
                    extra = dict(previous_event=buffer.capture(), async_finish=True, allocate_on_comm_stream=True) if events else {}
                    found, ids, weights, counts, handle, event = buffer.dispatch(sent, expert_alignment=alignment, config=deep_ep.Config(8), **layout, **chosen, **extra)
                    assert (event.event is not None) == events
                    if events:
                        event.current_stream_wait()
                    assert torch.equal(back(found), expected)
                    if form != "bf16":
                        assert found[0].dtype == torch.float8_e4m3fn and found[1].dtype == sent[1].dtype and found[1].shape[1] == sent[1].shape[1]
                    check_counts(job, counts, alignment)
                    check_handle(job, handle)
                    if topk:
                        check_topk(job, ids, weights, len(expected))
                    else:
                        assert ids is None and weights is None
                    bias = (job.x, job.x) if alignment == 4 else None
                    y = back(found).to(torch.bfloat16)
                    if events:
                        extra["previous_event"] = buffer.capture()  # behind y
                    combined, summed, event = buffer.combine(y, handle, topk_weights=weights, bias=bias, **extra)
                    if events:
                        event.current_stream_wait()
                    check_home(job, combined - (2 * job.x if bias else 0), back(sent).to(torch.bfloat16), 5e-6 if bias is None else 1e-4)
                    if topk:
                        assert difference(summed, job.weights.masked_fill(job.ids < 0, 0)) < 1e-9
        if form == "bf16":
            worst_sizes(buffer, job, layout, expected)
        two_combines(buffer, job, handle, back(sent))
        cached(buffer, job, handle)
    buffer.destroy()


def check_handle(job: Job, handle: Any) -> None:
    prefix, sources, in_rank = handle[0], handle[3], handle[4]
    sums = torch.tensor([[int(job.there(r, p).sum()) for p in range(job.nr_ranks)] for r in range(job.nr_ranks)]).cumsum(0)
    assert prefix.dtype == torch.int32 and torch.equal(prefix, sums.to(torch.int32))
    assert torch.equal(sources, job.received(lambda r: torch.arange(job.nr[r], dtype=torch.int32)))
    assert torch.equal(in_rank.sum(1), job.nr_ranks_of())


def check_topk(job: Job, ids: Any, weights: Any, nr: int) -> None:
    expected = job.received_ids()
    assert ids.dtype == torch.int64 and torch.equal(ids[:nr], expected) and bool((ids[nr:] == -1).all())
    assert torch.equal(weights[:nr], job.received(lambda r: job.weightss[r]).masked_fill(expected < 0, 0))


def worst_sizes(buffer: Any, job: Job, layout: Any, expected: Any) -> None:
    worst = max(job.nr) * job.nr_ranks
    found, ids, weights, counts, handle, _ = buffer.dispatch(job.x, topk_idx=job.ids, topk_weights=job.weights, num_worst_tokens=worst, **layout)
    assert counts == [] and len(found) == len(ids) == len(weights) == worst
    assert torch.equal(found[: len(expected)].float(), expected)
    check_topk(job, ids, weights, len(expected))
    assert int(handle[0][-1, job.rank]) == len(expected)
    combined, summed, _ = buffer.combine(found, handle, topk_weights=weights)
    check_home(job, combined, job.x, 5e-6)
    assert difference(summed, job.weights.masked_fill(job.ids < 0, 0)) < 1e-9
    try:
        buffer.dispatch(job.x, topk_idx=job.ids, topk_weights=job.weights, num_worst_tokens=1, **layout)
        raise AssertionError("num_worst_tokens of 1 was taken")
    except tern_ep.InvalidError as error:
        assert "num_worst_tokens" in str(error)


def two_combines(buffer: Any, job: Job, handle: Any, rows: Any) -> None:
    """The second one goes by the plan."""
    parts = everybodys(rows.to(torch.bfloat16), buffer.group)
    y = job.received(lambda r: parts[r])
    for factor in (1, 2):
        combined, _, _ = buffer.combine(y * factor, handle)
        check_home(job, combined, rows.to(torch.bfloat16) * factor, 5e-6)
    narrow, _, _ = buffer.combine(y[:, :64].contiguous(), handle)
    assert torch.equal(narrow, combined[:, :64] / 2)


def cached(buffer: Any, job: Job, handle: Any) -> None:
    """Of any type, a hundred times, with and without a combine behind it."""
    for again in range(100):
        if again % 2:
            factor = 2.0 ** (again % 5)
            found = buffer.dispatch(job.x * factor, handle=handle)
            assert found[1:5] == (None, None, None, None)
            assert torch.equal(found[0], job.received(lambda r: job.xs[r]) * factor)
        else:
            found = buffer.dispatch(quantised(job.x), handle=handle)
            assert torch.equal(back(found[0]), job.received(lambda r: back(quantised(job.xs[r]))))
        if again % 3 == 0:
            combined, _, _ = buffer.combine(back(found[0]).to(torch.bfloat16), handle)
            check_home(job, combined, job.x * (2.0 ** (again % 5) if again % 2 else 1), 1e-3)


def sizes(group: Any) -> None:
    """Numbers of tokens that grow and shrink, none at all, a rank alone; handles outlive the exchange that they were made with."""
    buffer = deep_ep.Buffer(group, 0, explicitly_destroy=True)
    kept = []
    for seed, nr in enumerate(([1, 0, 2, 1], [0, 0, 0, 0], [40, 3, 0, 17], [5, 70, 1, 1], [2, 2, 2, 2])):
        job = Job(group, seed, nr[: group.size()])
        layout = laid_out(buffer, job)
        found, ids, weights, counts, handle, _ = buffer.dispatch(job.x, topk_idx=job.ids, topk_weights=job.weights, **layout)
        assert torch.equal(found, job.received(lambda r: job.xs[r]))
        check_topk(job, ids, weights, len(found))
        check_counts(job, counts, 1)
        kept.append((job, found, handle))
    for job, found, handle in reversed(kept):
        combined, _, _ = buffer.combine(found, handle)
        check_home(job, combined, job.x, 5e-6)
    buffer.destroy()


def held(group: Any) -> None:
    """Rows that are held, by some ranks for longer than by others, stay what they are; places of rows that nobody holds are used again."""
    buffer = deep_ep.Buffer(group, explicitly_destroy=True)
    rows: List[Any] = []

    def intact() -> None:
        for expected, found, expected_weights, weights in rows:
            assert torch.equal(found, expected) and torch.equal(weights, expected_weights)

    for turn in range(14):
        job = Job(group, turn)
        found, _, weights, _, handle, _ = buffer.dispatch(job.x, topk_idx=job.ids, topk_weights=job.weights, **laid_out(buffer, job))
        rows.append((job.received(lambda r: job.xs[r]), found, weights.clone(), weights))
        if turn % 3 == 1:
            again = buffer.dispatch(-job.x, handle=handle)[0]
            rows.append((-rows[-1][0], again, weights.clone(), weights))
        intact()
        combined, _, _ = buffer.combine(found, handle)
        check_home(job, combined, job.x, 5e-6)
        del found, weights
        while len(rows) > (job.rank + turn) % 5:
            rows.pop(0)
        intact()
    rows.clear()
    again = handle = None
    places = set()
    job = Job(group, 1)
    layout = laid_out(buffer, job)
    for turn in range(8):
        found, _, weights, _, handle, _ = buffer.dispatch(job.x, topk_idx=job.ids, topk_weights=job.weights, **layout)
        places.add((found.data_ptr(), weights.data_ptr()))
        found, _, _ = buffer.combine(found, handle)
    assert len(places) <= 4, places
    buffer.destroy()


# ---- low latency ---------------------------------------------------------------------------------------------------


def check_padded(job: Job, found: Any, counts: Any, handle: Any, most: int, form: Any) -> None:
    rows = found[0] if form["use_fp8"] else found
    assert rows.shape == (job.local, job.nr_ranks * most, HIDDEN)
    if form["use_fp8"]:
        columns, kind = (HIDDEN // 512, torch.int32) if form["use_ue8m0"] else (HIDDEN // 128, torch.float32)
        assert found[1].shape == (job.local, job.nr_ranks * most, columns) and found[1].dtype == kind
        assert found[1].stride(1) == 1 and (columns == 1 or found[1].stride(2) >= job.nr_ranks * most)
        if form["round_scale"] and not form["use_ue8m0"]:
            held = torch.cat([found[1][e, : counts[e]].flatten() for e in range(job.local)])
            assert torch.equal(torch.exp2(torch.log2(held).round()), held)
    src_info, layout_range, nr, hidden, experts = handle
    assert (nr, hidden, experts) == (most, HIDDEN, EXPERTS) == handle[2:]
    assert src_info.dtype == torch.int32 and layout_range.dtype == torch.int64 and counts.dtype == torch.int32
    shown = back(found)
    for e in range(job.local):
        of = [(job.idss[r] == job.rank * job.local + e).any(1) for r in range(job.nr_ranks)]
        assert int(counts[e]) == sum(int(o.sum()) for o in of)
        for r in range(job.nr_ranks):
            begin, count = int(layout_range[e, r] >> 32), int(layout_range[e, r] & 0xFFFFFFFF)
            assert count == int(of[r].sum())
            sources = src_info[e, begin : begin + count]
            assert torch.equal(sources.sort()[0], of[r].nonzero()[:, 0].to(torch.int32))
            assert difference(shown[e, begin : begin + count], job.xs[r][sources.long()].float()) < (2e-3 if form["use_fp8"] else 1e-12)


def low_latency(group: Any) -> None:
    most = TOKENS + 1
    buffer = deep_ep.Buffer(group, low_latency_mode=True, num_rdma_bytes=deep_ep.Buffer.get_low_latency_rdma_size_hint(most, HIDDEN, group.size(), EXPERTS), explicitly_destroy=True)
    buffer.clean_low_latency_buffer(most, HIDDEN, EXPERTS)
    forms = [dict(use_fp8=False, round_scale=False, use_ue8m0=False)]
    forms += [dict(use_fp8=True, round_scale=r, use_ue8m0=u) for r, u in ((False, False), (True, False), (True, True))]
    turn = 0
    for form in forms:
        for hooked in (False, True):
            for times in (1, 2):  # two dispatches, of which the first is combined never
                turn += 1
                job = Job(group, turn)
                totals = torch.zeros(job.local, dtype=torch.int32)
                waited = torch.zeros(job.nr_ranks, dtype=torch.int64)
                how = dict(return_recv_hook=True) if hooked else dict(async_finish=True)
                for _ in range(times):
                    found, counts, handle, event, hook = buffer.low_latency_dispatch(job.x, job.ids, most, EXPERTS, totals, waited, **form, **how)
                    assert (hook is None) != hooked
                    hook() if hook else event.current_stream_wait()
                check_padded(job, found, counts, handle, most, form)
                assert torch.equal(totals, counts * times) and bool((waited >= 0).all())
                y = back(found).to(torch.bfloat16)
                expected = job.x.float() * job.weights.masked_fill(job.ids < 0, 0).sum(1)[:, None]
                for zero_copy in (False, True):
                    out = torch.empty_like(job.x) if zero_copy else None
                    if zero_copy:
                        buffer.get_next_low_latency_combine_buffer(handle).copy_(y)
                    given = torch.zeros_like(y) if zero_copy else y
                    combined, event, hook = buffer.low_latency_combine(given, job.ids, job.weights, handle, use_logfmt=turn % 2 == 0, zero_copy=zero_copy, out=out, **how)
                    hook() if hook else event.current_stream_wait()
                    assert out is None or combined is out
                    bound = 1e-5 if not form["use_fp8"] else 9e-4 if not form["round_scale"] else 9e-3
                    assert difference(combined, expected) < bound, (form, difference(combined, expected))
    interleaved(buffer, group, most)
    for nr in ([0, 5, 0, 1], [0, 0, 0, 0]):
        job = Job(group, 9, nr[: group.size()])
        found, counts, handle, _, _ = buffer.low_latency_dispatch(job.x, job.ids, most, EXPERTS, use_fp8=False)
        check_padded(job, found, counts, handle, most, forms[0])
        combined, _, _ = buffer.low_latency_combine(found, job.ids, job.weights, handle)
        assert difference(combined, job.x.float() * job.weights.masked_fill(job.ids < 0, 0).sum(1)[:, None]) < 1e-5
    buffer.destroy()


def interleaved(buffer: Any, group: Any, most: int) -> None:
    """Two micro-batches, hooks that are called late, and one that is called by nobody."""
    jobs = [Job(group, 100 + i) for i in range(2)]
    for turn in range(6):
        sent = [buffer.low_latency_dispatch(job.x, job.ids, most, EXPERTS, use_fp8=False, return_recv_hook=True) for job in jobs]
        for given in sent if turn % 2 else sent[:1]:
            given[4]()
        home = [buffer.low_latency_combine(given[0], job.ids, job.weights, given[2], return_recv_hook=True) for job, given in zip(jobs, sent)]
        for job, (combined, _, hook) in zip(jobs, home):
            hook()
            hook()
            assert difference(combined, job.x.float() * job.weights.masked_fill(job.ids < 0, 0).sum(1)[:, None]) < 1e-5


# ---- errors --------------------------------------------------------------------------------------------------------


def refused(group: Any) -> None:
    """Before anything is sent: the calls behind it work."""
    buffer = deep_ep.Buffer(group, low_latency_mode=True)
    job = Job(group, 3)
    layout = laid_out(buffer, job)
    good = dict(x=job.x, topk_idx=job.ids, topk_weights=job.weights, **layout)
    _, _, recv_weights, _, handle, _ = buffer.dispatch(**good)
    plain = buffer.dispatch(job.x, **layout)[4]
    y = torch.zeros((len(handle[3]), HIDDEN), dtype=torch.bfloat16)
    low = dict(x=job.x, topk_idx=job.ids, num_max_dispatch_tokens_per_rank=32, num_experts=EXPERTS)
    sent = buffer.low_latency_dispatch(**low, use_fp8=False)
    many = torch.full_like(job.ids, 1)
    cases: List[Any] = [
        ("x is float32", lambda: buffer.dispatch(**{**good, "x": job.x.float()})),
        ("x .*strides", lambda: buffer.dispatch(**{**good, "x": torch.zeros((HIDDEN, len(job.x)), dtype=torch.bfloat16).T})),
        (r"x\[1\]", lambda: buffer.dispatch(**{**good, "x": (quantised(job.x)[0], torch.ones((len(job.x), 1)))})),
        ("topk_idx is int32", lambda: buffer.dispatch(**{**good, "topk_idx": job.ids.int()})),
        ("topk_weights is float64", lambda: buffer.dispatch(**{**good, "topk_weights": job.weights.double()})),
        ("topk_idx and topk_weights", lambda: buffer.dispatch(**{**good, "topk_weights": None})),
        ("topk_idx is from .* to 99", lambda: buffer.dispatch(**{**good, "topk_idx": many * 99})),
        ("is not of topk_idx", lambda: buffer.dispatch(**{**good, "topk_idx": many})),
        ("is_token_in_rank is NoneType", lambda: buffer.dispatch(**{**good, "is_token_in_rank": None})),
        ("num_tokens_per_expert has 5", lambda: buffer.dispatch(**{**good, "num_tokens_per_expert": torch.zeros(5, dtype=torch.int32)})),
        ("expert_alignment", lambda: buffer.dispatch(**good, expert_alignment=0)),
        ("num_worst_tokens takes topk_idx", lambda: buffer.dispatch(job.x, num_worst_tokens=99, **layout)),
        ("allocate_on_comm_stream", lambda: buffer.dispatch(**good, allocate_on_comm_stream=True)),
        ("handle is none", lambda: buffer.dispatch(job.x, handle=(1, 2))),
        ("handle is of", lambda: buffer.dispatch(job.x[:1], handle=handle)),
        ("topk_idx and topk_weights", lambda: buffer.dispatch(job.x, handle=handle, topk_idx=job.ids)),
        ("num_experts", lambda: buffer.get_dispatch_layout(job.ids, EXPERTS + 1)),
        ("x is bfloat16", lambda: buffer.combine(y[:-1], handle)),
        ("handle is none", lambda: buffer.combine(y, None)),
        ("topk_weights is float32", lambda: buffer.combine(y, handle, topk_weights=recv_weights[:, :1].contiguous())),
        ("topk_weights: handle", lambda: buffer.combine(y, plain, topk_weights=recv_weights)),
        (r"bias\[1\]", lambda: buffer.combine(y, handle, bias=(job.x, job.x.float()))),
        ("bias is a tuple of 3", lambda: buffer.combine(y, handle, bias=(job.x,) * 3)),
        ("x has .* num_max_dispatch", lambda: buffer.low_latency_dispatch(**{**low, "num_max_dispatch_tokens_per_rank": 1})),
        ("num_experts", lambda: buffer.low_latency_dispatch(**{**low, "num_experts": EXPERTS + 1})),
        ("use_ue8m0", lambda: buffer.low_latency_dispatch(**low, use_ue8m0=True)),
        ("async_finish and return_recv_hook", lambda: buffer.low_latency_dispatch(**low, async_finish=True, return_recv_hook=True)),
        ("cumulative_local_expert_recv_stats", lambda: buffer.low_latency_dispatch(**low, cumulative_local_expert_recv_stats=torch.zeros(1))),
        ("dispatch_wait_recv_cost_stats", lambda: buffer.low_latency_dispatch(**low, dispatch_wait_recv_cost_stats=torch.zeros(1))),
        ("handle is none", lambda: buffer.low_latency_combine(sent[0], job.ids, job.weights, tuple(sent[2]))),
        ("x is", lambda: buffer.low_latency_combine(sent[0][:, :-1], job.ids, job.weights, sent[2])),
        ("topk_weights is", lambda: buffer.low_latency_combine(sent[0], job.ids, job.weights[:-1], sent[2])),
        ("out is", lambda: buffer.low_latency_combine(sent[0], job.ids, job.weights, sent[2], out=job.x.float())),
        ("zero_copy", lambda: buffer.low_latency_combine(sent[0], job.ids, job.weights, sent[2], zero_copy=True)),
        ("combine_wait_recv_cost_stats", lambda: buffer.low_latency_combine(sent[0], job.ids, job.weights, sent[2], combine_wait_recv_cost_stats=job.x)),
        ("enable_shrink", lambda: buffer.low_latency_update_mask_buffer(0, True)),
        ("get_local_buffer_tensor", lambda: buffer.get_local_buffer_tensor(torch.uint8)),
        ("explicitly_destroy", buffer.destroy),
        ("new_num_sms", lambda: deep_ep.Buffer.set_num_sms(3)),
        ("group", lambda: deep_ep.Buffer(None)),
    ]
    for words, call in cases:
        try:
            call()
        except tern_ep.Error as error:
            assert re.search(words, error.text), (words, error.text)
        else:
            raise AssertionError(f"taken: {words}")
    found = buffer.dispatch(**good)
    check_home(job, buffer.combine(found[0], found[4])[0], job.x, 5e-6)
    combined, _, _ = buffer.low_latency_combine(sent[0], job.ids, job.weights, sent[2])
    assert difference(combined, job.x.float() * job.weights.masked_fill(job.ids < 0, 0).sum(1)[:, None]) < 1e-5


CALLS = ("making", "dispatch", "grown", "cached", "combine", "combine again", "low_latency_dispatch", "hook", "low_latency_combine", "combine's hook")


def killed(group: Any, call: str) -> None:
    """The last rank dies where the others are in that call, or come to it."""
    victim = group.size() - 1
    buffer = deep_ep.Buffer(group, low_latency_mode=True)
    job = Job(group, 1)
    layout = laid_out(buffer, job)
    normal_args = dict(x=job.x, topk_idx=job.ids, topk_weights=job.weights, **layout)
    low = (job.x, job.ids, 32, EXPERTS)
    if call != "making":
        found, _, _, _, handle, _ = buffer.dispatch(**normal_args)
        sent = buffer.low_latency_dispatch(*low, use_fp8=False)
    if call == "combine again":
        buffer.combine(found, handle)
    if call == "hook":
        sent = buffer.low_latency_dispatch(*low, use_fp8=False, return_recv_hook=True)
    if call == "combine's hook":
        combined = buffer.low_latency_combine(sent[0], job.ids, job.weights, sent[2], return_recv_hook=True)
    if job.rank == victim and call not in ("hook", "combine's hook"):
        os.kill(os.getpid(), signal.SIGKILL)

    def in_low_latency() -> Any:
        return buffer.low_latency_dispatch(*low, use_fp8=False)

    try:
        if call == "making":
            buffer.low_latency_dispatch(*low)
        elif call == "dispatch":
            buffer.dispatch(**normal_args)
        elif call == "grown":  # an exchange for more tokens would be made
            buffer.dispatch(x=job.x.repeat(9, 1), **laid_out_again(buffer, job, 9))
        elif call == "cached":
            buffer.dispatch(job.x, handle=handle)
        elif call in ("combine", "combine again"):
            buffer.combine(found, handle)
        elif call == "low_latency_dispatch":
            in_low_latency()
        elif call == "low_latency_combine":
            buffer.low_latency_combine(sent[0], job.ids, job.weights, sent[2])
        else:
            if job.rank == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            sent[4]() if call == "hook" else combined[2]()
            in_low_latency()  # what the dead one had sent before is received
        if DEVICE == "cuda":  # the call has returned before its kernels waited, which end now; the next one says what they found
            torch.cuda.synchronize()
            buffer.dispatch(job.x, handle=handle) if call in ("cached", "combine", "combine again") else in_low_latency()
    except ConnectionError as error:
        assert isinstance(error, tern_ep.Error)
        assert f"rank {victim}" in error.text, error.text
        print(f"{call}: {job.rank} names {victim}\n", end="", flush=True)


def laid_out_again(buffer: Any, job: Job, times: int) -> Any:
    ids = job.ids.repeat(times, 1)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, EXPERTS)
    return dict(topk_idx=ids, topk_weights=job.weights.repeat(times, 1), num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert)


def graphs(group: Any) -> None:
    """Both modes in one graph, replayed with other tokens."""
    most, nr = 32, TOKENS
    buffer = deep_ep.Buffer(group, low_latency_mode=True, explicitly_destroy=True)
    job = Job(group, 0, [nr] * group.size())
    x, layout = job.x.clone(), laid_out(buffer, job)

    def both() -> Any:
        given = dict(topk_idx=job.ids, topk_weights=job.weights, num_worst_tokens=nr * job.nr_ranks, **layout)
        rows, _, _, _, handle, _ = buffer.dispatch(x, **given)
        combined = buffer.combine(rows, handle)[0]
        found, _, low, _, hook = buffer.low_latency_dispatch(x, job.ids, most, EXPERTS, use_fp8=False, return_recv_hook=True)
        hook()
        return combined, buffer.low_latency_combine(found, job.ids, job.weights, low)[0]

    for _ in range(2):
        both()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = both()
    for turn in range(20):
        other = Job(group, 50 + turn, [nr] * group.size())
        x.copy_(other.x)
        graph.replay()
        torch.cuda.synchronize()
        check_home(job, outs[0], x, 5e-6)
        assert difference(outs[1], x.float() * job.weights.masked_fill(job.ids < 0, 0).sum(1)[:, None]) < 1e-5
    buffer.destroy()


def masks(group: Any) -> None:
    """The last rank stops; the others mask it when its time is over, and go on without its experts."""
    victim = group.size() - 1
    buffer = deep_ep.Buffer(group, low_latency_mode=True, enable_shrink=True)
    job = Job(group, 5)
    status = torch.full((group.size(),), 7, dtype=torch.int32)
    args = (job.x, job.ids, 32, EXPERTS)
    sent = buffer.low_latency_dispatch(*args, use_fp8=False)
    buffer.low_latency_combine(sent[0], job.ids, job.weights, sent[2])
    buffer.low_latency_query_mask_buffer(status)
    assert not status.any()
    if job.rank == victim:
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    for _ in range(3):
        sent = buffer.low_latency_dispatch(*args, use_fp8=False)
        combined, _, _ = buffer.low_latency_combine(sent[0], job.ids, job.weights, sent[2])
        lost = (job.ids < 0) | (job.ids // job.local == victim)
        assert difference(combined, job.x.float() * job.weights.masked_fill(lost, 0).sum(1)[:, None]) < 1e-5
    buffer.low_latency_query_mask_buffer(status)
    assert status.tolist() == [int(r == victim) for r in range(group.size())]
    print(f"{job.rank} went on\n", end="", flush=True)


class Communicator:
    """As mpi4py's, over gloo."""

    def __init__(self, group: Any):
        self.group = group

    def Get_rank(self) -> int:
        return int(self.group.rank())

    def Get_size(self) -> int:
        return int(self.group.size())

    def allgather(self, mine: Any) -> Any:
        parts: List[Any] = [None] * self.group.size()
        dist.all_gather_object(parts, mine, self.group)
        return parts


def communicator(group: Any) -> None:
    job = Job(group, 8)
    buffer = deep_ep.Buffer(None, comm=Communicator(group), explicitly_destroy=True)
    found = buffer.dispatch(job.x, **laid_out(buffer, job))
    check_home(job, buffer.combine(found[0], found[4])[0], job.x, 5e-6)
    buffer.destroy()
    buffer.destroy()
    try:
        buffer.dispatch(job.x)
    except tern_ep.StateError as error:
        assert "destroyed" in error.text


def bench(group: Any) -> None:
    """Beside itself: every call is timed, of both."""
    from tern_ep.deep_ep import bench as program

    words = "--hidden 512 --experts 16 --topk 2 --tokens 3 --most 16 --rounds 3 --device cpu --json --against tern_ep.deep_ep"
    sys.argv = ["bench", *words.split()]
    program.main()


PARTS = {f.__name__: f for f in (normal, sizes, held, low_latency, refused, killed, masks, communicator, bench, graphs)}


def rank_of(rank: int, nr_ranks: int, room: str, part: str, arguments: List[str]) -> None:
    torch.set_num_threads(1)
    if DEVICE == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
        torch.set_default_device("cuda")
    resource.setrlimit(resource.RLIMIT_CPU, (300, 300))
    backend = "cpu:gloo,cuda:nccl" if DEVICE == "cuda" and torch.cuda.device_count() >= nr_ranks else "gloo"  # NCCL wants a GPU for each
    dist.init_process_group(backend, init_method=f"file://{room}/meeting", rank=rank, world_size=nr_ranks)
    PARTS[part](dist.group.WORLD, *arguments)
    if part not in ("killed", "masks"):
        dist.barrier()
        dist.destroy_process_group()


def forked(rank: int, *arguments: Any) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        rank_of(rank, *arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def play(nr_ranks: int, part: str, arguments: List[str]) -> bool:
    """Whether all ranks ended well."""
    with tempfile.TemporaryDirectory() as room:
        children = [forked(rank, nr_ranks, room, part, arguments) for rank in range(nr_ranks)]
        expected = [0] * nr_ranks
        if part in ("killed", "masks"):
            expected[-1] = -signal.SIGKILL
        if part == "masks":  # the last one is stopped, and would be for ever
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children[:-1]]
            os.kill(children[-1], signal.SIGKILL)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(children[-1], 0)[1]))
        else:
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if codes != expected:
        print(f"{part} {arguments}: {codes}", file=sys.stderr)
    return codes == expected


if __name__ == "__main__":
    ended = [play(int(sys.argv[1]), sys.argv[2], [call]) for call in CALLS] if sys.argv[2] == "killed" else [play(int(sys.argv[1]), sys.argv[2], sys.argv[3:])]
    sys.exit(0 if all(ended) else 1)
