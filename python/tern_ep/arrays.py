# SPDX-License-Identifier: Apache-2.0
"""Looks at other people's arrays, and shows the library's memory as arrays.

Taken in, without a copy: numpy arrays (those of ml_dtypes too), torch tensors, anything with DLPack, with
__cuda_array_interface__ or with the buffer protocol. What is looked at is an address, a shape, strides, an element type and
a device; nothing is converted.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import functools
import math
import sys
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import numpy as np
import numpy.typing as npt

from ._calls import Reader
from .errors import InvalidError, UnsupportedError

Array = Any
"""Whatever look() takes in."""


class Dtype(enum.IntEnum):
    """Element types of rows: enum tern_dtype."""

    BF16 = 1
    FP16 = 2
    FP32 = 3
    FP8_E4M3 = 4
    """The OCP "fn" format: no infinity, largest 448."""
    BYTES = 5
    """Opaque: payload_bytes a row, not looked at."""


ELEMENT_BYTES = {Dtype.BF16: 2, Dtype.FP16: 2, Dtype.FP32: 4, Dtype.FP8_E4M3: 1, Dtype.BYTES: 1}

# What an element type is called in numpy, ml_dtypes and torch. numpy has no BF16 and no FP8: there its bits go as unsigned integers.
NAMES = {
    Dtype.BF16: "bfloat16",
    Dtype.FP16: "float16",
    Dtype.FP32: "float32",
    Dtype.FP8_E4M3: "float8_e4m3fn",
    Dtype.BYTES: "uint8",
}
BITS = {1: "uint8", 2: "uint16", 4: "uint32"}


class View(NamedTuple):
    """An array as the library needs to know it."""

    address: int
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]
    """In bytes."""
    dtype: str
    item_bytes: int
    cuda: Optional[int]
    """The CUDA device's number; None for host memory."""
    writable: bool
    owner: Any
    """Keeps the memory."""


# ---- taking in -----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def _name(dtype: "np.dtype[Any]") -> str:
    """numpy takes several microseconds to tell a type's name."""
    return dtype.name if dtype.isnative else dtype.str


def _of_numpy(array: npt.NDArray[Any]) -> View:
    return View(
        address_of(array),
        array.shape,
        array.strides,
        _name(array.dtype),
        array.dtype.itemsize,
        None,
        array.flags.writeable,
        array,
    )


_TORCH_NAMES: Dict[Any, str] = {}


def _torch_name(dtype: Any) -> str:
    """float32 of torch.float32. Kept, as making the text takes longer than all else that is looked at."""
    found = _TORCH_NAMES.get(dtype)
    if found is None:
        found = _TORCH_NAMES[dtype] = str(dtype).replace("torch.", "")
    return found


def _of_torch(tensor: Any) -> View:
    kind = tensor.device.type
    if kind not in ("cpu", "cuda"):
        raise UnsupportedError(f"a tensor on {tensor.device}; cpu and cuda are possible")
    if tensor.requires_grad:
        raise InvalidError("a tensor that requires grad: Tern does not differentiate; pass tensor.detach()")
    size = tensor.element_size()
    return View(
        tensor.data_ptr(),
        tuple(tensor.shape),
        tuple(step * size for step in tensor.stride()),
        _torch_name(tensor.dtype),
        size,
        tensor.device.index or 0 if kind == "cuda" else None,
        True,
        tensor,
    )


def _of_cuda_interface(array: Any) -> View:
    told = array.__cuda_array_interface__
    dtype = np.dtype(told["typestr"])
    shape = tuple(told["shape"])
    address, read_only = told["data"]
    return View(address, shape, told.get("strides") or dense(shape, dtype.itemsize), dtype.name, dtype.itemsize, 0, not read_only, array)


