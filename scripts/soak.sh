#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make soak SECONDS=600 SEED=: random exchanges, faults and fuzzing for longer than make check does. Without a SEED, one that
# depends on the time is taken and printed; a failure prints the command that repeats it. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/no_kallsyms.sh
BUILD=${BUILD:-build}
limit=${SOAK_SECONDS:-600}
seed=${SEED:-$(date +%s)}
LOGS=$BUILD/soak
mkdir -p "$LOGS"
export WITHIN=$BUILD/tests/within
passed=0
failed=0

# bounded COMMAND...: a program, or a function of this script that bounds what it runs.
bounded() {
	if [ "$(type -t "$1")" = function ]; then
		"$@"
	else
		"$WITHIN" 3600 "$@"
	fi
}

# share NAME COMMAND...: one part; its output is shown when it fails.
share() {
	local name=$1
	shift
	echo "---- $name: $*"
	if bounded "$@" >"$LOGS/$name.log" 2>&1 </dev/null; then
		passed=$((passed + 1))
		grep -E '^# |^(scenarios|rounds|time|peak memory)  ' "$LOGS/$name.log" | tail -4
	else
		failed=$((failed + 1))
		echo "FAILED: $*"
		tail -n 60 "$LOGS/$name.log"
	fi
}

# until_time SECONDS COMMAND...: over and over.
until_time() {
	local end=$(($(date +%s) + $1)) times=0
	shift
	while [ "$(date +%s)" -lt $end ]; do
		bounded "$@" || return 1
		times=$((times + 1))
	done
	echo "# $times times"
}

echo "seed $seed, $limit s"
. scripts/needs.sh
. scripts/sanitized.sh
make -s -j"$(nproc)" BUILD="$BUILD" all tests >/dev/null || exit 1
make -s -j"$(nproc)" "${THREAD[@]}" tests >/dev/null || exit 1
python_calls=$(ls /usr/include/python3.*/Python.h >/dev/null 2>&1 && echo "$BUILD/address/_calls.abi3.so")
# shellcheck disable=SC2086
make -s -j"$(nproc)" "${ADDRESS[@]}" "$BUILD/address/tern" "$BUILD/address/libtern.so" "$BUILD/address/generate" $python_calls tests >/dev/null || exit 1
part=$((limit / 8))
! command -v clang-tidy >/dev/null || share tidy scripts/tidy.sh
share random env TERN_TEST_SEED="$seed" TERN_TEST_SECONDS=$part "$BUILD/tests/exchange/test_random"
share random-thread env TERN_TEST_SEED="$seed" TERN_TEST_SECONDS=$part TSAN_OPTIONS=halt_on_error=1 "$BUILD/thread/tests/exchange/test_random"
share plans env TERN_TEST_SEED="$seed" TERN_TEST_CASES=$((part * 40)) "$BUILD/tests/exchange/test_plans"
share plans-nodes env TERN_TEST_NODES=aabc TERN_TRANSPORT=shm TERN_TEST_SEED="$seed" TERN_TEST_CASES=$((part * 5)) "$BUILD/tests/exchange/test_plans"
share emulated-device env TERN_CUDA_LIBRARY="$BUILD/emulated/libtern_cuda.so" TERN_EMULATED_SEED="$seed" TERN_TEST_SEED="$seed" TERN_TEST_SECONDS=$((part / 2)) \
	TERN_TEST_SHARING=7 "$BUILD/tests/device/test_device"
share emulated-device-80 env TERN_CUDA_LIBRARY="$BUILD/emulated/libtern_cuda.so" TERN_EMULATED_CODE=80 TERN_EMULATED_BLOCK_KIB=99 TERN_EMULATED_LINES=0 TERN_TEST_SEED="$seed" TERN_TEST_SECONDS=$((part / 4)) \
	TERN_TEST_SHARING=7 "$BUILD/tests/device/test_device"
: >"$BUILD/emulated-turns" # whose turn it is
share emulated-elastic env TERN_CUDA_LIBRARY="$BUILD/emulated/libtern_cuda.so" TERN_EMULATED_PROCESSES="$BUILD/emulated-turns" TERN_TEST_SEED="$seed" TERN_TEST_KILLS=$((4 + part / 6)) \
	TERN_TEST_WAIT_MS=2000 "$BUILD/tests/device/test_elastic"
