#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# In the virtual machine: writes a second of the verbs transport beside perftest's, on the same device, in short runs by turns, either first; what is printed of both is the median
# of their runs, and of the ratio the median of the turns' ratios, as other work on the host slows the two of a turn alike. perftest has no write with immediate: its sends stand
# beside ours, as they too use a receive each.
#
#   scripts/vm.sh run -t 600 tests/vm/rate.sh [ROUNDS [BYTES...]]
set -u
BUILD=${BUILD:-build}
rounds=${1:-5}
sizes=${*:2}

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

# turn PROGRAM BYTES NR WHAT NUMBER: "OURS THEIRS".
turn() {
	local ours theirs

	[ $(($5 % 2)) -eq 1 ] && theirs=$(perftest "$1" "$2" "$3")
	ours=$(timeout 60 "$BUILD/tests/vm/rate" rxe0 "$2" "$3" "$4" | awk '{print $1}')
	[ $(($5 % 2)) -eq 1 ] || theirs=$(perftest "$1" "$2" "$3")
	echo "${ours:-0} ${theirs:-0}"
}

# compare WHAT PROGRAM BYTES NR: one line of the table.
compare() {
	local turns

	turns=$(for ((i = 0; i < rounds; i++)); do turn "$2" "$3" "$4" "$1" $i; done)
	printf '%-22s %7d %16.0f %16.0f %8s\n' "$([ "$1" = imm ] && echo 'write with immediate' || echo write)" "$3" "$(awk '{print $1}' <<<"$turns" | median)" \
		"$(awk '{print $2}' <<<"$turns" | median)" "$(awk '$1 > 0 && $2 > 0 {printf "%.2f\n", $2 / $1}' <<<"$turns" | median)"
}

printf '%-22s %7s %16s %16s %8s\n' what bytes 'Tern, a second' perftest ratio
for bytes in ${sizes:-8 4096 65536}; do
	nr=$((bytes < 65536 ? 3000 : 300))
	compare write ib_write_bw "$bytes" $nr
	compare imm ib_send_bw "$bytes" $nr
done
echo "ratio: perftest's rate over Tern's, median of $rounds turns; below 1, Tern is faster"
