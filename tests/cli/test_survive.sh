#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks of the demo are killed at any moment of their work: the others name them, take their prompts over, and write what
# one rank alone writes. With each expert on two ranks, or on one, whose experts others bring to them when it dies. On one
# node, and on two. LONG=1: 20 moments of each rank, of two at once, and of one during the change.
# BUILD=dir KILLS=n PAIRS=n NODE_KILLS=n NODE_PAIRS=n REPEAT=n SEED=n tests/cli/test_survive.sh
BUILD=${BUILD:-build}
WITHIN=${WITHIN:-$BUILD/tests/within}
KILLS=${KILLS:-${LONG:+80}}
KILLS=${KILLS:-2}
PAIRS=${PAIRS:-${LONG:+40}}
PAIRS=${PAIRS:-1}
NODE_KILLS=${NODE_KILLS:-${LONG:+80}}
NODE_KILLS=${NODE_KILLS:-1}
NODE_PAIRS=${NODE_PAIRS:-${LONG:+40}}
NODE_PAIRS=${NODE_PAIRS:-0}
LENGTH=${LENGTH:-60}
REPEAT=${REPEAT:-${LONG:+2}}
REPEAT=${REPEAT:-1}
SEED=${SEED:-1}
# shellcheck source=tests/cli/kills.sh
. "${0%/*}/kills.sh"

draw() { awk -v seed="$1" -v least="$2" -v most="$3" 'BEGIN {srand(seed); print least + rand() * (most - least)}'; }

# strike COPIES PAUSE FRACTION RANK...: kills them when the last has used that much of what a rank uses in a run; the
# second so many milliseconds after the first. 1: they had ended, or the others needed them no more. 2: it was too early.
strike() {
	copies=$1
	pause=$2
	fraction=$3
	shift 3
	# shellcheck disable=SC2086
	begin 4 $nodes --elastic --timeout 200 -- "$BUILD/generate" --elastic="$copies" -n $LENGTH --repeat="$REPEAT"
	pids=$(children "$launcher")
	victims=
	for rank in "$@"; do
		# shellcheck disable=SC2086
		victims="$victims $(nth $((rank + 1)) $pids)"
	done
	at=$(echo "$fraction $total" | awk '{print int($1 * $2 / 4)}')
	await_use "${victims##* }" "$at"
	for victim in $victims; do
		kill -9 "$victim" 2>/dev/null
		[ "$pause" = 0 ] || sleep "0.00$pause"
	done
	wait "$launcher"
	code=$?
	for rank in "$@"; do
		grep -q "rank $rank died" "$tmp/err" || return 1
	done
	! was_too_early || return 2
	[ $code -ne 0 ] || grep -q 'died; ' "$tmp/out" || return 1
}

# kill_ranks COPIES PAUSE RANK...: at a moment drawn from the seed; another one where that is too late, or too early, on a
# machine that was less busy, or busier, before
kill_ranks() {
	copies=$1
	pause=$2
	shift 2
	fraction=$(draw "$seed" 0.3 0.7)
	for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do
		strike "$copies" "$pause" "$fraction" "$@"
		case $? in
		0) break ;;
		1) fraction=$(echo "$fraction" | awk '{print $1 * 0.7}') ;;
		2) fraction=$(echo "$fraction" | awk '{print $1 * 1.2}') ;;
		esac
	done
	[ $code -eq 0 ] || bad "exit code $code when rank $* died"
	grep -q '^identical to 1 rank *yes' "$tmp/out" || bad "not identical when rank $* died"
	for rank in "$@"; do
		grep -qE "^ranks? .*\b$rank\b.* died; [0-9.]+ ms later" "$tmp/out" || bad "rank $rank is not named"
	done
	grep 'died;' "$tmp/out"
}

# of all children that have ended
spent() { awk '{print $16 + $17}' /proc/$$/stat; }

# Of two that die one has to be left on each node. As many moments for each rank, for two at once, and for a second one
# during the change that the first one's death makes.
kill_some() {
	nodes=$1
	seed=$SEED
	before=$(spent)
	# shellcheck disable=SC2086
	"$WITHIN" 200 "$BUILD/tern" run -n 4 $nodes --elastic -- "$BUILD/generate" --elastic -n $LENGTH --repeat="$REPEAT" --no-check >"$tmp/out" 2>"$tmp/err" </dev/null || bad "exit code $? when nobody died"
	total=$(($(spent) - before))
	i=0
	while [ $i -lt "$2" ]; do
		kill_ranks $((1 + (seed + i / 4) % 2)) 0 $((seed % 4))
		seed=$((seed + 1))
		i=$((i + 1))
	done
	i=0
	while [ $i -lt "$3" ]; do
		kill_ranks 3 $((i % 2 * (1 + seed % 5))) $((seed % 4)) $(((seed + 2) % 4))
		seed=$((seed + 1))
		i=$((i + 1))
	done
}

kill_some "" "$KILLS" "$PAIRS"
kill_some "--nodes 2" "$NODE_KILLS" "$NODE_PAIRS"

all_well
