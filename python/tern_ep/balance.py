# SPDX-License-Identifier: Apache-2.0
"""Where experts should live, planned from what each was asked for: include/tern_balance.h."""

from __future__ import annotations

import ctypes
from typing import Any, List, NamedTuple, Optional, Sequence

from . import _abi
from ._library import library
from .errors import InvalidError, StateError, check

ALL_COPIES = 2**32 - 1


class Copy(NamedTuple):
    """The weights of `expert` go from place to place; source -1: no living rank holds them."""

    expert: int
    source: int
    to: int


class Planned(NamedTuple):
    """`logical` is what Placement takes: the expert of each place, -1 where nothing lies. `before` and `after`: the busiest rank's load
    over the mean."""

    logical: List[int]
    copies: List[Copy]
    before: float
    after: float
    nr_spread: int


def _array(kind: Any, name: str, values: Optional[Sequence[Any]], wanted: int) -> Any:
    if values is None:
        return None
    if len(values) != wanted:
        raise InvalidError(f"{name} has {len(values)} entries; it takes {wanted}")
    return (kind * wanted)(*(values.tolist() if hasattr(values, "tolist") else values))


class Balance:
    """Plans placements of nr_experts in nr_physical places on nr_ranks; the same on every rank that passes the same numbers. Sends
    nothing. rank: of each place; domain: of each rank, where ranks fail together."""

    def __init__(
        self,
        nr_experts: int,
        nr_physical: int,
        nr_ranks: int,
        *,
        rank: Optional[Sequence[int]] = None,
        domain: Optional[Sequence[int]] = None,
    ):
        self.nr_experts, self.nr_physical, self.nr_ranks = nr_experts, nr_physical, nr_ranks
        config = _abi.sized(_abi.tern_balance_config)
        config.nr_experts, config.nr_physical, config.nr_ranks = nr_experts, nr_physical, nr_ranks
        config.rank = _array(ctypes.c_int32, "rank", rank, nr_physical)
        config.domain = _array(ctypes.c_int32, "domain", domain, nr_ranks)
        self._native = ctypes.c_void_p()
        check(library().tern_balance_create(ctypes.byref(config), ctypes.byref(self._native)))

    def plan(
        self,
        load: Sequence[float],
        *,
        now: Optional[Sequence[int]] = None,
        alive: Optional[Sequence[bool]] = None,
        max_copies: Optional[int] = None,
        spread: int = 1,
    ) -> Planned:
        """load: of each expert. now: the expert of each place, -1: none. max_copies: how many places may change; None: as many as the
        best placement takes. spread: in how many domains each expert is to be."""
        if not self._native:
            raise StateError("balance is closed")
        args, result = _abi.sized(_abi.tern_balance_input), _abi.sized(_abi.tern_balance_result)
        args.load = _array(ctypes.c_double, "load", load, self.nr_experts)
        args.now = _array(ctypes.c_int32, "now", now, self.nr_physical)
        args.alive = _array(ctypes.c_uint8, "alive", alive, self.nr_ranks)
        args.max_copies, args.spread = ALL_COPIES if max_copies is None else max_copies, spread
        logical, copies = (ctypes.c_int32 * self.nr_physical)(), (_abi.tern_copy * self.nr_physical)()
        check(library().tern_balance_plan(self._native, ctypes.byref(args), logical, copies, ctypes.byref(result)))
        moved = [Copy(c.expert, getattr(c, "from"), c.to) for c in copies[: result.nr_copies]]
        return Planned(list(logical), moved, result.before, result.after, result.nr_spread)

    def close(self) -> None:
        native, self._native = self._native, ctypes.c_void_p()
        if native:
            library().tern_balance_destroy(native)

    def __enter__(self) -> Balance:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_native", None):
            self.close()
