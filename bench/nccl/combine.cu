/* SPDX-License-Identifier: Apache-2.0 */
/* Results: home rows are packed, of a route or of a record's sum; and summed at home. */
#include "bench/nccl/records.cuh"

/* ---- before they leave ----------------------------------------------------------------------- */

static __device__ __forceinline__ const uint8_t *y_at(
	const struct records *r, uint32_t position, uint32_t i)
{
	return r->y + (uint64_t)position * r->y_bytes + (uint64_t)i * 16;
}

/* A block a record. */
static __global__ void __launch_bounds__(THREADS)
	copy_results(const __grid_constant__ struct records r)
{
	for (uint32_t j = 0; j < r.most_routes; j++) {
		struct record_place p = r.places[blockIdx.x * r.most_routes + j];

		for (uint32_t i = threadIdx.x; i < r.y_bytes / 16 && p.position != UINT32_MAX;
			i += THREADS)
			row_store(r.send + (uint64_t)p.home * r.y_bytes + (uint64_t)i * 16,
				row_load(y_at(&r, p.position, i)));
	}
}

template <int Y>
static __global__ void __launch_bounds__(THREADS)
	sum_records(const __grid_constant__ struct records r)
{
	const struct record_place *places = r.places + blockIdx.x * r.most_routes;

	for (uint32_t i = threadIdx.x; i < r.y_bytes / 16; i += THREADS) {
		float sum[y_kind<Y>::PER_VECTOR] = {};

		for (uint32_t j = 0; j < r.most_routes && places[j].position != UINT32_MAX; j++)
			add_vector<Y>(sum, row_load(y_at(&r, places[j].position, i)),
				r.weighted ? places[j].weight : 1);
		row_store(r.send + (uint64_t)blockIdx.x * r.y_bytes + (uint64_t)i * 16,
			round_vector<Y>(sum));
	}
}

cudaError_t records_results_launch(
	const struct records *r, uint32_t nr_records, cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(nr_records, THREADS, 0, stream);

	if (r->at_home)
		return cudaLaunchKernelEx(&config, copy_results, *r);
	return r->y_kind == GPU_Y_BF16   ? cudaLaunchKernelEx(&config, sum_records<GPU_Y_BF16>, *r)
	       : r->y_kind == GPU_Y_FP16 ? cudaLaunchKernelEx(&config, sum_records<GPU_Y_FP16>, *r)
					 : cudaLaunchKernelEx(&config, sum_records<GPU_Y_FP32>, *r);
}

/* ---- at home --------------------------------------------------------------------------------- */

/* Home rows of a token and their weights, in the order of their sum: by k, or by rank. Returns how
 * many. */
static __device__ __forceinline__ uint32_t find_results(
	const struct records *r, uint32_t token, uint32_t *rows, uint32_t *weights)
{
	struct record_expert expert = expert_of(r, token, lane());
	bool there = expert.rank != UINT32_MAX;
	uint32_t same = __match_any_sync(
		ALL_LANES, there && !r->at_home ? expert.rank : UINT32_MAX - lane());
	bool mine = there && is_lowest_of(same);
	uint32_t all = __ballot_sync(ALL_LANES, mine), order = __popc(all & lanes_below()),
		 at = token * r->topk + lane();

	if (!r->at_home) {
		order = 0;
		for (uint32_t left = all; left; left &= left - 1)
			order += __shfl_sync(ALL_LANES, expert.rank, __ffs(left) - 1) < expert.rank;
	}
	if (mine) {
		rows[order] =
			start_of(r->sent, expert.rank).nr_home + home_number(r, expert.rank, at);
		weights[order] = __float_as_uint(r->weights ? r->weights[at] : 1.0f);
	}
	return __popc(all);
}

/* A block a token. */
template <int Y>
static __global__ void __launch_bounds__(THREADS)
	sum_results(const __grid_constant__ struct records r)
{
	BLOCK_MEMORY(rows);
	uint32_t *weights = rows + LANES, *nr = rows + 2 * LANES;
	bool weighted = r.weighted && r.at_home;

	if (threadIdx.x < LANES) {
		uint32_t all = find_results(&r, blockIdx.x, rows, weights);

		if (lane() == 0)
			*nr = all;
	}
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < r.y_bytes / 16; i += THREADS) {
		float sum[y_kind<Y>::PER_VECTOR] = {};

		for (uint32_t j = 0; j < *nr; j++)
			add_vector<Y>(sum,
				row_load(r.recv + (uint64_t)rows[j] * r.y_bytes + (uint64_t)i * 16),
				weighted ? __uint_as_float(weights[j]) : 1);
		row_store(r.out + (uint64_t)blockIdx.x * r.y_bytes + (uint64_t)i * 16,
			round_vector<Y>(sum));
	}
}

cudaError_t records_sum_launch(const struct records *r, cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(r->nr_tokens, THREADS, SHARED_BYTES, stream);

	return r->y_kind == GPU_Y_BF16   ? cudaLaunchKernelEx(&config, sum_results<GPU_Y_BF16>, *r)
	       : r->y_kind == GPU_Y_FP16 ? cudaLaunchKernelEx(&config, sum_results<GPU_Y_FP16>, *r)
					 : cudaLaunchKernelEx(&config, sum_results<GPU_Y_FP32>, *r);
}
