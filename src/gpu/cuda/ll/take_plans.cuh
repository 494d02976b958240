/* SPDX-License-Identifier: Apache-2.0 */
/* All sources' plans, as they come, into a block's shared memory (positions.cuh): each piece is
 * polled, checked before it is followed, and noted. Low-latency mode. */
#ifndef TERN_GPU_CUDA_LL_TAKE_PLANS_CUH
#define TERN_GPU_CUDA_LL_TAKE_PLANS_CUH

#include "gpu/cuda/ll/positions.cuh"

/* Tables are as large as correct peers need them: what would lead out of them is not followed. */
__device__ __forceinline__ bool is_good_route(
	const struct gpu_exchange *e, uint32_t source, uint32_t token, uint32_t physical)
{
	if (physical == GPU_NO_EXPERT)
		return true;
	return physical < e->placement.nr_physical &&
	       (e->by_replicas.d == 1 || sender_among(e, source, token) == source);
}

/* By a warp that has seen an id which is not. */
static __device__ __noinline__ void report_routes(const struct gpu_exchange *e, uint32_t epoch,
	uint32_t source, const uint16_t *ids, uint32_t first, uint32_t end)
{
	for (uint32_t i = first; i < end; i += LANES) {
		uint32_t physical = ids[i], token = gpu_div(i, e->by_topk);

		if (physical != GPU_NO_EXPERT && physical >= e->placement.nr_physical)
			report_broken(e, GPU_BROKEN_EXPERT, source, token, physical,
				e->placement.nr_physical - 1, epoch);
		else if (!is_good_route(e, source, token, physical))
			report_broken(e, GPU_BROKEN_SENDER, source, token, source,
				sender_among(e, source, token), epoch);
	}
	__syncwarp();
	if (lane_id() == 0) /* the first report counts; this one if the id is behind the last
			       token's */
		report_broken(e, GPU_BROKEN_EXPERT, source, end / e->topk, GPU_NO_EXPERT,
			e->placement.nr_physical - 1, epoch);
}

template <int CASE>
__device__ __forceinline__ void note_route(const struct gpu_exchange *e, const struct positions *p,
	uint32_t source, uint32_t token, uint32_t physical)
{
	uint32_t local = local_of<CASE>(e, physical), place = source * e->nr_local + local;

	if (local == UINT32_MAX)
		return;
	atomicOr(&p->bits[place * p->stride + token / 32], 1u << token % 32);
	atomicOr(&p->present[source * p->stride + token / 32], 1u << token % 32);
}

/* Four lines of a source's plan. */
struct plan_piece {
	uint32_t source, four;
	uint4 v;
};

template <int CASE, bool FAR>
__device__ __forceinline__ void look_at_plan(const struct gpu_exchange *e, struct plan_piece *piece)
{
	const uint8_t *plan =
		part_from<FAR, CASE == GPU_ELASTIC>(e, INTERNODE_PLAN, piece->source) +
		e->window.plans + piece->source * e->window.plan_bytes;

	piece->v = piece_load(plan + (uint64_t)piece->four * 4 * GPU_LINE_BYTES + lane_id() * 16);
}

/* This lane's piece of a line has come, or is not needed; of a plan whose head says what cannot be,
 * none is. */
template <int FORMAT>
__device__ __forceinline__ bool plan_line_there(
	const struct gpu_exchange *e, uint32_t epoch, uint32_t line, uint32_t nr_tokens, uint4 v)
{
	return !has_epoch<FORMAT>() || v.w == epoch || nr_tokens > e->max_tokens ||
	       !line_needed<FORMAT>(line, nr_tokens * e->topk);
}

/* No more tokens than there can be? By the warp. */
__device__ __forceinline__ bool check_tokens(
	const struct gpu_exchange *e, uint32_t epoch, uint32_t source, uint32_t nr_tokens)
{
	uint32_t bad = __ballot_sync(ALL_LANES, nr_tokens > e->max_tokens);

	if (bad && lane_id() == __ffs(bad) - 1)
		report_broken(e, GPU_BROKEN_TOKENS, source, 0, nr_tokens, e->max_tokens, epoch);
	return !bad;
}

/* Are its routes made by the tables that are here? By the warp; the head is line 0's. */
static __device__ __noinline__ bool check_placed(
	const struct gpu_exchange *e, uint32_t epoch, const struct plan_piece *piece)
{
	uint2 mine = placed_of(e);
	bool bad = piece->four == 0 && lane_id() == 7 &&
		   !is_placed_alike(mine, make_uint2(piece->v.x, piece->v.y));

	if (bad)
		report_broken(e, GPU_BROKEN_PLACED, piece->source, 0, piece->v.x, mine.x, epoch);
	return !__any_sync(ALL_LANES, bad);
}

