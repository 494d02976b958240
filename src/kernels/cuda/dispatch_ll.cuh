/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency dispatch: each token once to every rank that has one of its experts; there to all its positions in expert-major order.
 *
 *   sending warps     ids, x -> (quantise) -> pieces in the destinations' windows          no counting: rows lie by token
 *   receiving warps   plans of all sources -> positions;  pieces -> rows at their positions
 *
 * On the way of a single row: one load of ids and x, one store over NVLink, the poll that sees it, one store. The plan travels beside the
 * row, and positions are ready when it is there. Floor: that store and poll (targets: 3.1 us above an empty kernel); for many rows, bytes over NVLink's rate.
 *
 * Why rows of the next round may overwrite these: a peer's dispatch of round e+1 follows its combine of e, which has seen my arrival word e, which my
 * combine of e stored, behind this kernel. So this kernel's reads are over.
 */
#ifndef TERN_CUDA_DISPATCH_LL_CUH
#define TERN_CUDA_DISPATCH_LL_CUH

#include "once.cuh"
#include "rows.cuh"
#include "votes.cuh"

/* A row's weights, in front of its segments: four (cells: three) a lane. */
template <int FORMAT>
static __device__ __forceinline__ uint4 load_head(const struct ll_dispatch *d, uint32_t epoch, uint32_t token)
{
	constexpr uint32_t N = FORMAT == LL_LINES ? 4 : 3, LINE = FORMAT == LL_LINES ? 28 : 24;
	const struct ll_exchange *e = &d->exchange;
	uint32_t words[4];

#pragma unroll
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t k = lane_id() / 8 * LINE + lane_id() % 8 * N + i;

		words[i] = __float_as_uint(1.0f);
		if (d->topk_weights && i < N && k < e->topk)
			words[i] = __float_as_uint(d->topk_weights[token * e->topk + k]);
	}
	return make_uint4(words[0], words[1], words[2], has_epoch<FORMAT>() ? epoch : words[3]);
}

/* Lanes of a head that travel. */
template <int FORMAT> static __device__ __forceinline__ bool in_head(const struct ll_exchange *e)
{
	return lane_id() < 8 || (lane_id() < 16 && e->topk > (FORMAT == LL_LINES ? 28 : 24));
}

/* Lane k's weight out of all lanes' heads. */
template <int FORMAT> static __device__ __forceinline__ uint32_t weight_of_head(uint4 head)
{
	constexpr uint32_t N = FORMAT == LL_LINES ? 4 : 3, LINE = FORMAT == LL_LINES ? 28 : 24;
	uint32_t line = lane_id() / LINE, at = lane_id() - line * LINE, from = line * 8 + at / N;
	uint32_t x = __shfl_sync(ALL_LANES, head.x, from), y = __shfl_sync(ALL_LANES, head.y, from);
	uint32_t z = __shfl_sync(ALL_LANES, head.z, from), w = __shfl_sync(ALL_LANES, head.w, from);

	return at % N == 0 ? x : at % N == 1 ? y : at % N == 2 ? z : w;
}

/* The head is a piece of work of its own; with it goes what the combine has to know at home. */
template <int FORMAT, int HOW> static __device__ __forceinline__ void send_head(const struct ll_dispatch *d, uint32_t epoch, uint32_t token)
{
	const struct ll_exchange *e = &d->exchange;
	uint64_t offset = e->window.rows + ((uint64_t)e->rank * e->max_tokens + token) * e->window.row_bytes + lane_id() * 16;
	uint32_t index = token * e->topk + lane_id(), rank, weight;
	int32_t id = lane_id() < e->topk ? expert_id<HOW>(d, index) : -1;
	uint4 head = load_head<FORMAT>(d, epoch, token);
	uint32_t first = destinations<HOW>(e, id, index, &rank);
	bool mine = is_mine<HOW>(e, token);

	for (uint32_t left = mine ? first : 0; left; left &= left - 1) {
		uint32_t to = __shfl_sync(ALL_LANES, rank, __ffs(left) - 1);

		if (in_head<FORMAT>(e))
			piece_store(e->windows[to] + offset, head);
	}
	weight = weight_of_head<FORMAT>(head);
	if (lane_id() < e->topk)
		e->home_routes[index] = make_uint2(rank, weight);
	check_ids<HOW>(d, epoch, token, id);
	if (mine)
		tally_token(e, id, rank, first);
}

