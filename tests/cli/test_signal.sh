#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tern bench signal: its output, its JSON, that virtual time repeats itself, and what it refuses.
set -u
tern=${BUILD:-build}/tern
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nr=0
failed=0

check() { # NAME COMMAND...: the command succeeds
	local name=$1
	shift
	nr=$((nr + 1))
	if "$@" >"$work/out" 2>&1; then
		echo "ok $nr - $name"
	else
		failed=$((failed + 1))
		echo "not ok $nr - $name"
		tail -n 5 "$work/out" | sed 's/^/# /'
	fi
}

refused() { # NAME ARGUMENTS...: exit code 2 and a message
	local name=$1
	shift
	nr=$((nr + 1))
	"$tern" bench signal "$@" >/dev/null 2>"$work/err"
	if [ $? -eq 2 ] && [ -s "$work/err" ]; then
		echo "ok $nr - $name"
	else
		failed=$((failed + 1))
		echo "not ok $nr - $name"
	fi
}

is_json() { python3 -m json.tool "$1"; }
run() { "$tern" bench signal --nodes 3 --concurrency 24 --iters 2 "$@"; }

check help "$tern" bench signal --help
check table run
check bare run --bare
check compute run --compute-ns 2000000 --policy all
check shm "$tern" bench signal --transport shm --peers 2 --concurrency 8 --iters 3
for name in first second; do
	check "json $name" run --zipf 1 --policy all --json "$work/$name"
	check "json $name parses" is_json "$work/$name"
done
check "the same seed gives the same run" cmp "$work/first" "$work/second"
refused "unknown policy" --policy cupled
refused "no peers" --nodes 1
refused "bytes" --bytes 8
refused "garbage" --bytes 4x
refused "more peers than ranks" --nodes 2 --peers 5
refused "stray word" now
refused "unknown transport" --transport carrier-pigeon
refused "compute in real time" --compute-ns 1000 --transport shm
refused "compute without the engine" --compute-ns 1000 --bare
refused "more bytes than 64 bits hold" --seed 18014398509481985K
echo "1..$nr"
[ $failed -eq 0 ]
