#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Checks the models of the protocol with spin: every state of each, none sampled. A model with a BREAK_x must fail, and in
# the way that is expected: a mistake that goes unnoticed would mean that the model proves nothing. docs/protocol.md says what is proved.
#
# run.sh [NAME-PATTERN]: exits 0 if all is as expected, 1 if not, 77 without spin or a C compiler.

models=$(cd "$(dirname "$0")" && pwd)
pattern=${1:-*}
command -v spin >/dev/null || { echo "skip: spin is not installed"; exit 77; }
command -v "${CC:=cc}" >/dev/null || { echo "skip: no C compiler"; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
passed=0
failed=0
started=$(date +%s)

outcome() { # of a checker's output
	if grep -Eq 'too small|out of memory|truncated|exceeded' "$1"; then
		echo incomplete
	elif grep -q 'errors: 0' "$1"; then
		echo holds
	elif grep -q 'assertion violated' "$1"; then
		echo asserts
	elif grep -q 'invalid end state' "$1"; then
		echo hangs
	else
		echo broken
	fi
}

# expect OUTCOME MODEL [-DNAME[=VALUE] ...]: holds, asserts (an assertion fails) or hangs (somebody waits for ever)
expect() {
	expected=$1
	model=$2
	shift 2
	name="$model${*:+ $*}"
	case $name in $pattern) ;; *) return ;; esac
	level=-O0 # compiling takes longest where an error is soon found
	[ "$expected" = holds ] && level=-O1
	reduce=
	case $* in *DEATH=1*) reduce=-DNOREDUCE ;; esac # the reduction does not know about "unless"
	rm -rf "$work"/*
	(cd "$work" && spin "$@" -a "$models/$model.pml" && "$CC" $level -w -DSAFETY $reduce -o pan pan.c && ./pan -m20000 -w23 -n) >"$work/out" 2>&1
	found=$(outcome "$work/out")
	states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' "$work/out")
	seconds=$(sed -n 's/.*elapsed time \([0-9.]*\).*/\1/p' "$work/out")
	if [ "$found" = "$expected" ]; then
		passed=$((passed + 1))
		verdict=ok
	else
		failed=$((failed + 1))
		verdict="FAIL, expected: $expected"
		tail -n 15 "$work/out"
	fi
	printf '%-8s %9s states %6s s  %s: %s\n' "$found" "${states:--}" "${seconds:--}" "$name" "$verdict"
}

echo "# low-latency mode"
expect holds exchange_ll
expect holds exchange_ll -DFIRST=7
expect holds exchange_ll -DRANKS=3 -DEARLY_DATA=1
expect holds exchange_ll -DSLOTS=2 -DROUNDS=2 -DEARLY_DATA=1
expect holds exchange_ll -DDEATH=1
expect holds exchange_ll -DRANKS=3 -DROUNDS=1 -DDEATH=1 -DVICTIM=1 -DEARLY_DATA=1 -DRELEASE=0
expect asserts exchange_ll -DWITNESS
expect asserts exchange_ll -DBREAK_WORD_BEFORE_DATA
expect asserts exchange_ll -DBREAK_WAIT_FOR_ALL_BUT_ONE
expect asserts exchange_ll -DBREAK_WAIT_FOR_ALL_BUT_ONE -DRANKS=3 -DEARLY_DATA=1
expect asserts exchange_ll -DBREAK_SKIP_MARKS
expect asserts exchange_ll -DBREAK_EARLY_RESULTS_WORD
expect asserts exchange_ll -DBREAK_NEXT_ROUND_BEFORE_RESULTS
expect asserts exchange_ll -DBREAK_ZERO_WORDS -DFIRST=0
expect asserts exchange_ll -DBREAK_NO_SECOND_LOOK
expect asserts exchange_ll -DBREAK_LEAVE_UNDRAINED
expect hangs exchange_ll -DBREAK_SILENT_SURVIVOR -DRANKS=3 -DROUNDS=1 -DDEATH=1 -DVICTIM=1 -DEARLY_DATA=1 -DRELEASE=0
expect asserts exchange_ll -DBREAK_ONE_REGION_FOR_ALL_SLOTS -DSLOTS=2 -DROUNDS=2 -DEARLY_DATA=1
expect hangs exchange_ll -DBREAK_SLOT_ORDER -DSLOTS=2 -DROUNDS=2 -DEARLY_DATA=1