template <int FORMAT, int X, int ND, int HOW>
static __device__ __forceinline__ void send_segment(const struct ll_dispatch *d, uint32_t epoch, uint32_t token, uint32_t which, uint32_t share,
	const raw_segment<X, ND> &raw)
{
	const struct ll_exchange *e = &d->exchange;
	struct extent x = segment_extent(&e->row, which);
	uint64_t row = e->window.rows + ((uint64_t)e->rank * e->max_tokens + token) * e->window.row_bytes;
	uint64_t offset = row + LL_HEAD_BYTES + (uint64_t)which * e->row.segment_bytes;
	uint32_t rank, first;
	segment<FORMAT, x_kind<X>::SCALED, ND> s;

	make_segment<X, ND>(d, raw, s);
	segment_pack(s, epoch);
	first = destinations<HOW>(e, raw.id, token * e->topk + lane_id(), &rank);
	for (; first; first &= first - 1) {
		uint32_t to = __shfl_sync(ALL_LANES, rank, __ffs(first) - 1);

		if (to - ll_div(to, d->by_share) * d->by_share.d == share)
			segment_send(s, x, e->windows[to] + offset);
	}
}

/* What is stored first arrives first, and nothing can be copied out before the plans are there: with many rows, those wait until this rank's plan is on its
 * way. docs/benchmarks.md. */
#define LL_HOLD_TOKENS 24

static __device__ __forceinline__ void plan_sent(const struct ll_exchange *e, uint32_t epoch, uint32_t four)
{
	if (lane_id() == 0 && four < LL_PLAN_MARKS)
		word_store(&e->state->plan_sent[four], epoch);
}

template <int FORMAT> static __device__ __forceinline__ void hold_for_plan(const struct ll_exchange *e, uint32_t epoch, uint32_t nr_tokens)
{
	bool needed = lane_id() < LL_PLAN_MARKS && line_needed<FORMAT>(4 * lane_id(), nr_tokens * e->topk);
	uint32_t polls = 0;

	while (!__all_sync(ALL_LANES, !needed || word_load(&e->state->plan_sent[lane_id()]) == epoch) && ++polls < POLLS_PER_LOOK)
		; /* only a matter of speed */
}

/* Plans by the last warps, rows by all. The first loads do not wait to hear how many tokens there are, or which round it is: the caller's
 * buffers hold nr_tokens. */
template <int FORMAT, int X, int ND, int HOW>
static __device__ __forceinline__ void send_all(const struct ll_dispatch *d, uint4 state, uint32_t warp, uint32_t nr_warps)
{
	const struct ll_exchange *e = &d->exchange;
	uint32_t epoch = state.x, nr_tokens = this_rounds_tokens(d), nr_planned = HOW & (LL_ONCE | LL_VOTES) ? d->nr_tokens : nr_tokens;
	bool held = nr_tokens < LL_HOLD_TOKENS;

	for (uint32_t four = nr_warps - 1 - warp; line_needed<FORMAT>(4 * four, nr_planned * e->topk); four += nr_warps) {
		send_plan<FORMAT, HOW>(d, epoch, state.w, nr_tokens, four);
		plan_sent(e, epoch, four);
	}
	nr_tokens = state.w ? 0 : nr_tokens;
#pragma unroll 1
	for (uint32_t i = warp;; i += nr_warps) {
		uint32_t part = ll_div(i, d->by_share), token = ll_div(part, e->by_row_parts), which = part - token * e->by_row_parts.d;
		raw_segment<X, ND> raw;

		if (token >= d->nr_tokens)
			break;
		if (which == e->row.nr_segments) {
			if (token < nr_tokens && i == part * d->by_share.d)
				send_head<FORMAT, HOW>(d, epoch, token);
			continue;
		}
		if (!is_mine<HOW>(e, token))
			continue;
		load_raw<HOW>(d, token, which, raw);
		if (token >= nr_tokens)
			break;
		if (!held)
			hold_for_plan<FORMAT>(e, epoch, nr_tokens);
		if (HOW && !held && warp == 0)
			stamp(e, 7);
		held = true;
		send_segment<FORMAT, X, ND, HOW>(d, epoch, token, which, i - part * d->by_share.d, raw);
	}
	if (warp == 0 && lane_id() == 0 && !state.w)
		e->state->nr_tokens = nr_tokens;
}

/* ---- receiving ----------------------------------------------------------------------------------------------- */

