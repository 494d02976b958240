#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Looks after how the tree is written: code as .clang-format says, no line of it over 104 columns (a tab is 8) but in
# tables and drawings, and Markdown at 120. To mend code: scripts/style.sh --format.
cd "$(dirname "$0")/.." || exit 1
code=$(git ls-files '*.c' '*.h' '*.cu' '*.cuh' 2>/dev/null | grep -v '^tests/device/emulate/cuda')
[ -n "$code" ] || { echo "no git repository: which files are the tree's is not known"; exit 77; }
if [ "${1:-}" = --format ]; then
	# What it has joined it may break anew.
	for _ in 1 2 3; do echo "$code" | xargs clang-format -i; done
	exit
fi
command -v python3 >/dev/null || { echo "python3 is not installed"; exit 77; }
python3 - $code <<'END'
import re, subprocess, sys

TABLE = re.compile(r"[─│►◄┌└├┐┘]|\S {3,}\S| \| |\+--|^\s+\"")
bad = 0

def too_wide(path, number, line, most):
    global bad
    bad += 1
    print(f"{path}:{number}: {len(line)} columns; at most {most}")

for path in sys.argv[1:]:
    for number, line in enumerate(open(path), 1):
        line = line.rstrip("\n").expandtabs(8)
        if len(line) > 104 and not TABLE.search(line):
            too_wide(path, number, line, 104)
pages = subprocess.run(["git", "ls-files", "*.md"], capture_output=True, text=True, check=True).stdout.split()
for path in pages:
    drawing = False
    for number, line in enumerate(open(path), 1):
        line = line.rstrip("\n")
        if line.lstrip().startswith(("```", "~~~")):
            drawing = not drawing
        if len(line) > 120 and not drawing and not line.startswith(("|", "    ")):
            too_wide(path, number, line, 120)
print(f"{len(sys.argv) - 1} files of code, {len(pages)} pages: {bad} lines too wide")
sys.exit(bad > 0)
END
rc=$?
# Other versions break lines elsewhere.
if clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
	echo "$code" | xargs clang-format --dry-run -Werror || rc=1
else
	echo "# clang-format 14 is not installed: how code is laid out was not looked at"
fi
exit $rc
