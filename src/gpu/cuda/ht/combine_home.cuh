/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens of this rank, whose results come home. */
#ifndef TERN_GPU_CUDA_HT_COMBINE_HOME_CUH
#define TERN_GPU_CUDA_HT_COMBINE_HOME_CUH

#include "gpu/cuda/ht/combine_rows.cuh"

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

#endif
