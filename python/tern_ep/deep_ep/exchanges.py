# SPDX-License-Identifier: Apache-2.0
"""The exchanges of a buffer, each made when its shape is first asked for, and looking at tensors."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, Optional, Tuple, Type, TypeVar

import torch

from .._calls import Reader
from .._dynamo import leave_alone
from .._library import load_cuda
from ..config import Config, Device
from ..errors import InvalidError, StateError
from ..exchange import Exchange
from ..group import Group
from .board import Board
from .streams import OnCpu, OnCuda, capturing


Kind = TypeVar("Kind", bound=Exchange)


def wait_ms() -> int:
    """The longest wait of one call: deep_ep's own, 100 s, unless TERN_DEEP_EP_WAIT_MS says another."""
    return int(os.environ.get("TERN_DEEP_EP_WAIT_MS", "100000"))


class Exchanges:
    def __init__(self, rank: int, nr_ranks: int, allgather: Callable[[bytes], List[bytes]]):
        self._allgather = allgather
        self.rank, self.nr_ranks = rank, nr_ranks
        self.wait_ms = wait_ms()
        self.group = Group.from_allgather(rank, nr_ranks, lambda mine: self._allgather(mine), wait_ms=self.wait_ms)
        self.board = Board(self.group, self.wait_ms)
        self._allgather = self.board.allgather
        self._made: Dict[Config, Exchange] = {}
        self._streams: Dict[Any, OnCpu] = {}
        self._loaded = False

    def load_cuda(self) -> None:
        if not self._loaded:
            load_cuda()
            self._loaded = True

    def get(self, config: Config, kind: Type[Kind]) -> Kind:
        """Collective where there is none yet."""
        found: Any = self._made.get(config)
        if found is None:
            if capturing(config.device != Device.CPU):
                raise StateError(f"a graph is being captured, and there is no exchange yet for {config}: make this call once before")
            found = self._made[config] = kind(self.group, config, arrays="torch")
        return found  # type: ignore[no-any-return]

    def drop(self, config: Config) -> None:
        """No new rounds. On a CPU it goes with the last handle; on a device, where kernels may still run, with the buffer. As sizes
        double, all that were dropped take no more than the last one."""
        if config.device == Device.CPU:
            self._made.pop(config, None)

    def streams(self, device: Any) -> OnCpu:
        found = self._streams.get(device)
        if found is None:
            found = self._streams[device] = OnCpu() if device.type == "cpu" else OnCuda(device)
        return found

    def close(self) -> None:
        if any(exchange.on_device for exchange in self._made.values()):
            torch.cuda.synchronize()
        for exchange in self._made.values():
            exchange.close()
        self._made.clear()
        self.board.close()
        self.group.close()


def device_of(tensor: Any) -> Device:
    return Device.CPU if tensor.device.type == "cpu" else Device.CUDA


TENSORS = Reader(torch.Tensor, None, None, False, getattr(torch.Tensor, "__dlpack_c_exchange_api__", None), -1)
# DLPack's code and bits of what callers bring.
_TYPES: Dict[Tuple[Any, ...], int] = {(torch.bfloat16,): 4 << 8 | 16, (torch.int64,): 64, (torch.int32,): 32, (torch.bool,): 6 << 8 | 8, (torch.float32,): 2 << 8 | 32}


def check(name: str, tensor: Any, shape: Tuple[Optional[int], ...], *dtypes: Any) -> Any:
    """The tensor, without a graph of gradients, if it is dense and has that shape (None: any length) and one of the types."""
    if TENSORS.fits(tensor, shape, _TYPES.get(dtypes, 0)):
        return tensor
    if not isinstance(tensor, torch.Tensor):
        raise InvalidError(f"{name} is {type(tensor).__name__}; it has to be a tensor")
    have = tensor.shape
    right = have == shape
    if not right and None in shape and len(have) == len(shape):
        right = True
        for want, n in zip(shape, have):
            right = right and (want is None or want == n)
    if not right or tensor.dtype not in dtypes or not tensor.is_contiguous():
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        how = "" if tensor.is_contiguous() else f" with strides {list(tensor.stride())}"
        kinds = " or ".join(str(dtype).replace("torch.", "") for dtype in dtypes)
        raise InvalidError(f"{name} is {str(tensor.dtype)[6:]}{list(tensor.shape)}{how}; it has to be dense [{wanted}] of {kinds}")
    return tensor.detach() if tensor.requires_grad else tensor


def not_compiled() -> None:
    """torch.compile ends a graph before the calls of these modules, as before plain ones of an exchange."""
    from . import board, buffer, exchanges, low_latency, normal, streams, utils

    leave_alone(board, buffer, exchanges, low_latency, normal, streams, utils)
