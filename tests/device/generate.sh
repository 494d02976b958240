#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The demo with --device cuda writes the same texts, from the same bits of logits, as on the CPU. BUILD=dir tests/device/generate.sh
# Without LONG=1 some numbers of ranks and dtypes are left out, as in make check.
# On GPUs that are emulated on the CPU (tests/device/emulate/), between processes: no GPU runs.
. "${BASH_SOURCE%/*}/emulated.sh"

# generate RANKS ARGUMENTS...: a few bytes for prompts of three lengths.
generate() {
	local ranks=$1
	shift
	rm -f "$tmp/json"
	"$WITHIN" 60 "$BUILD/tern" run -n "$ranks" -- "$BUILD/generate" -n 4 -p 'Blessed is ' -p 'Sea, n. ' -p 'E' --json "$tmp/json" "$@" \
		>"$tmp/out" 2>"$tmp/err" </dev/null
}

texts() { grep '"logits_fingerprint"' "$tmp/json" | sed 's/"rank": [0-9]*, //'; }

# same NAME RANKS ARGUMENTS...: on GPUs what one rank writes on the CPU, which is in $tmp/cpu; and GPUs it was.
same() {
	local name=$1
	shift
	generate "$@" --device cuda && texts | cmp -s - "$tmp/cpu" && grep -q 'in the memory of GPUs' "$tmp/out" && grep -q '"device": "cuda"' "$tmp/json" &&
		grep -q 'identical to 1 rank *yes' "$tmp/out"
	judge "$name" $?
}

# on_cpu NAME ARGUMENTS...: what is compared with.
on_cpu() {
	generate 1 "${@:2}" --device cpu && texts >"$tmp/cpu" && [ "$(wc -l <"$tmp/cpu")" -eq 3 ] && grep -q '1 rank: .* on the CPU' "$tmp/out"
	judge "$1" $?
}

# refused NAME TEXT ARGUMENTS...: ends before anything runs, and says why.
refused() {
	generate 2 "${@:3}"
	[ $? -eq 1 ] && grep -q -- "$2" "$tmp/err" && [ ! -s "$tmp/out" ]
	judge "$1" $?
}

# falls_back NAME TEXT: to the CPU, and says why.
falls_back() {
	generate 2 --device auto && grep -q "on the CPU; not on GPUs: .*$2" "$tmp/out" && texts | cmp -s - "$tmp/cpu"
	judge "$1" $?
}

on_cpu cpu_fp8 --dtype fp8
same emulated_3_ranks_fp8 3 --dtype fp8
if [ -n "${LONG:-}" ]; then
	on_cpu cpu_fp32 --dtype fp32 --combine fp32
	same emulated_2_ranks_fp32 2 --dtype fp32 --combine fp32
fi
on_cpu cpu
for ranks in 1 ${LONG:+2 3} 4; do
	same "emulated_${ranks}_ranks" $ranks
done
TERN_EMULATED_GPUS=1 same emulated_2_ranks_on_1_gpu 2
[ -z "${LONG:-}" ] || TERN_EMULATED_LINES=0 same emulated_without_lines 2

# near NAME RANKS ARGUMENTS...: with experts as layers logits are near those of one rank, and not the same.
near() {
	generate "${@:2}" --layer && grep -q "logits near 1 rank's *yes" "$tmp/out" && grep -q '"logits_far_from_one_rank": 0.00[0-9]*[1-9]' "$tmp/json" && ! texts | cmp -s - "$tmp/cpu"
	judge "$1" $?
}
near layer_cpu 2
near layer_emulated_1_rank 1 --device cuda
near layer_emulated_3_ranks 3 --device cuda
refused layer_fp8 "bf16 both ways" --layer --dtype fp8
refused layer_elastic "not with --elastic" --layer --elastic

TERN_EMULATED_GPUS=0 refused no_gpu "--device cuda: counting GPUs" --device cuda
TERN_CUDART_LIBRARY=$tmp/none.so refused no_runtime "--device cuda: TERN_CUDART_LIBRARY: .*none.so" --device cuda
TERN_CUDA_LIBRARY=$tmp/none.so refused no_backend "--device cuda: .*none.so.*which make builds" --device cuda
refused no_such_device "cpu, cuda or auto" --device gpu
TERN_EMULATED_GPUS=0 falls_back auto_without_gpu "counting GPUs"
TERN_CUDA_LIBRARY=$tmp/none.so falls_back auto_without_backend none.so
exit $bad
