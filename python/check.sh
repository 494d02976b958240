#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes an sdist and of that a wheel, tries it in an environment that has numpy alone and no compiler, runs the package's tests
# in another; then mypy, where it is installed. All under BUILD, whose objects are used.
# PYTHON chooses the interpreter: by default the first that has what the tests import.
set -u
cd "$(dirname "$0")/.." || exit 1
mkdir -p "${BUILD:=build}"
BUILD=$(cd "$BUILD" && pwd)
TREE=$PWD
ROOM=$BUILD/python
said=$ROOM/said
. tests/tap.sh

for python in ${PYTHON:-/usr/bin/python3 python3} ''; do
	[ -n "$python" ] || break
	"$python" -c 'import numpy, pytest, setuptools, wheel, venv, ensurepip' 2>/dev/null && break
done
if [ -z "$python" ]; then
	echo "no Python with numpy, pytest, setuptools, wheel and venv: the Python package was not tested"
	exit 77
fi

PIP="-m pip --quiet --disable-pip-version-check"
make_wheel() { # the sdist of a copy, so that nothing is left in the tree; then a wheel of that alone, which brings the C sources
	cp -r python "$ROOM/source" && (cd "$ROOM/source" &&
		TERN_TREE=$TREE "$python" -c 'import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])' "$ROOM") &&
		TERN_BUILD=$BUILD TERN_TREE=/nowhere "$python" $PIP wheel --no-index --no-deps --no-build-isolation -w "$ROOM" "$ROOM"/tern?ep-*.tar.gz
}

deep_ep_wheel() { # of the same version, which needs tern-ep and torch
	TERN_TREE=$TREE "$python" $PIP wheel --no-index --no-deps --no-build-isolation -w "$ROOM" "$ROOM/source/deepep" &&
		"$python" -m zipfile -e "$ROOM"/tern_ep_deepep-*.whl "$ROOM/deepep" && [ -s "$ROOM/deepep/deep_ep/__init__.py" ] &&
		grep -q '^Requires-Dist: tern-ep\[torch\] *(*==' "$ROOM"/deepep/*.dist-info/METADATA
}

old_glibc() { # of symbols that manylinux_2_28 has, and libraries of glibc alone
	for file in "$ROOM"/empty/lib/python3*/site-packages/tern_ep/_native/*; do
		readelf -d "$file" | grep NEEDED | grep -v -E '\[(libc|libm)\.so\.6|\[libdl\.so\.2|\[libpthread\.so\.0|\[ld-linux' && return 1
		objdump -T "$file" | grep -oE 'GLIBC_[0-9.]+|GLIBC_PRIVATE|GLIBC_ABI\w+' | sort -u >"$ROOM/versions"
		grep -q . "$ROOM/versions" || return 1
		echo GLIBC_2.28 >>"$ROOM/versions"
		[ "$(sort -V "$ROOM/versions" | tail -n 1)" = GLIBC_2.28 ] || { cat "$ROOM/versions"; return 1; }
	done
}

# With the package in it. pip outside is asked, as putting one inside takes most of the time.
environment() {
	"$python" -m venv --without-pip "${@:2}" "$ROOM/$1" &&
		"$python" $PIP --python "$ROOM/$1/bin/python" install --no-index --no-deps "$ROOM"/tern_ep-*.whl
}

empty_environment() {
	environment empty &&
		ln -s "$("$python" -c 'import numpy, os; print(os.path.dirname(numpy.__file__))')" "$ROOM"/empty/lib/python3*/site-packages/ &&
		awk '/^```/ {inside = /python/; next} inside' README.md >"$ROOM/example.py"
}

empty() { (cd "$ROOM" && env -i PATH="$ROOM/empty/bin" HOME="$ROOM" "$@"); }
example_alone() { [ "$(empty python example.py)" = "rank 0: True" ]; }
example_ranks() { [ "$(empty tern-ep run -n 3 -- python example.py | sort | tr '\n' ' ')" = "rank 0: True rank 1: True rank 2: True " ]; }
page() {
	empty tern-ep check >"$ROOM/page" || { cat "$ROOM/page"; return 1; }
	cat "$ROOM/page"
	grep -q "^libtern .*$ROOM/empty/.*/tern_ep/_native/libtern.so" "$ROOM/page" && grep -q '^one rank  *works' "$ROOM/page" &&
		grep -q '^two ranks  *works' "$ROOM/page" && grep -q '^transport shm  *works' "$ROOM/page" && [ "$(wc -l <"$ROOM/page")" -lt 60 ]
}

rm -rf "$ROOM"
mkdir -p "$ROOM"
expect wheel make_wheel
expect wheel_of_deep_ep deep_ep_wheel
expect empty_environment empty_environment
expect needs_no_newer_glibc old_glibc
expect example_of_the_readme example_alone
expect example_of_the_readme_on_ranks example_ranks
expect tern-ep_check page
expect what_calls_cost empty python "$TREE/bench/python/calls.py" --rounds 60 --json

environment venv --system-site-packages || exit 1
export TERN_EMULATED="$BUILD/emulated" TERN_TREE="$TREE" TERN_INCLUDE="$TREE/include" TERN_DOCS="$TREE/docs" PYTHONDONTWRITEBYTECODE=1
(cd "$ROOM" && "$ROOM/venv/bin/python" -m pytest -q --tap -rs -p no:cacheprovider "$ROOM/source/tests") || failures=1

if ! "$ROOM/venv/bin/python" -c 'import mypy' 2>/dev/null; then
	echo "ok 0 - mypy # SKIP mypy is not installed"
elif "$ROOM/venv/bin/python" -m mypy --config-file "$TREE/python/pyproject.toml" --cache-dir "$ROOM/mypy" "$TREE/python/tern_ep"; then
	echo "ok 0 - mypy"
else
	echo "not ok 0 - mypy"
	failures=1
fi
exit $failures
