# SPDX-License-Identifier: Apache-2.0
"""What a call costs in Python functions, counted, so that it does not grow unnoticed; and that calls keep nothing of the caller's.
What it costs in time: scripts/calls.sh."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from typing import Any, Callable, Dict, List

import numpy as np
import pytest

import tern_ep
from tern_ep import Config, Layout, Mode, Reduce, Weights
from tern_ep._calls import Calls, Reader
from tern_ep.arrays import _DLTensor
from tern_ep.exchange import Arguments

PLAIN = Config(hidden=64, nr_experts=8, topk=2, max_tokens=6)


def inputs(nr_tokens: int = 3) -> Any:
    x = np.full((nr_tokens, 64), 0x3F80, np.uint16)
    return x, np.array([[0, 1]] * nr_tokens, np.int32), np.ones((nr_tokens, 2), np.float32)


def counted(function: Callable[[], Any]) -> Dict[str, int]:
    """Calls of Python functions and of compiled ones."""
    found = {"call": 0, "c_call": 0}

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event in found:
            found[event] += 1

    gc.collect()  # what other tests have left would be counted when it goes
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    found["call"] -= 1  # the function itself
    found["c_call"] -= 1  # setprofile
    return found


@pytest.mark.parametrize("given_out", [True, False])
def test_calls_on_the_fast_path(given_out: bool) -> None:
    """A pair over arrays of known shapes: what Python runs. More is allowed only for a reason."""
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN) as moe:
        out = np.zeros((3, 64), np.uint16) if given_out else None

        def pair(given: Any = inputs()) -> None:
            moe.combine(moe.dispatch(*given).x, out=out)

        pair()
        warm = counted(pair)
        fresh = inputs()
        assert counted(lambda: pair(fresh))["call"] == warm["call"] + 1, "new arrays of the same shapes are looked at again"
        assert warm["call"] <= (10 if given_out else 15) and warm["c_call"] <= (6 if given_out else 11), warm


def told(function: Callable[[], Any]) -> Any:
    try:
        function()
    except (tern_ep.Error, TypeError) as error:
        return type(error), str(error)
    return None


class Tensor(np.ndarray):  # type: ignore[type-arg]
    """An array of a framework that has DLPack's exchange functions."""

    requires_grad = False


class Taken:
    """A tensor that was handed over: struct DLManagedTensorVersioned."""

    def __init__(self, managed: int) -> None:
        words = (ctypes.c_uint64 * 4).from_address(managed)
        self.version, self.flags, self._managed = words[0], words[3], managed
        self._delete = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(words[2])
        t = _DLTensor.from_address(managed + 32)
        self.type = t.code, t.bits, t.lanes, t.device_type, t.device_id
        self.shape, self.strides = t.shape[: t.ndim], t.strides[: t.ndim]
        self.bytes = ctypes.string_at(t.data + t.byte_offset, self.shape[0] * self.shape[1] * t.bits // 8) if t.data else b""

    def __del__(self) -> None:
        self._delete(self._managed)


class Framework:
    """Those functions, which count how often they are asked."""

    CODES = {"i": 0, "u": 1, "f": 2}

    def __init__(self, major: int = 1) -> None:
        self.looks = self.streams = 0
        self.stream = 0
        self.fails = False
        self._look = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_DLTensor))(self.look)
        self._ask = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))(self.ask)
        self._take = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))(self.take)
        words = (ctypes.c_uint64 * 7)(major | 3 << 32, 0, 0, 0, 0)
        words[4], words[5], words[6] = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in (self._take, self._look, self._ask))
        self.table = words
        self.kept: Any = None

    def look(self, array: Any, told: Any) -> int:
        self.looks += 1
        if self.fails:
            return -1
        shape = (ctypes.c_int64 * 4)(*array.shape)
        strides = (ctypes.c_int64 * 4)(*(step // array.itemsize for step in array.strides))
        self.kept = shape, strides  # a framework has them in its tensor
        t = told[0]
        t.data, t.device_type, t.device_id, t.ndim = array.ctypes.data, 1, 0, array.ndim
        t.code, t.bits, t.lanes, t.byte_offset = self.CODES[array.dtype.kind], 8 * array.itemsize, 1, 0
        t.shape, t.strides = (ctypes.cast(of, ctypes.POINTER(ctypes.c_int64)) for of in (shape, strides))
        return 0

    def ask(self, device_type: int, device: int, told: Any) -> int:
        self.streams += 1
        assert (device_type, device) == (2, 5)
        told[0] = self.stream
        return 0

    def take(self, managed: int, made: Any) -> int:
        if self.fails:
            return -1
        taken = Taken(managed)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(taken))
        made[0] = id(taken)
        return 0

    def reader(self, device: int = -1) -> Reader:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self.capsule = new(ctypes.addressof(self.table), b"dlpack_exchange_api", None)
        return Reader(Tensor, None, None, False, self.capsule, device)

    def take_over(self, moe: tern_ep.Exchange, device: int = -1) -> Any:
        """From here on the exchange's arrays are read by this framework."""
        reader = self.reader(device)
        moe._slots = tuple(Arguments(reader, slot.number) for slot in moe._slots)
        moe._calls = Calls(reader, moe._busy, moe._slots, tern_ep.Received, moe.native, device >= 0)
        return [array.view(Tensor) for array in (*inputs(), np.zeros((3, 64), np.uint16))]


def test_a_framework_is_asked_once_for_each_array(monkeypatch: pytest.MonkeyPatch) -> None:
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN) as moe:
        torch = Framework()
        *given, out = torch.take_over(moe)
        y = moe.dispatch(*given).x.view(Tensor)
        moe.combine(y, out=out)
        looked: List[str] = []
        for name in [name for name in dir(moe) if name.startswith("_look_at_")]:
            monkeypatch.setattr(moe, name, lambda *_, name=name: looked.append(name))
        torch.looks = 0
        moe.dispatch(*given)
        assert (torch.looks, looked) == (3, [])
        moe.combine(y, out=out)
        assert (torch.looks, looked) == (5, [])
        assert (np.asarray(out) == 0x4000).all() and torch.streams == 0


