/* SPDX-License-Identifier: Apache-2.0 */
/* Between the kernels of --against nccl. */
#ifndef TERN_BENCH_NCCL_RECORDS_CUH
#define TERN_BENCH_NCCL_RECORDS_CUH

#include "bench/nccl/launches.h"
#include "gpu/cuda/common/launch.cuh"
#include "gpu/cuda/common/numbers.cuh"

#define THREADS RECORDS_TILE
#define WARPS (THREADS / LANES)
#define SHARED_BYTES (3 * LANES * 4)

static __device__ __forceinline__ uint32_t lane()
{
	return threadIdx.x % LANES;
}

/* UINT32_MAX: of no expert. */
static __device__ __forceinline__ struct record_expert expert_of(
	const struct records *r, uint32_t token, uint32_t k)
{
	struct record_expert none = {UINT32_MAX, 0};
	int32_t id = k < r->topk ? r->ids[token * r->topk + k] : -1;

	return id < 0 ? none : r->experts[id];
}

/* Where those of a rank begin. */
static __device__ __forceinline__ struct record_counts start_of(
	const struct record_counts *counts, uint32_t rank)
{
	struct record_counts before = {0, 0};

	for (uint32_t i = 0; i < rank; i++) {
		before.nr_records += counts[i].nr_records;
		before.nr_home += counts[i].nr_home;
	}
	return before;
}

/* Of this lane and those below. */
static __device__ __forceinline__ uint32_t sum_to_lane(uint32_t value)
{
	for (uint32_t by = 1; by < LANES; by *= 2) {
		uint32_t before = __shfl_up_sync(ALL_LANES, value, by);

		value += lane() < by ? 0 : before;
	}
	return value;
}

static __device__ __forceinline__ uint32_t nr_tiles_of(uint32_t nr)
{
	return (nr + THREADS - 1) / THREADS;
}

/* Items of a key that come before item i, which has it. */
static __device__ __forceinline__ uint32_t number_of(
	const uint32_t *index, const uint32_t *tiles, uint32_t nr_tiles, uint32_t key, uint32_t i)
{
	return tiles[key * nr_tiles + i / THREADS] + index[i];
}

static __device__ __forceinline__ uint32_t record_number(
	const struct records *r, uint32_t rank, uint32_t i)
{
	return number_of(
		r->record_index, r->record_tiles, nr_tiles_of(r->nr_tokens * r->topk), rank, i);
}

static __device__ __forceinline__ uint32_t home_number(
	const struct records *r, uint32_t rank, uint32_t i)
{
	return number_of(
		r->home_index, r->home_tiles, nr_tiles_of(r->nr_tokens * r->topk), rank, i);
}

/* ---- counting by keys, in order -------------------------------------------------------------- */

/* A block a tile of THREADS items: each item's number among those of its key in the tile, and how
 * many of each key the tile has. A key of UINT32_MAX: none. */
static __device__ __forceinline__ void count_tile(uint32_t key, uint32_t i, uint32_t *index,
	uint32_t *of_tile, uint32_t nr_keys, uint32_t nr_tiles)
{
	BLOCK_MEMORY(of_warp); /* [warps][keys] */
	uint32_t warp = threadIdx.x / LANES, same, before = 0;

	for (uint32_t k = threadIdx.x; k < nr_keys * WARPS; k += THREADS)
		of_warp[k] = 0;
	__syncthreads();
	same = __match_any_sync(ALL_LANES, key);
	if (key != UINT32_MAX && is_lowest_of(same))
		of_warp[warp * nr_keys + key] = __popc(same);
	__syncthreads();
	if (key != UINT32_MAX) {
		for (uint32_t w = 0; w < warp; w++)
			before += of_warp[w * nr_keys + key];
		index[i] = before + __popc(same & lanes_below());
	}
	for (uint32_t k = threadIdx.x; k < nr_keys; k += THREADS) {
		uint32_t all = 0;

		for (uint32_t w = 0; w < WARPS; w++)
			all += of_warp[w * nr_keys + k];
		of_tile[k * nr_tiles] = all;
	}
}

/* A block a key: counts of tiles become what comes before each. Returns the sum. */
static __device__ __forceinline__ uint32_t sum_tiles(uint32_t *tiles, uint32_t nr_tiles)
{
	BLOCK_MEMORY(of_warp);
	uint32_t warp = threadIdx.x / LANES, base = 0;

	for (uint32_t first = 0; first < nr_tiles; first += THREADS) {
		uint32_t i = first + threadIdx.x, mine = i < nr_tiles ? tiles[i] : 0,
			 sum = sum_to_lane(mine), before = 0, all = 0;

		if (lane() == LANES - 1)
			of_warp[warp] = sum;
		__syncthreads();
		for (uint32_t w = 0; w < WARPS; w++) {
			before += w < warp ? of_warp[w] : 0;
			all += of_warp[w];
		}
		__syncthreads(); /* before they are written again */
		if (i < nr_tiles)
			tiles[i] = base + before + sum - mine;
		base += all;
	}
	return base;
}

#endif
