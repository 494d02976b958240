/* SPDX-License-Identifier: Apache-2.0 */
/* Which tiles there are, made of counts that stand on the device. */
#ifndef TERN_GPU_CUDA_LAYER_TILES_CUH
#define TERN_GPU_CUDA_LAYER_TILES_CUH

#include "gpu/cuda/layer/gemm.h"
#include "gpu/cuda/layer/split.h"
#include "gpu/cuda/layer/wgmma.cuh"

#define WIDTH_MAX 128u
#define LIST_WARPS (LAYER_EXPERTS_MAX / 32)
#define SPLIT_WIDTH_MAX 32u /* of tiles that are split */
#define TILE_WEIGHTS 256u   /* rows of them */

struct expert_tiles {
	uint32_t expert, rows, first_tile, first_row;
};

/* Experts with rows, in order; then one without rows, where the tiles end. */
struct tile_list {
	struct expert_tiles experts[LAYER_EXPERTS_MAX + 1];
	uint32_t tiles[LIST_WARPS], listed[LIST_WARPS]; /* of 32 experts each */
	uint32_t most_rows[LIST_WARPS];                 /* of one of these */
	struct layer_split split;
	uint32_t split_floats; /* room for the sums of one */
};

struct tile {
	uint32_t expert, m_tile, first_row, rows;
	int width_index, width; /* as computed: at least `rows` */
	uint32_t k_begin, k_end;
	uint32_t splits, split, nr_split; /* the nr_split-th tile that is split */
};

/* Equal parts of at most WIDTH_MAX rows: with whole ones and a rest SMs get unequal work, and take
 * a quarter longer for experts of some 250 rows (docs/notebook/gpu-layer.md). */
static __device__ uint32_t row_tiles_of(uint32_t rows)
{
	return (rows + WIDTH_MAX - 1) / WIDTH_MAX;
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

/* By a warp, of which lane i finds what i + 1 splits would cost. */
static __device__ void split_rest(const struct layer_args *args, struct tile_list *list)
{
	uint32_t tiles = 0, most_rows = 0, lane = threadIdx.x % 32;

	for (uint32_t w = 0; w < LIST_WARPS; w++) {
		tiles += list->tiles[w];
		most_rows = max(most_rows, list->most_rows[w]);
	}

	uint32_t rest = tiles % gridDim.x;
	uint32_t floats = TILE_WEIGHTS * (most_rows <= 16 ? 16 : SPLIT_WIDTH_MAX);
	uint32_t room = args->split.sums && most_rows <= SPLIT_WIDTH_MAX
				? args->split.bytes / sizeof(float) / floats
				: 0;
	uint32_t cost = layer_split_cost(rest, gridDim.x, args->k_blocks, lane + 1, room);
	uint32_t least = __reduce_min_sync(~0u, cost << 5 | lane);

	if (lane == 0) {
		list->split = {tiles - rest, (least & 31) + 1};
		list->split_floats = floats;
	}
}

/* By whole blocks of at least LIST_WARPS warps, each of which has an expert a lane: all counts are
 * read at once, as they are what everything waits for. */
template <bool SPLIT>
static __device__ void list_experts(const struct layer_args *args, struct tile_list *list)
{
	uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, e = threadIdx.x;
	uint64_t first_row = e < args->experts ? args->by_expert.offsets[e] : args->rows_max;
	/* Of an exchange that has failed they may be anything. */
	uint32_t rows = first_row < args->rows_max ? min((uint64_t)args->by_expert.counts[e],
							     args->rows_max - first_row)
						   : 0;
	uint32_t here = row_tiles_of(rows) * args->m_tiles, sum = here;
	uint32_t with_rows = __ballot_sync(~0u, rows),
		 place = __popc(with_rows & ((1u << lane) - 1));

	for (int d = 1; d < 32; d *= 2) {
		uint32_t v = __shfl_up_sync(~0u, sum, d);

		sum += lane >= d ? v : 0;
	}
	uint32_t most_rows = SPLIT ? __reduce_max_sync(~0u, rows) : 0;

	if (warp < LIST_WARPS && lane == 31) {
		list->tiles[warp] = sum;
		list->listed[warp] = __popc(with_rows);
		list->most_rows[warp] = most_rows;
	}
	__syncthreads();
	if (SPLIT && warp == LIST_WARPS)
		split_rest(args, list);
	sum -= here;
	for (uint32_t w = 0; w < min(warp, LIST_WARPS); w++) {
		sum += list->tiles[w];
		place += list->listed[w];
	}
	if (rows)
		list->experts[place] = {e, rows, sum, (uint32_t)first_row};
	else if (threadIdx.x == LAYER_EXPERTS_MAX)
		list->experts[place] = {0, 0, sum, 0};
}

/* *at moves on: tiles are asked for in ascending order. False after the last one. */
template <bool SPLIT>
static __device__ bool find_tile(const struct layer_args *args, const struct tile_list *list,
	const struct expert_tiles **at, uint32_t nr, struct tile *tile)
{
	const struct expert_tiles *e = *at;

	tile->splits = 1;
	tile->k_begin = 0;
	tile->k_end = args->k_blocks;
	if (SPLIT && nr >= list->split.whole && list->split.splits > 1) {
		uint32_t splits = list->split.splits, behind = nr - list->split.whole;

		tile->splits = splits;
		tile->split = behind % splits;
		tile->nr_split = behind / splits;
		tile->k_begin = layer_split_begin(args->k_blocks, splits, tile->split);
		tile->k_end = layer_split_begin(args->k_blocks, splits, tile->split + 1);
		nr = list->split.whole + tile->nr_split;
	}
	while (e->rows && nr >= e[1].first_tile)
		e++;
	*at = e;
	if (!e->rows)
		return false;

	uint32_t within = nr - e->first_tile, row_tiles = row_tiles_of(e->rows);
	uint32_t step = ((e->rows + row_tiles - 1) / row_tiles + 7) / 8 * 8;
	uint32_t begin = within % row_tiles * step;

	tile->expert = e->expert;
	tile->m_tile = within / row_tiles;
	tile->first_row = e->first_row + begin;
	/* Not 0: a step has at most 128 rows, and all tiles but the last one together fewer than
	 * all. */
	tile->rows = min(step, e->rows - begin);
	tile->width_index = width_index_of(tile->rows);
	tile->width = width_of(tile->width_index);
	return true;
}

#endif
