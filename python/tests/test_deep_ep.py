# SPDX-License-Identifier: Apache-2.0
"""deep_ep over Tern, on CPU ranks over gloo: against what every rank knows of all tokens, within deep_ep's own bounds. Skipped where
torch is not installed."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Tuple

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from test_calls import counted  # noqa: E402

import tern_ep  # noqa: E402
from tern_ep import deep_ep  # noqa: E402
from tern_ep._library import library  # noqa: E402
from tern_ep.deep_ep.streams import OnCuda  # noqa: E402
from tern_ep.deep_ep.normal import Normal  # noqa: E402

PROGRAM = Path(__file__).with_name("deep_ep_ranks.py")


def run(nr_ranks: int, part: str, wait_ms: int = 30000, device: str = "cpu") -> str:
    """Waits are bounded by wait_ms, loops by a limit of processor time that ranks set themselves."""
    package = str(Path(tern_ep.__file__).resolve().parents[1])
    env = dict(os.environ, TERN_LIBRARY=str(Path(library().path).resolve()), PYTHONPATH=package)
    env.update(TERN_DEEP_EP_WAIT_MS=str(wait_ms), TERN_TEST_DEVICE=device)
    ended = subprocess.run([sys.executable, str(PROGRAM), str(nr_ranks), part], env=env, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("nr_ranks", [2, 3, 4])
def test_normal(nr_ranks: int) -> None:
    run(nr_ranks, "normal")


@pytest.mark.parametrize("nr_ranks", [2, 4])
def test_low_latency(nr_ranks: int) -> None:
    run(nr_ranks, "low_latency")


def test_sizes() -> None:
    run(4, "sizes")


def test_held() -> None:
    run(3, "held")


def test_refused() -> None:
    run(3, "refused")


def test_communicator() -> None:
    run(2, "communicator")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("part", ["normal", "sizes", "held", "low_latency", "graphs"])
def test_on_gpus(part: str) -> None:
    run(2, part, device="cuda")


CALLS = ["making", "dispatch", "grown", "cached", "combine", "combine again", "low_latency_dispatch", "hook", "low_latency_combine", "combine's hook"]


def test_killed() -> None:
    """In each call, among them those that make exchanges."""
    told = run(3, "killed").splitlines()
    assert sorted(told) == sorted(f"{call}: {rank} names 2" for call in CALLS for rank in (0, 1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_killed_on_gpus() -> None:
    """The call names the dead rank, or the next one does: no kernel waits on."""
    assert sorted(run(2, "killed", device="cuda").splitlines()) == sorted(f"{call}: 0 names 1" for call in CALLS)


def test_masks() -> None:
    assert sorted(run(3, "masks", wait_ms=1000).splitlines()) == ["0 went on", "1 went on"]


# ---- without ranks -------------------------------------------------------------------------------------------------


class Alone:
    """A group of one rank."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1


@pytest.fixture
def buffer(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(torch.distributed, "all_gather_object", lambda parts, mine, group: parts.__setitem__(0, mine))
    made = deep_ep.Buffer(Alone(), low_latency_mode=True, explicitly_destroy=True)
    yield made
    made.destroy()


def test_events(buffer: Any) -> None:
    event = buffer.capture()
    assert isinstance(event, deep_ep.EventOverlap) and isinstance(event.event, deep_ep.EventHandle)
    called = []
    event.register_hook_after_wait(lambda: called.append(1))
    with pytest.raises(tern_ep.StateError, match="hook_after_wait"):
        event.register_hook_after_wait(print)
    with event(release_handle=True):
        assert not called
    assert called == [1] and event.event is None
    with pytest.raises(tern_ep.StateError, match="async_finish"):
        event.current_stream_wait()
    assert buffer.get_comm_stream() is not None


def test_gradients(buffer: Any) -> None:
    """Tensors of autograd are taken as they come inside its functions, and what comes back has no history."""
    x = torch.ones((4, 64), dtype=torch.bfloat16, requires_grad=True)
    ids = torch.tensor([[0], [1], [-1], [1]])
    weights = torch.ones((4, 1), requires_grad=True)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, 2)
    found, _, recv_weights, counts, handle, _ = buffer.dispatch(x, None, per_rank, None, in_rank, per_expert, ids, weights)
    assert found.shape == (3, 64) and not found.requires_grad and not recv_weights.requires_grad and counts == [1, 2]
    combined, summed, _ = buffer.combine(found.requires_grad_(), handle, recv_weights.requires_grad_())
    assert combined[:, 0].tolist() == [1, 1, 0, 1] and summed[:, 0].tolist() == [1, 1, 0, 1]


