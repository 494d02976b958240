# SPDX-License-Identifier: Apache-2.0
"""Builds libtern, the command `tern` and the package's compiled calls, and puts them into the package: `make` does it, for every glibc
from 2.28 on, and every Python from 3.10 on.

The sources are those of the tree around this folder; an sdist brings them along, in native/. TERN_BUILD: a build folder whose objects
may be used.
"""

import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent
# What libtern and the command are made of.
SOURCES = ["Makefile", "LICENSE", "include", "src", "cli", "soak", "testkit", "packaging/glibc", "bench/command", "bench/signal", "bench/raw", "bench/nccl", "python/calls", "python/rules.mk"]
KEPT = ("*.c", "*.h", "*.map", "*.mk", "*.sh", "*.in", "Makefile", "LICENSE")
SONAME = "libtern.so.0"
CALLS = "_calls.abi3.so"


def tree():
    inside = HERE / "native"
    found = inside if inside.is_dir() else Path(os.environ.get("TERN_TREE", HERE.parent))
    if not (found / "src" / "tern.map").exists():
        raise SystemExit(f"the C sources of Tern are not in {found}: build from its repository, or from an sdist")
    return found


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        if getattr(self, "editable_mode", False):
            return  # found in the tree's build folder
        build = Path(os.environ.get("TERN_BUILD", tree() / "build")).absolute()
        files = [build / "portable" / name for name in (SONAME, "tern", CALLS)]
        headers = sysconfig.get_path("include")
        if not Path(headers, "Python.h").exists():
            raise SystemExit(f"Python.h is not in {headers}: install the headers of this Python (python3-dev), or the wheel")
        jobs = str(len(os.sched_getaffinity(0)))
        with tempfile.TemporaryDirectory(prefix="tern-") as room:
            where = build
            if " " in str(build):  # no target of make's has one
                build.mkdir(parents=True, exist_ok=True)
                where = Path(room, "build")
                where.symlink_to(build)
            targets = [str(where / file.relative_to(build)) for file in files]
            subprocess.run(["make", "-s", "-j", jobs, "-C", str(tree()), f"BUILD={where}", f"PYTHON_INCLUDE={headers}", *targets], check=True)
        target = Path(self.build_lib) / "tern_ep" / "_native"
        self.mkpath(str(target))
        for file in files:
            shutil.copy(file, target / file.name)


class SourceWithC(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        for name in SOURCES:
            for path in [p for kept in KEPT for p in (tree() / name).rglob(kept)] or [tree() / name]:
                to = Path(base_dir) / "native" / path.relative_to(tree())
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, to)


class WheelForAnyPython(bdist_wheel):
    def get_tag(self):
        return ("cp310", "abi3", super().get_tag()[2])


class WithLibrary(Distribution):
    def has_ext_modules(self):
        return True


setup(distclass=WithLibrary, cmdclass={"build_py": BuildWithLibrary, "sdist": SourceWithC, "bdist_wheel": WheelForAnyPython})