echo "# high-throughput mode"
expect holds exchange_ht
expect holds exchange_ht -DFIRST=7
expect holds exchange_ht -DRANKS=3 -DROUNDS=2 -DEARLY_DATA=1
expect holds exchange_ht -DRANKS=3 -DEARLY_DATA=1 -DRELEASE=0
expect holds exchange_ht -DSLOTS=2 -DROUNDS=2 -DEARLY_DATA=1 -DRELEASE=0
expect holds exchange_ht -DDEATH=1
expect holds exchange_ht -DRANKS=3 -DROUNDS=1 -DDEATH=1 -DVICTIM=1 -DEARLY_DATA=1 -DRELEASE=0 -DABANDON=0
expect asserts exchange_ht -DWITNESS
expect asserts exchange_ht -DBREAK_ONE_PARITY
expect holds exchange_ht -DBREAK_ONE_PARITY -DABANDON=0
expect asserts exchange_ht -DBREAK_OWN_VERDICT
expect asserts exchange_ht -DBREAK_WORD_BEFORE_DATA
expect asserts exchange_ht -DBREAK_WAIT_FOR_ALL_BUT_ONE
expect asserts exchange_ht -DBREAK_ROWS_BEFORE_COUNTS
# A mark that nobody waits for may still fly when the next word is written to its place.
expect asserts exchange_ht -DBREAK_SKIP_MARKS
# Output rows are guarded twice: by the words of combine and by the counts of the next round. Either guard is enough.
expect holds exchange_ht -DBREAK_ROWS_BEFORE_COUNTS -DABANDON=0
expect holds exchange_ht -DBREAK_EARLY_RESULTS_WORD
expect asserts exchange_ht -DBREAK_ROWS_BEFORE_COUNTS -DBREAK_SKIP_MARKS -DABANDON=0
expect asserts exchange_ht -DBREAK_ROWS_BEFORE_COUNTS -DBREAK_EARLY_RESULTS_WORD -DABANDON=0 -DRELEASE=0
expect asserts exchange_ht -DBREAK_ZERO_WORDS -DFIRST=7
expect asserts exchange_ht -DBREAK_NO_SECOND_LOOK
expect asserts exchange_ht -DBREAK_LEAVE_UNDRAINED
expect hangs exchange_ht -DBREAK_SILENT_SURVIVOR -DRANKS=3 -DROUNDS=1 -DDEATH=1 -DVICTIM=1 -DEARLY_DATA=1 -DRELEASE=0 -DABANDON=0
expect hangs exchange_ht -DBREAK_SLOT_ORDER -DSLOTS=2 -DROUNDS=2 -DEARLY_DATA=1 -DRELEASE=0

echo "# sleeping and waking"
expect holds doorbell
expect holds doorbell -DAHEAD=0
expect holds doorbell -DSLICES=1
expect holds doorbell -DSENDERS=3 -DROUNDS=2
expect holds doorbell -DSENDERS=3 -DROUNDS=2 -DAHEAD=0
expect holds doorbell -DDEATH=1 -DSLICES=1
# Who stops between its word and its wake-up wakes nobody: after a death, the end of the slice does.
expect hangs doorbell -DDEATH=1
for broken in READ_WAITERS_FIRST RING_BEFORE_WORD BASE_FROM_DOORBELL NO_LAST_LOOK COUNT_AFTER_LOOK WEAK_WAITERS; do
	expect hangs doorbell -DBREAK_$broken
done
expect hangs doorbell -DBREAK_READ_WAITERS_FIRST -DSENDERS=3 -DROUNDS=2

echo "$passed checks passed, $failed failed, $(($(date +%s) - started)) s"
[ $failed -eq 0 ]
