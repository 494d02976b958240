/* SPDX-License-Identifier: Apache-2.0 */
/* Between the kernels of --against nccl. */
#ifndef TERN_BENCH_NCCL_RECORDS_CUH
#define TERN_BENCH_NCCL_RECORDS_CUH

#include "bench/nccl/launches.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"

#define THREADS 256
#define SHARED_BYTES (3 * LANES * 4)

static __device__ __forceinline__ uint32_t lane()
{
	return threadIdx.x % LANES;
}

static __device__ __forceinline__ uint32_t lanes_below()
{
	return (1u << lane()) - 1;
}

/* UINT32_MAX: of no expert. */
static __device__ __forceinline__ struct record_expert expert_of(const struct records *r, uint32_t token, uint32_t k)
{
	struct record_expert none = {UINT32_MAX, 0};
	int32_t id = k < r->topk ? r->ids[token * r->topk + k] : -1;

	return id < 0 ? none : r->experts[id];
}

/* Where those of a rank begin. */
static __device__ __forceinline__ struct record_counts start_of(const struct record_counts *counts, uint32_t rank)
{
	struct record_counts before = {0, 0};

	for (uint32_t i = 0; i < rank; i++) {
		before.nr_records += counts[i].nr_records;
		before.nr_home += counts[i].nr_home;
	}
	return before;
}

/* The whole block: which of `is` comes how many-th, in order; returns how many there are. */
template <class Is> static __device__ __forceinline__ uint32_t count_in_order(uint32_t nr, uint32_t *index, Is is)
{
	BLOCK_MEMORY(of_warp);
	uint32_t warp = threadIdx.x / LANES, base = 0;

	for (uint32_t first = 0; first < nr; first += THREADS) {
		uint32_t i = first + threadIdx.x, before = 0, all = 0;
		bool mine = i < nr && is(i);
		uint32_t bits = __ballot_sync(ALL_LANES, mine);

		if (lane() == 0)
			of_warp[warp] = __popc(bits);
		__syncthreads();
		for (uint32_t w = 0; w < THREADS / LANES; w++) {
			before += w < warp ? of_warp[w] : 0;
			all += of_warp[w];
		}
		__syncthreads(); /* before they are written again */
		if (mine)
			index[i] = base + before + __popc(bits & lanes_below());
		base += all;
	}
	return base;
}

#endif