class _DLTensor(ctypes.Structure):
    """struct DLTensor of dlpack.h, which opens a DLManagedTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


# DLDataTypeCode. Codes from 7 on are the FP8 formats of DLPack 1.1; 10 is E4M3FN.
_DL_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}
_DL_E4M3FN = 10
_DL_HOST = (1, 3)  # kDLCPU, kDLCUDAHost
_DL_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged


def _of_dlpack(array: Any) -> View:
    """Reads the capsule and leaves it unconsumed: it keeps the memory, and lets go of it when it is collected."""
    capsule = array.__dlpack__()
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype = ctypes.c_void_p
    pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]
    tensor = _DLTensor.from_address(pointer_of(capsule, b"dltensor"))
    if tensor.device_type not in _DL_HOST + _DL_CUDA or tensor.lanes != 1:
        raise UnsupportedError(f"a DLPack tensor on device type {tensor.device_type} with {tensor.lanes} lanes; host and CUDA, 1 lane are possible")
    size = tensor.bits // 8
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(step * size for step in tensor.strides[: tensor.ndim]) if tensor.strides else dense(shape, size)
    name = NAMES[Dtype.FP8_E4M3] if tensor.code == _DL_E4M3FN else _DL_CODES.get(tensor.code, "unknown") + str(tensor.bits)
    cuda = tensor.device_id if tensor.device_type in _DL_CUDA else None
    return View((tensor.data or 0) + tensor.byte_offset, shape, strides, name, size, cuda, True, (array, capsule))


def _of_buffer(array: Any) -> View:
    try:
        return _of_numpy(np.asarray(memoryview(array)))
    except (TypeError, ValueError, NotImplementedError) as error:
        raise InvalidError(
            f"{type(array).__name__} is no array: it offers neither the buffer protocol, DLPack nor __cuda_array_interface__ ({error})"
        ) from None


def look(array: Array) -> View:
    """What the library has to know of an array."""
    if isinstance(array, np.ndarray):
        return _of_numpy(array)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return _of_torch(array)
    if hasattr(array, "__cuda_array_interface__"):
        return _of_cuda_interface(array)
    if hasattr(array, "__dlpack__"):
        return _of_dlpack(array)
    return _of_buffer(array)


# ---- rows ----------------------------------------------------------------------------------------------------------


def dense(shape: Tuple[int, ...], item_bytes: int) -> Tuple[int, ...]:
    """Strides in bytes without gaps."""
    strides, step = [], item_bytes
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


class Rows(NamedTuple):
    """Rows in memory: their number, where they begin and how far apart they are."""

    nr: int
    address: int
    stride: int
    view: View


def rows(name: str, array: Array, width: int, dtype: Dtype, writable: bool = False) -> Rows:
    """`array` as rows of `width` elements. It has to be [n][width] of that type, or of unsigned integers of its size; or bytes,
    [n][row bytes] or in one piece."""
    view = look(array)
    row_bytes = width * ELEMENT_BYTES[dtype]
    shape, strides = view.shape, view.strides
    opaque = view.item_bytes == 1 and view.dtype in ("uint8", "int8") or dtype == Dtype.BYTES
    if writable and not view.writable:
        raise InvalidError(f"{name} is read-only")
    if opaque and len(shape) == 1 and row_bytes and shape[0] * view.item_bytes % row_bytes == 0 and strides[0] == view.item_bytes:
        nr = shape[0] * view.item_bytes // row_bytes
        return Rows(nr, view.address, row_bytes, view)
    if len(shape) == 2 and _fits(view, width, row_bytes, dtype, opaque) and (strides[1] == view.item_bytes or 0 in shape or shape[1] == 1):
        return Rows(shape[0], view.address, strides[0] if shape[0] > 1 else row_bytes, _positive(name, view))
    raise InvalidError(
        f"{name} is {view.dtype}{list(shape)} with strides of {list(strides)} bytes; it has to be rows of {width} x {NAMES[dtype]} "
        f"({row_bytes} bytes), each in one piece"
    )


def _fits(view: View, width: int, row_bytes: int, dtype: Dtype, opaque: bool) -> bool:
    if view.dtype in (NAMES[dtype], BITS[ELEMENT_BYTES[dtype]]):
        return view.shape[1] * view.item_bytes == row_bytes
    return opaque and view.shape[1] * view.item_bytes == row_bytes


def _positive(name: str, view: View) -> View:
    if view.shape[0] > 1 and view.strides[0] <= 0:
        raise InvalidError(f"{name} has a stride of {view.strides[0]} bytes from row to row; more than 0 is possible")
    return view


def table(name: str, array: Array, nr: int, width: int, dtypes: Tuple[str, ...]) -> View:
    """`array` as a dense [nr][width] of one of these types."""
    view = look(array)
    right = view.shape == (nr, width) and view.dtype in dtypes
    if right and (nr * width == 0 or all(l == 1 or s == d for l, s, d in zip(view.shape, view.strides, dense(view.shape, view.item_bytes)))):
        return view
    raise InvalidError(
        f"{name} is {view.dtype}{list(view.shape)} with strides of {list(view.strides)} bytes; it has to be a dense [{nr}, {width}] of {' or '.join(dtypes)}"
    )


def numbers(name: str, array: Array, least: int, width: int) -> View:
    """`array` as dense float32, [least or more] or, with a width, [least or more][width]."""
    view = look(array)
    tail = (width,) if width else ()
    if view.shape[1:] == tail and view.shape and view.shape[0] >= least and view.dtype == "float32":
        if all(n == 1 or s == d for n, s, d in zip(view.shape, view.strides, dense(view.shape, view.item_bytes))):
            return view
    raise InvalidError(
        f"{name} is {view.dtype}{list(view.shape)} with strides of {list(view.strides)} bytes; it has to be dense float32, {[least, *tail]} or more rows"
    )


# ---- handing out ---------------------------------------------------------------------------------------------------


class _Memory:
    """Library memory that numpy can look at. Arrays made of it hold it, and it holds its owner."""

    def __init__(self, address: int, shape: Tuple[int, ...], owner: Any, read_only: bool):
        self.owner = owner
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": shape, "data": (address, read_only)}


def show(address: Optional[int], shape: Tuple[int, ...], dtype: Any, owner: Any, read_only: bool = False) -> npt.NDArray[Any]:
    """Memory of somebody else as an array that keeps `owner`. Empty arrays need no memory."""
    kind = np.dtype(dtype)
    if 0 in shape or not address:
        return np.empty((0,) + shape[1:], kind)
    in_bytes = shape[:-1] + (shape[-1] * kind.itemsize,)
    return np.asarray(_Memory(address, in_bytes, owner, read_only)).view(kind)


def empty(shape: Tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """A new numpy array whose memory is aligned to 64 bytes."""
    kind = np.dtype(dtype)
    room = np.empty(math.prod(shape) * kind.itemsize + 64, np.uint8)
    return np.ndarray(shape, kind, room, -address_of(room) % 64)


_from_buffer, _addressof = ctypes.c_char.from_buffer, ctypes.addressof


def address_of(array: npt.NDArray[Any]) -> int:
    """Where its memory begins. numpy takes microseconds to tell; ctypes, which looks at what is writable, dense and not empty, does not."""
    try:
        return _addressof(_from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return int(array.__array_interface__["data"][0])


class Numpy:
    """Rows as numpy arrays. BF16 and FP8 have no type there: BF16 comes as uint16, FP8 as uint8."""

    const = True  # what the library keeps to itself is shown read-only
    reader: Reader = Reader(np.ndarray, None, None, True, None, -1)
    """How the compiled calls read arrays of exactly this type; others are looked at each time."""

    address: Callable[[Any], int] = staticmethod(address_of)

    def capturing(self) -> bool:
        """Whether the current stream's work goes into a graph."""
        return False

    def lasting(self) -> Any:
        """A context for arrays that outlive a call."""
        return contextlib.nullcontext()

    def head(self, array: Any, nr: int) -> Any:
        """A view of the first entries."""
        return array[:nr]

    def integers(self, item_bytes: int) -> str:
        """The type of counts and offsets."""
        return BITS[4] if item_bytes == 4 else "uint64"

    def show(self, address: Optional[int], shape: Tuple[int, ...], dtype: Any, owner: Any, read_only: bool) -> Any:
        """The library's memory, of dtype()'s type or a plain one."""
        return show(address, shape, dtype, owner, read_only)

    def dtype(self, dtype: Dtype) -> Any:
        return np.dtype({Dtype.BF16: "uint16", Dtype.FP8_E4M3: "uint8"}.get(dtype, NAMES[dtype]))

    def of(self, array: npt.NDArray[Any], dtype: Dtype) -> Any:
        """An array of dtype()'s type in the form that callers get: for rows."""
        return array

    def plain(self, array: npt.NDArray[Any]) -> Any:
        """The same for counts, ids and weights."""
        return array

    def empty(self, shape: Tuple[int, ...], dtype: Dtype) -> Any:
        return self.of(empty(shape, self.dtype(dtype)), dtype)


