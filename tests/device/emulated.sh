# SPDX-License-Identifier: Apache-2.0
# For tests of programs on GPUs that are emulated on the CPU (tests/device/emulate/), between processes: no GPU runs. Sourced; sets emulated, tmp and bad, and skips where there is no emulation.
. "${BASH_SOURCE%/*}/judge.sh"
emulated=$(realpath -m "$BUILD")/emulated/libtern_cuda.so

if [ ! -e "$emulated" ]; then
	echo "$emulated is not there: make emulated"
	exit 77
fi
: >"$tmp/turns"
export TERN_CUDA_LIBRARY=$emulated TERN_CUDART_LIBRARY=${emulated%/*}/libtern_emulated.so TERN_EMULATED_PROCESSES=$tmp/turns
