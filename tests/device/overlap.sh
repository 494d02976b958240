#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tern bench --overlap: rounds split around work, and beside the work of another micro-batch, bring what the reference says; and how it is told. BUILD=dir tests/device/overlap.sh
# On GPUs that are emulated on the CPU (tests/device/emulate/), between processes: no GPU runs, and times mean nothing.
. "${BASH_SOURCE%/*}/emulated.sh"
small=(--device cuda --warm --hidden 256 --experts 10 --topk 3 --tokens 9 --iters 2 --warmup 1 --overlap 0,5)

bench() { "$WITHIN" 60 "$BUILD/tern" bench "${small[@]}" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; }

# right NAME ROUNDS ARGUMENTS...: so many rounds, of which some have work in them, and no wrong value.
right() {
	bench --only-verify "${@:3}" && grep -q ", $2 rounds verified, 0 wrong values" "$tmp/out"
	judge "$1" $?
}

# refused NAME TEXT ARGUMENTS...: for a wrong flag, before anything runs.
refused() {
	bench "${@:3}"
	[ $? -eq 2 ] && grep -q -- "$2" "$tmp/err"
	judge "$1" $?
}

# A case: two rounds as ever, and one or (two slots) three with work.
right 2_ranks 8 --ranks 2 --reduce all --iters 2
right 2_batches 20 --ranks 2 --mode ll,ht --dtype fp8,bf16 --slots 2
right 3_ranks_uneven 10 --ranks 3 --mode ll,ht --layout source --slots 2 --uneven --drop 0.2
right few_sms 10 --ranks 2 --mode ll,ht --layout padded --slots 2 --sms 1
TERN_EMULATED_GPUS=1 right on_1_gpu 5 --ranks 2 --mode ht --slots 2
TERN_EMULATED_LINES=0 right without_lines 10 --ranks 2 --dtype fp8,bf16 --slots 2
TERN_EMULATED_SMS=2 bench --ranks 2 --slots 2 --iters 1 --json "$tmp/json" &&
	[ "$(grep -c ' halves between, exposed\| batches beside, exposed\|: send, receive, both' "$tmp/out")" -eq 6 ] &&
	python3 - "$tmp/json" <<'END'
import json, sys
case = json.load(open(sys.argv[1]))["results"][0]
for kind in "dispatch_halves", "combine_halves":
    (row,) = case[kind]
    assert row["both_us"]["p50"] >= row["send_us"]["p50"] > 0 and row["receive_us"]["p50"] > 0
for kind, works in ("split_halves", 2), ("two_batches", 4):
    none, some = case[kind]
    assert (none["work_us"], some["work_us"], none["works"], some["works"]) == (0, 5, works, works)
    assert none["work_alone_us"]["p50"] == 0 and none["exposed_us"] == none["with_exchange_us"]
    assert some["with_exchange_us"]["max"] > some["work_alone_us"]["p50"] > 0
END
judge figures $?
refused on_the_cpu "--overlap needs --device cuda" --device cpu
refused too_many "--overlap has more than 8 values" --overlap 1-256
refused no_number "--overlap is \"x\": allowed are numbers" --overlap x
exit $bad
