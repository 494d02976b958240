#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tests of the calls, of the engine and of examples/kv, with a libtern and compiled calls that have AddressSanitizer inside:
# python/sanitized.sh FOLDER, of a build by scripts/sanitized.sh, and the compiler it was built with. Who does not instrument the
# interpreter has to load the runtime first. Its own allocator is left out, so that all memory is seen.
cd "$(dirname "$0")/.." || exit 1
folder=$(cd "$1" && pwd) || exit 1
CC=${2:-gcc}
case $CC in
*clang*) runtime=$($CC -print-file-name="libclang_rt.asan-$(uname -m).so") ;;
*) runtime=$($CC -print-file-name=libasan.so) ;;
esac
for python in /usr/bin/python3 python3 ''; do
	[ -n "$python" ] || { echo "no Python with numpy and pytest"; exit 77; }
	"$python" -c 'import numpy, pytest' 2>/dev/null && break
done
[ -e "$folder/_calls.abi3.so" ] || { echo "$folder/_calls.abi3.so is not there: make, where Python.h is"; exit 77; }
[ -e "$runtime" ] || { echo "$CC has no AddressSanitizer to be loaded"; exit 77; }
# What the interpreter leaves behind is its own affair.
export PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$PWD/python TERN_LIBRARY=$folder/libtern.so
export LD_PRELOAD="$runtime"
cd python/tests && exec "$python" -m pytest -q --tap -p no:cacheprovider test_{calls,lent,strange,lifetime,plan,wanted,engine,kv}.py
