#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tern bench --against nccl: what goes over NCCL is what the reference says, and what is wrong or missing is told. BUILD=dir tests/device/nccl.sh
# GPUs and NCCL are emulated on the CPU (tests/device/emulate/), between processes: no GPU runs.
. "${BASH_SOURCE%/*}/emulated.sh"
export TERN_NCCL_LIBRARY=$TERN_CUDART_LIBRARY
small=(--device cuda --warm --max-tokens 70 --against nccl --hidden 256 --experts 10 --topk 3 --tokens 9 --iters 2 --warmup 1)

bench() { "$WITHIN" 60 "$BUILD/tern" bench "${small[@]}" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; }

# right NAME ARGUMENTS...: every element.
right() {
	bench --verify --json "$tmp/json" "${@:2}" && grep -q '"nccl_wrong": 0' "$tmp/json" && ! grep -q '"nccl_wrong": [1-9]' "$tmp/json"
	judge "$1" $?
}

# refused NAME TEXT ARGUMENTS...: the exit code is 1, and the cause is told.
refused() {
	bench "${@:3}"
	[ $? -eq 1 ] && grep -q -- "$2" "$tmp/err"
	judge "$1" $?
}

right 2_ranks_fp8 --ranks 2 --reduce all --uneven --drop 0.2
grep -q '"pair_over_nccl_per_route": ' "$tmp/json" && grep -q '"dispatch_bytes": [1-9].*"combine_bytes": [1-9]' "$tmp/json" && grep -q '"nccl_per_rank_dispatch_us": {"p50": [1-9]' "$tmp/json" && grep -q 'over NCCL, a row for each rank' "$tmp/out"
judge figures $?
right 4_ranks_bf16 --ranks 4 --dtype bf16 --reduce all --spread
right 4_ranks_ue8m0 --ranks 4 --scale ue8m0 --mode ht --align 8 --only-verify
right 3_ranks_given_scales --ranks 3 --x-dtype fp8 --weights pass --tokens 0,70 --only-verify
right 3_ranks_one_expert --ranks 3 --x-dtype fp32 --routing one --combine-dtype fp32 --reduce expert --only-verify
right 1_rank_fp16 --ranks 1 --dtype fp16 --no-weights --only-verify
right 4_ranks_fp32 --ranks 4 --dtype fp32 --reduce all --topk 5 --only-verify

TERN_EMULATED_NCCL=flip refused wrong_bits "wrong: over NCCL: " --ranks 2
TERN_EMULATED_NCCL=stall refused stalled "NCCL's part of a round did not end within 4000 ms" --ranks 2 --wait 4000
TERN_NCCL_LIBRARY=$tmp/none.so refused no_nccl "needs NCCL .*none.so" --ranks 2
TERN_NCCL_LIBRARY=libm.so.6 refused no_symbols "libm.so.6 has no nccl" --ranks 2
refused other_layout "layout contiguous only" --ranks 2 --layout padded
refused replicas "no replicas" --ranks 2 --replicas 2
exit $bad
