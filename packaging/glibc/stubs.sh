#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes libraries to link against, as glibc 2.28 had them: stubs.sh DIR [2.28]. Each symbol that this machine's glibc still
# has in a version as old as that gets that version, and newer ones are not there, so that what links against these runs on
# any glibc from then on. In 2.28 libdl and libpthread were libraries of their own: whoever links needs them by name.
# CC: the compiler, whose machine counts.
set -eu
dir=$1
most=${2:-2.28}
CC=${CC:-gcc}
mkdir -p "$dir"

stub() { # stub NAME SONAME [LIBRARY]
	LC_ALL=C objdump -T "${3:-/dev/null}" 2>/dev/null | LC_ALL=C awk -v most="$most" -v versions="$dir/$1.map" '
	function number(v, part) { split(v, part, "."); return part[1] * 1000000 + part[2] * 1000 + part[3] }
	# value, flags, section, size, version, name
	/\*UND\*|\*ABS\*/ { next }
	match($0, /GLIBC_[0-9.]+/) {
		version = substr($0, RSTART + 6, RLENGTH - 6)
		symbol = $NF
		if (number(version) > number(most) || symbol ~ /^_?GLIBC/)
			next
		if (!(symbol in best) || number(version) > number(best[symbol]))
			best[symbol] = version
		is_object[symbol] = $0 ~ / D?O /
		size[symbol] = substr($0, index($0, "\t") + 1)
		sub(/ .*/, "", size[symbol])
		seen[version] = 1
	}
	END {
		print ".section .note.GNU-stack,\"\",%progbits\n.data\n.balign 64"
		for (symbol in best) {
			version = best[symbol]
			label = "stub_" (++nr)
			printf ".globl %s\n.type %s, %%%s\n", label, label, is_object[symbol] ? "object" : "function"
			if (is_object[symbol])
				printf ".size %s, 0x%s\n", label, size[symbol]
			printf "%s: .skip 64\n.symver %s, %s@@GLIBC_%s\n", label, label, symbol, version
		}
		for (version in seen)
			print "GLIBC_" version " {};" > versions
	}' >"$dir/$1.s"
	[ -e "$dir/$1.map" ] || echo 'GLIBC_0 {};' >"$dir/$1.map"
	$CC -shared -nostdlib -Wl,-soname,"$2" -Wl,--version-script="$dir/$1.map" -x assembler "$dir/$1.s" -o "$dir/lib$1.so"
}

file_of() { $CC -print-file-name="$1"; }

stub c libc.so.6 "$(file_of libc.so.6)"
loader=$(objdump -p "$(file_of libc.so.6)" | awk '$1 == "NEEDED" {print $2}')
stub loader "$loader" "$(file_of "$loader")"
stub m libm.so.6 "$(file_of libm.so.6)"
stub dl libdl.so.2
stub pthread libpthread.so.0
LC_ALL=C objdump -T "$dir/libc.so" | grep -q 'GLIBC_.*dlopen' || { echo "$0: no glibc here that still has what $most had"; exit 1; }
