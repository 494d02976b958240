# SPDX-License-Identifier: Apache-2.0
"""tern-ep check: what works here, in one page. Each line that begins with "works" was tried."""

from __future__ import annotations

import argparse
import importlib
import platform
import subprocess
import sys
from typing import Any, Callable, List, Optional

import numpy as np

from ._library import LibraryError, cuda_library, library
from ._version import __version__
from .command import environment, native
from .config import Config, Device
from .errors import Error
from .exchange import Exchange
from .group import Group, run_threads

HIDDEN, TOKENS, EXPERTS, TOPK = 128, 5, 4, 2


def _line(what: str, said: str) -> None:
    print(f"{what:<22} {said}")


def _package(name: str) -> str:
    try:
        return str(getattr(importlib.import_module(name), "__version__", "there"))
    except Exception as error:  # a package can be broken in every way
        return "not installed" if isinstance(error, ModuleNotFoundError) else f"broken: {error}"


def _config(device: Device) -> Config:
    return Config(hidden=HIDDEN, nr_experts=EXPERTS, topk=TOPK, max_tokens=TOKENS, device=device)


def _routes(rank: int) -> Any:
    """Rows whose BF16 values are small integers, each to two different experts with weight 1: sums are exact."""
    rows = (np.arange(TOKENS * HIDDEN, dtype=np.float32) % 61 + rank).reshape(TOKENS, HIDDEN)
    ids = np.array([[t % EXPERTS, (t + 1) % EXPERTS] for t in range(TOKENS)], np.int32)
    return rows, ids


def _on_cpu(group: Group) -> None:
    """A round whose experts return what they got: twice the tokens must come home."""
    rows, ids = _routes(group.rank)
    bits = (rows.view(np.uint32) >> 16).astype(np.uint16)
    with Exchange(group, _config(Device.CPU)) as moe:
        received = moe.dispatch(bits, ids)
        y = moe.empty_y(received)
        y[: received.extent] = received.x
        out = (moe.combine(y).astype(np.uint32) << 16).view(np.float32)
    if not np.array_equal(out, 2 * rows):
        raise RuntimeError("sums are wrong")


def _on_gpu(group: Group) -> None:
    import torch

    torch.cuda.set_device(group.rank % torch.cuda.device_count())
    rows, ids = (torch.from_numpy(a).cuda() for a in _routes(group.rank))
    x = rows.to(torch.bfloat16)
    with Exchange(group, _config(Device.CUDA), arrays="torch") as moe:
        received = moe.dispatch(x, ids)
        y = moe.empty_y(received)
        y.copy_(received.x)
        out = moe.combine(y)
        torch.cuda.synchronize()
        moe.status()
        if not torch.equal(out, 2 * x):
            raise RuntimeError("sums are wrong")


def _try(what: str, function: Callable[[], Any], works: str) -> bool:
    try:
        function()
    except (Error, ImportError, OSError, RuntimeError) as error:
        _line(what, f"does not work: {error}")
        return False
    _line(what, f"works: {works}")
    return True


def _gpus() -> Optional[bool]:
    """Whether they work; None: there are none."""
    plugin = cuda_library()
    _line("tern-ep-cu13", plugin or "not installed")
    try:
        import torch
    except Exception:
        _line("GPUs", "not tried: torch is not installed")
        return None
    nr = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not nr:
        _line("GPUs", "not tried: torch sees no CUDA device")
        return None
    return _try("GPUs", lambda: run_threads(nr, _on_gpu), f"{nr} in one process, a round over all of them")


def _networks() -> bool:
    command = native()
    if command is None:
        _line("networks", "not tried: the command tern is not there")
        return True
    said = subprocess.run([command, "doctor"], env=environment(), capture_output=True, text=True)
    print("\nThe command tern doctor, for ranks of other nodes:\n" + said.stdout.rstrip() + said.stderr)
    return said.returncode in (0, 1)


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tern-ep check", description="Says in one page what works here. The exit code is 0 if ranks of this machine can exchange tokens."
    )
    parser.parse_args(arguments)
    _line("tern-ep", f"{__version__}, Python {platform.python_version()}, {platform.machine()}, {' '.join(platform.libc_ver())}")
    try:
        path = library().path
    except LibraryError as error:
        _line("libtern", f"does not work: {error}")
        return 1
    _line("libtern", f"{library().version()}, {path}")
    _line("command tern", native() or "not there")
    for name in ("numpy", "torch", "ml_dtypes", "mpi4py"):
        _line(name, _package(name))

    def alone() -> None:
        with Group.alone() as group:
            _on_cpu(group)

    good = _try("one rank", alone, "dispatch and combine, bit for bit")
    good &= _try("two ranks", lambda: run_threads(2, _on_cpu), "the same, in shared memory")
    good &= _gpus() is not False
    good &= _networks()
    sys.stdout.flush()
    return 0 if good else 1