/* How many tokens the piece's plan has, if its line 0 has come: its own warp sees that and tells
 * the block's others. All of a GPU's warps polling one line of 128 bytes keep a store to it
 * waiting, now and then for 5 us. */
__device__ __forceinline__ bool tokens_are_known(const struct positions *p, uint32_t epoch,
	const struct plan_piece *piece, uint32_t *nr_tokens)
{
	uint2 head;

	if (piece->four) {
		*nr_tokens = __shfl_sync(ALL_LANES,
			lane_id() == 0 ? atomicAdd(&p->nr_tokens[piece->source], 0u) : 0, 0);
		return *nr_tokens != NOT_YET;
	}
	head = plan_head_of(piece->v);
	*nr_tokens = head.x;
	return head.y == epoch;
}

/* After a look. NEVER: it did not come in time, or is no plan. */
template <int FORMAT, int CASE, bool FAR>
__device__ __forceinline__ uint32_t await_plan(const struct gpu_exchange *e,
	const struct positions *p, uint32_t epoch, struct plan_piece *piece)
{
	uint32_t line = 4 * piece->four + lane_id() / 8, nr_tokens;
	struct patience patience = {0, 0};

	for (;;) {
		bool known = tokens_are_known(p, epoch, piece, &nr_tokens);

		if (piece->four && nr_tokens == NEVER)
			return NEVER;
		if (__all_sync(ALL_LANES,
			    known && plan_line_there<FORMAT>(e, epoch, line, nr_tokens, piece->v)))
			return check_tokens(e, epoch, piece->source, nr_tokens) ? nr_tokens : NEVER;
		if (!warp_may_wait(&patience, e, piece->source, e->wait_ns))
			break;
		if (!__all_sync(ALL_LANES, !has_epoch<FORMAT>() || piece->v.w == epoch)) /* else
											    line 0
											    alone is
											    missing
											  */
			look_at_plan<CASE, FAR>(e, piece);
	}
	if (lane_id() == 7)
		report_wait(e, GPU_WAIT_PLAN, piece->source, piece->four, epoch, piece->v.w,
			patience.start_ns);
	return NEVER;
}

/* Does any of this lane's ids, two a word, name an expert that there is not? Added to 1, none is 0.
 * Ids that are left of an earlier round are good. */
template <uint32_t N>
__device__ __forceinline__ bool name_no_expert(
	const struct gpu_exchange *e, const uint32_t (&words)[4])
{
	uint32_t most = 0;

#pragma unroll
	for (uint32_t i = 0; i < N / 2; i++)
		most = max_of_halves(most, add_to_halves(words[i], 0x00010001));
	return lane_id() % 8 != 7 && max(most & 0xffff, most >> 16) > e->placement.nr_physical;
}

/* To shared memory as they came, then one a lane. */
template <int FORMAT, int CASE>
__device__ __forceinline__ bool note_piece(const struct gpu_exchange *e, const struct positions *p,
	uint32_t epoch, const struct plan_piece *piece, uint32_t nr_ids)
{
	constexpr uint32_t N = plan_line<FORMAT>::LANE_IDS, IDS = 4 * plan_line<FORMAT>::IDS,
			   STEPS = (IDS + LANES - 1) / LANES;
	uint16_t *ids = p->ids + piece->source * p->ids_stride;
	uint32_t *words =
		(uint32_t *)(ids + piece->four * IDS) + (lane_id() - lane_id() / 8) * (N / 2);
	uint32_t first = piece->four * IDS + lane_id(), end = min(nr_ids, (piece->four + 1) * IDS),
		 physical[STEPS];
	const uint32_t v[4] = {piece->v.x, piece->v.y, piece->v.z, piece->v.w};
	bool bad = CASE > GPU_ANY && line_needed<FORMAT>(4 * piece->four + lane_id() / 8, nr_ids) &&
		   name_no_expert<N>(e, v);

#pragma unroll
	for (uint32_t i = 0; i < N / 2; i++)
		if (lane_id() % 8 != 7)
			words[i] = v[i];
	__syncwarp();
#pragma unroll
	for (uint32_t i = 0; i < STEPS; i++)
		physical[i] = first + i * LANES < end ? ids[first + i * LANES] : GPU_NO_EXPERT;
	if (CASE <= GPU_ANY) {
#pragma unroll
		for (uint32_t i = 0; i < STEPS; i++)
			bad |= !is_good_route(e, piece->source,
				gpu_div(first + i * LANES, e->by_topk), physical[i]);
	}
	if (__any_sync(ALL_LANES, bad)) {
		report_routes(e, epoch, piece->source, ids, first, end);
		return false;
	}
#pragma unroll
	for (uint32_t i = 0; i < STEPS && piece->four * IDS + i * LANES < end; i++)
		note_route<CASE>(
			e, p, piece->source, gpu_div(first + i * LANES, e->by_topk), physical[i]);
	return true;
}

