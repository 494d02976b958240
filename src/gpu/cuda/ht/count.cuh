/* SPDX-License-Identifier: Apache-2.0 */
/* High throughput: how many rows each chunk of tokens has for each expert and rank, and each
 * route's number among those of its chunk. */
#ifndef TERN_GPU_CUDA_HT_COUNT_CUH
#define TERN_GPU_CUDA_HT_COUNT_CUH

#include "gpu/cuda/ht/ht.cuh"
#include "gpu/cuda/common/rows.cuh"

#define COUNT_THREADS 1024
#define CHUNK_WORDS (HT_CHUNK / 32)                    /* a bit for each token */
#define COUNT_STEPS (HT_CHUNK * LANES / COUNT_THREADS) /* routes that a thread may have */

/* One route: what the combine has to know at home, and its token's bit with its expert and its
 * rank. bad: the first token of whose ids one is wrong. */
static __device__ __forceinline__ uint32_t note_id(const struct gpu_dispatch *d,
	const struct ht_exchange *h, uint32_t index, int32_t id, float weight, uint32_t *bits,
	uint32_t *bad)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t token = gpu_div(index, e->by_topk), bit = 1u << token % 32,
		 word = token / 32 % CHUNK_WORDS, rank = UINT32_MAX;
	uint32_t physical = physical_expert(e, id, index);
	bool wrong = physical == GPU_NO_EXPERT && id != -1;

	if (physical != GPU_NO_EXPERT) {
		rank = expert_rank(&e->placement, physical);
		wrong = atomicOr(&bits[physical * CHUNK_WORDS + word], bit) & bit; /* an expert
										      named twice */
		atomicOr(&bits[(h->nr_physical + rank) * CHUNK_WORDS + word], bit);
	}
	e->home_routes[index] = make_uint2(rank, __float_as_uint(weight));
	if (wrong)
		atomicMin(bad, token);
	return physical;
}

/* Takes out those of tokens that this rank does not send, of all columns; then all of the block may
 * read them. */
static __device__ __forceinline__ void keep_own(
	const struct gpu_exchange *e, uint32_t *bits, uint32_t nr_columns)
{
	__syncthreads();
	if (e->by_replicas.d == 1)
		return;
	for (uint32_t i = threadIdx.x; i < nr_columns * CHUNK_WORDS; i += COUNT_THREADS) {
		uint32_t first = blockIdx.x * HT_CHUNK + i % CHUNK_WORDS * 32;

		for (uint32_t left = bits[i]; left; left &= left - 1)
			if (!is_mine(e, first + __ffs(left) - 1))
				bits[i] &= ~(left & -left);
	}
	__syncthreads();
}

/* Of a column, tokens below this one. */
static __device__ __forceinline__ uint32_t count_below(const uint32_t *column, uint32_t token)
{
	uint32_t nr = 0;

#pragma unroll
	for (uint32_t w = 0; w < CHUNK_WORDS; w++)
		nr += __popc(column[w] & (token >= (w + 1) * 32   ? UINT32_MAX
						 : token < w * 32 ? 0
								  : (1u << token % 32) - 1));
	return nr;
}

/* By one warp. */
static __device__ __forceinline__ void count_away(
	const struct gpu_exchange *e, const uint32_t *ranks)
{
	uint32_t nr = 0;

	for (uint32_t w = 0; w < CHUNK_WORDS; w++) {
		uint32_t away = 0;

		for (uint32_t r = lane_id(); r < e->nr_ranks; r += LANES)
			away |= r == e->rank ? 0 : ranks[r * CHUNK_WORDS + w];
		nr += __popc(__reduce_or_sync(ALL_LANES, away));
	}
	if (lane_id() == 0 && nr)
		atomicAdd(&e->state->nr_away, nr);
}

namespace tern
{
/* A thread has a route, or several with more than 8 of a token. */
static __global__ void __launch_bounds__(COUNT_THREADS) dispatch_count_ht(
	const __grid_constant__ struct gpu_dispatch d, const __grid_constant__ struct ht_exchange h)
{
	BLOCK_MEMORY(bits); /* [P + R][CHUNK_WORDS] tokens of the chunk; behind them the first with
			       a wrong id */
	const struct gpu_exchange *e = &d.exchange;
	uint32_t first = blockIdx.x * HT_CHUNK * e->topk + threadIdx.x,
		 *bad = bits + h.nr_columns * CHUNK_WORDS, end, physical[COUNT_STEPS];
	float weight[COUNT_STEPS];
	int32_t id[COUNT_STEPS];

	for (uint32_t i = threadIdx.x; i < h.nr_columns * CHUNK_WORDS; i += COUNT_THREADS)
		bits[i] = 0;
	if (threadIdx.x == 0)
		*bad = UINT32_MAX;
	wait_for_previous();
	let_next_start();
	uint32_t nr_tokens = e->state->failed ? 0 : this_rounds_tokens(&d),
		 epoch = e->state->epoch_dispatch;

	end = min(nr_tokens, (blockIdx.x + 1) * HT_CHUNK) * e->topk;
#pragma unroll
	for (uint32_t i = 0; i < COUNT_STEPS; i++) {
		uint32_t index = first + i * COUNT_THREADS;

		id[i] = index < end ? expert_id(&d, index) : -1;
		weight[i] = index < end && d.topk_weights ? d.topk_weights[index] : 1.0f;
	}
	if (blockIdx.x == 0 && threadIdx.x == COUNT_THREADS - 1)
		word_release(&e->state->begun, epoch); /* for early rows: ht/dispatch_send.cuh */
	__syncthreads();
#pragma unroll
	for (uint32_t i = 0; i < COUNT_STEPS; i++)
		if (first + i * COUNT_THREADS < end)
			physical[i] = note_id(
				&d, &h, first + i * COUNT_THREADS, id[i], weight[i], bits, bad);
	keep_own(e, bits, h.nr_columns);
#pragma unroll
	for (uint32_t i = 0; i < COUNT_STEPS; i++) {
		uint32_t index = first + i * COUNT_THREADS, token = gpu_div(index, e->by_topk),
			 column;

		if (index >= end)
			continue;
		column = d.by_source && physical[i] != GPU_NO_EXPERT
				 ? h.nr_physical + expert_rank(&e->placement, physical[i])
				 : physical[i];
		if (physical[i] == GPU_NO_EXPERT || !is_mine(e, token))
			h.routes[index] = make_uint2(UINT32_MAX, 0);
		else
			h.routes[index] = make_uint2(physical[i],
				count_below(bits + column * CHUNK_WORDS, token % HT_CHUNK));
	}
	for (uint32_t i = threadIdx.x; i < h.nr_columns; i += COUNT_THREADS)
		h.chunks[blockIdx.x * h.nr_columns + i] =
			count_below(bits + i * CHUNK_WORDS, HT_CHUNK);
	if (threadIdx.x < LANES && *bad != UINT32_MAX)
		check_ids(&d, epoch, *bad,
			lane_id() < e->topk ? expert_id(&d, *bad * e->topk + lane_id()) : -1);
	if (threadIdx.x < LANES)
		count_away(e, bits + h.nr_physical * CHUNK_WORDS);
}
} // namespace tern

#endif