def test_a_framework_that_cannot_tell() -> None:
    """Python looks, each time, and says what is wrong."""
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN) as moe:
        torch = Framework()
        *given, out = torch.take_over(moe)
        for turn in ("told", "not told", "told"):
            torch.fails = turn == "not told"
            assert (moe.combine(moe.dispatch(*given).x.view(Tensor), out=out) == 0x4000).all()
        torch.fails = True
        with pytest.raises(tern_ep.InvalidError, match="^TERN_ERR_INVALID: x is uint16.3, 63. with strides"):
            moe.dispatch(given[0][:, :63], *given[1:])


def test_other_versions_of_the_table() -> None:
    """An older one behind a newer is found; one alone of which nothing is known is not asked."""
    assert Framework().reader().direct and not Framework(major=2).reader().direct
    new, old = Framework(major=2), Framework()
    new.table[1] = ctypes.addressof(old.table)
    assert new.reader().direct
    with pytest.raises(ValueError):
        Reader(Tensor, None, None, False, _capsule(b"another"), -1)


def _capsule(name: bytes) -> Any:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(1, name, None)


def test_the_current_stream_is_asked_for() -> None:
    """On each call, of the exchange's device; the library hears of another one. This exchange has no device, and the library says so."""
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN) as moe:
        torch = Framework()
        *given, out = torch.take_over(moe, device=5)
        moe.combine(moe.dispatch(*given).x.view(Tensor), out=out)
        assert torch.streams == 2
        torch.stream = 4096
        with pytest.raises(tern_ep.InvalidError, match="set_stream: this exchange is not on a device"):
            moe.dispatch(*given)
        moe.dispatch(*given, stream=0)
        moe.release(stream=0)
        assert torch.streams == 3


