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
    # Not by lines: with PYTHONUNBUFFERED a line's end is a write of its own, and another rank's line may come between.
    said = sorted(re.findall(r"rank (\d) of (\d): (\d+) rows", done.stdout))
    assert [(int(rank), int(of)) for rank, of, _ in said] == [(r, nr_ranks) for r in range(nr_ranks)], done.stdout
    assert sum(int(rows) for _, _, rows in said) == 80 * nr_ranks
