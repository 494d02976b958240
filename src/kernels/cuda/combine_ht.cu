/* SPDX-License-Identifier: Apache-2.0 */
/* High-throughput combine: what the experts here made of a token is summed (at_home: each row as it is), stored in the home's window, and summed there.
 *
 *   sending warps     a token of a source each: its head -> y rows -> results; then their words, released behind them
 *   receiving warps   a token each: waits for the words of its results, sums
 *
 * Either way rows come through shared memory (stream.cuh), a segment in a tray: while one is summed those behind it are under way, the next token's too.
 * Floor: the results' bytes over NVLink.
 */
#include "ht.cuh"
#include "launch.cuh"
#include "results.cuh"
#include "stream.cuh"

#define VECTOR_BYTES (LANES * 16) /* of a warp */
#define OUT_TRAYS 2 /* for segments on their way out */
#define MOST_IN_TRAYS 8

/* What becomes one result: lane j has the sum's j-th row, its weight, and the column of its own result where each row travels by itself. */
struct terms {
	const uint8_t *row;
	float weight;
	uint32_t column;
	uint32_t nr;
};

struct item {
	struct terms terms;
	uint32_t token, source;
	bool there;
};

/* What is fetched next: segment by segment, of each all rows. */
struct fetching {
	const uint8_t *row; /* lane j's */
	uint32_t nr, term, offset;
	uint32_t left; /* segments of rows */
};

struct combine_warp {
	struct stream in;
	struct fetching fetching;
	bool queued; /* the next item has not begun to be fetched */
	uint32_t under_way; /* trays filled, or about to be */
	shared_at out;
	uint32_t next_out;
	uint32_t *tickets;
	uint32_t ticket; /* lane 0: drawn, not used yet */
};

/* ---- tokens are dealt out as warps ask for them -------------------------------------------------------------- */

static __device__ __forceinline__ void draw_ticket(struct combine_warp *w)
{
	if (lane_id() == 0)
		w->ticket = atomicAdd(w->tickets, 1u);
}

static __device__ __forceinline__ uint32_t use_ticket(struct combine_warp *w)
{
	uint32_t ticket = __shfl_sync(ALL_LANES, w->ticket, 0);

	draw_ticket(w);
	return ticket;
}

/* ---- rows in ------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ void begin_fetching(const struct ll_exchange *e, struct combine_warp *w, const struct item *item)
{
	w->fetching.row = item->terms.row;
	w->fetching.nr = item->terms.nr;
	w->fetching.term = w->fetching.offset = 0;
	w->fetching.left = item->terms.nr * e->result.nr_segments;
}

/* The next segment of a row is on its way. False: all of what is known are. */
static __device__ __forceinline__ bool fetch(const struct ll_exchange *e, struct combine_warp *w, const struct item *next)
{
	struct fetching *f = &w->fetching;
	uint32_t bytes;

	if (!f->left) {
		if (!w->queued)
			return false;
		w->queued = false;
		begin_fetching(e, w, next);
		if (!f->left)
			return false;
	}
	bytes = min(e->result.segment_bytes, e->result.row_bytes - f->offset);
	stream_fetch(&w->in, 0, f->row + f->offset, bytes, f->term);
	stream_fetched(&w->in, bytes, f->term);
	f->left--;
	if (++f->term == f->nr) {
		f->term = 0;
		f->offset += e->result.segment_bytes;
	}
	return true;
}

/* A segment of the next row, in the order in which it was asked for; its tray goes to what comes behind. */
template <int V>
static __device__ __forceinline__ void take(const struct ll_exchange *e, struct combine_warp *w, const struct item *next, uint4 (&v)[V])
{
	shared_at tray = stream_take(&w->in) + lane_id() * 16;

#pragma unroll
	for (int i = 0; i < V; i++)
		v[i] = shared_load(tray + i * LANES * 16);
	__syncwarp();
	if (!fetch(e, w, next))
		w->under_way--;
}

/* An item is at its start, and the next one is known or is not: free trays are put to use. */
static __device__ __forceinline__ void fetch_ahead(const struct ll_exchange *e, struct combine_warp *w, const struct item *next)
{
	while (w->under_way < w->in.nr && fetch(e, w, next))
		w->under_way++;
}

