/* SPDX-License-Identifier: Apache-2.0 */
/* High throughput's rows from other nodes: where they come, how they are passed on, and copied.
 *
 *   before (release)                             after (acquire)    so that
 *   forward_high: all lanes' stores, __syncwarp,  await_forwarded   who sees the mark sees the row; and
 *     a fence, then the mark                                        the source's rows of the next round
 *                                                                   come behind all reads of this
 * one by way of the counts
 */
#ifndef TERN_GPU_CUDA_INTERNODE_FORWARD_HT_CUH
#define TERN_GPU_CUDA_INTERNODE_FORWARD_HT_CUH

#include "gpu/cuda/internode/internode_ht.cuh"
#include "gpu/cuda/internode/forward.cuh"

#define COPY_VECTORS 7 /* of a lane, under way together */

struct row_from {
	const uint8_t *x, *scales;
};

/* Between nodes a row's scales lie behind it. */
__device__ __forceinline__ uint64_t far_row_at(const struct gpu_exchange *e, uint32_t number)
{
	return number * e->internode->run_bytes[INTERNODE_DISPATCH];
}

__device__ __forceinline__ struct row_from row_in_landing(
	const struct gpu_exchange *e, uint32_t source, uint32_t number)
{
	const uint8_t *row = part_from<true>(e, INTERNODE_X, source) + far_row_at(e, number);

	return {row, row + e->row.row_bytes};
}

__device__ __forceinline__ uint64_t scales_at(
	const struct gpu_dispatch *d, const struct ht_exchange *h, uint32_t position)
{
	return h->window.scales + (uint64_t)position * d->exchange.row.nr_lines * d->scale_bytes;
}

/* This rank's. */
__device__ __forceinline__ struct row_from row_in_window(
	const struct gpu_dispatch *d, const struct ht_exchange *h, uint32_t position)
{
	const struct gpu_exchange *e = &d->exchange;
	const uint8_t *window = e->windows[e->rank];

	return {window + h->window.x + (uint64_t)position * e->row.row_bytes,
		window + scales_at(d, h, position)};
}

static __device__ __forceinline__ void copy_scales(
	const struct gpu_dispatch *d, const uint8_t *scales, uint8_t *to)
{
	for (uint32_t i = lane_id(); i < d->exchange.row.nr_lines; i += LANES)
		if (d->scale_bytes == 4)
			((uint32_t *)to)[i] = ((const uint32_t *)scales)[i];
		else
			to[i] = scales[i];
}

/* To the position in that rank's window that each of these lanes has. */
static __device__ __forceinline__ void copy_row_to(const struct gpu_dispatch *d,
	const struct ht_exchange *h, struct row_from from, uint32_t lanes, uint32_t rank,
	uint32_t position)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t bytes = e->row.row_bytes;

#pragma unroll 1
	for (uint32_t start = lane_id() * 16; lanes && start - lane_id() * 16 < bytes;
		start += COPY_VECTORS * LANES * 16) {
		uint4 v[COPY_VECTORS];

#pragma unroll
		for (uint32_t i = 0; i < COPY_VECTORS; i++)
			if (start + i * LANES * 16 < bytes)
				v[i] = row_load(from.x + start + i * LANES * 16);
		for (uint32_t left = lanes; left; left &= left - 1) {
			uint32_t to_rank = __shfl_sync(ALL_LANES, rank, __ffs(left) - 1),
				 at = __shfl_sync(ALL_LANES, position, __ffs(left) - 1);
			uint8_t *to = e->windows[to_rank] + h->window.x + (uint64_t)at * bytes;

#pragma unroll
			for (uint32_t i = 0; i < COPY_VECTORS; i++)
				if (start + i * LANES * 16 < bytes)
					row_store(to + start + i * LANES * 16, v[i]);
		}
	}
	for (uint32_t left = d->scale_bytes ? lanes : 0; left; left &= left - 1) {
		uint32_t to_rank = __shfl_sync(ALL_LANES, rank, __ffs(left) - 1),
			 at = __shfl_sync(ALL_LANES, position, __ffs(left) - 1);

		copy_scales(d, from.scales, e->windows[to_rank] + scales_at(d, h, at));
	}
}

/* ---- passed on ------------------------------------------------------------------------------- */

/* Where a source on another node would store the beginning of a token's head: 16 bytes, of which
 * the epoch is the mark. All else that is read there finds no row in it. */
__device__ __forceinline__ uint64_t mark_at(
	const struct gpu_exchange *e, const struct ht_exchange *h, uint32_t source, uint32_t token)
{
	return head_at(e, h, source, token, 0);
}

struct forward_high {
	const struct gpu_dispatch *d;
	const struct ht_exchange *h;

	__device__ __forceinline__ bool operator()(const struct gpu_exchange *e, uint32_t epoch,
		uint32_t source, uint32_t number, uint4 way) const;
};

/* A lane's neighbour, and the first position there. False: that there cannot be. */
__device__ __forceinline__ bool forward_high::operator()(const struct gpu_exchange *e,
	uint32_t epoch, uint32_t source, uint32_t number, uint4 way) const
{
	const uint8_t *positions = part_from<true>(e, INTERNODE_WAYS, source) +
				   (uint64_t)(number + 1) * e->internode->way_bytes +
				   INTERNODE_WAY_BYTES;
	struct row_from from = row_in_landing(e, source, number);

	for (uint32_t first = 0; first < e->internode->nr_neighbours; first += LANES) {
		bool goes = (first ? way.z : way.y) >> lane_id() & 1;
		uint32_t rank = goes ? e->internode->neighbours[first + lane_id()] : 0,
			 position = goes ? word_load(positions + (first + lane_id()) * 4) : 0,
			 bad = __ballot_sync(ALL_LANES, position >= e->internode->nr_positions);

		if (bad) {
			report_way(e, source, number,
				__shfl_sync(ALL_LANES, position, __ffs(bad) - 1),
				e->internode->nr_positions - 1, epoch);
			return false;
		}
		copy_row_to(d, h, from, __ballot_sync(ALL_LANES, goes), rank, position);
		__syncwarp();
		stores_before();
		if (goes)
			piece_store(e->windows[rank] + mark_at(e, h, source, way.x),
				make_uint4(UINT32_MAX, 0, UINT32_MAX, epoch));
	}
	return true;
}

/* By a warp: whether the row of a token that has one here is in its first place. */
static __device__ __forceinline__ bool was_forwarded(const struct gpu_exchange *e,
	const struct ht_exchange *h, uint32_t epoch, uint32_t source, uint32_t token)
{
	const uint8_t *mark = e->windows[e->rank] + mark_at(e, h, source, token);
	bool there = __all_sync(ALL_LANES, piece_acquire(mark).w == epoch);

	__syncwarp();
	return there;
}

/* Likewise: waits until it is. */
static __device__ __forceinline__ bool await_forwarded(const struct gpu_exchange *e,
	const struct ht_exchange *h, uint32_t epoch, uint32_t source, uint32_t token)
{
	const uint8_t *mark = e->windows[e->rank] + mark_at(e, h, source, token);
	uint32_t carrier = carrier_of<true>(e, source), seen;
	struct patience patience = {0, 0};

	do {
		seen = piece_acquire(mark).w;
		if (__all_sync(ALL_LANES, seen == epoch)) {
			__syncwarp();
			return true;
		}
	} while (warp_may_wait(&patience, e, carrier, e->wait_ns));
	if (lane_id() == 0)
		report_wait(e, GPU_WAIT_ROW, carrier, token, epoch, seen, patience.start_ns);
	return false;
}

#endif
