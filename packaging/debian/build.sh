#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds one Debian package, tern-ep, with the libraries, headers, pkg-config and CMake files and the command:
# BUILD=build OUT=. packaging/debian/build.sh. Needs dpkg-deb and dpkg-shlibdeps (dpkg-dev). libtern_cuda.so goes in where CUDA=1 built it.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
OUT=${OUT:-$BUILD}
version=$(awk '/define TERN_VERSION_(MAJOR|MINOR|PATCH)/ {v = v s $3; s = "."} END {print v}' include/tern.h)
architecture=$(dpkg --print-architecture)
multiarch=$(gcc -print-multiarch)
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
stage=$room/tern-ep
umask 022

make -s BUILD="$BUILD" PREFIX=/usr LIBDIR="/usr/lib/$multiarch" DESTDIR="$stage" install
rm -f "$stage/usr/bin/generate" "$stage/usr/lib/$multiarch/libtern_bench_cuda.so" # the demo, and what measures
strip --strip-unneeded "$stage/usr/bin/tern" "$stage/usr/lib/$multiarch"/libtern*.so.*.*.*
strip --strip-debug "$stage/usr/lib/$multiarch/libtern.a"
doc=$stage/usr/share/doc/tern-ep
mkdir -p "$doc" "$stage/DEBIAN" "$room/debian"
{
	echo 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/'
	printf 'Upstream-Name: Tern\n\nFiles: *\nCopyright: the authors of Tern\nLicense: Apache-2.0\n On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.\n'
} >"$doc/copyright"
gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
echo 'activate-noawait ldconfig' >"$stage/DEBIAN/triggers"
printf 'libtern %s tern-ep (>= %s)\n' "${version%%.*}" "${version%.*}" >"$stage/DEBIAN/shlibs"

printf 'Source: tern-ep\n\nPackage: tern-ep\nArchitecture: any\n' >"$room/debian/control"
depends=$(cd "$room" && dpkg-shlibdeps -O --ignore-missing-info -l"$stage/usr/lib/$multiarch" "$stage/usr/bin/tern" "$stage/usr/lib/$multiarch/libtern.so.$version" 2>/dev/null |
	sed 's/^shlibs:Depends=//')
cat >"$stage/DEBIAN/control" <<-CONTROL
	Package: tern-ep
	Version: $version-1
	Architecture: $architecture
	Maintainer: the authors of Tern <tern@example.invalid>
	Section: libs
	Priority: optional
	Installed-Size: $(du -sk "$stage/usr" | cut -f1)
	Depends: $depends
	Recommends: libfabric1, libibverbs1, ibverbs-providers
	Suggests: libpmix2
	Description: dispatch and combine for expert parallelism (Mixture-of-Experts)
	 Tern moves the tokens of a Mixture-of-Experts layer to the ranks of their
	 experts and the results home: over shared memory with libc alone, between
	 nodes over RDMA devices or libfabric. The library, its headers, the files for
	 pkg-config and CMake, and the command tern.
CONTROL
(cd "$stage" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
mkdir -p "$OUT"
dpkg-deb --root-owner-group -Zxz --build "$stage" "$OUT/tern-ep_$version-1_$architecture.deb" >/dev/null
echo "$OUT/tern-ep_$version-1_$architecture.deb"
