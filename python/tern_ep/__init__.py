# SPDX-License-Identifier: Apache-2.0
"""Tern: dispatch and combine for expert parallelism (Mixture-of-Experts).

    with tern_ep.Group.from_environment() as group:
        with tern_ep.Exchange(group, tern_ep.Config(hidden=64, nr_experts=8, topk=2, max_tokens=16, x_dtype=tern_ep.Dtype.FP32,
                                              dispatch_dtype=tern_ep.Dtype.FP32, combine_dtype=tern_ep.Dtype.FP32)) as moe:
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
from .balance import Balance, Copy, Planned
from .config import Config, Device, Layout, Mode, Placement, Reduce, Replicas, Scale, Weights
from .engine import Engine, EngineStats, Operation, Peers, Region, Remote
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
    MembersError,
    ExpelledError,
    QuorumError,
    LostExpertsError,
    WaitReport,
    WaitTimeoutError,
)
from .exchange import Exchange, Memory, Stats
from .gate import Gate
from .group import ENVIRONMENT, Change, Group, Path, Rendezvous, StoreRendezvous, Threads, View, restarts, run_threads
from .layer import Activation, Layer, quantise_weights, stack_gate_up
from .plan import Plan
from .received import Received, Wanted
from .weights import Move, Progress, WeightStats, WeightStore

__all__ = [
    "Activation",
    "Array",
    "Balance",
    "BootstrapError",
    "CapacityError",
    "Config",
    "Copy",
    "Change",
    "Device",
    "Dtype",
    "ENVIRONMENT",
    "Engine",
    "EngineStats",
    "Error",
    "Exchange",
    "ExpelledError",
    "Gate",
    "Group",
    "InvalidError",
    "Layer",
    "Layout",
    "LibraryError",
    "LostExpertsError",
    "MembersError",
    "Memory",
    "MismatchError",
    "Mode",
    "Move",
    "NoMemoryError",
    "Operation",
    "Path",
    "PeerDeadError",
    "PeerLeftError",
    "Peers",
    "Phase",
    "Placement",
    "Plan",
    "Planned",
    "Progress",
    "ProtocolError",
    "QuorumError",
    "Received",
    "Reduce",
    "Replicas",
    "Region",
    "Remote",
    "Rendezvous",
    "Scale",
    "StateError",
    "Stats",
    "StoreRendezvous",
    "SystemCallError",
    "Threads",
    "UnsupportedError",
    "WaitReport",
    "WaitTimeoutError",
    "Wanted",
    "View",
    "Weights",
    "WeightStats",
    "WeightStore",
    "__version__",
    "empty",
    "quantise_weights",
    "restarts",
    "run_threads",
    "stack_gate_up",
]
