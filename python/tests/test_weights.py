# SPDX-License-Identifier: Apache-2.0
"""Weights that move between ranks, from Python; what the store is worth is tests/unit/test_weights.c's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tern_ep
from tern_ep import Copy, Engine, Group, WeightStore

RANKS, LOCAL, EXPERTS = 3, 3, 6


def weights_of(expert: int) -> Any:
    return np.random.default_rng(expert).standard_normal((40, 50)).astype(np.float32)


def load(layer: int, expert: int, offset: int, into: memoryview) -> None:
    if expert == 5:
        raise OSError("no such file")
    into[:] = weights_of(expert).tobytes()[offset : offset + len(into)]


def store_of(group: Group, engine: Engine, tensor: Any, **settings: Any) -> WeightStore:
    store = WeightStore(engine, [[tensor]], nr_experts=EXPERTS, nr_physical=RANKS * LOCAL, page_bytes=1024, **settings)
    for i in range(2):
        tensor[i] = weights_of(group.rank * 2 + i)
        store.hold(0, group.rank * LOCAL + i, group.rank * 2 + i)
    group.allgather(b"")
    return store


def test_copies_and_backups() -> None:
    def rank(group: Group) -> None:
        tensor = np.zeros((LOCAL, 40, 50), np.float32)
        logical = [p // LOCAL * 2 + p % LOCAL if p % LOCAL < 2 else -1 for p in range(RANKS * LOCAL)]
        with Engine(group) as engine, store_of(group, engine, tensor, nr_backups=4) as store:
            store.use(0, logical)
            store.backup(0, logical).wait()
            copies = [Copy((r + 1) % RANKS * 2, (r + 1) % RANKS * LOCAL, r * LOCAL + 2) for r in range(RANKS)]
            move = store.move(0, copies)
            with pytest.raises(tern_ep.StateError, match="does not hold it whole"):
                store.use(0, [0, 1, 2, 2, 3, 4, 4, 5, 0])
            while not move.done():
                pass
            assert move.done() and move.progress == (1, 1, 0, 0)
            wanted = (group.rank + 1) % RANKS * 2
            np.testing.assert_array_equal(tensor[2], weights_of(wanted))
            held = store.held(0)
            assert held[group.rank * LOCAL + 2] == wanted and held[(group.rank + 1) % RANKS * LOCAL] == -1
            store.use(0, [0, 1, 2, 2, 3, 4, 4, 5, 0])
            with pytest.raises(tern_ep.StateError, match="names"):
                store.hold(0, group.rank * LOCAL, -1)
            assert store.stats.copies >= 2 and store.stats.failed == 0
            group.allgather(b"")

    tern_ep.run_threads(RANKS, rank)


def test_checkpoint() -> None:
    def rank(group: Group) -> None:
        tensor = np.zeros((LOCAL, 40, 50), np.float32)
        with Engine(group) as engine, store_of(group, engine, tensor, load=load) as store:
            for i in range(2):
                store.hold(0, group.rank * LOCAL + i, -1)
            group.allgather(b"")
            tensor[:] = 0
            store.move(0, [Copy(4, -1, group.rank * LOCAL)]).wait()
            np.testing.assert_array_equal(tensor[0], weights_of(4))
            if group.rank == 0:
                with pytest.raises(tern_ep.LostExpertsError, match="load returned -1") as raised:
                    store.move(0, [Copy(5, -1, 1)]).wait()
                assert isinstance(raised.value.__cause__, OSError)
            group.allgather(b"")

    tern_ep.run_threads(RANKS, rank)


def test_refusals() -> None:
    with Group.alone() as group, Engine(group) as engine:
        with pytest.raises(tern_ep.InvalidError, match="at least one layer"):
            WeightStore(engine, [], nr_experts=2, nr_physical=2)
        with pytest.raises(tern_ep.InvalidError, match="not dense"):
            WeightStore(engine, [[np.zeros((4, 4))[:, :2]]], nr_experts=2, nr_physical=2)
        store = WeightStore(engine, [[np.zeros((2, 8))]], nr_experts=2, nr_physical=2)
        with pytest.raises(tern_ep.InvalidError, match="to 2 of 2"):
            store.move(0, [Copy(0, -1, 2)])
        with pytest.raises(tern_ep.InvalidError, match="logical has 3 entries"):
            store.use(0, [0, 1, 0])
        store.close()
        with pytest.raises(tern_ep.StateError, match="closed"):
            store.held(0)
