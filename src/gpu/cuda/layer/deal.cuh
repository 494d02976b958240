/* SPDX-License-Identifier: Apache-2.0 */
/* Who takes which tile, and which rows are waited for.
 *
 * With tiles dealt by number a block that comes late, as it found no SM, keeps its share until
 * then. So tiles can be drawn: a block takes the one of its own number and then whichever is next.
 *
 * Down's blocks come when those of gate and up leave their SMs, and wait for the rows of h of one
 * expert after the other, not for the end of gate and up:
 *
 *   gate and up, a block   stores a tile of h; its warps meet at `h_full`
 *                          h_rows[expert] += the tile's rows        count_rows_of_h, a release
 *   down, a block          h_rows[expert] == its rows x tiles       rows_of_h_came, an acquire
 *                          reads them by tensor maps, behind the proxy's fence
 *
 * Where no block of gate and up has more than a tile all end at once, and down waits for that.
 *
 * Who is the last of down's blocks to end puts all words back (put_words_back): all have then drawn
 * and looked for the last time, gate and up has ended, and the next one begins behind down's end.
 */
#ifndef TERN_GPU_CUDA_LAYER_DEAL_CUH
#define TERN_GPU_CUDA_LAYER_DEAL_CUH

#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/layer/gemm.h"
#include "tern_device.cuh"

template <bool DRAWN>
static __device__ __forceinline__ uint32_t tile_after(
	const struct layer_args *args, enum layer_which which, uint32_t nr)
{
	return DRAWN ? gridDim.x + atomicAdd(&args->words->drawn[which], 1u) : nr + gridDim.x;
}

/* By one thread, behind a tile's stores by all. */
static __device__ __forceinline__ void count_rows_of_h(
	const struct layer_args *args, uint32_t expert, uint32_t rows)
{
	tern_word_add(&args->words->h_rows[expert], rows);
}

/* Side by side, each 128 elements of its rows. */
static __device__ __forceinline__ uint32_t tiles_of_h(uint32_t inner)
{
	return (inner + 127) / 128;
}

#define MOST_LOOKS (1u << 20) /* at words that gate and up leaves as it goes on */

/* All `rows` of an expert, for copies that begin behind a barrier which this thread opens. False:
 * they are not told of in time, and come with the end of gate and up. */
static __device__ __forceinline__ bool rows_of_h_came(
	const struct layer_args *args, uint32_t expert, uint32_t rows)
{
	uint32_t wanted = rows * tiles_of_h(args->k);

#pragma unroll 1
	for (uint32_t looks = 0; tern_word_acquire(&args->words->h_rows[expert]) != wanted;)
		if (++looks == MOST_LOOKS)
			return false;
	tern_rows_for_copies();
	return true;
}

/* By a warp of each of down's blocks, when the block has drawn its last tile and seen all its rows
 * there, and gate and up has ended. */
static __device__ __forceinline__ void put_words_back(const struct layer_args *args)
{
	const uint32_t nr = sizeof(struct layer_words) / sizeof(uint32_t);
	uint32_t lane = threadIdx.x % 32, *words = (uint32_t *)args->words, before = 0;

	if (lane == 0) {
		stores_before_here();
		before = atomicAdd(&args->words->ended, 1u);
		stores_before_here();
	}
	if (__shfl_sync(~0u, before, 0) + 1 != gridDim.x)
		return;
	__syncwarp();
#pragma unroll 1
	for (uint32_t i = lane; i < nr; i += 32)
		words[i] = 0;
}

/* Do this kernel's rows come while it runs? */
static __device__ __forceinline__ bool is_beside(const struct layer_args *args)
{
	return args->gate.words != NULL;
}

/* Of rows that come, by one thread: whether the counts of this round are there. */
static __device__ __forceinline__ bool counts_came(const struct layer_args *args, uint32_t round)
{
	uint64_t first;
	uint32_t rows;

	return tern_counts(&args->gate, round, 0, &first, &rows);
}

/* Likewise, rows `begin` to `begin + nr - 1` of an expert's. */
static __device__ __forceinline__ bool rows_came(
	const struct layer_args *args, uint32_t round, uint32_t expert, uint32_t begin, uint32_t nr)
{
	uint32_t bits = __ffs(args->gate.tile_rows) - 1; /* of 64 or 128 */

	for (uint32_t tile = begin >> bits; tile <= (begin + nr - 1) >> bits; tile++)
		if (!tern_wait_rows(&args->gate, round, expert, tile))
			return false;
	return true;
}

#endif
