/* SPDX-License-Identifier: Apache-2.0 */
/* High-throughput combine: what the experts here made of a token is summed (at_home: each row as it
 * is), stored in the home's window, and summed there.
 *
 *   sent        a token of another source: its head -> y rows -> a result in the home's window
 *   come home   a token of this rank: the words of its results -> their rows, and rows of y that
 *               are its own -> out
 *
 * Own rows pass through no window, but where halves are called apart, or ranks have replicas. Then
 * own tokens are sent like others. Both are sums of rows, by teams of warps (team.cuh). Here is
 * what a team's loading warp does: it finds out which rows there are. It looks at several tokens at
 * a time, at those that come home between those that are sent, and at the next ones while rows of
 * these are loaded. NVLink is what all wait for, so what is sent comes first; but only as long as
 * it finds a place to go. What comes home would wait behind it in the same buffers. Floor: the
 * results' bytes over NVLink.
 */
#include "gpu/cuda/common/launch.cuh"
#include "gpu/cuda/ht/team.cuh"

#define MOST_TOKENS 4 /* that are looked at together */

struct combine_launch {
	struct team_shape shape;
	uint32_t nr_tokens; /* that a loading warp looks at together */
	uint32_t sends, receives;
	uint32_t yields; /* what is sent, to what comes home, while it would find no place to go */
	uint32_t keeps_own;            /* own rows pass through no window */
	struct gpu_divisor by_sources; /* whose tokens are sent: others' alone, or all ranks' */
};

/* ---- tokens are dealt out as warps ask for them ---------------------------------------------- */

struct dealer {
	uint32_t *tickets;
	uint32_t drawn; /* lane 0's, not used yet */
	uint32_t nr;    /* tokens at a time */
	uint32_t shift; /* token_shift */
};

static __device__ __forceinline__ void draw(struct dealer *d)
{
	if (lane_id() == 0)
		d->drawn = atomicAdd(d->tickets, d->nr);
}

static __device__ __forceinline__ struct dealer dealer_of(
	uint32_t *tickets, uint32_t nr, uint32_t shift)
{
	struct dealer d = {tickets, 0, nr, shift};

	draw(&d);
	return d;
}

