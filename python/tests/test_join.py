# SPDX-License-Identifier: Apache-2.0
"""A rank that was killed is started anew, and takes its place again: over the rendezvous of `tern run`, and over one of Python's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest
from test_groups import command, run

import tern_ep as tern

PROGRAM = Path(__file__).with_name("joining.py")


@pytest.mark.parametrize(("own", "nodes"), [(False, "1"), (True, "1"), (True, "2")])
def test_takes_its_place_again(own: bool, nodes: str, tmp_path: Path) -> None:
    folder = [str(tmp_path)] if own else []
    where = ["--nodes", nodes, "--by-name"]
    done = run([command(), "run", "-n", "4", *where, "--elastic", "--restart", "1", "--", sys.executable, str(PROGRAM), *folder])
    assert done.returncode == 0, done.stderr
    # Not by lines: a line's end may be a write of its own.
    assert (done.stdout.count("joined"), done.stdout.count("went on")) == (1, 3), done.stdout


class Store:
    """What StoreRendezvous needs of torch's."""

    def __init__(self) -> None:
        self.values: Dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: List[str]) -> bool:
        return all(key in self.values for key in keys)


def test_store_keeps_bytes() -> None:
    store: Any = Store()
    one, other = tern.StoreRendezvous(store, "a."), tern.StoreRendezvous(store, "b.")
    one.set("k", b"\0\xff")
    assert one.get("k") == b"\0\xff"
    assert other.get("k") is None


def test_nobody_is_there() -> None:
    with pytest.raises(tern.BootstrapError, match="none of 3 has"):
        tern.Group.join(1, 4, tern.StoreRendezvous(Store()), wait_ms=50)


def test_what_it_raises_comes_out() -> None:
    class Broken:
        def set(self, key: str, value: bytes) -> None:
            raise KeyError(key)

        def get(self, key: str) -> bytes:
            raise ConnectionError("no store")

    with pytest.raises(ConnectionError, match="no store"):
        tern.Group.join(0, 2, Broken(), wait_ms=50)
    with pytest.raises(KeyError, match=r"tern\.member\.0"):
        tern.Group.alone(elastic=True, rendezvous=Broken())
    with pytest.raises(tern.InvalidError, match="somewhere"):
        tern.Group.alone(elastic=True, rendezvous="somewhere")
    with pytest.raises(tern.InvalidError, match="not elastic"):
        tern.Group.alone(rendezvous=tern.StoreRendezvous(Store()))
