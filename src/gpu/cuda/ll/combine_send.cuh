/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency combine, the sending warps: what the experts here made of other ranks' tokens, and of
 * this one's. */
#ifndef TERN_GPU_CUDA_LL_COMBINE_SEND_CUH
#define TERN_GPU_CUDA_LL_COMBINE_SEND_CUH

#include "gpu/cuda/common/gate.cuh"
#include "gpu/cuda/common/results.cuh"
#include "gpu/cuda/ll/late_weights.cuh"

/* Of results: GPU_FLAG128's are cut by each end as it likes. */
template <int FORMAT, int ND>
using result_segment = segment<FORMAT, false, ND, FORMAT == GPU_FLAG128>;

/* A segment of a token's result in a column. */
struct result_place {
	uint32_t token, column, which;
	uint32_t number; /* of the token's sum among those for a home on another node */
	uint64_t offset; /* in a mapped home's results */
};

static __device__ __forceinline__ uint64_t result_offset(
	const struct gpu_exchange *e, uint64_t number, uint32_t which)
{
	return number * e->window.result_bytes + (uint64_t)which * e->result.segment_bytes;
}

template <bool FAR, bool ELASTIC>
static __device__ __forceinline__ uint8_t *place_at(
	const struct gpu_exchange *e, uint32_t home, const struct result_place &p)
{
	uint64_t offset = p.offset;

	if (is_internode<FAR>(e, home))
		offset = result_offset(e,
			result_number<FAR>(
				e, home, p.token, p.column, e->window.nr_columns, p.number),
			p.which);
	return part_to<FAR, ELASTIC>(e, INTERNODE_RESULTS, home) + e->window.results + offset;
}

/* To the home of the source's tokens: every rank that passes them. */
template <int FORMAT, int ND, bool FAR, bool ELASTIC>
static __device__ __forceinline__ void send_home(const struct gpu_exchange *e,
	const result_segment<FORMAT, ND> &s, struct extent x, uint32_t source,
	const struct result_place &p)
{
	uint32_t home = home_first(e, source);

	for (uint32_t r = home; r < home + e->by_replicas.d; r++)
		segment_send(s, x, place_at<FAR, ELASTIC>(e, r, p));
}

/* Of a token's sum here, which has at least one row: the first rows are on their way, and weights
 * known. late: those have come with the combine. False: they did not. */
template <int Y, bool LATE>
static __device__ __forceinline__ bool begin_sum(const struct gpu_combine *c, uint32_t epoch,
	uint32_t source, uint32_t token, bool late, uint32_t here, struct extent x, uint2 *route,
	struct summation<Y> &sum)
{
	uint4 weight = {};

	if (LATE && late)
		weight = look_for_weight(c, source, token, *route);
	sum.a.nr = (int)__popc(here);
	sum.a.more = find_rows<0>(c, *route, here, here, sum.a);
	load_batch<0, true>(c, sum.a, x, 0, sum.first); /* on their way as early as can be */
	sum.a.more = find_rows<BATCH>(c, *route, here, sum.a.more, sum.a);
	if (LATE && late && !await_weights(c, epoch, source, token, weight, route))
		return false;
	find_weights(c, *route, here, sum.a);
	return true;
}

/* One segment of a token's sum here. A vector leaves as soon as it is summed, while the next one's
 * rows are on their way: NVLink has work from the first vector on. */
template <int Y, int ND, bool FAR, bool LATE>
static __device__ __forceinline__ bool send_sum(const struct gpu_combine *c, uint32_t epoch,
	uint32_t source, const struct result_place &p, uint2 route, uint32_t here, struct extent x)
{
	const struct gpu_exchange *e = &c->exchange;
	uint32_t home = home_first(e, source);
	uint4 words = make_uint4(0, 0, 0, 0);
	result_segment<GPU_FLAG128, ND> s;
	struct summation<Y> sum;

	if (!begin_sum<Y, LATE>(c, epoch, source, p.token, true, here, x, &route, sum))
		return false;
#pragma unroll
	for (int i = 0; i < ND; i++) {
		s.v[i] = i + 1 < ND ? sum_vector<Y, false, true>(c, sum, route, x, i)
				    : sum_vector<Y, true, true>(c, sum, route, x, i);
		lines_pack_vector(s, i, epoch, &words);
		for (uint32_t r = home; r < home + e->by_replicas.d; r++)
			vector_send(s, x, i, place_at<FAR, false>(e, r, p));
	}
	return true;
}

/* Rows here of those replicas of a source that come before it. */
template <bool FAR>
static __device__ __forceinline__ uint32_t earlier_replicas(
	const struct gpu_exchange *e, uint32_t source)
{
	uint32_t rows = 0;

	for (uint32_t s = home_first(e, source); FAR && s < source; s++)
		rows += e->state->nr_from[s];
	return rows;
}

/* Of this rank's sum of a token. here: its routes. */
static __device__ __forceinline__ uint32_t column_of_sum(
	const struct gpu_exchange *e, uint32_t here)
{
	return e->window.rank_columns ? e->rank : __ffs(here) - 1;
}

