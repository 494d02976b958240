/* SPDX-License-Identifier: Apache-2.0 */
/* How many of a rank's tokens go where, before there is a dispatch. */
#include "gpu/cuda/beside/received.cuh"
#include "gpu/cuda/common/launch.cuh"
#include "gpu/cuda/common/warp.cuh"

#define ROUTES_THREADS 128 /* a token each */

/* Its expert's number; UINT32_MAX: none. */
static __device__ __forceinline__ uint32_t expert_of(const struct gpu_routes *r, uint64_t route)
{
	uint64_t id = r->ids_64 ? ((const uint64_t *)r->ids)[route]
				: (uint64_t)(int64_t)((const int32_t *)r->ids)[route];

	return id < r->nr_experts ? (uint32_t)id : UINT32_MAX;
}

/* Nobody else writes this token's line of in_rank. */
static __device__ __forceinline__ void count_token(
	const struct gpu_routes *r, uint32_t token, uint32_t *ranks, uint32_t *experts)
{
	uint8_t *there = r->in_rank + (uint64_t)token * r->nr_ranks;

	for (uint32_t i = 0; i < r->nr_ranks; i++)
		there[i] = 0;
	for (uint32_t k = 0; k < r->topk; k++) {
		uint32_t expert = expert_of(r, (uint64_t)token * r->topk + k),
			 rank = gpu_div(expert, r->by_rank);

		if (expert == UINT32_MAX)
			continue;
		atomicAdd(&experts[expert], 1u);
		if (!there[rank])
			atomicAdd(&ranks[rank], 1u);
		there[rank] = 1;
	}
}

/* By the block whose counts are the last: all counts, to the host. */
static __device__ __forceinline__ void tell_host(const struct gpu_routes *r)
{
	bool last = false;

	__syncthreads(); /* all of this block's have been added */
	if (threadIdx.x == 0) {
		stores_before_here();
		last = atomicAdd(r->finished, 1u) + 1 == gridDim.x;
		stores_before_here();
	}
	if (!__syncthreads_or(last))
		return;
	for (uint32_t i = threadIdx.x; i < r->nr_ranks + r->nr_experts; i += blockDim.x)
		word_store(&r->told[1 + i],
			word_load(i < r->nr_ranks ? &r->rank_tokens[i]
						  : &r->expert_routes[i - r->nr_ranks]));
	stores_before();
	__syncthreads();
	if (threadIdx.x == 0)
		word_release(r->told, r->told_as);
}

namespace tern
{
/* The lists hold zeros, and so does finished. */
static __global__ void __launch_bounds__(ROUTES_THREADS)
	count_routes(const __grid_constant__ struct gpu_routes r)
{
	BLOCK_MEMORY(counts);
	uint32_t nr = r.nr_ranks + r.nr_experts, token = blockIdx.x * blockDim.x + threadIdx.x;

	for (uint32_t i = threadIdx.x; i < nr; i += blockDim.x)
		counts[i] = 0;
	__syncthreads();
	if (token < r.nr_tokens)
		count_token(&r, token, counts, counts + r.nr_ranks);
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < nr; i += blockDim.x) {
		uint32_t *to =
			i < r.nr_ranks ? &r.rank_tokens[i] : &r.expert_routes[i - r.nr_ranks];

		if (counts[i])
			atomicAdd(to, counts[i]);
	}
	if (r.told)
		tell_host(&r);
}
} // namespace tern

cudaError_t count_routes_launch(const struct gpu_routes *routes, cudaStream_t stream)
{
	uint32_t nr_blocks = max((routes->nr_tokens + ROUTES_THREADS - 1) / ROUTES_THREADS, 1u);
	cudaLaunchConfig_t config = launch_config(nr_blocks, ROUTES_THREADS,
		(routes->nr_ranks + routes->nr_experts) * sizeof(uint32_t), stream);

	return cudaLaunchKernelEx(&config, tern::count_routes, *routes);
}

cudaError_t count_routes_prepare(void)
{
	return load_kernel((const void *)tern::count_routes);
}
