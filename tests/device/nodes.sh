#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Exchanges on GPUs whose ranks are on several nodes, by processes and over libfabric: every element of every round compared with the reference, half of the rounds by graph replay; the demo; and a
# rank that is killed. BUILD=dir tests/device/nodes.sh; without LONG=1 what costs most is left out, as in make check.
# On GPUs that are emulated on the CPU (tests/device/emulate/): no GPU runs. GPUS=1: on real ones, of which ranks may share some; scripts/gpus.sh does so.
if [ -n "${GPUS:-}" ]; then
	. "${BASH_SOURCE%/*}/judge.sh"
else
	. "${BASH_SOURCE%/*}/emulated.sh"
fi
export TERN_TRANSPORT=ofi

# verified RANKS NODES ARGUMENTS...: no bit is wrong. NODES: flags of tern run.
verified() {
	"$WITHIN" 60 "$BUILD/tern" run -n "$1" $2 -- "$BUILD/tern" bench --device cuda --only-verify --iters 4 --preset custom --hidden 640 --experts 12 --topk 3 --tokens 5 --wait 20000 "${@:3}" \
		>"$tmp/out" 2>"$tmp/err" </dev/null && grep -q ', 0 wrong values' "$tmp/out"
}

# right NAME NODES RANKS ARGUMENTS...: the same, and some ranks are reached over libfabric, which says why it moves no memory of GPUs.
right() {
	verified "$3" "-N $2 --by-name" "${@:4}" && grep -q 'on [2-9] nodes' "$tmp/out" && grep -q 'ofi:tcp;ofi_rxm, ' "$tmp/out" &&
		grep -q '^# from rank 0: rows of GPUs to and from other nodes: in pinned memory, as ofi (tcp;ofi_rxm), 1 NIC does not move it$' "$tmp/out"
	judge "$1" $?
}

right 2_nodes_of_2 2 4 --mode all --dtype fp8,bf16 --reduce all --uneven --drop 0.2
[ -z "${LONG:-}${GPUS:-}" ] || right 2_nodes_of_2_layouts 2 4 --mode all --dtype fp16 --layout padded,source --spread
right 2_nodes_of_2_gates 2 4 --mode all --gates 64 --dtype fp8,bf16 --combine-dtype bf16 --reduce all --uneven --drop 0.2
right 2_nodes_of_1 2 2 --mode all --dtype fp32 --combine-dtype fp32 --slots 2
[ -z "${LONG:-}${GPUS:-}" ] || right 3_ranks_on_2_nodes 2 3 --mode all --dtype fp8 --x-dtype fp8 --scale ue8m0 --weights pass --routing zipf:1.2
right 3_nodes 3 3 --mode all --dtype bytes --routing one --first-epoch 4294967292
[ -z "${LONG:-}${GPUS:-}" ] || right replica_ranks 2 4 --mode all --dtype bf16 --replica-ranks 2 --reduce all

"$WITHIN" 60 "$BUILD/tern" run -n 3 -N 2 --by-name -- "$BUILD/tern" bench --device cuda --only-verify --preset custom --hidden 64 --experts 6 --topk 2 --tokens 3 --mode ht --replica-ranks 3 \
	>"$tmp/out" 2>"$tmp/err" </dev/null
[ $? -eq 1 ] && grep -q 'replica ranks 0 and 2 are on different nodes' "$tmp/err"
judge homes_on_two_nodes $?
right replicas_on_two_nodes 2 3 --mode ll --dtype bf16 --replica-ranks 3 --reduce all

# The same texts from the same logits as on the CPU.
generate() {
	rm -f "$tmp/json"
	"$WITHIN" 60 "$BUILD/tern" run -n 4 -N 2 --by-name -- "$BUILD/generate" -n 4 -p 'Blessed is ' -p 'E' --json "$tmp/json" --device "$1" >"$tmp/out" 2>"$tmp/err" </dev/null &&
		grep '"logits_fingerprint"' "$tmp/json" | sed 's/"rank": [0-9]*, //' >"$tmp/$1"
}
same_texts() {
	generate cpu && generate cuda && [ -s "$tmp/cpu" ] && cmp -s "$tmp/cpu" "$tmp/cuda" && grep -q 'in the memory of GPUs' "$tmp/out"
}
if [ -n "${LONG:-}${GPUS:-}" ]; then
	same_texts
	judge demo $?
fi

nodes="-N 2 --by-name"
# rounds_with_a_death SECONDS RANKS VICTIM MODE ARGUMENTS... (MODE may have arguments behind it): ranks on two nodes exchange without end, and one is killed when some rounds are over.
rounds_with_a_death() {
	VICTIM=$3 TOLD=$tmp/err "$WITHIN" "$1" "$BUILD/tern" run -n "$2" $nodes -l -k -- bash -c '
		"$0" "$@" & pid=$!
		if [ "$TERN_RANK" = "$VICTIM" ]; then
			until grep -q "verifying, round [1-9]" "$TOLD" || ! kill -0 $pid; do sleep 0.05; done
			kill -KILL $pid
		fi
		wait $pid' "$BUILD/tern" bench --device cuda --only-verify --progress --iters 1000000 --preset custom --hidden 256 --experts 8 --topk 2 --tokens 4 --mode $4 "${@:5}" \
		>"$tmp/out" 2>"$tmp/err" </dev/null
}
# killed MODE: rank 3 ends in the middle of its rounds; the ranks on its node and on the other name it.
killed() {
	rounds_with_a_death 60 4 3 "$1" --wait 3000
	[ $? -ne 0 ] && for rank in 0 1 2; do grep -q "^\[$rank\].*rank 3 died while rank $rank's kernel waited" "$tmp/out" "$tmp/err" || return 1; done
}
# missed MODE: of two ranks, each on a node, one ends: the other learns of it from its network, long before its kernels' time is over.
missed() {
	rounds_with_a_death 40 2 1 "$1" --wait 60000
	[ $? -ne 124 ] && grep -q "rank 1 died while rank 0's kernel waited for rank 1" "$tmp/err"
}
missed "ll --gates 64"
judge missed_gates $?
killed "ll --gates 64"
judge killed_gates $?
if [ -n "${LONG:-}${GPUS:-}" ]; then
	for mode in ll ht; do
		missed $mode
		judge missed_$mode $?
		killed $mode
		judge killed_$mode $?
	done
fi

# One node whose GPUs do not reach each other's memory: what two of them send each other goes the same way. Without a network there is none.
nodes=
export TERN_FORCE_LINK=none
nvlink_domains() { verified 3 "" --mode all --dtype fp8,bf16 --reduce all && grep -q 'on 1 node' "$tmp/out"; }
if [ -n "${LONG:-}${GPUS:-}" ]; then
	nvlink_domains
	judge nvlink_domains $?
fi
[ "${GPUS:-}" != 1 ] || exit $bad # ranks of one GPU reach each other's memory
TERN_TRANSPORT=ofi:nothing nvlink_domains
[ $? -ne 0 ] && grep -q "some GPUs of a node do not reach each other's memory.*no network could be opened for that" "$tmp/err"
judge domains_without_network $?
missed ht
judge missed_between_domains $?
exit $bad
