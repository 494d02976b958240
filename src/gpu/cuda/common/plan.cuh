/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: what each source tells everybody of its routing. What follows from all of them:
 * positions.cuh. */
#ifndef TERN_GPU_CUDA_COMMON_PLAN_CUH
#define TERN_GPU_CUDA_COMMON_PLAN_CUH

#include "gpu/cuda/internode/internode.cuh"
#include "gpu/cuda/common/kernels.h"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/common/segment.cuh"
#include "gpu/wire/sizes.h"
#include "gpu/cuda/common/counters.cuh"
#include "gpu/cuda/common/wait.cuh"

/* What a low-latency dispatch need not test for, as it is compiled for each. */
enum gpu_case {
	GPU_ELASTIC, /* nothing, and ranks may have gone; none is on another node */
	GPU_ANY,     /* nothing: replicas, experts anywhere, more ranks than a warp has lanes */
	GPU_PLACED,  /* none of these; any layout, ids of either width */
	GPU_PLAIN    /* nor that: contiguous rows without gaps, ids of 32 bits */
};

/* ---- experts --------------------------------------------------------------------------------- */

/* rank << 16 | local expert */
template <int CASE = GPU_ANY>
__device__ __forceinline__ uint32_t expert_place(const struct gpu_placement *p, uint32_t physical)
{
	uint32_t rank;

	if (CASE <= GPU_ANY && !p->per_rank)
		return p->place[physical];
	rank = gpu_div(physical, p->by_per_rank);
	return rank << 16 | (physical - rank * p->per_rank);
}

template <int CASE = GPU_ANY>
__device__ __forceinline__ uint32_t expert_rank(const struct gpu_placement *p, uint32_t physical)
{
	return CASE > GPU_ANY || p->per_rank ? gpu_div(physical, p->by_per_rank)
					     : p->place[physical] >> 16;
}

/* Its number among the experts here; UINT32_MAX: it is elsewhere, or none. */
template <int CASE>
__device__ __forceinline__ uint32_t local_of(const struct gpu_exchange *e, uint32_t physical)
{
	uint32_t place;

	if (CASE > GPU_ANY) {
		place = physical - e->rank * e->placement.per_rank;
		return place < e->placement.per_rank ? place : UINT32_MAX;
	}
	place = physical == GPU_NO_EXPERT ? UINT32_MAX : expert_place(&e->placement, physical);
	return place >> 16 == e->rank ? place & 0xffff : UINT32_MAX;
}

/* The first of the ranks that pass the same tokens as `rank`, and get the same results. */
__device__ __forceinline__ uint32_t home_first(const struct gpu_exchange *e, uint32_t rank)
{
	return gpu_div(rank, e->by_replicas) * e->by_replicas.d;
}

/* Which of them sends a token. */
__device__ __forceinline__ uint32_t sender_among(
	const struct gpu_exchange *e, uint32_t rank, uint32_t token)
{
	return home_first(e, rank) + token - gpu_div(token, e->by_replicas) * e->by_replicas.d;
}

__device__ __forceinline__ uint32_t token_source(const struct gpu_exchange *e, uint32_t token)
{
	return sender_among(e, e->rank, token);
}

template <int CASE = GPU_ANY>
__device__ __forceinline__ bool is_mine(const struct gpu_exchange *e, uint32_t token)
{
	return CASE > GPU_ANY || e->by_replicas.d == 1 || token_source(e, token) == e->rank;
}

/* By which tables routes are made: struct placed; 0, 0 where they never change. */
template <int CASE = GPU_ANY>
__device__ __forceinline__ uint2 placed_of(const struct gpu_exchange *e)
{
	return CASE <= GPU_ANY && e->placement.placed ? *(const uint2 *)e->placement.placed
						      : make_uint2(0, 0);
}

/* Another rank's; that of one that sends nothing is 0, 0. */
__device__ __forceinline__ bool is_placed_alike(uint2 mine, uint2 theirs)
{
	return !mine.y || !theirs.y || (mine.x == theirs.x && mine.y == theirs.y);
}

/* Number (source + token) % replicas, where there are several; but a replica on the source's rank
 * if there is one, of which the tables know where a rank sends its own tokens alone. */
static __device__ __noinline__ uint32_t choose_for_others(
	const struct gpu_exchange *e, uint2 serving, uint32_t token)
{
	const struct gpu_placement *p = &e->placement;
	uint32_t source = token_source(e, token);

	for (uint32_t i = 0; i < serving.y; i++)
		if (expert_rank(p, p->replicas[serving.x + i]) == source)
			return p->replicas[serving.x + i];
	return p->replicas[serving.x + (source + token) % serving.y];
}

