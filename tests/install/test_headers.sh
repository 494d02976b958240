#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What make demo compiles needs the headers of gcc and libc alone: those of CUDA, PMIx, libfabric and verbs are not found
# here, wherever this machine has them. BUILD=dir tests/install/test_headers.sh
BUILD=${BUILD:-build}
CC=${CC:-gcc}
own=$($CC -print-file-name=include)
multiarch=$($CC -print-multiarch)
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

# A folder in place of /usr/include, without what other packages have put there.
mkdir "$tmp/include"
for path in /usr/include/*; do
	case ${path##*/} in
	cuda* | pmix* | rdma | infiniband | mpi* | cmocka*) ;;
	*) ln -s "$path" "$tmp/include/" ;;
	esac
done
make -s -n -B BUILD="$tmp/build" CUDA=0 PMIX= OFI= VERBS= MPICC= "$tmp/build/tern" "$tmp/build/generate" |
	grep -oE '[a-z0-9_/]+\.c -o' | sed 's/ -o$//' | sort -u >"$tmp/sources"
[ "$(wc -l <"$tmp/sources")" -gt 100 ] || { echo "make compiles $(wc -l <"$tmp/sources") files only"; exit 1; }
xargs -P "$(nproc)" -n 20 "$CC" -fsyntax-only -nostdinc -isystem "$own" -isystem "$tmp/include/$multiarch" -isystem "$tmp/include" \
	-std=gnu11 -D_GNU_SOURCE -DTERN_WITH_PMIX=0 -Iinclude -Isrc -I. <"$tmp/sources"
