# SPDX-License-Identifier: Apache-2.0
"""Plans that outlive their round: where its rows went, used again for other tokens and results."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Optional

from . import _abi
from . import arrays as memory
from ._library import library
from .arrays import Array, Dtype, Form
from .errors import InvalidError, StateError
from .received import Received, Wanted

if TYPE_CHECKING:
    from .exchange import Exchange


class Plan:
    """Made by Exchange.plan. All ranks use theirs of the same round together, in any slot without a round under way, any number of
    times and in any order, until it is closed: collective, as dispatch and combine are."""

    def __init__(self, exchange: Exchange, slot: int):
        number = ctypes.c_uint64()
        with exchange._busy:
            state = exchange._slot(slot)
            exchange._check(library().tern_plan_create(exchange.native, slot, ctypes.byref(number)))
        self.exchange = exchange
        self.nr_tokens, self.extent = state.nr_tokens, state.extent
        self._number = number.value
        self._args = _abi.sized(_abi.tern_dispatch)
        self._args.slot, self._args.plan = slot, number.value
        self._args_at = ctypes.byref(self._args)
        self._form: Form = None  # of the last x and scales, as an exchange's slots keep it

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
        moe = self.exchange
        args = self._args
        self._open()
        with moe._busy:
            state = moe._slot(slot)
            self._look_at(x, scales)
            args.slot, args.tag = slot, tag
            into = moe._set_received(state, into_x, into_scales)
            if want is not None or state.wanted:
                moe._set_wanted(state, want)
            native = moe._use(state, None)
            code = moe._lib.tern_dispatch(native, self._args_at, state.received_at)
            state.dispatch.nr_tokens = self.nr_tokens
            state.dispatch_form = None
            moe._begun(state, code)
            received = moe._received(state, into)
            self.extent = state.extent
            return received

    def _look_at(self, x: Array, scales: Optional[Array]) -> None:
        args, moe = self._args, self.exchange
        form = moe._form(x, scales)
        if form is not None and form == self._form:
            args.x = moe.kind.address(x)
            args.scales = None if scales is None else moe.kind.address(scales)
            return
        self._form = None
        rows = memory.rows("x", x, moe.config.x_width, Dtype(moe.config.x_dtype))
        if rows.nr != self.nr_tokens:
            raise InvalidError(f"x has {rows.nr} rows; the plan has {self.nr_tokens} tokens")
        views = {"x": rows.view}
        if scales is not None:
            views["scales"] = moe._scales(scales, rows.nr)
        moe._here(views)
        args.nr_tokens, args.x, args.x_stride = rows.nr, rows.address, rows.stride
        args.scales = None if scales is None else views["scales"].address
        self._form = form

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
        moe = self.exchange
        number = self._open()
        with moe._busy:
            state = moe._slot(slot)
            before = state.nr_tokens, state.extent
            state.nr_tokens, state.extent = self.nr_tokens, self.extent
            try:
                moe._set_combine(state, y)
                if unweighted or topk_weights is not None or floats is not None or out_floats is not None or state.beside is not None:
                    moe._set_beside(state, unweighted, topk_weights, floats, out_floats)
                out, address = moe._out(state, out)
                state.combine.plan, state.combine.tag = number, tag
                moe._check(moe._lib.tern_combine(moe._use(state, None), state.combine_at, address, state.out_stride))
            except BaseException:
                state.nr_tokens, state.extent = before
                raise
            finally:
                state.combine.plan = 0
            state.turn += 1
            return out

    def close(self) -> None:
        """Gives its memory back. Without it, its exchange does."""
        if self._number and self.exchange._handle is not None:
            with self.exchange._busy:
                self.exchange._check(library().tern_plan_destroy(self.exchange.native, self._number))
        self._number = 0

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
