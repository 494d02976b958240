/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency dispatch: each token once to every rank that has one of its experts; there to all its
 * positions in expert-major order.
 *
 *   sending warps     ids, x -> (quantise) -> pieces in the destinations' windows          no counting: rows lie by token
 *   receiving warps   plans of all sources -> positions;  pieces -> rows at their positions
 *
 * On the way of a single row: one load of ids and x, one store over NVLink, the poll that sees it,
 * one store. The plan travels beside the row, and positions are ready when it is there. Floor: that
 * store and poll (targets: 3.1 us above an empty kernel); for many rows, bytes over NVLink's rate.
 *
 * Why rows of the next round may overwrite these: a peer's dispatch of round e+1 follows its
 * combine of e, which has seen my arrival word e, which my combine of e stored, behind this kernel.
 * So this kernel's reads are over.
 */
#ifndef TERN_GPU_CUDA_LL_DISPATCH_CUH
#define TERN_GPU_CUDA_LL_DISPATCH_CUH

#include "gpu/cuda/ll/receive_groups.cuh"

/* failed: an earlier kernel has, or this one elsewhere, which some warps of a block may have seen
 * and others not: they leave together. False: nothing is received yet, as some rank has more tokens
 * than are noted. */
template <int FORMAT, int X, int ND, int CASE, bool FAR, bool GATED>
static __device__ __forceinline__ bool receive_all(const struct gpu_dispatch *d,
	struct positions *p, uint4 state, uint32_t warp, uint32_t nr_warps, uint32_t gate_round)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t thread = warp * LANES + lane_id(), first = warp * gridDim.x + blockIdx.x,
		 nr_shares = 0, epoch = state.x, tokens = own_tokens(d, state),
		 own = tokens * e->by_row_parts.d;
	struct gate_stored stored;

	gate_nothing_stored(&stored);
	positions_clear(p, e->nr_ranks, thread, nr_warps * LANES);
	if (!forward_rows<FAR>(e, epoch, state.w, warp, nr_warps))
		state.w = 1; /* others of the block may not have seen that */
#pragma unroll 1
	for (uint32_t i = first; i == first || i < nr_shares; i += nr_warps * gridDim.x) {
		segment<FORMAT, x_kind<X>::SCALED, ND> s;
		struct share a = share_of<CASE, FAR>(d, own, i);
		bool there = a.token < p->tokens,
		     places = i == first && places_rows<CASE>(d, warp, nr_warps);
		struct found f = {};

		if (i == first) {
			take_plans<FORMAT, CASE, FAR>(e, p, epoch, state.w, tokens, warp, nr_warps);
			if (warp == 0)
				trace_mark(e, 4);
			if (*p->failed)
				return true;
			if (*p->most_tokens > p->tokens)
				return false;
		}
		if (there)
			find_far_row<FAR>(d, p, &a);
		if (there)
			look_for(e, a, s);
		if (there && !places) /* needs no positions: while others make them */
			f = find_row<CASE>(d, p, a);
		if (i == first) {
			place_rows<CASE, GATED>(d, p, warp, nr_warps, gate_round);
			nr_shares = own + *p->most_tokens * e->by_others.d * e->by_row_parts.d;
		}
		if (there && places)
			f = find_row<CASE>(d, p, a);
		if (f.here && i < nr_shares &&
			!receive_part<FORMAT, X, ND, CASE, GATED>(d, p, epoch, a, f, s, &stored))
			return true;
	}
	if constexpr (GATED)
		gate_count_rows(&d->gate, &stored);
	trace_mark(e, 6);
	if (blockIdx.x == 0 && thread == 0) {
		e->state->epoch_combine = epoch;
		counters_round(e);
	}
	return true;
}

namespace tern
{
/* FAR: some ranks are on other nodes (internode.h); GPU_ANY then. GATED: others read rows
 * meanwhile.
 */
template <int FORMAT, int X, int ND, int CASE = GPU_ANY, bool FAR = false, bool GATED = false>
static __global__ void __launch_bounds__(512, 1)
	dispatch_ll(const __grid_constant__ struct gpu_dispatch d, uint32_t send_warps)
{
	BLOCK_MEMORY(shared);
	const struct gpu_exchange *e = &d.exchange;
	uint32_t warp = warp_id(), nr_warps = blockDim.x / LANES, gate_round;

	if (warp == 0)
		trace_mark(e, 0);
	wait_for_previous();
	gate_round = let_next_start_at_gate<GATED>(&d, warp, nr_warps);
	uint4 state = *(const uint4 *)e->state; /* epoch_dispatch, epoch_combine, nr_tokens, failed
						 */

	if (warp < send_warps) {
		send_and_ring<FORMAT, X, ND, CASE, FAR, false, false, FAR && GATED>(
			&d, state, warp, send_warps);
	} else if constexpr (FAR && GATED) {
		struct positions p = positions_in<FORMAT, true>(shared, e, e->max_tokens);

		receive_by_group<FORMAT, X, ND>(
			&d, &p, state, warp - send_warps, nr_warps - send_warps, gate_round);
	} else {
		struct positions p = positions_in<FORMAT>(shared, e, e->max_tokens);

		receive_all<FORMAT, X, ND, CASE, FAR, GATED>(
			&d, &p, state, warp - send_warps, nr_warps - send_warps, gate_round);
	}
}
} // namespace tern

#endif
