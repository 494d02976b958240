# SPDX-License-Identifier: Apache-2.0
"""What is refused, what fails, and what it says."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any, Callable, List

import numpy as np
import pytest
from reference import World, fill_results, judge_combined, judge_received

import tern_ep
from tern_ep import Config, Dtype, Layout, Mode, Phase, Placement, Reduce, Scale, Weights
from tern_ep._library import library

PLAIN = Config(hidden=64, nr_experts=8, topk=2, max_tokens=6, combine_dtype=Dtype.FP32)
X = np.zeros((3, 64), np.uint16)
IDS = np.array([[0, 1], [2, 3], [4, 5]], np.int32)


@pytest.fixture
def group() -> Any:
    with tern_ep.Group.alone() as group:
        yield group


def changed(**settings: Any) -> Config:
    return dataclasses.replace(PLAIN, **settings)


SETTINGS = [
    (dict(hidden=0), "hidden"),
    (dict(hidden=63), "16 bytes"),
    (dict(topk=9), "topk is 9 of 8"),
    (dict(topk=33, nr_experts=64), "33"),
    (dict(nr_slots=17), "nr_slots"),
    (dict(dispatch_dtype=Dtype.FP16), "dtype"),
    (dict(dispatch_dtype=Dtype.FP8_E4M3), "scale"),
    (dict(replica_ranks=2), "replica_ranks is 2"),
    (dict(mode=Mode.LOW_LATENCY, capacity=5), "low-latency"),
    (dict(layout=7), "layout"),
    (dict(max_tokens=-1), "max_tokens is -1; 0 to 4294967295"),
    (dict(max_tokens=2**32), "max_tokens is 4294967296"),
    (dict(capacity=2**64), "capacity"),
    (dict(hidden="wide"), "hidden is 'wide'"),
    (dict(hidden=64.5), "hidden is 64.5"),
    (dict(placement=Placement(8, logical=[0] * 7)), "placement.logical has 7 entries for 8"),
    (dict(placement=Placement(8, logical=[0] * 8)), "expert"),
    (dict(placement=Placement(8, rank=[1] * 8)), "rank"),
]


@pytest.mark.parametrize("settings,words", SETTINGS, ids=[str(s[0]) for s in SETTINGS])
def test_settings_refused(group: tern_ep.Group, settings: Any, words: str) -> None:
    with pytest.raises(tern_ep.InvalidError, match=words) as caught:
        tern_ep.Exchange(group, changed(**settings))
    assert caught.value.code == -1 and caught.value.name == "TERN_ERR_INVALID" and caught.value.report is None
    assert str(caught.value).startswith("TERN_ERR_INVALID: ")
    assert isinstance(caught.value, ValueError)


def test_unknown_arrays(group: tern_ep.Group) -> None:
    with pytest.raises(tern_ep.InvalidError, match='"cupy"; numpy, ml_dtypes, torch'):
        tern_ep.Exchange(group, PLAIN, arrays="cupy")


def with_ids(*ids: Any) -> np.ndarray:
    return np.array(ids, np.int64)


ARGUMENTS: List[Any] = [
    (lambda m: m.dispatch(np.zeros((7, 64), np.uint16), np.zeros((7, 2), np.int32)), "7 tokens.*at most 6"),
    (lambda m: m.dispatch(np.zeros((3, 32), np.uint16), IDS), "x is uint16.3, 32."),
    (lambda m: m.dispatch(X, IDS[:2]), r"topk_ids is int32.2, 2..*dense .3, 2."),
    (lambda m: m.dispatch(X, IDS.astype(np.float32)), "topk_ids is float32"),
    (lambda m: m.dispatch(X, IDS, np.zeros((3, 2))), "topk_weights is float64"),
    (lambda m: m.dispatch(X, IDS, scales=np.zeros((3, 1), np.float32)), "scales are given"),
    (lambda m: m.dispatch(X, with_ids([0, 1], [2, 8], [0, 1])), "8"),
    (lambda m: m.dispatch(X, with_ids([0, 1], [2, -2], [0, 1])), "-2"),
    (lambda m: m.dispatch(X, with_ids([0, 1], [3, 3], [0, 1])), "3"),
    (lambda m: m.dispatch(X, with_ids([0, 2**32], [2, 3], [0, 1])), "4294967296"),
    (lambda m: m.dispatch(X, IDS, slot=1), "slot is 1 of 1"),
    (lambda m: m.dispatch(X, IDS, slot=-1), "slot is -1 of 1"),
    (lambda m: m.dispatch(np.zeros(3 * 64 + 4, np.uint16)[4:].reshape(3, 64), IDS), "aligned"),
    (lambda m: m.dispatch(X, IDS, into_scales=np.zeros((12, 1), np.float32)), "into_x is for"),
    (lambda m: m.dispatch(X, IDS, into_x=np.zeros((11, 64), np.uint16)), "11 rows.*12 dense"),
    (lambda m: m.dispatch(X, IDS, into_x=np.zeros((12, 128), np.uint16)[:, :64]), "256 bytes apart"),
    (lambda m: m.set_wait(-1), "negative"),
]


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("call,words", ARGUMENTS, ids=[str(i) for i in range(len(ARGUMENTS))])
def test_arguments_refused(group: tern_ep.Group, call: Callable[[tern_ep.Exchange], Any], words: str, warm: bool) -> None:
    """Also once the form of good arguments is known. What the library says comes through, and nothing was sent."""
    with tern_ep.Exchange(group, PLAIN) as moe:
        for _ in range(2 * warm):
            moe.dispatch(X, IDS)
            moe.release()
        before = moe.stats()
        check_of_c = library().tern_moe_set_wait(moe.native, -7)  # a text that only the library can replace
        said = library().tern_last_error().decode()
        assert check_of_c < 0 and said
        with pytest.raises(tern_ep.InvalidError, match=words) as caught:
            call(moe)
        assert library().tern_last_error().decode() in (said, caught.value.text)
        assert moe.stats() == before
        received = moe.dispatch(X, IDS)
        np.testing.assert_array_equal(received.x[received.rows["token"] == 2], X[[2, 2]])
        moe.release()


def test_results_too_few_or_of_the_wrong_kind(group: tern_ep.Group) -> None:
    with tern_ep.Exchange(group, PLAIN) as moe:
        received = moe.dispatch(X, IDS)
        assert received.extent == 6
        for y, words in (
            (None, "y is None.*6 positions"),
            (np.zeros((5, 64), np.float32), "5 rows.*6 positions"),
            (np.zeros((6, 64), np.uint16), "y is uint16"),
            (np.zeros((6, 68), np.float32)[:, :64][:, ::-1], "each in one piece"),
        ):
            with pytest.raises(tern_ep.InvalidError, match=words):
                moe.combine(y)
        moe.combine_send(np.zeros((6, 64), np.float32))
        for out, words in ((np.zeros((2, 64), np.float32), "2 rows; 3 tokens"), (bytes(3 * 256), "out is read-only")):
            with pytest.raises(tern_ep.InvalidError, match=words):
                moe.combine_recv(out=out)
        assert moe.combine_recv().shape == (3, 64)


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("mode", list(Mode))
def test_refused_in_the_second_half(mode: Mode, layout: Layout) -> None:
    """Nothing of a refused call comes out of the next one: neither its x nor its results."""
    by_source = layout == Layout.BY_SOURCE
    weights = Weights.PASS if by_source else Weights.COMBINE
    config = changed(mode=mode, layout=layout, reduce=Reduce.EXPERT, weights=weights)
    old, world = World(config, 2, [5, 4], 7), World(config, 2, [5, 4], 8)

    def given(world: World, rank: int) -> Any:
        return world.x[rank], world.ids[rank], world.weights[rank]

    def body(group: tern_ep.Group) -> None:
        rank = group.rank
        with tern_ep.Exchange(group, config) as moe:
            for _ in range(3):
                before = moe.stats()
                for into in (np.zeros((11, 64), np.uint16), bytes(12 * 128), np.zeros((24, 32))):
                    with pytest.raises(tern_ep.InvalidError, match="into_x"):
                        moe.dispatch(*given(old, rank), into_x=into)
                assert moe.stats() == before
                received = moe.dispatch(*given(world, rank))
                judge_received(world, rank, received)
                y, before = moe.empty_y(received), moe.stats()
                y[:] = 1000
                for out in (np.zeros((3, 64), np.float32), bytes(len(world.x[rank]) * 256)):
                    with pytest.raises(tern_ep.InvalidError, match="out"):
                        moe.combine(y, out=out)
                assert moe.stats() == before
                fill_results(world, rank, y)
                judge_combined(world, rank, moe.combine(y))

    tern_ep.run_threads(2, body)


def test_refused_while_going_on() -> None:
    """What was begun goes on with its own arguments, and no others."""
    config = changed(wait_ms=0)
    world, begun = World(config, 2, [5, 4], 3), [threading.Event(), threading.Event()]

    def body(group: tern_ep.Group) -> None:
        rank = group.rank
        x, ids, weights = world.x[rank], world.ids[rank], world.weights[rank]
        with tern_ep.Exchange(group, config) as moe:
            if rank == 0:
                with pytest.raises(tern_ep.WaitTimeoutError):
                    moe.dispatch(x, ids, weights)
                with pytest.raises(tern_ep.InvalidError, match="4 tokens; it was begun with 5"):
                    moe.dispatch(x[:4], ids[:4], weights[:4])
                begun[0].set()
            moe.set_wait(20000)
            assert begun[0].wait(20)
            received = moe.dispatch(x, ids, weights)
            judge_received(world, rank, received)
            y = moe.empty_y(received)
            fill_results(world, rank, y)
            if rank == 0:
                moe.set_wait(0)
                with pytest.raises(tern_ep.WaitTimeoutError):
                    moe.combine(y)
                with pytest.raises(tern_ep.InvalidError, match="y has"):
                    moe.combine(y[1:])
                with pytest.raises(tern_ep.InvalidError, match="out has 4 rows"):
                    moe.combine(y, out=np.zeros((4, 64), np.float32))
                moe.set_wait(20000)
                begun[1].set()
            assert begun[1].wait(20)
            judge_combined(world, rank, moe.combine(y))

    tern_ep.run_threads(2, body)


def test_devices_and_streams_are_refused(group: tern_ep.Group) -> None:
    class Device:
        __cuda_array_interface__ = {"shape": (3, 64), "typestr": "<u2", "data": (4096, False), "version": 3}

    with pytest.raises(tern_ep.InvalidError, match='"numpy" with device CUDA'):
        tern_ep.Exchange(group, changed(device=tern_ep.Device.CUDA))
    with tern_ep.Exchange(group, PLAIN) as moe:
        for call in (lambda: moe.set_sms(4), lambda: moe.set_nr_tokens_at(np.ones(1, np.int32))):
            with pytest.raises(tern_ep.InvalidError, match="not on a device"):
                call()
        moe.status()
        with pytest.raises(tern_ep.UnsupportedError, match="x is in the memory of CUDA device 0"):
            moe.dispatch(Device(), IDS)
        with pytest.raises(tern_ep.UnsupportedError, match="a stream is given"):
            moe.dispatch(X, IDS, stream=1)


def test_order_of_halves(group: tern_ep.Group) -> None:
    with tern_ep.Exchange(group, PLAIN) as moe:
        for call in (moe.dispatch_recv, moe.combine_recv, moe.release):
            with pytest.raises(tern_ep.StateError, match="whose next call is dispatch_send"):
                call()
        moe.dispatch(X, IDS)
        with pytest.raises(tern_ep.StateError, match="combine_send or release") as caught:
            moe.dispatch_send(X, IDS)
        assert caught.value.code == -2
        moe.release()


def test_after_close(group: tern_ep.Group) -> None:
    moe = tern_ep.Exchange(group, PLAIN)
    moe.close()
    moe.close()
    y = np.zeros((0, 64), np.float32)
    calls: List[Callable[[], Any]] = [lambda: moe.dispatch(X, IDS), lambda: moe.dispatch_send(X, IDS), moe.dispatch_recv, moe.release]
    calls += [lambda: moe.combine(y), lambda: moe.combine_send(y), moe.combine_recv, moe.status, moe.stats, moe.memory, lambda: moe.set_wait(5)]
    for call in calls:
        with pytest.raises(tern_ep.StateError, match="exchange is closed"):
            call()
    group.close()
    with pytest.raises(tern_ep.StateError, match="group is closed"):
        tern_ep.Exchange(group, PLAIN)


def test_ranks_that_disagree() -> None:
    def body(group: tern_ep.Group) -> str:
        with pytest.raises(tern_ep.MismatchError, match="hidden") as caught:
            tern_ep.Exchange(group, changed(hidden=64 + 16 * (group.rank == 1)))
        return caught.value.text

    for text in tern_ep.run_threads(3, body):
        assert "64" in text and "80" in text


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("halves", [False, True])
def test_time_out_report_and_repetition(mode: Mode, halves: bool) -> None:
    """Rank 1 is late in both phases. Rank 0 hears so, and goes on waiting."""
    config = changed(mode=mode, wait_ms=20)
    world = World(config, 2, [5, 4], 1)
    heard = [threading.Event(), threading.Event()]

    def patiently(call: Callable[[], Any], event: threading.Event, seen: List[tern_ep.WaitTimeoutError]) -> Any:
        while True:
            try:
                return call()
            except tern_ep.WaitTimeoutError as error:
                seen.append(error)
                event.set()

    def late(group: tern_ep.Group, moe: tern_ep.Exchange) -> None:
        moe.set_wait(30000)
        assert heard[0].wait(20)
        received = moe.dispatch(world.x[1], world.ids[1], world.weights[1])
        y = moe.empty_y(received)
        fill_results(world, 1, y)
        assert heard[1].wait(20)
        judge_combined(world, 1, moe.combine(y))

    def body(group: tern_ep.Group) -> Any:
        seen: List[List[tern_ep.WaitTimeoutError]] = [[], []]
        with tern_ep.Exchange(group, config) as moe:
            if group.rank == 1:
                return late(group, moe)
            x, ids, weights = world.x[0], world.ids[0], world.weights[0]
            if halves and mode == Mode.LOW_LATENCY:
                moe.dispatch_send(x, ids, weights)
                received = patiently(moe.dispatch_recv, heard[0], seen[0])
            else:
                received = patiently(lambda: moe.dispatch(x, ids, weights), heard[0], seen[0])
            judge_received(world, 0, received)
            y = moe.empty_y(received)
            fill_results(world, 0, y)
            judge_combined(world, 0, patiently(lambda: moe.combine(y), heard[1], seen[1]))
        return seen

    seen = tern_ep.run_threads(2, body)[0]
    first, second = seen[0][0], seen[1][0]
    assert first.report is not None and second.report is not None and isinstance(first, TimeoutError)
    assert first.report.phase == (Phase.COUNTS if mode == Mode.HIGH_THROUGHPUT else Phase.DISPATCH)
    assert second.report.phase == Phase.COMBINE
    for error in (first, second):
        assert error.code == -7 and "rank 1" in error.text and "1 of 2 ranks missing" in error.text
        report = error.report
        assert (report.rank, report.peer, report.nr_missing, report.arrived, report.expected) == (0, 1, 1, 1, 2)
        assert report.epoch_expected == 1 and report.epoch_seen == 0 and report.waited_ns >= 20_000_000


def test_a_rank_that_leaves_is_named_though_its_rows_are_still_shown() -> None:
    kept: List[Any] = []

    def body(group: tern_ep.Group) -> None:
        moe = tern_ep.Exchange(group, changed(wait_ms=20000))
        received = moe.dispatch(X, IDS)
        if group.rank == 1:
            kept.append((received.x, received.rows, received.x.copy()))
            moe.close()
            return
        begun = time.monotonic()
        with pytest.raises(tern_ep.PeerLeftError, match="rank 1 left the exchange") as caught:
            moe.combine(np.zeros((received.extent, 64), np.float32))
        assert caught.value.report is not None and caught.value.report.peer == 1
        assert time.monotonic() - begun < 10
        with pytest.raises(tern_ep.PeerLeftError):
            moe.dispatch(X, IDS)

    tern_ep.run_threads(2, body)
    x, rows, copy = kept[0]
    np.testing.assert_array_equal(x, copy)
    assert set(rows["rank"]) == {0, 1}


def test_a_rank_that_fails_inside_the_block_is_noticed_at_once() -> None:
    begun = time.monotonic()

    def body(group: tern_ep.Group) -> None:
        with tern_ep.Exchange(group, changed(wait_ms=20000)) as moe:
            received = moe.dispatch(X, IDS)
            x = received.x
            if group.rank == 0:
                raise KeyError("the expert is broken")
            moe.combine(np.zeros((len(x), 64), np.float32))

    with pytest.raises(KeyError, match="the expert is broken"):
        tern_ep.run_threads(3, body)
    assert time.monotonic() - begun < 10


def test_capacity() -> None:
    config = changed(mode=Mode.HIGH_THROUGHPUT, capacity=8)
    ids = [np.array([[4, 5]] * 3, np.int32), np.array([[4, 5]] * 2, np.int32)]

    def body(group: tern_ep.Group) -> None:
        x = np.zeros((3 - group.rank, 64), np.uint16)
        with tern_ep.Exchange(group, config) as moe:
            with pytest.raises(tern_ep.CapacityError, match="rank 1 would receive more than its capacity of 8"):
                moe.dispatch(x, ids[group.rank])
            n = 2 - group.rank
            received = moe.dispatch(x[:n], ids[group.rank][:n])
            assert received.nr_rows == (6 if group.rank else 0)
            moe.release()

    tern_ep.run_threads(2, body)


def test_combine_against_release() -> None:
    def body(group: tern_ep.Group) -> None:
        with tern_ep.Exchange(group, PLAIN) as moe:
            received = moe.dispatch(X, IDS)
            if group.rank == 0:
                moe.release()
                return
            with pytest.raises((tern_ep.ProtocolError, tern_ep.PeerLeftError)):
                moe.combine(np.zeros((received.extent, 64), np.float32))

    tern_ep.run_threads(2, body)


def test_one_thread_at_a_time() -> None:
    """The call that waits holds the exchange; another thread is refused and harms nothing. Waiting does not hold the interpreter."""
    inside, go_on = threading.Event(), threading.Event()

    def body(group: tern_ep.Group) -> None:
        with tern_ep.Exchange(group, PLAIN) as moe:
            if group.rank == 1:
                assert inside.wait(20) and go_on.wait(20)
                moe.dispatch(X, IDS)
                moe.release()
                return
            moe.dispatch_send(X, IDS)
            waiter = threading.Thread(target=moe.dispatch_recv)
            waiter.start()
            inside.set()
            y = np.zeros((6, 64), np.float32)
            for call in (moe.stats, lambda: moe.dispatch(X, IDS), lambda: moe.combine(y), moe.release, moe.close):
                refused = 0
                while not refused:  # the other one may not have begun
                    try:
                        call()
                    except tern_ep.StateError as error:
                        assert "another thread" in str(error)
                        refused += 1
            go_on.set()
            waiter.join()
            moe.release()

    tern_ep.run_threads(2, body)


def test_fp8_needs_scales(group: tern_ep.Group) -> None:
    config = changed(x_dtype=Dtype.FP8_E4M3, dispatch_dtype=Dtype.FP8_E4M3, scale=Scale.UE8M0)
    x = np.zeros((3, 64), np.uint8)
    with tern_ep.Exchange(group, config) as moe:
        with pytest.raises(tern_ep.InvalidError, match="scales"):
            moe.dispatch(x, IDS)
        with pytest.raises(tern_ep.InvalidError, match="scales is float32"):
            moe.dispatch(x, IDS, scales=np.zeros((3, 1), np.float32))
        with pytest.raises(tern_ep.InvalidError, match="without into_scales"):
            moe.dispatch(x, IDS, scales=np.zeros((3, 1), np.uint8), into_x=np.zeros((12, 64), np.uint8))
        with pytest.raises(tern_ep.StateError):  # none of them has sent
            moe.dispatch_recv()


def test_every_code_has_its_class() -> None:
    for code, kind in tern_ep.errors.CLASSES.items():
        assert kind.code == code and kind("words").name.startswith("TERN_ERR_")
        assert str(kind("words")) == f"{kind('words').name}: words"


def test_late_weights() -> None:
    """Where they cannot travel."""
    with tern_ep.Group.alone() as group, pytest.raises(tern_ep.UnsupportedError, match="late_weights: device is 0"):
        tern_ep.Exchange(group, tern_ep.Config(hidden=8, nr_experts=2, topk=1, max_tokens=1, mode=tern_ep.Mode.LOW_LATENCY, late_weights=True))
