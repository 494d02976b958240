# SPDX-License-Identifier: Apache-2.0
"""What look(), rows() and table() take in, and what they refuse."""

from __future__ import annotations

import array
import ctypes
import sys
import types
from typing import Any

import numpy as np
import pytest
from reference import bf16_encode

import tern_ep
from tern_ep import Dtype
from tern_ep.arrays import look, rows, table


def test_numpy_and_buffers_are_seen_where_they_are() -> None:
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert look(a)[:5] == (a.ctypes.data, (3, 4), (16, 4), "float32", 4)
    b = bytearray(64)
    view = look(b)
    assert view.address == ctypes.addressof(ctypes.c_char.from_buffer(b)) and view.shape == (64,) and view.writable
    assert not look(bytes(64)).writable
    assert look(array.array("f", [1, 2]))[1:5] == ((2,), (4,), "float32", 4)
    assert look(memoryview(a))[:2] == (a.ctypes.data, (3, 4))
    assert look((ctypes.c_uint16 * 8)()).dtype == "uint16"


class _DLManaged(ctypes.Structure):
    pass


class Producer:
    """Hands out memory by DLPack alone, as a library does that this package does not know."""

    def __init__(self, owner: np.ndarray, code: int, bits: int, device: int = 1, strides: Any = None, offset: int = 0):
        self.owner, self.shape = owner, (ctypes.c_int64 * owner.ndim)(*owner.shape)
        self.tensor = tern_ep.arrays._DLTensor(owner.ctypes.data - offset, device, 3, owner.ndim, code, bits, 1, self.shape, None, offset)
        if strides:
            self.strides = (ctypes.c_int64 * owner.ndim)(*strides)
            self.tensor.strides = self.strides

    def __dlpack__(self, stream: Any = None) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b"dltensor", None)


def test_dlpack() -> None:
    memory = np.arange(32, dtype=np.uint16).reshape(4, 8)
    view = look(Producer(memory, 4, 16))
    assert view[:7] == (memory.ctypes.data, (4, 8), (16, 2), "bfloat16", 2, None, True)
    assert look(Producer(memory, 1, 16, offset=64)).address == memory.ctypes.data
    assert look(Producer(memory, 2, 16, strides=(16, 1))).strides == (32, 2)
    assert look(Producer(memory.view(np.uint8), 10, 8)).dtype == "float8_e4m3fn"
    assert look(Producer(memory, 4, 16, device=2)).cuda == 3
    assert rows("x", Producer(memory, 4, 16), 8, Dtype.BF16)[:3] == (4, memory.ctypes.data, 16)
    with pytest.raises(tern_ep.UnsupportedError, match="device type 4"):
        look(Producer(memory, 4, 16, device=4))


def test_numpys_own_dlpack() -> None:
    class Other:
        def __init__(self) -> None:
            self.a = np.ones((2, 4), np.float32)

        def __dlpack__(self) -> Any:
            return self.a.__dlpack__()

    other = Other()
    before = sys.getrefcount(other.a)
    view = look(other)
    during = sys.getrefcount(other.a)
    del view
    after = sys.getrefcount(other.a)
    assert (during, after) == (before + 1, before)  # the capsule, which nobody consumes, lets go of it
    assert look(other)[:5] == (other.a.ctypes.data, (2, 4), (16, 4), "float32", 4)


def test_cuda_array_interface() -> None:
    told = {"shape": (2, 8), "typestr": "<f2", "data": (4096, False), "version": 3}
    view = look(types.SimpleNamespace(__cuda_array_interface__=told))
    assert view[:7] == (4096, (2, 8), (16, 2), "float16", 2, 0, True)


def test_rows_of_every_form() -> None:
    bf16 = bf16_encode(np.ones((3, 16), np.float32))
    for form in (bf16, bf16.view(np.uint8), bytearray(bf16.tobytes()), bf16.tobytes()):
        found = rows("x", form, 16, Dtype.BF16)
        assert (found.nr, found.stride) == (3, 32)
    wide = np.zeros((3, 64), np.float32)
    assert rows("x", wide[:, :16], 16, Dtype.FP32).stride == 256
    assert rows("x", wide[::2, :16], 16, Dtype.FP32)[0] == 2
    assert rows("x", np.zeros((0, 16), np.float32), 16, Dtype.FP32).nr == 0
    assert rows("x", wide, 256, Dtype.BYTES).nr == 3
    assert rows("x", np.zeros((1, 16), np.uint32), 16, Dtype.FP32).nr == 1


REFUSED = [
    (np.zeros((3, 15), np.float32), "float32.3, 15."),
    (np.zeros((3, 16), np.float64), "float64"),
    (np.zeros((3, 16), np.int32), "int32"),
    (np.zeros((3, 32), np.float32)[:, ::2], "strides of .128, 8."),
    (np.zeros((16, 3), np.float32).T, "each in one piece"),
    (np.zeros((3, 16), np.float32)[::-1], "stride of -64"),
    (np.zeros((3, 4, 4), np.float32), "3, 4, 4"),
    (bytearray(63), "uint8.63."),
    (np.float32(1), "float32"),
    (np.zeros((3, 16), ">f4"), "x is >f4"),
    ([[1.0] * 16], "list is no array"),
    (None, "NoneType is no array"),
]


@pytest.mark.parametrize("given,words", REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_rows_refused(given: Any, words: str) -> None:
    with pytest.raises(tern_ep.InvalidError, match=words):
        rows("x", given, 16, Dtype.FP32)


def test_read_only() -> None:
    a = np.zeros((3, 16), np.float32)
    a.flags.writeable = False
    assert rows("x", a, 16, Dtype.FP32).nr == 3
    with pytest.raises(tern_ep.InvalidError, match="out is read-only"):
        rows("out", a, 16, Dtype.FP32, writable=True)


def test_tables() -> None:
    ids = np.zeros((3, 2), np.int32)
    assert table("ids", ids, 3, 2, ("int32",)).address == ids.ctypes.data
    table("ids", np.zeros((0, 2), np.int32), 0, 2, ("int32",))
    for wrong in (ids[:2], ids.astype(np.int16), np.zeros((3, 4), np.int32)[:, :2], np.asfortranarray(ids), np.zeros(6, np.int32)):
        with pytest.raises(tern_ep.InvalidError, match="dense .3, 2. of int32"):
            table("ids", wrong, 3, 2, ("int32",))


def test_empty_is_aligned() -> None:
    for shape in ((0, 8), (1, 3), (7, 5)):
        a = tern_ep.empty(shape, np.float32)
        assert a.shape == shape and a.dtype == np.float32 and (a.ctypes.data % 64 == 0 or not a.size)


def test_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    a = np.ones((2, 16), ml_dtypes.bfloat16)
    assert rows("x", a, 16, Dtype.BF16).nr == 2
    with pytest.raises(tern_ep.InvalidError, match="bfloat16"):
        rows("x", a, 16, Dtype.FP16)
    config = tern_ep.Config(hidden=16, nr_experts=1, topk=1, max_tokens=2)
    with tern_ep.Group.alone() as group, tern_ep.Exchange(group, config, arrays="ml_dtypes") as moe:
        received = moe.dispatch(a, np.zeros((2, 1), np.int32))
        assert received.x.dtype == ml_dtypes.bfloat16
        out = moe.combine(received.x)
        assert out.dtype == ml_dtypes.bfloat16 and (out == a).all()
