#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Kernels on emulated GPUs with something left out that orders memory (TERN_EMULATED_WITHOUT): some of a bounded number
# of seeds has to fail. A wrong position may also be followed to memory that is not there, which is found as well.
. "${BASH_SOURCE%/*}/judge.sh"
export TERN_CUDA_LIBRARY=$(realpath -m "$BUILD")/emulated/libtern_cuda.so
[ -e "$TERN_CUDA_LIBRARY" ] || { echo "$TERN_CUDA_LIBRARY is not there: make emulated"; exit 77; }
ulimit -c 0

# is_found MUTANT: what was run has come to it, and has failed; with ThreadSanitizer, by a race.
is_found() {
	[ "$rc" -ne 0 ] && [ "$rc" -ne 77 ] && grep -q "left out: $1," "$tmp/err" && { [ -z "${THREAD:-}" ] || grep -q 'data race' "$tmp/err"; }
}

# found MUTANT SEEDS TEST [NAME=VALUE...]
found() {
	env TERN_EMULATED_WITHOUT="$1" TERN_TEST_CASES="$2" "${@:4}" "$BUILD/tests/emulated/$3" >"$tmp/out" 2>"$tmp/err"
	rc=$?
	is_found "$1"
	judge "finds $1" $?
}

# ThreadSanitizer sees what is loaded without an acquire, where threads store it: runs of other nodes' rows. It does not
# see that a gated combine begins behind the dispatch's end, so all rounds are released. Without LONG=1 one of them, as in
# make check.
if [ -n "${THREAD:-}" ]; then
	export TERN_TEST_NODES=ab TERN_TRANSPORT=shm TERN_TEST_WITHOUT=combine TERN_EMULATED_SMS=2 TERN_TEST_SHARING=1 TERN_EMULATED_STORES=direct TERN_TEST_ROUNDS=2
	export TSAN_OPTIONS="halt_on_error=1 suppressions=tests/device/emulate/tsan.supp"
	# Some seeds take ten times as long as others, so these do not begin with the first.
	found internode_await_word:word_acquire 3 test_gates TERN_TEST_MODE=ll TERN_TEST_SEED=2
	[ -n "${LONG:-}" ] || exit "$bad"
	found pass_on_runs:word_acquire 24 test_gates TERN_TEST_MODE=ll TERN_TEST_SEED=2
	found run_has_come:word_acquire 24 test_gates TERN_TEST_MODE=ll TERN_TEST_NODES=aabb TERN_TEST_SEED=9
	export TERN_EMULATED_GPUS=2 TERN_TEST_MODE=ht # it follows few lanes
	found was_forwarded:piece_acquire 24 test_gates TERN_TEST_SEED=2
	found await_forwarded:piece_acquire 24 test_gates TERN_TEST_SEED=2
	exit "$bad"
fi
export TERN_EMULATED_SMS=8 # with which these seeds were tried
found send_all:copies_done 8 test_schedules
found tell_heads:stores_before 8 test_schedules
found pass_heads:stores_before 8 test_schedules TERN_EMULATED_SMS=52
found tell_results:copies_done 8 test_schedules
found tell_results:__syncwarp 8 test_schedules
found tell_results:stores_before 8 test_schedules
found exchange_counts:stores_before 80 test_schedules TERN_EMULATED_SMS=20 TERN_TEST_SEED=5
# A rank that fails leaves others waiting, which takes the time here.
export TERN_TEST_WAIT_MS=500
found gate_count_rows:__syncwarp:1 8 test_gates TERN_TEST_ROUNDS=3
found gate_count_rows:stores_before_here 8 test_gates TERN_TEST_ROUNDS=3
found gate_count_rows:copies_done 16 test_gates TERN_TEST_ROUNDS=3
found gate_count_rows:stores_before_here 6 test_gates TERN_TEST_SEED=27 TERN_TEST_NODES=aabb TERN_TRANSPORT=copying TERN_TEST_ROUNDS=3
found count_rows_of_h:tern_word_add 1 ../device/test_layer TERN_TEST_TOTAL=8 TERN_TEST_TOKENS=12 TERN_TEST_HIDDEN=512
found 'operator():stores_before' 15 test_gates TERN_TEST_SEED=75 TERN_TEST_MODE=ht TERN_TEST_NODES=aabb TERN_TRANSPORT=shm TERN_TEST_ROUNDS=3 # forward_high's
exit "$bad"