__device__ __forceinline__ uint32_t choose_replica(
	const struct gpu_exchange *e, uint2 serving, uint32_t token)
{
	if (serving.y == 1)
		return serving.x;
	if (e->by_replicas.d != 1)
		return choose_for_others(e, serving, token);
	return e->placement.replicas[serving.x + (e->rank + token) % serving.y];
}

/* index: token * K + k. Ids of either width without a branch, which would have each of several wait
 * for the last. */
template <int CASE = GPU_ANY>
__device__ __forceinline__ int32_t expert_id(const struct gpu_dispatch *d, uint32_t index)
{
	const int32_t *at = (const int32_t *)d->topk_ids +
			    (CASE == GPU_PLAIN ? index : (uint64_t)index << d->ids_64);
	int32_t low = at[0], high = CASE == GPU_PLAIN ? 0 : at[d->ids_64];

	return CASE == GPU_PLAIN || !d->ids_64 || high == low >> 31 ? low : INT32_MAX; /* more than
											  there can
											  be */
}

template <int CASE = GPU_ANY>
__device__ __forceinline__ bool has_tables(const struct gpu_exchange *e)
{
	return CASE <= GPU_ANY && e->placement.serving;
}

template <int CASE = GPU_ANY>
__device__ __forceinline__ uint32_t physical_expert(
	const struct gpu_exchange *e, int32_t id, uint32_t index)
{
	if ((uint32_t)id >= e->placement.nr_experts) /* -1 as well */
		return GPU_NO_EXPERT;
	return has_tables<CASE>(e)
		       ? choose_replica(e, e->placement.serving[id], gpu_div(index, e->by_topk))
		       : (uint32_t)id;
}

/* Of N routes from number `first` on: ids become physical experts. Nothing stands between the
 * loads, so all are under way together. By a warp. */
template <uint32_t N, int CASE>
__device__ __forceinline__ void physical_experts(
	const struct gpu_exchange *e, uint32_t first, uint32_t (&ids)[8])
{
	uint2 serving[N];
	bool several = false;

	if (!has_tables<CASE>(e)) {
#pragma unroll
		for (uint32_t i = 0; i < N; i++)
			ids[i] = ids[i] < e->placement.nr_experts ? ids[i] : GPU_NO_EXPERT;
		return;
	}
#pragma unroll
	for (uint32_t i = 0; i < N; i++)
		serving[i] = ids[i] < e->placement.nr_experts ? e->placement.serving[ids[i]]
							      : make_uint2(GPU_NO_EXPERT, 1);
#pragma unroll
	for (uint32_t i = 0; i < N; i++) {
		ids[i] = serving[i].x;
		several |= serving[i].y != 1;
	}
	if (!__any_sync(ALL_LANES, several))
		return;
	if (e->by_replicas.d != 1) {
#pragma unroll
		for (uint32_t i = 0; i < N; i++)
			ids[i] = choose_replica(e, serving[i], gpu_div(first + i, e->by_topk));
		return;
	}
#pragma unroll
	for (uint32_t i = 0; i < N; i++) {
		uint32_t token = gpu_div(first + i, e->by_topk),
			 at = serving[i].x + (e->rank + token) % serving[i].y,
			 chosen = e->placement.replicas[serving[i].y == 1 ? 0 : at];

		ids[i] = serving[i].y == 1 ? ids[i] : chosen;
	}
}

/* As the caller has it, who may have more than he said. */
__device__ __forceinline__ uint32_t callers_tokens(const struct gpu_dispatch *d)
{
	return d->nr_tokens_at ? *d->nr_tokens_at : d->nr_tokens;
}

__device__ __forceinline__ uint32_t this_rounds_tokens(const struct gpu_dispatch *d)
{
	return min(callers_tokens(d), d->nr_tokens);
}

/* ---- a plan's lines -------------------------------------------------------------------------- */

template <int FORMAT> struct plan_line {
	static constexpr uint32_t LANE_IDS = FORMAT == GPU_FLAG128 ? 8 : 6, IDS = 7 * LANE_IDS;
};

/* Is line needed for that many ids? Line 0 always is. */
template <int FORMAT> __device__ __forceinline__ bool line_needed(uint32_t line, uint32_t nr_ids)
{
	return line == 0 || line * plan_line<FORMAT>::IDS < nr_ids;
}

/* The end of line 0, by the warp that has loaded it: how many tokens, and the epoch. */
__device__ __forceinline__ uint2 plan_head_of(uint4 v)
{
	return make_uint2(__shfl_sync(ALL_LANES, v.z, 7), __shfl_sync(ALL_LANES, v.w, 7));
}

