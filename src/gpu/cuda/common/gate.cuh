/* SPDX-License-Identifier: Apache-2.0 */
/* Gates: who reads received rows while the dispatch still brings others (include/tern_device.cuh
 * has the readers' side).
 *
 *   before (release)                       after (acquire)            so that
 *   gate_begin, before the kernel behind   tern_gate_round            it knows the round
 *     may start
 *   gate_publish: counts are stored        tern_counts                counts and offsets are there
 *   gate_count_rows: rows, or segments     tern_wait_rows             all rows of a tile are there
 *     of them, are where they belong
 *   tern_tile_done: y is stored            await_tiles                a tile's rows of y are there
 *
 * A tile's word counts what a warp brings by itself: segments of rows in low latency, rows in high
 * throughput. Each round adds the same to it, whatever comes: what is missing of a whole tile is
 * added, too. So it is whole when it has reached rounds times that, nothing is cleared, and graphs
 * replay. Marks of y are zeroed before the counts are told, before which nobody has a row to
 * compute.
 *
 * No row waits for any of this: the last block's last warp, which has the fewest rows, begins the
 * round and tells the counts; other warps count what they have stored when they have no more to
 * store, or wait for more.
 */
#ifndef TERN_GPU_CUDA_COMMON_GATE_CUH
#define TERN_GPU_CUDA_COMMON_GATE_CUH

#include "gpu/cuda/common/wait.cuh"

#define GATE_UNCOUNTED 4 /* segments that a warp may store before it counts them */

/* Of those that receive: which is none of the others'. */
static __device__ __forceinline__ bool is_gate_warp(uint32_t warp, uint32_t nr_warps)
{
	return blockIdx.x == gridDim.x - 1 && warp == nr_warps - 1;
}

/* By the gate's warp, which alone lets the next kernel start for its block. The sum comes back from
 * where the next kernel will read it, so it is there. Returns the round. */
static __device__ __forceinline__ uint32_t gate_begin(const struct gpu_gate *g)
{
	uint32_t before = lane_id() == 0 ? atomicAdd(&g->words[GPU_GATE_ROUND], 1u) : 0;

	before = __shfl_sync(ALL_LANES, before, 0);
	if (before != UINT32_MAX) /* else it starts at this one's end */
		let_next_start();
	return before + 1;
}

/* By all warps of a dispatch, when what came before is there. Returns the round to the gate's warp.
 */
template <bool GATED>
static __device__ __forceinline__ uint32_t let_next_start_at_gate(
	const struct gpu_dispatch *d, uint32_t warp, uint32_t nr_warps)
{
	if (!GATED || !(d->roles & GPU_RECEIVE) || blockIdx.x != gridDim.x - 1)
		let_next_start();
	else if (is_gate_warp(warp, nr_warps))
		return gate_begin(&d->gate);
	return 0;
}

static __device__ __forceinline__ uint32_t tile_of(
	const struct gpu_gate *g, uint32_t local, uint32_t row)
{
	return local * g->tiles + (row >> g->row_bits);
}

/* What is missing of tiles, block after block a part. rows_of: a local expert's. */
template <class Rows>
static __device__ __forceinline__ void gate_fill(const struct gpu_dispatch *d, const Rows &rows_of)
{
	const struct gpu_gate *g = &d->gate;
	uint32_t nr = d->exchange.nr_local * g->tiles, rows = 1u << g->row_bits;

	for (uint32_t i = blockIdx.x * LANES + lane_id(); i < nr; i += gridDim.x * LANES) {
		uint32_t local = i / g->tiles, first = (i - local * g->tiles) * rows,
			 count = rows_of(local),
			 there = count > first ? min(count - first, rows) : 0;

		if (there < rows)
			atomicAdd(&g->ready[i], (rows - there) * g->parts);
	}
	__syncwarp();
}

/* By the gate's warp, to which the counts are there. */
template <class Rows>
static __device__ __forceinline__ void gate_publish(
	const struct gpu_dispatch *d, const Rows &rows_of, uint32_t round)
{
	const struct gpu_gate *g = &d->gate;

	for (uint32_t local = lane_id(); local < d->exchange.nr_local; local += LANES) {
		uint32_t count = rows_of(local);

		for (uint32_t first = 0; first < count; first += 1u << g->row_bits)
			word_store(&g->done[tile_of(g, local, first)], 0);
	}
	__syncwarp();
	stores_before_here();
	if (lane_id() == 0)
		word_store(&g->words[GPU_GATE_COUNTED], round);
	__syncwarp();
}

/* By the last warp of each block that receives. */
template <class Rows>
static __device__ __forceinline__ void gate_open(const struct gpu_dispatch *d, const Rows &rows_of,
	uint32_t warp, uint32_t nr_warps, uint32_t round)
{
	if (is_gate_warp(warp, nr_warps))
		gate_publish(d, rows_of, round);
	gate_fill(d, rows_of);
}

/* Segments that a warp has stored and not counted: lane k's tiles of its route's rows. */
struct gate_stored {
	uint32_t tiles[GATE_UNCOUNTED]; /* UINT32_MAX: none */
};

static __device__ __forceinline__ void gate_nothing_stored(struct gate_stored *s)
{
#pragma unroll
	for (uint32_t i = 0; i < GATE_UNCOUNTED; i++)
		s->tiles[i] = UINT32_MAX;
}

static __device__ __forceinline__ bool gate_has_stored(const struct gate_stored *s)
{
	return __any_sync(ALL_LANES, s->tiles[0] != UINT32_MAX);
}

/* By a warp: what all its lanes have stored, and what they have seen of others', comes before what
 * each counts. COPIED: it was stored by copies through shared memory, too. */
template <bool COPIED = false>
static __device__ __forceinline__ void gate_count_rows(
	const struct gpu_gate *g, struct gate_stored *s)
{
	if (COPIED)
		copies_done<0>();
	__syncwarp();
	stores_before_here();
#pragma unroll
	for (uint32_t i = 0; i < GATE_UNCOUNTED; i++)
		if (s->tiles[i] != UINT32_MAX)
			atomicAdd(&g->ready[s->tiles[i]], 1u);
	gate_nothing_stored(s);
	__syncwarp(); /* a line is whole to lanes that load it together */
}

/* By a warp that has stored a segment: of lane k's route into `tile`, if it went there. */
template <bool COPIED = false>
static __device__ __forceinline__ void gate_note_rows(
	const struct gpu_gate *g, struct gate_stored *s, uint32_t tile)
{
	if (__any_sync(ALL_LANES, s->tiles[GATE_UNCOUNTED - 1] != UINT32_MAX))
		gate_count_rows<COPIED>(g, s);
#pragma unroll
	for (uint32_t i = GATE_UNCOUNTED - 1; i > 0; i--)
		s->tiles[i] = s->tiles[i - 1];
	s->tiles[0] = tile;
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
