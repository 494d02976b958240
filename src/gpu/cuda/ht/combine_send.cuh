/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens of other sources, whose sums are sent. */
#ifndef TERN_GPU_CUDA_HT_COMBINE_SEND_CUH
#define TERN_GPU_CUDA_HT_COMBINE_SEND_CUH

#include "gpu/cuda/ht/combine_rows.cuh"

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

#endif