/* One segment of what the experts here made of one token; number: of its row from the source.
 * False: weights did not come. */
template <int FORMAT, int Y, int ND, bool FAR, bool LATE, bool ELASTIC>
static __device__ __forceinline__ bool send_result(const struct gpu_combine *c, uint32_t epoch,
	uint32_t source, uint32_t number, uint32_t token, uint2 route, uint32_t which)
{
	const struct gpu_exchange *e = &c->exchange;
	struct extent x = segment_extent(&e->result, which);
	uint64_t offset = (uint64_t)token * e->window.nr_columns * e->window.result_bytes +
			  (uint64_t)which * e->result.segment_bytes;
	uint32_t here = __ballot_sync(ALL_LANES, route.x != UINT32_MAX),
		 column = column_of_sum(e, here);
	struct result_place sum = {token, column, which, number + earlier_replicas<FAR>(e, source),
		offset + column * e->window.result_bytes};
	result_segment<FORMAT, ND> s;

	if (!ELASTIC && !e->at_home && FORMAT == GPU_FLAG128) {
		return send_sum<Y, ND, FAR, LATE>(c, epoch, source, sum, route, here, x);
	}
	if (!ELASTIC && !e->at_home) {
#pragma unroll
		for (int i = 0; i < ND; i += CHUNK(ND))
			sum_part<Y, CHUNK(ND), (ND == 1 ? 4 : 8 / CHUNK(ND))>(
				c, route, x, i, s.v + i);
		segment_pack(s, epoch);
		send_home<FORMAT, ND, FAR, false>(e, s, x, source, sum);
		return true;
	}
	for (; here; here &= here - 1) {
		uint32_t k = __ffs(here) - 1;
		struct result_place row = {
			token, k, which, number, offset + k * e->window.result_bytes};
		uint4 v[ND];

		load_part<FORMAT == GPU_FLAG128>(c, __shfl_sync(ALL_LANES, route.x, k), x, 0, v);
#pragma unroll
		for (int i = 0; i < ND; i++)
			s.v[i] = v[i];
		segment_pack(s, epoch);
		send_home<FORMAT, ND, FAR, ELASTIC>(e, s, x, source, row);
	}
	return true;
}

/* A warp's share of the sending: a segment of what a source's row has become here. */
struct outgoing {
	uint32_t row, source, which;
	uint32_t token, nr; /* of the row; of the source's rows here */
	uint2 route;        /* lane k's */
};

/* How shares are dealt. To blocks in turn; to a block's warps by tickets, as they come for the next
 * one: sums are of one row or of eight, and this rank's own leave at once where others wait for
 * NVLink. */
#define LL_DEAL_BYTES 16 /* of shared memory */
struct deal {
	uint32_t *ticket;           /* in the block's shared memory */
	struct gpu_divisor by_turn; /* segments of all homes in which each block has a share */
};

/* By one thread, and a barrier of the block before the first is drawn: each warp that sends has two
 * shares without a ticket. */
static __device__ __forceinline__ struct deal open_deal(
	const struct gpu_exchange *e, uint32_t *shared, uint32_t send_warps)
{
	uint32_t turn = gpu_div(gridDim.x, e->by_ranks);

	if (threadIdx.x == 0)
		*shared = 2 * send_warps;
	return {shared, gpu_divisor_of(turn ? turn : 1)};
}

static __device__ __forceinline__ uint32_t draw_share(const struct deal *deal)
{
	return __shfl_sync(ALL_LANES, lane_id() == 0 ? atomicAdd(deal->ticket, 1u) : 0, 0);
}

/* A block's share number n. Homes alternate, and each rank begins with another one, so that they do
 * not all write to one; with each turn a block's share is another home's. */
static __device__ __forceinline__ struct outgoing find_share(
	const struct gpu_exchange *e, const struct deal *deal, uint32_t n)
{
	struct outgoing o;
	uint32_t i = n * gridDim.x + blockIdx.x, at = gpu_div(i, e->by_ranks),
		 home = i - at * e->nr_ranks + gpu_div(at, deal->by_turn) * (e->nr_ranks - 1);

	o.row = gpu_div(at, e->by_result_segments);
	o.source = e->rank + 1 + home - gpu_div(home, e->by_ranks) * e->nr_ranks;
	o.source = o.source >= e->nr_ranks ? o.source - e->nr_ranks : o.source;
	o.which = at - o.row * e->result.nr_segments;
	return o;
}

/* False: there cannot be such a row. */
static __device__ __forceinline__ bool look_up(const struct gpu_exchange *e, struct outgoing *o)
{
	o->route = make_uint2(UINT32_MAX, 0);
	if (o->row >= e->max_tokens)
		return false;
	o->token = e->row_tokens[o->source * e->max_tokens + o->row]; /* all under way before it is
									 known whether there is such
									 a row */
	if (lane_id() < e->topk)
		o->route =
			e->row_routes[(o->source * e->max_tokens + o->row) * e->topk + lane_id()];
	o->nr = e->state->nr_from[o->source];
	return true;
}