: >"$BUILD/emulated-turns-address"
share emulated-elastic-address env TERN_CUDA_LIBRARY="$BUILD/address/emulated/libtern_cuda.so" TERN_EMULATED_PROCESSES="$BUILD/emulated-turns-address" TERN_TEST_SEED="$seed" TERN_TEST_MODE=1 TERN_TEST_SCENES=2 TERN_TEST_ONLY="*half*" \
	TERN_TEST_WAIT_MS=2000 TERN_TEST_SHARING=7 TERN_TEST_ROUNDS=4 ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=0 UBSAN_OPTIONS=halt_on_error=1 "$BUILD/address/tests/device/test_elastic"
share emulated-closing-thread env TERN_CUDA_LIBRARY="$BUILD/thread/emulated/libtern_cuda.so" TERN_EMULATED_PROCESSES="$BUILD/emulated-turns" TERN_TEST_SEED="$seed" TERN_TEST_KILLS=$((20 + part)) TERN_TEST_SHARING=7 \
	TERN_EMULATED_SMS=2 TSAN_OPTIONS="halt_on_error=1 suppressions=tests/device/emulate/tsan.supp" "$BUILD/thread/tests/device/test_closing"
share emulated-schedules env TERN_CUDA_LIBRARY="$BUILD/emulated/libtern_cuda.so" TERN_TEST_SEED="$seed" TERN_TEST_SECONDS=$((part / 2)) "$BUILD/tests/emulated/test_schedules"
share emulated-ahead env TERN_CUDA_LIBRARY="$BUILD/emulated/libtern_cuda.so" TERN_TEST_SEED="$seed" TERN_TEST_SECONDS=$((part / 4)) "$BUILD/tests/emulated/test_ahead"
share emulated-ahead-thread env TERN_CUDA_LIBRARY="$BUILD/thread/emulated/libtern_cuda.so" TERN_TEST_SEED="$seed" TERN_TEST_CASES=10 TERN_EMULATED_SMS=2 TERN_EMULATED_STORES=direct \
	TSAN_OPTIONS="halt_on_error=1 suppressions=tests/device/emulate/tsan.supp" "$BUILD/thread/tests/emulated/test_ahead"
share blackhole env LONG=1 "$BUILD/tests/faults/test_blackhole"
share faults-over-tcp env TERN_FORCE_ENGINE=1 TERN_TRANSPORT="ofi:tcp;ofi_rxm" "$BUILD/tests/faults/test_faults"
share chunks-over-tcp env TERN_TRANSPORT=ofi "$BUILD/tests/exchange/test_chunks"
share engine-threads-thread env TERN_TEST_DIVISOR=8 TSAN_OPTIONS=halt_on_error=1 "$BUILD/thread/tests/unit/test_engine_threads"
share engine-mixed-thread env TSAN_OPTIONS=halt_on_error=1 "$BUILD/thread/tests/unit/test_engine_mixed"
share emulated-gpus env BUILD="$BUILD" tests/device/gpus.sh
share emulated-long-direct env TERN_CUDA_LIBRARY="$BUILD/emulated/libtern_cuda.so" TERN_TEST_SEED="$seed" TERN_TEST_RANKS=4 TERN_TEST_NODES=ab TERN_TRANSPORT=copying TERN_TEST_SHARING=7 TERN_TEST_TOTAL=1000 "$BUILD/tests/device/test_long"
share emulated-direct-address env TERN_CUDA_LIBRARY="$BUILD/address/emulated/libtern_cuda.so" TERN_TEST_SHARING=7 "$BUILD/address/tests/device/test_direct"
share emulated-direct-thread env TERN_CUDA_LIBRARY="$BUILD/thread/emulated/libtern_cuda.so" TERN_TEST_WITHOUT=too_early TERN_EMULATED_SMS=2 TERN_TEST_SHARING=1 TERN_TEST_ROUNDS=2 TERN_EMULATED_STORES=direct \
	TSAN_OPTIONS="halt_on_error=1 suppressions=tests/device/emulate/tsan.supp" "$BUILD/thread/tests/device/test_direct"
share emulated-writes env TERN_CUDA_LIBRARY="$BUILD/emulated/libtern_cuda.so" TERN_TEST_RANKS=8 TERN_TEST_NODES=aaaabbbb TERN_TEST_SHARING=7 "$BUILD/tests/device/test_writes"
# As many ranks as there may be, on 32 nodes of 8, rows once to each node, in both modes; it takes 9 GB.
share emulated-256-ranks env TERN_CUDA_LIBRARY="$BUILD/emulated/libtern_cuda.so" TERN_TEST_NODES=32 TERN_TRANSPORT=shm TERN_EMULATED_SMS=80 TERN_TEST_WITHOUT=_ TERN_TEST_WIDE=256 TERN_TEST_WIDE_TOKENS=4 \
	TERN_TEST_ROUNDS=1 TERN_TEST_CASES=0 "$BUILD/tests/device/test_device"