class MlDtypes(Numpy):
    """Rows as numpy arrays of the package ml_dtypes, which adds bfloat16 and float8_e4m3fn."""

    def __init__(self) -> None:
        import ml_dtypes

        self._types = {Dtype.BF16: ml_dtypes.bfloat16, Dtype.FP8_E4M3: ml_dtypes.float8_e4m3fn}

    def dtype(self, dtype: Dtype) -> Any:
        return np.dtype(self._types.get(dtype, NAMES[dtype]))


class Torch(Numpy):
    """Rows as torch tensors on the CPU. Counts and offsets are signed there, and torch knows no read-only memory."""

    const = False

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self.tensor = torch.Tensor
        self.address = torch.Tensor.data_ptr
        self.dtypes = {dtype: getattr(torch, name) for dtype, name in NAMES.items()}
        self.like = torch.empty_like
        self._templates: Dict[Tuple[Tuple[int, ...], Any], Any] = {}
        self._settle(torch.device("cpu"))

    def _settle(self, device: Any) -> None:
        self.device = device
        exchange = getattr(self._torch.Tensor, "__dlpack_c_exchange_api__", None)  # torch 2.11
        self.reader = Reader(self._torch.Tensor, self.form, self.address, False, exchange, -1 if device.index is None else device.index)
        with self.lasting():
            self._one = self._torch.zeros(16, dtype=self._torch.uint8, device=device)

    @staticmethod
    def form(tensor: Any) -> Any:
        """All that decides whether it is accepted, but its address."""
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad

    def dtype(self, dtype: Dtype) -> Any:
        return np.dtype(BITS[1]) if dtype in (Dtype.BYTES, Dtype.FP8_E4M3) else np.dtype({2: "int16", 4: "float32"}[ELEMENT_BYTES[dtype]])

    def lasting(self) -> Any:
        return self._torch.inference_mode(False)

    def head(self, array: Any, nr: int) -> Any:
        return array.detach() if array.shape[0] == nr else array[:nr]

    def integers(self, item_bytes: int) -> str:
        return "int32" if item_bytes == 4 else "int64"

    def of(self, array: npt.NDArray[Any], dtype: Dtype) -> Any:
        return self.plain(array).view(self.dtypes[dtype])

    def plain(self, array: npt.NDArray[Any]) -> Any:
        return self._torch.from_numpy(array)

    def empty(self, shape: Tuple[int, ...], dtype: Dtype) -> Any:
        return self.new(shape, self.dtypes[dtype])

    def new(self, shape: Tuple[int, ...], dtype: Any) -> Any:
        """torch.empty takes twice as long, as it reads shape, type and device anew: here they are those of a template."""
        template = self._templates.get((shape, dtype))
        if template is None:
            if len(self._templates) >= 256:  # prompts have many lengths
                self._templates.clear()
            template = self._templates[shape, dtype] = self.template(shape, dtype)
        return self.like(template)

    def template(self, shape: Tuple[int, ...], dtype: Any) -> Any:
        """One element, expanded. It takes no memory, which might be a graph's."""
        with self.lasting():
            return self._one[: dtype.itemsize].view(dtype).expand(shape)


