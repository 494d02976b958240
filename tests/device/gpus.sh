#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# scripts/gpus.sh itself, on GPUs that are emulated on the CPU (tests/device/emulate/), and with a stand-in for compute-sanitizer: what it makes of its steps. No GPU runs.
# BUILD=dir tests/device/gpus.sh
. "${BASH_SOURCE%/*}/emulated.sh"
mkdir "$tmp/bin"
cat >"$tmp/bin/compute-sanitizer" <<'END'
#!/bin/bash
# compute-sanitizer --tool TOOL --target-processes all --error-exitcode 9 --num-cuda-barriers 512 COMMAND...: FOUND: how many errors it says to have found; none: it ends without a summary. RUN=no: it runs nothing.
echo "========= COMPUTE-SANITIZER"
[ "$RUN" = no ] || "${@:9}" || exit
case $2-$FOUND in
*-none) exit 0 ;;
racecheck-*) echo "========= RACECHECK SUMMARY: $FOUND hazards displayed ($FOUND errors, 0 warnings)" ;;
*) echo "========= ERROR SUMMARY: $FOUND errors" ;;
esac
[ "$FOUND" = 0 ] || exit 9
END
printf '#!/bin/sh\necho "planted: $1"\n' >"$tmp/bin/planted"
chmod +x "$tmp/bin/"*
export PATH=$tmp/bin:$PATH LOGS=$tmp/logs PLANTED=$tmp/bin/planted

# gpus LAST-LINE VARIABLES...: what it ends with.
gpus() {
	env "${@:2}" GPUS=2 "$WITHIN" 200 scripts/gpus.sh >"$tmp/out" 2>&1 </dev/null
	[ "$(tail -n 1 "$tmp/out")" = "$1" ] || { cat "$tmp/out"; return 1; }
}

# Of its steps those of 4 ranks, which share two GPUs, on one node and on two.
gpus "4 passed, 0 failed, 0 skipped" STAGES="demo long" STEPS="long/*-4" ROUNDS=14 TERN_EMULATED_GPUS=2 TERN_TEST_SHARING=7 TERN_TEST_ROUNDS=4 &&
	[ "$(grep -c '[lh][lt], 4 ranks on 2 devices: 1[4-9] rounds of [0-9]* shapes' "$tmp/out")" -eq 4 ]
judge long_shared $?
gpus "2 passed, 0 failed, 0 skipped" STAGES=load TERN_EMULATED_CODE=80 && [ "$(grep -c '^    kernels on GPU .*, runs code for 8.0; 8 SMs' "$tmp/out")" -eq 4 ]
judge load $?
gpus "no step of long is called nothing" STAGES=long STEPS=nothing
judge no_such_step $?
# What is planted is not found, and that is wrong; all else is clean.
gpus "8 passed, 4 failed, 0 skipped" STAGES=sanitize RUN=no FOUND=0 TOOLS="memcheck racecheck" &&
	grep -q '^FAIL (1).*sanitize/memcheck-planted' "$tmp/out" && grep -q '^FAIL (1).*sanitize/racecheck-planted-copy' "$tmp/out" && grep -q '^    ERROR SUMMARY: 0 errors' "$tmp/out" && grep -q '^    RACECHECK SUMMARY: 0 hazards' "$tmp/out"
judge sanitize $?
gpus "1 passed, 1 failed, 0 skipped" STAGES=sanitize STEPS="*-@(planted|2)" FOUND=3 TOOLS=memcheck && grep -q '^ok .*sanitize/memcheck-planted' "$tmp/out"
judge sanitize_finds $?
gpus "3 passed, 1 failed, 0 skipped" STAGES=sanitize STEPS="*-@(planted*|2)" FOUND=2 TOOLS=racecheck && [ "$(grep -c '^ok .*sanitize/racecheck-planted' "$tmp/out")" -eq 3 ]
judge sanitize_finds_hazards $?
gpus "0 passed, 2 failed, 0 skipped" STAGES=sanitize STEPS="*-@(planted|2)" FOUND=none TOOLS=synccheck && grep -q 'no summary' "$tmp/out"
judge sanitize_without_summary $?
# What a machine lacks is not failed.
mkdir "$tmp/libs"
: >"$tmp/libs/libthere.so.1"
sed -n '/^with_library()/,/^}/p' scripts/gpus.sh >"$tmp/with_library"
LIBS=$tmp/libs LD_LIBRARY_PATH=$tmp/libs bash -c '. "$1"; with_library libthere.so.1 true && ! with_library libthere.so.1 false && { with_library libnowhere.so.1 true; [ $? -eq 77 ]; }' _ "$tmp/with_library" >"$tmp/out" 2>"$tmp/err" &&
	grep -q '^skip: no libnowhere.so.1 here' "$tmp/out"
judge with_library $?
exit $bad
