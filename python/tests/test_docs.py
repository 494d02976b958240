# SPDX-License-Identifier: Apache-2.0
"""The program of docs/python.md runs as it stands there."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from test_groups import command, run

DOCS = Path(os.environ.get("TERN_DOCS", Path(__file__).resolve().parents[2] / "docs")) / "python.md"


@pytest.mark.parametrize("nr_ranks", [1, 2, 3])
def test_program(tmp_path: Path, nr_ranks: int) -> None:
    if not DOCS.exists():
        pytest.skip("docs/python.md is not here; set TERN_DOCS")
    program = tmp_path / "program.py"
    program.write_text(re.findall(r"```python\n(.*?)```", DOCS.read_text(), flags=re.S)[0])
    done = run([command(), "run", "-n", str(nr_ranks), "--", sys.executable, str(program)])
    assert done.returncode == 0, done.stdout + done.stderr
    lines = sorted(done.stdout.splitlines())
    assert [line.split(":")[0] for line in lines] == [f"rank {r} of {nr_ranks}" for r in range(nr_ranks)]
    assert sum(int(line.split()[4]) for line in lines) == 80 * nr_ranks