def test_calls_on_the_fast_path(buffer: Any) -> None:
    """Python's share of each call, in functions, Python's and compiled ones. More is allowed only for a reason."""
    x, ids, weights = torch.ones((3, 128), dtype=torch.bfloat16), torch.tensor([[0, 1]] * 3), torch.ones((3, 2))
    out, left = torch.empty_like(x), {}

    def low_latency(fp8: bool = False) -> None:
        rows, _, handle, _, _ = buffer.low_latency_dispatch(x, ids, 4, 2, use_fp8=fp8)
        buffer.low_latency_combine(left["y"] if fp8 else rows, ids, weights, handle, out=out)

    def layout() -> None:
        left["layout"] = buffer.get_dispatch_layout(ids, 2)

    def dispatch() -> None:
        ranks, _, experts, there, _ = left["layout"]
        left["rows"], _, _, _, left["handle"], _ = buffer.dispatch(x, None, ranks, None, there, experts, ids, weights)

    left["y"] = torch.zeros((2, 4, 128), dtype=torch.bfloat16)
    cases: Any = [
        ("pair", low_latency, 4, 5),
        ("pair, FP8", lambda: low_latency(True), 5, 5),
        ("get_dispatch_layout", layout, 11, 10),
        ("dispatch", dispatch, 38, 44),
        ("dispatch, handle", lambda: buffer.dispatch(x, handle=left["handle"]), 42, 28),
        ("combine", lambda: buffer.combine(left["rows"], left["handle"]), 14, 8),
    ]
    for name, call, most, most_compiled in cases:
        for _ in range(3):
            call()
        found = counted(call)
        assert found["call"] <= most and found["c_call"] <= most_compiled, (name, found)


def test_calls_that_differ_from_those_before(buffer: Any) -> None:
    """Low latency, of which what comes as it came before takes a compiled way: whatever else comes is looked at, and refused as at first."""
    ids, weights = torch.tensor([[0, 1], [1, 0], [-1, 1]]), torch.tensor([[0.5, 0.25], [1.0, 2.0], [3.0, 1.0]])
    sums = torch.tensor([0.75, 3.0, 1.0])

    def pair(x: Any, ids: Any, weights: Any, expected: Any, out: Any = None) -> None:
        rows, counts, handle, event, hook = buffer.low_latency_dispatch(x, ids, 4, 2, use_fp8=False)
        assert hook is None and isinstance(event, deep_ep.EventOverlap)
        assert counts.tolist() == [int((ids == 0).sum()), int((ids == 1).sum())]
        combined, _, _ = buffer.low_latency_combine(rows, ids, weights, handle, out=out)
        assert torch.equal(combined.float(), expected) and (out is None or combined.data_ptr() == out.data_ptr())

    def of(nr: int, value: float) -> Tuple[Any, Any]:
        x = torch.full((nr, 128), value, dtype=torch.bfloat16)
        return x, (x.float() * sums[:nr, None]).to(torch.bfloat16).float()

    for value in (1.0, 2.0, 4.0):  # in both slots, and again
        x, expected = of(3, value)
        pair(x, ids, weights, expected)
        pair(x, ids, weights, expected, torch.empty_like(x))
    for nr in (2, 3, 1, 3):
        x, expected = of(nr, 8.0)
        pair(x, ids[:nr], weights[:nr], expected)
    x, expected = of(3, 0.5)
    pair(x, ids.to(torch.int32).long(), weights.clone(), expected)
    for bad in (x.float(), x[:, :64], x[:2], x.T.contiguous().T):
        with pytest.raises(tern_ep.Error):
            buffer.low_latency_dispatch(bad, ids, 4, 2, use_fp8=False)
    rows, _, handle, _, _ = buffer.low_latency_dispatch(x, ids, 4, 2, use_fp8=False)
    for bad_weights in (weights[:2], weights.double(), weights[:, :1]):
        with pytest.raises(tern_ep.Error):
            buffer.low_latency_combine(rows, ids, bad_weights, handle)
    with pytest.raises(tern_ep.Error):
        buffer.low_latency_combine(rows[:1], ids, weights, handle)
    combined, _, _ = buffer.low_latency_combine(rows, ids, weights, handle)
    assert torch.equal(combined.float(), expected)


