#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A rank of the demo that mpirun has started is killed; what the launcher sees of the rank is a shell, which starts it
# anew (docs/launchers.md). It finds the others by what PMIx's server keeps, joins, and all write what one rank alone
# writes. Exit code 77: no mpirun, or a build without PMIx. NODES=n: on so many nodes by name.
# BUILD=dir SEED=n NODES=n tests/cli/test_pmix_restart.sh
BUILD=${BUILD:-build}
WITHIN=${WITHIN:-$BUILD/tests/within}
SEED=${SEED:-1}
export NODES=${NODES:-}
MPIRUN=${MPIRUN:-mpirun --enable-recovery --oversubscribe}
command -v "${MPIRUN%% *}" >/dev/null || exit 77
"$BUILD/tern" info | grep -q '^pmix *built in$' || exit 77
# shellcheck source=tests/cli/kills.sh
. "${0%/*}/kills.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1

cat >"$tmp/again" <<'END'
export TERN_RESTARTS=0
[ -z "$NODES" ] || export TERN_NODE=$((PMIX_RANK * NODES / 4))
while
	"$@" >>"$PIDS/out" & # mpirun gives rank 0 a terminal
	echo $! >"$PIDS/$PMIX_RANK.$TERN_RESTARTS"
	wait $!
	code=$?
	[ $code -eq 137 ] && [ $TERN_RESTARTS -lt 1 ]
do
	TERN_RESTARTS=$((TERN_RESTARTS + 1))
done
exit $code
END

# strike RANK TICKS REPEAT: false if the others had ended before it came again
strike() {
	rm -f "$tmp/out" "$tmp"/*.0 "$tmp"/*.1
	# shellcheck disable=SC2086
	PIDS=$tmp "$WITHIN" 100 $MPIRUN -n 4 sh "$tmp/again" "$BUILD/generate" --elastic=2 -n 40 --repeat="$3" 2>"$tmp/err" </dev/null &
	launcher=$!
	while [ ! -s "$tmp/$1.0" ]; do kill -0 $launcher 2>/dev/null || break; done
	victim=$(cat "$tmp/$1.0")
	await_use "$victim" "$2"
	kill -9 "$victim" 2>/dev/null
	wait "$launcher"
	code=$?
	grep -q "rank $1 joined; [0-9.]* ms later" "$tmp/out"
}

seed=$SEED
rank=$((seed % 4))
strike_in_time $rank $((4 + seed * 7 % 15))
[ $code -eq 0 ] || bad "exit code $code when rank $rank died"
grep -q "rank $rank died; " "$tmp/out" || bad "rank $rank is not named"
grep -q "rank $rank joined" "$tmp/out" || bad "rank $rank has not joined"
[ -s "$tmp/$rank.1" ] || bad "rank $rank was not started anew"
grep -q '^identical to 1 rank *yes' "$tmp/out" || bad "not identical when rank $rank had joined"
grep -E 'died;|joined;' "$tmp/out"

all_well
