/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for what a model computes beside an exchange, for benchmarks. As with a matrix product, an
 * SM holds one block of it, and a kernel that comes meanwhile gets an SM when a block has ended. A
 * block does a fixed amount of arithmetic, some two microseconds of an SM's multiply-adds, and
 * reads 16 KiB beside it: all SMs together about 1 TB/s. */
#include "gpu/cuda/common/launch.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "testkit/device/cuda/work.h"

#define THREADS 512
#define READS 4 /* of 8 bytes, all under way while the block computes */
#define STEPS 4
#define CHAINS 4
#define STEP_ADDS 64 /* of each chain */

/* Each block reads somewhere else, and in each run: no cache holds it. */
static __device__ __forceinline__ uint32_t somewhere(uint32_t nr_reads)
{
	uint32_t mixed = ((uint32_t)(now_ns() >> 5) + blockIdx.x * 0x9e3779b9u) * 2654435761u;

	return (mixed >> 8) % nr_reads;
}

static __global__ void work(uint2 *memory, uint32_t nr_reads)
{
	float sum[CHAINS] = {1.0f, 2.0f, 3.0f, 4.0f};
	uint32_t first = somewhere(nr_reads);
	uint2 v[READS];

#pragma unroll
	for (uint32_t i = 0; i < READS; i++)
		v[i] = memory[(uint64_t)((first + i) % nr_reads) * THREADS + threadIdx.x];
#pragma unroll 1
	for (uint32_t step = 0; step < STEPS; step++)
#pragma unroll
		for (uint32_t i = 0; i < STEP_ADDS; i++)
#pragma unroll
			for (uint32_t c = 0; c < CHAINS; c++)
				sum[c] = __fmaf_rn(sum[c], 0.5f, 1.0f);
#pragma unroll
	for (uint32_t i = 0; i < READS; i++) {
		sum[0] += __uint_as_float(v[i].x & 0x3fffffff);
		sum[1] += __uint_as_float(v[i].y & 0x3fffffff);
	}
	if (sum[0] + sum[1] + sum[2] + sum[3] < 0) /* never: so that it has to be computed */
		memory[threadIdx.x] = make_uint2(0, 0);
}

cudaError_t work_launch(void *memory, uint64_t bytes, uint32_t nr_blocks, uint32_t shared_bytes,
	cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(nr_blocks, THREADS, shared_bytes, stream);
	cudaError_t rc = allow_shared((const void *)work);

	return rc ? rc
		  : cudaLaunchKernelEx(&config, work, (uint2 *)memory,
			    (uint32_t)(bytes / (THREADS * sizeof(uint2))));
}
