# SPDX-License-Identifier: Apache-2.0
"""Loads _calls.abi3.so, the compiled part of this package, as tern_ep._calls. It lies beside libtern."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import sysconfig
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import List

from . import _abi
from ._version import __version__


class LibraryError(ImportError):
    """libtern, or the compiled part of this package, was not found, or is not the one that this package was written for."""


NAME = "_calls.abi3.so"


def folders() -> List[Path]:
    """That of TERN_LIBRARY; in this package; the tree in which this file lies."""
    chosen = os.environ.get("TERN_LIBRARY")
    here = Path(__file__).resolve()
    first = [] if not chosen else [Path(chosen) if os.path.isdir(chosen) else Path(chosen).parent]
    return first + [here.parent / "_native", here.parents[2] / "build"]


def load() -> None:
    name = f"{__package__}._calls"
    if name in sys.modules:
        return
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise LibraryError("this is a Python without the global lock (free-threaded), for which tern_ep is not built: use the other one")
    path = next((str(folder / NAME) for folder in folders() if (folder / NAME).exists()), None)
    if path is None:
        raise LibraryError(f"{NAME} was not found in {', '.join(map(str, folders()))}: run `make` in the tree, where Python.h is")
    loader = ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    if module.VERSION != ".".join(__version__.split(".")[:2]):
        raise LibraryError(f"{path} is of Tern {module.VERSION}; this package is {__version__}")
    sizes = tuple(ctypes.sizeof(struct) for struct in (_abi.tern_dispatch, _abi.tern_received, _abi.tern_combine))
    if module.SIZES != sizes:
        raise LibraryError(f"{path} has structs of {module.SIZES} bytes; this package of {sizes}: build both from one tree")
    sys.modules[name] = module


load()
