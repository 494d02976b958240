# SPDX-License-Identifier: Apache-2.0
"""vLLM's and SGLang's own classes over tern_ep.deep_ep, on CPU ranks: skipped where torch or the engines' files are not there. On GPUs
scripts/gpus.sh runs the same program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import engines  # noqa: E402

import tern_ep  # noqa: E402
from tern_ep._library import library  # noqa: E402

FOLDER = Path(os.environ.get("TERN_ENGINES") or Path(__file__).resolve().parents[2] / "build" / "engines")
if not engines.is_there(FOLDER):
    pytest.skip(f"{FOLDER} has not vLLM's and SGLang's files, which python/tests/engines.py fetches", allow_module_level=True)

PROGRAM = Path(__file__).with_name("engine_ranks.py")


@pytest.mark.parametrize("nr_ranks, part", [(2, "vllm_ht"), (3, "vllm_ht"), (2, "vllm_ll"), (2, "sglang_normal"), (2, "sglang_ll"), (2, "sglang_auto")])
def test_on_cpus(nr_ranks: int, part: str) -> None:
    """Each form of rows, judged by rank 0. Waits are bounded, and loops by a limit of processor time that ranks set themselves."""
    env = dict(os.environ, TERN_LIBRARY=str(Path(library().path).resolve()), PYTHONPATH=str(Path(tern_ep.__file__).resolve().parents[1]), TERN_DEEP_EP_WAIT_MS="30000")
    command = [sys.executable, str(PROGRAM), "--ranks", str(nr_ranks), "--engines", str(FOLDER), part]
    ended = subprocess.run(command, env=env, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(" rounds, ") >= 4, ended.stdout


def test_what_is_named() -> None:
    """The guide names each stand-in."""
    page = Path(os.environ.get("TERN_DOCS") or Path(__file__).resolve().parents[2] / "docs").joinpath("deep_ep.md").read_text()
    setting = engines.Setting(0, 1, lambda x: x)
    names = [*engines.of_vllm(setting), *engines.of_sglang(setting), *engines.EMPTY]
    assert [name for name in names if f"`{name.split('.')[-1]}`" not in page and f"`{name}`" not in page] == []
