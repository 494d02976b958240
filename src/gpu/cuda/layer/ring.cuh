/* SPDX-License-Identifier: Apache-2.0 */
/* A block's shared memory, and who is who in a block. */
#ifndef TERN_GPU_CUDA_LAYER_RING_CUH
#define TERN_GPU_CUDA_LAYER_RING_CUH

#include "gpu/cuda/layer/deal.cuh"
#include "gpu/cuda/layer/tiles.cuh"

#define STAGES 4
#define HALF_BYTES (128 * 128)
#define WEIGHTS_BYTES (2 * HALF_BYTES)
#define ROWS_BYTES (WIDTH_MAX * 128)
#define CONSUMERS 256
#define THREADS (128 + CONSUMERS)
#define NARROW_MAX 16 /* rows of tiles in fp8 that are the narrow side of products */
#define SCALE_CHUNKS 2
#define CHUNK_BLOCKS 32u /* of k, whose weights' scales come together */
#define TILES_OF_H 2     /* that consumers are ahead of who tells of them, or loads of who looks */
#define OUT_WIDTH 64     /* rows that leave through shared memory at a time */
#define OUT_PITCH 144    /* bytes of 64 bf16, and 16 against bank conflicts */

struct shared_memory {
	uint8_t weights[STAGES][WEIGHTS_BYTES];
	uint8_t rows[STAGES][ROWS_BYTES];
	float scales[STAGES][WIDTH_MAX][SCALES_AT_ONCE];
	float of_weights[SCALE_CHUNKS][2][CHUNK_BLOCKS]; /* scales of both halves */
	uint8_t out[2][OUT_WIDTH * OUT_PITCH];
	float amax[CONSUMERS / 32][NARROW_MAX], factors[NARROW_MAX];
	float amax_of_group[2][64];
	uint64_t full[STAGES], empty[STAGES];
	uint64_t scaled[SCALE_CHUNKS], taken[SCALE_CHUNKS];
	struct tile_list list;
	uint64_t h_full[TILES_OF_H], h_empty[TILES_OF_H]; /* stored and told of; there and taken */
	uint64_t told[STAGES], heard[STAGES];
	uint32_t drawn[STAGES]; /* tiles, by who loads weights for all others */
	uint32_t beside, round; /* beside: rows of this round are waited for, tile by tile */
};

/* A place in the ring, and how often it went round. */
struct place {
	uint32_t stage, parity;
};

template <uint32_t PLACES = STAGES> static __device__ void go_on(struct place *place)
{
	if (++place->stage == PLACES) {
		place->stage = 0;
		place->parity ^= 1;
	}
}

/* Who loads weights draws tiles, and tells rows' loader and the consuming warps. The first one they
 * all know. */
static __device__ void tell_tile(struct shared_memory *mine, struct place *place, uint32_t tile)
{
	barrier_wait(&mine->heard[place->stage], place->parity ^ 1);
	mine->drawn[place->stage] = tile;
	barrier_arrive(&mine->told[place->stage]);
	go_on(place);
}

/* By these lanes of a warp, its first among them. */
static __device__ uint32_t hear_tile(
	struct shared_memory *mine, struct place *place, uint32_t lanes)
{
	uint32_t tile;

	barrier_wait(&mine->told[place->stage], place->parity);
	tile = mine->drawn[place->stage];
	__syncwarp(lanes);
	if (threadIdx.x % 32 == 0)
		barrier_arrive(&mine->heard[place->stage]);
	go_on(place);
	return tile;
}

/* A consuming thread: its warpgroup, and its place there. */
struct seat {
	uint32_t group, warp, lane; /* warp: of both groups */
};

/* Of a product's 64 rows: a thread has this one, and that 8 further on. */
static __device__ uint32_t row_of_64(const struct seat *seat)
{
	return seat->warp % 4 * 16 + seat->lane / 4;
}

/* fp8, more than NARROW_MAX rows: they are the side of 64, and a warpgroup has of each half OUTPUTS
 * outputs, all 128 of its own 64 rows, or 64 of the same rows as the other. */
template <int OUTPUTS> static __device__ uint32_t first_row_of(const struct seat *seat)
{
	return OUTPUTS == 128 ? seat->group * 64 : 0;
}

template <int OUTPUTS> static __device__ uint32_t first_output_of(const struct seat *seat)
{
	return OUTPUTS == 128 ? 0 : seat->group * 64;
}

/* What waits took and when a block came to a place, in nanoseconds: in tern-lab-gemm-trace alone.
 */
static __device__ uint64_t mark_now(void)
{
#ifdef TERN_TRACE
	uint64_t ns;

	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns)::"memory");
	return ns;
#else
	return 0;
#endif
}

static __device__ uint64_t mark_clock(void)
{
#ifdef TERN_TRACE
	return clock64();
#else
	return 0;
#endif
}

static __device__ void mark_leave(const struct layer_args *args, enum layer_mark which, uint64_t v)
{
#ifdef TERN_TRACE
	if (args->marks)
		args->marks[blockIdx.x * LAYER_MARKS + which] = v;
#endif
}

#endif
