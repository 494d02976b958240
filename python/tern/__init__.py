# SPDX-License-Identifier: Apache-2.0
"""Tern: dispatch and combine for expert parallelism (Mixture-of-Experts).

    with tern.Group.from_environment() as group:
        with tern.Exchange(group, tern.Config(hidden=64, nr_experts=8, topk=2, max_tokens=16, x_dtype=tern.Dtype.FP32,
                                              dispatch_dtype=tern.Dtype.FP32, combine_dtype=tern.Dtype.FP32)) as moe:
            received = moe.dispatch(x, topk_ids, topk_weights)
            y = moe.empty_y(received)
            for local, expert in enumerate(moe.local_experts):
                here = received.expert(local)
                y[here] = experts[expert](received.x[here])
            out = moe.combine(y)

The contract is that of include/tern.h; the guide is docs/python.md.
"""

from ._library import LibraryError
from ._version import __version__
from .arrays import Array, Dtype, empty
from .config import Config, Device, Layout, Mode, Placement, Reduce, Scale, Weights
from .errors import (
    BootstrapError,
    CapacityError,
    Error,
    InvalidError,
    MismatchError,
    NoMemoryError,
    PeerDeadError,
    PeerLeftError,
    Phase,
    ProtocolError,
    StateError,
    SystemCallError,
    UnsupportedError,
    WaitReport,
    WaitTimeoutError,
)
from .exchange import Exchange, Memory, Stats
from .group import Group, Path, Threads, run_threads
from .received import Received

__all__ = [
    "Array",
    "BootstrapError",
    "CapacityError",
    "Config",
    "Device",
    "Dtype",
    "Error",
    "Exchange",
    "Group",
    "InvalidError",
    "Layout",
    "LibraryError",
    "Memory",
    "MismatchError",
    "Mode",
    "NoMemoryError",
    "Path",
    "PeerDeadError",
    "PeerLeftError",
    "Phase",
    "Placement",
    "ProtocolError",
    "Received",
    "Reduce",
    "Scale",
    "StateError",
    "Stats",
    "SystemCallError",
    "Threads",
    "UnsupportedError",
    "WaitReport",
    "WaitTimeoutError",
    "Weights",
    "__version__",
    "empty",
    "run_threads",
]
