# SPDX-License-Identifier: Apache-2.0
"""Errors of the library as exceptions: the code, the cause with its figures, and who was waited for."""

from __future__ import annotations

import ctypes
import enum
from dataclasses import dataclass
from typing import Any, Dict, Optional, Type

from . import _abi
from ._library import library


class Phase(enum.IntEnum):
    """What a wait belongs to."""

    COUNTS = 0
    DISPATCH = 1
    COMBINE = 2


@dataclass(frozen=True)
class WaitReport:
    """Who was waited for when the last wait of an exchange failed: struct tern_wait_report."""

    rank: int
    """Who waited."""
    peer: int
    """For whom: the first one missing."""
    nr_missing: int
    slot: int
    phase: Phase
    epoch_expected: int
    epoch_seen: int
    """Of that peer's word."""
    count_seen: int
    arrived: int
    """Ranks that had arrived."""
    expected: int
    """Ranks that should have."""
    waited_ns: int
    code: int
    """The error that the wait returned."""


class Error(Exception):
    """A call that failed. `code` is the enum tern_error, `text` the cause with its figures, `report` who was waited for."""

    code: int = 0

    def __init__(self, text: str, code: Optional[int] = None, report: Optional[WaitReport] = None):
        super().__init__(text)
        self.text = text
        self.report = report
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"

    @property
    def name(self) -> str:
        """The code's name, such as "TERN_ERR_TIMEOUT"."""
        return _NAMES.get(self.code, f"error {self.code}")


class InvalidError(Error, ValueError):
    """An argument or setting is wrong; nothing was sent."""

    code = -1


class StateError(Error, RuntimeError):
    """A half called out of order, or on something closed; nothing was sent."""

    code = -2


class MismatchError(Error, ValueError):
    """Ranks disagree on a setting."""

    code = -3


class NoMemoryError(Error, MemoryError):
    """No memory, address space or descriptors."""

    code = -4


class SystemCallError(Error, OSError):
    """A system call failed."""

    code = -5


class BootstrapError(Error):
    """The ranks could not find each other."""

    code = -6


class WaitTimeoutError(Error, TimeoutError):
    """A wait expired. Make the same call again to go on waiting."""

    code = -7


class PeerDeadError(Error, ConnectionError):
    """A peer's process ended without leaving."""

    code = -8


class PeerLeftError(Error, ConnectionError):
    """A peer destroyed its exchange, or gave it up, while others wait for it."""

    code = -9


class CapacityError(Error):
    """A rank would receive more rows than it can take. No row moved, and the slot is free."""

    code = -10


class ProtocolError(Error):
    """A peer did what no correct peer does."""

    code = -11


class UnsupportedError(Error, NotImplementedError):
    """Not built in, or not possible on this machine."""

    code = -12


class MembersError(Error, ConnectionError):
    """A member of an elastic group is gone. Call Group.view_change, then make the round again; `report` says who was waited for."""

    code = -13


class ExpelledError(Error, ConnectionError):
    """The other members of an elastic group have gone on without this rank."""

    code = -14


class QuorumError(Error, ConnectionError):
    """Too few members of an elastic group are heard from to go on without the others."""

    code = -15


class LostExpertsError(Error):
    """No member of an elastic group holds some experts any more. Nothing was sent."""

    code = -16


_NAMES = {code: name for name, code in _abi.ENUMS["tern_error"].items()}
CLASSES: Dict[int, Type[Error]] = {
    kind.code: kind
    for kind in (
        InvalidError,
        StateError,
        MismatchError,
        NoMemoryError,
        SystemCallError,
        BootstrapError,
        WaitTimeoutError,
        PeerDeadError,
        PeerLeftError,
        CapacityError,
        ProtocolError,
        UnsupportedError,
        MembersError,
        ExpelledError,
        QuorumError,
        LostExpertsError,
    )
}
_WAITED = (WaitTimeoutError.code, PeerDeadError.code, PeerLeftError.code, ProtocolError.code, MembersError.code)


def wait_report(moe: Any) -> Optional[WaitReport]:
    """The report of a native exchange; None if no wait has failed."""
    report = _abi.sized(_abi.tern_wait_report)
    if library().tern_moe_wait_report(moe, ctypes.byref(report)) or report.peer < 0:
        return None
    return WaitReport(
        report.rank,
        report.peer,
        report.nr_missing,
        report.slot,
        Phase(report.phase),
        report.epoch_expected,
        report.epoch_seen,
        report.count_seen,
        report.arrived,
        report.expected,
        report.waited_ns,
        report.error,
    )


def check(code: int, moe: Any = None) -> int:
    """Returns what is not negative; raises the rest, with this thread's last error."""
    if code >= 0:
        return code
    text = library().tern_last_error().decode("utf-8", "replace")
    report = wait_report(moe) if moe is not None and code in _WAITED else None
    raise CLASSES.get(code, Error)(text, code, report)