/* Who is no member any more has read all, by this rank's own word. By one warp. */
static __device__ __noinline__ void arrivals_for_gone(const struct gpu_exchange *e, uint32_t epoch)
{
	for (uint32_t i = lane_id(); i < e->view->nr_gone; i += LANES)
		word_store(window_of<true>(e, e->rank) + e->window.arrivals +
				   (uint64_t)e->view->gone[i] * GPU_LINE_BYTES,
			epoch);
}

/* My arrival word, to all; by one warp. An internode rank has it from the head of my results. */
template <bool FAR, bool ELASTIC = false>
static __device__ __forceinline__ void tell_arrival(const struct gpu_combine *c, uint32_t epoch)
{
	const struct gpu_exchange *e = &c->exchange;

	for (uint32_t r = lane_id(); r < e->nr_ranks; r += LANES)
		if (!is_internode<FAR>(e, r))
			word_store(window_of<ELASTIC>(e, r) + e->window.arrivals +
					   (uint64_t)e->rank * GPU_LINE_BYTES,
				epoch);
	if (lane_id() == 0 && !c->release)
		counters_results(e);
}

/* Of a row's routes: lane k's tile. */
static __device__ __forceinline__ uint32_t tile_of_route(
	const struct gpu_combine *c, const struct outgoing *o)
{
	const struct gpu_exchange *e = &c->exchange;

	return lane_id() < e->topk
		       ? c->gate.route_tiles[(o->source * e->max_tokens + o->row) * e->topk +
					     lane_id()]
		       : UINT32_MAX;
}

/* The first segment's routes are under way before it is known which round it is, and whether an
 * earlier one has failed; the next one's while this one is sent. */
template <int FORMAT, int Y, int ND, bool FAR, bool GATED, bool LATE, bool ELASTIC>
static __device__ __forceinline__ void send_results(const struct gpu_combine *c, uint4 state,
	const struct deal *deal, uint32_t warp, uint32_t nr_warps)
{
	const struct gpu_exchange *e = &c->exchange;
	uint32_t most = 0;
	struct outgoing next = find_share(e, deal, warp),
			after = find_share(e, deal, warp + nr_warps);
	bool more = look_up(e, &next), first = true;

	for (uint32_t s = lane_id(); s < e->nr_ranks; s += LANES)
		most = max(most, e->state->nr_from[s]);
	if (state.w)
		return;
	if (blockIdx.x == gridDim.x - 1 && warp == nr_warps - 1) {
		tell_arrival<FAR, ELASTIC>(c, state.y);
		if (ELASTIC)
			arrivals_for_gone(e, state.y);
	}
	most = __reduce_max_sync(ALL_LANES, most);
#pragma unroll 1
	for (; more && !c->release; first = false) {
		struct outgoing now = next;

		if (now.row >= most)
			return;
		next = after;
		more = look_up(e, &next);
		if constexpr (GATED)
			if (now.row < now.nr &&
				!await_tiles(e, &c->gate, state.y, tile_of_route(c, &now)))
				return;
		if (now.row < now.nr &&
			!send_result<FORMAT, Y, ND, FAR, LATE, ELASTIC>(
				c, state.y, now.source, now.row, now.token, now.route, now.which))
			return;
		after = find_share(e, deal, draw_share(deal)); /* so that nothing is in the way of
								  the next loads */
		if (first && warp == 0)
			trace_mark(e, 11);
	}
}

/* Runs of the results of routes that one internode home gets of one source's tokens. By a warp. */
static __device__ __noinline__ uint32_t ring_results_of(
	const struct gpu_exchange *e, const struct internode_rank *home, uint32_t source)
{
	uint32_t nr = e->state->nr_from[source], runs = 0;

	for (uint32_t first = 0; first < nr; first += LANES) {
		uint32_t at = source * e->max_tokens + first + lane_id(), bits = 0;

		for (uint32_t k = 0; k < e->topk && first + lane_id() < nr; k++)
			bits |= (uint32_t)(e->row_routes[at * e->topk + k].x != UINT32_MAX) << k;
		bits = bits ? internode_ring_bits(e->internode, home, INTERNODE_COMBINE,
				      (uint64_t)e->row_tokens[at] * e->topk, bits)
			    : 0;
		runs += __reduce_add_sync(ALL_LANES, bits);
	}
	return runs;
}

/* By one warp, when all have stored what they send. With a release the head alone. */
static __device__ __noinline__ void ring_internode_results(
	const struct gpu_combine *c, uint32_t epoch)
{
	const struct gpu_exchange *e = &c->exchange;
	struct internode_table *internode = e->internode;
	uint32_t begun = 0;

	for (uint32_t i = 0; i < internode->nr_internode; i++) {
		uint32_t home = home_first(e, internode->ranks[i].rank), runs = 0, sums = 0;

		for (uint32_t source = home; source < home + e->by_replicas.d && !c->release;
			source++) {
			if (e->at_home)
				runs += ring_results_of(e, &internode->ranks[i], source);
			else
				sums += e->state->nr_from[source];
		}
		begun += internode_ring_sums(internode, &internode->ranks[i], epoch, runs, sums);
	}
	if (lane_id() == 0)
		internode_has_begun(internode, INTERNODE_COMBINE, begun);
}

#endif
