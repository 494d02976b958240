# SPDX-License-Identifier: Apache-2.0
"""The console command tern-ep."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from test_groups import command, run

from tern_ep._library import library

SCRIPT = Path(sys.executable).with_name("tern-ep")
if not SCRIPT.exists():
    pytest.skip("the package is not installed, so there is no tern-ep", allow_module_level=True)


def test_it_is_the_librarys_command() -> None:
    ours, theirs = run([str(SCRIPT), "run", "--help"]), run([command(), "run", "--help"])
    assert (ours.returncode, ours.stdout) == (0, theirs.stdout) and "tern run" in ours.stdout


def test_exit_codes_and_ranks() -> None:
    program = "import sys, tern_ep; g = tern_ep.Group.from_environment(); sys.exit(3 * (g.nr_ranks == 2))"
    assert run([str(SCRIPT), "run", "-n", "2", "--", sys.executable, "-c", program]).returncode == 3


def test_without_a_library() -> None:
    done = run([str(SCRIPT), "info"], TERN_LIBRARY="/nowhere/libtern.so")
    assert done.returncode == 1 and "tern-ep: libtern was not found" in done.stderr and "Traceback" not in done.stderr


def test_the_path_is_a_file() -> None:
    assert Path(library().path).is_absolute() and Path(library().path).is_file()


CUDA = """
import ctypes, tern_ep
from tern_ep._library import library, load_cuda
load_cuda()
config = tern_ep.Config(hidden=64, nr_experts=4, topk=2, max_tokens=4, device=tern_ep.Device.CUDA)
with tern_ep.Group.alone() as group:
    moe = ctypes.c_void_p()
    code = library().tern_moe_create(group.native, ctypes.byref(config.struct()), ctypes.byref(moe))
    print("made" if code == 0 else library().tern_last_error().decode())
    library().tern_moe_destroy(moe)
"""


def test_the_package_of_kernels_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With emulated GPUs in place of the kernels of tern-ep-cu13."""
    emulated = Path(os.environ.get("TERN_EMULATED", "/nowhere"))
    if not (emulated / "libtern_cuda.so").exists():
        pytest.skip("TERN_EMULATED names no folder with emulated GPUs")
    monkeypatch.delenv("TERN_CUDA_LIBRARY", raising=False)
    program = [sys.executable, "-c", CUDA]
    assert "no GPUs here: libtern_cuda.so" in run(program).stdout
    package = tmp_path / "tern_ep_cu13"
    package.mkdir()
    (package / "__init__.py").touch()
    for file in emulated.glob("*.so"):
        shutil.copy(file, package)
    found = run(program, PYTHONPATH=str(tmp_path))
    assert found.stdout == "made\n", found.stdout + found.stderr
    assert "kernels on GPU 0       emulated" in run([str(SCRIPT), "doctor", "-q"], PYTHONPATH=str(tmp_path)).stdout
    (package / "libtern_cuda.so").write_bytes(b"nothing of the kind")
    assert "tern-ep-cu13 is installed, but cannot be loaded" in run(program, PYTHONPATH=str(tmp_path)).stderr
