#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tern soak: a failure exits with 1 and prints the command that repeats it, and a seed gives one run.
set -u
cd "$(dirname "$0")/../.." || exit 1
tern=${BUILD:-build}/tern
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

fails() {
	echo "$*"
	failed=1
}

# expect RC WHAT COMMAND...: its output goes to $work/out.
expect() {
	local want=$1 what=$2 rc
	shift 2
	"$WITHIN" 100 "$@" >"$work/out" 2>"$work/err"
	rc=$?
	[ $rc -eq "$want" ] || { fails "$what: exit code $rc, not $want: $*"; cat "$work/out" "$work/err"; }
}

digest() { sed -n 's/^digest *//p' "$work/out"; }

expect 0 "help" "$tern" soak --help
grep -q -- --phase "$work/out" || fails "the help does not name --phase"
expect 2 "an unknown fault" "$tern" soak --fault flood
expect 2 "a number that is none" "$tern" soak --rounds many
expect 2 "a word that is no option" "$tern" soak 7

expect 0 "one seed" "$tern" soak --seed 5
first=$(digest)
expect 0 "the same seed" "$tern" soak --seed 5
[ -n "$first" ] && [ "$first" = "$(digest)" ] || fails "seed 5 gave $first, then $(digest)"
expect 0 "another seed" "$tern" soak --seed 6
[ "$first" != "$(digest)" ] || fails "seeds 5 and 6 gave the same run"

expect 0 "JSON" "$tern" soak --seed 5 --scenarios 3 --json -
python3 -c '
import json, sys
run = json.load(open(sys.argv[1]))
assert run["good"] and run["scenarios"] == 3 and run["first_seed"] == 5 and run["rounds"] > 0, run' "$work/out" || fails "the JSON is wrong"

# Something is wrong on purpose: found, with the command that repeats it; that fails in the same way.
expect 1 "a spoiled row" "$tern" soak --wrong row --fault none --scenarios 20 --quiet
cp "$work/out" "$work/spoiled"
again=$(sed -n 's/^repeat: tern //p' "$work/spoiled")
[ -n "$again" ] || fails "a failure does not say how to repeat it"
# shellcheck disable=SC2086
expect 1 "the repetition: $again" "$tern" $again
cmp -s <(sed -n '/^seed/,/^repeat/p' "$work/spoiled") <(sed -n '/^seed/,/^repeat/p' "$work/out" | sed 's/^repeat.*/repeat: tern '"$again"'/') ||
	fails "the repetition differs"
expect 1 "a wrong blame" "$tern" soak --wrong blame --fault kill --phase combine_recv --seed 3
grep -q 'blames somebody else' "$work/out" || fails "a wrong blame is not told"

exit $failed
