/* SPDX-License-Identifier: Apache-2.0 */
/* High throughput's rows from other nodes with gates (groups.cuh): group by group a gateway passes
 * on what has come for its node, then each rank takes its own rows of that group.
 *
 * Why nobody waits for a later run. A row travels with the lowest group of all ranks of the node
 * that want it, and is taken with the lowest of this rank, which is none below. So by the time that
 * a rank waits for it its gateway waits for no run behind it: by induction over groups, first
 * passed on, then taken. */
#ifndef TERN_GPU_CUDA_INTERNODE_RECEIVE_GROUPS_HT_CUH
#define TERN_GPU_CUDA_INTERNODE_RECEIVE_GROUPS_HT_CUH

#include "gpu/cuda/internode/groups.cuh"
#include "gpu/cuda/internode/receive_ht.cuh"

#define LATER_OF_LANE 16 /* tokens whose groups fit into a lane's word, two bits each */

/* A warp's. later: which of its tokens to take with which group, this lane's share of them; 0:
 * none, or taken. A token is known by its number among those that the warp looks at; those beyond
 * what it remembers are taken with the last group. */
struct group_receiver {
	const struct gpu_dispatch *d;
	const struct ht_exchange *h;
	uint32_t epoch, warp, nr_warps, later;
	struct gate_stored stored;
};

static __device__ __forceinline__ void take_later(
	struct group_receiver *r, uint32_t number, uint32_t group)
{
	if (lane_id() == number / LATER_OF_LANE)
		r->later |= group << number % LATER_OF_LANE * 2;
}

static __device__ __forceinline__ uint32_t group_to_take(
	const struct group_receiver *r, uint32_t number)
{
	uint32_t groups = __shfl_sync(ALL_LANES, r->later, number / LATER_OF_LANE % LANES);

	return number < LATER_OF_LANE * LANES ? groups >> number % LATER_OF_LANE * 2 & 3
					      : INTERNODE_GROUPS - 1;
}

/* Of a token's row on this rank. */
static __device__ __forceinline__ uint32_t group_of_head(const struct gpu_exchange *e, uint4 head)
{
	return __reduce_min_sync(
		ALL_LANES, head.z < e->nr_local ? group_of_local(e, head.z) : INTERNODE_GROUPS - 1);
}

/* ---- passed on ------------------------------------------------------------------------------- */

/* How many of a source's rows lie up to each group. False: that cannot be. */
static __device__ __forceinline__ bool load_group_ends(
	const struct gpu_exchange *e, uint32_t epoch, uint32_t source, uint4 *ends)
{
	uint32_t most = e->max_tokens;

	*ends = piece_load(part_from<true>(e, INTERNODE_WAYS, source) + INTERNODE_WAY_BYTES);
	for (uint32_t g = INTERNODE_GROUPS; g-- > 0; most = end_of_group(*ends, g))
		if (end_of_group(*ends, g) > most) {
			report_way(e, source, 0, end_of_group(*ends, g), most, epoch);
			return false;
		}
	return true;
}

static __device__ __forceinline__ bool forward_group(
	struct group_receiver *r, uint32_t source, uint32_t group)
{
	const struct gpu_exchange *e = &r->d->exchange;
	uint4 ends;
	uint32_t row;

	if (load_way(e, source, 0).w != r->epoch) /* it sends no rows */
		return true;
	if (!load_group_ends(e, r->epoch, source, &ends))
		return false;
	row = start_of_group(ends, group) + r->warp;
	if (row >= end_of_group(ends, group))
		return true;
	if (!run_has_come(e, source, group, r->epoch)) {
		gate_count_rows(&r->d->gate, &r->stored);
		if (!internode_await_run(e, source, group, r->epoch))
			return false;
	}
	return forward_rows_from(e, r->epoch, source, row, r->nr_warps, end_of_group(ends, group),
		forward_high{r->d, r->h});
}

static __device__ __forceinline__ bool forward_group_of_all(
	struct group_receiver *r, uint32_t group)
{
	const struct gpu_exchange *e = &r->d->exchange;

	for (uint32_t i = 0; i < e->internode->nr_internode; i++) {
		uint32_t source = e->internode->ranks[i].rank;

		if (e->internode->carrier[source] == e->rank && !forward_group(r, source, group))
			return false;
	}
	return true;
}

/* ---- taken ----------------------------------------------------------------------------------- */

/* The first time all heads are looked at, and groups noted; heads lie in pinned memory. */
static __device__ __forceinline__ bool take_in_group(
	struct group_receiver *r, uint32_t group, uint32_t number, uint32_t source, uint32_t token)
{
	const struct gpu_exchange *e = &r->d->exchange;
	uint32_t of = group;
	uint4 head;

	if (group && group_to_take(r, number) != group)
		return true;
	if (!group && number >= LATER_OF_LANE * LANES)
		return true;
	head = internode_token_head(e, r->h, source, token, r->epoch);
	if (!check_head(e, e->state->extent, r->epoch, source, token, head))
		return false;
	if (!__any_sync(ALL_LANES, head.x != UINT32_MAX))
		return true;
	if (!group)
		of = group_of_head(e, head);
	if (of == group)
		return take_row_of<true>(r->d, r->h, r->epoch, source, token, head, &r->stored);
	take_later(r, number, of);
	return true;
}

/* Lane k has the number of tokens of source number first + k, which is read over PCIe. */
static __device__ __forceinline__ bool take_group(struct group_receiver *r, uint32_t group)
{
	const struct gpu_exchange *e = &r->d->exchange;
	uint32_t nr_sources = e->internode->nr_internode, number = 0;

	for (uint32_t first = 0; first < nr_sources; first += LANES) {
		uint32_t mine = 0;

		if (first + lane_id() < nr_sources)
			mine = internode_nr_tokens(
				e, r->h, r->epoch, e->internode->ranks[first + lane_id()].rank);
		__syncwarp();
		for (uint32_t i = 0; i < LANES && first + i < nr_sources; i++) {
			uint32_t source = e->internode->ranks[first + i].rank,
				 nr = __shfl_sync(ALL_LANES, mine, i);

			for (uint32_t token = r->warp; token < nr; token += r->nr_warps)
				if (sends_token(e, source, token) &&
					!take_in_group(r, group, number++, source, token))
					return false;
		}
	}
	return true;
}

/* The last warp receives none, but collects runs. */
static __device__ __forceinline__ void rows_in_by_group(
	const struct gpu_dispatch *d, const struct ht_exchange *h)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t warp = threadIdx.x / LANES, nr_warps = blockDim.x / LANES;
	uint4 state = *(const uint4 *)e->state;
	struct group_receiver r = {
		d, h, state.y, warp * gridDim.x + blockIdx.x, nr_warps * gridDim.x - 1, 0, {}};

	if (word_load(&d->gate.words[GPU_GATE_ROUND])) /* as in gate_begin */
		let_next_start();
	gate_nothing_stored(&r.stored);
	if (e->state->abandoned ||
		!internode_arrived<true, INTERNODE_HEAD_OFFSET>(
			e, INTERNODE_DISPATCH, state.y, GPU_WAIT_ROW, state.w, warp, nr_warps) ||
		state.w)
		return;
	if (is_gate_warp(warp, nr_warps)) {
		internode_collect_runs(e, state.y);
		return;
	}
	for (uint32_t group = 0; group < INTERNODE_GROUPS; group++)
		if (!forward_group_of_all(&r, group) || !take_group(&r, group))
			return;
	gate_count_rows(&d->gate, &r.stored);
}

#endif
