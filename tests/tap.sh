# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# Sourced by tests that print TAP: $said is the file that takes what a command says. Afterwards $number and $failures.
number=0
failures=0

# expect NAME COMMAND...
expect() {
	name=$1
	number=$((number + 1))
	shift
	if "$@" >"$said" 2>&1; then
		echo "ok $number - $name"
	else
		echo "not ok $number - $name"
		tail -n 40 "$said" | sed 's/^/# /'
		failures=1
	fi
}
