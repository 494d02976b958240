/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the kernels of plans. */
#ifndef TERN_GPU_CUDA_PLANS_PLANS_CUH
#define TERN_GPU_CUDA_PLANS_PLANS_CUH

#include "gpu/cuda/internode/internode_ht.cuh"
#include "gpu/cuda/plans/kernels.h"

#define PLAN_THREADS 512

/* This one of all blocks', and how many there are. */
struct threads {
	uint32_t thread, nr;
};

__device__ __forceinline__ struct threads all_threads()
{
	return {blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x};
}

/* Where a combine of high throughput looks for the heads of a source's tokens. */
__device__ __forceinline__ uint8_t *kept_heads(
	const struct gpu_exchange *e, const struct ht_exchange *h, uint32_t source)
{
	uint8_t *base = on_other_node(e, source) ? e->internode->from[INTERNODE_HEADS][source]
						 : e->windows[e->rank];

	return base + head_at(e, h, source, 0, 0);
}

/* Host. */
extern "C" cudaError_t combine_begin_prepare(void);

#endif