share emulated-lab env TERN_EMULATED_GPUS=2 "$BUILD/emulated/tern-lab-ll" verify 0.001
share emulated-nodes env BUILD="$BUILD" LONG=1 tests/device/nodes.sh
share emulated-two-cuts-address env TERN_CUDA_LIBRARY="$BUILD/address/emulated/libtern_cuda.so" TERN_EMULATED_SMS=8 TERN_TEST_SHARING=2 TERN_TEST_RANKS=2 TERN_TEST_WITHOUT=_ TERN_TEST_SEED="$seed" TERN_TEST_CASES=100 \
	ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=0 UBSAN_OPTIONS=halt_on_error=1 "$BUILD/address/tests/device/test_device"
share emulated-overlap env BUILD="$BUILD" tests/device/overlap.sh
share emulated-hostile-address env TERN_CUDA_LIBRARY="$BUILD/address/emulated/libtern_cuda.so" TERN_TEST_SEED="$seed" TERN_TEST_CASES=30 TERN_TEST_SHARING=7 \
	ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=0 "$BUILD/address/tests/device/test_hostile"
for name in unit/test_agreement unit/test_model unit/test_signal unit/test_soak exchange/test_chunks; do
	share "${name#*/test_}-address" env ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1 "$BUILD/address/tests/$name"
done
share emulated-gates-thread env TERN_CUDA_LIBRARY="$BUILD/thread/emulated/libtern_cuda.so" TERN_TEST_SEED="$seed" TERN_TEST_NODES=ab TERN_TRANSPORT=shm TERN_TEST_WITHOUT=combine TERN_EMULATED_GPUS=2 TERN_EMULATED_SMS=2 \
	TERN_TEST_SHARING=1 TERN_TEST_CASES=12 TERN_TEST_ROUNDS=2 TERN_EMULATED_STORES=direct TSAN_OPTIONS="halt_on_error=1 suppressions=tests/device/emulate/tsan.supp" "$BUILD/thread/tests/emulated/test_gates"
share emulated-mutants-thread env LONG=1 THREAD=1 BUILD="$BUILD/thread" tests/device/mutants.sh
# All that make check has a part of.
for name in unit/test_agreement unit/test_soak unit/test_engine_threads unit/test_engine_mixed unit/test_engine_sim unit/test_weights unit/test_weights_sim unit/test_put unit/test_ring unit/test_row_work faults/test_faults; do
	share "${name#*/test_}" "$BUILD/tests/$name"
done
for nodes in ab:ofi aabb:copying; do
	share "emulated-gates-${nodes%:*}" env TERN_CUDA_LIBRARY="$BUILD/emulated/libtern_cuda.so" TERN_TEST_SHARING=7 TERN_TEST_NODES="${nodes%:*}" TERN_TRANSPORT="${nodes#*:}" TERN_TEST_SEED="$seed" TERN_TEST_CASES=60 \
		"$BUILD/tests/emulated/test_gates"
done
for name in unit/test_engine_faults exchange/test_chunks; do
	share "${name#*/test_}-thread" env TERN_TEST_DIVISOR=8 TSAN_OPTIONS=halt_on_error=1 "$BUILD/thread/tests/$name"
done
for script in generate nccl; do
	share emulated-$script-address env BUILD="$BUILD/address" ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=0 tests/device/$script.sh
done
share emulated-generate env BUILD="$BUILD" LONG=1 tests/device/generate.sh
share emulated-place-sliced env TERN_CUDA_LIBRARY="$BUILD/emulated/libtern_cuda.so" TERN_FORCE_SLICES=1 TERN_TEST_SHARING=7 TERN_TEST_SEED="$seed" "$BUILD/tests/device/test_place"
share emulated-hostile-without-lines env TERN_CUDA_LIBRARY="$BUILD/emulated/libtern_cuda.so" TERN_EMULATED_LINES=0 TERN_TEST_SEED="$seed" TERN_TEST_CASES=60 "$BUILD/tests/device/test_hostile"
[ -z "$python_calls" ] || share python-address python/sanitized.sh "$BUILD/address" "$(command -v clang++ >/dev/null && echo clang || echo gcc)"
# The conformance suite where make check runs less of it, or none.
for network in sim:fair sim:foul; do
	share "transport-$network-thread" env TERN_TEST_DIVISOR=8 TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1" "$BUILD/thread/tests/transport/test_transport" "$network"
