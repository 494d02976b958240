/* SPDX-License-Identifier: Apache-2.0 */
/* What a block's first warps bring to its ring: weights, rows, and weights' scales; and what they
 * tell, or learn, of rows of h. */
#ifndef TERN_GPU_CUDA_LAYER_LOAD_CUH
#define TERN_GPU_CUDA_LAYER_LOAD_CUH

#include "gpu/cuda/layer/ring.cuh"

template <class T, int WHICH, bool DRAWN>
static __device__ void load_weights(const struct layer_args *args, struct shared_memory *mine)
{
	const struct expert_tiles *at = mine->list.experts;
	struct place place = {0, 0}, telling = {0, 0};
	struct tile tile;
	uint64_t waited = 0;
	uint32_t next, tell_behind = min(STAGES - 2u, args->k_blocks - 1);

	for (uint32_t nr = blockIdx.x; find_tile(args, &at, nr, &tile); nr = next) {
		next = tile_after<DRAWN>(args, (enum layer_which)WHICH, nr);
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
			/* Early, so that who waits for the last one's number has it in time; and
			 * not at once, as it comes from L2. */
			if (DRAWN && k == tell_behind)
				tell_tile(mine, &telling, next);
		}
	}
	mark_leave(args, MARK_ROOM, waited);
}

/* The tile behind this one, for who does not draw. */
template <bool DRAWN>
static __device__ uint32_t next_tile(const struct layer_args *args, struct shared_memory *mine,
	struct place *hearing, uint32_t lanes, uint32_t nr)
{
	return DRAWN ? hear_tile(mine, hearing, lanes) : nr + gridDim.x;
}

/* Before a tile's rows are loaded. Down: they are there. Gate and up: down has been told of the
 * last tile but one, since consumers may be no further ahead. */
template <int WHICH>
static __device__ void keep_up_with_h(struct shared_memory *mine, struct place *place)
{
	if (WHICH == LAYER_DOWN) {
		barrier_wait(&mine->h_full[place->stage], place->parity);
		barrier_arrive(&mine->h_empty[place->stage]);
	} else {
		barrier_wait(&mine->h_empty[place->stage], place->parity ^ 1);
	}
	go_on<TILES_OF_H>(place);
}

/* What does not come in time comes with the end of the dispatch, which waits no longer than it may,
 * and says so. A kernel ends behind the one ahead of it: the next one counts on that. */
template <class T, int WHICH, bool DRAWN>
static __device__ void load_rows(const struct layer_args *args, struct shared_memory *mine)
{
	const bool scaled = sizeof(T) == 1;
	const struct expert_tiles *at = mine->list.experts;
	struct place place = {0, 0}, hearing = {0, 0}, of_h = {0, 0};
	bool beside = WHICH == LAYER_GATE_UP && DRAWN && mine->beside;
	struct tile tile;

	for (uint32_t nr = blockIdx.x; find_tile(args, &at, nr, &tile);
		nr = next_tile<DRAWN>(args, mine, &hearing, 1, nr)) {
		const struct layer_map *rows = &args->rows[tile.width_index];
		const struct layer_map *scales = &args->scales[tile.width_index];
		uint32_t bytes = tile.width * (128 + (scaled ? sizeof(mine->scales[0][0]) : 0));

		keep_up_with_h<WHICH>(mine, &of_h);
		if (beside && !rows_came(args, mine->round, tile.expert,
				      tile.first_row - at->first_row, tile.rows)) {
			wait_for_kernel_before();
			beside = false;
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
	if (WHICH == LAYER_GATE_UP)
		wait_for_kernel_before();
}

/* By a warp of a block of gate and up, for the consumers, which would wait for it: their stores of
 * h are where all SMs see them. */
template <bool DRAWN>
static __device__ void tell_of_h(const struct layer_args *args, struct shared_memory *mine)
{
	const struct expert_tiles *at = mine->list.experts;
	struct place place = {0, 0}, hearing = {0, 0};
	bool counts = !is_one_wave(&mine->list, tiles_of_h(args->m));
	struct tile tile;

	for (uint32_t nr = blockIdx.x; find_tile(args, &at, nr, &tile);
		nr = next_tile<DRAWN>(args, mine, &hearing, ~0u, nr)) {
		barrier_wait(&mine->h_full[place.stage], place.parity);
		if (threadIdx.x % 32 == 0) {
			if (counts)
				count_rows_of_h(args, tile.expert, tile.rows);
			barrier_arrive(&mine->h_empty[place.stage]);
		}
		go_on<TILES_OF_H>(&place);
	}
}

/* By a warp of a block of down, for who loads rows, and ahead of it: a look takes a trip to L2. */
template <bool DRAWN>
static __device__ void look_for_h(const struct layer_args *args, struct shared_memory *mine)
{
	const struct expert_tiles *at = mine->list.experts;
	struct place place = {0, 0}, hearing = {0, 0};
	bool all_there = is_one_wave(&mine->list, tiles_of_h(args->k));
	struct tile tile;

	if (all_there)
		wait_for_kernel_before();
	for (uint32_t nr = blockIdx.x; find_tile(args, &at, nr, &tile);
		nr = next_tile<DRAWN>(args, mine, &hearing, ~0u, nr)) {
		barrier_wait(&mine->h_empty[place.stage], place.parity ^ 1);
		if (threadIdx.x % 32 == 0) {
			if (!all_there && !rows_of_h_came(args, at->expert, rows_of(at))) {
				wait_for_kernel_before();
				all_there = true;
			}
			barrier_arrive(&mine->h_full[place.stage]);
		}
		go_on<TILES_OF_H>(&place);
	}
	__syncwarp();
	wait_for_kernel_before();
	put_words_back(args);
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
template <class T, int WHICH, bool DRAWN>
static __device__ void load_scales(const struct layer_args *args, struct shared_memory *mine)
{
	const struct expert_tiles *at = mine->list.experts;
	struct place place = {0, 0}, hearing = {0, 0};
	uint32_t lane = threadIdx.x % 32;
	struct tile tile;

	for (uint32_t nr = blockIdx.x; find_tile(args, &at, nr, &tile);
		nr = next_tile<DRAWN>(args, mine, &hearing, ~0u, nr)) {
		const float *scales[2];

		scales_of<WHICH>(args, &tile, scales);
		for (uint32_t k = 0; k < args->k_blocks; k += CHUNK_BLOCKS) {
			barrier_wait(&mine->taken[place.stage], place.parity ^ 1);
			if (k + lane < args->k_blocks)
				for (int half = 0; half < 2; half++)
					mine->of_weights[place.stage][half][lane] =
						__ldg(scales[half] + k + lane);
			barrier_arrive(&mine->scaled[place.stage]);
			go_on<SCALE_CHUNKS>(&place);
		}
	}
}

#endif