def test_a_round_in_flight_is_collected(buffer: Any) -> None:
    """What is compiled holds its exchange's lane, which holds the round."""
    x, ids, weights = torch.ones((3, 128), dtype=torch.bfloat16), torch.tensor([[0, 1]] * 3), torch.ones((3, 2))
    for _ in range(3):
        rows, _, handle, _, _ = buffer.low_latency_dispatch(x, ids, 4, 2, use_fp8=False)
        buffer.low_latency_combine(rows, ids, weights, handle)
    left = buffer.low_latency_dispatch(x, ids, 4, 2, use_fp8=False)
    lanes = [weakref.ref(lane) for lane in buffer._low_latency._lanes.values()]
    assert len(lanes) == 1 and lanes[0]() is not None
    buffer._low_latency._lanes.clear()
    buffer._low_latency.plain.clear()
    handle = rows = None
    gc.collect()
    assert lanes[0]() is not None and torch.equal(left[0][0, :3], x)  # the handle's
    left = None
    gc.collect()
    assert lanes[0]() is None


def rounds_of(buffer: Any) -> Any:
    """The exchange of normal mode that was made last."""
    return list(buffer._normal._made.values())[-1]


def three_tokens(buffer: Any) -> Tuple[Any, Any, Callable[[], Any]]:
    """Their rows and weights, and a dispatch of them in normal mode, to both of two experts."""
    x, ids, weights = torch.arange(12, dtype=torch.bfloat16).view(3, 4).repeat(1, 32), torch.tensor([[0, 1]] * 3), torch.rand((3, 2))
    ranks, _, experts, there, _ = buffer.get_dispatch_layout(ids, 2)
    return x, weights, lambda: buffer.dispatch(x, None, ranks, None, there, experts, ids, weights)


def test_slots_are_given_back(buffer: Any) -> None:
    """By whoever has the last view of rows or weights, in whatever thread; also of weights that a combine took along."""
    x, weights, dispatch = three_tokens(buffer)
    for _ in range(5):
        rows, _, recv_weights, _, handle, _ = dispatch()
        slot = rounds_of(buffer).open_slot
        assert slot and rounds_of(buffer).places.held() == 1 << slot
        _, summed, _ = buffer.combine(rows, handle, topk_weights=recv_weights)
        assert torch.equal(summed, weights)
        rows = recv_weights = None
        assert rounds_of(buffer).places.held() == 0
    rows, _, _, _, handle, _ = dispatch()
    last = rows[1:, 5]
    rows = None
    assert rounds_of(buffer).places.held() and torch.equal(last, x[1:, 5])
    views = [last]
    last = None
    thread = threading.Thread(target=views.clear)
    thread.start()
    thread.join()
    assert rounds_of(buffer).places.held() == 0
    kept = [dispatch()[0] for _ in range(6)]
    assert len({tensor.data_ptr() for tensor in kept}) == 6 and all(torch.equal(tensor, x) for tensor in kept)
    buffer.combine(kept[-1], dispatch()[4])
    assert all(torch.equal(tensor, x) for tensor in kept)