template <int FORMAT, int CASE, bool FAR>
__device__ __forceinline__ bool take_piece(const struct gpu_exchange *e, const struct positions *p,
	uint32_t epoch, struct plan_piece *piece)
{
	uint32_t nr_tokens = await_plan<FORMAT, CASE, FAR>(e, p, epoch, piece);

	if (piece->source == e->nr_ranks - 1 && piece->four == 0)
		trace_mark(e, 3);
	if (lane_id() == 0 && piece->four == 0)
		atomicExch(&p->nr_tokens[piece->source], nr_tokens);
	if (nr_tokens == NEVER || (CASE <= GPU_ANY && !check_placed(e, epoch, piece)))
		return false;
	if (lane_id() == 0 && piece->four == 0 && piece->source != e->rank)
		atomicMax(p->most_tokens, nr_tokens);
	return note_piece<FORMAT, CASE>(e, p, epoch, piece, nr_tokens * e->topk);
}

template <int CASE, bool FAR>
__device__ __forceinline__ struct plan_piece begin_piece(
	const struct gpu_exchange *e, uint32_t number, uint32_t end)
{
	uint32_t four = gpu_div(number, e->by_ranks);
	struct plan_piece piece = {number - four * e->nr_ranks, four, {}};

	if (number < end)
		look_at_plan<CASE, FAR>(e, &piece);
	return piece;
}

/* Pieces [first, end) of all plans, by all receiving warps, a warp's next one under way. Pieces
 * with a line 0 come first, so nobody waits for one that is behind its own. */
template <int FORMAT, int CASE, bool FAR>
__device__ __forceinline__ void take_fours(const struct gpu_exchange *e, const struct positions *p,
	uint32_t epoch, bool good, uint32_t first, uint32_t end, uint32_t warp, uint32_t nr_warps)
{
	/* What did not come from another node may come while it is looked at. */
	uint32_t nr = good ? e->nr_ranks * end : 0, i = e->nr_ranks * first + warp;
	struct plan_piece next = begin_piece<CASE, FAR>(e, i, nr);

#pragma unroll 1
	for (; i < nr && good; i += nr_warps) {
		struct plan_piece piece = next;

		next = begin_piece<CASE, FAR>(e, i + nr_warps, nr);
		good = take_piece<FORMAT, CASE, FAR>(e, p, epoch, &piece);
	}
	if (!good && lane_id() == 0)
		atomicOr(p->failed, 1u); /* maybe by all at once */
	warps_sync(nr_warps * LANES);
}

/* By all receiving warps. What there is to do follows what has come, and not what could: first the
 * pieces that plans of own_tokens have, without waiting to hear how many the others have; then, if
 * some rank has more, the rest, unless it has too many. FAR_WORD: which word of another node's
 * rank says that its plan is here. */
template <int FORMAT, int CASE, bool FAR, uint32_t FAR_WORD = INTERNODE_WORD_OFFSET>
__device__ __forceinline__ void take_plans(const struct gpu_exchange *e, struct positions *p,
	uint32_t epoch, bool failed, uint32_t own_tokens, uint32_t warp, uint32_t nr_warps)
{
	uint32_t first = 0, tokens = own_tokens;

#pragma unroll 1
	for (;;) {
		uint32_t end = fours_of<FORMAT>(e, tokens);

		clear_words(
			p, words_of<FORMAT>(e, end), warp * LANES + lane_id(), nr_warps * LANES);
		warps_sync(nr_warps * LANES);
		if (!first)
			failed = !internode_arrived<FAR, FAR_WORD>(e, INTERNODE_DISPATCH, epoch,
					 GPU_WAIT_PLAN, failed, warp, nr_warps) ||
				 failed;
		take_fours<FORMAT, CASE, FAR>(e, p, epoch, !failed, first, end, warp, nr_warps);
		if (*p->failed || *p->most_tokens <= tokens || *p->most_tokens > p->tokens)
			return;
		first = end;
		tokens = *p->most_tokens;
	}
}

#endif
