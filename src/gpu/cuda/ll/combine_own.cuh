/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency combine, both halves at once, summed at the expert, each rank the only home of its
 * tokens, and all of them mapped.
 *
 *   away   y rows of one token of another rank -> weighted sum -> pieces in its home's window
 *   own    y rows of one token of this rank -> weighted sum; with pieces of the other ranks (rank
 *          order) -> out
 *
 * This rank's own sums pass through no window. Few results: all warps take others' tokens, for
 * which NVLink and other ranks wait, and then own ones, while those of others come. Many, which
 * NVLink takes longer for than a GPU to read them: some warps take others' tokens, and then help
 * the rest, who take own ones from the start. Who waits has nobody waiting for it: others' tokens
 * are those of warps that wait for nothing before they have sent them. So no two ranks wait for
 * each other.
 */
#ifndef TERN_GPU_CUDA_LL_COMBINE_OWN_CUH
#define TERN_GPU_CUDA_LL_COMBINE_OWN_CUH

#include "gpu/cuda/ll/combine.cuh"

/* A warp's share of the work: a segment of one token's sum here. */
struct portion {
	bool away; /* for another rank; there are nr rows of it, and this would be number row */
	uint32_t row, nr;
	uint32_t source, token, which;
	uint2 home;  /* not away: lane k's route as its home knows it */
	uint2 route; /* position (UINT32_MAX: not here), weight */
};

/* Others' rows: homes alternate, and each rank begins with another one. All under way before it is
 * known whether there is such a row. */
static __device__ __forceinline__ void find_away(
	const struct gpu_exchange *e, uint32_t i, struct portion *p)
{
	uint32_t at = gpu_div(i, e->by_result_segments);

	p->away = true;
	p->row = gpu_div(at, e->by_others);
	p->source = e->rank + 1 + at - p->row * e->by_others.d;
	p->source = p->source >= e->nr_ranks ? p->source - e->nr_ranks : p->source;
	p->which = i - at * e->result.nr_segments;
	p->route = make_uint2(UINT32_MAX, 0);
	p->nr = 0;
	if (p->row >= e->max_tokens)
		return;
	p->token = e->row_tokens[p->source * e->max_tokens + p->row];
	if (lane_id() < e->topk)
		p->route =
			e->row_routes[(p->source * e->max_tokens + p->row) * e->topk + lane_id()];
	p->nr = e->state->nr_from[p->source];
}

/* This rank's tokens, whether or not they have rows here. */
template <bool LATE>
static __device__ __forceinline__ void find_own(
	const struct gpu_combine *c, uint32_t i, struct portion *p)
{
	const struct gpu_exchange *e = &c->exchange;
	uint32_t position = UINT32_MAX;

	p->away = false;
	p->source = e->rank;
	p->token = gpu_div(i, e->by_result_segments);
	p->which = i - p->token * e->result.nr_segments;
	p->home = make_uint2(UINT32_MAX, 0);
	if (lane_id() < e->topk) {
		p->home = e->home_routes[p->token * e->topk + lane_id()];
		position = e->own_positions[p->token * e->topk + lane_id()];
	}
	p->route = make_uint2(p->home.x == e->rank ? position : UINT32_MAX, p->home.y);
	if (LATE && lane_id() < e->topk && c->weights_come)
		p->route.y = __float_as_uint(c->late_weights[p->token * e->topk + lane_id()]);
}

/* Which portion a warp has next: of others' tokens every `stride`-th; then of own ones as many, or
 * where some warps have begun with those, as tickets say: a block's own portions lie `grid` apart.
 */
struct turn {
	struct deal deal;
	bool away;
	uint32_t i, stride, nr_away, nr_own;
};

template <bool DRAWN> static __device__ __forceinline__ void next_turn(struct turn *t)
{
	bool was_away = t->away;

	t->i += t->stride;
	t->away = was_away && t->i < t->nr_away;
	if (t->away)
		return;
	if (DRAWN)
		t->i = draw_share(&t->deal) * gridDim.x + blockIdx.x;
	else if (was_away)
		t->i -= t->nr_away;
}

static __device__ __forceinline__ bool is_portion(const struct turn *t)
{
	return t->i < (t->away ? t->nr_away : t->nr_own);
}

template <bool LATE>
static __device__ __forceinline__ void find_portion(
	const struct gpu_combine *c, const struct turn *t, struct portion *p)
{
	if (t->away)
		find_away(&c->exchange, t->i, p);
	else
		find_own<LATE>(c, t->i, p);
}

/* The rows here, of which there is at least one, summed vector by vector. Another rank's sum leaves
 * so; this rank's is kept. False: weights did not come. */
template <int Y, int ND, bool LATE>
static __device__ __forceinline__ bool sum_rows(const struct gpu_combine *c, uint32_t epoch,
	const struct portion *p, uint32_t here, struct extent x, result_segment<GPU_FLAG128, ND> &s)
{
	const struct gpu_exchange *e = &c->exchange;
	uint64_t offset = ((uint64_t)p->token * e->window.nr_columns + column_of_sum(e, here)) *
				  e->window.result_bytes +
			  (uint64_t)p->which * e->result.segment_bytes;
	uint8_t *to = e->windows[p->source] + e->window.results + offset;
	uint4 words = make_uint4(0, 0, 0, 0);
	struct summation<Y> sum;
	uint2 route = p->route;

	if (!begin_sum<Y, LATE>(c, epoch, p->source, p->token, p->away, here, x, &route, sum))
		return false;
#pragma unroll
	for (int i = 0; i < ND; i++) {
		s.v[i] = i + 1 < ND ? sum_vector<Y, false, true>(c, sum, route, x, i)
				    : sum_vector<Y, true, true>(c, sum, route, x, i);
		if (!p->away)
			continue;
		lines_pack_vector(s, i, epoch, &words);
		vector_send(s, x, i, to);
	}
	return true;
}

