#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A rank of the demo is killed, and started anew by `tern run --restart`: it joins the others, and all write what one rank
# alone writes. With each expert on two ranks, and on one: then others bring those of the dead rank to them, and give
# them back. On one node, and on two. BUILD=dir SEED=n RUNS=n NODE_RUNS=n [LONG=1] tests/cli/test_restart.sh
BUILD=${BUILD:-build}
SEED=${SEED:-1}
RUNS=${RUNS:-${LONG:+32}}
RUNS=${RUNS:-2}
NODE_RUNS=${NODE_RUNS:-${LONG:+32}}
NODE_RUNS=${NODE_RUNS:-1}
LENGTH=${LENGTH:-40}
# shellcheck source=tests/cli/kills.sh
. "${0%/*}/kills.sh"

# strike RANK TICKS REPEAT: false if the others were not all there yet, or had ended before it came again
strike() {
	# shellcheck disable=SC2086
	begin 4 $nodes --elastic --restart 1 --timeout 200 -- "$BUILD/generate" --elastic=$copies -n "$LENGTH" --repeat="$3"
	# shellcheck disable=SC2046
	victim=$(nth $(($1 + 1)) $(children "$launcher"))
	await_use "$victim" "$2"
	kill -9 "$victim" 2>/dev/null
	wait "$launcher"
	code=$?
	! was_too_early && grep -q "rank $1 joined; [0-9.]* ms later" "$tmp/out"
}

# once: with the next seed
once() {
	rank=$((seed / 2 % 4))
	copies=$((1 + seed % 2))
	strike_in_time $rank $((4 + seed * 7 % 15))
	[ $code -eq 0 ] || bad "exit code $code when rank $rank died"
	grep -q "rank $rank joined" "$tmp/out" || bad "rank $rank has not joined"
	grep -q "rank $rank died; " "$tmp/out" || bad "rank $rank is not named"
	grep -q "rank $rank is started anew, 1 of 1 times" "$tmp/err" || bad "nobody says that rank $rank is started anew"
	grep -q '^identical to 1 rank *yes' "$tmp/out" || bad "not identical when rank $rank had joined"
	[ "$(grep -c '^identical' "$tmp/out")" -eq 1 ] || bad "more than one rank spoke for all"
	[ $copies -eq 2 ] || grep -q "rank $rank died; .* experts came here in " "$tmp/out" || bad "the experts of rank $rank did not come"
	grep -E 'died;|joined;' "$tmp/out"
	seed=$((seed + 1))
}

seed=$SEED
nodes=
for _ in $(seq "$RUNS"); do once; done
nodes="--nodes 2"
for _ in $(seq "$NODE_RUNS"); do once; done
"$BUILD/tern" run -n 1 --restart 1 -- true 2>"$tmp/err" && bad "--restart without --elastic"
grep -q -- "--restart is for jobs that are --elastic" "$tmp/err" || bad "no word of --elastic"

all_well
