# SPDX-License-Identifier: Apache-2.0
"""Plans that outlive their round: where its rows went, used again for other tokens and results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from . import arrays as memory
from .arrays import Array, Dtype
from .errors import InvalidError, StateError
from .received import Received, Wanted

if TYPE_CHECKING:
    from .exchange import Arguments, Exchange


class Plan:
    """Made by Exchange.plan. All ranks use theirs of the same round together, in any slot without a round under way, any number of
    times and in any order, until it is closed: collective, as dispatch and combine are."""

    def __init__(self, exchange: Exchange, slot: int, nr_rows: int = 0, wide_ids: int = 0, tokens: int = 0, topk_ids: int = 0):
        """nr_rows and the addresses: struct tern_plan_beside."""
        self._number = exchange._calls.plan(exchange, slot, nr_rows, wide_ids, tokens, topk_ids)
        state = exchange._slots[slot]
        self.exchange = exchange
        self.nr_tokens, self.extent = state.nr_tokens, state.extent

    def _open(self) -> int:
        if not self._number:
            raise StateError("plan is closed")
        return self._number

    def dispatch(
        self,
        x: Array,
        *,
        scales: Optional[Array] = None,
        slot: int = 0,
        into_x: Optional[Array] = None,
        into_scales: Optional[Array] = None,
        want: Optional[Wanted] = None,
        tag: int = 0,
    ) -> Received:
        """As Exchange.dispatch, with as many tokens as then; ids and weights are the plan's, and rows come to the same positions.
        Of elastic exchanges they come to others where members have gone, and the plan is whole again."""
        moe, number = self.exchange, self._open()
        received: Received = moe._calls.dispatch_plan(
            moe, slot, self, moe._of_plans, number, self.nr_tokens, x, scales, tag, into_x, into_scales, want
        )
        self.extent = received.extent
        return received

    def _look_at_dispatch(self, state: Arguments, x: Array, _ids: None, _weights: None, scales: Optional[Array]) -> None:
        args, moe = state.dispatch, self.exchange
        rows = memory.rows("x", x, moe.config.x_width, Dtype(moe.config.x_dtype))
        if rows.nr != self.nr_tokens:
            raise InvalidError(f"x has {rows.nr} rows; the plan has {self.nr_tokens} tokens")
        views = {"x": rows.view}
        if scales is not None:
            views["scales"] = moe._scales(scales, rows.nr)
        moe._here(views)
        args.nr_tokens, args.x, args.x_stride = rows.nr, rows.address, rows.stride
        args.scales = None if scales is None else views["scales"].address

    def combine(
        self,
        y: Optional[Array],
        *,
        slot: int = 0,
        out: Optional[Array] = None,
        unweighted: bool = False,
        topk_weights: Optional[Array] = None,
        floats: Optional[Array] = None,
        out_floats: Optional[Array] = None,
        tag: int = 0,
    ) -> Any:
        """As Exchange.combine, without a dispatch before it: y at the positions that rows had then, summed for the tokens of then."""
        moe, number = self.exchange, self._open()
        return moe._calls.combine_plan(moe, slot, number, self.nr_tokens, self.extent, tag, y, out, unweighted, topk_weights, floats, out_floats)

    def close(self) -> None:
        """Gives its memory back. Without it, its exchange does."""
        if self._number and self.exchange._handle is not None:
            self.exchange._calls.plan_destroy(self.exchange, self._number)
        self._number = 0

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
