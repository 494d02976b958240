/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/lab/floor.h"

#include "gpu/cuda/common/launch.cuh"
#include "gpu/cuda/common/warp.cuh"

#define GATE_LIMIT_NS 4000000000ull

static __global__ void gate_kernel(const __grid_constant__ struct lab_gate g)
{
	uint64_t start = now_ns();

	if (threadIdx.x < g.nr_ranks) {
		word_store(g.flags[threadIdx.x] + g.rank, g.number);
		while ((int32_t)(word_load(g.flags[g.rank] + threadIdx.x) - g.number) < 0 &&
			now_ns() - start < GATE_LIMIT_NS)
			;
	}
	__syncthreads();
	start = now_ns();
	while (now_ns() - start < g.hold_ns)
		;
}

cudaError_t lab_gate_launch(const struct lab_gate *gate, cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(1, LANES, 0, stream);

	return cudaLaunchKernelEx(&config, gate_kernel, *gate);
}

static __global__ void empty_kernel()
{
}

cudaError_t lab_empty_launch(uint32_t nr_blocks, uint32_t nr_threads, cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(nr_blocks, nr_threads, 0, stream);

	return cudaLaunchKernelEx(&config, empty_kernel);
}

static __global__ void spin_kernel(uint64_t ns)
{
	uint64_t start = now_ns();

	while (now_ns() - start < ns)
		;
}

cudaError_t lab_spin_launch(uint64_t ns, cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(1, 1, 0, stream);

	return cudaLaunchKernelEx(&config, spin_kernel, ns);
}

static __global__ void copy_kernel(const __grid_constant__ struct lab_copy c)
{
	uint64_t first = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) * 16,
		 step = (uint64_t)gridDim.x * blockDim.x * 16;

	for (uint64_t at = first;; at += step) {
		bool more = false;

		for (uint32_t i = 0; i < c.nr_ranks; i++) {
			uint32_t to = (c.rank + i) % c.nr_ranks;

			if (at >= c.bytes[to])
				continue;
			row_store(c.to[to] + at, row_load(c.from + at));
			more = true;
		}
		if (!more)
			return;
	}
}

cudaError_t lab_copy_launch(
	const struct lab_copy *copy, uint32_t nr_blocks, uint32_t nr_threads, cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(nr_blocks, nr_threads, 0, stream);

	return cudaLaunchKernelEx(&config, copy_kernel, *copy);
}
