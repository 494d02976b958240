# SPDX-License-Identifier: Apache-2.0
"""Of the version of tern-ep beside it, which it needs; with torch."""

import os
from pathlib import Path

from setuptools import setup

TREE = Path(os.environ.get("TERN_TREE", Path(__file__).resolve().parents[2]))
VERSION = dict(line.split(" = ") for line in (TREE / "python/tern_ep/_version.py").read_text().splitlines() if " = " in line)["__version__"].strip('"')

setup(version=VERSION, install_requires=[f"tern-ep[torch]=={VERSION}"])
