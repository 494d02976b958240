# SPDX-License-Identifier: Apache-2.0
# How make check and make soak build with sanitizers, so that neither builds anew what the other has built: arguments of
# make. Sourced, with BUILD set.
THREAD=(BUILD="$BUILD/thread" SANITIZE=thread OPT="-O1 -g1")
if command -v clang++ >/dev/null; then
	# One build serves AddressSanitizer, UBSan and libFuzzer. Of what libFuzzer can be told it has what costs least: where
	# comparisons are traced, too, tests take up to twice as long.
	CLANG=(CC=clang CXX=clang++ SANITIZE=fuzzer-no-link,address,undefined)
	ADDRESS=(BUILD="$BUILD/address" "${CLANG[@]}" OPT="-O1 -g1 -fno-sanitize-coverage=trace-cmp,pc-table,indirect-calls")
	FUZZ=(BUILD="$BUILD/fuzz" "${CLANG[@]}" OPT="-O1 -g1") # all of it, for fuzzers that run for long
else
	ADDRESS=(BUILD="$BUILD/address" SANITIZE=address,undefined OPT="-O1 -g1")
fi
