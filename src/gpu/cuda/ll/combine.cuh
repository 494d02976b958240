/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency combine: what the experts made of a token goes home, and is summed there in fp32, in
 * the order that tern.h fixes.
 *
 *   sending warps     y rows of one token -> (weighted sum, k order) -> pieces in the home's window       at_home: each row as it is
 *   receiving warps   pieces of all ranks (rank order; at_home: of all routes, k order) -> sum ->
 *                     out
 *
 * Results lie by rank and token, so the home knows from its own routing what will come. On the way
 * of a single token: one load of the row's routes, one of y, one store over NVLink, the poll that
 * sees it, one store.
 *
 * Arrival words: each rank tells every rank that it has read all rows of this round. The dispatch,
 * an earlier kernel, did that, so the word is stored at once. Without it a rank that is home to
 * none of my tokens could start its next round while a third one's rows of this round are still
 * awaited here. Why results of the next round may overwrite these: they follow my dispatch of e+1,
 * which is behind this kernel.
 */
#ifndef TERN_GPU_CUDA_LL_COMBINE_CUH
#define TERN_GPU_CUDA_LL_COMBINE_CUH

#include "gpu/cuda/ll/combine_send.cuh"

/* Where that result of a token comes. results: of the token's segment, in the window. */
template <bool FAR>
static __device__ __forceinline__ const uint8_t *result_from(const struct gpu_exchange *e,
	const uint8_t *results, uint2 route, uint32_t result, uint32_t token, uint32_t which)
{
	uint32_t first = first_of_result(e, route, result),
		 column = e->window.rank_columns ? result : first,
		 peer = FAR && e->at_home ? __shfl_sync(ALL_LANES, route.x, result % LANES)
					  : result;

	if (!FAR || result == UINT32_MAX || !is_internode<FAR>(e, peer))
		return results + column * e->window.result_bytes;
	return part_from<FAR>(e, INTERNODE_RESULTS, peer) + e->window.results +
	       result_offset(e,
		       result_number<FAR>(e, peer, token, column, e->window.nr_columns,
			       e->internode->numbers[token * e->topk + first]),
		       which);
}

/* The next results of a token, RESULTS at a time, so that their loads are under way together. OWN:
 * this rank's has not been stored, but is in own. */
template <int FORMAT, int Y, int ND, int RESULTS, bool FAR, bool OWN = false>
static __device__ __forceinline__ bool add_results(const struct gpu_combine *c, uint32_t epoch,
	uint32_t token, struct extent x, const uint8_t *results, uint32_t which, uint2 route,
	uint32_t *next, sums<Y, ND> &sum, const uint4 *own = NULL)
{
	const struct gpu_exchange *e = &c->exchange;
	constexpr bool ALONE = FORMAT == GPU_FLAG128;
	result_segment<FORMAT, ND> s[RESULTS];
	uint32_t result[RESULTS];
	const uint8_t *from[RESULTS];

#pragma unroll
	for (int r = 0; r < RESULTS; r++) {
		result[r] = *next;
		from[r] = result_from<FAR>(e, results, route, *next, token, which);
		if (*next == UINT32_MAX)
			continue;
		if (!OWN || *next != e->rank)
			segment_look(s[r], from[r], empty_vectors<ALONE, ND>(x));
		*next = next_result(e, route, *next);
	}
#pragma unroll
	for (int r = 0; r < RESULTS; r++) {
		uint32_t peer =
			e->at_home ? __shfl_sync(ALL_LANES, route.x, result[r] % LANES) : result[r];
		uint32_t weight = __shfl_sync(ALL_LANES, route.y, result[r] % LANES);

		if (result[r] == UINT32_MAX)
			break;
		if (!OWN || result[r] != e->rank) {
			if (!segment_await(e, s[r], x, from[r], epoch,
				    (struct awaited){GPU_WAIT_RESULT, peer, token}))
				return false;
			segment_unpack(s[r]);
		}
#pragma unroll
		for (int i = 0; i < ND; i++)
			add_vector<Y>(sum.of[i], OWN && result[r] == e->rank ? own[i] : s[r].v[i],
				e->at_home ? weight_of(c, weight) : 1);
	}
	return true;
}

template <int Y, int ND, bool ALONE>
static __device__ __forceinline__ void store_sum(
	const struct gpu_combine *c, uint32_t token, struct extent x, const sums<Y, ND> &sum)
{
#pragma unroll
	for (int i = 0; i < ND; i++) {
		uint32_t offset;

		if (in_row<ALONE>(x, i, &offset))
			row_store(c->out + token * c->out_stride + offset,
				round_vector<Y>(sum.of[i]));
	}
}

/* Where a token's results come, in this rank's window: that segment of the first. */
template <bool ELASTIC = false>
static __device__ __forceinline__ const uint8_t *results_here(
	const struct gpu_exchange *e, uint32_t token, uint32_t which)
{
	return window_of<ELASTIC>(e, e->rank) + e->window.results +
	       (uint64_t)token * e->window.nr_columns * e->window.result_bytes +
	       (uint64_t)which * e->result.segment_bytes;
}

