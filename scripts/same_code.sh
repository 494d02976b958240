#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# scripts/same_code.sh BUILD_A BUILD_B [RENAMED]: whether two builds are the same code, object by object: instructions,
# data, and what the linker is told, up to the names of symbols. For commits that only move and rename. RENAMED has lines
# "old.c new.c" with the names of files that are called otherwise in BUILD_B. Both have to be built alike and without -g:
# make OPT=-O2. A test's object holds the words of what it asserts, so it differs where one of them was renamed.
#
# An object is compared with the one at the same place, else with each of that name in BUILD_B. nvcc's objects hold
# random names: in place of them libtern_cuda.so and libtern_bench_cuda.so are compared, kernel by kernel, where both
# builds have them and cuobjdump is there. Exits 1 if anything differs or is in one build alone.
set -u
[ $# -ge 2 ] || { sed -n '3,11s/^# \?//p' "$0"; exit 2; }
a=$1 b=$2 renamed=${3:-/dev/null}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# code FILE: what is in an object, where symbols are numbered in the order in which relocations name them.
code() {
	local out=$work/object.$BASHPID
	objcopy --strip-debug -R .comment "$1" "$out" || echo "$1: objcopy fails" >&2
	objdump -sr "$out" | tail -n +4 | awk '
		/^RELOCATION/ {relocations = 1; sub(/\._Z.*\]/, "]"); print; next}
		/^Contents/ {relocations = 0; sub(/\._Z.*/, "")} # a section of one function of C++
		relocations && NF == 3 {
			symbol = $3; sub(/[+-]0x[0-9a-f]+$/, "", symbol)
			addend = substr($3, length(symbol) + 1)
			if (symbol !~ /^\./ || symbol ~ /\._Z/) {if (!(symbol in number)) number[symbol] = ++nr; symbol = "#" number[symbol]}
			print $1, $2, symbol addend
			next
		}
		{print}'
}

# index BUILD: "hash path", where the path is within the build.
index() {
	(cd "$1" && find . -name '*.o' ! -path './libtern.o' ! -path './check/*' ! -path './obj/*.cu.o' | sort) | while read -r path; do
		echo "$(code "$1/$path" | md5sum | cut -c 1-32) ${path#./}"
	done
}

index "$a" >"$work/a" &
index "$b" >"$work/b"
wait
awk -v renamed="$renamed" '
	function base(path) {sub(/.*\//, "", path); return path}
	BEGIN {while ((getline line < renamed) > 0) {split(line, w, " "); new[base(w[1])] = new[base(w[1])] " " base(w[2])}}
	FNR == NR {hash[$2] = $1; paths[base($2)] = paths[base($2)] " " $2; next}
	{
		nr++
		# The source is called x.c, its object x.o, x.c.o or x.cu.o.
		names = base($2)
		source = names; sub(/\.o$/, "", source); tail = ".o"
		if (source !~ /\./) {source = source ".c"; tail = ""}
		n = split(new[source], w, " ")
		for (i = 1; i <= n; i++) {
			if (tail == "") sub(/\.c$/, ".o", w[i])
			names = names " " w[i] tail
		}
		found = ""; near = ""
		if ($2 in hash) {near = $2; if (hash[$2] == $1) found = $2}
		n = split(names, w, " ")
		for (i = 1; i <= n && found == ""; i++) {
			m = split(paths[w[i]], p, " ")
			for (j = 1; j <= m; j++) {
				if (p[j] in used) continue
				if (near == "") near = p[j]
				if (hash[p[j]] == $1) {found = p[j]; break}
			}
		}
		if (found != "") {used[found] = 1; same++}
		else {print (near != "" ? "differs: " $2 " and " near : "missing: " $2); bad++; used[near] = 1}
	}
	END {
		for (path in hash) if (!(path in used)) {print "new:     " path; bad++}
		printf "%d objects, %d the same, %d not\n", nr, same, bad
		exit bad > 0 || nr == 0
	}' "$work/b" "$work/a"
rc=$?

# sass BUILD: the GPU code, a kernel a line, without their names. What is in no library of one build may be in the other.
sass() {
	for library in "$1"/libtern_cuda.so "$1"/libtern_bench_cuda.so; do
		[ ! -e "$library" ] || cuobjdump -sass "$library"
	done | awk '
		/^\tcode for/ {print line; line = ""; arch = $3; next}
		/^\t\tFunction :/ {print line; line = arch; next}
		/^ +\/\*|^ +@|\.headerflags/ {line = line "|" $0}
		END {print line}' | grep . | sort
}

if [ -e "$a/libtern_cuda.so" ] && [ -e "$b/libtern_cuda.so" ] && command -v cuobjdump >/dev/null; then
	sass "$a" >"$work/sass-a"
	sass "$b" >"$work/sass-b"
	if cmp -s "$work/sass-a" "$work/sass-b"; then
		echo "GPU code: $(wc -l <"$work/sass-a") kernels, the same"
	else
		echo "GPU code: kernels differ"
		rc=1
	fi
fi
exit $rc