template <int Y, int V, bool WEIGHTED>
static __device__ __forceinline__ void sum_segment(const struct ll_exchange *e, struct combine_warp *w, const struct item *now, const struct item *next, uint4 (&out)[V])
{
	sums<Y, V> sum = {};

#pragma unroll 1
	for (uint32_t j = 0; j < now->terms.nr; j++) {
		float weight = __uint_as_float(__shfl_sync(ALL_LANES, __float_as_uint(now->terms.weight), j));
		uint4 v[V];

		take(e, w, next, v);
#pragma unroll
		for (int i = 0; i < V; i++)
			add_vector<Y>(sum.of[i], v[i], WEIGHTED, weight);
	}
#pragma unroll
	for (int i = 0; i < V; i++)
		out[i] = round_vector<Y>(sum.of[i]);
}

template <int Y, int V>
static __device__ __forceinline__ void sum_either(const struct ll_exchange *e, struct combine_warp *w, const struct item *now, const struct item *next, bool weighted,
	uint4 (&out)[V])
{
	if (weighted)
		sum_segment<Y, V, true>(e, w, now, next, out);
	else
		sum_segment<Y, V, false>(e, w, now, next, out);
}

/* ---- sending ------------------------------------------------------------------------------------------------- */

template <int V>
static __device__ __forceinline__ void store_result(const struct ll_exchange *e, const struct ht_exchange *h, struct combine_warp *w, uint32_t source,
	uint64_t cell, uint32_t segment, const uint4 (&v)[V])
{
	uint32_t home = home_first(e, source), bytes = min(e->result.segment_bytes, e->result.row_bytes - segment * e->result.segment_bytes);
	shared_at tray = w->out + w->next_out * e->result.segment_bytes;

	w->next_out = w->next_out + 1 == OUT_TRAYS ? 0 : w->next_out + 1;
	copies_read<OUT_TRAYS - 1>();
	__syncwarp();
#pragma unroll
	for (int i = 0; i < V; i++)
		shared_store(tray + (i * LANES + lane_id()) * 16, v[i]);
	copy_out_ready();
	__syncwarp();
	for (uint32_t r = home; r < home + e->by_replicas.d; r++)
		copy_out(e->windows[r] + h->window.results + cell * e->result.row_bytes + segment * e->result.segment_bytes, tray, bytes, 0);
	copies_close();
}

/* Of a token whose results are stored: lane j's word is that of its j-th. */
struct announcement {
	uint32_t source;
	uint64_t cell;
	bool mine, any;
};

/* All groups of copies but the last N are behind it. */
template <int N>
static __device__ __forceinline__ void announce(const struct ll_exchange *e, const struct ht_exchange *h, uint32_t epoch, struct announcement *a)
{
	uint32_t home = home_first(e, a->source);

	if (!a->any)
		return;
	copies_done<N>();
	__syncwarp();
	stores_before();
	for (uint32_t r = home; r < home + e->by_replicas.d && a->mine; r++)
		word_store(e->windows[r] + h->window.result_words + a->cell * 4, epoch);
	a->any = false;
}

static __device__ __forceinline__ void find_terms(const struct ll_combine *c, uint4 head, struct terms *t)
{
	uint32_t here = __ballot_sync(ALL_LANES, head.x != UINT32_MAX);

	t->nr = __popc(here);
	for (uint32_t j = 0; j < t->nr; j++, here &= here - 1) {
		uint32_t k = __ffs(here) - 1, position = __shfl_sync(ALL_LANES, head.x, k), weight = __shfl_sync(ALL_LANES, head.y, k);

		if (lane_id() != j)
			continue;
		t->row = c->y + position * c->y_stride;
		t->weight = __uint_as_float(weight);
		t->column = k;
	}
}

/* The next token here with rows, if there is one. */
static __device__ __forceinline__ struct item find_sent(const struct ll_combine *c, const struct ht_exchange *h, struct combine_warp *w, uint32_t epoch)
{
	const struct ll_exchange *e = &c->exchange;
	struct item item = {};

	for (;;) {
		uint32_t i = use_ticket(w), token = ll_div(i, e->by_ranks), source = e->rank + 1 + i - token * e->nr_ranks;
		uint4 head = make_uint4(UINT32_MAX, 0, UINT32_MAX, 0);

		if (token >= e->max_tokens)
			return item;
		source = source >= e->nr_ranks ? source - e->nr_ranks : source;
		if (lane_id() < e->topk)
			head = piece_load(e->windows[e->rank] + head_at(e, h, source, token, lane_id()));
		if (head.w != epoch) /* of an earlier round: nothing came */
			head.x = head.z = UINT32_MAX;
		if (!check_head(e, e->state->extent, epoch, source, token, head)) /* it may have changed since */
			return item;
		if (!__any_sync(ALL_LANES, head.x != UINT32_MAX))
			continue;
		item.there = true;
		item.token = token;
		item.source = source;
		find_terms(c, head, &item.terms);
		return item;
	}
}

