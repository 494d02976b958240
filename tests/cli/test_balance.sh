#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tern balance: figures that can be worked out by hand, files that go round, what is refused. BUILD is build if not set.
set -u
cd "$(dirname "$0")/../.." || exit 1
tern=${BUILD:-build}/tern
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
bad=0

judge() { [ "$2" -eq 0 ] && echo "ok - $1" || { echo "not ok - $1"; cat "$work/out" "$work/err"; bad=1; }; }
# npy SHAPE NUMBERS...: a file of int32 below 256.
npy() {
	printf '\223NUMPY\001\000v\000%-117s\n' "{'descr': '<i4', 'fortran_order': False, 'shape': ($1), }"
	shift
	for number; do printf '%b' "\\0$(printf %o "$number")\\0000\\0000\\0000"; done
}
balance() { "$tern" balance "$@" >"$work/out" 2>"$work/err"; }
# refused NAME CODE TEXT ARGUMENTS...
refused() {
	name=$1 code=$2 text=$3
	shift 3
	balance "$@"
	[ $? -eq "$code" ] && grep -q -- "$text" "$work/err" && [ ! -s "$work/out" ]
	judge "$name" $?
}

npy "2, 4" 6 2 2 2 1 1 1 1 >"$work/loads.npy"
npy "2, 4" 6 2 2 2 1 1 1 3 >"$work/other.npy"
npy "2, 3" 1 1 1 1 1 1 >"$work/narrow.npy"
npy "6," 0 1 2 3 9 0 >"$work/unknown.npy"

# Blocks: 8 of 12 on the first rank, so 1.333; with 0 in two places more 6/3 on each: 4 + 2 and 2 + 4.
balance "$work/loads.npy" --ranks 2 --places 6 --out "$work/next.npy" --json "$work/json" --judge "$work/other.npy" &&
	grep -q '^0  *1.333  *1.000  *1.0000  *0 ' "$work/out" && grep -q '^1  *1.000  *1.000  *1.0000  *0 ' "$work/out" && grep -q '^layer .*judged' "$work/out" &&
	grep -q '"layers": \[' "$work/json" && grep -q '{"blocks": 1.333333, .*"after": 1.000000' "$work/json"
judge figures $?
balance "$work/loads.npy" --ranks 2 --places 6 --from "$work/next.npy" --copies 4 && grep -q '^mean .* 0$' "$work/out"
judge goes_round $?
balance "$work/loads.npy" --ranks 2 --copies 0 && grep -q '^0  *1.333  *1.333  *1.3333  *0$' "$work/out"
judge no_copies $?
balance "$work/loads.npy" --ranks 2 --places 8 --spread 2 && grep -q '^0 .* 1.0000 ' "$work/out"
judge apart $?

refused no_file 1 "No such file" "$work/none.npy"
refused nothing_given 2 "one file of loads"
refused bad_number 2 "many" "$work/loads.npy" --ranks many
refused few_places 1 "4 experts, 3 places" "$work/loads.npy" --places 3
refused more_nodes_than_ranks 1 "2 ranks of 3 nodes" "$work/loads.npy" --ranks 2 --nodes 3
refused other_experts 1 "experts of --judge: 3, where 4" "$work/loads.npy" --ranks 2 --judge "$work/narrow.npy"
refused unknown_expert 1 "now\[4\] is" "$work/loads.npy" --ranks 2 --places 6 --from "$work/unknown.npy"
refused no_npy 1 "tern balance: " "$tern"
refused not_writable 1 "none/next.npy" "$work/loads.npy" --ranks 2 --out "$work/none/next.npy"
exit $bad
