#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds what scripts/gpus.sh needs, where nvcc is, and puts it into one small folder, for a machine with GPUs and no
# compiler:
#
#   scripts/pack.sh DIR [PROGRAM...]            here; PROGRAM: of the build's folder, besides (tern-kills tern-lab-ll)
#   BUILD=DIR STAGES="check bench" scripts/gpus.sh     there, in a checkout of the same commit
#
# BUILD=dir (build), CUDA_ARCH and CUDA_PTX as make takes them. Programs are stripped. Both wheels go with them where
# BUILD/wheels has them (scripts/wheels.sh), BUILD/engines (python/tests/engines.py), and the libraries that programs
# look for as they run: cmocka and libfabric, with what these need.
set -eu
case ${1:---help} in --help) sed -n '3,/^set/ { /^set/d; s/^# \{0,1\}//; p }' "$0"; exit 0 ;; esac
[ "$(realpath -m "$1")" != "$(realpath -m "${BUILD:-build}")" ] || { echo "DIR is where it is built"; exit 2; }
mkdir -p "$1"
DIR=$(realpath "$1")
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
shift
programs=(libtern.so libtern_cuda.so libtern_bench_cuda.so tern generate _calls.abi3.so tests/within tests/emulated/test_gates "$@")
for test in tests/device/test_*.c; do programs+=("${test%.c}"); done

make BUILD="$BUILD" -j"$(nproc)" "${programs[@]/#/$BUILD/}"
for program in "${programs[@]}"; do
	mkdir -p "$DIR/$(dirname "$program")"
	strip -o "$DIR/$program" "$BUILD/$program"
done

# Each library by the name that programs look for; those of libc are everywhere.
needed() { ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// && $1 !~ /^(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+)\.so/ {print $3}'; }
mkdir -p "$DIR/lib"
for name in libcmocka.so.0 libfabric.so.1; do
	library=$(ldconfig -p | awk -v name=$name '$1 == name {print $NF; exit}')
	[ -n "$library" ] || { echo "no $name here"; continue; }
	for file in "$library" $(needed "$library"); do cp -L "$file" "$DIR/lib/"; done
done
rm -rf "$DIR/wheels" "$DIR/engines"
[ ! -d "$BUILD/engines" ] || cp -r "$BUILD/engines" "$DIR/engines"
for wheel in "$BUILD"/wheels/*.whl; do
	[ ! -e "$wheel" ] || { mkdir -p "$DIR/wheels" && cp "$wheel" "$DIR/wheels/"; }
done
du -sh "$DIR"