template <int FORMAT, int HOW>
static __device__ __forceinline__ void take_plans(const struct ll_exchange *e, const struct positions *p, uint32_t epoch, bool failed, uint32_t warp, uint32_t nr_warps)
{
	bool good = !failed;
	uint32_t most = 0;

	for (uint32_t s = warp; s < e->nr_ranks && good; s += nr_warps)
		good = take_plan<FORMAT, HOW>(e, p, epoch, s, 0);
	if (!good && lane_id() == 0)
		p->failed[0] = 1;
	warps_sync(nr_warps * LANES);
	for (uint32_t s = 0; s < e->nr_ranks; s++)
		most = max(most, p->nr_tokens[s] * e->topk);
	if (p->failed[0] || !line_needed<FORMAT>(4, most))
		return;
	for (uint32_t i = warp; good; i += nr_warps) {
		uint32_t four = ll_div(i, e->by_ranks), s = i - four * e->nr_ranks;

		if (!line_needed<FORMAT>(4 + 4 * four, most))
			break;
		if (line_needed<FORMAT>(4 + 4 * four, p->nr_tokens[s] * e->topk))
			good = take_plan<FORMAT, HOW>(e, p, epoch, s, 1 + four);
	}
	if (!good && lane_id() == 0)
		p->failed[1] = 1;
	warps_sync(nr_warps * LANES);
}

/* A warp's share of the receiving: a segment of a row that may or may not come. Rows of all sources alternate. */
struct share {
	uint32_t source, token, which;
	const uint8_t *row;
};

static __device__ __forceinline__ struct share share_of(const struct ll_exchange *e, uint32_t i)
{
	struct share a;
	uint32_t row = ll_div(i, e->by_row_parts);

	a.which = i - row * e->by_row_parts.d;
	a.token = ll_div(row, e->by_ranks);
	a.source = e->rank + row - a.token * e->nr_ranks;
	a.source = a.source >= e->nr_ranks ? a.source - e->nr_ranks : a.source;
	a.row = e->windows[e->rank] + e->window.rows + ((uint64_t)a.source * e->max_tokens + a.token) * e->window.row_bytes;
	return a;
}

template <int FORMAT, bool SCALED, int ND>
static __device__ __forceinline__ void store_rows(const struct ll_dispatch *d, const segment<FORMAT, SCALED, ND> &s, struct extent x, uint32_t position)
{
	const struct ll_exchange *e = &d->exchange;

	for (uint32_t here = __ballot_sync(ALL_LANES, position != UINT32_MAX); here; here &= here - 1) {
		uint64_t to = __shfl_sync(ALL_LANES, position, __ffs(here) - 1);
#pragma unroll
		for (int i = 0; i < ND; i++) {
			uint32_t offset;

			if (!in_row(&e->row, x, i, &offset))
				continue;
			row_store(d->out_x + to * e->row.row_bytes + offset, s.v[i]);
			if constexpr (SCALED)
				store_scale(d, d->out_scales, to * e->row.nr_lines + x.first_line + line_of(i), s.scale[i]);
		}
	}
}

/* Lane k's local expert, if its route ends here; else UINT32_MAX. */
template <int HOW> static __device__ __forceinline__ uint32_t local_expert(const struct ll_exchange *e, const struct positions *p, struct share a)
{
	uint32_t physical = LL_NO_EXPERT;

	if (lane_id() < e->topk)
		physical = p->ids[a.source * p->ids_stride + a.token * e->topk + lane_id()];
	return local_of<HOW>(e, physical);
}

/* Does any of the row's routes end here? */
template <int HOW> static __device__ __forceinline__ bool comes_here(const struct ll_exchange *e, const struct positions *p, struct share a)
{
	if (HOW & LL_VOTES)
		return __any_sync(ALL_LANES, local_expert<HOW>(e, p, a) != UINT32_MAX);
	return p->present[a.source * p->token_words + a.token / 32] >> a.token % 32 & 1;
}

/* A source's rows that came here before this one. */
template <int HOW> static __device__ __forceinline__ uint32_t rows_before(const struct ll_exchange *e, const struct positions *p, struct share a)
{
	if (HOW & LL_VOTES)
		return rows_by_votes(e, p, a.source, a.token);
	return bits_before(p->present + a.source * p->token_words, a.token);
}

