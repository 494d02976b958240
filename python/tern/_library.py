# SPDX-License-Identifier: Apache-2.0
"""Finds libtern and loads it, once, when it is first needed."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from typing import Any, List, Optional

from . import _abi
from ._version import __version__


class LibraryError(ImportError):
    """libtern was not found, or is not the one that this package was written for."""


SONAME = "libtern.so." + __version__.split(".")[0]


def candidates() -> List[str]:
    """Where libtern may be, best first: TERN_LIBRARY alone if it is set; the tree in which this file lies; what is installed."""
    chosen = os.environ.get("TERN_LIBRARY")
    if chosen:
        return [os.path.join(chosen, SONAME) if os.path.isdir(chosen) else chosen]
    tree = Path(__file__).resolve().parents[2] / "build" / SONAME
    return ([str(tree)] if tree.exists() else []) + [SONAME, "/usr/local/lib/" + SONAME]


def _open() -> ctypes.CDLL:
    said = []
    for path in candidates():
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            said.append(str(error))
    raise LibraryError(
        "libtern was not found (set TERN_LIBRARY to the file or its directory, or run `make` in the tree): " + "; ".join(said)
    )


class Library:
    """The loaded library: every function of tern.h is an attribute. Calls run without the interpreter's lock."""

    def __init__(self) -> None:
        self._dll = _open()
        self.path: str = self._dll._name
        for name, (result, arguments) in _abi.FUNCTIONS.items():
            try:
                function = getattr(self._dll, name)
            except AttributeError:
                raise LibraryError(f"{self.path} has no {name}: it is not Tern {__version__}") from None
            function.restype = result
            function.argtypes = arguments
            setattr(self, name, function)
        self._check()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name} is no function of tern.h")

    def _check(self) -> None:
        version = self.version()
        if version.split(".")[:2] != __version__.split(".")[:2]:
            raise LibraryError(f"{self.path} is Tern {version}; this package is {__version__}")

    def initial(self, struct: Any) -> Any:
        """A config struct with the library's defaults, as far as this package knows it."""
        config = struct()
        getattr(self, struct.__name__ + "_init_sized")(ctypes.byref(config), ctypes.sizeof(struct))
        return config

    def version(self) -> str:
        return str(self.tern_version().decode())


_loaded: Optional[Library] = None
_loading = threading.Lock()


def library() -> Library:
    global _loaded
    if _loaded is None:
        with _loading:
            if _loaded is None:
                _loaded = Library()
    return _loaded
