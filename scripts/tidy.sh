#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over the library's C, with the checks of .clang-tidy. What needs CUDA's headers is left out.
cd "$(dirname "$0")/.." || exit 1
command -v clang-tidy >/dev/null || { echo "clang-tidy is not installed"; exit 77; }
headers=$(pkg-config --cflags pmix libfabric libibverbs 2>/dev/null | sed 's/-I/-isystem /g')
left_out='src/gpu/cuda|none\.c'
pkg-config --exists pmix 2>/dev/null || left_out="$left_out|pmix\.c"
pkg-config --exists libfabric 2>/dev/null || left_out="$left_out|transport/ofi"
pkg-config --exists libibverbs 2>/dev/null || left_out="$left_out|transport/verbs"
# shellcheck disable=SC2016
find src -name '*.c' | grep -vE "$left_out" | sort | xargs -P "$(nproc)" -n 8 sh -c 'clang-tidy --quiet "$@" -- \
	-std=gnu11 -D_GNU_SOURCE -Iinclude -Isrc '"$headers" sh
