/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the kernels of high-throughput mode. */
#ifndef TERN_GPU_CUDA_HT_HT_CUH
#define TERN_GPU_CUDA_HT_HT_CUH

#include "gpu/cuda/ht/kernels.h"
#include "gpu/cuda/common/gate.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/common/plan.cuh"
#include "gpu/cuda/common/wait.cuh"

/* Not 0, since fresh windows hold zeros; and even after odd, since counts have a place for each
 * parity. */
__device__ __forceinline__ uint32_t ht_epoch_after(uint32_t epoch)
{
	return epoch == UINT32_MAX ? 2 : epoch + 1;
}

/* A source's counts in a window. */
__device__ __forceinline__ uint64_t counts_at(
	const struct gpu_exchange *e, const struct ht_exchange *h, uint32_t epoch, uint32_t source)
{
	return h->window.counts +
	       ((epoch & 1) * (uint64_t)e->nr_ranks + source) * h->window.counts_bytes;
}

__device__ __forceinline__ uint64_t count_word_at(
	const struct gpu_exchange *e, const struct ht_exchange *h, uint32_t epoch, uint32_t source)
{
	return h->window.count_words +
	       ((epoch & 1) * (uint64_t)e->nr_ranks + source) * GPU_LINE_BYTES;
}

/* Counts' columns behind those of experts and ranks. */
__device__ __forceinline__ uint32_t tokens_column(const struct ht_exchange *h)
{
	return h->nr_columns;
}

__device__ __forceinline__ uint32_t early_column(const struct ht_exchange *h)
{
	return h->nr_columns + 1;
}

/* Of two: struct placed. */
__device__ __forceinline__ uint32_t placed_column(const struct ht_exchange *h)
{
	return h->nr_columns + 2;
}

/* Rows in a window, each with its scales; offsets of the first. */
struct ht_rows {
	uint64_t x, scales;
};

__device__ __forceinline__ struct ht_rows placed_rows(const struct ht_exchange *h)
{
	return {h->window.x, h->window.scales};
}

/* A source's, in the order of its tokens. */
__device__ __forceinline__ struct ht_rows early_rows(
	const struct gpu_dispatch *d, const struct ht_exchange *h, uint32_t source)
{
	const struct gpu_exchange *e = &d->exchange;
	uint64_t first = (uint64_t)source * h->window.nr_early;

	return {h->window.early_x + first * e->row.row_bytes,
		h->window.early_scales + first * e->row.nr_lines * d->scale_bytes};
}

/* A token's head, the part of its k-th route. */
__device__ __forceinline__ uint64_t head_at(const struct gpu_exchange *e,
	const struct ht_exchange *h, uint32_t source, uint32_t token, uint32_t k)
{
	return h->window.heads + (((uint64_t)source * e->max_tokens + token) * e->topk + k) * 16;
}

/* What a head says of this rank, before it is followed; by the warp. extent: gpu_state's. */
__device__ __forceinline__ bool check_head(const struct gpu_exchange *e, uint32_t extent,
	uint32_t epoch, uint32_t source, uint32_t token, uint4 head)
{
	bool outside = head.x != UINT32_MAX && head.x >= extent,
	     none = head.z != UINT32_MAX && head.z >= e->nr_local;
	uint32_t bad = __ballot_sync(ALL_LANES, outside || none);

	if (bad && threadIdx.x % LANES == __ffs(bad) - 1)
		report_broken(e, outside ? GPU_BROKEN_POSITION : GPU_BROKEN_LOCAL, source, token,
			outside ? head.x : head.z, outside ? extent - 1 : e->nr_local - 1, epoch);
	return !bad;
}

/* Where gates are: the tile of this lane's row, UINT32_MAX: none. False: a head leads to a row that
 * its expert does not have; by the warp. */
static __device__ __forceinline__ bool tile_of_head(const struct gpu_dispatch *d, uint32_t epoch,
	uint32_t source, uint32_t token, uint4 head, uint32_t *tile)
{
	bool here = head.x != UINT32_MAX, known = here && head.z != UINT32_MAX;
	uint32_t first = known ? (uint32_t)d->out_offsets[head.z] : 0,
		 rows = known ? d->out_counts[head.z] : 0,
		 bad = __ballot_sync(ALL_LANES, here && head.x - first >= rows),
		 same = __match_any_sync(ALL_LANES, head.x); /* an expert named twice has one place
							      */

	*tile = here && is_lowest_of(same) ? tile_of(&d->gate, head.z, head.x - first) : UINT32_MAX;
	if (bad && lane_id() == __ffs(bad) - 1)
		report_broken(&d->exchange, GPU_BROKEN_POSITION, source, token, head.x,
			first + rows - 1, epoch);
	return !bad;
}

