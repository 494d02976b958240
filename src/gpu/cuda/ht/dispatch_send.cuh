/* SPDX-License-Identifier: Apache-2.0 */
/* High-throughput dispatch, the sending warps: what leaves before places are known, and all other
 * rows. */
#ifndef TERN_GPU_CUDA_HT_DISPATCH_SEND_CUH
#define TERN_GPU_CUDA_HT_DISPATCH_SEND_CUH

#include "gpu/cuda/ht/dispatch_heads.cuh"

/* To the first place on each rank, and on this rank to all; in rank order from the next on, as
 * lanes stand for routes. */
static __device__ __forceinline__ void send_part(const struct gpu_dispatch *d,
	const struct ht_exchange *h, const struct dispatch_warp *w, uint32_t number,
	struct destination to, uint32_t lanes, shared_at buffer)
{
	struct part p = part_of(d, w, number);

#pragma unroll 1
	for (uint32_t left = lanes; left; left &= left - 1) {
		uint32_t lane = __ffs(left) - 1, rank = __shfl_sync(ALL_LANES, to.rank, lane);

		store_part(d, w, &p, d->exchange.windows[rank], placed_rows(h),
			__shfl_sync(ALL_LANES, to.position, lane), buffer);
	}
	copies_close();
}

/* A token on its way through the buffers. */
struct outgoing {
	struct destination to;
	uint32_t weight;       /* lane k's */
	uint32_t token, lanes; /* lanes: whose places are stored to */
	bool first, there;     /* first: of this lane's rank */
	uint32_t buffer;       /* its first, of one that has been made before places are known */
};

/* How a warp's heads leave. */
struct heads_way {
	struct note_turns notes;
	bool noted; /* else by the warp itself */
	uint32_t epoch;
};

/* Its rows are where they belong. By the warp itself: behind every lane's fence, so who sees all of
 * a head sees the row. */
static __device__ __forceinline__ void pass_heads(const struct gpu_dispatch *d,
	const struct ht_exchange *h, struct heads_way *way, struct outgoing *o)
{
	uint4 head = make_uint4(o->first || !d->by_source ? o->to.position : UINT32_MAX, o->weight,
		o->to.local, way->epoch);

	o->there = false;
	if (way->noted) {
		put_note(&way->notes, o->token, head, o->to.rank);
		return;
	}
	__syncwarp();
	stores_before();
	if (lane_id() < d->exchange.topk)
		store_heads(&d->exchange, h, o->token, lane_id(), head, o->to.rank);
}

static __device__ __forceinline__ uint32_t load_weight(
	const struct gpu_dispatch *d, uint32_t token, uint32_t nr_tokens)
{
	const struct gpu_exchange *e = &d->exchange;

	return __float_as_uint(lane_id() < e->topk && token < nr_tokens && d->topk_weights
				       ? d->topk_weights[token * e->topk + lane_id()]
				       : 1.0f);
}

/* What is known of the tokens behind, each step a load ahead: a ticket, then a token's routes, then
 * their places. */
struct ahead {
	uint32_t *tickets, ticket; /* lane 0's */
	uint32_t dealt;            /* tokens that need none */
	uint32_t token, nr_tokens;
	uint2 route;
	uint32_t weight;
	struct destination to;
};

static __device__ __forceinline__ void look_ahead(
	const struct gpu_dispatch *d, const struct ht_exchange *h, struct ahead *a)
{
	const struct gpu_exchange *e = &d->exchange;

	do {
		a->token = __shfl_sync(ALL_LANES, a->ticket, 0) + a->dealt;
		if (lane_id() == 0)
			a->ticket = atomicAdd(a->tickets, 1u);
	} while (a->token < a->nr_tokens && !is_mine(e, a->token));
	a->route = a->token < a->nr_tokens ? load_route(d, h, a->token) : make_uint2(UINT32_MAX, 0);
	a->weight = load_weight(d, a->token, a->nr_tokens);
}

