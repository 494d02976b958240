/* SPDX-License-Identifier: Apache-2.0 */
/* Which tiles there are, made of counts that stand on the device. */
#ifndef TERN_GPU_CUDA_LAYER_TILES_CUH
#define TERN_GPU_CUDA_LAYER_TILES_CUH

#include "gpu/cuda/layer/gemm.h"
#include "gpu/cuda/layer/wgmma.cuh"

#define WIDTH_MAX 128u
#define LIST_WARPS (LAYER_EXPERTS_MAX / 32)

/* An expert's rows in parts of `step` rows, of which the last has `last`: 1 to 128 each. */
struct expert_tiles {
	uint8_t expert, step, last;
	uint32_t parts, first_tile, first_row;
};

/* Experts with rows, in order; then one without parts, where the tiles end. */
struct tile_list {
	struct expert_tiles experts[LAYER_EXPERTS_MAX + 1];
	uint32_t tiles[LIST_WARPS], listed[LIST_WARPS]; /* of 32 experts each */
	/* Likewise, were they of few rows, and of at most 64 << 16; and as few as may be. */
	uint32_t parts[LIST_WARPS], least[LIST_WARPS];
};

struct tile {
	uint32_t expert, m_tile, first_row, rows;
	int width_index, width; /* as computed: at least `rows` */
};

static __device__ uint32_t parts_of(uint32_t rows, uint32_t most)
{
	return (rows + most - 1) / most;
}

/* At least so many, of at most 128 rows. In fp8 three of up to 64 take less than two of more. */
static __device__ uint32_t least_parts(const struct layer_args *args, uint32_t rows)
{
	return args->weights_scales && rows > 128 && rows <= 192 ? 3 : parts_of(rows, WIDTH_MAX);
}

struct parts {
	uint32_t nr, step;
};

static __device__ struct parts equal_parts(uint32_t rows, uint32_t nr)
{
	return {nr, rows ? parts_of(rows, nr) : 0};
}

/* So many tiles of at most 64 rows may there be in place of `least` of up to 128: as many as leave
 * each block with no more tiles than before, in fp8 three for two where few blocks had two. */
static __device__ uint32_t most_of_64(const struct layer_args *args, uint32_t least)
{
	uint32_t blocks = gridDim.x;

	if (args->weights_scales && least > blocks && least <= blocks * 3 / 2)
		return blocks * 5 / 2;
	for (uint32_t waves = 2; waves <= 3; waves++)
		if (least > blocks * (waves - 1) && least <= blocks * waves)
			return blocks * waves;
	return blocks;
}

/* Of an expert's rows: tiles that share weights find them in L2 as long as they run in step
 * (docs/notebook/gpu-layer-time.md). So they are equal ones; drawn tiles begin together, and in fp8
 * may be whole ones and a rest that takes half as long, if blocks have several. They have at most
 * 32 rows, in fp8 16, if all have a block each even so, since blocks without one do nothing, or 64
 * where most_of_64 allows it; else more, since each reads its weights. By all threads of a block.
 */
static __device__ struct parts parts_of_rows(
	const struct layer_args *args, struct tile_list *list, uint32_t rows, bool drawn)
{
	const uint32_t few = args->weights_scales ? 16 : 32;
	/* Both sums in one; of more than 255 parts no block is left for each. */
	uint32_t parts = min(parts_of(rows, few), 255u) | min(parts_of(rows, 64), 255u) << 16;
	uint32_t warp = threadIdx.x / 32, sum = __reduce_add_sync(~0u, parts);
	uint32_t least = __reduce_add_sync(~0u, min(least_parts(args, rows), 255u));

	if (warp < LIST_WARPS && threadIdx.x % 32 == 0) {
		list->parts[warp] = sum;
		list->least[warp] = least;
	}
	__syncthreads();
	sum = least = 0;
	for (uint32_t w = 0; w < LIST_WARPS; w++) {
		sum += list->parts[w];
		least += list->least[w];
	}
	least *= args->m_tiles;
	if ((sum & 0xffff) * args->m_tiles <= gridDim.x)
		return equal_parts(rows, parts_of(rows, few));
	if ((sum >> 16) * args->m_tiles <= most_of_64(args, least))
		return equal_parts(rows, parts_of(rows, 64));
	if (drawn && args->weights_scales && least > gridDim.x * 2 && rows > WIDTH_MAX &&
		(rows - 1) % WIDTH_MAX < 64)
		return {parts_of(rows, WIDTH_MAX), WIDTH_MAX};
	return equal_parts(rows, least_parts(args, rows));
}