/* The position of lane k's row; by_source the first route has it for all. */
template <int HOW>
static __device__ __forceinline__ uint32_t position_of(const struct ll_dispatch *d, const struct positions *p, struct share a, uint32_t local)
{
	const struct ll_exchange *e = &d->exchange;
	uint32_t place = a.source * e->nr_local + local;

	if (HOW & LL_VOTES)
		return position_by_votes(e, p, a.source, a.token, local);
	if (!(HOW & LL_PLAIN) && d->by_source) {
		uint32_t here = __ballot_sync(ALL_LANES, local != UINT32_MAX);

		return lane_id() == __ffs(here) - 1 ? p->base[a.source] + bits_before(p->present + a.source * p->token_words, a.token) : UINT32_MAX;
	}
	return local == UINT32_MAX ? UINT32_MAX : p->base[place] + bits_before(p->bits + place * p->token_words, a.token);
}

/* What the caller is told of a row. */
template <int HOW>
static __device__ __forceinline__ void tell_row(const struct ll_dispatch *d, struct share a, uint32_t local, uint32_t position, uint32_t weight)
{
	const struct ll_exchange *e = &d->exchange;
	uint32_t at;

	if (HOW & LL_PLAIN || !d->by_source) {
		if (position != UINT32_MAX)
			d->out_rows[position] = make_int4((int)a.source, (int)a.token, (int)lane_id(), (int)weight);
		return;
	}
	at = __reduce_min_sync(ALL_LANES, position);
	if (lane_id() < e->topk) {
		d->out_ids[(uint64_t)at * e->topk + lane_id()] = (int32_t)local;
		d->out_weights[(uint64_t)at * e->topk + lane_id()] = __uint_as_float(local == UINT32_MAX ? 0 : weight);
	}
	if (lane_id() == 0)
		d->out_rows[at] = make_int4((int)a.source, (int)a.token, -1, 0);
}

/* For the combine, and for the caller: one piece of work with a row's head. */
template <int FORMAT, int HOW>
static __device__ __forceinline__ bool describe_row(const struct ll_dispatch *d, const struct positions *p, uint32_t epoch, struct share a, uint4 head)
{
	const struct ll_exchange *e = &d->exchange;
	uint32_t row = a.source * e->max_tokens + rows_before<HOW>(e, p, a), weight;
	uint32_t local = local_expert<HOW>(e, p, a), position = position_of<HOW>(d, p, a, local);
	struct patience patience = {0, 0};

	while (!__all_sync(ALL_LANES, !in_head<FORMAT>(e) || !has_epoch<FORMAT>() || head.w == epoch)) {
		if (in_head<FORMAT>(e))
			head = piece_load(a.row + lane_id() * 16);
		if (may_wait(&patience, e->wait_ns))
			continue;
		if (lane_id() == 7)
			report_wait(e, LL_WAIT_ROW, a.source, a.token, epoch, head.w, &patience);
		return false;
	}
	weight = weight_of_head<FORMAT>(head);
	if (lane_id() == 0)
		e->row_tokens[row] = a.token;
	if (lane_id() < e->topk)
		e->row_routes[row * e->topk + lane_id()] = make_uint2(position, weight);
	tell_row<HOW>(d, a, local, position, weight);
	return true;
}

/* The pieces have been looked for already. */
template <int FORMAT, bool SCALED, int ND, int HOW>
static __device__ __forceinline__ bool receive_segment(const struct ll_dispatch *d, const struct positions *p, uint32_t epoch, struct share a,
	segment<FORMAT, SCALED, ND> &s)
{
	const struct ll_exchange *e = &d->exchange;
	struct extent x = segment_extent(&e->row, a.which);
	uint32_t position = position_of<HOW>(d, p, a, local_expert<HOW>(e, p, a));

	if (!segment_await<(HOW & LL_QUIET) != 0>(e, s, x, a.row + LL_HEAD_BYTES + (uint64_t)a.which * e->row.segment_bytes, epoch,
		    (struct awaited){LL_WAIT_ROW, a.source, a.token}))
		return false;
	segment_unpack(s);
	store_rows(d, s, x, position);
	return true;
}

/* A head's pieces go where those of a segment's first vector would. */
template <int FORMAT, bool SCALED, int ND>
static __device__ __forceinline__ void look_for(const struct ll_exchange *e, struct share a, segment<FORMAT, SCALED, ND> &s)
{
	if (a.which < e->row.nr_segments)
		segment_look(s, a.row + LL_HEAD_BYTES + (uint64_t)a.which * e->row.segment_bytes, 0);
	else
		s.v[0] = piece_load(a.row + lane_id() % 16 * 16);
}

