#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# On a machine with GPUs: is everything right there, and how fast is it? Builds nothing, so that no time is lost there:
#
#   make all tests lab          where nvcc is
#   scripts/gpus.sh             where the GPUs are
#
#   STAGES="a b ..."   only these, in this order (all):
#     load        whose code kernels have here; where the library has PTX alone the driver compiles it now, and later steps find it in its cache
#     check       random exchanges and what callers do wrong, hostile words, ranks that are late, stay away or are killed, presets, layouts
#     demo        the same text on the CPU and on 1, 2, 4 and 8 GPUs; with fewer than 4, by 4 ranks that share them
#     lab         the low-latency kernels by themselves, verified; which launch is the best; rows alone, stored or fetched in all ways; and plans alone
#     bench       times of presets, by graph replay, around and beside work too, and NCCL's beside them
#     long        ROUNDS rounds of each mode over fresh shapes, on 2, 4 and 8 GPUs; with fewer than 4, by 4 ranks that share them
#     sanitize    compute-sanitizer's TOOLS: planted faults, which each has to find; one rank, all dtypes and layouts; a process on each of 2, 4 or 8 GPUs
#     python      the package's tests on GPUs, with plain calls in graphs and operators in those of torch.compile; deep_ep's, vLLM's and SGLang's classes
#                 over it (BUILD/engines) and, where transformers has expert parallelism, models', by two ranks; both wheels of BUILD/wheels (scripts/wheels.sh,
#                 where nvcc is), found without settings; what a call costs
#   STEPS=glob         of these only the steps whose names match: STAGES="check long" STEPS="*/@(nodes|ll-4)" (all)
#   BUILD=dir   what was built (build)                 LOGS=dir    where all output goes (BUILD/gpus)
#   GPUS=n      how many there are (nvidia-smi -L)     CASES=n     random exchanges of the check (40)
#   ROUNDS=n    of the long runs (10000)               TOOLS="..." of compute-sanitizer (memcheck racecheck initcheck synccheck)
#   LIBS=dir    libraries that the machine lacks (BUILD/lib): libcmocka.so.0 for check/processes, libfabric.so.1 for check/nodes; without them these are skipped
#   TERN_CUDA_LIBRARY=file   in place of BUILD's, for example one with nothing but PTX of the code for sm_80, which the driver compiles for the GPU that is there; libtern_bench_cuda.so has to lie beside it:
#                            make CUDA=1 CUDA_ARCH= CUDA_PTX=80 BUILD=build-ptx80 build-ptx80/libtern_cuda.so build-ptx80/libtern_bench_cuda.so
#   TERN_FORCE_LINK=cells    the format of links that keep no lines whole, as over PCIe; =none: no GPU reaches another's memory
#   TERN_FORCE_BLOCK_KIB=n   less shared memory for a block: 163 as on sm_80, 99 as on sm_86
#
# Where the machine is there for a few minutes only: STAGES="check demo long bench", about four minutes on 2 GPUs.
# Each step has a bound and a line of its own: its time, its outcome, and its log. Ends with "N passed, N failed, N skipped"; 1 if any failed.
set -u
[ "${1:-}" != --help ] || { sed -n '3,/^set/ { /^set/d; s/^# \{0,1\}//; p }' "$0"; exit 0; }
cd "$(dirname "$0")/.." || exit 1
BUILD=$(realpath "${BUILD:-build}")
WITHIN=${WITHIN:-$BUILD/tests/within}
LOGS=${LOGS:-$BUILD/gpus}
STAGES=${STAGES:-load check demo lab bench long sanitize python}
STEPS=${STEPS:-*}
CASES=${CASES:-40}
ROUNDS=${ROUNDS:-10000}
TOOLS=${TOOLS:-memcheck racecheck initcheck synccheck}
PLANTED=${PLANTED:-$BUILD/tern-lab-planted}
PRESETS=deepseek-v3,qwen3-30b-a3b,gpt-oss-120b
LIBS=${LIBS:-$BUILD/lib}
[ ! -d "$LIBS" ] || LD_LIBRARY_PATH=$(realpath "$LIBS")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
mkdir -p "$LOGS"
: >"$LOGS/outcomes"
gpus=${GPUS:-$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')}

# step NAME BOUND COMMAND...: 77 is a skip, as in scripts/check.sh.
step() {
	local name=$1 bound=$2 log=$LOGS/${1//\//-}.log from=$SECONDS rc
	[[ $name == $STEPS ]] || return 0
	shift 2
	"$WITHIN" "$bound" bash -c '"$0" "$@"' "$@" >"$log" 2>&1 </dev/null # a function, or a program
	rc=$?
	case $rc in
	0) word=ok ;;
	77) word=skip ;;
	*) word="FAIL ($rc)" ;;
	esac
	echo "$word" >>"$LOGS/outcomes"
	{
		printf '%-10s %4d s  %-28s %s\n' "$word" $((SECONDS - from)) "$name" "$log"
		case $word in
		skip) tail -n 1 "$log" | sed 's/^/    /' ;;
		FAIL*) tail -n 12 "$log" | sed 's/^/    /' ;;
		esac
	} >"$log.report"
	cat "$log.report" # in one piece, as others run beside it
}