/* Summed at the expert: one result, in its rank's column or in that of its first route. */
template <int Y, int V>
static __device__ __forceinline__ void send_item(const struct ll_combine *c, const struct ht_exchange *h, struct combine_warp *w, uint32_t epoch, const struct item *now,
	const struct item *next, struct announcement *last)
{
	const struct ll_exchange *e = &c->exchange;
	uint64_t cell = (uint64_t)now->token * h->window.nr_columns;
	uint32_t column = h->window.rank_columns ? e->rank : __shfl_sync(ALL_LANES, now->terms.column, 0);

	for (uint32_t segment = 0; segment < e->result.nr_segments; segment++) {
		uint4 v[V];

		if (!e->at_home) {
			sum_either<Y>(e, w, now, next, c->weighted, v);
			announce<0>(e, h, epoch, last); /* before the next are under way, for which the fence might wait */
			store_result(e, h, w, now->source, cell + column, segment, v);
			continue;
		}
		for (uint32_t j = 0; j < now->terms.nr; j++) {
			take(e, w, next, v);
			announce<0>(e, h, epoch, last);
			store_result(e, h, w, now->source, cell + __shfl_sync(ALL_LANES, now->terms.column, j), segment, v);
		}
	}
	last->source = now->source;
	last->cell = cell + (e->at_home ? now->terms.column : column);
	last->mine = lane_id() < (e->at_home ? now->terms.nr : 1);
	last->any = true;
}

template <int Y, int V>
static __device__ __forceinline__ void send_all(const struct ll_combine *c, const struct ht_exchange *h, struct combine_warp *w, uint32_t epoch)
{
	struct announcement last = {};
	struct item now, next = {};

	draw_ticket(w);
	now = find_sent(c, h, w, epoch);
	begin_fetching(&c->exchange, w, &now);
	for (; now.there; now = next) {
		fetch_ahead(&c->exchange, w, &next); /* next is now */
		next = find_sent(c, h, w, epoch);
		w->queued = next.there;
		fetch_ahead(&c->exchange, w, &next);
		send_item<Y, V>(c, h, w, epoch, &now, &next, &last);
	}
	announce<0>(&c->exchange, h, epoch, &last);
}

/* ---- at home ------------------------------------------------------------------------------------------------- */

/* Lane k's cell of a result that is to come, if it is the one to look after it. */
static __device__ __forceinline__ bool cell_of_lane(const struct ll_exchange *e, const struct ht_exchange *h, uint2 route, uint32_t token, uint64_t *cell)
{
	uint32_t same = __match_any_sync(ALL_LANES, route.x);
	bool first = (same & ((1u << lane_id()) - 1)) == 0;

	*cell = (uint64_t)token * h->window.nr_columns + (h->window.rank_columns ? route.x : lane_id());
	return route.x != UINT32_MAX && (e->at_home || first);
}

/* Are all results of a token here? once: a look, no wait. */
static __device__ __forceinline__ bool await_results(const struct ll_exchange *e, const struct ht_exchange *h, uint32_t epoch, uint32_t token, uint2 route,
	bool once)
{
	struct patience patience = {0, 0};
	uint64_t cell;
	bool waits = cell_of_lane(e, h, route, token, &cell);
	uint32_t seen = epoch;

	do {
		if (waits)
			seen = word_acquire(e->windows[e->rank] + h->window.result_words + cell * 4);
		if (__all_sync(ALL_LANES, seen == epoch)) {
			copy_in_ready();
			__syncwarp(); /* a vote orders nothing: only now may all lanes read what those that waited have acquired */
			return true;
		}
	} while (!once && may_wait(&patience, e->wait_ns));
	if (seen != epoch && !once)
		report_wait(e, LL_WAIT_RESULT, route.x, token, epoch, seen, patience.start_ns);
	return false;
}

