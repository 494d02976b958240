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

# Ranks that die, others that join, and experts that move, while the others go on: a run, its repetition, and each thing made wrong (no-promise, forget and
# act-alone take orders that hardly ever come by chance: tests/unit/test_agreement tries all).
expect 0 "the help of views" "$tern" soak --views --help
expect 2 "one rank" "$tern" soak --views --ranks 1
expect 0 "views" "$tern" soak --views --rounds 150000
grep -Eq '^newcomers +[1-9][0-9][0-9]+ let in$' "$work/out" || fails "views: hardly anybody has joined"
grep -Eq '^experts +[1-9][0-9][0-9]+ moved' "$work/out" || fails "views: hardly an expert has moved"
expect 0 "views of many ranks" "$tern" soak --views --ranks 128 --length 12 --scenarios 2
expect 0 "a part of who was shut out meanwhile" "$tern" soak --views --seed 20262587
expect 0 "a newcomer that is stopped before it hears of anybody" "$tern" soak --views --seed 428934
expect 0 "a store to the predecessor of who has joined" "$tern" soak --views --seed 428042
expect 0 "views, one seed" "$tern" soak --views --seed 9
first=$(digest)
expect 0 "views, the same seed" "$tern" soak --views --seed 9
[ -n "$first" ] && [ "$first" = "$(digest)" ] || fails "views: seed 9 gave $first, then $(digest)"
for wrong in act-alone no-quorum no-fence old-epochs no-service keep-links go-on late-stores old-places \
	hide-loss count-twice dawdle unready old-record serve-early keep-parts name-early overwrite no-sums stale \
	come-again; do
	[ $wrong = come-again ] && from=2200 || from=1 # one in thousands
	expect 1 "views with $wrong" "$tern" soak --views --wrong $wrong --seed $from --scenarios 1000
	again=$(sed -n 's/^repeat: tern //p' "$work/out")
	grep -A 1 '^seed' "$work/out" >"$work/first"
	# shellcheck disable=SC2086
	expect 1 "the repetition: $again" "$tern" $again
	grep -A 1 '^seed' "$work/out" | cmp -s - "$work/first" || fails "the repetition differs: $again"
done

exit $failed
