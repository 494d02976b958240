/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency dispatch, the sending warps: plans, heads and segments of rows, to all ranks that
 * have one of a token's experts. */
#ifndef TERN_GPU_CUDA_LL_DISPATCH_SEND_CUH
#define TERN_GPU_CUDA_LL_DISPATCH_SEND_CUH

#include "gpu/cuda/ll/head.cuh"
#include "gpu/cuda/common/rows.cuh"
#include "gpu/cuda/internode/forward.cuh"
#include "gpu/cuda/internode/groups.cuh"
#include "gpu/cuda/internode/numbers.cuh"

/* Not looked at before the first loads are under way. None when an earlier round has failed. */
static __device__ __forceinline__ uint32_t tokens_to_send(
	const struct gpu_dispatch *d, uint4 state, uint32_t callers)
{
	return not_before(state.w) ? 0 : min(not_before(callers), d->nr_tokens);
}

/* Where a token's row for a destination lies among this rank's: by token, and for a rank on another
 * node by its number. number: of each lane's; lowest: a lane whose destination it is. */
template <bool FAR>
static __device__ __forceinline__ uint64_t place_of_row(
	const struct gpu_exchange *e, uint32_t token, uint32_t number, uint32_t lowest)
{
	uint32_t place = FAR ? __shfl_sync(ALL_LANES, number, lowest) : token;

	return e->window.rows + ((uint64_t)e->rank * e->max_tokens + place) * e->window.row_bytes;
}

/* Where rows are sent, in two hops: each lane's rank becomes its gateway, and a bit stands for each
 * different one again. */
template <bool FAR>
static __device__ __forceinline__ uint32_t send_via(
	const struct gpu_exchange *e, uint32_t to_all, uint32_t *rank)
{
	uint32_t same;

	if (!in_two_hops<FAR>(e))
		return to_all;
	*rank = via_rank(e, *rank);
	same = __match_any_sync(ALL_LANES, *rank);
	return __ballot_sync(ALL_LANES, *rank != UINT32_MAX && is_lowest_of(same));
}

/* GROUPED: rows for other nodes lie by groups (internode/groups.cuh). */
template <bool GROUPED>
static __device__ __forceinline__ bool find_number_of(const struct gpu_exchange *e, uint32_t epoch,
	uint32_t rank, uint32_t token, uint32_t nr_tokens, struct row_number *number)
{
	if constexpr (GROUPED)
		return find_number_by_group<true>(e, epoch, rank, token, nr_tokens, number);
	return find_number<true>(e, epoch, rank, token, nr_tokens, number);
}

/* KEPT: rows for this rank may stay. */
template <bool KEPT, int CASE>
static __device__ __forceinline__ uint32_t leave(
	const struct gpu_dispatch *d, uint32_t destinations, uint32_t rank)
{
	return KEPT && d->keeps ? destinations_away<CASE>(&d->exchange, destinations, rank)
				: destinations;
}

/* The head is a piece of work of its own; with it goes what the combine has to know at home. False:
 * who numbers rows did not. */
template <int FORMAT, int CASE, bool FAR, bool KEPT, bool GROUPED>
static __device__ __forceinline__ bool send_head(
	const struct gpu_dispatch *d, uint4 state, uint32_t callers, uint32_t token)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t epoch = state.x;
	uint32_t index = token * e->topk + lane_id(), rank, weight, via, sent;
	struct row_number number = {token, token};
	int32_t id = lane_id() < e->topk ? expert_id<CASE>(d, index) : -1;
	uint4 head = load_head<FORMAT>(d, epoch, token);
	uint32_t to_all = destinations<CASE>(e, id, index, &rank);
	bool mine = is_mine<CASE>(e, token);

	if (token >= tokens_to_send(d, state, callers))
		return true;
	if (FAR && !find_number_of<GROUPED>(
			   e, epoch, rank, token, tokens_to_send(d, state, callers), &number))
		return false;
	via = rank;
	sent = send_via<FAR>(e, leave<KEPT, CASE>(d, to_all, rank), &via);
	for (uint32_t left = mine ? sent : 0; left; left &= left - 1) {
		uint32_t to = first_destination<CASE>(left, via);
		uint64_t row = place_of_row<FAR>(e, token, number.row, __ffs(left) - 1);

		if (in_two_hops<FAR>(e) && is_internode<FAR>(e, to))
			tell_way(e, epoch, token, to,
				__shfl_sync(ALL_LANES, number.row, __ffs(left) - 1), rank);

		if (in_head<FORMAT>(e))
			piece_store(part_to<FAR, CASE == GPU_ELASTIC>(e, INTERNODE_ROWS, to) + row +
					    lane_id() * 16,
				head);
	}
	weight = weight_of_head<FORMAT>(head);
	if (lane_id() < e->topk)
		e->home_routes[index] = make_uint2(rank, weight);
	if (FAR && lane_id() < e->topk)
		e->internode->numbers[index] = number.result;
	check_ids<CASE>(d, epoch, token, id);
	if (mine)
		counters_token(e, id, rank, __popc(to_all),
			__popc(destinations_away<CASE>(e, to_all, rank)));
	return true;
}

/* Destinations are numbered from the next rank on, this one last. */
static __device__ __forceinline__ uint32_t share_of_destination(
	const struct gpu_dispatch *d, uint32_t to)
{
	uint32_t number = to + d->exchange.nr_ranks - d->exchange.rank - 1;

	number -= number >= d->exchange.nr_ranks ? d->exchange.nr_ranks : 0;
	return number - gpu_div(number, d->by_share) * d->by_share.d;
}