static __device__ __forceinline__ uint32_t use_drawn(struct dealer *d)
{
	uint32_t first = __shfl_sync(ALL_LANES, d->drawn, 0);

	draw(d);
	return first;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* A row as one lane knows it, lane k of a group that of the token's k-th route. */
struct addend {
	const uint8_t *row;
	float weight;
	uint32_t place; /* in its token's sum */
	bool there;
};

/* Whose sums those are, by group. */
struct summed {
	uint32_t rank;    /* whose result it is */
	uint64_t to;      /* of this lane's row, or of the first part */
	uint64_t to_next; /* from a part to the next */
	uint32_t flags;   /* of a ticket */
	bool empty;       /* a token without any row */
};

/* All sums of a group: part by part, of each all rows in order. */
static __device__ __forceinline__ void load_group(const struct gpu_exchange *e, struct team_shape s,
	struct buffers *in, const struct addend *a, const struct summed *sum, bool in_group)
{
	bool mine = in_group && a->there, alone = sum->flags & TICKET_AS_IS;
	uint32_t nr = __popc(__ballot_sync(ALL_LANES, mine));
	uint32_t without = __ballot_sync(ALL_LANES, in_group && sum->empty);

	if (!nr && !without)
		return;
	for (uint32_t part = 0; part < s.nr_parts; part++) {
		uint32_t offset = part * s.part_bytes,
			 bytes = min(s.part_bytes, e->result.row_bytes - offset),
			 flags = sum->flags;
		uint4 ticket;

		flags |= part + 1 == s.nr_parts ? TICKET_TELL : 0;
		flags |= alone || a->place + 1 >= nr ? TICKET_LAST : 0;
		flags |= nr ? 0 : TICKET_LAST | TICKET_EMPTY;
		ticket = ticket_pack(
			{a->weight, flags, sum->rank, bytes, sum->to + part * sum->to_next});
		if (!nr)
			team_tell(in, ticket, __ffs(without) - 1);
		for (uint32_t j = 0; j < nr; j++)
			team_load(in, ticket, a->row + offset, bytes,
				__ffs(__ballot_sync(ALL_LANES, mine && a->place == j)) - 1);
	}
}

/* As await_row_of_y, before copies of them. */
static __device__ __forceinline__ bool await_row(
	const struct gpu_combine *c, uint32_t epoch, bool there, uint4 head)
{
	if (!await_row_of_y(c, epoch, there, head))
		return false;
	copy_in_ready();
	__syncwarp(); /* what one lane has acquired others copy */
	return true;
}

/* ---- sent ------------------------------------------------------------------------------------ */

/* A look at some tokens; lane k of a group has the head's part of its token's k-th route. */
struct sent {
	uint32_t token, source;
	uint4 head;
	bool any; /* token is one */
};

static __device__ __forceinline__ struct sent look_at_sent(const struct gpu_exchange *e,
	const struct ht_exchange *h, const struct combine_launch *l, struct dealer *d)
{
	uint32_t i = use_drawn(d) + group_of_lane(d->shift);
	struct sent s = {
		gpu_div(i, l->by_sources), 0, make_uint4(UINT32_MAX, 0, UINT32_MAX, 0), false};

	s.source = e->rank + 1 + i - s.token * l->by_sources.d;
	s.source = s.source >= e->nr_ranks ? s.source - e->nr_ranks : s.source;
	s.any = group_of_lane(d->shift) < d->nr && s.token < e->max_tokens;
	if (s.any && lane_of_group(d->shift) < e->topk)
		s.head = piece_load(e->windows[e->rank] +
				    head_at(e, h, s.source, s.token, lane_of_group(d->shift)));
	return s;
}

/* False: a head is broken, or y not made in time. extent: gpu_state's. */
template <bool GATED>
static __device__ __forceinline__ bool load_sent(const struct gpu_combine *c,
	const struct ht_exchange *h, struct team_shape shape, uint32_t epoch, uint32_t extent,
	struct buffers *in, uint32_t *put, const struct dealer *d, struct sent *s)
{
	const struct gpu_exchange *e = &c->exchange;
	uint32_t group = group_of_lane(d->shift), here, of_group;
	struct summed sum = {
		s->source, 0, 1ull << 32, e->at_home ? (uint32_t)TICKET_AS_IS : 0, false};
	struct addend a;

	if (s->head.w != epoch) /* of an earlier round: nothing came */
		s->head.x = s->head.z = UINT32_MAX;
	if (!check_head(e, extent, epoch, s->source, s->token, s->head)) /* it may have changed
									    since */
		return false;
	a.there = s->head.x != UINT32_MAX;
	if (GATED && !await_row(c, epoch, a.there, s->head))
		return false;
	a.row = c->y + s->head.x * c->y_stride;
	a.weight = weight_of(c, s->head.y);
	here = __ballot_sync(ALL_LANES, a.there);
	of_group = here & lanes_of_group(d->shift, group);
	if (!c->weighted && __popc(of_group) == 1) /* a sum of one row; which zero and which NaN it
						      is, is lost at home */
		sum.flags = TICKET_AS_IS;
	a.place = __popc(of_group & lanes_below());
	*put += __popc(e->at_home ? here : __ballot_sync(ALL_LANES, a.there && a.place == 0)) *
		shape.nr_parts;
	sum.to = s->token * h->window.nr_columns;
	sum.to += !e->at_home && h->window.rank_columns ? e->rank : lane_of_group(d->shift);
	if (!e->at_home && !h->window.rank_columns) /* in the column of the first route */
		sum.to = __shfl_sync(ALL_LANES, (uint32_t)sum.to, (__ffs(of_group) - 1) % LANES);
	for (uint32_t g = 0; g < d->nr; g++)
		load_group(e, shape, in, &a, &sum, group == g);
	return true;
}

/* ---- come home ------------------------------------------------------------------------------- */

/* The tokens that are awaited; lane k of a group has its token's k-th route. */
struct home {
	uint32_t token;
	uint2 route;
	uint4 head; /* of this rank's own, if it keeps them: its k-th part */
	bool any;
	bool shared_out;
	bool awaits, own; /* this lane looks after a result, its route's, that comes; or after a row
			     of y. Neither: another lane does, or nobody has to */
	bool lost;        /* there is no such row */
	uint64_t cell;
	uint32_t place;
	uint32_t flags; /* of this lane's ticket */
};

/* Is this lane's route the first of its token that names that rank? */
static __device__ __forceinline__ bool names_first(
	const struct gpu_exchange *e, uint32_t shift, uint2 route)
{
	bool first = route.x != UINT32_MAX;

	for (uint32_t k = 0; k < e->topk; k++) {
		uint32_t other =
			__shfl_sync(ALL_LANES, route.x, (group_of_lane(shift) << shift) + k);

		first = first && (k >= lane_of_group(shift) || other != route.x);
	}
	return first;
}

/* Summed at the expert, own rows come first, since their sum is held until its turn; then results
 * in the order of ranks. */
static __device__ __forceinline__ void place_results(const struct gpu_exchange *e, uint32_t shift,
	uint32_t rows, uint32_t results, struct home *home)
{
	uint32_t below = lanes_below(), first_lane = group_of_lane(shift) << shift;

	home->place = home->own ? __popc(rows & below) : __popc(rows);
	home->flags |= home->own && __popc(rows & below) + 1 == __popc(rows) ? TICKET_HOLD : 0;
	home->flags |= home->awaits && home->route.x > e->rank ? TICKET_BEHIND : 0;
	for (uint32_t k = 0; k < e->topk; k++) {
		uint32_t other = __shfl_sync(ALL_LANES, home->route.x, first_lane + k);

		home->place +=
			home->awaits && results >> (first_lane + k) & 1 && other < home->route.x;
	}
}

/* Which lanes look after a result or a row: summed at the expert, the first of a token that names a
 * rank; but after own rows each. And in which order they are summed: summed at home, of k. */
static __device__ __forceinline__ void share_out(const struct gpu_exchange *e,
	const struct ht_exchange *h, const struct combine_launch *l, uint32_t epoch, uint32_t shift,
	struct home *home)
{
	uint32_t of_group = lanes_of_group(shift, group_of_lane(shift)), rows, results;
	bool mine = l->keeps_own && home->route.x == e->rank;
	bool first = e->at_home ? home->route.x != UINT32_MAX : names_first(e, shift, home->route);

	home->shared_out = true;
	home->cell = (uint64_t)home->token * h->window.nr_columns +
		     (h->window.rank_columns ? home->route.x : lane_of_group(shift));
	home->own = mine && home->head.w == epoch && home->head.x != UINT32_MAX;
	home->lost = mine && first && !home->own;
	home->awaits = first && !mine;
	home->flags = TICKET_HOME;
	rows = __ballot_sync(ALL_LANES, home->own) & of_group;
	results = __ballot_sync(ALL_LANES, home->awaits) & of_group;
	if (e->at_home)
		home->place = __popc((rows | results) & lanes_below());
	else
		place_results(e, shift, rows, results, home);
}

static __device__ __forceinline__ struct home look_at_home(const struct gpu_exchange *e,
	const struct ht_exchange *h, const struct combine_launch *l, struct dealer *d,
	uint32_t nr_tokens, bool abandoned)
{
	struct home home = {};

	home.token = use_drawn(d) + group_of_lane(d->shift);
	home.route.x = home.head.x = home.head.z = UINT32_MAX;
	home.any = group_of_lane(d->shift) < d->nr && home.token < nr_tokens;
	if (home.any && lane_of_group(d->shift) < e->topk && !abandoned) {
		home.route = e->home_routes[home.token * e->topk + lane_of_group(d->shift)];
		if (l->keeps_own)
			home.head =
				piece_load(e->windows[e->rank] + head_at(e, h, e->rank, home.token,
									 lane_of_group(d->shift)));
	}
	return home;
}

/* The word of this lane's result, as it is now. Orders nothing: what it is good for is not to wait
 * where it has not come. */
static __device__ __forceinline__ uint32_t glance_at_result(const struct gpu_exchange *e,
	const struct ht_exchange *h, uint32_t epoch, const struct home *home)
{
	return home->awaits
		       ? word_load(e->windows[e->rank] + h->window.result_words + home->cell * 4)
		       : epoch;
}

/* Are all their results here? once: a look, no wait. */
static __device__ __forceinline__ bool await_results(const struct gpu_exchange *e,
	const struct ht_exchange *h, uint32_t epoch, const struct home *home, bool once)
{
	struct patience patience = {0, 0};
	uint32_t seen = epoch;

	do {
		if (home->awaits)
			seen = word_acquire(
				e->windows[e->rank] + h->window.result_words + home->cell * 4);
		if (__all_sync(ALL_LANES, seen == epoch)) {
			copy_in_ready();
			__syncwarp(); /* a vote orders nothing: only now may all lanes have copied
					 what those that waited have acquired */
			return true;
		}
	} while (!once && warp_may_wait(&patience, e, seen == epoch ? e->rank : home->route.x,
				  e->wait_ns)); /* all of the warp go on or none: it has a team that
						   waits for it */
	if (!once && is_to_report(e, seen != epoch, home->route.x))
		report_wait(e, GPU_WAIT_RESULT, home->route.x, home->token, epoch, seen,
			patience.start_ns);
	return false;
}

/* False: a head of this rank's own is broken, or is not there. */
static __device__ __forceinline__ bool check_own(
	const struct gpu_exchange *e, uint32_t extent, uint32_t epoch, const struct home *home)
{
	uint32_t lost = __ballot_sync(ALL_LANES, home->lost);
	uint4 head = home->own ? home->head : make_uint4(UINT32_MAX, 0, UINT32_MAX, 0);

	if (lost && lane_id() == __ffs(lost) - 1)
		report_wait(
			e, GPU_WAIT_RESULT, e->rank, home->token, epoch, home->head.w, now_ns());
	return !lost && check_head(e, extent, epoch, e->rank, home->token, head);
}

template <bool GATED>
static __device__ __forceinline__ bool load_home(const struct gpu_combine *c,
	const struct ht_exchange *h, struct team_shape shape, uint32_t epoch, uint32_t extent,
	struct buffers *in, const struct dealer *d, const struct home *home)
{
	const struct gpu_exchange *e = &c->exchange;
	uint32_t group = group_of_lane(d->shift),
		 there = __ballot_sync(ALL_LANES, home->awaits || home->own) &
			 lanes_of_group(d->shift, group);
	struct summed sum = {e->rank, (uint64_t)(c->out + home->token * c->out_stride),
		shape.part_bytes, home->flags, home->any && !there && lane_of_group(d->shift) == 0};
	struct addend a = {
		e->windows[e->rank] + h->window.results + home->cell * e->result.row_bytes,
		e->at_home ? weight_of(c, home->route.y) : 1, home->place,
		home->awaits || home->own};

	if (!check_own(e, extent, epoch, home))
		return false;
	if (GATED && !await_row(c, epoch, home->own, home->head))
		return false;
	if (home->own) {
		a.row = c->y + home->head.x * c->y_stride;
		a.weight = weight_of(c, home->head.y);
	}
	for (uint32_t g = 0; g < d->nr; g++)
		load_group(e, shape, in, &a, &sum, group == g);
	return true;
}

/* ---- the kernel ------------------------------------------------------------------------------ */

template <bool GATED>
static __device__ __forceinline__ void team_load_all(const struct gpu_combine *c,
	const struct ht_exchange *h, const struct combine_launch *l, shared_at team, uint32_t epoch,
	uint32_t nr_tokens)
{
	const struct gpu_exchange *e = &c->exchange;
	struct buffers in = buffers_of(l->shape, team, false),
		       out = buffers_of(l->shape, team, true);
	uint32_t put = 0; /* results */
	uint32_t shift = token_shift(e->topk);
	bool abandoned = e->state->abandoned,
	     sends = l->sends && !abandoned && !(l->keeps_own && e->nr_ranks == 1),
	     receives = l->receives;
	uint32_t extent = e->state->extent;
	struct dealer results = {}, homes = {};
	struct sent sent = {};
	struct home home = {};

	if (sends) {
		results = dealer_of(&e->state->tickets[HT_TICKETS_RESULTS], l->nr_tokens, shift);
		sent = look_at_sent(e, h, l, &results);
	}
	if (receives) {
		homes = dealer_of(&e->state->tickets[HT_TICKETS_HOME], l->nr_tokens, shift);
		home = look_at_home(e, h, l, &homes, nr_tokens, abandoned);
	}
	while (sends || receives) {
		uint32_t seen = epoch;

		receives = receives && __any_sync(ALL_LANES, home.any);
		if (receives && !home.shared_out)
			share_out(e, h, l, epoch, shift, &home);
		sends = sends && __any_sync(ALL_LANES, sent.any);
		if (sends && (!receives || !l->yields || buffer_is_free(&out, put))) {
			struct sent next = look_at_sent(e, h, l, &results);

			if (receives)
				seen = glance_at_result(e, h, epoch, &home);
			sends = load_sent<GATED>(
				c, h, l->shape, epoch, extent, &in, &put, &results, &sent);
			sent = next;
		}
		if (sends && !__all_sync(ALL_LANES, seen == epoch))
			continue;
		if (receives && await_results(e, h, epoch, &home, sends)) {
			struct home next = look_at_home(e, h, l, &homes, nr_tokens, abandoned);

			receives =
				load_home<GATED>(c, h, l->shape, epoch, extent, &in, &homes, &home);
			home = next;
		} else if (!sends) {
			break;
		}
	}
	team_stop(&in);
}

namespace tern
{
/* GATED: y is still made while this runs, by a kernel that has let it start when all was there that
 * the dispatch has left; what comes behind this is behind that one, too. */
template <int Y, bool GATED = false>
static __global__ void __launch_bounds__(TEAM_MOST_WARPS *LANES, 1) combine_ht(
	const __grid_constant__ struct gpu_combine c, const __grid_constant__ struct ht_exchange h,
	const __grid_constant__ struct combine_launch l)
{
	BLOCK_MEMORY(shared);
	const struct gpu_exchange *e = &c.exchange;
	struct team_place place = team_place_of(l.shape, threadIdx.x / LANES);
	shared_at of_team = in_shared(shared) + place.team * team_bytes(l.shape);

	if (place.role == TEAM_LOADS)
		buffers_open(l.shape, of_team);
	trace_mark(e, GPU_TRACE_COMBINE);
	__syncthreads();
	if (!GATED) {
		wait_for_previous();
		let_next_start();
	}
	uint4 state = *(const uint4 *)e->state; /* epoch_dispatch, epoch_combine, nr_tokens, failed
						 */

	if (__syncthreads_or(state.w)) { /* another block may just have failed: all of this one or
					    none, as its warps wait for each other */
		if (GATED)
			wait_for_previous();
		return;
	}
	if (blockIdx.x == 0 && threadIdx.x == 0) {
		if (l.receives) /* read by kernels behind this one, and by who asks what is owed */
			e->state->epoch_dispatch = ht_epoch_after(state.y);
		if (l.sends && !c.release && !e->state->abandoned)
			counters_results(e);
	}
	if (c.release) /* never gated */
		return;
	if (place.role == TEAM_LOADS)
		team_load_all<GATED>(&c, &h, &l, of_team, state.y, state.z);
	else if (place.role == TEAM_STORES)
		team_store(e, &h, l.shape, of_team, state.y);
	else
		team_sum<Y>(l.shape, of_team, place.which);
	trace_mark(e, GPU_TRACE_HOME);
	if (GATED)
		wait_for_previous();
}
} // namespace tern

/* ---- launching ------------------------------------------------------------------------------- */

typedef void (*combine_kernel)(
	const struct gpu_combine, const struct ht_exchange, const struct combine_launch);

static combine_kernel choose(const struct gpu_combine *c)
{
	if (c->gate.marks) /* results are BF16 */
		return tern::combine_ht<GPU_Y_BF16, true>;
	return c->kind == GPU_Y_BF16   ? tern::combine_ht<GPU_Y_BF16>
	       : c->kind == GPU_Y_FP16 ? tern::combine_ht<GPU_Y_FP16>
				       : tern::combine_ht<GPU_Y_FP32>;
}

/* One token at a time where there are few for each team, as the last ones decide when all have
 * ended; and with many blocks, where NVLink and memory are waited for, not loading warps. */
static struct combine_launch division(
	const struct gpu_combine *c, const struct ht_exchange *h, uint32_t nr_blocks)
{
	const struct gpu_exchange *e = &c->exchange;
	struct combine_launch l = {
		team_shape_of(e->result.row_bytes, h->block_bytes, nr_blocks, e->nr_ranks), 0,
		c->roles & GPU_SEND, c->roles & GPU_RECEIVE, 0, 0, e->by_ranks};
	uint32_t of_team = e->max_tokens * e->nr_ranks / (nr_blocks * l.shape.nr_teams),
		 together = gpu_least(MOST_TOKENS, LANES >> token_shift(e->topk));

	l.keeps_own = c->roles == (GPU_SEND | GPU_RECEIVE) && e->by_replicas.d == 1;
	if (l.keeps_own)
		l.by_sources = e->by_others;
	l.nr_tokens = of_team < 32 || nr_blocks > TEAM_MANY_BLOCKS
			      ? 1
			      : gpu_least(together, of_team / 32);
	l.yields = l.nr_tokens == 1;
	return l;
}

static uint32_t shared_bytes(const struct combine_launch *l)
{
	return l->shape.nr_teams * team_bytes(l->shape);
}

cudaError_t ht_combine_launch(const struct gpu_combine *c, const struct ht_exchange *h,
	const struct gpu_launch *launch, cudaStream_t stream)
{
	struct combine_launch l = division(c, h, launch->nr_blocks);
	cudaLaunchConfig_t config = launch_config(launch->nr_blocks,
		l.shape.nr_teams * team_warps(l.shape) * LANES, shared_bytes(&l), stream);
	cudaLaunchAttribute early = {};

	launch_early(&config, &early, launch->early);
	return cudaLaunchKernelEx(&config, choose(c), *c, *h, l);
}

cudaError_t ht_combine_blocks(const struct gpu_combine *c, const struct ht_exchange *h, int *per_sm)
{
	struct combine_launch l = division(c, h, 1);
	cudaError_t rc = allow_shared((const void *)choose(c));

	if (!rc && c->gate.row_bits)
		rc = allow_shared((const void *)tern::combine_ht<GPU_Y_BF16, true>);
	return rc ? rc
		  : cudaOccupancyMaxActiveBlocksPerMultiprocessor(per_sm, choose(c),
			    (int)l.shape.nr_teams * team_warps(l.shape) * LANES, shared_bytes(&l));
}