/* To this rank's sum others' results are added in the order of ranks. */
template <int Y, int ND, bool LATE>
static __device__ __forceinline__ bool sum_portion(
	const struct gpu_combine *c, uint32_t epoch, const struct portion *p)
{
	const struct gpu_exchange *e = &c->exchange;
	struct extent x = segment_extent(&e->result, p->which);
	uint32_t here = __ballot_sync(ALL_LANES, p->route.x != UINT32_MAX), next;
	result_segment<GPU_FLAG128, ND> s = {};
	sums<Y, ND> all = {};

	if (here && !sum_rows<Y, ND, LATE>(c, epoch, p, here, x, s)) /* an own token need not have
									any */
		return false;
	if (p->away)
		return true;
	next = next_result(e, p->home, UINT32_MAX);
	while (next != UINT32_MAX)
		if (!add_results<GPU_FLAG128, Y, ND, (ND < 2 ? 3 : 2), false, true>(c, epoch,
			    p->token, x, results_here(e, p->token, p->which), p->which, p->home,
			    &next, all, s.v))
			return false;
	store_sum<Y, ND, true>(c, p->token, x, all);
	return true;
}

/* Own portions that there may be, before it is known how many tokens there are: late weights are of
 * so many. */
template <bool LATE>
static __device__ __forceinline__ uint32_t own_segments(const struct gpu_combine *c)
{
	const struct gpu_exchange *e = &c->exchange;

	return (LATE && c->weights_come ? c->late_tokens : e->max_tokens) * e->result.nr_segments;
}

/* The first portion's routes are under way before it is known which round it is; the next one's
 * while this one is summed. */
template <int Y, int ND, bool DRAWN, bool LATE>
static __device__ __forceinline__ void sum_portions(
	const struct gpu_combine *c, uint4 state, struct turn *t, bool last_warp)
{
	const struct gpu_exchange *e = &c->exchange;
	uint32_t most = 0;
	struct portion next;

	if (t->away || t->i < own_segments<LATE>(c))
		find_portion<LATE>(c, t, &next);
	if (LATE)
		send_weights<LATE>(c, state);
	for (uint32_t s = lane_id(); s < e->nr_ranks; s += LANES)
		most = s == e->rank ? most : max(most, e->state->nr_from[s]);
	if (state.w)
		return;
	if (last_warp)
		tell_arrival<false>(c, state.y);
	t->nr_away = __reduce_max_sync(ALL_LANES, most) * e->by_others.d * e->result.nr_segments;
	t->nr_own = state.z * e->result.nr_segments;
	if (t->away && t->i >= t->nr_away) {
		t->i -= t->stride;
		next_turn<DRAWN>(t);
		if (is_portion(t))
			find_own<LATE>(c, t->i, &next);
	}
#pragma unroll 1
	for (bool first = true; is_portion(t); first = false) {
		struct portion now = next;

		next_turn<DRAWN>(t);
		if (is_portion(t))
			find_portion<LATE>(c, t, &next);
		if (now.away && now.row >= now.nr)
			continue;
		if (!sum_portion<Y, ND, LATE>(c, state.y, &now))
			return;
		if (first)
			trace_mark(e, 11);
		trace_mark(e, now.away ? 9 : 10);
	}
	if (last_warp && await_arrivals<false>(e, state.y) && lane_id() == 0)
		e->state->epoch_dispatch = state.y + 1 ? state.y + 1 : 1; /* not 0: fresh windows
									     hold zeros */
}

namespace tern
{
/* DRAWN: some warps begin with own tokens. LATE: late_weights.cuh. */
template <int Y, int ND, bool DRAWN, bool LATE = false>
static __global__ void __launch_bounds__(512, 1)
	combine_ll_own(const __grid_constant__ struct gpu_combine c, uint32_t send_warps)
{
	BLOCK_MEMORY(shared);
	const struct gpu_exchange *e = &c.exchange;
	uint32_t warp = warp_id(), nr_warps = blockDim.x / LANES;
	bool sends = warp < send_warps;
	struct turn t = {{shared, {}}, sends,
		(sends ? warp : warp - send_warps) * gridDim.x + blockIdx.x, send_warps * gridDim.x,
		0, 0};

	if (DRAWN && threadIdx.x == 0) /* the other warps' first portions need no ticket */
		*shared = nr_warps - send_warps;
	if (DRAWN)
		__syncthreads();
	if (warp == 0)
		trace_mark(e, 8);
	wait_for_previous();
	if (warp == 0)
		trace_mark(e, 13);
	let_next_start();
	uint4 state = *(const uint4 *)e->state; /* epoch_dispatch, epoch_combine, nr_tokens, failed
						 */

	sum_portions<Y, ND, DRAWN, LATE>(
		&c, state, &t, blockIdx.x == gridDim.x - 1 && warp == send_warps - 1);
}
} // namespace tern

#endif
