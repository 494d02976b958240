/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes, and what they say in PTX; where kernels run on a CPU, its cuda_runtime.h has that. */
#ifndef TERN_CUDA_MEMORY_CUH
#define TERN_CUDA_MEMORY_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#define LANES 32
#define ALL_LANES 0xffffffffu

#ifdef __CUDACC__
#include "ptx.cuh"
#endif

__device__ __forceinline__ uint32_t lane_id()
{
	return threadIdx.x % LANES;
}

#endif
