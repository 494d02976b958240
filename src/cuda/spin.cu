/* SPDX-License-Identifier: Apache-2.0 */
/* Holds a stream for a while, so that a host can queue what follows, or ranks are pushed apart. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/memory.cuh"

extern "C" cudaError_t spin_launch(uint64_t ns, cudaStream_t stream);

static __global__ void spin(uint64_t ns)
{
	uint64_t start = now_ns();

	while (now_ns() - start < ns)
		;
}

cudaError_t spin_launch(uint64_t ns, cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(1, 1, 0, stream);

	return cudaLaunchKernelEx(&config, spin, ns);
}
