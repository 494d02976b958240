# SPDX-License-Identifier: Apache-2.0
# What tests of programs on GPUs share. Sourced; sets BUILD, tmp and bad.
set -u
BUILD=${BUILD:-build}
export WITHIN=${WITHIN:-$BUILD/tests/within}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
bad=0

# judge NAME RC: RC 0 is right.
judge() {
	[ "$2" -eq 0 ] && echo "ok - $1" && return
	echo "not ok - $1"
	sed 's/^/    out: /' "$tmp/out"
	[ ! -e "$tmp/err" ] || sed 's/^/    err: /' "$tmp/err"
	bad=1
}
