# SPDX-License-Identifier: Apache-2.0
"""examples/kv: every byte of every block as it was sent, while both work; a peer that is killed in the middle is an exception at the
other. Run again with a libtern that has AddressSanitizer inside."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import List, Tuple

import pytest

from tern_ep._library import library

PROGRAM = Path(os.environ.get("TERN_TREE", Path(__file__).resolve().parents[2])) / "examples" / "kv" / "blocks.py"
if not PROGRAM.exists():
    pytest.skip("examples/kv is not here; set TERN_TREE", allow_module_level=True)


def started(*arguments: str) -> "subprocess.Popen[str]":
    env = {**os.environ, "TERN_LIBRARY": str(Path(library().path).resolve())}
    return subprocess.Popen([sys.executable, str(PROGRAM), *arguments], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(decode: List[str], prefills: List[List[str]]) -> Tuple[Tuple[int, str, str], List[Tuple[int, str, str]]]:
    """Exit codes and what was said."""
    common = ["--transport", "ofi:tcp;ofi_rxm+shm"]
    processes = [started("decode", "--prefills", str(len(prefills)), *common, *decode)]
    try:
        assert processes[0].stdout is not None
        address = re.findall(r"listening at (\S+)", processes[0].stdout.readline())
        assert address, processes[0].communicate()
        processes += [started("prefill", "--connect", address[0], *common, *given) for given in prefills]
        ended = [(p.communicate(timeout=120), p.returncode) for p in processes]
    finally:
        for process in processes:
            process.kill()
    told = [(code, out, err) for (out, err), code in ended]
    return told[0], told[1:]


@pytest.mark.parametrize("nr_prefills", [1, 3])
def test_every_byte(nr_prefills: int) -> None:
    decode, prefills = run(["--requests", "24", "--blocks", "40"], [[]] * nr_prefills)
    assert decode[0] == 0 and "24 requests" in decode[1] and "every byte as it was sent" in decode[1], decode
    layers = [int(n) for _, out, _ in prefills for n in re.findall(r"prefill: (\d+) layers", out)]
    assert [code for code, _, _ in prefills] == [0] * nr_prefills and sum(layers) == 24 * 8, prefills


def test_prefill_is_killed() -> None:
    begun = time.monotonic()
    decode, prefills = run([], [["--die-after", "20"]])
    assert prefills[0][0] == -9
    assert decode[0] == 1 and re.search(r"decode: Peer(Dead|Left)Error: .*rank 1", decode[2]) and "Traceback" not in decode[2], decode
    assert time.monotonic() - begun < 60


def test_decode_is_killed() -> None:
    decode, prefills = run(["--die-after", "5"], [[], []])
    assert decode[0] == -9
    for code, _, err in prefills:
        assert code == 1 and re.search(r"prefill: (Peer(Dead|Left)|Bootstrap)Error: ", err) and "Traceback" not in err, prefills