/* In the order of the sum. */
static __device__ __forceinline__ void find_results(const struct ll_combine *c, const struct ht_exchange *h, uint2 route, uint32_t token, struct terms *t)
{
	const struct ll_exchange *e = &c->exchange;
	const uint8_t *results = e->windows[e->rank] + h->window.results + (uint64_t)token * h->window.nr_columns * e->result.row_bytes;

	t->nr = 0;
	for (uint32_t next = next_result(e, route, UINT32_MAX); next != UINT32_MAX; next = next_result(e, route, next)) {
		uint32_t column = h->window.rank_columns ? next : column_of(e, route, next), weight = __shfl_sync(ALL_LANES, route.y, next % LANES);

		if (lane_id() == t->nr++) {
			t->row = results + (uint64_t)column * e->result.row_bytes;
			t->weight = __uint_as_float(weight);
		}
	}
}

struct homecoming {
	uint32_t token, nr_tokens; /* token: which is awaited next */
	uint2 route;		   /* its */
	bool abandoned;
};

static __device__ __forceinline__ void next_token(const struct ll_exchange *e, struct combine_warp *w, struct homecoming *home)
{
	home->token = use_ticket(w);
	home->route = make_uint2(UINT32_MAX, 0);
	if (home->token < home->nr_tokens && lane_id() < e->topk && !home->abandoned)
		home->route = e->home_routes[home->token * e->topk + lane_id()];
}

/* The token that is awaited, if it is complete: then the one behind it is awaited. False: a wait has expired. */
static __device__ __forceinline__ bool find_home(const struct ll_combine *c, const struct ht_exchange *h, struct combine_warp *w, uint32_t epoch,
	struct homecoming *home, bool once, struct item *item)
{
	const struct ll_exchange *e = &c->exchange;

	*item = {};
	if (home->token >= home->nr_tokens)
		return true;
	if (!await_results(e, h, epoch, home->token, home->route, once))
		return once;
	item->there = true;
	item->token = home->token;
	find_results(c, h, home->route, home->token, &item->terms);
	next_token(e, w, home);
	return true;
}

template <int Y, int V>
static __device__ __forceinline__ void sum_item(const struct ll_combine *c, struct combine_warp *w, const struct item *now, const struct item *next)
{
	const struct ll_exchange *e = &c->exchange;

	for (uint32_t segment = 0; segment < e->result.nr_segments; segment++) {
		uint4 v[V];

		sum_either<Y>(e, w, now, next, e->at_home && c->weighted, v);
#pragma unroll
		for (int i = 0; i < V; i++) {
			uint32_t offset = segment * e->result.segment_bytes + (i * LANES + lane_id()) * 16;

			if (offset < e->result.row_bytes)
				row_store(c->out + now->token * c->out_stride + offset, v[i]);
		}
	}
}

template <int Y, int V>
static __device__ __forceinline__ void receive_all(const struct ll_combine *c, const struct ht_exchange *h, struct combine_warp *w, uint32_t epoch, uint32_t nr_tokens,
	bool abandoned)
{
	struct homecoming home = {0, nr_tokens, {}, abandoned};
	struct item now = {}, next = {};

	draw_ticket(w);
	next_token(&c->exchange, w, &home);
	for (;; now = next) {
		if (!now.there) {
			if (!find_home(c, h, w, epoch, &home, false, &now) || !now.there)
				return;
			begin_fetching(&c->exchange, w, &now);
		}
		fetch_ahead(&c->exchange, w, &now);
		find_home(c, h, w, epoch, &home, true, &next);
		w->queued = next.there;
		fetch_ahead(&c->exchange, w, &next);
		sum_item<Y, V>(c, w, &now, &next);
	}
}

/* In trays: what the block's shared memory has room for, beside those on their way out. */
LL_BOTH uint32_t in_trays(const struct ht_exchange *h, uint32_t nr_warps, uint32_t segment_bytes)
{
	return min((h->block_bytes / nr_warps - OUT_TRAYS * segment_bytes) / stream_shared_bytes(1, 1, segment_bytes), (uint32_t)MOST_IN_TRAYS);
}

