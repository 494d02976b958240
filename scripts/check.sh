#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make check: installs what the tests need, builds, and runs everything. Its last line is "N passed, N failed".
# make test: after an edit, in two minutes: builds, and runs what finds most mistakes soonest.
#
#   BUILD=dir          where to build (build)
#   STAGES="a b ..."   only these: models vm plain python thread address memory fuzz (all), quick, or torch
#   JOBS=n             tests at a time (two more than cores, as many tests wait for something now and then; at most 5)
#
# A test is a program that exits 0 (passed), 77 (skipped, its last line says why) or otherwise (failed). Programs that
# speak TAP are counted by case. What a failed test said, and the command that repeats it, are shown. Its bound is no
# time on the clock, which a busy machine breaks: tests/within.c says what is counted.
set -u
export LC_ALL=C.UTF-8 # figures with points
cd "$(dirname "$0")/.." || exit 1
. scripts/no_kallsyms.sh
BUILD=${BUILD:-build}
STAGES=${STAGES:-models vm plain python thread address memory fuzz}
cores=$(nproc)
JOBS=${JOBS:-$((cores < 4 ? cores + 2 : 5))}
mkdir -p "$BUILD"
LOGS=$(cd "$BUILD" && pwd)/check
rm -rf "$LOGS"
mkdir "$LOGS"
. scripts/needs.sh
. scripts/sanitized.sh
. scripts/emulated.sh
# Of emulated GPUs: two thirds of the work that their 8 are, which make soak has.
export TERN_EMULATED_SMS=5
# Where no GPU runs them its kernels are compiled all the same, in a folder of their own, and in a tenth of the time.
[ -e /dev/nvidiactl ] || [ -e /dev/dxg ] || export CUDA=0
export WITHIN=$BUILD/tests/within
make -s BUILD="$BUILD" "$WITHIN" || exit 1

# outcome PASSED FAILED SKIPPED NAME [TEXT]: one line for the reader, one for the sum.
outcome() {
	local word=ok
	[ "$3" -gt 0 ] && [ "$1" -eq 0 ] && word=skip
	[ "$2" -gt 0 ] && word=FAIL
	printf '%-4s %4d  %s%s\n' "$word" $(($1 + $2 + $3)) "$4" "${5:+  $5}"
	echo "$stage $1 $2 $3" >>"$LOGS/outcomes"
}

# judge RC LOG: sets passed, failed, skipped.
judge() {
	# cmocka says "not ok" of what it skips.
	skipped=$(grep -cE '^(not )?ok .*# SKIP' "$2")
	passed=$(grep '^ok ' "$2" | grep -vc '# SKIP')
	failed=$(grep '^not ok ' "$2" | grep -vc '# SKIP')
	if [ "$1" -eq 77 ] && [ $((passed + failed)) -eq 0 ]; then
		skipped=1
	elif [ "$1" -ne 0 ] && [ "$failed" -eq 0 ]; then
		failed=1
	elif [ $((passed + failed + skipped)) -eq 0 ]; then
		passed=1
	fi
}

# timed LOG BOUND COMMAND...: sets wall and cpu, in seconds. They go into the table of stages, too. Where $progress is set
# the bound is one of silence.
timed() {
	local log=$1 bound=$2 from=$EPOCHREALTIME asleep rc
	shift 2
	"$WITHIN" "$bound" -o "$log.times" ${progress:+-p "$log"} "$@" >"$log" 2>&1 </dev/null
	rc=$?
	wall=0 cpu=0
	read -r wall cpu asleep <"$log.times"
	echo "$stage $from $EPOCHREALTIME $cpu" >>"$LOGS/times"
	return $rc
}