/* Ids of tokens that a replica of this rank sends. */
template <uint32_t N>
__device__ __forceinline__ void drop_others(
	const struct gpu_exchange *e, uint32_t first, uint32_t (&ids)[8])
{
#pragma unroll
	for (uint32_t i = 0; i < N; i++)
		if (!is_mine(e, gpu_div(first + i, e->by_topk)))
			ids[i] = UINT32_MAX;
}

/* Ids behind the last token's. */
template <uint32_t N>
__device__ __forceinline__ void drop_rest(uint32_t nr, uint32_t first, uint32_t (&ids)[8])
{
#pragma unroll
	for (uint32_t i = 0; i < N; i++)
		if (first + i >= nr)
			ids[i] = UINT32_MAX;
}

/* Who is no member any more has no tokens: each rank says so to itself, in that one's place, as
 * nobody else stores there. By one warp. */
template <int FORMAT>
static __device__ __noinline__ void plan_for_gone(const struct gpu_exchange *e, uint32_t epoch)
{
	/* Ids that nobody counts are looked up all the same: they are none. */
	uint32_t last = has_epoch<FORMAT>() ? epoch : UINT32_MAX;
	uint4 v = lane_id() == 7 ? make_uint4(0, 0, 0, epoch)
				 : make_uint4(UINT32_MAX, UINT32_MAX, UINT32_MAX, last);

	for (uint32_t i = 0; i < e->view->nr_gone; i++)
		if (lane_id() < 8)
			piece_store(window_of<true>(e, e->rank) + e->window.plans +
					    e->view->gone[i] * e->window.plan_bytes +
					    lane_id() * 16,
				v);
}

/* Four lines of this rank's plan, by one warp, to all ranks. All loads are under way before the
 * first is needed, and before it is known which round it is, how many tokens it has
 * (callers_tokens) and whether an earlier one has failed. */
template <int FORMAT, int CASE, bool FAR>
__device__ __forceinline__ void send_plan(const struct gpu_dispatch *d, uint32_t epoch,
	uint32_t failed, uint32_t nr_tokens, uint32_t four)
{
	constexpr uint32_t N = plan_line<FORMAT>::LANE_IDS;
	const struct gpu_exchange *e = &d->exchange;
	uint32_t line = 4 * four + lane_id() / 8,
		 first = line * plan_line<FORMAT>::IDS + lane_id() % 8 * N, nr;
	uint32_t nr_loaded = d->nr_tokens * e->topk;
	uint64_t offset = e->window.plans + e->rank * e->window.plan_bytes +
			  (uint64_t)four * 4 * GPU_LINE_BYTES + lane_id() * 16;
	bool head = lane_id() % 8 == 7;
	uint32_t ids[8], words[4] = {};
	uint2 placed = placed_of<CASE>(e);
	uint4 v;

#pragma unroll
	for (uint32_t i = 0; i < N; i++)
		ids[i] = !head && first + i < nr_loaded ? (uint32_t)expert_id<CASE>(d, first + i)
							: UINT32_MAX;
	nr_tokens = min(not_before(nr_tokens), d->nr_tokens);
	nr = nr_tokens * e->topk;
	drop_rest<N>(nr, first, ids);
	if (CASE <= GPU_ANY && e->by_replicas.d != 1) /* not in the way of the loads of those who
							 have none */
		drop_others<N>(e, first, ids);
	physical_experts<N, CASE>(e, first, ids);
#pragma unroll
	for (uint32_t i = 0; i < N; i++)
		words[i / 2] |= ids[i] << i % 2 * 16;
	v = head ? make_uint4(placed.x, placed.y, nr_tokens, epoch)
		 : make_uint4(
			   words[0], words[1], words[2], FORMAT == GPU_FLAG16 ? epoch : words[3]);
	if (has_failed_before(e, not_before(failed), epoch) || !line_needed<FORMAT>(line, nr))
		return;
#pragma unroll 1
	for (uint32_t i = 1; i <= e->nr_ranks; i++) {
		uint32_t to = e->rank + i;

		piece_store(part_to<FAR, CASE == GPU_ELASTIC>(
				    e, INTERNODE_PLAN, to >= e->nr_ranks ? to - e->nr_ranks : to) +
				    offset,
			v);
	}
	if (CASE == GPU_ELASTIC && four == 0)
		plan_for_gone<FORMAT>(e, epoch);
	trace_mark(e, 7);
}

#endif
