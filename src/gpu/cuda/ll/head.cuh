/* SPDX-License-Identifier: Apache-2.0 */
/* Low latency: a row's head, which holds the gate weights of its routes. */
#ifndef TERN_GPU_CUDA_LL_HEAD_CUH
#define TERN_GPU_CUDA_LL_HEAD_CUH

#include "gpu/cuda/common/plan.cuh"

/* A row's weights, in front of its segments: four (cells: three) a lane. */
template <int FORMAT>
static __device__ __forceinline__ uint4 load_head(
	const struct gpu_dispatch *d, uint32_t epoch, uint32_t token)
{
	constexpr uint32_t N = FORMAT == GPU_FLAG128 ? 4 : 3,
			   LINE = FORMAT == GPU_FLAG128 ? 28 : 24;
	const struct gpu_exchange *e = &d->exchange;
	uint32_t words[4];

#pragma unroll
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t k = lane_id() / 8 * LINE + lane_id() % 8 * N + i;

		words[i] = __float_as_uint(1.0f);
		if (d->topk_weights && i < N && k < e->topk)
			words[i] = __float_as_uint(d->topk_weights[token * e->topk + k]);
	}
	return make_uint4(words[0], words[1], words[2], has_epoch<FORMAT>() ? epoch : words[3]);
}

/* Lanes of a head that travel. */
template <int FORMAT> static __device__ __forceinline__ bool in_head(const struct gpu_exchange *e)
{
	return lane_id() < 8 || (lane_id() < 16 && e->topk > (FORMAT == GPU_FLAG128 ? 28 : 24));
}

/* Lane k's weight out of all lanes' heads. */
template <int FORMAT> static __device__ __forceinline__ uint32_t weight_of_head(uint4 head)
{
	constexpr uint32_t N = FORMAT == GPU_FLAG128 ? 4 : 3,
			   LINE = FORMAT == GPU_FLAG128 ? 28 : 24;
	uint32_t line = lane_id() / LINE, at = lane_id() - line * LINE, from = line * 8 + at / N;
	uint32_t x = __shfl_sync(ALL_LANES, head.x, from), y = __shfl_sync(ALL_LANES, head.y, from);
	uint32_t z = __shfl_sync(ALL_LANES, head.z, from), w = __shfl_sync(ALL_LANES, head.w, from);

	return at % N == 0 ? x : at % N == 1 ? y : at % N == 2 ? z : w;
}

#endif