def test_rows_lie_in_place_with_handles_in_turn(buffer: Any) -> None:
    """As training has it: a dispatch and one by its handle, each with a combine, whose rows and weights the next ones replace."""
    x, _, dispatch = three_tokens(buffer)
    slots = []
    recv_weights = rows = None
    for _ in range(6):
        rows, _, recv_weights, _, handle, _ = dispatch()
        slots.append(rounds_of(buffer).open_slot)
        buffer.combine(rows, handle)
        rows = buffer.dispatch(x, handle)[0]
        slots.append(rounds_of(buffer).open_slot)
        buffer.combine(rows, handle)
    assert recv_weights is not None and all(slots[1:])


def test_rows_outlive_their_buffer(buffer: Any) -> None:
    x, ids, weights = torch.ones((3, 128), dtype=torch.bfloat16), torch.tensor([[0, 1]] * 3), torch.rand((3, 2))
    ranks, _, experts, there, _ = buffer.get_dispatch_layout(ids, 2)
    rows, recv_ids, recv_weights, _, handle, _ = buffer.dispatch(x, None, ranks, None, there, experts, ids, weights)
    buffer.destroy()
    gc.collect()
    assert torch.equal(rows, x) and torch.equal(recv_weights, weights) and torch.equal(recv_ids, ids)
    assert handle[3].tolist() == [0, 1, 2] and handle[0].tolist() == [[3]]


def test_handles_keep_their_ids(buffer: Any) -> None:
    """Of a dispatch in BF16, for rows in FP8, whatever has become of topk_idx."""
    x, ids = torch.ones((3, 128), dtype=torch.bfloat16), torch.tensor([[0, 1], [-1, -1], [1, -1]])
    ranks, _, experts, there, _ = buffer.get_dispatch_layout(ids, 2)
    handle = buffer.dispatch(x, None, ranks, None, there, experts, ids, torch.ones((3, 2)))[4]
    ids.fill_(-1)
    rows, scales = buffer.dispatch((x.to(torch.float8_e4m3fn), torch.ones((3, 1))), handle=handle)[0]
    assert rows.shape == (2, 128) and scales.shape == (2, 1) and bool((rows.float() == 1).all())
    assert handle[3].tolist() == [0, 2] and handle[-3].tolist() == [0, 2] and handle[:2][0].tolist() == [[2]]


def test_streams_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of the current stream is never another thread's."""

    class Raced(OnCuda):
        @property
        def _known(self) -> Any:
            return 2, "another thread's"

        @_known.setter
        def _known(self, found: Any) -> None:
            """Another thread comes right after."""

    on = Raced.__new__(Raced)
    on._index, on.comm = 0, "the shim's"
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 1, raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: "this one's")
    assert on._current() == "this one's"
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 1)
    with pytest.raises(tern_ep.InvalidError, match="device 0, and 1 is the current one"):
        on._current()

