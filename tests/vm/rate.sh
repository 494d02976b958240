#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# In the virtual machine: writes a second of the verbs transport beside perftest's, on the same device, in turns; medians. perftest has no write with immediate: its sends stand
# beside ours, as they too use a receive each.
#
#   scripts/vm.sh run -t 600 tests/vm/rate.sh [ROUNDS]
set -u
BUILD=${BUILD:-build}
rounds=${1:-5}

median() { sort -n | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

# perftest PROGRAM BYTES NR: its average, in messages a second.
perftest() {
	local server got

	timeout 60 "$1" -d rxe0 -x 1 -s "$2" -n "$3" -F >/dev/null 2>&1 &
	server=$!
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		grep -q ':4853 ' /proc/net/tcp /proc/net/tcp6 && break # 18515 listens
		sleep 0.2
	done
	got=$(timeout 60 "$1" -d rxe0 -x 1 -s "$2" -n "$3" -F 127.0.0.1 2>/dev/null | awk -v s="$2" '$1 == s {print $5 * 1000000}')
	wait $server
	echo "${got:-0}"
}

printf '%-22s %7s %16s %16s %8s\n' what bytes 'Tern, a second' 'perftest' 'ratio'
for what in write imm; do
	for bytes in ${SIZES:-8 4096 65536}; do
		nr=$((bytes < 65536 ? 5000 : 500))
		ours=() theirs=()
		for ((i = 0; i < rounds; i++)); do
			ours+=("$(timeout 60 "$BUILD/tests/vm/rate" rxe0 $bytes $nr $what | awk '{print $1}')")
			theirs+=("$(perftest "$([ $what = imm ] && echo ib_send_bw || echo ib_write_bw)" $bytes $nr)")
		done
		a=$(printf '%s\n' "${ours[@]}" | median) b=$(printf '%s\n' "${theirs[@]}" | median)
		printf '%-22s %7d %16.0f %16.0f %8s\n' "$([ $what = imm ] && echo 'write with immediate' || echo write)" $bytes "$a" "$b" \
			"$(awk -v a="$a" -v b="$b" 'BEGIN {if (b > 0) printf "%.2f", b / a; else print "-"}')"
	done
done
echo "ratio: perftest's rate over Tern's; below 1, Tern is faster"