/* By whole blocks of at least LIST_WARPS warps, each of which has an expert a lane: all counts are
 * read at once, as they are what everything waits for. */
static __device__ void list_experts(
	const struct layer_args *args, struct tile_list *list, bool drawn)
{
	uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, e = threadIdx.x;
	uint64_t first_row = args->rows_max;
	uint32_t rows = 0;

	/* Both at once: trips to L2 are what everything waits for. */
	if (e < args->experts) {
		first_row = args->by_expert.offsets[e];
		rows = args->by_expert.counts[e];
	}
	/* Of an exchange that has failed they may be anything. */
	rows = first_row < args->rows_max ? min((uint64_t)rows, args->rows_max - first_row) : 0;

	struct parts parts = parts_of_rows(args, list, rows, drawn);
	uint32_t here = parts.nr * args->m_tiles, sum = here;
	uint32_t with_rows = __ballot_sync(~0u, rows),
		 place = __popc(with_rows & ((1u << lane) - 1));

	for (int d = 1; d < 32; d *= 2) {
		uint32_t v = __shfl_up_sync(~0u, sum, d);

		sum += lane >= d ? v : 0;
	}
	if (warp < LIST_WARPS && lane == 31) {
		list->tiles[warp] = sum;
		list->listed[warp] = __popc(with_rows);
	}
	__syncthreads();
	sum -= here;
	for (uint32_t w = 0; w < min(warp, LIST_WARPS); w++) {
		sum += list->tiles[w];
		place += list->listed[w];
	}
	if (rows)
		list->experts[place] = {(uint8_t)e, (uint8_t)parts.step,
			(uint8_t)(rows - (parts.nr - 1) * parts.step), parts.nr, sum,
			(uint32_t)first_row};
	else if (threadIdx.x == LAYER_EXPERTS_MAX)
		list->experts[place] = {0, 0, 0, 0, sum, 0};
}

static __device__ uint32_t rows_of(const struct expert_tiles *e)
{
	return (e->parts - 1) * e->step + e->last;
}

/* Has each block a tile of h, of as many rows as may be? Gate and up and down agree on it, and then
 * down waits for the end of gate and up, which says sooner than counts that all tiles are there. */
static __device__ bool is_one_wave(const struct tile_list *list, uint32_t tiles_of_h)
{
	uint32_t sum = 0;

	for (uint32_t w = 0; w < LIST_WARPS; w++)
		sum += list->least[w];
	return sum * tiles_of_h <= gridDim.x;
}

/* The narrowest width that is computed and has room for so many rows. */
static __device__ int width_index_of(uint32_t rows)
{
	return rows <= 8    ? 0
	       : rows <= 16 ? 1
	       : rows <= 32 ? 2
	       : rows <= 64 ? 3
	       : rows <= 96 ? 4
			    : 5;
}

static __device__ int width_of(int index)
{
	return index < 4 ? 8 << index : index == 4 ? 96 : 128;
}

/* *at moves on: tiles are asked for in ascending order. False after the last one. */
static __device__ bool find_tile(const struct layer_args *args, const struct expert_tiles **at,
	uint32_t nr, struct tile *tile)
{
	const struct expert_tiles *e = *at;

	while (e->parts && nr >= e[1].first_tile)
		e++;
	*at = e;
	if (!e->parts)
		return false;

	uint32_t within = nr - e->first_tile, part = within % e->parts;

	tile->expert = e->expert;
	tile->m_tile = within / e->parts;
	tile->first_row = e->first_row + part * e->step;
	tile->rows = part + 1 < e->parts ? e->step : e->last;
	tile->width_index = width_index_of(tile->rows);
	tile->width = width_of(tile->width_index);
	return true;
}

#endif
