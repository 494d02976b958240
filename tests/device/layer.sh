#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tern bench --layer: dispatch, experts and combine in one graph bring what a plain layer makes of the same tokens; and how it is told. BUILD=dir tests/device/layer.sh
# On GPUs that are emulated on the CPU (tests/device/emulate/), between processes: no GPU runs, their products are plain loops, and times mean nothing.
. "${BASH_SOURCE%/*}/emulated.sh"
small=(--layer --device cuda --warm --preset custom --hidden 512 --experts 8 --topk 3 --inner 384 --iters 3 --warmup 1)

bench() { "$WITHIN" 60 "$BUILD/tern" bench "${small[@]}" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; }

# right NAME LINES ARGUMENTS...: so many cases, all of three rounds that were compared.
right() {
	bench --only-verify "${@:3}" && [ "$(grep -c '| 3 rounds, [1-9][0-9]* tokens right' "$tmp/out")" -eq "$2" ]
	judge "$1" $?
}

# refused NAME RC TEXT ARGUMENTS...
refused() {
	bench "${@:4}"
	[ $? -eq "$2" ] && grep -q -- "$3" "$tmp/err" "$tmp/out"
	judge "$1" $?
}

right 2_ranks 4 --ranks 2 --tokens 1,20 --dtype fp8,bf16
right 3_ranks 2 --ranks 3 --tokens 9 --mode ll,ht --reduce home
right beside 4 --inner 128 --ranks 2 --tokens 70 --dtype fp8,bf16 --mode ll,ht --gates 64 --beside 3
right beside_between_nodes 2 --inner 128 --ranks 4 --nodes 2 --tokens 20 --dtype fp8,bf16 --mode ht --gates 64 --beside 3
right share 4 --share 4 --experts 32 --topk 6 --tokens 1,9 --mode ll,ht
bench --ranks 2 --tokens 5 --verify --json "$tmp/json" && python3 - "$tmp/json" <<'END'
import json, sys
told = json.load(open(sys.argv[1]))
(case,) = told["results"]
assert told["ranks"] == 2 and case["wrong"] == 0 and case["tokens_compared"] == 30 and case["inner"] == 384
assert 0 < case["rows"] <= 30 and case["rows_away"] > 0 and case["experts_hit"] <= 4
assert case["floor_us"] == max(case["floor_weights_us"], case["floor_flops_us"], case["floor_network_us"]) > 0
assert abs(case["over_floor"] * case["floor_us"] / case["layer"]["p50"] - 1) < 1e-9
END
judge figures $?
refused on_the_cpu 2 "--layer needs --device cuda" --device cpu
refused share_of_ranks 2 "--share is one rank alone" --share 4 --ranks 2
refused not_a_multiple 1 "hidden is 512 and inner 200; a layer's kernels take multiples of 512 and 128" --ranks 1 --tokens 1 --inner 200
refused by_source 1 "layout is TERN_BY_SOURCE" --ranks 1 --tokens 1 --layout source
small=(--device cuda --hidden 256 --experts 8 --topk 3)
refused without_layer 2 "--inner, --share and --beside go with --layer" --share 2
refused beside_without_gates 2 "--beside needs --gates" --layer --inner 128 --ranks 1 --tokens 1 --beside 3
refused no_inner 2 "--layer with --preset custom needs --inner" --layer --preset custom
exit $bad
