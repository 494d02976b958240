# SPDX-License-Identifier: Apache-2.0
"""Native objects, each destroyed once, when the last who holds it lets go.

An exchange's handle is held by the Exchange until it is closed, and by every array that shows its memory; a group's is held by the
Group and by the handles of its exchanges. So no array outlives its memory, and the order of destruction is always right. A
process that was forked off leaves its parent's objects alone.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Optional

from ._library import library
from . import _calls
from .errors import StateError


_process = os.getpid()
"""This one; asking the system on every call would be a system call on every call."""


def _forked() -> None:
    global _process
    _process = os.getpid()
    _calls.forked()


os.register_at_fork(after_in_child=_forked)


def _end(destroy: Any, pointer: int, pid: int, held: Any) -> None:
    if os.getpid() == pid:
        destroy(pointer)


class Handle:
    """A native object. `held` is what has to outlive it."""

    def __init__(self, destroy: str, pointer: int, held: Any = None):
        self._pointer = pointer
        self._pid = os.getpid()
        self.held = held
        weakref.finalize(self, _end, getattr(library(), destroy), pointer, self._pid, held)

    @property
    def here(self) -> bool:
        """Whether this is the process that made it."""
        return self._pid == _process

    @property
    def pointer(self) -> int:
        if self._pid != _process:
            raise StateError(f"made by process {self._pid}, and used in {_process}: after a fork the child has to make its own")
        return self._pointer


def opened(handle: Optional[Handle], what: str) -> int:
    """The pointer of a handle that its object still has."""
    if handle is None:
        raise StateError(f"{what} is closed")
    return handle._pointer if handle._pid == _process else handle.pointer