/* Rows of y that this lane's head names are made, if it names one; by the warp. False: they were
 * not made in time. It has been looked at, but may have changed since, so its tile is one that
 * there is. */
static __device__ __forceinline__ bool await_row_of_y(
	const struct gpu_combine *c, uint32_t epoch, bool there, uint4 head)
{
	const struct gpu_gate *g = &c->gate;
	uint32_t tile = UINT32_MAX;

	if (there)
		tile = head.z * g->tiles +
		       min(g->tiles - 1, (head.x - (uint32_t)g->offsets[head.z]) >> g->row_bits);
	return await_tiles(&c->exchange, g, epoch, tile);
}

struct destination {
	uint32_t rank, local, position; /* of lane k's route; UINT32_MAX: none */
};

/* Lane k's route of a token as the plan has it; then where that is. */
static __device__ __forceinline__ uint2 load_route(
	const struct gpu_dispatch *d, const struct ht_exchange *h, uint32_t token)
{
	return lane_id() < d->exchange.topk ? h->routes[token * d->exchange.topk + lane_id()]
					    : make_uint2(UINT32_MAX, 0);
}

static __device__ __forceinline__ struct destination find_place(
	const struct gpu_dispatch *d, const struct ht_exchange *h, uint32_t token, uint2 route)
{
	struct destination to = {UINT32_MAX, UINT32_MAX, UINT32_MAX};
	uint32_t place;

	if (route.x == UINT32_MAX)
		return to;
	place = expert_place(&d->exchange.placement, route.x);
	to.rank = place >> 16;
	to.local = place & 0xffff;
	to.position = h->chunks[token / HT_CHUNK * h->nr_columns +
				(d->by_source ? h->nr_physical + to.rank : route.x)] +
		      route.y;
	return to;
}

/* What the caller is told of a token's rows here, by its head; from: the position of the first. */
static __device__ __forceinline__ void describe_rows(
	const struct gpu_dispatch *d, uint32_t source, uint32_t token, uint4 head, uint32_t from)
{
	const struct gpu_exchange *e = &d->exchange;

	if (!d->by_source) {
		if (head.x != UINT32_MAX)
			d->out_rows[head.x] =
				make_int4((int)source, (int)token, (int)lane_id(), (int)head.y);
		return;
	}
	if (lane_id() < e->topk) {
		d->out_ids[(uint64_t)from * e->topk + lane_id()] = (int32_t)head.z;
		d->out_weights[(uint64_t)from * e->topk + lane_id()] =
			__uint_as_float(head.z == UINT32_MAX ? 0 : head.y);
	}
	if (lane_id() == 0)
		d->out_rows[from] = make_int4((int)source, (int)token, -1, 0);
}

/* A warp's lanes in groups, each as large as a token's routes: 1 << shift. Which group a lane is
 * of, and which of its lanes it is. */
HOST_DEVICE uint32_t token_shift(uint32_t topk)
{
	uint32_t shift = 0;

	while (1u << shift < topk)
		shift++;
	return shift;
}

__device__ __forceinline__ uint32_t group_of_lane(uint32_t shift)
{
	return threadIdx.x % LANES >> shift;
}

__device__ __forceinline__ uint32_t lane_of_group(uint32_t shift)
{
	return threadIdx.x & ((1u << shift) - 1);
}

__device__ __forceinline__ uint32_t lanes_of_group(uint32_t shift, uint32_t group)
{
	return (shift == 5 ? ALL_LANES : (1u << (1u << shift)) - 1) << (group << shift);
}

/* The lane with which this one shares its number, in group i; of lanes behind the first group: any.
 */
__device__ __forceinline__ uint32_t lane_in_group(uint32_t shift, uint32_t i)
{
	return ((i << shift) + threadIdx.x) % LANES;
}

/* Host: how many tokens leave early, one of each sending warp. */
extern "C" uint32_t ht_early_tokens(
	const struct gpu_dispatch *d, const struct ht_exchange *h, const struct gpu_launch *launch);
/* How many blocks of so many warps an SM holds. */
extern "C" cudaError_t ht_dispatch_blocks(
	const struct gpu_dispatch *d, const struct ht_exchange *h, uint32_t nr_warps, int *per_sm);
extern "C" cudaError_t ht_combine_blocks(
	const struct gpu_combine *c, const struct ht_exchange *h, int *per_sm);

#endif