template <int FORMAT, int Y, int ND, bool FAR, bool ELASTIC>
static __device__ __forceinline__ bool sum_at_home(
	const struct gpu_combine *c, uint32_t epoch, uint32_t token, uint32_t which)
{
	const struct gpu_exchange *e = &c->exchange;
	struct extent x = segment_extent(&e->result, which);
	uint2 route = make_uint2(UINT32_MAX, 0);
	const uint8_t *results = results_here<ELASTIC>(e, token, which);
	sums<Y, ND> sum = {};
	uint32_t next;

	if (lane_id() < e->topk)
		route = e->home_routes[token * e->topk + lane_id()];
	next = next_result(e, route, UINT32_MAX);
	while (next != UINT32_MAX)
		if (!add_results<FORMAT, Y, ND, (ND < 4 ? 4 : 2), FAR>(
			    c, epoch, token, x, results, which, route, &next, sum))
			return false;
	store_sum<Y, ND, FORMAT == GPU_FLAG128>(c, token, x, sum);
	return true;
}

/* By one warp: every rank has read my rows of this round. Far ones' words have come. Relaxed: what
 * may be stored to those rows then is stored by a kernel behind this one. */
template <bool FAR, bool ELASTIC = false>
static __device__ __forceinline__ bool await_arrivals(const struct gpu_exchange *e, uint32_t epoch)
{
	const uint8_t *words = window_of<ELASTIC>(e, e->rank) + e->window.arrivals;

	struct patience patience = {0, 0}; /* of all of a lane's */
	bool good = true;

	for (uint32_t r = lane_id(); r < e->nr_ranks; r += LANES) {
		uint32_t seen;

		wait_for_another(&patience);
		while (good && !is_internode<FAR>(e, r) &&
			(seen = word_load(words + (uint64_t)r * GPU_LINE_BYTES)) != epoch)
			if (!may_wait(&patience, e, r, e->wait_ns, true)) {
				report_wait(
					e, GPU_WAIT_ARRIVAL, r, 0, epoch, seen, patience.start_ns);
				good = false;
			}
	}
	return __all_sync(ALL_LANES, good);
}

template <int FORMAT, int Y, int ND, bool FAR, bool ELASTIC>
static __device__ __forceinline__ void receive_results(const struct gpu_combine *c, uint32_t epoch,
	uint32_t nr_tokens, uint32_t warp, uint32_t nr_warps)
{
	const struct gpu_exchange *e = &c->exchange;
	uint32_t nr = c->release ? 0 : nr_tokens * e->result.nr_segments;

	for (uint32_t i = warp; i < nr; i += nr_warps) {
		uint32_t token = gpu_div(i, e->by_result_segments);

		if (!sum_at_home<FORMAT, Y, ND, FAR, ELASTIC>(
			    c, epoch, token, i - token * e->result.nr_segments))
			return;
		if (i < gridDim.x)
			trace_mark(e, 12);
	}
	if (warp == nr_warps - 1 && await_arrivals<FAR, ELASTIC>(e, epoch) && lane_id() == 0)
		e->state->epoch_dispatch = epoch + 1 ? epoch + 1 : 1; /* not 0: fresh windows hold
									 zeros */
}

namespace tern
{
/* GATED: y is still made while this runs, by a kernel that has let it start when all was there that
 * the dispatch has left. LATE: late_weights.cuh. ELASTIC: ranks
 * may have gone; results are summed at home. */
template <int FORMAT, int Y, int ND, bool FAR = false, bool GATED = false, bool LATE = false,
	bool ELASTIC = false>
static __global__ void __launch_bounds__(512, 1)
	combine_ll(const __grid_constant__ struct gpu_combine c, uint32_t send_warps)
{
	BLOCK_MEMORY(shared);
	const struct gpu_exchange *e = &c.exchange;
	uint32_t warp = threadIdx.x / LANES, nr_warps = blockDim.x / LANES;
	struct deal deal = open_deal(e, shared, send_warps);

	__syncthreads();
	if (warp == 0)
		trace_mark(e, 8);
	if (!GATED)
		wait_for_previous();
	if (warp == 0)
		trace_mark(e, 13);
	if (!GATED)
		let_next_start();
	uint4 state = *(const uint4 *)e->state; /* epoch_dispatch, epoch_combine, nr_tokens, failed
						 */

	if (LATE && c.roles & GPU_SEND)
		send_weights<LATE>(&c, state);
	if (warp < send_warps) {
		if (FAR && state.w) {
			if (GATED)
				wait_for_previous();
			return;
		}
		send_results<FORMAT, Y, ND, FAR, GATED, LATE, ELASTIC>(
			&c, state, &deal, warp, send_warps);
		if (FAR && internode_last(e, send_warps * gridDim.x))
			ring_internode_results(&c, state.y);
		trace_mark(e, 9);
	} else if (internode_arrived<FAR>(e, INTERNODE_COMBINE, state.y,
			   c.release ? GPU_WAIT_ARRIVAL : GPU_WAIT_RESULT, state.w,
			   warp - send_warps, nr_warps - send_warps) &&
		   !state.w) {
		receive_results<FORMAT, Y, ND, FAR, ELASTIC>(&c, state.y, state.z,
			(warp - send_warps) * gridDim.x + blockIdx.x,
			(nr_warps - send_warps) * gridDim.x);
		trace_mark(e, 10);
	}
	if (GATED) /* so that what comes behind this is behind who makes y, too */
		wait_for_previous();
}
} // namespace tern

#endif
