/* SPDX-License-Identifier: Apache-2.0 */
/* Plans with less in a row (LL_ONCE): all pieces are looked for at once, not first those that say how many there are, and a piece's ids are taken down
 * without one waiting for the other. To look at a piece, to wait for it and to note its ids are apart here; in plan.cuh they are one. */
#ifndef TERN_CUDA_ONCE_CUH
#define TERN_CUDA_ONCE_CUH

#include "plan.cuh"

/* Four lines of a source's plan, and its line 0, which says how many lines there are. */
struct plan_piece {
	uint32_t source, four;
	uint2 head;
	uint4 v;
};

__device__ __forceinline__ void look_at_plan(const struct ll_exchange *e, struct plan_piece *piece)
{
	const uint8_t *plan = e->windows[e->rank] + e->window.plans + piece->source * e->window.plan_bytes;

	piece->v = piece_load(plan + (uint64_t)piece->four * 4 * LL_LINE_BYTES + lane_id() * 16);
	piece->head = piece->four ? load_plan_head(plan) : make_uint2(0, 0);
}

/* After a look. False: it did not come in time. */
template <int FORMAT> __device__ __forceinline__ bool await_plan(const struct ll_exchange *e, uint32_t epoch, struct plan_piece *piece, uint32_t *nr_tokens)
{
	uint32_t line = 4 * piece->four + lane_id() / 8;
	struct patience patience = {0, 0};

	for (;; look_at_plan(e, piece)) {
		piece->head = piece->four ? piece->head : plan_head_of(piece->v);
		*nr_tokens = piece->head.x;
		if (__all_sync(ALL_LANES, piece->head.y == epoch && plan_line_there<FORMAT>(e, epoch, line, *nr_tokens, piece->v)))
			return check_tokens(e, epoch, piece->source, *nr_tokens);
		if (may_wait(&patience, e->wait_ns))
			continue;
		if (lane_id() == 7)
			report_wait(e, LL_WAIT_PLAN, piece->source, piece->four, epoch, piece->head.y, &patience);
		return false;
	}
}

/* To shared memory as they came, then one a lane. */
template <int FORMAT, int HOW>
__device__ __forceinline__ bool note_piece(const struct ll_exchange *e, const struct positions *p, uint32_t epoch, const struct plan_piece *piece, uint32_t nr_ids)
{
	constexpr uint32_t N = plan_line<FORMAT>::LANE_IDS, IDS = 4 * plan_line<FORMAT>::IDS, STEPS = (IDS + LANES - 1) / LANES;
	uint16_t *ids = p->ids + piece->source * p->ids_stride;
	uint32_t *words = (uint32_t *)(ids + piece->four * IDS) + (lane_id() - lane_id() / 8) * (N / 2);
	uint32_t first = piece->four * IDS + lane_id(), end = min(nr_ids, (piece->four + 1) * IDS), physical[STEPS];
	const uint32_t v[4] = {piece->v.x, piece->v.y, piece->v.z, piece->v.w};
	bool good = true;

#pragma unroll
	for (uint32_t i = 0; i < N / 2; i++)
		if (lane_id() % 8 != 7)
			words[i] = v[i];
	__syncwarp();
#pragma unroll
	for (uint32_t i = 0; i < STEPS; i++)
		physical[i] = first + i * LANES < end ? ids[first + i * LANES] : LL_NO_EXPERT;
#pragma unroll
	for (uint32_t i = 0; i < STEPS; i++)
		good &= note_route<HOW>(e, p, epoch, piece->source, ll_div(first + i * LANES, e->by_topk), physical[i]);
	return __all_sync(ALL_LANES, good);
}

template <int FORMAT, int HOW>
__device__ __forceinline__ bool take_piece(const struct ll_exchange *e, const struct positions *p, uint32_t epoch, struct plan_piece *piece)
{
	uint32_t nr_tokens;

	if (!await_plan<FORMAT>(e, epoch, piece, &nr_tokens))
		return false;
	if (piece->source == e->nr_ranks - 1 && piece->four == 0)
		stamp(e, 3);
	if (lane_id() == 0 && piece->four == 0)
		p->nr_tokens[piece->source] = nr_tokens;
	return note_piece<FORMAT, HOW>(e, p, epoch, piece, nr_tokens * e->topk);
}

/* By all receiving warps, the next two pieces of each under way together. */
template <int FORMAT, int HOW>
__device__ __forceinline__ void take_plans_once(const struct ll_exchange *e, const struct positions *p, uint32_t epoch, bool failed, uint32_t warp, uint32_t nr_warps)
{
	uint32_t nr = e->nr_ranks * ll_ceil(ll_plan_lines((enum ll_format)FORMAT, e->max_tokens * e->topk), 4);
	bool good = !failed;

	for (uint32_t i = warp; i < nr && good; i += 2 * nr_warps) {
		uint32_t j = i + nr_warps, four = ll_div(i, e->by_ranks), next = ll_div(j, e->by_ranks);
		struct plan_piece a = {i - four * e->nr_ranks, four, {}, {}}, b = {j - next * e->nr_ranks, next, {}, {}};

		look_at_plan(e, &a);
		if (j < nr)
			look_at_plan(e, &b);
		good = take_piece<FORMAT, HOW>(e, p, epoch, &a) && (j >= nr || take_piece<FORMAT, HOW>(e, p, epoch, &b));
	}
	if (!good && lane_id() == 0)
		p->failed[0] = 1;
	warps_sync(nr_warps * LANES);
}

#endif
