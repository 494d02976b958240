/* SPDX-License-Identifier: Apache-2.0 */
/* The second hop: a gateway takes a source's rows for all ranks of its node, and stores them in
 * their windows, its own too, where the source would if it were here. Each row's way says whose.
 *
 *   low latency       by token. Who waits for a row polls it there, as it does a neighbour's: each
 *                     piece has the epoch
 *   high throughput   at its first position on each rank, with its scales; behind them a mark, the
 *                     epoch, where the source's head would begin (forward_ht.cuh)
 *
 * Why a row of the next round may overwrite one there. Low latency: the source sends it when it has
 * all results of this round, and each rank has sent it its own behind its dispatch. High
 * throughput: when it has the counts of all for that round, which each rank sends behind this one.
 * What comes to the gateway's landing does so for the same reasons. tests/models/hops.pml. */
#ifndef TERN_GPU_CUDA_INTERNODE_FORWARD_CUH
#define TERN_GPU_CUDA_INTERNODE_FORWARD_CUH

#include "gpu/cuda/internode/numbers.cuh"

#define FORWARD_PIECES 8 /* of a lane, under way together */

template <bool FAR> __device__ __forceinline__ bool in_two_hops(const struct gpu_exchange *e)
{
	return FAR && e->internode->two_hops;
}

/* Whether a source's rows lie by number, in landing; else by token. */
template <bool FAR>
__device__ __forceinline__ bool lie_by_number(const struct gpu_exchange *e, uint32_t source)
{
	return is_internode<FAR>(e, source) && !in_two_hops<FAR>(e);
}

/* Who stores its rows where they are awaited. */
template <bool FAR>
__device__ __forceinline__ uint32_t carrier_of(const struct gpu_exchange *e, uint32_t source)
{
	return FAR ? e->internode->carrier[source] : source;
}

__device__ __forceinline__ uint4 load_way(
	const struct gpu_exchange *e, uint32_t source, uint32_t number)
{
	return piece_load(part_from<true>(e, INTERNODE_WAYS, source) +
			  (uint64_t)number * e->internode->way_bytes);
}

/* By a warp: a way, or how many there are, that cannot be. */
static __device__ __noinline__ void report_way(const struct gpu_exchange *e, uint32_t source,
	uint32_t number, uint32_t value, uint32_t most, uint32_t epoch)
{
	if (lane_id() == 0)
		report_broken(e, GPU_BROKEN_WAY, source, number, value, most, epoch);
}

/* Before it is followed; by the warp. */
__device__ __forceinline__ bool check_way(
	const struct gpu_exchange *e, uint32_t epoch, uint32_t source, uint32_t number, uint4 way)
{
	uint32_t nr = e->internode->nr_neighbours;
	uint64_t all = nr < 64 ? (1ull << nr) - 1 : ~0ull, to = way.y | (uint64_t)way.z << 32;

	if (way.x >= e->max_tokens)
		report_way(e, source, number, way.x, e->max_tokens - 1, epoch);
	else if (to & ~all)
		report_way(e, source, number, way.z ? way.z : way.y, (uint32_t)all, epoch);
	return way.x < e->max_tokens && !(to & ~all);
}

/* Low latency's: vectors of a warp, so that lines stay whole. It has come as a whole, and where it
 * lies in pinned memory what a warp loads crosses PCIe in lines, which pieces do not. */
struct forward_low {
	__device__ __forceinline__ bool operator()(const struct gpu_exchange *e, uint32_t epoch,
		uint32_t source, uint32_t number, uint4 way) const;
};

__device__ __forceinline__ bool forward_low::operator()(const struct gpu_exchange *e,
	uint32_t epoch, uint32_t source, uint32_t number, uint4 way) const
{
	uint64_t rows = e->window.rows + (uint64_t)source * e->max_tokens * e->window.row_bytes;
	const uint8_t *from = part_from<true>(e, INTERNODE_LANDED, source) + rows +
			      (uint64_t)number * e->window.row_bytes;
	uint64_t place = rows + (uint64_t)way.x * e->window.row_bytes;
	uint32_t nr = (uint32_t)(e->window.row_bytes / 16);

	for (uint32_t first = lane_id(); first - lane_id() < nr; first += FORWARD_PIECES * LANES) {
		uint4 v[FORWARD_PIECES];

#pragma unroll
		for (uint32_t i = 0; i < FORWARD_PIECES; i++)
			if (first + i * LANES < nr)
				v[i] = row_load(from + (uint64_t)(first + i * LANES) * 16);
		for (uint32_t n = 0; n < e->internode->nr_neighbours; n++) {
			uint8_t *to = e->windows[e->internode->neighbours[n]] + place;

			if (!((n < 32 ? way.y >> n : way.z >> (n - 32)) & 1))
				continue;
#pragma unroll
			for (uint32_t i = 0; i < FORWARD_PIECES; i++)
				if (first + i * LANES < nr)
					piece_store(to + (uint64_t)(first + i * LANES) * 16, v[i]);
		}
	}
	return true;
}

/* One source's rows number `row`, row + step, ... below `end`. */
template <class Forward>
static __device__ __forceinline__ bool forward_rows_from(const struct gpu_exchange *e,
	uint32_t epoch, uint32_t source, uint32_t row, uint32_t step, uint32_t end,
	const Forward &forward)
{
	for (; row < end; row += step) {
		uint4 way = load_way(e, source, row + 1);

		if (!check_way(e, epoch, source, row, way) || !forward(e, epoch, source, row, way))
			return false;
	}
	return true;
}

/* One source's, by all receiving warps of all blocks: this is number `warp` of nr_warps. */
template <class Forward>
static __device__ __forceinline__ bool forward_source(const struct gpu_exchange *e, uint32_t epoch,
	uint32_t source, uint32_t warp, uint32_t nr_warps, const Forward &forward)
{
	uint4 head = load_way(e, source, 0);

	if (head.w != epoch) /* it sends no rows, as it combines a plan again, and its plan says so
			      */
		return true;
	if (head.x > e->max_tokens) {
		report_way(e, source, 0, head.x, e->max_tokens, epoch);
		return false;
	}
	return forward_rows_from(e, epoch, source, warp, nr_warps, head.x, forward);
}

/* All sources' that this rank is gateway of, when their messages have come. False: a way is none.
 */
template <class Forward>
static __device__ __forceinline__ bool forward_sources(const struct gpu_exchange *e, uint32_t epoch,
	uint32_t warp, uint32_t nr_warps, const Forward &forward)
{
	bool good = true;

	for (uint32_t i = 0; i < e->internode->nr_internode && good; i++) {
		uint32_t source = e->internode->ranks[i].rank;

		if (e->internode->carrier[source] == e->rank)
			good = forward_source(e, epoch, source, warp, nr_warps, forward);
	}
	return good;
}

/* Low latency: by all receiving warps, before they wait for rows. False: some message did not come,
 * or is none; it has been reported. */
template <bool FAR>
static __device__ __forceinline__ bool forward_rows(
	const struct gpu_exchange *e, uint32_t epoch, bool failed, uint32_t warp, uint32_t nr_warps)
{
	if (!in_two_hops<FAR>(e))
		return true;
	if (!internode_arrived<FAR>(
		    e, INTERNODE_DISPATCH, epoch, GPU_WAIT_PLAN, failed, warp, nr_warps))
		return false;
	return forward_sources(
		e, epoch, warp * gridDim.x + blockIdx.x, nr_warps * gridDim.x, forward_low());
}

#endif
