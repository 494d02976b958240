#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `make install` leaves is enough to build and run against, in C and C++, shared and static; and the libraries define
# tern_* and nothing else. BUILD=dir tests/install/test_install.sh
BUILD=${BUILD:-build}
CC=${CC:-gcc}
here=$(dirname "$0")
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
said=$tmp/said
. "$here/../tap.sh"

only_tern() { # what is not tern_* or the version's name
	! grep -v -E '^(tern_[a-z0-9_]+|TERN_0)(@.*)?$' "$1"
}

exports() {
	nm -D --defined-only "$prefix/lib/libtern.so" | awk '{print $3}' >"$tmp/names"
	grep -q tern_dispatch_send "$tmp/names" && only_tern "$tmp/names"
}

archive() {
	nm -g --defined-only "$prefix/lib/libtern.a" | awk 'NF == 3 {print $3}' >"$tmp/names"
	grep -q tern_dispatch_send "$tmp/names" && only_tern "$tmp/names"
}

declared() { # every function of the header is in the library, and the other way round
	grep -h -E '^TERN_API' "$prefix/include/tern.h" "$prefix/include/tern_engine.h" "$prefix/include/tern_balance.h" "$prefix/include/tern_weights.h" "$prefix/include/tern_layer.h" | grep -E -o 'tern_[a-z0-9_]+\(' | tr -d '(' | sort -u >"$tmp/header"
	nm -D --defined-only "$prefix/lib/libtern.so" | awk '$2 == "T" {print $3}' | sed 's/@.*//' | sort -u >"$tmp/library"
	[ -s "$tmp/header" ] && diff "$tmp/header" "$tmp/library"
}

soname() {
	version=$(awk '/define TERN_VERSION_MAJOR/ {print $3}' "$prefix/include/tern.h")
	readelf -d "$prefix/lib/libtern.so" | grep -q "soname: \[libtern.so.$version\]" &&
		[ "$(readlink "$prefix/lib/libtern.so")" = "libtern.so.$version" ]
}

# Of kernels and calls that are for benchmarks and tests alone, as nm shows them: those of an emulated library have C++'s names.
for_benchmarks() { nm -C "$1" | grep -wE 'records|work_launch|spin_launch|barrier_launch|stream_create|capture_begin|graph_launch'; }
no_benchmarks() {
	for library in "$BUILD"/libtern_cuda.so "$BUILD"/emulated/libtern_cuda.so; do
		[ ! -e "$library" ] && continue
		for_benchmarks "$library" && return 1
		for_benchmarks "${library%/*}/libtern_bench_cuda.so" >/dev/null || return 1
	done
}

needs_only_libc() { # no PMIx, no MPI: these are loaded when they are there
	readelf -d "$prefix/lib/libtern.so" | grep NEEDED >"$tmp/needed" &&
		! grep -v -E 'libc\.so|libm\.so|ld-linux|libpthread|libdl|libasan|libubsan|libtsan' "$tmp/needed"
}

flags() { PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config "$@" tern; }

shared() {
	# shellcheck disable=SC2046
	$CC -Wall -Wextra -Werror "$here/program.c" -o "$tmp/shared" $(flags --cflags --libs) &&
		LD_LIBRARY_PATH=$prefix/lib "$tmp/shared"
}

static() {
	# shellcheck disable=SC2046
	$CC -Wall -Wextra -Werror "$here/program.c" -o "$tmp/static" $(flags --cflags) "$prefix/lib/libtern.a" -lpthread -ldl -lm &&
		"$tmp/static"
}

cplusplus() { # C++11, with all warnings
	# shellcheck disable=SC2046
	g++ -std=c++11 -pedantic -Wall -Wextra -Werror -x c++ "$here/program.c" -x none -o "$tmp/cplusplus" $(flags --cflags --libs) &&
		LD_LIBRARY_PATH=$prefix/lib "$tmp/cplusplus"
}

strict_c() { # the header alone, by the book
	printf '#include <tern.h>\n#include <tern_engine.h>\nint main(void) { return tern_version() == 0; }\n' >"$tmp/strict.c"
	# shellcheck disable=SC2046
	$CC -std=c99 -pedantic -Wall -Wextra -Werror -c "$tmp/strict.c" -o "$tmp/strict.o" $(flags --cflags)
}

cmake_project() { # also from where it was moved to, and from a multiarch folder
	make -s BUILD="$BUILD" PREFIX="$tmp/made" LIBDIR="$tmp/made/lib/some-machine" install && mv "$tmp/made" "$tmp/moved" &&
		cmake -S "$here/cmake" -B "$tmp/cmake" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_PREFIX_PATH="$tmp/moved" -Dtern_DIR="$tmp/moved/lib/some-machine/cmake/tern" &&
		cmake --build "$tmp/cmake" &&
		for program in c_tern c_static cc_tern cc_static; do "$tmp/cmake/$program" || return 1; done
}

installed_command() { "$prefix/bin/tern" run -n 2 -- "$tmp/static"; }

same_version() { [ "$(flags --modversion)" = "$(awk '/define TERN_VERSION_(MAJOR|MINOR|PATCH)/ {v = v s $3; s = "."} END {print v}' "$prefix/include/tern.h")" ]; }

prefix=$tmp/usr
expect install make -s BUILD="$BUILD" PREFIX="$prefix" install
expect install_destdir make -s BUILD="$BUILD" PREFIX=/usr DESTDIR="$tmp/stage" install
expect staged_files [ -e "$tmp/stage/usr/lib/libtern.so" -a -e "$tmp/stage/usr/include/tern.h" -a -e "$tmp/stage/usr/lib/pkgconfig/tern.pc" ]
expect shared_library_exports_tern_only exports
expect archive_defines_tern_only archive
expect header_and_library_agree declared
expect soname soname
expect needs_only_libc needs_only_libc
expect libtern_cuda_without_benchmarks no_benchmarks
expect version_of_pkg_config same_version
expect shared_program shared
expect static_program static
expect cplusplus_program cplusplus
expect strict_c_header strict_c
if command -v cmake >/dev/null; then
	expect cmake_project cmake_project
else
	number=$((number + 1))
	echo "ok $number - cmake_project # SKIP cmake is not installed"
fi
[ -x "$prefix/bin/tern" ] && expect installed_command installed_command
echo "1..$number"
[ $failures = 0 ]
