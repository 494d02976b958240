#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tern bench --trace on GPUs: where their blocks have been, of exchanges in both modes and of layers, on emulated ones (no GPU runs) or with GPUS=1 on real ones.
if [ -n "${GPUS:-}" ]; then
	. "${BASH_SOURCE%/*}/judge.sh"
	export TERN_CUDA_LIBRARY=$BUILD/libtern_cuda_traced.so
else
	. "${BASH_SOURCE%/*}/emulated.sh"
fi
command -v python3 >/dev/null || { echo "python3 is not installed"; exit 77; }

# traced NAME WHAT FLAGS...: two cases, one a mode.
traced() {
	"$WITHIN" 60 "$BUILD/tern" bench --device cuda --ranks 2 --preset custom --hidden 512 --experts 8 --topk 2 --tokens 8 --mode all --iters 1 --warmup 0 --wait 20000 --quiet "${@:3}" \
		--trace "$tmp/trace.json" >"$tmp/out" 2>"$tmp/err" </dev/null && python3 "${BASH_SOURCE%/*}/../cli/trace.py" "$tmp/trace.json" 2 2 "$2" 2>"$tmp/err"
	judge "$1" $?
}

traced exchanges gpus --graph-tokens 20
traced layers layers --layer --inner 128
exit $bad
