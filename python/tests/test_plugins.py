# SPDX-License-Identifier: Apache-2.0
"""The entry points for vLLM and SGLang: Tern takes another deep_ep's place where it is chosen, and touches nothing where it is not."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tern_ep
from tern_ep import plugins
from tern_ep._library import library

OTHER = """
class Buffer: pass
class Config: pass
"""
UTILS = "class EventOverlap: pass\nclass EventHandle: pass\n"
ENGINE = """
import deep_ep
import deep_ep.utils as events
from deep_ep import Buffer, Config as Settings
from deep_ep.utils import EventHandle
class Mine(Buffer): pass
"""
PROGRAM = """
import sys, engine
from tern_ep import plugins
getattr(plugins, sys.argv[1])()
import deep_ep
from deep_ep.utils import EventOverlap
ours = [engine.deep_ep, engine.events, engine.Buffer, engine.Settings, engine.EventHandle, deep_ep, deep_ep.Buffer, EventOverlap]
print(*(int("tern_ep" in (getattr(o, "__module__", None) or o.__name__)) for o in ours), int(engine.Mine.__mro__[1] is deep_ep.Buffer))
"""


def play(room: Path, which: str, **environment: str) -> str:
    (room / "deep_ep").mkdir()
    (room / "deep_ep" / "__init__.py").write_text(OTHER)
    (room / "deep_ep" / "utils.py").write_text(UTILS)
    (room / "engine.py").write_text(ENGINE)
    path = os.pathsep.join((str(room), str(Path(tern_ep.__file__).resolve().parents[1])))
    env = dict(os.environ, TERN_LIBRARY=str(Path(library().path).resolve()), PYTHONPATH=path, **environment)
    return subprocess.run([sys.executable, "-c", PROGRAM, which], env=env, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("which", ["vllm", "sglang"])
def test_chosen(tmp_path: Path, which: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    assert play(tmp_path, which, TERN_DEEP_EP="1") == "1 1 1 1 1 1 1 1 0"  # what was made of the other one stays what it is


@pytest.mark.parametrize("which", ["vllm", "sglang"])
def test_not_chosen(tmp_path: Path, which: str) -> None:
    assert play(tmp_path, which, TERN_DEEP_EP="0") == "0 0 0 0 0 0 0 0 1"


def test_chosen_by_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TERN_DEEP_EP", raising=False)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: name == "tern-ep-deepep" or 1 / 0)
    assert plugins.chosen()
    monkeypatch.setenv("TERN_DEEP_EP", "0")
    assert not plugins.chosen()


def test_entry_points() -> None:
    """Of the installed distribution; in the tree there is none."""
    try:
        points = importlib.metadata.distribution("tern-ep").entry_points
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("tern-ep is not installed")
    found = {point.group: point.load() for point in points if point.name == "tern"}
    assert found == {"vllm.general_plugins": plugins.vllm, "sglang.srt.plugins": plugins.sglang}
