# SPDX-License-Identifier: Apache-2.0
"""A few words of each rank to all ranks, on the host: what deep_ep exchanges before a dispatch of unknown size, and what the
library exchanges when an exchange is made. Both name a rank that dies, as the way of a process group would not."""

from __future__ import annotations

from typing import List, Tuple

import numpy as np

from ..arrays import Dtype
from ..config import Config, Layout, Reduce, Weights
from ..exchange import Exchange
from ..group import Group

_BYTES = 2048
"""Of one round: the counts of 8 ranks and 500 experts."""
_MOST = 32
"""Ranks that one token can go to."""


class Board:
    def __init__(self, group: Group, wait_ms: int):
        nr_ranks = group.nr_ranks
        self.rank, self.nr_ranks = group.rank, nr_ranks
        self._ids = np.full((-(-nr_ranks // _MOST), min(nr_ranks, _MOST)), -1, np.int32)
        self._ids.reshape(-1)[:nr_ranks] = np.arange(nr_ranks)
        self._x = np.zeros((len(self._ids), _BYTES), np.uint8)
        self._exchange = Exchange(
            group,
            Config(
                hidden=8,
                nr_experts=nr_ranks,
                topk=self._ids.shape[1],
                max_tokens=len(self._ids),
                layout=Layout.BY_SOURCE,
                reduce=Reduce.EXPERT,
                weights=Weights.PASS,
                x_dtype=Dtype.BYTES,
                dispatch_dtype=Dtype.BYTES,
                payload_bytes=_BYTES,
                wait_ms=wait_ms,
            ),
        )

        self._exchange._look_at_dispatch(self._exchange._slots[0], self._x, self._ids, None, None)
        self._calls = self._exchange._calls

    def allgather(self, mine: bytes) -> List[bytes]:
        found = self._calls.gather(self._exchange, self.nr_ranks, mine)
        return [found[begin : begin + len(mine)] for begin in range(0, len(found), len(mine))]

    def tell(
        self, nr_tokens: int, held: int, rank_tokens: int, expert_routes: int, nr_experts: int, alignment: int
    ) -> Tuple[int, int, int, List[int], int, bytes]:
        """A dispatch's counts, [R] and [E] of 32 bits at these addresses on the host, by all ranks to all: most tokens of a rank; most
        rows that a rank receives; rows that this one receives; routes to its experts, rounded up; slots that are held on any rank; and
        all of it, [R][2 + R + E]: tokens, slots, counts."""
        told: Tuple[int, int, int, List[int], int, bytes] = self._calls.tell(
            self._exchange, self.nr_ranks, self.rank, nr_tokens, held, rank_tokens, expert_routes, nr_experts, alignment
        )
        return told

    def close(self) -> None:
        self._exchange.close()
