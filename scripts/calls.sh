#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What Python adds to a call: medians of a dispatch and combine from C and from Python, one after the other on one machine. The
# environment's package is used, else the tree's.
# COUNT="numpy.pair ...": instructions of a round instead, counted by valgrind's callgrind, which other work on the machine does not change.
# BUILD=build PYTHON=python3 DEVICE=cpu|cuda PRESET=gpt-oss-120b scripts/calls.sh
set -eu
cd "$(dirname "$0")/.."
BUILD=$(realpath "${BUILD:-build}")
PYTHON=${PYTHON:-python3}
DEVICE=${DEVICE:-cpu}
PRESET=${PRESET:-gpt-oss-120b}
"$PYTHON" -c 'import tern_ep' 2>/dev/null || export PYTHONPATH="$PWD/python" TERN_LIBRARY="$BUILD/libtern.so"

instructions() { # instructions FIGURE ROUNDS: of the whole program
	valgrind --tool=callgrind --callgrind-out-file=/dev/null "$PYTHON" bench/python/calls.py --preset "$PRESET" --count "$1" --rounds "$2" 2>&1 |
		sed -n 's/.*Collected : //p'
}
if [ -n "${COUNT:-}" ]; then
	for figure in $COUNT; do
		few=$(instructions "$figure" 100)
		many=$(instructions "$figure" 1100)
		echo "$figure $(((many - few) / 1000)) instructions"
	done
	exit
fi

echo "C, tern bench, $PRESET, 1 rank, 1 token, $DEVICE:"
"$BUILD/tern" bench --ranks 1 --preset "$PRESET" --tokens 1 --mode ll --dtype bf16 --device "$DEVICE" --iters 2000
echo "Python $("$PYTHON" -c 'import platform; print(platform.python_version())'), the same:"
"$PYTHON" bench/python/calls.py --device "$DEVICE" --preset "$PRESET"
