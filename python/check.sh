#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the package into a virtual environment of its own, under BUILD, and runs its tests there; then mypy, where it is installed.
# PYTHON chooses the interpreter: by default the first that has what the tests import.
set -u
cd "$(dirname "$0")/.." || exit 1
mkdir -p "${BUILD:=build}"
BUILD=$(cd "$BUILD" && pwd)
TREE=$PWD
ROOM=$BUILD/python

for python in ${PYTHON:-/usr/bin/python3 python3} ''; do
	[ -n "$python" ] || break
	"$python" -c 'import numpy, pytest, setuptools, venv, ensurepip' 2>/dev/null && break
done
if [ -z "$python" ]; then
	echo "no Python with numpy, pytest, setuptools and venv: the Python package was not tested"
	exit 77
fi

rm -rf "$ROOM"
mkdir -p "$ROOM"
cp -r python "$ROOM/source"
"$python" -m venv --system-site-packages "$ROOM/venv" &&
	"$ROOM/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-build-isolation "$ROOM/source" || exit 1

failed=0
export TERN_LIBRARY="$BUILD/libtern.so" TERN_INCLUDE="$TREE/include" TERN_DOCS="$TREE/docs" PYTHONDONTWRITEBYTECODE=1
(cd "$ROOM" && "$ROOM/venv/bin/python" -m pytest -q --tap -rs -p no:cacheprovider "$ROOM/source/tests") || failed=1

if ! "$ROOM/venv/bin/python" -c 'import mypy' 2>/dev/null; then
	echo "ok 0 - mypy # SKIP mypy is not installed"
elif "$ROOM/venv/bin/python" -m mypy --config-file "$TREE/python/pyproject.toml" --cache-dir "$ROOM/mypy" "$TREE/python/tern"; then
	echo "ok 0 - mypy"
else
	echo "not ok 0 - mypy"
	failed=1
fi
exit $failed
