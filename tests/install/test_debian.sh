#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The Debian package is built, installed by dpkg into a root of its own, and used there: a program is built against it and runs, the
# command starts ranks; removed, it leaves nothing. BUILD=dir tests/install/test_debian.sh
BUILD=${BUILD:-build}
for tool in dpkg-deb dpkg-shlibdeps fakeroot; do
	[ "$tool" = fakeroot ] && [ "$(id -u)" = 0 ] && continue
	command -v $tool >/dev/null || { echo "$tool is not installed"; exit 77; }
done
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
as_root=$([ "$(id -u)" = 0 ] || echo fakeroot)
multiarch=$(gcc -print-multiarch)
root=$tmp/root
fail() {
	echo "$1"
	sed 's/^/# /' "$tmp/said"
	exit 1
}

OUT=$tmp "$here/../../packaging/debian/build.sh" >"$tmp/said" 2>&1 || fail "no package"
package=$(tail -n 1 "$tmp/said")
dpkg-deb -f "$package" Depends >"$tmp/said"
grep -q 'libc6 (>= ' "$tmp/said" || fail "it does not say which libc it needs"
grep -E 'fabric|ibverbs|pmix|mpi' "$tmp/said" && fail "it needs what it only loads"

# What it depends on is this machine's, which the program below runs on.
mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates" "$root/usr/lib/$multiarch"
: >"$root/var/lib/dpkg/status"
# shellcheck disable=SC2086
dpkg_there() { $as_root dpkg --root="$root" --log=/dev/null --force-depends --force-not-root --force-script-chrootless "$@" >"$tmp/said" 2>&1; }
dpkg_there -i "$package" || fail "it cannot be installed"
dpkg --root="$root" -V tern-ep >"$tmp/said" 2>&1 && [ ! -s "$tmp/said" ] || fail "files differ from what dpkg knows"

lib=$root/usr/lib/$multiarch
export PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_LIBDIR=$lib/pkgconfig PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
# shellcheck disable=SC2046
gcc -Wall -Wextra -Werror "$here/program.c" -o "$tmp/program" $(pkg-config --cflags --libs tern) >"$tmp/said" 2>&1 || fail "a program cannot be built against it"
LD_LIBRARY_PATH=$lib "$root/usr/bin/tern" run -n 2 -- "$tmp/program" >"$tmp/said" 2>&1 || fail "the program does not run"
dpkg_there -P tern-ep || fail "it cannot be removed"
left=$(find "$root" -path "*/usr/*" ! -type d)
[ -z "$left" ] || fail "something is left: $left"