/* What is to be stored, now that places are known. */
static __device__ __forceinline__ void choose_lanes(
	const struct gpu_exchange *e, struct outgoing *o)
{
	uint32_t below = lanes_below(), same, twice;

	same = __match_any_sync(ALL_LANES, o->to.rank);
	o->first = o->to.rank != UINT32_MAX && (same & below) == 0;
	twice = __match_any_sync(ALL_LANES,
		o->to.rank == e->rank ? o->to.position : UINT32_MAX); /* an expert named twice has
									 one place */
	o->lanes =
		__ballot_sync(ALL_LANES, o->to.rank == e->rank ? (twice & below) == 0 : o->first);
}

static __device__ __forceinline__ struct outgoing next_token(
	const struct gpu_dispatch *d, const struct ahead *a)
{
	struct outgoing o;

	o.token = a->token;
	o.there = a->token < a->nr_tokens;
	o.to = a->to;
	o.weight = a->weight;
	choose_lanes(&d->exchange, &o);
	return o;
}

/* Its first bytes are on their way, while what is in the other buffer is stored. */
template <int X, int ND>
static __device__ __forceinline__ void begin_part(const struct gpu_dispatch *d,
	struct dispatch_warp *w, uint32_t token, uint32_t number, raw_segment<X, ND> &raw)
{
	if (X != GPU_X_COPY) {
		load_raw(d, token, first_segment(&d->exchange, w, number), raw);
		return;
	}
	copies_read<DISPATCH_BUFFERS - 1>();
	__syncwarp();
	stream_fetch(&w->stream, 0, d->x + token * d->x_stride + number * w->part_bytes,
		part_of(d, w, number).bytes, 0);
	stream_fetched(&w->stream, part_of(d, w, number).bytes, 0);
}

/* All of it is in a buffer. */
template <int X, int ND>
static __device__ __forceinline__ shared_at end_part(const struct gpu_dispatch *d,
	struct dispatch_warp *w, uint32_t token, uint32_t number, raw_segment<X, ND> &raw)
{
	shared_at buffer;

	if (X == GPU_X_COPY) {
		buffer = stream_take(&w->stream);
		__syncwarp();
		return buffer;
	}
	buffer = stream_buffer(&w->stream);
	stream_filled(&w->stream);
	copies_read<DISPATCH_BUFFERS - 1>();
	__syncwarp();
	make_part<X, ND>(d, w, token, number, buffer, raw);
	return buffer;
}

/* ---- before places are known ----------------------------------------------------------------- */

/* May x and ids be read? This kernel may have been started while the plan was not even counted, and
 * its own wait is for the plan's end. But the plan waits for what was ahead of it in the stream,
 * the last round's combine among that, and then says so in `begun`: released there, acquired here
 * by every lane. It is of this round if it is the epoch to come, which only the combine moves on.
 * False: it did not come, or an earlier round has failed. */
static __device__ __forceinline__ bool plan_has_begun(const struct gpu_exchange *e, uint32_t *epoch)
{
	struct patience patience = {0, 0};
	uint32_t begun;

	do {
		begun = word_acquire(&e->state->begun);
		*epoch = word_load(&e->state->epoch_dispatch);
		if (__all_sync(ALL_LANES, begun == *epoch)) {
			copy_in_ready();
			__syncwarp();
			return !__any_sync(ALL_LANES, word_load(&e->state->failed));
		}
	} while (warp_may_wait(&patience, e, e->rank, e->wait_ns));
	if (lane_id() == 0)
		report_wait(e, GPU_WAIT_PLAN, e->rank, 0, *epoch, begun, patience.start_ns);
	return false;
}

static __device__ __forceinline__ shared_at made_buffer(
	const struct dispatch_warp *w, const struct outgoing *o, uint32_t number)
{
	return w->stream.buffers + (o->buffer + number) * w->stream.bytes;
}

