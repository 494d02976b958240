#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tern bench --trace: the file that it writes, and what is said where it cannot be.
set -u
BUILD=${BUILD:-build}
command -v python3 >/dev/null || { echo "python3 is not installed"; exit 77; }
DIR=$(mktemp -d) || exit 1
trap 'rm -rf "$DIR"' EXIT
failed=0
SMALL="--preset custom --hidden 256 --experts 12 --topk 4 --tokens 9 --iters 2 --warmup 1 --quiet"

complain() {
	echo "FAIL: $*" >&2
	sed 's/^/    /' "$DIR/err" >&2
	failed=1
}

# traced RANKS CASES [engine] -- FLAGS...
traced() {
	ranks=$1 cases=$2 engine=
	shift 2
	[ "$1" = -- ] || { engine=$1; shift; }
	shift
	"$BUILD/tern" bench --ranks "$ranks" $SMALL "$@" --trace "$DIR/trace.json" >"$DIR/out" 2>"$DIR/err" || complain "tern bench $*"
	python3 "${0%/*}/trace.py" "$DIR/trace.json" "$ranks" "$cases" $engine 2>"$DIR/err" || complain "the trace of $*"
}

traced 3 2 -- --mode all
traced 1 1 --
export TERN_FORCE_ENGINE=1 TERN_TRANSPORT=shm
traced 3 1 engine --
unset TERN_FORCE_ENGINE TERN_TRANSPORT

"$BUILD/tern" bench --ranks 2 $SMALL --trace "$DIR/none/trace.json" >"$DIR/out" 2>"$DIR/err"
[ $? -eq 1 ] && grep -q "none/trace.json: No such file" "$DIR/err" || complain "a file that cannot be written"

cp "$BUILD/tern" "$DIR/tern"
"$DIR/tern" bench --ranks 2 $SMALL --trace "$DIR/trace.json" >"$DIR/out" 2>"$DIR/err"
[ $? -eq 1 ] && grep -q "tern-traced: No such file or directory; .make traced. builds it" "$DIR/err" || complain "no tern-traced"
exit $failed