template <int FORMAT, int X, int ND, int CASE, bool FAR, bool KEPT, bool GROUPED>
static __device__ __forceinline__ bool send_segment(const struct gpu_dispatch *d, uint32_t epoch,
	uint32_t nr_tokens, uint32_t token, uint32_t which, uint32_t share,
	const raw_segment<X, ND> &raw)
{
	const struct gpu_exchange *e = &d->exchange;
	struct extent x = segment_extent(&e->row, which);
	uint64_t offset = LL_HEAD_BYTES + (uint64_t)which * e->row.segment_bytes;
	struct row_number number = {token, token};
	uint32_t rank, left = destinations<CASE>(e, raw.id, token * e->topk + lane_id(), &rank);
	segment<FORMAT, x_kind<X>::SCALED, ND> s;

	if (FAR && !find_number_of<GROUPED>(e, epoch, rank, token, nr_tokens, &number))
		return false;
	make_segment<X, ND>(d, raw, s);
	segment_pack(s, epoch);
	left = leave<KEPT, CASE>(d, left, rank);
	for (left = send_via<FAR>(e, left, &rank); left; left &= left - 1) {
		uint32_t to = first_destination<CASE>(left, rank);
		uint64_t row = place_of_row<FAR>(e, token, number.row, __ffs(left) - 1);

		if (share_of_destination(d, to) == share)
			segment_send(s, x,
				part_to<FAR, CASE == GPU_ELASTIC>(e, INTERNODE_ROWS, to) + row +
					offset);
	}
	return true;
}

/* The i-th token that leaves. Where receivers deal out slices to their blocks, tokens of one slice
 * leave far from each other, so that rows for all blocks come all the time. */
static __device__ __forceinline__ uint32_t token_in_turn(const struct gpu_dispatch *d, uint32_t i)
{
	uint32_t turn = gpu_div(i, d->by_slices);

	return (i - turn * d->by_slices.d) * d->slice_tokens + turn;
}

/* Plans by the last warps, rows by all. The first loads do not wait to hear how many tokens there
 * are, or which round it is: the caller's buffers hold nr_tokens. With slices tokens that are not
 * sent lie between those that are, so later loads heed it. False: rows for other nodes have no
 * numbers. */
template <int FORMAT, int X, int ND, int CASE, bool FAR, bool SLICED, bool KEPT, bool GROUPED>
static __device__ __forceinline__ bool send_all(
	const struct gpu_dispatch *d, uint4 state, uint32_t warp, uint32_t nr_warps)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t epoch = state.x, callers = callers_tokens(d);

	for (uint32_t four = nr_warps - 1 - warp;
		line_needed<FORMAT>(4 * four, d->nr_tokens * e->topk); four += nr_warps)
		send_plan<FORMAT, CASE, FAR>(d, epoch, state.w, callers, four);
	if constexpr (GROUPED)
		note_all_groups(d, epoch, tokens_to_send(d, state, callers), warp, nr_warps);
	else if (FAR)
		note_all_going<true>(d, epoch, tokens_to_send(d, state, callers), warp, nr_warps);
#pragma unroll 1
	for (uint32_t i = warp;; i += nr_warps) {
		uint32_t part = gpu_div(i, d->by_share), token = gpu_div(part, e->by_row_parts),
			 which = part - token * e->by_row_parts.d;
		raw_segment<X, ND> raw;

		if (SLICED && token >= d->by_slices.d * d->slice_tokens)
			break;
		if (SLICED)
			token = token_in_turn(d, token);
		if (SLICED &&
			token >= (i == warp ? d->nr_tokens : tokens_to_send(d, state, callers)))
			continue;
		if (token >= d->nr_tokens)
			break;
		if (which == e->row.nr_segments) {
			if (i == part * d->by_share.d &&
				!send_head<FORMAT, CASE, FAR, KEPT, GROUPED>(
					d, state, callers, token))
				return false;
			continue;
		}
		if (!is_mine<CASE>(e, token))
			continue;
		load_raw<CASE>(d, token, which, raw);
		if (token >= tokens_to_send(d, state, callers)) {
			if (SLICED)
				continue;
			break;
		}
		if (!send_segment<FORMAT, X, ND, CASE, FAR, KEPT, GROUPED>(d, epoch,
			    tokens_to_send(d, state, callers), token, which,
			    i - part * d->by_share.d, raw))
			return false;
		if (i < gridDim.x)
			trace_mark(e, 2);
	}
	if (warp == 0 && lane_id() == 0 && !state.w)
		e->state->nr_tokens = tokens_to_send(d, state, callers);
	return true;
}

/* A block's sending warps, 0 to send_warps - 1; then what leaves for other nodes is rung. False:
 * this one's part in the round is over. */
template <int FORMAT, int X, int ND, int CASE, bool FAR, bool SLICED, bool KEPT = false,
	bool GROUPED = false>
static __device__ __forceinline__ bool send_and_ring(
	const struct gpu_dispatch *d, uint4 &state, uint32_t warp, uint32_t send_warps)
{
	const struct gpu_exchange *e = &d->exchange;

	if (FAR && has_failed_before(e, state.w, state.x))
		return false;
	state.w = FAR ? 0 : state.w;
	if (!send_all<FORMAT, X, ND, CASE, FAR, SLICED, KEPT, GROUPED>(
		    d, state, warp * gridDim.x + blockIdx.x, send_warps * gridDim.x))
		return false;
	if (FAR && internode_last(e, send_warps * gridDim.x)) {
		if constexpr (GROUPED)
			ring_internode_groups(e, state.x, this_rounds_tokens(d));
		else
			ring_internode_rows(e, state.x, this_rounds_tokens(d));
	}
	trace_mark(e, 1);
	return true;
}

#endif
