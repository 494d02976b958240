/* SPDX-License-Identifier: Apache-2.0 */
/* What a block's first three warps bring to its ring: weights, rows, and weights' scales. */
#ifndef TERN_GPU_CUDA_LAYER_LOAD_CUH
#define TERN_GPU_CUDA_LAYER_LOAD_CUH

#include "gpu/cuda/layer/ring.cuh"

template <class T, int WHICH, bool BESIDE>
static __device__ void load_weights(const struct layer_args *args, struct shared_memory *mine)
{
	const struct expert_tiles *at = mine->list.experts;
	struct place place = {0, 0}, telling = {0, 0};
	struct tile tile;
	uint64_t waited = 0;
	uint32_t next;

	for (uint32_t nr = blockIdx.x; find_tile(args, &at, nr, &tile); nr = next) {
		next = tile_after<BESIDE>(args, (enum layer_which)WHICH, nr);
		for (uint32_t k = 0; k < args->k_blocks; k++, go_on(&place)) {
			uint64_t *full = &mine->full[place.stage];
			uint8_t *to = mine->weights[place.stage];
			int x = k * (128 / sizeof(T));
			uint64_t since = mark_clock();

			barrier_wait(&mine->empty[place.stage], place.parity ^ 1);
			waited += mark_clock() - since;
			barrier_expect(full, WEIGHTS_BYTES);
			for (int half = 0; half < 2; half++)
				if (WHICH == LAYER_GATE_UP)
					copy_tile_4d(to + half * HALF_BYTES, &args->weights, full,
						x, tile.m_tile * 128, half, tile.expert);
				else
					copy_tile_4d(to + half * HALF_BYTES, &args->weights, full,
						x, tile.m_tile * 256 + half * 128, 0, tile.expert);
		}
		if (BESIDE)
			tell_tile(mine, &telling, next);
	}
	mark_leave(args, MARK_ROOM, waited);
}

/* The tile behind this one, for who does not draw. */
template <bool BESIDE>
static __device__ uint32_t next_tile(const struct layer_args *args, struct shared_memory *mine,
	struct place *hearing, uint32_t lanes, uint32_t nr)
{
	return BESIDE ? hear_tile(mine, hearing, lanes) : nr + gridDim.x;
}

/* What does not come in time comes with the end of the dispatch, which waits no longer than it may,
 * and says so. BESIDE: this kernel ends behind it, too: the next one counts on that. */
template <class T, int WHICH, bool BESIDE>
static __device__ void load_rows(const struct layer_args *args, struct shared_memory *mine)
{
	const bool scaled = sizeof(T) == 1;
	const struct expert_tiles *at = mine->list.experts;
	struct place place = {0, 0}, hearing = {0, 0};
	struct tile tile;

	if (BESIDE && WHICH == LAYER_DOWN) {
		wait_for_kernel_before();
		if (blockIdx.x == 0)
			put_back(args, LAYER_GATE_UP);
	}
	for (uint32_t nr = blockIdx.x; find_tile(args, &at, nr, &tile);
		nr = next_tile<BESIDE>(args, mine, &hearing, 1, nr)) {
		const struct layer_map *rows = &args->rows[tile.width_index];
		const struct layer_map *scales = &args->scales[tile.width_index];
		uint32_t bytes = tile.width * (128 + (scaled ? sizeof(mine->scales[0][0]) : 0));

		if (!BESIDE) {
			wait_for_kernel_before();
		} else if (WHICH == LAYER_GATE_UP && mine->beside &&
			   !rows_came(args, mine->round, tile.expert,
				   tile.first_row - at->first_row, tile.rows)) {
			wait_for_kernel_before();
			mine->beside = false;
		}
		for (uint32_t k = 0; k < args->k_blocks; k++, go_on(&place)) {
			uint64_t *full = &mine->full[place.stage];

			barrier_wait(&mine->empty[place.stage], place.parity ^ 1);
			barrier_expect(full, bytes);
			copy_tile_2d(mine->rows[place.stage], rows, full, k * (128 / sizeof(T)),
				tile.first_row);
			if (scaled)
				copy_tile_2d(mine->scales[place.stage], scales, full,
					k / SCALES_AT_ONCE * SCALES_AT_ONCE, tile.first_row);
		}
	}
	if (BESIDE)
		wait_for_kernel_before();
}

/* A tile's two rows of weights' scales. */
template <int WHICH>
static __device__ void scales_of(
	const struct layer_args *args, const struct tile *tile, const float **at)
{
	uint32_t blocks = args->m / 128;
	uint32_t block0 = WHICH == LAYER_GATE_UP ? tile->m_tile : tile->m_tile * 2;
	uint32_t block1 =
		WHICH == LAYER_GATE_UP ? blocks + tile->m_tile : min(block0 + 1, blocks - 1);
	const float *scales =
		args->weights_scales + (uint64_t)tile->expert * args->k_blocks *
					       (WHICH == LAYER_GATE_UP ? 2 * blocks : blocks);

	at[0] = scales + block0 * args->k_blocks;
	at[1] = scales + block1 * args->k_blocks;
}

/* By a warp, a block of k a lane, as far ahead of the consumers as there are chunks: these would
 * wait for what they load themselves. */
template <class T, int WHICH, bool BESIDE>
static __device__ void load_scales(const struct layer_args *args, struct shared_memory *mine)
{
	const struct expert_tiles *at = mine->list.experts;
	struct place place = {0, 0}, hearing = {0, 0};
	uint32_t lane = threadIdx.x % 32;
	struct tile tile;

	for (uint32_t nr = blockIdx.x; find_tile(args, &at, nr, &tile);
		nr = next_tile<BESIDE>(args, mine, &hearing, ~0u, nr)) {
		const float *scales[2];

		scales_of<WHICH>(args, &tile, scales);
		for (uint32_t k = 0; k < args->k_blocks; k += CHUNK_BLOCKS) {
			barrier_wait(&mine->taken[place.stage], place.parity ^ 1);
			if (k + lane < args->k_blocks)
				for (int half = 0; half < 2; half++)
					mine->of_weights[place.stage][half][lane] =
						__ldg(scales[half] + k + lane);
			__syncwarp();
			if (lane == 0)
				barrier_arrive(&mine->scaled[place.stage]);
			go_on<SCALE_CHUNKS>(&place);
		}
	}
}

#endif