/* Sending warps that have nothing left to send receive as well. */
template <int Y, int V>
static __global__ void __launch_bounds__(LL_MAX_WARPS * LANES, 1) combine_ht(const __grid_constant__ struct ll_combine c, const __grid_constant__ struct ht_exchange h,
	uint32_t send_warps)
{
	BLOCK_MEMORY(shared);
	const struct ll_exchange *e = &c.exchange;
	uint32_t warp = threadIdx.x / LANES, nr_warps = blockDim.x / LANES;
	struct combine_warp w = {};

	w.out = in_shared(shared) + warp * OUT_TRAYS * e->result.segment_bytes;
	w.in = stream_open(in_shared(shared) + nr_warps * OUT_TRAYS * e->result.segment_bytes, warp, nr_warps, in_trays(&h, nr_warps, e->result.segment_bytes),
		e->result.segment_bytes);
	wait_for_previous();
	let_next_start();
	uint4 state = *(const uint4 *)e->state; /* epoch_dispatch, epoch_combine, nr_tokens, failed */
	bool abandoned = e->state->abandoned;

	if (state.w)
		return;
	if (blockIdx.x == 0 && warp == send_warps && lane_id() == 0)
		e->state->epoch_dispatch = ht_epoch_after(state.y); /* read by kernels behind this one */
	if (send_warps && !c.release && !abandoned && blockIdx.x == 0 && threadIdx.x == 0)
		tally_results(e);
	w.tickets = &e->state->tickets[HT_TICKETS_RESULTS];
	if (warp < send_warps && !c.release && !abandoned)
		send_all<Y, V>(&c, &h, &w, state.y);
	w.tickets = &e->state->tickets[HT_TICKETS_HOME];
	if (c.roles & LL_RECEIVE && !c.release)
		receive_all<Y, V>(&c, &h, &w, state.y, state.z, abandoned);
}

/* ---- launching ----------------------------------------------------------------------------------------------- */

typedef void (*combine_kernel)(const struct ll_combine, const struct ht_exchange, uint32_t);

template <int Y> static combine_kernel choose_size(uint32_t nr_vectors)
{
	return nr_vectors == 4 ? combine_ht<Y, 4> : NULL;
}

static combine_kernel choose(const struct ll_combine *c)
{
	uint32_t nr_vectors = c->exchange.result.nr_vectors;

	return c->kind == LL_Y_BF16   ? choose_size<LL_Y_BF16>(nr_vectors)
	       : c->kind == LL_Y_FP16 ? choose_size<LL_Y_FP16>(nr_vectors)
				      : choose_size<LL_Y_FP32>(nr_vectors);
}

static uint32_t shared_bytes(const struct ll_combine *c, const struct ht_exchange *h, uint32_t nr_warps)
{
	uint32_t bytes = c->exchange.result.segment_bytes;

	return stream_shared_bytes(nr_warps, in_trays(h, nr_warps, bytes), bytes) + nr_warps * OUT_TRAYS * bytes;
}

static cudaError_t allow_shared(const struct ll_combine *c, const struct ht_exchange *h, uint32_t nr_warps)
{
	if (!choose(c) || nr_warps > LL_MAX_WARPS)
		return cudaErrorInvalidValue;
	return cudaFuncSetAttribute((const void *)choose(c), cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes(c, h, nr_warps));
}

cudaError_t ht_combine_launch(const struct ll_combine *c, const struct ht_exchange *h, const struct ll_launch *launch, cudaStream_t stream)
{
	uint32_t send_warps = c->roles == LL_SEND ? launch->nr_warps : c->roles == LL_RECEIVE ? 0 : launch->send_warps;
	cudaLaunchConfig_t config = launch_config(launch->nr_blocks, launch->nr_warps * LANES, shared_bytes(c, h, launch->nr_warps), stream);
	cudaLaunchAttribute early = {};
	cudaError_t rc = allow_shared(c, h, launch->nr_warps);

	launch_early(&config, &early, launch->early);
	return rc ? rc : cudaLaunchKernelEx(&config, choose(c), *c, *h, send_warps);
}

cudaError_t ht_combine_blocks(const struct ll_combine *c, const struct ht_exchange *h, int *per_sm)
{
	uint32_t nr_warps = LL_MAX_WARPS;
	cudaError_t rc = allow_shared(c, h, nr_warps);

	return rc ? rc : cudaOccupancyMaxActiveBlocksPerMultiprocessor(per_sm, choose(c), (int)nr_warps * LANES, shared_bytes(c, h, nr_warps));
}