/* Few routes: all ids, and nothing else before the first row. */
template <int FORMAT, class S>
static __device__ __forceinline__ bool make_votes(const struct ll_dispatch *d, const struct positions *p, uint32_t epoch, bool failed, uint32_t warp,
	uint32_t nr_warps, struct share a, S &s)
{
	const struct ll_exchange *e = &d->exchange;

	if (a.token < e->max_tokens)
		look_for(e, a, s);
	if (!take_ids<FORMAT>(e, p, epoch, failed, warp, nr_warps))
		return false;
	if (warp == 0)
		stamp(e, 4);
	if (blockIdx.x == gridDim.x - 1 && warp == nr_warps - 1)
		publish_votes(d, p);
	return true;
}

/* failed: an earlier kernel has, or this one elsewhere, which some warps of a block may have seen and others not: they leave together. */
template <int FORMAT, bool SCALED, int ND, int HOW>
static __device__ __forceinline__ void receive_all(const struct ll_dispatch *d, const struct positions *p, uint32_t epoch, bool failed, uint32_t warp, uint32_t nr_warps)
{
	const struct ll_exchange *e = &d->exchange;
	uint32_t thread = warp * LANES + lane_id(), i = warp * gridDim.x + blockIdx.x, step = nr_warps * gridDim.x, most = 0;
	segment<FORMAT, SCALED, ND> s;
	struct share a = share_of(e, i);

	if constexpr ((HOW & LL_VOTES) != 0) {
		if (!make_votes<FORMAT>(d, p, epoch, failed, warp, nr_warps, a, s))
			return;
	} else {
		positions_clear(p, thread, nr_warps * LANES);
		warps_sync(nr_warps * LANES);
		if (HOW & LL_ONCE)
			take_plans_once<FORMAT, HOW>(e, p, epoch, failed, warp, nr_warps);
		else
			take_plans<FORMAT, HOW>(e, p, epoch, failed, warp, nr_warps);
		if (warp == 0)
			stamp(e, 4);
		if (p->failed[0] | p->failed[1])
			return;
		if (a.token < e->max_tokens) /* on the way while positions are made */
			look_for(e, a, s);
		if (HOW & LL_PLAIN || !d->by_source)
			place_experts<HOW>(d, p, thread, nr_warps * LANES, blockIdx.x == 0);
		else if (warp == 0)
			place_sources(d, p, blockIdx.x == 0);
		if (blockIdx.x == gridDim.x - 1 && warp == nr_warps - 1)
			count_rows(e, p);
		warps_sync(nr_warps * LANES);
	}
	if (warp == 0)
		stamp(e, 5);
	for (uint32_t r = 0; r < e->nr_ranks; r++)
		most = max(most, p->nr_tokens[r]);
	while (a.token < most) {
		if (comes_here<HOW>(e, p, a))
			if (a.which == e->row.nr_segments ? !describe_row<FORMAT, HOW>(d, p, epoch, a, s.v[0])
							  : !receive_segment<FORMAT, SCALED, ND, HOW>(d, p, epoch, a, s))
				return;
		i += step;
		a = share_of(e, i);
		if (a.token < most)
			look_for(e, a, s);
	}
	if (warp == 0)
		stamp(e, 6);
	if (blockIdx.x == 0 && thread == 0) {
		e->state->epoch_combine = epoch;
		tally_round(e);
	}
}

template <int FORMAT, int X, int ND, int HOW = 0>
static __global__ void __launch_bounds__(512) dispatch_ll(const __grid_constant__ struct ll_dispatch d, uint32_t send_warps)
{
	BLOCK_MEMORY(shared);
	const struct ll_exchange *e = &d.exchange;
	uint32_t warp = threadIdx.x / LANES, nr_warps = blockDim.x / LANES;

	if (warp == 0)
		stamp(e, 0);
	wait_for_previous();
	let_next_start();
	uint4 state = *(const uint4 *)e->state; /* epoch_dispatch, epoch_combine, nr_tokens, failed */

	if (warp < send_warps) {
		send_all<FORMAT, X, ND, HOW>(&d, state, warp * gridDim.x + blockIdx.x, send_warps * gridDim.x);
		if (warp == 0)
			stamp(e, 1);
	} else {
		struct positions p = positions_in<FORMAT>(shared, e);

		if (HOW & LL_VOTES)
			p.ids_stride = e->max_tokens * e->topk;
		receive_all<FORMAT, x_kind<X>::SCALED, ND, HOW>(&d, &p, state.x, state.w, warp - send_warps, nr_warps - send_warps);
	}
}

#endif
