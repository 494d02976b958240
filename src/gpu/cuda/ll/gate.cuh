/* SPDX-License-Identifier: Apache-2.0 */
/* Gates: who reads received rows while the dispatch still brings others (include/tern_device.cuh
 * has the readers' side).
 *
 *   before (release)                       after (acquire)            so that
 *   gate_begin, before the kernel behind   tern_gate_open             it knows the round
 *     may start
 *   gate_publish: counts are stored        tern_counts                counts and offsets are there
 *   gate_count_rows: a segment is stored   tern_wait_rows             all rows of a tile are there
 *   tern_tile_done: y is stored            await_tiles                a tile's rows of y are there
 *
 * A tile's word counts segments of rows. Each round adds the same to it, whatever comes: what is
 * missing of a whole tile is added with the counts. So it is whole when it has reached rounds times
 * that, nothing is cleared, and graphs replay. Marks of y are zeroed with the counts, before which
 * nobody has a row to compute.
 */
#ifndef TERN_GPU_CUDA_LL_GATE_CUH
#define TERN_GPU_CUDA_LL_GATE_CUH

#include "gpu/cuda/common/kernels.h"
#include "gpu/cuda/common/wait.cuh"

/* By all threads of the first block of a kernel that receives, before it lets the next one start.
 */
static __device__ __forceinline__ void gate_begin(const struct gpu_gate *g)
{
	if (threadIdx.x == 0)
		word_release(&g->words[GPU_GATE_ROUND], word_load(&g->words[GPU_GATE_ROUND]) + 1);
	__syncthreads();
}

static __device__ __forceinline__ uint32_t tile_of(
	const struct gpu_gate *g, uint32_t local, uint32_t row)
{
	return local * g->tiles + (row >> g->row_bits);
}

/* By all receiving warps of the first block, once they have met behind storing counts. */
static __device__ __forceinline__ void gate_publish(const struct gpu_gate *g,
	const uint32_t *counts, uint32_t nr_local, uint32_t thread, uint32_t nr_threads)
{
	uint32_t rows = 1u << g->row_bits;

	for (uint32_t i = thread; i < nr_local * g->tiles; i += nr_threads) {
		uint32_t local = i / g->tiles, first = (i - local * g->tiles) * rows,
			 there = counts[local] > first ? min(counts[local] - first, rows) : 0;

		word_store(&g->done[i], 0);
		atomicAdd(&g->ready[i], (rows - there) * g->parts);
	}
	warps_sync(nr_threads);
	if (thread == 0)
		word_release(&g->words[GPU_GATE_COUNTED], word_load(&g->words[GPU_GATE_ROUND]));
}

/* By a warp that has stored a segment of a row: lane k for its route there. */
static __device__ __forceinline__ void gate_count_rows(
	const struct gpu_gate *g, uint32_t local, uint32_t row, bool here)
{
	__syncwarp();
	if (here)
		word_add_release(&g->ready[tile_of(g, local, row)], 1);
	__syncwarp(); /* a line is whole to lanes that load it together */
}

/* Lane k's tile of y is whole, if `tile` is one. By a warp; false: it did not become so in time,
 * which lane 0 reports. */
static __device__ __forceinline__ bool await_tiles(
	const struct gpu_exchange *e, const struct gpu_gate *g, uint32_t epoch, uint32_t tile)
{
	struct patience patience = {0, 0};

	while (!__all_sync(
		ALL_LANES, tile == UINT32_MAX || word_acquire(&g->done[tile]) >= g->marks))
		if (!warp_may_wait(&patience, e, e->rank, e->wait_ns)) {
			if (lane_id() == 0)
				report_wait(
					e, GPU_WAIT_TILE, e->rank, 0, epoch, 0, patience.start_ns);
			return false;
		}
	__syncwarp();
	return true;
}

#endif