/* Are the counts of all here, so that slots are free? The plan's kernel acquires them and releases
 * `exchanged`. It is also the right time: behind rows counts would wait for those, and the plan
 * with them. False: they did not come; the plan says so, whose patience ends before this one's. It
 * is not to go on when this has given up: then nobody would send the token. */
static __device__ __forceinline__ bool counts_are_here(const struct gpu_exchange *e, uint32_t epoch)
{
	struct patience patience = {0, 0};

	do {
		if (__all_sync(ALL_LANES, word_acquire(&e->state->exchanged) == epoch)) {
			__syncwarp();
			return true;
		}
		if (__any_sync(ALL_LANES, word_load(&e->state->failed)))
			return false;
	} while (warp_may_wait(&patience, e, e->rank, 2 * e->wait_ns));
	return false;
}

/* What a warp does before places are known. */
struct before {
	struct outgoing early; /* a token that leaves for other ranks' early slots */
	struct outgoing made;  /* where buffers have room for another: the one behind it, so that it
				  can leave at once when places are known */
};

/* Into the warp's buffers. */
template <int X, int ND>
static __device__ __forceinline__ struct outgoing make_token(
	const struct gpu_dispatch *d, struct dispatch_warp *w, uint32_t token)
{
	struct outgoing o = {};
	raw_segment<X, ND> raw;

	if (token >= this_rounds_tokens(d) || !is_mine(&d->exchange, token))
		return o;
	o.token = token;
	o.there = true;
	o.buffer = w->stream.fill;
	for (uint32_t number = 0; number < w->parts; number++) {
		begin_part<X, ND>(d, w, token, number, raw);
		end_part<X, ND>(d, w, token, number, raw);
	}
	return o;
}

/* To other ranks' early slots. All of it stays in this warp's buffers: what this rank itself gets
 * of it is stored from there. dealt: how far behind it the token is that is made as well. */
template <int X, int ND>
static __device__ __forceinline__ struct before send_early(const struct gpu_dispatch *d,
	const struct ht_exchange *h, struct dispatch_warp *w, uint32_t token, uint32_t dealt)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t epoch, index = token * e->topk + lane_id(), rank = e->rank, away;
	struct before none = {}, b = {};

	if (!plan_has_begun(e, &epoch))
		return none;
	b.early = make_token<X, ND>(d, w, token);
	b.early.lanes = b.early.there
				? destinations(e, lane_id() < e->topk ? expert_id(d, index) : -1,
					  index, &rank)
				: 0;
	away = b.early.lanes & __ballot_sync(ALL_LANES, rank != e->rank);
	if (!counts_are_here(e, epoch))
		return none;
	for (uint32_t number = 0; number < w->parts; number++) {
		struct part p = part_of(d, w, number);

#pragma unroll 1
		for (uint32_t left = away; left; left &= left - 1)
			store_part(d, w, &p,
				e->windows[__shfl_sync(ALL_LANES, rank, __ffs(left) - 1)],
				early_rows(d, h, e->rank), token, made_buffer(w, &b.early, number));
		copies_close();
	}
	if (dealt)
		b.made = make_token<X, ND>(d, w, token + dealt);
	return b;
}

/* Its places here, from its buffers. */
static __device__ __forceinline__ void place_early(const struct gpu_dispatch *d,
	const struct ht_exchange *h, const struct dispatch_warp *w, struct outgoing *o)
{
	choose_lanes(&d->exchange, o);
	for (uint32_t number = 0; number < w->parts; number++)
		send_part(d, h, w, number, o->to,
			o->lanes & __ballot_sync(ALL_LANES, o->to.rank == d->exchange.rank),
			made_buffer(w, o, number));
}

/* No row moves in this round: heads without places say that none is under way any more. */
static __device__ __forceinline__ void drop_early(const struct gpu_dispatch *d,
	const struct ht_exchange *h, struct heads_way *way, struct outgoing *o)
{
	o->to = {UINT32_MAX, UINT32_MAX, UINT32_MAX};
	if (o->there)
		pass_heads(d, h, way, o);
}