class _DeviceMemory:
    """Library memory on a device that torch can look at. Tensors made of it hold it, and it holds its owner."""

    def __init__(self, address: int, shape: Tuple[int, ...], typestr: str, owner: Any):
        self.owner = owner
        self.__cuda_array_interface__ = {"version": 3, "typestr": typestr, "shape": shape, "data": (address, False), "strides": None}


class TorchCuda(Torch):
    """Rows as torch tensors on the CUDA device that was current when this was made."""

    def __init__(self) -> None:
        super().__init__()
        if not self._torch.cuda.is_available():
            raise UnsupportedError("device is CUDA, and torch sees no CUDA device")
        self._settle(self._torch.device("cuda", self._torch.cuda.current_device()))
        self.stream: Callable[[], int] = functools.partial(self._torch._C._cuda_getCurrentRawStream, self.device.index)
        """The stream that is current for the calling thread."""

    def show(self, address: Optional[int], shape: Tuple[int, ...], dtype: Any, owner: Any, read_only: bool) -> Any:
        kind = np.dtype(dtype)
        if 0 in shape or not address:
            return self._torch.empty((0,) + shape[1:], dtype=getattr(self._torch, kind.name), device=self.device)
        return self._torch.as_tensor(_DeviceMemory(address, shape, kind.str, owner), device=self.device)

    def plain(self, array: Any) -> Any:
        return array

    def capturing(self) -> bool:
        return bool(self._torch.cuda.is_current_stream_capturing())


KINDS = {"numpy": Numpy, "ml_dtypes": MlDtypes, "torch": Torch}


def kind(name: str, cuda: bool) -> Numpy:
    if name not in KINDS:
        raise InvalidError(f'arrays is "{name}"; {", ".join(KINDS)} are possible')
    if cuda and name != "torch":
        raise InvalidError(f'arrays is "{name}" with device CUDA, where only "torch" is possible')
    return TorchCuda() if cuda else KINDS[name]()
