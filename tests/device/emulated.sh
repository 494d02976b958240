# SPDX-License-Identifier: Apache-2.0
# For tests of programs on GPUs that are emulated on the CPU (tests/device/emulate/), between processes: no GPU runs. Sourced; sets emulated, tmp and bad, and skips where there is no emulation.
set -u
BUILD=${BUILD:-build}
emulated=$PWD/$BUILD/emulated/libtern_cuda.so
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
bad=0

if [ ! -e "$emulated" ]; then
	echo "$emulated is not there: make emulated"
	exit 77
fi
: >"$tmp/turns"
export TERN_CUDA_LIBRARY=$emulated TERN_EMULATED_PROCESSES=$tmp/turns

# judge NAME RC: RC 0 is right.
judge() {
	[ "$2" -eq 0 ] && echo "ok - $1" && return
	echo "not ok - $1"
	sed 's/^/    out: /' "$tmp/out"
	sed 's/^/    err: /' "$tmp/err"
	bad=1
}
