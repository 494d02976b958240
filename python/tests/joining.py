# SPDX-License-Identifier: Apache-2.0
"""Not a test itself: a rank of test_join.py and test_torchrun.py. Rank 2 kills itself once; `tern run`, or torchrun, starts it anew,
and it joins the others. Arguments: none, the rendezvous of `tern run`; a folder; or the host and port of a TCPStore, and a rank."""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
from typing import Any, Optional

import numpy as np

import tern_ep as tern

RANKS, EXPERTS, HIDDEN, TOKENS, VICTIM = 4, 8, 16, 5, 2


class Files:
    """A rendezvous in a folder."""

    def __init__(self, folder: str):
        self.folder = folder

    def set(self, key: str, value: bytes) -> None:
        fresh = f"{self.folder}/{key}.{os.getpid()}"
        with open(fresh, "wb") as file:
            file.write(value)
        os.rename(fresh, f"{self.folder}/{key}")

    def get(self, key: str) -> Optional[bytes]:
        try:
            with open(f"{self.folder}/{key}", "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None


def config() -> tern.Config:
    experts = list(range(EXPERTS)) * 2
    ranks = [e % RANKS for e in range(EXPERTS)] + [(e + 1) % RANKS for e in range(EXPERTS)]
    fp32 = tern.Dtype.FP32
    return tern.Config(
        hidden=HIDDEN,
        nr_experts=EXPERTS,
        topk=2,
        max_tokens=TOKENS,
        reduce=tern.Reduce.HOME,
        x_dtype=fp32,
        dispatch_dtype=fp32,
        combine_dtype=fp32,
        placement=tern.Placement(2 * EXPERTS, experts, ranks),
        elastic=True,
    )


def make_round(moe: tern.Exchange, x: Any, ids: Any, tag: int) -> Any:
    received = moe.dispatch(x, ids, tag=tag)
    y = moe.empty_y(received)
    for i in range(moe.nr_local):
        y[received.expert(i)] = received.x[received.expert(i)] * (moe.local_experts[i] + 1) + tag
    return moe.combine(y)


class Rank:
    def __init__(self, group: tern.Group):
        self.group, self.moe = group, tern.Exchange(group, config())
        self.joined = False

    def recover(self) -> None:
        while True:
            try:
                view = self.group.view_change()
                self.joined = self.joined or VICTIM in view.joined
                tag = self.moe.owed()
                if tag is not None:
                    make_round(self.moe, np.zeros((0, HIDDEN), np.float32), np.zeros((0, 2), np.int32), tag)
                return
            except tern.MembersError:
                pass

    def again(self, what: Any) -> Any:
        while True:
            try:
                return what()
            except tern.MembersError:
                self.recover()

    def step(self, number: int) -> None:
        rng = np.random.default_rng(number * RANKS + self.group.rank)
        x = rng.integers(0, 64, (TOKENS, HIDDEN)).astype(np.float32)
        ids = rng.permuted(np.tile(np.arange(EXPERTS, dtype=np.int32), (TOKENS, 1)), axis=1)[:, :2].copy()
        out = self.again(lambda: make_round(self.moe, x, ids, number))
        due = sum(x * (ids[:, k : k + 1] + 1) + number for k in range(2))
        assert np.array_equal(out, due), f"round {number}"

    def gather(self, number: int, enough: bool) -> "tuple[int, bool]":
        """The number that the others are at, and whether all have had enough; number 0: not known here."""
        told = [struct.unpack("qq", part) for part in self.again(lambda: self.group.allgather(struct.pack("qq", number, enough)))]
        others = [t for t in told if t[0]]
        return others[0][0], all(t[1] for t in others)


def enter() -> tern.Group:
    if len(sys.argv) > 2:
        from torch.distributed import TCPStore

        store = TCPStore(sys.argv[1], int(sys.argv[2]), None, False)
        return tern.Group.from_store(store, int(sys.argv[3]), RANKS, "job.", elastic=True)
    rendezvous: Any = Files(sys.argv[1]) if len(sys.argv) > 1 else tern.ENVIRONMENT
    if tern.restarts():
        return tern.Group.join(int(os.environ["TERN_RANK"]), RANKS, rendezvous)
    return tern.Group.from_environment(elastic=True, rendezvous=rendezvous)


def main() -> None:
    number, enough = 1, False
    rank = Rank(enter())
    joins = rank.group.joins
    if joins:
        view = rank.group.view_change()
        assert view.joined == (VICTIM,) and VICTIM in view.alive
        rank.joined = True
        number, enough = rank.gather(0, True)
    else:
        number, enough = rank.gather(number, False)
    end = number + 20 if rank.group.rank == VICTIM else 0
    while not enough:
        if rank.group.rank == VICTIM and not joins and number == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        rank.step(number)
        number += 1
        if not rank.joined:
            time.sleep(0.01)  # nothing depends on it: fewer rounds until it comes
        _, enough = rank.gather(number, rank.joined and number > end)
    assert rank.joined
    print("joined" if joins else "went on", flush=True)
    rank.moe.close()
    rank.group.close()


main()