nr_outcomes() { grep -c "^$1" "$LOGS/outcomes"; }

# beside NAME BOUND COMMAND...: a step that mostly waits, beside those that follow; `wait` ends it.
beside() { step "$@" & }

# with_library NAME COMMAND...: where there is no such library, what needs it is skipped.
with_library() {
	local dir

	for dir in ${LD_LIBRARY_PATH//:/ }; do
		[ ! -e "$dir/$1" ] || { "${@:2}"; return; }
	done
	ldconfig -p | grep -q "^[[:space:]]*$1 " || { echo "skip: no $1 here, nor in $LIBS"; return 77; }
	"${@:2}"
}

# between_gpus NR COMMAND...: with one GPU it is skipped.
between_gpus() {
	[ "$1" -ge 2 ] || { echo "skip: a copy within the one GPU may find no room beside two kernels that wait for it"; return 77; }
	"${@:2}"
}

# Numbers of GPUs to try: 1, 2, 4, as far as there are.
counts() { for n in 1 2 4 8; do [ "$n" -le "$gpus" ] && echo "$n"; done; }
# And ranks: 4 at least, which share GPUs where there are fewer.
rank_counts() { counts; [ "$gpus" -ge 4 ] || echo 4; }

verify() { "$BUILD/tern" bench --device cuda --ranks "$1" --only-verify "${@:2}"; }

stage_load() {
	step load/code 30 "$BUILD/tern" doctor --quick
	grep -hs "^kernels" "$LOGS/load-code.log" | sed "s/^/    /"
	step load/all 180 env CUDA_MODULE_LOADING=EAGER "$BUILD/tern" bench --device cuda --ranks 1 --only-verify --hidden 512 --experts 8 --topk 4 --tokens 4 --iters 2
}

stage_check() {
	local n

	step check/test_device 240 env TERN_TEST_CASES="$CASES" "$BUILD/tests/device/test_device" # stalled and slow ranks, too
	step check/plans 240 env TERN_TEST_CASES="$CASES" "$BUILD/tests/device/test_plans"
	step check/calls 60 "$BUILD/tests/device/test_calls"
	step check/place 60 "$BUILD/tests/device/test_place"
	step check/count_routes 60 "$BUILD/tests/device/test_count_routes"
	step check/gates 60 env TERN_TEST_CASES=20 TERN_TEST_ROUNDS=20 "$BUILD/tests/emulated/test_gates" # drawn alike, by real kernels here
	step check/hostile 120 "$BUILD/tests/device/test_hostile"
	step check/elastic $((gpus > 1 ? 300 : 600)) with_library libcmocka.so.0 env TERN_TEST_KILL_US=50000 TERN_TEST_ROUNDS=120 TERN_TEST_WAIT_MS=300 "$BUILD/tests/device/test_elastic"
	beside check/processes 120 with_library libcmocka.so.0 "$BUILD/tests/device/test_processes" # killed, stalled
	beside check/nodes 120 with_library libfabric.so.1 env GPUS="$gpus" tests/device/nodes.sh
	for n in $(counts); do
		step "check/verify-$n" 120 verify "$n" --preset all --mode ll,ht --dtype fp8,bf16 --tokens 1,8,128 --iters 4
	done
	step check/device-nodes 120 env TERN_TEST_NODES=ab TERN_TEST_CASES=12 TERN_TEST_RANKS=$((2 * gpus)) "$BUILD/tests/device/test_device"
	step check/plans-nodes 120 env TERN_TEST_NODES=ab TERN_TEST_CASES=8 TERN_TEST_RANKS=$((2 * gpus)) "$BUILD/tests/device/test_plans"
	step check/direct 60 env TERN_TEST_WITHOUT=too_early "$BUILD/tests/device/test_direct"
	step check/too-early 40 env TERN_TEST_WITHOUT=in_device,nothing_through,heads_alone TERN_TEST_ROUNDS=1 "$BUILD/tests/device/test_direct" # the word of rows that are not there yet: passes if wrong elements are found
	grep -hs '^# mode' "$LOGS/check-too-early.log" | sed 's/^# */    /'
	step check/writes 60 env TERN_TEST_RANKS=$((gpus > 1 ? 2 * gpus : 4)) "$BUILD/tests/device/test_writes"
	step check/device-direct 120 between_gpus "$gpus" env TERN_TEST_NODES=ab TERN_TRANSPORT=copying TERN_TEST_WITHOUT=_ TERN_TEST_CASES=12 TERN_TEST_RANKS=$((2 * gpus)) "$BUILD/tests/device/test_device"
	step check/layouts 120 verify "$gpus" --preset qwen3-30b-a3b --mode ll,ht --dtype fp8,bf16,fp16,fp32 --layout contiguous,padded,source --reduce home,expert --tokens 33 --iters 4
	[ ! -e "$BUILD/libtern_cuda_traced.so" ] || step check/trace 60 env GPUS="$gpus" tests/device/trace.sh
	step check/uneven 60 verify "$gpus" --mode ll,ht --tokens 128 --uneven --drop 0.2 --slots 2 --iters 10
	wait
}

# The same text by one rank on the CPU and by some on GPUs.
generate() {
	"$BUILD/tern" run -n "$1" -- "$BUILD/generate" -n 32 --device "$2" | sed -n '/^---/,/^ranks/p' | sed 's/, rank [0-9]*//; /^ranks/d'
}

same_text() {
	generate 1 cpu >"$LOGS/text.cpu" && generate "$1" cuda >"$LOGS/text.$1" && [ -s "$LOGS/text.cpu" ] && cmp "$LOGS/text.cpu" "$LOGS/text.$1"
}

# With experts there, too: the demo compares logits itself.
near_logits() { "$BUILD/tern" run -n "$1" -- "$BUILD/generate" -n 32 --device cuda --layer >"$LOGS/layer.$1" && grep "logits near" "$LOGS/layer.$1"; }

stage_demo() {
	local n

	for n in $(rank_counts); do
		step "demo/$n" 90 same_text "$n"
		step "demo/layer-$n" 90 near_logits "$n"
	done
}

stage_lab() {
	step lab/verify 120 "$BUILD/tern-lab-ll" verify 0.5
	step lab/sweep 120 "$BUILD/tern-lab-ll" sweep
	step lab/ways 60 "$BUILD/tern-lab-ways"
	step lab/notes 30 "$BUILD/tern-lab-notes"
}

measure() { "$BUILD/tern" bench --device cuda --ranks "$gpus" --reduce expert "${@:2}" --json "$LOGS/$1.json"; }

# In the same run and the same rounds as Tern's. Of NCCL's one round is compared; of Tern's, all in other steps.
beside_nccl() {
	ldconfig -p | grep -q libnccl.so.2 || [ -n "${TERN_NCCL_LIBRARY:-}" ] || { echo "skip: no libnccl.so.2, and TERN_NCCL_LIBRARY is not set"; return 77; }
	measure nccl-ll --preset deepseek-v3 --dtype fp8,bf16 --tokens 1,8,128 --mode ll --iters 100 --against nccl &&
		measure nccl-ht --preset deepseek-v3 --dtype fp8,bf16 --tokens 4096 --mode ht --iters 20 --against nccl
}

# The first half after a rest, on two nodes by name and over a network of the host, with proxies that stay awake and with proxies that sleep.
rests() {
	local awake rest

	for awake in 1 0; do
		for rest in 0 1000; do
			echo "TERN_PROXY_AWAKE=$awake, after $rest us of rest:"
			TERN_PROXY_AWAKE=$awake TERN_TRANSPORT=shm "$BUILD/tern" run -n 2 -N 2 --by-name -- "$BUILD/tern" bench --device cuda --preset deepseek-v3 --tokens 1,128 --mode ll --reduce expert --iters 200 --rest $rest \
				--json "$LOGS/rest-$awake-$rest.json" || return
		done
	done
}

stage_bench() {
	step bench/ll 120 measure ll --verify --preset $PRESETS --tokens 1,8,32,128 --mode ll --iters 200
	step bench/ll-bf16 60 measure ll-bf16 --verify --preset deepseek-v3 --dtype bf16 --tokens 1,8,128 --mode ll --iters 200
	step bench/ht 120 measure ht --verify --preset deepseek-v3 --dtype fp8,bf16 --tokens 4096 --mode ht --iters 20
	step bench/overlap 120 measure overlap --verify --preset deepseek-v3 --tokens 128 --mode ll,ht --iters 20 --slots 2 --sms 24 --overlap 20,100
	step bench/nccl 120 beside_nccl
	step bench/rest 120 rests
	step bench/ht-24-sms 120 measure ht-24-sms --preset deepseek-v3 --dtype fp8,bf16 --tokens 4096 --mode ht --iters 30 --sms 24
}

# long MODE RANKS [SETTINGS...]
long() { step "long/$1-$2" 120 env TERN_TEST_MODE="$1" TERN_TEST_RANKS="$2" TERN_TEST_TOTAL="$ROUNDS" TERN_TEST_SECONDS=90 "${@:3}" "$BUILD/tests/device/test_long"; }

# direct MODE RANKS: likewise on two nodes, whose rows a network of the tests' moves from device to device beside the
# kernels. Ranks that share a GPU are on one node, as a copy within a GPU is a kernel's.
direct() { step "long/direct-$1-$2" 120 between_gpus "$gpus" env TERN_TEST_NODES=ab TERN_TRANSPORT=copying TERN_TEST_MODE="$1" TERN_TEST_RANKS="$2" TERN_TEST_TOTAL=$((ROUNDS < 1000 ? ROUNDS : 1000)) TERN_TEST_SECONDS=90 "$BUILD/tests/device/test_long"; }

# A layer beside its dispatch and behind it.
long_layer() { step "long/layer-$1" 120 env TERN_TEST_MODE="$1" TERN_TEST_TOTAL="$ROUNDS" TERN_TEST_ROUNDS=50 TERN_TEST_HIDDEN=2048 TERN_TEST_TOKENS=300 "$BUILD/tests/device/test_layer"; }

# Both modes at once where each finds two GPUs of its own.
stage_long() {
	local n

	for n in $(rank_counts | grep -v '^1$'); do
		if [ "$n" -eq 2 ] && [ "$gpus" -ge 4 ]; then
			long ll 2 CUDA_VISIBLE_DEVICES=0,1 &
			long ht 2 CUDA_VISIBLE_DEVICES=2,3
			wait
		else
			long ll "$n"
			long ht "$n"
		fi
		grep -hs '^# ' "$LOGS/long-ll-$n.log" "$LOGS/long-ht-$n.log" | sed 's/^# */    /'
	done
	for n in 2 4; do
		direct ll $n
		direct ht $n
		grep -hs '^# ' "$LOGS/long-direct-ll-$n.log" "$LOGS/long-direct-ht-$n.log" | sed 's/^# */    /'
	done
	long_layer ll
	long_layer ht
	grep -hs '^# ' "$LOGS/long-layer-ll.log" "$LOGS/long-layer-ht.log" | sed 's/^# */    /'
}

# under TOOL COMMAND...: says what compute-sanitizer has found. It follows processes that the command starts. By itself synccheck finds too little room for the barriers of copies in
# high throughput, and then kernels fail.
under() { compute-sanitizer --tool "$1" --target-processes all --error-exitcode 9 --num-cuda-barriers 512 "${@:2}"; }

# Each tool ends with a line of its own; without one, nobody knows what it has seen.
summaries() { grep -hE '(ERROR|RACECHECK) SUMMARY: ' "$@"; }
without_fault() { grep -E 'ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards displayed \(0 errors, 0 warnings\)'; }

has_sanitizer() { command -v compute-sanitizer >/dev/null || { echo "skip: compute-sanitizer is not installed"; return 77; }; }

# sanitize TOOL COMMAND...: the command went well, and all summaries, of which there is one at least, are of no fault.
sanitize() {
	local all=$LOGS/sanitized.$1 rc nr

	has_sanitizer || return
	under "$@" >"$all" 2>&1
	rc=$?
	cat "$all"
	nr=$(summaries "$all" | wc -l)
	[ "$nr" -gt 0 ] || echo "no summary: nobody knows what $1 has seen"
	[ $rc -eq 0 ] && [ "$nr" -gt 0 ] && [ "$nr" -eq "$(summaries "$all" | without_fault | wc -l)" ]
}

# planted FAULT: the tool that it is named for finds it, in a process that the command starts.
planted() {
	local all=$LOGS/planted.$1

	has_sanitizer || return
	[ -x "$PLANTED" ] || { echo "skip: $PLANTED is not there: make lab"; return 77; }
	under "${1%%-*}" "$BUILD/tern" run -n 1 -- "$PLANTED" "$1" >"$all" 2>&1
	cat "$all"
	grep -q '^planted: ' "$all" && summaries "$all" | grep -qvE ': 0 (errors|hazards)'
}

# Kernels that wait for each other cannot run under these tools in one process, where launches wait for what was launched before. Half of the rounds are replayed graphs.
stage_sanitize() {
	local tool fault gates most small=(--only-verify --hidden 512 --experts 8 --topk 4 --mode "ll,ht")

	most=$(counts | tail -n 1)
	for tool in $TOOLS; do
		step "sanitize/$tool-planted" 30 planted "$tool"
		for fault in copy buffer; do
			[ "$tool" != racecheck ] || step "sanitize/$tool-planted-$fault" 30 planted "$tool-$fault"
		done
		step "sanitize/$tool-1" 60 sanitize "$tool" "$BUILD/tern" bench --device cuda --ranks 1 "${small[@]}" --dtype fp8,bf16,fp16,fp32 --tokens 33 --layout contiguous,padded,source --reduce home,expert --iters 4
		for gates in 0 64; do
			step "sanitize/$tool-layer-$gates" 60 sanitize "$tool" "$BUILD/tern" bench --layer \
				--device cuda --ranks 1 "${small[@]}" --inner 256 --dtype fp8,bf16 \
				--tokens 1,33,200 --gates $gates --iters 2
		done
		[ "$gpus" -lt 2 ] ||
			step "sanitize/$tool-$most" 60 sanitize "$tool" "$BUILD/tern" bench --device cuda --ranks "$most" "${small[@]}" --dtype fp8,bf16 --tokens 9 --uneven --drop 0.2 --reduce home,expert --iters 4
		summaries "$LOGS/sanitize-$tool"-*.log | sed 's/^=*/   /'
	done
}

compiled_calls() {
	[ -e "$BUILD/_calls.abi3.so" ] && return
	echo "skip: $BUILD/_calls.abi3.so is not there: make, where Python.h is (PYTHON_INCLUDE=)"
	return 77
}

tests_of_python() {
	compiled_calls || return
	python3 -c 'import torch, pytest; torch.cuda.init()' 2>/dev/null || { echo "skip: no torch with CUDA, or no pytest"; return 77; }
	TERN_LIBRARY=$BUILD/libtern.so PYTHONPATH=python python3 -m pytest -q python/tests/test_cuda.py
}

# What the wheels hold, in a folder of their own; nothing says where libraries are.
from_wheels() {
	env -u TERN_LIBRARY -u TERN_CUDA_LIBRARY PYTHONPATH="$LOGS/site" "$@"
}

wheels_of_python() {
	local wheels=("$BUILD"/wheels/tern_ep-*.whl "$BUILD"/wheels/tern_ep_cu13-*.whl)

	python3 -c 'import torch, pip; torch.cuda.init()' 2>/dev/null || { echo "skip: no torch with CUDA, or no pip"; return 77; }
	[ -e "${wheels[0]}" ] && [ -e "${wheels[1]}" ] || { echo "skip: $BUILD/wheels has not both wheels: scripts/wheels.sh where nvcc is"; return 77; }
	rm -rf "$LOGS/site"
	python3 -m pip install --quiet --no-index --no-deps --target "$LOGS/site" "${wheels[@]}" || return
	from_wheels "$LOGS/site/bin/tern-ep" check | tee "$LOGS/page"
	grep -q '^GPUs  *works' "$LOGS/page" && grep -q '^tern-ep-cu13 .*/site/' "$LOGS/page" && grep -q '^kernels on GPU 0' "$LOGS/page" || return 1
	awk '/^```/ {inside = /python/; next} inside' README.md >"$LOGS/example.py"
	from_wheels "$LOGS/site/bin/tern-ep" run -n "$gpus" -- python3 "$LOGS/example.py" || return
	! python3 -c 'import pytest' 2>/dev/null || from_wheels python3 -m pytest -q python/tests/test_cuda.py python/tests/test_torch.py
}

calls_of_python() {
	python3 -c 'import torch; torch.cuda.init()' 2>/dev/null || { echo "skip: no torch with CUDA"; return 77; }
	DEVICE=cuda scripts/calls.sh
}

# Two ranks share a GPU where there is one.
deep_ep_of_python() {
	compiled_calls || return
	python3 -c 'import torch, pytest; torch.cuda.init()' 2>/dev/null || { echo "skip: no torch with CUDA, or no pytest"; return 77; }
	TERN_LIBRARY=$BUILD/libtern.so PYTHONPATH=python${PYTHONPATH:+:$PYTHONPATH} python3 -m pytest -q --durations 0 python/tests/test_deep_ep.py -k on_gpus
}

# Where nobody is waited for: what the host takes of each call. Two ranks beside another deep_ep: docs/deep_ep.md.
deep_ep_calls_of_python() {
	compiled_calls || return
	python3 -c 'import torch; torch.cuda.init()' 2>/dev/null || { echo "skip: no torch with CUDA"; return 77; }
	TERN_LIBRARY=$BUILD/libtern.so PYTHONPATH=python${PYTHONPATH:+:$PYTHONPATH} torchrun --standalone --nproc-per-node 1 \
		-m tern_ep.deep_ep.bench --device cuda --tokens 1 8 --most 128 --graph --rounds 200
}

# vLLM's and SGLang's own classes, whose files are brought along: python3 python/tests/engines.py build/engines, where PyPI is.
engines_of_python() {
	compiled_calls || return
	[ -d "$BUILD/engines" ] || { echo "skip: $BUILD/engines is not there: python/tests/engines.py fetches it"; return 77; }
	python3 -c 'import torch, regex; torch.cuda.init()' 2>/dev/null || { echo "skip: no torch with CUDA, or no regex"; return 77; }
	TERN_LIBRARY=$BUILD/libtern.so PYTHONPATH=python${PYTHONPATH:+:$PYTHONPATH} python3 python/tests/engine_ranks.py --device cuda --engines "$BUILD/engines"
}

models_of_python() {
	compiled_calls || return
	python3 -c 'import torch, pytest, transformers.distributed.expert_parallel; torch.cuda.init()' 2>/dev/null || { echo "skip: no torch with CUDA, or no transformers with expert parallelism"; return 77; }
	TERN_LIBRARY=$BUILD/libtern.so PYTHONPATH=python${PYTHONPATH:+:$PYTHONPATH} python3 -m pytest -q python/tests/test_transformers.py -k on_a_gpu
}

# A product in Triton behind gates.
gated_of_python() {
	compiled_calls || return
	python3 -c 'import torch, triton; torch.cuda.init()' 2>/dev/null || { echo "skip: no torch with CUDA, or no triton"; return 77; }
	for what in --check "--tokens 128"; do
		# shellcheck disable=SC2086
		TERN_LIBRARY=$BUILD/libtern.so PYTHONPATH=python${PYTHONPATH:+:$PYTHONPATH} torchrun --standalone --nproc-per-node "$gpus" examples/triton/gated.py $what || return
	done
}

stage_python() {
	step python/cuda 240 tests_of_python
	step python/deep_ep 300 deep_ep_of_python
	step python/engines 300 engines_of_python
	step python/models 240 models_of_python
	step python/wheels 400 wheels_of_python
	step python/gated 120 gated_of_python
	step python/calls 120 calls_of_python
	step python/deep_ep_calls 120 deep_ep_calls_of_python
	grep -hE '^(torch|numpy) |us ' "$LOGS/python-calls.log" 2>/dev/null | sed 's/^/   /'
	grep -h ' rounds, ' "$LOGS/python-engines.log" 2>/dev/null | sed 's/^/   /'
}

for function in $(compgen -A function); do export -f "${function?}"; done # steps run in a shell of their own
export BUILD LOGS LIBS PLANTED gpus LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
export TERN_CUDA_LIBRARY=${TERN_CUDA_LIBRARY:-$BUILD/libtern_cuda.so} # not all programs lie beside it
[ "$gpus" -gt 0 ] || { echo "skip: no GPUs here"; exit 77; }
echo "$gpus GPUs, $(git rev-parse --short HEAD 2>/dev/null || echo 'no commit known'), $(date -u '+%F %T')"
for stage in $STAGES; do
	"stage_$stage"
done
[ -s "$LOGS/outcomes" ] || { echo "no step of $STAGES is called $STEPS"; exit 2; }
echo "$(nr_outcomes ok) passed, $(nr_outcomes FAIL) failed, $(nr_outcomes skip) skipped"
[ "$(nr_outcomes FAIL)" -eq 0 ]
