/* SPDX-License-Identifier: Apache-2.0 */
/* Holds a stream for a while, so that a host can queue what follows, or ranks are pushed apart; or
 * until all ranks' streams have come as far. */
#include "gpu/cuda/common/launch.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "testkit/device/cuda/spin.h"

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

static __global__ void read_clock(uint64_t *ns)
{
	*ns = now_ns();
}

cudaError_t clock_launch(uint64_t *ns, cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(1, 1, 0, stream);

	return cudaLaunchKernelEx(&config, read_clock, ns);
}

/* Small, so that what a kernel finds in instruction caches is what its last run has left there. */
static __global__ void barrier(const __grid_constant__ struct stream_barrier m)
{
	uint64_t start = now_ns();

	for (uint32_t r = threadIdx.x; r < m.nr_ranks; r += LANES)
		word_release(m.windows[r] + (uint64_t)m.rank * GPU_LINE_BYTES, m.number);
	for (uint32_t r = threadIdx.x; r < m.nr_ranks; r += LANES)
		while ((int32_t)(word_acquire(m.windows[m.rank] + (uint64_t)r * GPU_LINE_BYTES) -
				 m.number) < 0 &&
			now_ns() - start < m.wait_ns)
			;
}

cudaError_t barrier_launch(const struct stream_barrier *at, cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(1, LANES, 0, stream);

	return cudaLaunchKernelEx(&config, barrier, *at);
}

cudaError_t spin_load(void)
{
	cudaFuncAttributes attributes;
	cudaError_t rc = cudaFuncGetAttributes(&attributes, (const void *)spin);

	rc = rc ? rc : cudaFuncGetAttributes(&attributes, (const void *)read_clock);
	return rc ? rc : cudaFuncGetAttributes(&attributes, (const void *)barrier);
}
