# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# Sourced by tests that kill ranks of the demo: $tmp, $failures, and who runs where. $seed is theirs.
# shellcheck disable=SC2154
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

# await_use PID TICKS: until a process has used so much processor time, in clock ticks, or is no more: how far it has
# come, on any machine
await_use() {
	while read -r _ _ _ _ _ _ _ _ _ _ _ _ _ in_user in_system _ 2>/dev/null <"/proc/$1/stat"; do
		[ $((in_user + in_system)) -lt "$2" ] || break
		sleep 0.005
	done
}

# begin RANKS ARGUMENTS...: `tern run` in the background, $launcher, until its ranks are there
begin() {
	"$BUILD/tern" run -n "$@" >"$tmp/out" 2>"$tmp/err" </dev/null &
	launcher=$!
	while [ "$(children "$launcher" | wc -w)" -lt "$1" ]; do kill -0 $launcher 2>/dev/null || break; done
}

# Somebody was killed before all had joined, or had made what they begin with, which takes more or less of a run, as the
# machine has other work. The others end then, and say so.
was_too_early() { grep -qE '(joining the other ranks|creating an exchange|a store of experts|backups of experts): ' "$tmp/err"; }

# strike_in_time RANK TICKS: `strike RANK TICKS REPEAT`, which fails where it was too early, and is made with more ticks
# then, or too late, and is made in a longer run
strike_in_time() {
	ticks=$2
	repeat=8
	until strike "$1" "$ticks" "$repeat" || [ "$repeat" -ge 512 ] || [ "$ticks" -ge 2000 ]; do
		if was_too_early; then ticks=$((ticks * 2)); else repeat=$((repeat * 2)); fi
	done
}

# all_well: the last line, and the exit code
all_well() {
	[ $failures -eq 0 ] && echo "all well"
	exit $((failures > 0))
}