/* ---- all others ------------------------------------------------------------------------------ */

/* The early token's places, and the token with which a warp goes on: `made` says whether it is in a
 * buffer. */
template <int X, int ND>
static __device__ __forceinline__ struct outgoing find_first(const struct gpu_dispatch *d,
	const struct ht_exchange *h, struct dispatch_warp *w, struct before *before,
	struct ahead *ahead)
{
	struct outgoing *early = &before->early, now;
	uint2 route = early->there ? load_route(d, h, early->token) : make_uint2(UINT32_MAX, 0);

	if (lane_id() == 0)
		ahead->ticket = atomicAdd(ahead->tickets, 1u);
	early->weight = load_weight(d, early->token, early->there ? ahead->nr_tokens : 0);
	if (before->made.there) {
		ahead->token = before->made.token;
		ahead->route = load_route(d, h, ahead->token);
		ahead->weight = load_weight(d, ahead->token, ahead->nr_tokens);
	} else {
		look_ahead(d, h, ahead);
	}
	early->to = find_place(d, h, early->token, route);
	ahead->to = find_place(d, h, ahead->token, ahead->route);
	if (early->there)
		place_early(d, h, w, early);
	now = next_token(d, ahead);
	now.buffer = before->made.buffer;
	return now;
}

/* A token's heads may leave when its rows have arrived, which is known when the next one's are on
 * their way. */
template <int X, int ND>
static __device__ __forceinline__ void send_all(const struct gpu_dispatch *d,
	const struct ht_exchange *h, struct dispatch_warp *w, struct heads_way *way,
	uint32_t nr_tokens, struct before *before, uint32_t dealt)
{
	const struct gpu_exchange *e = &d->exchange;
	struct ahead ahead = {
		&e->state->tickets[HT_TICKETS_ROWS], 0, dealt, 0, nr_tokens, {}, 0, {}};
	struct outgoing now = find_first<X, ND>(d, h, w, before, &ahead), last = before->early;
	bool made = before->made.there;
	raw_segment<X, ND> raw;

	if (now.lanes && !made)
		begin_part<X, ND>(d, w, now.token, 0, raw);
	while (now.there) {
		look_ahead(d, h, &ahead);
		for (uint32_t number = 0; number < w->parts && now.lanes; number++) {
			shared_at buffer = made ? made_buffer(w, &now, number)
						: end_part<X, ND>(d, w, now.token, number, raw);

			if (number + 1 == w->parts)
				ahead.to = find_place(d, h, ahead.token, ahead.route);
			if (last.there) {
				copies_done<0>(); /* before the next are under way, for which the
						     fence might wait */
				pass_heads(d, h, way, &last);
			}
			send_part(d, h, w, number, now.to, now.lanes, buffer);
			if (number + 1 < w->parts && !made)
				begin_part<X, ND>(d, w, now.token, number + 1, raw);
		}
		made = false;
		if (last.there) { /* this token has no row */
			copies_done<0>();
			pass_heads(d, h, way, &last);
		}
		if (!now.lanes)
			ahead.to = find_place(d, h, ahead.token, ahead.route);
		last = now;
		now = next_token(d, &ahead);
		if (now.lanes)
			begin_part<X, ND>(d, w, now.token, 0, raw);
	}
	copies_done<0>();
	if (last.there)
		pass_heads(d, h, way, &last);
	if (X != GPU_X_COPY)
		w->stream.fill = 0; /* no barrier has been used */
}

/* Tokens behind the early ones that need no ticket, since each sending warp makes one of them
 * early: if it has one that leaves early, and room for another. */
static __device__ __forceinline__ uint32_t dealt_tokens(
	const struct dispatch_warp *w, uint32_t nr_senders, uint32_t nr_early)
{
	return nr_early == nr_senders && 2 * w->parts <= DISPATCH_BUFFERS ? nr_senders : 0;
}

#endif
