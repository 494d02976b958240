#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The rate of tern_ep.Engine's paged writes beside raw libfabric writes of the same pages over tcp: ROUNDS of PAGES, of which AHEAD are
# under way; processes in turn, TURNS of each, and the median of their rates. Each rank has half of the cores, as where the scheduler puts
# them decides more than what they do. With LEAST=0.9 it fails below that share. The environment's package is used, else the tree's.
# BUILD=build PYTHON=python3 PAGES=512 SIZES="4096 16384 65536" ROUNDS=50 AHEAD=4 TURNS=5 LEAST=0 scripts/pages.sh
set -eu
export LC_ALL=C
cd "$(dirname "$0")/.."
BUILD=$(realpath "${BUILD:-build}")
PYTHON=${PYTHON:-python3}
PAGES=${PAGES:-512}
ROUNDS=${ROUNDS:-50}
AHEAD=${AHEAD:-4}
TURNS=${TURNS:-5}
[ -x "$BUILD/tern-raw-pages" ] || { echo "built without libfabric"; exit 77; }
"$PYTHON" -c 'import tern_ep' 2>/dev/null || export PYTHONPATH="$PWD/python" TERN_LIBRARY="$BUILD/libtern.so"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cores=$(($(nproc) / 2)) # of a rank
if [ $cores -gt 0 ]; then
	bound=(sh -c "exec taskset -c \$((TERN_RANK * $cores))-\$((TERN_RANK * $cores + $cores - 1)) \"\$@\"" sh)
else
	bound=(env)
fi
rate() { "$BUILD/tern" run -n 2 -- "${bound[@]}" "$@" | tee -a "$tmp/said" | sed 's/.*"gb_s": //; s/}//'; }
median() { sort -n "$1" | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }
failed=0
printf '%10s %8s %12s %12s %8s\n' "page bytes" pages "raw GB/s" "Engine GB/s" share
for bytes in ${SIZES:-4096 16384 65536}; do
	rm -f "$tmp/raw" "$tmp/engine"
	for ((turn = 0; turn < TURNS; turn++)); do
		rate "$BUILD/tern-raw-pages" "$PAGES" "$bytes" "$ROUNDS" "$AHEAD" >>"$tmp/raw"
		rate "$PYTHON" bench/python/pages.py "$PAGES" "$bytes" "$ROUNDS" "$AHEAD" >>"$tmp/engine"
	done
	raw=$(median "$tmp/raw") engine=$(median "$tmp/engine")
	share=$(awk "BEGIN {printf \"%.3f\", $engine / $raw}")
	printf '%10s %8s %12s %12s %8s\n' "$bytes" "$PAGES" "$raw" "$engine" "$share"
	awk "BEGIN {exit !($share < ${LEAST:-0})}" && failed=1
done
exit $failed
