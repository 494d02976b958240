# SPDX-License-Identifier: Apache-2.0
"""Finds libtern and loads it, once, when it is first needed."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import threading
from pathlib import Path
from typing import Any, List, Optional

from . import _abi
from ._extension import LibraryError as LibraryError  # before anything that needs tern_ep._calls
from . import _calls
from ._version import __version__

SONAME = "libtern.so." + __version__.split(".")[0]


def candidates() -> List[str]:
    """Where libtern may be, best first: TERN_LIBRARY alone if it is set; in this package; the tree in which this file lies; what is
    installed."""
    chosen = os.environ.get("TERN_LIBRARY")
    if chosen:
        return [os.path.join(chosen, SONAME) if os.path.isdir(chosen) else chosen]
    here = Path(__file__).resolve()
    beside = [here.parent / "_native" / SONAME, here.parents[2] / "build" / SONAME]
    return [str(path) for path in beside if path.exists()] + [SONAME, "/usr/local/lib/" + SONAME]


def cuda_library() -> Optional[str]:
    """libtern_cuda.so of the package tern-ep-cu13, where that is installed and nothing says otherwise."""
    if "TERN_CUDA_LIBRARY" in os.environ:
        return None
    spec = importlib.util.find_spec("tern_ep_cu13")
    folders = spec.submodule_search_locations if spec is not None else None
    paths = [Path(folder) / "libtern_cuda.so" for folder in folders or []]
    return next((str(path) for path in paths if path.exists()), None)


def load_cuda() -> None:
    """Before libtern looks for libtern_cuda.so: the loader gives it what is loaded already under that name."""
    path = cuda_library()
    if path is not None:
        try:
            ctypes.CDLL(path)
        except OSError as error:
            raise LibraryError(f"tern-ep-cu13 is installed, but cannot be loaded: {error}") from None


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


class _Place(ctypes.Structure):
    """Dl_info of dlfcn.h."""

    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p)]


def _file_of(dll: ctypes.CDLL) -> str:
    """Where a library lies that the loader may have found by its name alone."""
    place = _Place()
    try:
        address = ctypes.cast(dll.tern_version, ctypes.c_void_p)
    except AttributeError:
        return str(dll._name)
    found = ctypes.CDLL(None).dladdr(address, ctypes.byref(place))
    return os.fsdecode(place.file) if found and place.file else str(dll._name)


class Library:
    """The loaded library: every function of tern.h is an attribute. Calls run without the interpreter's lock."""

    def __init__(self) -> None:
        self._dll = _open()
        self.path = _file_of(self._dll)
        for name, (result, arguments) in _abi.FUNCTIONS.items():
            try:
                function = getattr(self._dll, name)
            except AttributeError:
                raise LibraryError(f"{self.path} has no {name}: it is not Tern {__version__}") from None
            function.restype = result
            function.argtypes = arguments
            setattr(self, name, function)
        self._check()
        _calls.bind(lambda name: ctypes.cast(getattr(self._dll, name), ctypes.c_void_p).value or 0)

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
