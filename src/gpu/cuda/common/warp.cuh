/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes, and what they say in PTX; where kernels run on a CPU, its cuda_runtime.h has that. */
#ifndef TERN_GPU_CUDA_COMMON_WARP_CUH
#define TERN_GPU_CUDA_COMMON_WARP_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#define LANES 32
#define ALL_LANES 0xffffffffu

#ifdef __CUDACC__
#include "gpu/cuda/common/ptx.cuh"
#endif

__device__ __forceinline__ uint32_t lane_id()
{
	return threadIdx.x % LANES;
}

/* Of the block's. By a shuffle, by whole warps: so the compiler knows it for the same in all lanes,
 * and reckons what follows from it once for all of them. */
__device__ __forceinline__ uint32_t warp_id()
{
#ifdef __CUDACC__
	return __shfl_sync(ALL_LANES, threadIdx.x / LANES, 0);
#else
	return threadIdx.x / LANES;
#endif
}

__device__ __forceinline__ uint32_t lanes_below()
{
	return (1u << lane_id()) - 1;
}

/* Of lanes that agree, one speaks for all. */
__device__ __forceinline__ bool is_lowest_of(uint32_t lanes)
{
	return (lanes & lanes_below()) == 0;
}

/* The sum of the lanes before this one, and of all. */
__device__ __forceinline__ uint32_t lanes_before(uint32_t value, uint32_t *all)
{
	uint32_t sum = value;

#pragma unroll
	for (uint32_t step = 1; step < LANES; step *= 2) {
		uint32_t other = __shfl_up_sync(ALL_LANES, sum, step);

		sum += lane_id() >= step ? other : 0;
	}
	*all = __shfl_sync(ALL_LANES, sum, LANES - 1);
	return sum - value;
}

#endif
