# SPDX-License-Identifier: Apache-2.0
"""The settings of an exchange: struct tern_moe_config."""

from __future__ import annotations

import ctypes
import enum
from dataclasses import dataclass, fields
from typing import Any, List, Optional, Sequence, Tuple

from . import _abi
from ._library import library
from .arrays import ELEMENT_BYTES, Dtype
from .errors import InvalidError


class Mode(enum.IntEnum):
    AUTO = 0
    """One of the two, by max_tokens and what else the exchange is made with (tern.h); Exchange.mode tells."""
    LOW_LATENCY = 1
    """Send without asking: private regions for each source; memory for ranks x tokens rows."""
    HIGH_THROUGHPUT = 2
    """Ask, then send: counts first, then rows straight to their final place."""


class Layout(enum.IntEnum):
    PADDED = 1
    """x [L][capacity][H]."""
    CONTIGUOUS = 2
    """x [rows][H]; expert l's rows start at offsets[l], a multiple of alignment."""
    BY_SOURCE = 3
    """x [rows][H], each token once; source r's rows start at offsets[r]; local top-k ids and weights a row."""


class Reduce(enum.IntEnum):
    HOME = 1
    """One row for each route comes home, summed there in k order."""
    EXPERT = 2
    """Routes are summed on the expert's rank: one row for each (token, rank)."""


class Weights(enum.IntEnum):
    COMBINE = 1
    """Combine multiplies each y row by its gate weight."""
    PASS = 2
    """Weights are handed to the experts; combine only sums."""


class Replicas(enum.IntEnum):
    """Which of an expert's replicas a route goes to."""

    AUTO = 0
    """LEAST_LOADED on CPUs, IN_TURN on devices."""
    IN_TURN = 1
    """One on the source's own rank if there is one, else number (source rank + token) % replicas."""
    LEAST_LOADED = 2
    """CPUs: one on the rank to which the source sends least, routes to experts with one place counted first."""


class Scale(enum.IntEnum):
    """Of FP8 rows, one for each block of 128 elements."""

    NONE = 0
    FP32 = 1
    UE8M0 = 2


class Device(enum.IntEnum):
    """Where arrays lie, and where the halves run."""

    CPU = 0
    CUDA = 1
    """The device that is current when the exchange is made."""


@dataclass(frozen=True)
class Placement:
    """Physical expert p serves logical expert logical[p] on rank rank[p]. None: the identity, and contiguous blocks."""

    nr_physical: int
    logical: Optional[Sequence[int]] = None
    rank: Optional[Sequence[int]] = None

    def fill(self, struct: Any) -> None:
        struct.nr_physical = self.nr_physical
        for name in ("logical", "rank"):
            given = getattr(self, name)
            if given is None:
                continue
            if len(given) != self.nr_physical:
                raise InvalidError(f"placement.{name} has {len(given)} entries for {self.nr_physical} physical experts")
            setattr(struct, name, (ctypes.c_int32 * self.nr_physical)(*given))


