# SPDX-License-Identifier: Apache-2.0
"""The console command tern-ep: the command `tern` that belongs to the library, whose own name another package has on PyPI.

    tern-ep check                                what works here, in one page
    tern-ep run -n 4 -- python3 program.py
    tern-ep bench --preset deepseek-v3
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Dict, List, Optional

from ._library import LibraryError, cuda_library, library


def environment() -> Dict[str, str]:
    """For the command: where the kernels of tern-ep-cu13 are."""
    plugin = cuda_library()
    return {**os.environ, **({"TERN_CUDA_LIBRARY": plugin} if plugin else {})}


def native() -> Optional[str]:
    """The command beside the library, else that of a `make install` beside its lib folder, else on PATH."""
    folder = Path(library().path).resolve().parent
    for beside in (folder / "tern", folder.parent / "bin" / "tern"):
        if os.access(beside, os.X_OK):
            return str(beside)
    return shutil.which("tern")


def main(arguments: Optional[List[str]] = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["check"]:
        from .check import main as check

        return check(given[1:])
    try:
        command = native()
        if command is None:
            raise LibraryError(f"the command tern is neither beside {library().path} nor on PATH")
    except LibraryError as error:
        print(f"tern-ep: {error}", file=sys.stderr)
        return 1
    os.execve(command, [command, *given], environment())
