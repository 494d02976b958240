#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks of the demo are killed at any moment: the others name them, take their prompts over, and write what one rank
# alone writes. On one node, and on two. BUILD=dir KILLS=n NODE_KILLS=n SEED=n tests/cli/test_survive.sh
BUILD=${BUILD:-build}
WITHIN=${WITHIN:-$BUILD/tests/within}
KILLS=${KILLS:-2}
NODE_KILLS=${NODE_KILLS:-1}
LENGTH=${LENGTH:-120}
SEED=${SEED:-1}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
failures=0

bad() {
	failures=$((failures + 1))
	echo "FAILED: $1 (SEED=$seed)"
	tail -n 12 "$tmp/out" "$tmp/err" | sed 's/^/    /'
}

# The ranks are the launcher's children, in their order.
children() { cat "/proc/$1/task/$1/children" 2>/dev/null; }
nth() { shift "$1"; echo "$1"; }
draw() { awk -v seed="$1" -v least="$2" -v most="$3" 'BEGIN {srand(seed); print least + rand() * (most - least)}'; }

# processor time that a process has used, in clock ticks: how far it has come, on any machine
used() { awk '{print $14 + $15}' "/proc/$1/stat" 2>/dev/null || echo 100000; }

# kill_ranks COPIES RANK...: at a moment drawn from the seed
kill_ranks() {
	copies=$1
	shift
	# shellcheck disable=SC2086
	"$BUILD/tern" run -n 4 $nodes --elastic --timeout 200 -- "$BUILD/generate" --elastic="$copies" -n $LENGTH >"$tmp/out" 2>"$tmp/err" </dev/null &
	launcher=$!
	while [ "$(children $launcher | wc -w)" -lt 4 ]; do kill -0 $launcher 2>/dev/null || break; done
	pids=$(children $launcher)
	victims=
	for rank in "$@"; do
		# shellcheck disable=SC2086
		victims="$victims $(nth $((rank + 1)) $pids)"
	done
	at=$(draw "$seed" 0.3 0.7 | awk -v total="$total" '{print int($1 * total / 4)}')
	while [ "$(used "${victims##* }")" -lt "$at" ]; do :; done
	# shellcheck disable=SC2086
	kill -9 $victims
	wait $launcher || bad "exit code $? when rank $* died"
	grep -q '^identical to 1 rank *yes' "$tmp/out" || bad "not identical when rank $* died"
	for rank in "$@"; do
		grep -qE "^ranks? .*\b$rank\b.* died; [0-9.]+ ms later" "$tmp/out" || bad "rank $rank is not named"
	done
	grep 'died;' "$tmp/out"
}

# of all children that have ended
spent() { awk '{print $16 + $17}' /proc/$$/stat; }

# kill_some NODES KILLS: one rank in some runs, two in a last one, of different nodes; what an undisturbed run takes is
# what moments are chosen by
kill_some() {
	nodes=$1
	seed=$SEED
	before=$(spent)
	# shellcheck disable=SC2086
	"$WITHIN" 200 "$BUILD/tern" run -n 4 $nodes --elastic -- "$BUILD/generate" --elastic -n $LENGTH --no-check >"$tmp/out" 2>"$tmp/err" </dev/null || bad "exit code $? when nobody died"
	total=$(($(spent) - before))
	i=0
	while [ $i -lt "$2" ]; do
		kill_ranks 2 $((seed % 4))
		seed=$((seed + 1))
		i=$((i + 1))
	done
	kill_ranks 3 $((seed % 4)) $(((seed + 2) % 4))
}

kill_some "" "$KILLS"
kill_some "--nodes 2" "$NODE_KILLS"

[ $failures -eq 0 ] && echo "all well"
exit $((failures > 0))