def test_another_form_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a second look skips depends on shape, strides, type and writability; each change is refused as at first."""
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN) as moe:
        x, ids, weights = inputs()
        read_only = np.zeros((3, 64), np.uint16)
        read_only.flags.writeable = False
        moe.combine(moe.dispatch(x, ids, weights).x, out=np.zeros((3, 64), np.uint16))
        for bad in ((x.astype(np.float32), ids, weights), (x[:, ::2], ids, weights), (x[:2], ids, weights), (x, ids.astype(np.int16), weights)):
            with pytest.raises(tern_ep.InvalidError):
                moe.dispatch(*bad)
            y = moe.dispatch(x, ids, weights).x  # the refused call has sent nothing, and left no form behind
            with pytest.raises(tern_ep.InvalidError, match="read-only"):
                moe.combine(y, out=read_only)
            with pytest.raises(tern_ep.InvalidError, match="y has 2 rows"):
                moe.combine(y[:2])
            assert (moe.combine(y) == 0x4000).all()  # 1 from each of two experts


def test_slots_and_numbers_that_are_none() -> None:
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN) as moe:
        call: Any = moe.dispatch
        for slot in (-1, 1, 2**40, 2**80, -(2**80)):
            with pytest.raises((tern_ep.InvalidError, OverflowError)):
                call(*inputs(), slot=slot)
        for slot in (None, "0", 0.0):
            with pytest.raises(TypeError):
                call(*inputs(), slot=slot)
        with pytest.raises(TypeError):
            call(*inputs(), tag="layer")
        with pytest.raises(tern_ep.UnsupportedError, match="a stream is given"):
            call(*inputs(), stream=0)
        with pytest.raises(TypeError):
            moe._calls.dispatch(moe, 0)
        assert (moe.combine(call(*inputs()).x) == 0x4000).all()


def test_rows_outlive_their_exchange_but_not_their_turn() -> None:
    with tern_ep.Group.alone() as group:
        moe = tern_ep.Exchange(group, PLAIN)
        received = moe.dispatch(*inputs())
        x = received.x
        assert x is received.x
        moe.close()
        with pytest.raises(tern_ep.StateError, match="received.x: these rows were given back by combine or release of slot 0"):
            received.x
        with pytest.raises(tern_ep.StateError, match="^TERN_ERR_STATE: exchange is closed$"):
            moe.dispatch(*inputs())
        assert (x == 0x3F80).all()
        alive = weakref.ref(moe)
        del moe
        assert alive() is not None, "what was received holds its exchange"
        del received
        assert alive() is None


def test_no_call_leaks() -> None:
    """Neither memory nor references: of what is given, and of what the calls keep for themselves."""
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, PLAIN) as moe:
        out = np.zeros((3, 64), np.uint16)
        given = inputs()
        bad = np.zeros((3, 63), np.uint16)

        def rounds() -> None:
            for _ in range(400):
                received = moe.dispatch(*given)
                received.counts, received.offsets, received.rows, received.scales
                told(lambda: moe.combine(received.x, out=bad))
                moe.combine(received.x, out=out, unweighted=True)
                told(lambda: moe.dispatch(bad, *given[1:]))

        rounds()
        gc.collect()
        before = [sys.getrefcount(one) for one in (*given, out, bad, None, moe, tern_ep.Received, moe._slots[0])]
        blocks = sys.getallocatedblocks()
        rounds()
        gc.collect()
        after = [sys.getrefcount(one) for one in (*given, out, bad, None, moe, tern_ep.Received, moe._slots[0])]
        assert [abs(a - b) < 100 for a, b in zip(before, after)] == [True] * len(after), (before, after)
        assert sys.getallocatedblocks() - blocks < 300


@pytest.mark.parametrize("mode", list(Mode))
def test_nothing_of_a_call_is_kept(mode: Mode) -> None:
    config = Config(hidden=64, nr_experts=8, topk=2, max_tokens=6, mode=mode, layout=Layout.BY_SOURCE, reduce=Reduce.EXPERT, weights=Weights.PASS)
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, config) as moe:
        given = list(inputs())
        alive = [weakref.ref(a) for a in given]
        into: Any = [moe.empty_x()[0]] if mode == Mode.LOW_LATENCY else []
        alive += [weakref.ref(a) for a in into]
        received = moe.dispatch(*given, **({"into_x": into[0]} if into else {}))
        given.clear()
        into.clear()
        assert [ref() is None for ref in alive[:3]] == [True] * 3
        y = moe.empty_y(received)
        alive.append(weakref.ref(y))
        del received
        moe.combine(y)
        del y
        assert all(ref() is None for ref in alive)


def test_what_a_combine_takes_along() -> None:
    """Is its own, whole or in halves: nothing is kept behind it, and the next one goes by what it says itself."""
    config = Config(hidden=64, nr_experts=8, topk=2, max_tokens=6, reduce=Reduce.HOME, combine_floats=True)
    x, ids, weights = inputs()
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, config) as moe:
        for halves in (False, True) * 3:
            for factor, along in ((1.0, {}), (2.0, {"unweighted": True}), (2.0, {"unweighted": True}), (4.0, {"topk_weights": 2 * weights}), (1.0, {})):
                received = moe.dispatch(x, ids, weights / 2)
                floats, out_floats = np.arange(received.extent, dtype=np.float32), np.zeros((3, 2), np.float32)
                given: Any = {**along, "floats": floats, "out_floats": out_floats} if along else {}
                alive = [weakref.ref(a) for a in (floats, out_floats)]
                y = received.x.copy()
                if halves:
                    moe.combine_send(y, **given)
                    out = moe.combine_recv()
                else:
                    out = moe.combine(y, **given)
                assert (out.astype(np.uint32) << 16).view(np.float32).tolist() == [[factor] * 64] * 3
                assert not along or sorted(out_floats.flatten()) == [0, 1, 2, 3, 4, 5]
                given.clear()
                floats = out_floats = None
                assert all(ref() is None for ref in alive)