def test_order_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls on one stream leave nothing behind; the first on another waits for that stream, and from then on calls for each other."""
    told = []

    class Stream:
        def __init__(self, address: int):
            self.address = address

        def wait_stream(self, other: Any) -> None:
            told.append((self.address, "waits for all of", other.address))

        def wait_event(self, event: Any) -> None:
            told.append((self.address, "waits for the call on", event.on))

    class Event:
        def record(self, stream: Any) -> None:
            self.on = stream.address

    streams = {address: Stream(address) for address in (1, 2, 3)}
    now = 1
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: now, raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: streams[now])
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: None)
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False, raising=False)
    on = OnCuda.__new__(OnCuda)
    on._index, on.comm, on._known, on._last, on._done = 0, streams[3], (None, None), None, Event()
    seen = []
    for now, apart in ((1, False), (1, False), (1, False), (2, False), (2, False), (1, False), (1, True), (1, False)):
        with on.call(None, apart) as call:
            seen.append(call.stream.address)
    assert seen == [1, 1, 1, 2, 2, 1, 3, 1]
    assert told == [
        (2, "waits for all of", 1),
        (1, "waits for the call on", 2),
        (3, "waits for all of", 1),
        (3, "waits for the call on", 1),
        (1, "waits for the call on", 3),
    ]


def test_settings() -> None:
    assert deep_ep.topk_idx_t == torch.int64 and deep_ep.Buffer.num_sms == 20 and deep_ep.Buffer.is_sm90_compiled()
    deep_ep.Buffer.set_num_sms(24)
    try:
        assert deep_ep.Buffer.get_dispatch_config(7).num_sms == deep_ep.Buffer.get_combine_config(8).num_sms == 24
    finally:
        deep_ep.Buffer.set_num_sms(20)
    config = deep_ep.Config(24, 6, 256, 6, 128)
    assert (config.num_sms, config.num_max_nvl_chunked_recv_tokens, config.num_max_rdma_chunked_recv_tokens) == (24, 256, 128)
    assert config.get_nvl_buffer_size_hint(1024, 8) == config.get_rdma_buffer_size_hint(1024, 8) == 0


def test_many_ranks() -> None:
    """Nodes of 8 ranks in the layout; tokens that go to ranks without top-k, of which there may be more than one token can go to."""
    normal = Normal(SimpleNamespace(rank=0, nr_ranks=40))
    ids = torch.rand((50, 80)).argsort(1)[:, :4].clone()
    ids[torch.rand((50, 4)) < 0.3] = -1
    per_rank, per_node, per_expert, in_rank = normal.layout(ids, 80)
    assert per_expert.tolist() == [int((ids == e).sum()) for e in range(80)]
    assert per_rank.tolist() == [int(((ids >= 0) & (ids // 2 == r)).any(1).sum()) for r in range(40)]
    assert per_node.tolist() == [int(((ids >= 0) & (ids // 16 == n)).any(1).sum()) for n in range(5)]
    ranks = normal._ids_of_ranks(in_rank)
    assert ranks.shape == (50, 32) and ranks.dtype == torch.int32
    assert [set(row.tolist()) - {-1} for row in ranks] == [set(row.nonzero()[:, 0].tolist()) for row in in_rank]
    with pytest.raises(tern_ep.InvalidError, match="is_token_in_rank"):
        normal._ids_of_ranks(torch.ones((1, 40), dtype=torch.bool))


def test_install() -> None:
    """In processes of their own, as sys.modules is everybody's."""
    program = """
import sys, types
import tern_ep, tern_ep.deep_ep
sys.modules["deep_ep"] = types.ModuleType("deep_ep")
try:
    tern_ep.deep_ep.install()
    raise SystemExit("another deep_ep was there")
except tern_ep.StateError as error:
    assert "imported already" in error.text
del sys.modules["deep_ep"]
tern_ep.deep_ep.install()
tern_ep.deep_ep.install()
import deep_ep, deep_ep.utils, importlib.util
from deep_ep.utils import EventHandle, EventOverlap
from deep_ep import Buffer, Config
assert Buffer is tern_ep.deep_ep.Buffer and importlib.util.find_spec("deep_ep")
"""
    env = dict(os.environ, TERN_LIBRARY=str(Path(library().path).resolve()), PYTHONPATH=str(Path(tern_ep.__file__).resolve().parents[1]))
    subprocess.run([sys.executable, "-c", program], env=env, check=True)


def test_bench() -> None:
    """Beside itself: every call is timed, of both."""
    rows = [json.loads(line) for line in run(2, "bench").splitlines()]
    assert len(rows) == 12 and all(row["tern"] > 0 and row["tern_ep.deep_ep"] > 0 for row in rows)
