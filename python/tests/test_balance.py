# SPDX-License-Identifier: Apache-2.0
"""Placements planned from loads; what the plan is worth is tests/unit/test_balance.c's."""

import numpy as np
import pytest

import tern_ep


def test_plan_and_copies() -> None:
    load = np.random.default_rng(3).lognormal(sigma=0.5, size=32)
    now = [place % 32 for place in range(40)]
    with tern_ep.Balance(32, 40, 8) as balance:
        free = balance.plan(load)
        few = balance.plan(load, now=now, max_copies=5)
    assert free.after < 1.05 and not free.copies and set(free.logical) == set(range(32))
    assert few.after < few.before and 0 < len(few.copies) <= 5
    for copy in few.copies:
        assert now[copy.source] == copy.expert != now[copy.to]
        now[copy.to] = copy.expert
    assert now == few.logical


def test_the_dead_hold_nothing() -> None:
    with tern_ep.Balance(4, 8, 4, domain=[0, 0, 1, 1]) as balance:
        planned = balance.plan([1, 1, 1, 1], now=[0, 1, 2, 3, 2, 3, 2, 3], alive=[False, True, True, True], spread=2)
    assert planned.logical[:2] == [-1, -1] and planned.before == 0
    assert {copy.expert: copy.source for copy in planned.copies if copy.expert < 2} == {0: -1, 1: -1}


def test_an_exchange_takes_it() -> None:
    with tern_ep.Balance(8, 8, 1) as balance, tern_ep.Group.alone() as group:
        logical = balance.plan(range(8)).logical
        placement = tern_ep.Placement(8, logical)
        config = tern_ep.Config(hidden=16, nr_experts=8, topk=1, max_tokens=4, placement=placement)
        with tern_ep.Exchange(group, config) as moe:
            assert list(moe.local_experts) == logical


def test_refusals() -> None:
    with pytest.raises(tern_ep.InvalidError, match="4 experts, 3 places"):
        tern_ep.Balance(4, 3, 1)
    balance = tern_ep.Balance(4, 4, 1)
    with pytest.raises(tern_ep.InvalidError, match=r"load\[1\] is nan"):
        balance.plan([1, float("nan"), 1, 1])
    with pytest.raises(tern_ep.InvalidError, match="load has 3 entries; it takes 4"):
        balance.plan([1, 1, 1])
    balance.close()
    balance.close()
    with pytest.raises(tern_ep.StateError):
        balance.plan([1, 1, 1, 1])
