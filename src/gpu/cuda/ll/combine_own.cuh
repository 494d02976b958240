/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency combine, both halves at once, summed at the expert, each rank the only home of its
 * tokens, and all of them mapped.
 *
 *   all warps   y rows of one token of another rank -> weighted sum -> pieces in its home's window,
 *               for all such tokens; then y rows of one token of this rank -> weighted sum; with
 *               pieces of the other ranks (rank order) -> out
 *
 * Others' come first: NVLink and other ranks wait for them. While own rows are read the others'
 * results come. This rank's own pass through no window, and nobody polls while there are rows to be
 * read. Nobody waits before it has sent all that others wait for, so no two ranks wait for each
 * other.
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
static __device__ __forceinline__ void find_own(
	const struct gpu_exchange *e, uint32_t i, struct portion *p)
{
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
}

static __device__ __forceinline__ void find_portion(
	const struct gpu_exchange *e, uint32_t i, uint32_t nr_away, struct portion *p)
{
	if (i < nr_away)
		find_away(e, i, p);
	else
		find_own(e, i - nr_away, p);
}

/* The rows here, of which there is at least one, summed vector by vector. Another rank's sum leaves
 * so; this rank's is kept. */
template <int Y, int ND>
static __device__ __forceinline__ void sum_rows(const struct gpu_combine *c, uint32_t epoch,
	const struct portion *p, uint32_t here, struct extent x, segment<GPU_FLAG128, false, ND> &s)
{
	const struct gpu_exchange *e = &c->exchange;
	uint64_t offset =
		((uint64_t)p->token * e->topk + __ffs(here) - 1) * e->window.result_bytes +
		(uint64_t)p->which * e->result.segment_bytes;
	uint8_t *to = e->windows[p->source] + e->window.results + offset;
	uint4 words = make_uint4(0, 0, 0, 0);
	struct summation<Y> sum;

	sum.a.nr = (int)__popc(here);
	sum.a.more = find_rows<0>(c, p->route, here, here, sum.a);
	load_batch<0>(c, sum.a, x, 0, sum.first); /* on their way as early as can be */
	sum.a.more = find_rows<BATCH>(c, p->route, here, sum.a.more, sum.a);
	find_weights(p->route, here, sum.a);
#pragma unroll
	for (int i = 0; i < ND; i++) {
		s.v[i] = i + 1 < ND ? sum_vector<Y, false>(c, sum, p->route, x, i)
				    : sum_vector<Y, true>(c, sum, p->route, x, i);
		if (!p->away)
			continue;
		lines_pack_vector(s, i, epoch, &words);
		vector_send(s, x, i, to);
	}
}

/* To this rank's sum others' results are added in the order of ranks. */
template <int Y, int ND>
static __device__ __forceinline__ bool sum_portion(
	const struct gpu_combine *c, uint32_t epoch, const struct portion *p)
{
	const struct gpu_exchange *e = &c->exchange;
	struct extent x = segment_extent(&e->result, p->which);
	uint32_t here = __ballot_sync(ALL_LANES, p->route.x != UINT32_MAX), next;
	segment<GPU_FLAG128, false, ND> s = {};
	sums<Y, ND> all = {};

	if (here) /* an own token need not have any */
		sum_rows<Y, ND>(c, epoch, p, here, x, s);
	if (p->away)
		return true;
	next = next_result(e, p->home, UINT32_MAX);
	while (next != UINT32_MAX)
		if (!add_results<GPU_FLAG128, Y, ND, (ND < 2 ? 3 : 2), false, true>(c, epoch,
			    p->token, x, results_here(e, p->token, p->which), p->which, p->home,
			    &next, all, s.v))
			return false;
	store_sum(c, p->token, x, all);
	return true;
}

/* The first portion's routes are under way before it is known which round it is; the next one's
 * while this one is summed. */
template <int Y, int ND>
static __device__ __forceinline__ void sum_portions(
	const struct gpu_combine *c, uint4 state, uint32_t warp, uint32_t nr_warps)
{
	const struct gpu_exchange *e = &c->exchange;
	uint32_t most = 0, nr_away, nr;
	struct portion next;

	find_away(e, warp, &next);
	for (uint32_t s = lane_id(); s < e->nr_ranks; s += LANES)
		most = s == e->rank ? most : max(most, e->state->nr_from[s]);
	if (state.w)
		return;
	if (warp == nr_warps - 1)
		tell_arrival<false>(c, state.y);
	nr_away = __reduce_max_sync(ALL_LANES, most) * e->by_others.d * e->result.nr_segments;
	nr = nr_away + state.z * e->result.nr_segments;
	if (warp >= nr_away && warp < nr)
		find_own(e, warp - nr_away, &next);
#pragma unroll 1
	for (uint32_t i = warp; i < nr; i += nr_warps) {
		struct portion now = next;

		if (i + nr_warps < nr)
			find_portion(e, i + nr_warps, nr_away, &next);
		if (now.away && now.row >= now.nr)
			continue;
		if (!sum_portion<Y, ND>(c, state.y, &now))
			return;
		if (i < gridDim.x)
			trace_mark(e, 11);
		trace_mark(e, now.away ? 9 : 10);
	}
	if (warp == nr_warps - 1 && await_arrivals<false>(e, state.y) && lane_id() == 0)
		e->state->epoch_dispatch = state.y + 1 ? state.y + 1 : 1; /* not 0: fresh windows
									     hold zeros */
}

template <int Y, int ND>
static __global__ void __launch_bounds__(512, 1)
	combine_ll_own(const __grid_constant__ struct gpu_combine c, uint32_t)
{
	const struct gpu_exchange *e = &c.exchange;
	uint32_t warp = threadIdx.x / LANES, nr_warps = blockDim.x / LANES;

	if (warp == 0)
		trace_mark(e, 8);
	wait_for_previous();
	if (warp == 0)
		trace_mark(e, 13);
	let_next_start();
	uint4 state = *(const uint4 *)e->state; /* epoch_dispatch, epoch_combine, nr_tokens, failed
						 */

	sum_portions<Y, ND>(&c, state, warp * gridDim.x + blockIdx.x, nr_warps * gridDim.x);
}

#endif
