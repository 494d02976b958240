#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# docs/command.md shows what --help prints, to the letter. test_help.sh --write writes it anew. BUILD is build if not set.
set -u
cd "$(dirname "$0")/../.." || exit 1
tern=${BUILD:-build}/tern
page=docs/command.md
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# The page, with what each command prints in place of the block below its heading.
fresh() {
	while IFS= read -r line; do
		case $line in
		"## tern "*) command=${line#\#\# tern } ;;
		esac
		case $line in
		'```')
			if [ -n "${command:-}" ]; then
				echo "$line"
				# shellcheck disable=SC2086
				"$tern" $command --help
				echo "$line"
				command=
				skipping=yes
			else
				skipping=
			fi
			;;
		*) [ -n "${skipping:-}" ] || printf '%s\n' "$line" ;;
		esac
	done <"$page"
}

fresh >"$work/page" 2>"$work/err" || exit 1
if [ "${1:-}" = --write ]; then
	cp "$work/page" "$page"
	exit
fi
for command in run bench "bench signal" soak balance info doctor; do
	grep -q "^## tern $command$" "$page" || { echo "FAIL: $page has nothing of tern $command"; exit 1; }
done
diff -u "$page" "$work/page" || { echo "FAIL: $page is not what --help prints: tests/cli/test_help.sh --write"; exit 1; }
echo "test_help.sh: all well"