done
for network in $("$BUILD/tests/transport/test_transport" --list | grep '^ofi'); do
	share "transport-$network" "$BUILD/tests/transport/test_transport" "$network"
	case $network in
	*sockets | ofi:tcp) ;; # sockets has threads, and TSan has none after the fork of a process with threads; tcp is tcp;ofi_rxm
	*) share "transport-$network-thread" env TERN_TEST_DIVISOR=16 TSAN_OPTIONS=halt_on_error=1 "$BUILD/thread/tests/transport/test_transport" "$network" ;;
	esac
	share "transport-$network-address" env TERN_TEST_DIVISOR=8 ASAN_OPTIONS=detect_leaks=1 "$BUILD/address/tests/transport/test_transport" "$network"
done
share over-engine-thread env TERN_FORCE_ENGINE=1 TERN_TRANSPORT=shm TERN_TEST_DIVISOR=16 TSAN_OPTIONS=halt_on_error=1 "$BUILD/thread/tests/exchange/test_shapes"
! command -v valgrind >/dev/null || share memory env TERN_TEST_DIVISOR=40 valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite --fair-sched=yes \
	--sim-hints=no-nptl-pthread-stackcache "$BUILD/tests/exchange/test_shapes"
share flow until_time $part "$BUILD/tests/exchange/test_flow"
! command -v spin >/dev/null || share models tests/models/run.sh --all
share emulated-plans env TERN_CUDA_LIBRARY="$BUILD/emulated/libtern_cuda.so" TERN_TEST_SHARING=7 TERN_TEST_SEED="$seed" TERN_TEST_RANKS=3 TERN_TEST_CASES=60 TERN_TEST_ROUNDS=50 "$BUILD/tests/device/test_plans"
share emulated-plans-thread env TERN_CUDA_LIBRARY="$BUILD/thread/emulated/libtern_cuda.so" TERN_TEST_SEED="$seed" TERN_EMULATED_SMS=2 TERN_TEST_SHARING=1 TERN_TEST_RANKS=3 TERN_TEST_CASES=2 TERN_TEST_ROUNDS=8 \
	TERN_EMULATED_STORES=direct TSAN_OPTIONS="halt_on_error=1 suppressions=tests/device/emulate/tsan.supp" "$BUILD/thread/tests/device/test_plans"
share emulated-hostile env TERN_CUDA_LIBRARY="$BUILD/emulated/libtern_cuda.so" TERN_TEST_SEED="$seed" TERN_TEST_CASES=300 "$BUILD/tests/device/test_hostile"
share emulated-device-thread env TERN_CUDA_LIBRARY="$BUILD/thread/emulated/libtern_cuda.so" TERN_TEST_SEED="$seed" TERN_TEST_WITHOUT=bad_ids TERN_EMULATED_SMS=2 TERN_TEST_SHARING=1 TERN_TEST_RANKS=3 \
	TERN_TEST_CASES=6 TERN_TEST_ROUNDS=2 TERN_EMULATED_STORES=direct TSAN_OPTIONS="halt_on_error=1 suppressions=tests/device/emulate/tsan.supp" "$BUILD/thread/tests/device/test_device"
share emulated-nodes-thread env TERN_CUDA_LIBRARY="$BUILD/thread/emulated/libtern_cuda.so" TERN_TEST_SEED="$seed" TERN_TEST_NODES=ab TERN_TRANSPORT=shm TERN_TEST_WITHOUT=bad_ids TERN_EMULATED_SMS=2 TERN_TEST_SHARING=1 \
	TERN_TEST_RANKS=3 TERN_TEST_CASES=4 TERN_TEST_ROUNDS=2 TERN_EMULATED_STORES=direct TSAN_OPTIONS="halt_on_error=1 suppressions=tests/device/emulate/tsan.supp" "$BUILD/thread/tests/device/test_device"
share emulated-device-80-thread env TERN_CUDA_LIBRARY="$BUILD/thread/emulated/libtern_cuda.so" TERN_EMULATED_CODE=80 TERN_TEST_SEED="$seed" TERN_TEST_WITHOUT=bad_ids TERN_EMULATED_SMS=2 TERN_TEST_SHARING=1 TERN_TEST_RANKS=3 \
	TERN_TEST_CASES=3 TERN_TEST_ROUNDS=2 TERN_EMULATED_STORES=direct TSAN_OPTIONS="halt_on_error=1 suppressions=tests/device/emulate/tsan.supp" "$BUILD/thread/tests/device/test_device"
