#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tern-sys builds without a crate, against an installed library and its archive, and its example's tokens come home on 1 and 3 ranks;
# its bindings are those of the headers. BUILD=dir tests/install/test_rust.sh
BUILD=${BUILD:-build}
here=$(cd "$(dirname "$0")" && pwd)
tree=$here/../..
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
said=$tmp/said
. "$tree/tests/tap.sh"

every_function() {
	grep -h -E '^TERN_API' "$tree/include/tern.h" "$tree/include/tern_engine.h" | grep -E -o 'tern_[a-z0-9_]+\(' | tr -d '(' | sort -u >"$tmp/header"
	grep -o 'pub fn tern_[a-z0-9_]*' "$tree/rust/tern-sys/src/bindings.rs" | cut -c8- | sort -u >"$tmp/bindings"
	[ -s "$tmp/header" ] && diff "$tmp/header" "$tmp/bindings"
}

# Whatever lays them out.
bare() { tr -d ' \n,' <"$1"; }
as_generated() {
	cp -r "$tree/rust" "$tree/include" "$tmp/" && "$tmp/rust/tern-sys/generate.sh" "$tmp/again.rs" &&
		[ "$(bare "$tmp/again.rs")" = "$(bare "$tree/rust/tern-sys/src/bindings.rs")" ]
}

build_and_run() { # build_and_run NAME SETTING...
	name=$1
	shift
	(cd "$tmp/crate" && env "$@" CARGO_HOME="$tmp/home" CARGO_TARGET_DIR="$tmp/$name" PKG_CONFIG_PATH="$tmp/usr/lib/pkgconfig" cargo build --offline --quiet --example round) || return 1
	export LD_LIBRARY_PATH="$tmp/usr/lib"
	[ "$name" = static ] && unset LD_LIBRARY_PATH
	"$tmp/$name/debug/examples/round" | grep 'rank 0 of 1: 10 rows here, 5 tokens home' &&
		[ "$("$tmp/usr/bin/tern" run -n 3 -- "$tmp/$name/debug/examples/round" | grep -c 'of 3: .* 5 tokens home')" = 3 ]
}

without_library() { # says what to do
	! (cd "$tmp/crate" && CARGO_HOME="$tmp/home" CARGO_TARGET_DIR="$tmp/none" PKG_CONFIG_LIBDIR=/nowhere PKG_CONFIG_PATH= cargo build --offline --quiet) 2>"$tmp/none.said" &&
		grep 'set PKG_CONFIG_PATH or TERN_LIB_DIR' "$tmp/none.said"
}

expect every_function every_function
command -v bindgen >/dev/null && command -v rustfmt >/dev/null && expect as_generated as_generated
if ! command -v cargo >/dev/null; then
	echo "ok $((number + 1)) - build # SKIP cargo is not installed"
	exit $failures
fi
cp -r "$tree/rust/tern-sys" "$tmp/crate"
make -s BUILD="$BUILD" PREFIX="$tmp/usr" install >/dev/null 2>&1
expect shared build_and_run shared
expect archive build_and_run static TERN_STATIC=1
expect without_library without_library
echo "1..$number"
exit $failures