# test_now NAME BOUND COMMAND...: runs one test within BOUND seconds.
test_now() {
	local name=$1 bound=$2 log=$LOGS/${1//\//-}.log rc wall cpu passed failed skipped
	shift 2
	CMOCKA_MESSAGE_OUTPUT=TAP timed "$log" "$bound" "$@"
	rc=$?
	judge $rc "$log"
	{
		outcome "$passed" "$failed" "$skipped" "$name" "$wall s, CPU $cpu$([ $rc -eq 77 ] && echo ": $(tail -1 "$log")")"
		if [ "$failed" -gt 0 ]; then
			echo "    exit code $rc; repeat:$(printf ' %q' "$@")"
			{
				grep -E '^not ok|ERROR|error: |: FAIL' "$log" | head -n 20 # what failed first, wherever it is
				echo ...
				grep -v '^ok ' "$log" | tail -n 40
			} | cut -c 1-400 | sed 's/^/    /'
		fi
	} >"$log.report"
	cat "$log.report" # in one piece, as others run beside it
}

# test NAME BOUND COMMAND...: the same, beside others.
mine=()
leftovers=(none) # processes that take what others leave
test() {
	while [ "$(jobs -rp | grep -vxcF "$(printf '%s\n' "${leftovers[@]}")")" -ge "$JOBS" ]; do wait -n; done
	test_now "$@" &
	mine+=($!)
}

# This stage's tests: whoever begins them has made them nice.
take_what_is_left() {
	leftovers+=("${mine[@]}")
	mine=()
}

# Waits for this stage's tests.
finish() {
	[ ${#mine[@]} -eq 0 ] || wait "${mine[@]}"
	mine=()
}

# transports PREFIX DIR PATTERN COMMAND...: the conformance suite on each transport and provider of these names.
transports() {
	local prefix=$1 program=$2/tests/transport/test_transport pattern=$3 network
	shift 3
	[ -x "$program" ] || return 0
	for network in $("$program" --list | grep -E "$pattern"); do
		test "$prefix/transport/${network//[:;]/-}" 240 "$@" "$program" "$network"
	done
}

# build NAME TARGETS-AND-SETTINGS...: quietly, unless it fails.
build() {
	local log=$LOGS/build-$1.log rc wall cpu
	timed "$log" 1800 make -k -j"$JOBS" "${@:2}"
	rc=$?
	if [ $rc -ne 0 ]; then
		outcome 0 1 0 "$1/build" "repeat: make$(printf ' %q' "${@:2}")"
		grep -E 'error|undefined|\*\*\*|warning' "$log" | head -n 40 | sed 's/^/    /'
	elif grep -q 'warning:' "$log"; then
		outcome 0 1 0 "$1/build" "warnings"
		grep -A 3 'warning:' "$log" | head -n 40 | sed 's/^/    /'
	else
		outcome 1 0 0 "$1/build" "$wall s, CPU $cpu"
	fi
	return $rc
}

# every PREFIX BOUND DIR GLOB [COMMAND...]: each test program of a build, in front of it COMMAND.
every() {
	local prefix=$1 bound=$2 dir=$3 glob=$4 program
	shift 4
	for program in "$dir"/tests/$glob; do
		[ -x "$program" ] && test "$prefix/${program#"$dir"/tests/}" "$bound" "$@" "$program"
	done
	return 0
}

# programs DIR GLOB...: those of a build, which need not be there yet.
programs() {
	local source

	for source in "${@:2}"; do
		for source in tests/$source.c; do
			source=${source#tests/}
			echo "$1/tests/${source%.c}"
		done
	done
}

# They begin first and end last: others wait now and then, and leave them a core.
stage_models() {
	[ -x tests/models/run.sh ] || return 0
	if ! command -v spin >/dev/null; then
		outcome 0 0 1 models "spin is not installed"
		return
	fi
	test models 600 nice -n 19 env BUILD="$BUILD" tests/models/run.sh
	take_what_is_left
}

# Once, for the first stage that needs it.
build_plain() {
	[ -n "${is_built:-}" ] || build plain BUILD="$BUILD" OPT="-O3 -g1" all tests
	is_built=yes
}

stage_plain() {
	local cuda=$BUILD/libtern_cuda.so

	build_plain
	if [ -n "${CUDA:-}" ] && command -v nvcc >/dev/null; then
		cuda=$BUILD/compiled/libtern_cuda.so
		NVFLAGS=$(nvcc --help | grep -q Ofast-compile && echo -Ofc=max) build cuda BUILD="$BUILD/compiled" CUDA=1 CUDA_ARCH=90a "$cuda" "${cuda%/*}/libtern_bench_cuda.so"
	fi
	every plain 240 "$BUILD" 'unit/test_*' env TERN_TEST_DIVISOR=4
	every plain 240 "$BUILD" 'exchange/test_*'
	every plain 240 "$BUILD" 'faults/test_[!js]*' env TERN_TEST_DIVISOR=2
	every plain 240 "$BUILD" 'faults/test_[js]*' env TERN_TEST_DIVISOR=4
	every plain 240 "$BUILD" 'device/test_*' env TERN_CUDA_LIBRARY="$cuda"
	on_emulated_gpus
	for script in tests/cli/test_*.sh tests/install/test_*.sh; do
		[ -e "$script" ] && test "plain/${script#tests/}" 240 env BUILD="$BUILD" "$script"
	done
	test plain/links 60 scripts/links.sh
	test plain/rooms 60 env BUILD="$BUILD" scripts/rooms.sh
	test plain/style 60 scripts/style.sh
	transports plain "$BUILD" '^shm|^sim|verbs' env
	transports plain "$BUILD" 'tcp;ofi_rxm' env TERN_TEST_DIVISOR=2
	transports plain "$BUILD" 'ofi:tcp$|ofi:shm' env TERN_TEST_DIVISOR=8
	over_engine
	on_simulation
}

# The exchange on the simulated network: whatever the seeds draw, then 1008 seeds of deaths and cut links in each half and mode, then a model's shape.
on_simulation() {
	local fault phase mode

	test sim/rounds 240 "$BUILD/tern" soak --quiet --rounds 1000 --most-ranks 32
	for fault in kill cut; do
		for mode in ll ht; do
			for phase in dispatch_send dispatch_recv combine_send combine_recv; do
				test "sim/$fault-$phase-$mode" 240 "$BUILD/tern" soak --quiet --scenarios 63 --fault $fault --phase $phase --mode $mode
			done
		done
	done
	for mode in ll ht; do
		test "sim/64-ranks-$mode" 120 "$BUILD/tern" soak --quiet --preset deepseek-v3 --ranks 64 --tokens 16 --mode $mode
	done
	finish
}

# Every third rank has libfabric alone; the others have shared memory between them, and their engines both.
mixed_networks() {
	local name networks="shm+ofi:tcp;ofi_rxm shm+ofi:tcp;ofi_rxm ofi"

	for name in exchange/test_random faults/test_faults; do
		test "mixed-networks/${name#*/}" 240 env TERN_FORCE_ENGINE=1 TERN_TEST_TRANSPORTS="$networks" TERN_TEST_DIVISOR=16 "$BUILD/tests/$name"
	done
	test mixed-networks/between-nodes 240 env TERN_TEST_NODES=aabc TERN_TEST_TRANSPORTS="$networks" TERN_CHUNK_BYTES=1 TERN_CHUNKS=2 TERN_TEST_DIVISOR=16 "$BUILD/tests/exchange/test_random"
}

# The exchange again, with the engine where windows were mapped: everywhere, and between virtual nodes.
over_engine() {
	local name

	for name in shapes flow waits random figures lifetime place; do
		test "over-engine/test_$name" 240 env TERN_FORCE_ENGINE=1 TERN_TRANSPORT=shm TERN_TEST_DIVISOR=16 "$BUILD/tests/exchange/test_$name"
	done
	test over-engine/test_faults 240 env TERN_FORCE_ENGINE=1 TERN_TRANSPORT=shm TERN_TEST_DIVISOR=16 "$BUILD/tests/faults/test_faults"
	mixed_networks
	test between-nodes/test_random 240 env TERN_TEST_NODES=2 TERN_TRANSPORT=ofi TERN_TEST_DIVISOR=16 "$BUILD/tests/exchange/test_random"
	test between-nodes/test_random_uneven 240 env TERN_TEST_NODES=aabc TERN_CHUNK_BYTES=1 TERN_CHUNKS=2 TERN_TRANSPORT=shm TERN_TEST_DIVISOR=4 "$BUILD/tests/exchange/test_random"
	test between-nodes/test_plans 240 env TERN_TEST_NODES=aabc TERN_CHUNK_BYTES=1 TERN_CHUNKS=2 TERN_TRANSPORT=shm TERN_TEST_DIVISOR=4 "$BUILD/tests/exchange/test_plans"
	test between-nodes/test_place 240 env TERN_TEST_NODES=aabc TERN_CHUNK_BYTES=1 TERN_CHUNKS=2 TERN_TRANSPORT=shm TERN_TEST_DIVISOR=4 "$BUILD/tests/exchange/test_place"
	test between-nodes/test_chunks 240 env TERN_TRANSPORT=shm TERN_TEST_DIVISOR=16 "$BUILD/tests/exchange/test_chunks"
	test between-nodes/bench 120 "$BUILD/tern" bench --nodes 2 --ranks 4 --preset all --tokens 5 --mode ll,ht --dtype fp8,bf16 --only-verify --iters 3
	test between-nodes/generate 120 "$BUILD/tern" run -n 4 --nodes 2 -- "$BUILD/generate" -n 24
	finish
}

# After an edit: what finds most mistakes soonest, in the build that make check goes on from.
stage_quick() {
	build quick BUILD="$BUILD" "$BUILD/tern" "$BUILD/libtern.a" "$BUILD/libtern.so" "$BUILD/generate" tests
	every quick 240 "$BUILD" 'unit/test_*'
	every quick 240 "$BUILD" 'exchange/test_*' env TERN_TEST_DIVISOR=4
	every quick 240 "$BUILD" 'faults/test_[ef]*' env TERN_TEST_DIVISOR=4
	emulated quick/emulated/device "$BUILD" TERN_TEST_CASES=2 "$BUILD/tests/device/test_device"
	emulated quick/emulated/schedules "$BUILD" TERN_TEST_CASES=8 "$BUILD/tests/emulated/test_schedules"
	emulated quick/emulated/calls "$BUILD" "$BUILD/tests/device/test_calls"
	for script in cli/test_run cli/test_signal cli/test_soak; do
		test "quick/$script" 240 env BUILD="$BUILD" "tests/$script.sh"
	done
	test quick/over-engine/test_random 240 env TERN_FORCE_ENGINE=1 TERN_TRANSPORT=shm TERN_TEST_DIVISOR=8 "$BUILD/tests/exchange/test_random"
	test quick/sim 240 "$BUILD/tern" soak --quiet --rounds 500
	transports quick "$BUILD" '^shm|^sim' env TERN_TEST_DIVISOR=8
}

# The Python package, installed from the tree.
stage_python() {
	build_plain
	test python/tests 240 env BUILD="$BUILD" python/check.sh
	finish
}

# Not by itself: it takes an environment of 3 GB.
stage_torch() {
	build torch BUILD="$BUILD" all
	test torch/tests 1800 env BUILD="$BUILD" python/torch.sh
	finish
}

# Ranks are threads here, so the sanitizer sees every byte that passes between them.
stage_thread() {
	local wanted

	mapfile -t wanted < <(programs "$BUILD/thread" 'exchange/test_*' 'unit/test_boot*' unit/test_ring 'unit/test_engine_[!fm]*' unit/test_device_ring unit/test_weights device/test_device device/test_closing)
	build thread "${THREAD[@]}" "${wanted[@]}" \
		"$BUILD/thread/tests/transport/test_transport" "$BUILD/thread/tests/emulated/test_gates" "$BUILD/thread/emulated/libtern_cuda.so" "$BUILD/thread/emulated/libtern_bench_cuda.so"
	# Of the shapes those with other ranks, experts or tokens: bytes of rows pass between ranks alike in all.
	test thread/exchange/test_shapes 300 env TERN_TEST_DIVISOR=32 TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1" "$BUILD/thread/tests/exchange/test_shapes" '*_counts'
	# Of chunks what threads differ in: who waits for whom.
	test thread/exchange/test_chunks 300 env TERN_TEST_DIVISOR=32 TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1" "$BUILD/thread/tests/exchange/test_chunks" '*_*'
	every thread 300 "$BUILD/thread" 'exchange/test_[!cs]*' env TERN_TEST_DIVISOR=32 TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1"
	every thread 120 "$BUILD/thread" 'unit/test_boot*' env TSAN_OPTIONS=halt_on_error=1
	every thread 300 "$BUILD/thread" 'unit/test_ring' env TERN_TEST_DIVISOR=8 TSAN_OPTIONS=halt_on_error=1
	every thread 300 "$BUILD/thread" 'unit/test_engine_[!fmt]*' env TERN_TEST_DIVISOR=64 TSAN_OPTIONS=halt_on_error=1
	test thread/unit/test_weights 300 env TERN_TEST_DIVISOR=8 TSAN_OPTIONS=halt_on_error=1 "$BUILD/thread/tests/unit/test_weights"
	# Over libfabric ThreadSanitizer follows its memsets of 17 MB, up to a minute of them.
	test thread/unit/test_engine_threads 300 env TERN_TEST_DIVISOR=64 TSAN_OPTIONS=halt_on_error=1 "$BUILD/thread/tests/unit/test_engine_threads" '*many*'
	# Two lanes describe the row of an expert that is named twice, which no correct caller does. A lane is a fiber of ThreadSanitizer: few blocks and ranks.
	emulated thread/emulated/device "$BUILD/thread" TERN_TEST_WITHOUT=bad_ids,scales,in_combine,ht_slow,over_capacity TERN_TEST_DIVISOR=24 TERN_EMULATED_SMS=2 TERN_TEST_SHARING=1 TERN_TEST_RANKS=3 TERN_TEST_CASES=2 \
		TERN_TEST_ROUNDS=2 TERN_EMULATED_STORES=direct TSAN_OPTIONS="halt_on_error=1 suppressions=tests/device/emulate/tsan.supp" "$BUILD/thread/tests/device/test_device"
	every thread 120 "$BUILD/thread" 'unit/test_device_ring' env TERN_TEST_DIVISOR=8 TSAN_OPTIONS=halt_on_error=1
	emulated thread/emulated/device_nodes "$BUILD/thread" TERN_TEST_NODES=ab TERN_TRANSPORT=shm TERN_TEST_WITHOUT=_ TERN_EMULATED_SMS=2 TERN_TEST_SHARING=1 TERN_TEST_RANKS=3 TERN_TEST_CASES=1 \
		TERN_TEST_ROUNDS=2 TERN_EMULATED_STORES=direct TSAN_OPTIONS="halt_on_error=1 suppressions=tests/device/emulate/tsan.supp" "$BUILD/thread/tests/device/test_device"
	test thread/emulated/mutants 240 env THREAD=1 BUILD="$BUILD/thread" tests/device/mutants.sh
	: >"$LOGS/thread-closing"
	emulated thread/emulated/closing "$BUILD/thread" TERN_EMULATED_PROCESSES="$LOGS/thread-closing" TERN_EMULATED_SMS=2 TSAN_OPTIONS="halt_on_error=1 suppressions=tests/device/emulate/tsan.supp" "$BUILD/thread/tests/device/test_closing"
	transports thread "$BUILD/thread" '^shm|^sim:foul,' env TERN_TEST_DIVISOR=32 TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1"
}

stage_address() {
	local options="ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1"
	local wanted

	# What takes longest is left to make soak: models of weights, searches of states and of signals, chunks, and kernels,
	# whose memory is fenced without a sanitizer, too (tests/device/emulate/memory.c).
	mapfile -t wanted < <(programs "$BUILD/address" 'unit/test_[!ams]*' 'unit/test_s[!io]*' unit/test_sim unit/test_measure 'exchange/test_[!c]*' 'faults/test_[ef]*' transport/test_transport)
	build address "${ADDRESS[@]}" "$BUILD/address/tern" "${wanted[@]}"
	# shellcheck disable=SC2086
	every address 300 "$BUILD/address" 'unit/test_*' env TERN_TEST_DIVISOR=8 $options
	# shellcheck disable=SC2086
	every address 300 "$BUILD/address" 'exchange/test_[!c]*' env TERN_TEST_DIVISOR=24 $options
	# shellcheck disable=SC2086
	every address 300 "$BUILD/address" 'faults/test_[ef]*' env TERN_TEST_DIVISOR=4 $options
	if [ -x "$BUILD/address/tern" ]; then
		# shellcheck disable=SC2086
		test address/cli/bench 120 env $options "$BUILD/address/tern" bench --ranks 3 --preset custom --hidden 256 --experts 8 --topk 2 \
			--mode all --tokens 1,16 --iters 3 --warmup 1 --verify --quiet
		# shellcheck disable=SC2086
		test address/cli/info 60 env $options "$BUILD/address/tern" info
		# shellcheck disable=SC2086
		test address/sim 240 env $options "$BUILD/address/tern" soak --quiet --rounds 800
	fi
	# shellcheck disable=SC2086
	transports address "$BUILD/address" '^shm|^sim|tcp;ofi_rxm' env TERN_TEST_DIVISOR=16 $options
	finish # the next stage begins nice tests, and counts all that it has as such
}

# The verbs transport on a kernel's RDMA device, in a virtual machine. Beside all else: much of its time is one
# processor's. make soak has it with sanitizers.
vm() {
	local why

	why=$(BUILD=$BUILD scripts/vm.sh prepare)
	if [ $? -ne 0 ]; then
		outcome 0 0 1 vm "$why"
		return
	fi
	progress=1 test_now vm 320 env BUILD="$BUILD" scripts/vm.sh run -t 300 tests/vm/guest.sh check
}

stage_vm() {
	build_plain
	vm &
	leftovers+=($!)
}

# Memcheck knows uninitialised memory, which the sanitizers do not.
stage_memory() {
	local memcheck="nice -n 19 valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite --fair-sched=yes --sim-hints=no-nptl-pthread-stackcache"

	if ! command -v valgrind >/dev/null; then
		outcome 0 0 1 memory "valgrind is not installed"
		return
	fi
	# shellcheck disable=SC2086
	test memory/exchange/test_shapes 600 env TERN_TEST_DIVISOR=120 $memcheck "$BUILD/tests/exchange/test_shapes" expert_counts
	# shellcheck disable=SC2086
	every memory 600 "$BUILD" 'unit/test_plan' env TERN_TEST_DIVISOR=20 $memcheck
	take_what_is_left
}

# Some seconds of processor time each.
runs_of() {
	case $1 in
	fuzz_api) echo 10000 ;;
	fuzz_chunk | fuzz_peer) echo 4000 ;;
	*) echo 100000 ;;
	esac
}

# In a shell of its own: they take what others leave. A number of runs is a bound that no busy machine changes.
fuzz() {
	local fuzzer name

	renice -n 19 -p "$BASHPID" >/dev/null
	mine=()
	build fuzz "${ADDRESS[@]}" fuzzers
	for fuzzer in "$BUILD"/address/tests/fuzz/fuzz_*; do
		[ -x "$fuzzer" ] || continue
		name=${fuzzer##*/}
		mkdir -p "$LOGS/$name"
		# A directory of its own takes the crash files; a committed corpus, where there is one, is read. What a fuzzer
		# finds would end it with 77.
		test "fuzz/$name" 240 "$fuzzer" -runs="$(runs_of "$name")" -timeout=0 -seed=1 -error_exitcode=1 -print_final_stats=0 -verbosity=0 \
			-artifact_prefix="$LOGS/$name/" "$LOGS/$name" $(ls -d tests/fuzz/corpus/"${name#fuzz_}" 2>/dev/null)
	done
	finish
}

stage_fuzz() {
	if ! command -v clang >/dev/null; then
		outcome 0 0 1 fuzz "clang is not installed"
		return
	fi
	fuzz &
	leftovers+=($!)
}

# The table of stages: what each counted, how long it took from its first test to the end of its last, and how much of
# processors. Some run beside each other.
table() {
	awk '
		FNR == NR {n[$1] += 0; p[$1] += $2; f[$1] += $3; k[$1] += $4; if (!seen[$1]++) order[++nr] = $1; next}
		{cpu[$1] += $4; if (!($1 in from) || $2 < from[$1]) from[$1] = $2; if ($3 > to[$1]) to[$1] = $3}
		END {
			printf "\n%-10s %7s %7s %8s %9s %9s\n", "stage", "passed", "failed", "skipped", "time s", "CPU s"
			for (i = 1; i <= nr; i++) {
				s = order[i]
				printf "%-10s %7d %7d %8d %9.1f %9.1f\n", s, p[s], f[s], k[s], to[s] - from[s], cpu[s]
				all += cpu[s]
				if (!first || (from[s] && from[s] < first)) first = from[s]
				if (to[s] > last) last = to[s]
			}
			printf "%-10s %7s %7s %8s %9.1f %9.1f\n\n", "all", "", "", "", last - first, all
		}' "$LOGS/outcomes" "$LOGS/times"
}

: >"$LOGS/outcomes"
: >"$LOGS/times"
for stage in $STAGES; do
	echo "---- $stage"
	"stage_$stage"
done
wait
table
awk '{p += $2; f += $3; s += $4}
	END {printf "%d passed, %d failed%s\n", p, f, s ? ", " s " skipped" : ""; exit f > 0 || p == 0}' "$LOGS/outcomes"