share emulated-device-address env TERN_CUDA_LIBRARY="$BUILD/address/emulated/libtern_cuda.so" TERN_TEST_SEED="$seed" TERN_TEST_CASES=6 TERN_TEST_SHARING=7 \
	ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=0 "$BUILD/address/tests/device/test_device"
share emulated-nodes-address env TERN_CUDA_LIBRARY="$BUILD/address/emulated/libtern_cuda.so" TERN_TEST_SEED="$seed" TERN_TEST_NODES=ab TERN_TRANSPORT=ofi TERN_TEST_WITHOUT=_ TERN_TEST_CASES=2 TERN_TEST_SHARING=7 \
	ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=0 "$BUILD/address/tests/device/test_device"
share views "$BUILD/tern" soak --views --rounds 2000000 --seed "$seed"
share views-256 "$BUILD/tern" soak --views --ranks 256 --length 100 --scenarios 10 --seed "$seed"
share survive-demo env BUILD="$BUILD" LONG=1 SEED="$((seed % 100000))" tests/cli/test_survive.sh
share restart-demo env BUILD="$BUILD" LONG=1 SEED="$((seed % 100000))" tests/cli/test_restart.sh
share join env LONG=1 TERN_TEST_SEED="$seed" "$BUILD/tests/faults/test_join"
share moving env LONG=1 TERN_TEST_SEED="$((seed % 1000000))" "$BUILD/tests/faults/test_moving"
share survive env LONG=1 TERN_TEST_SEED="$seed" "$BUILD/tests/faults/test_survive"
share survive-kinds env LONG=1 TERN_TEST_SEED="$seed" "$BUILD/tests/faults/test_survive_kinds"
share survive-thread env LONG=1 TERN_TEST_DIVISOR=4 TERN_TEST_SEED="$seed" TSAN_OPTIONS=halt_on_error=1 "$BUILD/thread/tests/faults/test_survive"
share sim "$BUILD/tern" soak --quiet --seconds $part --most-ranks 32 --seed "$seed"
share sim-deaths "$BUILD/tern" soak --quiet --seconds $((part / 2)) --fault kill --seed "$seed"
share sim-cuts "$BUILD/tern" soak --quiet --seconds $((part / 2)) --fault cut --seed "$seed"
# As many tokens as fit into 6 GB.
if [ "$(awk '/MemAvailable/ {print int($2 / 1024)}' /proc/meminfo)" -gt 7000 ]; then
	for shape in "64 128" "128 64" "256 32"; do
		for mode in ll ht; do
			share "sim-${shape% *}-ranks-$mode" "$BUILD/tern" soak --quiet --preset deepseek-v3 --ranks "${shape% *}" --tokens "${shape#* }" --mode $mode
		done
	done
else
	echo "---- less than 7000 MiB of memory: no model's shape on 64 to 256 simulated ranks"
fi
if scripts/vm.sh prepare; then
	share verbs scripts/vm.sh run -t $((1600 + part)) tests/vm/guest.sh soak "$seed" $part
	share verbs-thread env BUILD="$BUILD/thread" TERN_VM_CACHE="$BUILD/vm" TSAN_OPTIONS=halt_on_error=1 scripts/vm.sh run -t 900 tests/vm/guest.sh sanitized
	share verbs-address env BUILD="$BUILD/address" TERN_VM_CACHE="$BUILD/vm" ASAN_OPTIONS=detect_leaks=1 scripts/vm.sh run -t 900 tests/vm/guest.sh sanitized
fi
share faults until_time $part "$BUILD/tests/faults/test_faults"
if [ -n "${FUZZ[*]:-}" ] && make -s -j"$(nproc)" "${FUZZ[@]}" fuzzers >/dev/null; then
	set -- "$BUILD"/fuzz/tests/fuzz/fuzz_*
	for fuzzer; do
		corpus=$LOGS/${fuzzer##*/}
		mkdir -p "$corpus"
		share "${fuzzer##*/}" "$fuzzer" -max_total_time=$((part / $# + 1)) -timeout=0 -seed=$((seed & 0x7fffffff)) -verbosity=0 \
			-artifact_prefix="$corpus/" "$corpus"
	done
fi
echo "seed $seed"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
