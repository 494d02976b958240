#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks that mpirun starts find each other over PMIx. Exit code 77: no mpirun, or a build without PMIx.
BUILD=${BUILD:-build}
WITHIN=${WITHIN:-$BUILD/tests/within}
rank=$BUILD/tests/rank
here=$(dirname "$0")
out=$(mktemp) || exit 1
trap 'rm -f "$out"' EXIT
failures=0

command -v mpirun >/dev/null || exit 77
"$BUILD/tern" info | grep -q '^pmix *built in$' || exit 77
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
if [ ! -x "$rank" ]; then
	mkdir -p "$BUILD/tests"
	# shellcheck disable=SC2086
	${CC:-cc} $CFLAGS -I"$here/../../include" "$here/rank.c" "$BUILD/libtern.a" -o "$rank" $LDFLAGS -lpthread -ldl -lm || exit 1
fi

# try NAME EXPECTED ranks arguments...: exit code 0 or not, as EXPECTED says, within a minute
try() {
	name=$1 expected=$2 nr=$3
	shift 3
	"$WITHIN" 60 mpirun --oversubscribe -n "$nr" "$rank" "$@" >"$out" 2>&1 </dev/null
	rc=$?
	[ "$rc" = 124 ] && rc="time limit"
	{ [ "$rc" = 0 ] && [ "$expected" = well ]; } || { [ "$rc" != 0 ] && [ "$rc" != "time limit" ] && [ "$expected" = badly ]; } || bad "ends with $rc"
}
bad() {
	failures=$((failures + 1))
	echo "FAILED: $name: $1"
	sed 's/^/    /' "$out"
}
has() { grep -q -- "$1" "$out" || bad "\"$1\" is missing"; }

for n in 1 2 4; do
	try "$n ranks gather" well $n gather 100
	has "^$n ranks$"
done
export TERN_WAIT_MS=3000
try "a rank that does not come" badly 3 miss 1
has "gathering 1: "
try "a rank that is killed" badly 3 kill 1

[ $failures = 0 ] && echo "test_pmix.sh: all well"
[ $failures = 0 ]
