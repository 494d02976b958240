# SPDX-License-Identifier: Apache-2.0
# How make check and make soak build with sanitizers, so that neither builds anew what the other has built: arguments of
# make. One build serves AddressSanitizer, UBSan and libFuzzer, where there is clang. Sourced, with BUILD set.
THREAD=(BUILD="$BUILD/thread" SANITIZE=thread OPT="-O1 -g1")
if command -v clang++ >/dev/null; then
	ADDRESS=(BUILD="$BUILD/address" CC=clang CXX=clang++ SANITIZE=fuzzer-no-link,address,undefined OPT="-O1 -g1")
else
	ADDRESS=(BUILD="$BUILD/address" SANITIZE=address,undefined OPT="-O1 -g1")
fi
