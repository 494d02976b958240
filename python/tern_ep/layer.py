# SPDX-License-Identifier: Apache-2.0
"""The experts of an MoE layer between dispatch and combine: include/tern_layer.h."""

from __future__ import annotations

import ctypes
import enum
import sys
from typing import Any, Optional, Tuple

import numpy as np

from . import _abi
from . import arrays as memory
from ._handles import Handle, opened
from ._library import library
from .arrays import Array, Dtype, View
from .errors import InvalidError
from .exchange import Exchange
from .received import Received

_BLOCK = 128
BESIDE_NEVER = 2**32 - 1


class Activation(enum.IntEnum):
    """What is between the products: enum tern_activation."""

    SWIGLU = 1
    """silu(gate) * up"""
    LINEAR_GATED = 2
    """gate * up: for tests, whose sums it leaves exact."""


def stack_gate_up(gate: Array, up: Array) -> Any:
    """[experts][I][H] each to [experts][2I][H], as Layer takes them: of each expert gate's rows, then up's. A copy."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(gate, torch.Tensor):
        return torch.cat((gate, up), dim=1).contiguous()
    return np.concatenate((gate, up), axis=1)


def quantise_weights(weights: Any) -> Tuple[Any, Any]:
    """A torch tensor [experts][rows][k] to FP8 elements and the scales of blocks of 128 x 128, [experts][ceil(rows / 128)][ceil(k /
    128)]: amax / 448, and 1 for a block of zeros. Of gate and up where I is no multiple of 128: quantise each by itself, and stack
    both of what comes."""
    import torch

    experts, rows, k = weights.shape
    lines, columns = -(-rows // _BLOCK), -(-k // _BLOCK)
    whole = torch.zeros(experts, lines * _BLOCK, columns * _BLOCK, dtype=torch.float32, device=weights.device)
    whole[:, :rows, :k] = weights
    blocks = whole.view(experts, lines, _BLOCK, columns, _BLOCK)
    scales = blocks.abs().amax(dim=(2, 4)) / 448
    scales = torch.where(scales > 0, scales.clamp(min=2.0**-126), torch.ones_like(scales))
    elements = (blocks / scales[:, :, None, :, None]).view(experts, lines * _BLOCK, columns * _BLOCK)[:, :rows, :k]
    return elements.to(torch.float8_e4m3fn).contiguous(), scales.contiguous()


class Layer:
    """One layer's local experts over an exchange. Local; any number of layers share one exchange.

    gate_up [L][2I][H] and down [L][H][I] of the exchange's dispatch_dtype, dense, where its rows are; with FP8 the scales of blocks of
    128 x 128 [L][2][ceil(I / 128)][ceil(H / 128)] (or [L][2 ceil(I / 128)][...]) and [L][ceil(H / 128)][ceil(I / 128)]. They are kept,
    and read whenever the layer runs. beside_sms: with gate_rows, `run` begins beside the dispatch, which then takes at
    most so many SMs; 0: where that pays; BESIDE_NEVER: behind it."""

    def __init__(
        self,
        exchange: Exchange,
        gate_up: Array,
        down: Array,
        *,
        gate_up_scales: Optional[Array] = None,
        down_scales: Optional[Array] = None,
        activation: Activation = Activation.SWIGLU,
        beside_sms: int = 0,
    ):
        self.exchange = exchange
        self.inner = self._look_at_weights(gate_up, down, gate_up_scales, down_scales)
        self._weights = (gate_up, down, gate_up_scales, down_scales)
        lib = library()
        config = _abi.tern_layer_config()
        lib.tern_layer_config_init_sized(ctypes.byref(config), ctypes.sizeof(config))
        config.inner, config.activation, config.beside_sms = self.inner, activation, beside_sms
        config.gate_up, config.down = memory.look(gate_up).address, memory.look(down).address
        config.gate_up_scales, config.down_scales = (
            None if s is None else ctypes.cast(memory.look(s).address, ctypes.POINTER(ctypes.c_float)) for s in (gate_up_scales, down_scales)
        )
        pointer = ctypes.c_void_p()
        with exchange._busy:
            exchange._check(lib.tern_layer_create(exchange.native, ctypes.byref(config), ctypes.byref(pointer)))
        self._handle: Optional[Handle] = Handle("tern_layer_destroy", pointer.value or 0, (exchange.handle, self._weights))

    def _look_at_weights(self, gate_up: Array, down: Array, gate_up_scales: Optional[Array], down_scales: Optional[Array]) -> int:
        config, nr = self.exchange.config, self.exchange.nr_local
        dtype = Dtype(config.dispatch_dtype)
        shape = memory.look(gate_up).shape
        if len(shape) != 3 or shape[0] != nr or shape[1] % 2 or not shape[1] or shape[2] != config.hidden:
            raise InvalidError(f"gate_up is {list(shape)}; it has to be [{nr}][2I][{config.hidden}]")
        inner = shape[1] // 2
        blocks, width = -(-inner // _BLOCK), -(-config.hidden // _BLOCK)
        views = {
            "gate_up": _dense("gate_up", gate_up, (nr, 2 * inner, config.hidden), dtype),
            "down": _dense("down", down, (nr, config.hidden, inner), dtype),
        }
        if gate_up_scales is not None:
            views["gate_up_scales"] = _dense("gate_up_scales", gate_up_scales, (nr, 2 * blocks, width), Dtype.FP32)
        if down_scales is not None:
            views["down_scales"] = _dense("down_scales", down_scales, (nr, width, blocks), Dtype.FP32)
        self.exchange._here(views)
        return inner

    @property
    def native(self) -> int:
        """The tern_layer's address."""
        return opened(self._handle, "layer")

    @property
    def memory_bytes(self) -> int:
        """What all layers of the exchange with this I share."""
        return int(library().tern_layer_memory(self.native))

    def experts(self, received: Received, y: Optional[Array] = None, *, slot: int = 0, stream: Optional[int] = None) -> Any:
        """y [extent][H] of combine_dtype for the slot's received rows: into y, or a new array, which combine takes."""
        moe = self.exchange
        with moe._busy:
            state = moe._slot(slot)
            if y is None:
                y = moe.kind.empty((state.extent, moe.config.hidden), Dtype(moe.config.combine_dtype))
            rows = memory.rows("y", y, moe.config.hidden, Dtype(moe.config.combine_dtype), writable=True)
            if rows.nr < state.extent or rows.stride != moe.config.hidden * memory.ELEMENT_BYTES[Dtype(moe.config.combine_dtype)]:
                raise InvalidError(f"y has {rows.nr} rows, {rows.stride} bytes apart; the received rows span {state.extent} dense positions")
            if rows.nr == 0:  # an array of nothing lies nowhere
                return y
            moe._here({"y": rows.view})
            moe._calls.use(moe, slot, stream)
            moe._check(moe._lib.tern_layer_experts(self.native, slot, ctypes.byref(state.received), rows.address))
            return y

    def __call__(
        self,
        x: Array,
        topk_ids: Array,
        topk_weights: Optional[Array] = None,
        *,
        scales: Optional[Array] = None,
        slot: int = 0,
        out: Optional[Array] = None,
        stream: Optional[int] = None,
    ) -> Any:
        """Dispatch, experts and combine: [n][H] of combine_dtype, in out or in a new array. Collective. After WaitTimeoutError the same
        call goes on waiting."""
        moe = self.exchange
        return moe._calls.run(moe, slot, stream, self.native, x, topk_ids, topk_weights, scales, out)

    def close(self) -> None:
        """Gives it up; the weights may go. On a device wait for the slots' streams first."""
        self._handle = None
        self._weights = (None, None, None, None)

    def __enter__(self) -> Layer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _dense(name: str, array: Array, shape: Tuple[int, ...], dtype: Dtype) -> View:
    """Of that many elements, without gaps."""
    view = memory.look(array)
    names = (memory.NAMES[dtype], memory.BITS[memory.ELEMENT_BYTES[dtype]])
    if int(np.prod(view.shape, dtype=np.int64)) != int(np.prod(shape, dtype=np.int64)):
        raise InvalidError(f"{name} is {list(view.shape)}; it has to be {list(shape)}")
    if view.dtype not in names:
        raise InvalidError(f"{name} is {view.dtype}; {' or '.join(names)} is possible")
    if 0 not in view.shape and view.strides != memory.dense(view.shape, view.item_bytes):
        raise InvalidError(f"{name} has gaps: it has to be dense")
    return view
