/* SPDX-License-Identifier: Apache-2.0 */
/* Receiving with gates between nodes (internode/groups.cuh): rows in the order of their runs. */
#ifndef TERN_GPU_CUDA_LL_RECEIVE_GROUPS_CUH
#define TERN_GPU_CUDA_LL_RECEIVE_GROUPS_CUH

#include "gpu/cuda/ll/receive.cuh"

/* Which tokens of sources on other nodes come with which run. By all receiving warps, when all
 * plans are noted; a barrier follows. */
static __device__ __forceinline__ void note_tokens_by_group(const struct gpu_exchange *e,
	const struct positions *p, uint32_t thread, uint32_t nr_threads)
{
	for (uint32_t i = thread; i < e->nr_ranks * p->words; i += nr_threads) {
		uint32_t source = i / p->words, word = i - source * p->words, tokens = 0;

		for (uint32_t group = 0, local = 0; group < POSITIONS_GROUPS; group++) {
			for (; local < e->nr_local && group_of_local(e, local) == group; local++)
				tokens |=
					p->bits[(source * e->nr_local + local) * p->stride + word];
			p->groups[(group * e->nr_ranks + source) * p->stride + word] = tokens;
		}
	}
}

/* Of a source: tokens of groups up to this one. */
static __device__ __forceinline__ const uint32_t *tokens_to_group(
	const struct gpu_exchange *e, const struct positions *p, uint32_t source, uint32_t group)
{
	return group == POSITIONS_GROUPS ? p->present + source * p->stride
					 : p->groups + (group * e->nr_ranks + source) * p->stride;
}

/* A token's row from another node. */
static __device__ __forceinline__ uint32_t group_of_row(
	const struct gpu_exchange *e, const struct positions *p, struct share a)
{
	uint32_t group = 0;

	while (group < POSITIONS_GROUPS &&
		!(tokens_to_group(e, p, a.source, group)[a.token / 32] >> a.token % 32 & 1))
		group++;
	return group;
}

/* Its place among its source's. */
static __device__ __forceinline__ uint32_t number_of_row(
	const struct gpu_exchange *e, const struct positions *p, struct share a, uint32_t group)
{
	uint32_t number = bits_before(p, tokens_to_group(e, p, a.source, group), a.token);

	if (group) {
		const uint32_t *below = tokens_to_group(e, p, a.source, group - 1);

		number += count_bits<0>(below, p->words) - bits_before(p, below, a.token);
	}
	return number;
}

/* As receive_all, with gates between nodes (internode/groups.cuh): first what needs no network and
 * the first runs' rows, whichever source's; no row waits for one of a later run. The gate's warp
 * receives none, but collects runs. */
template <int FORMAT, int X, int ND>
static __device__ __forceinline__ void receive_by_group(const struct gpu_dispatch *d,
	struct positions *p, uint4 state, uint32_t warp, uint32_t nr_warps, uint32_t gate_round)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t thread = warp * LANES + lane_id(), epoch = state.x, tokens = own_tokens(d, state),
		 own = tokens * e->by_row_parts.d, nr_shares;
	struct gate_stored stored;

	static_assert(POSITIONS_GROUPS + 1 == INTERNODE_GROUPS, "the last group is all that comes");
	gate_nothing_stored(&stored);
	positions_clear(p, e->nr_ranks, thread, nr_warps * LANES);
	take_plans<FORMAT, GPU_ANY, true, INTERNODE_HEAD_OFFSET>(
		e, p, epoch, state.w, tokens, warp, nr_warps);
	if (*p->failed)
		return;
	note_tokens_by_group(e, p, thread, nr_warps * LANES);
	place_rows<GPU_ANY, true>(d, p, warp, nr_warps, gate_round);
	if (is_gate_warp(warp, nr_warps)) {
		internode_collect_runs(e, epoch);
		return;
	}
	nr_shares = own + *p->most_tokens * e->by_others.d * e->by_row_parts.d;
	for (uint32_t group = 0; group < INTERNODE_GROUPS; group++)
		for (uint32_t i = warp * gridDim.x + blockIdx.x; i < nr_shares;
			i += nr_warps * gridDim.x - 1) {
			struct share a = share_of<GPU_ANY, true>(d, own, i);
			bool far = is_internode<true>(e, a.source);
			segment<FORMAT, x_kind<X>::SCALED, ND> s;
			struct found f;

			if (group != (far ? group_of_row(e, p, a) : 0))
				continue;
			f = find_row<GPU_ANY>(d, p, a);
			if (!f.here)
				continue;
			if (far && !run_has_come(e, a.source, group, epoch)) {
				gate_count_rows(&d->gate, &stored);
				if (!internode_await_run(e, a.source, group, epoch))
					return;
			}
			if (far)
				a.row += ((uint64_t)number_of_row(e, p, a, group) - a.token) *
					 e->window.row_bytes;
			look_for(e, a, s);
			if (!receive_part<FORMAT, X, ND, GPU_ANY, true>(
				    d, p, epoch, a, f, s, &stored))
				return;
		}
	gate_count_rows(&d->gate, &stored);
	if (blockIdx.x == 0 && thread == 0) {
		e->state->epoch_combine = epoch;
		counters_round(e);
	}
}

#endif