@dataclass(frozen=True)
class Config:
    """The settings of an exchange, the same on all ranks but for wait_ms. Defaults are the library's."""

    hidden: int = 0
    """Elements of a row, H."""
    nr_experts: int = 0
    topk: int = 0
    max_tokens: int = 0
    """Most tokens that a rank may pass to one dispatch, T."""
    mode: Mode = Mode.AUTO
    layout: Layout = Layout.CONTIGUOUS
    reduce: Reduce = Reduce.EXPERT
    weights: Weights = Weights.COMBINE
    x_dtype: Dtype = Dtype.BF16
    """What the caller passes."""
    dispatch_dtype: Dtype = Dtype.BF16
    """What travels and is received: x_dtype, or FP8_E4M3, quantised on the way out."""
    scale: Scale = Scale.NONE
    """For FP8_E4M3."""
    payload_bytes: int = 0
    """For BYTES: of a row."""
    combine_dtype: Dtype = Dtype.BF16
    """Of y, on the way, and of out."""
    nr_slots: int = 1
    """Micro-batches in flight."""
    alignment: int = 1
    """CONTIGUOUS: rows."""
    capacity: int = 0
    """Most rows received; 0: the worst case."""
    placement: Optional[Placement] = None
    replica_ranks: int = 1
    """Tensor-parallel replicas: so many ranks pass the same tokens."""
    wait_ms: int = 30000
    """Longest wait of one call; 0 polls once."""
    first_epoch: int = 1
    """Number of the first round, for tests of wrap-around."""
    nr_chunks: int = 0
    """High throughput, between nodes: chunks under way to each node; 0: the library's choice."""
    chunk_bytes: int = 0
    """Of each; 0: the library's choice."""
    device: Device = Device.CPU
    caller_output: bool = False
    """CUDA: rows always go into the caller's into_x, and no memory is taken for them."""
    nr_threads: int = 0
    """CPU: of this rank, which pack, copy and sum rows; 0: TERN_THREADS of the environment, or 1."""
    elastic: bool = False
    """CPU: goes on when members of its group, an elastic one, die. Takes Reduce.HOME; experts survive where they have replicas."""

    combine_floats: bool = False
    """A combine takes a float of each (token, k) home, beside results."""
    masks: bool = False
    """CPU, low latency: Exchange.mask may be called."""
    replicas: Replicas = Replicas.AUTO
    gate_rows: int = 0
    """Devices: 64 or 128: kernels may read rows while others still come (include/tern_device.cuh)."""
    late_weights: bool = False
    """Devices of one node, low latency, Reduce.EXPERT: topk_weights come with each combine, and go to the experts with it."""
    slots_in_turn: bool = False
    """Devices: kernels of different slots never run at the same time, as the caller orders them all: each may take the whole device."""
    nr_sms: int = 0
    """Devices: most SMs that a half may take, until Exchange.set_sms says otherwise; Mode.AUTO chooses for them. 0: as many as are fastest."""

    def struct(self) -> Any:
        """The struct tern_moe_config, which keeps what it points to."""
        lib = library()
        struct = lib.initial(_abi.tern_moe_config)
        sizes = {name: field for name, field in struct._fields_}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "placement":
                if value is not None:
                    value.fill(struct.placement)
                continue
            _check_range(field.name, value, sizes[field.name])
            setattr(struct, field.name, int(value))
        return struct

    # What follows from the settings:

    @property
    def x_width(self) -> int:
        """Elements of a row of x, or its bytes with Dtype.BYTES."""
        return self.payload_bytes if self.x_dtype == Dtype.BYTES else self.hidden

    @property
    def received_width(self) -> int:
        return self.payload_bytes if self.dispatch_dtype == Dtype.BYTES else self.hidden

    @property
    def nr_blocks(self) -> int:
        """Scales of an FP8 row."""
        return -(-self.hidden // 128)

    @property
    def row_bytes(self) -> int:
        """Of a received row's elements."""
        return self.received_width * ELEMENT_BYTES[Dtype(self.dispatch_dtype)]

    def max_rows(self, nr_ranks: int, nr_local: int) -> int:
        """The most row positions that a rank with that many local experts can receive: the capacity, or the worst case."""
        rows = nr_ranks * -(-self.max_tokens // self.replica_ranks)
        if self.layout == Layout.PADDED:
            return (self.capacity or rows) * nr_local
        if self.capacity:
            return self.capacity
        if self.layout == Layout.BY_SOURCE:
            return rows
        return rows * min(self.topk, nr_local) + nr_local * (self.alignment - 1)


def _check_range(name: str, value: Any, kind: Any) -> None:
    """ctypes would cut off what does not fit."""
    low, high = _LIMITS[ctypes.sizeof(kind)] if kind in _UNSIGNED else (-(2**31), 2**31 - 1)
    try:
        fits = low <= int(value) <= high and int(value) == value
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise InvalidError(f"{name} is {value!r}; {low} to {high} are possible")


_LIMITS: dict[int, Tuple[int, int]] = {2: (0, 2**16 - 1), 4: (0, 2**32 - 1), 8: (0, 2**64 - 1)}
_UNSIGNED: List[Any] = [ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64]
