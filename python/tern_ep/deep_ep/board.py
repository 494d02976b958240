# SPDX-License-Identifier: Apache-2.0
"""A few words of each rank to all ranks, on the host: what deep_ep exchanges before a dispatch of unknown size, and what the
library exchanges when an exchange is made. Both name a rank that dies, as the way of a process group would not."""

from __future__ import annotations

from typing import Any, List

import numpy as np
import numpy.typing as npt

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
        self.nr_ranks = nr_ranks
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

    def gather(self, mine: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """[R][...] of what each rank passes, all of one shape and type."""
        given = np.ascontiguousarray(mine).reshape(-1).view(np.uint8)
        found = np.empty((self.nr_ranks, len(given)), np.uint8)
        for begin in range(0, len(given), _BYTES):
            part = given[begin : begin + _BYTES]
            self._x[:, : len(part)] = part
            received = self._exchange.dispatch(self._x, self._ids)
            found[:, begin : begin + len(part)] = received.x[: self.nr_ranks, : len(part)]
            self._exchange.release()
        return found.view(mine.dtype).reshape((self.nr_ranks,) + mine.shape)

    def allgather(self, mine: bytes) -> List[bytes]:
        return [row.tobytes() for row in self.gather(np.frombuffer(mine, np.uint8))]

    def close(self) -> None:
        self._exchange.close()
