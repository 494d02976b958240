# SPDX-License-Identifier: Apache-2.0
"""Builds libtern_cuda.so, which needs nvcc, and puts it into the package. TERN_BUILD: a build folder whose objects may be used;
TERN_TREE: the repository; CUDA_ARCH and NVFLAGS as for make."""

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent
TREE = Path(os.environ.get("TERN_TREE", HERE.parents[1]))
VERSION = dict(line.split(" = ") for line in (TREE / "python/tern_ep/_version.py").read_text().splitlines() if " = " in line)["__version__"].strip('"')


class BuildWithKernels(build_py):
    def run(self):
        super().run()
        build = Path(os.environ.get("TERN_BUILD", TREE / "build")).absolute()
        file = build / "portable" / "libtern_cuda.so"
        jobs = str(len(os.sched_getaffinity(0)))
        subprocess.run(["make", "-s", "-j", jobs, "-C", str(TREE), f"BUILD={build}", "CUDA=1", str(file)], check=True)
        shutil.copy(file, Path(self.build_lib) / "tern_ep_cu13" / file.name)


class WheelForAnyPython(bdist_wheel):
    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


class WithLibrary(Distribution):
    def has_ext_modules(self):
        return True


setup(
    version=VERSION,
    install_requires=[f"tern-ep=={VERSION}"],
    distclass=WithLibrary,
    cmdclass={"build_py": BuildWithKernels, "bdist_wheel": WheelForAnyPython},
)
