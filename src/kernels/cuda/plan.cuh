/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: what each source tells everybody of its routing, and the positions of rows that follow from all of them. */
#ifndef TERN_CUDA_PLAN_CUH
#define TERN_CUDA_PLAN_CUH

#include "kernels.h"
#include "memory.cuh"
#include "segment.cuh"
#include "wait.cuh"

/* ---- experts ------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t expert_place(const struct ll_placement *p, uint32_t physical)
{
	if (!p->per_rank)
		return p->place[physical];
	return physical / p->per_rank << 16 | physical % p->per_rank;
}

__device__ __forceinline__ uint32_t expert_rank(const struct ll_placement *p, uint32_t physical)
{
	return p->per_rank ? physical / p->per_rank : p->place[physical] >> 16;
}

/* A replica on this rank if there is one, else number (rank + token) % replicas. */
static __device__ __noinline__ uint32_t choose_replica(const struct ll_exchange *e, uint32_t logical, uint32_t token)
{
	const struct ll_placement *p = &e->placement;
	uint32_t first = p->replica_start[logical], nr = p->replica_start[logical + 1] - first;

	for (uint32_t i = 0; i < nr; i++)
		if (expert_rank(p, p->replicas[first + i]) == e->rank)
			return p->replicas[first + i];
	return p->replicas[first + (e->rank + token) % nr];
}

__device__ __forceinline__ uint32_t physical_expert(const struct ll_dispatch *d, uint32_t token, uint32_t k)
{
	const struct ll_exchange *e = &d->exchange;
	uint64_t index = (uint64_t)token * e->topk + k;
	int64_t id = d->ids_64 ? ((const int64_t *)d->topk_ids)[index] : ((const int32_t *)d->topk_ids)[index];

	if (id < 0 || id >= e->placement.nr_experts)
		return LL_NO_EXPERT;
	return e->placement.replica_start ? choose_replica(e, (uint32_t)id, token) : (uint32_t)id;
}

__device__ __forceinline__ float gate_weight(const struct ll_dispatch *d, uint32_t token, uint32_t k)
{
	return d->topk_weights ? d->topk_weights[(uint64_t)token * d->exchange.topk + k] : 1.0f;
}

/* ---- a plan's lines ------------------------------------------------------------------------------------------ */

/* Payload word p of a line lies in lane p / words of its eight; word 0 is the number of tokens. */
template <int FORMAT> struct plan_line {
	static constexpr uint32_t WORDS = FORMAT == LL_LINES ? 4 : 3; /* payload words of a lane; a line's last is an epoch */
};

/* Which word of which record is word p (from 1) of a line? */
__device__ __forceinline__ bool record_of(const struct ll_plan *plan, uint32_t line, uint32_t p, uint32_t *token, uint32_t *word)
{
	uint32_t at = p - 1;

	if (plan->line_tokens) {
		*token = line * plan->line_tokens + at / plan->record_words;
		*word = at % plan->record_words;
		return at < plan->line_tokens * plan->record_words;
	}
	*token = line / plan->token_lines;
	*word = line % plan->token_lines * plan->line_words + at;
	return *word < plan->record_words && at < plan->line_words;
}

/* Where it lies in the plan, in bytes. */
template <int FORMAT> __device__ __forceinline__ uint32_t record_offset(const struct ll_plan *plan, uint32_t token, uint32_t word)
{
	uint32_t line, p;

	if (plan->line_tokens) {
		line = token / plan->line_tokens;
		p = 1 + token % plan->line_tokens * plan->record_words + word;
	} else {
		line = token * plan->token_lines + word / plan->line_words;
		p = 1 + word % plan->line_words;
	}
	return line * LL_LINE_BYTES + (FORMAT == LL_LINES ? p : p + p / 3) * 4;
}

__device__ __forceinline__ uint32_t plan_word(const struct ll_dispatch *d, uint32_t nr_tokens, uint32_t line, uint32_t p)
{
	const struct ll_plan *plan = &d->exchange.plan;
	uint32_t token, word, k;

	if (p == 0)
		return nr_tokens;
	if (!record_of(plan, line, p, &token, &word) || token >= nr_tokens)
		return 0;
	if (word >= plan->id_words)
		return __float_as_uint(gate_weight(d, token, word - plan->id_words));
	k = 2 * word;
	return physical_expert(d, token, k) | (k + 1 < plan->topk ? physical_expert(d, token, k + 1) : LL_NO_EXPERT) << 16;
}

/* Four lines of this rank's plan, by one warp, to all ranks. */
template <int FORMAT> __device__ __forceinline__ void send_plan(const struct ll_dispatch *d, uint32_t epoch, uint32_t nr_tokens, uint32_t four)
{
	const struct ll_exchange *e = &d->exchange;
	uint32_t line = 4 * four + lane_id() / 8, p = lane_id() % 8 * plan_line<FORMAT>::WORDS;
	uint32_t lines = ll_plan_lines(&e->plan, nr_tokens);
	uint64_t offset = e->window.plans + e->rank * e->window.plan_bytes + (uint64_t)four * 4 * LL_LINE_BYTES + lane_id() * 16;
	uint4 v;

	if (line >= lines)
		return;
	v.x = plan_word(d, nr_tokens, line, p);
	v.y = plan_word(d, nr_tokens, line, p + 1);
	v.z = plan_word(d, nr_tokens, line, p + 2);
	v.w = has_epoch<FORMAT>() ? epoch : plan_word(d, nr_tokens, line, p + 3);
	for (uint32_t i = 1; i <= e->nr_ranks; i++) {
		uint32_t to = e->rank + i;

		piece_store(e->windows[to >= e->nr_ranks ? to - e->nr_ranks : to] + offset, v);
	}
}

/* ---- what follows from all plans, in a block's shared memory ------------------------------------------------- */

struct positions {
	uint32_t token_words; /* of 32 tokens each */
	uint32_t *bits;	      /* [R][L][token_words] tokens of a source that go to a local expert */
	uint32_t *present;    /* [R][token_words] tokens of a source that come here at all */
	uint32_t *first_row;  /* [R][token_words] rows before those of `present` */
	uint32_t *base;	      /* [R][L] position of a source's first row of an expert */
	uint32_t *nr_tokens;  /* [R] */
	uint32_t *sums;	      /* rows, failed */
};

LL_BOTH uint32_t positions_words(uint32_t nr_ranks, uint32_t nr_local, uint32_t max_tokens)
{
	uint32_t words = ll_ceil(max_tokens, 32);

	return nr_ranks * nr_local * (words + 1) + 2 * nr_ranks * words + nr_ranks + 2;
}

__device__ __forceinline__ struct positions positions_in(uint32_t *shared, const struct ll_exchange *e)
{
	struct positions p;

	p.token_words = ll_ceil(e->max_tokens, 32);
	p.bits = shared;
	p.present = p.bits + e->nr_ranks * e->nr_local * p.token_words;
	p.first_row = p.present + e->nr_ranks * p.token_words;
	p.base = p.first_row + e->nr_ranks * p.token_words;
	p.nr_tokens = p.base + e->nr_ranks * e->nr_local;
	p.sums = p.nr_tokens + e->nr_ranks;
	return p;
}

__device__ __forceinline__ void note_route(const struct ll_exchange *e, const struct positions *p, uint32_t source, uint32_t token, uint32_t physical)
{
	uint32_t place;

	if (physical == LL_NO_EXPERT)
		return;
	place = expert_place(&e->placement, physical);
	if (place >> 16 != e->rank)
		return;
	atomicOr(&p->bits[(source * e->nr_local + (place & 0xffff)) * p->token_words + token / 32], 1u << token % 32);
	atomicOr(&p->present[source * p->token_words + token / 32], 1u << token % 32);
}

template <int FORMAT>
__device__ __forceinline__ void note_lane(const struct ll_exchange *e, const struct positions *p, uint32_t source, uint32_t line, uint32_t nr_tokens, uint4 v)
{
	const uint32_t words[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
	for (uint32_t i = 0; i < plan_line<FORMAT>::WORDS; i++) {
		uint32_t at = lane_id() % 8 * plan_line<FORMAT>::WORDS + i, token, word;

		if (at == 0 || (FORMAT == LL_LINES && at == 31) || !record_of(&e->plan, line, at, &token, &word) || token >= nr_tokens ||
			word >= e->plan.id_words)
			continue;
		note_route(e, p, source, token, words[i] & 0xffff);
		note_route(e, p, source, token, words[i] >> 16);
	}
}

/* Waits for four lines of a source's plan and takes their ids down. Line 0 says how many lines there are; it is looked at along with the others. */
template <int FORMAT>
__device__ __forceinline__ bool take_plan(const struct ll_exchange *e, const struct positions *p, uint32_t epoch, uint32_t source, uint32_t four)
{
	const uint8_t *plan = e->windows[e->rank] + e->window.plans + source * e->window.plan_bytes;
	uint32_t line = 4 * four + lane_id() / 8, nr_tokens;
	struct patience patience = {0, 0};
	bool there;
	uint4 head, v;

	do {
		head = piece_load(plan + lane_id() % 8 * 16);
		v = piece_load(plan + (uint64_t)four * 4 * LL_LINE_BYTES + lane_id() * 16);
		nr_tokens = __shfl_sync(ALL_LANES, head.x, 0);
		there = __all_sync(ALL_LANES, !has_epoch<FORMAT>() || (head.w == epoch && (v.w == epoch || line >= ll_plan_lines(&e->plan, nr_tokens))));
		if (!there && !may_wait(&patience, e->wait_ns)) {
			if (lane_id() == 7)
				report_wait(e, LL_WAIT_PLAN, source, four, epoch, head.w, &patience);
			return false;
		}
	} while (!there);
	nr_tokens = min(nr_tokens, e->max_tokens);
	if (line < ll_plan_lines(&e->plan, nr_tokens))
		note_lane<FORMAT>(e, p, source, line, nr_tokens, v);
	if (lane_id() == 0)
		p->nr_tokens[source] = nr_tokens;
	return true;
}

/* The sum of the lanes before this one, and of all. */
__device__ __forceinline__ uint32_t lanes_before(uint32_t value, uint32_t *all)
{
	uint32_t sum = value;

#pragma unroll
	for (uint32_t step = 1; step < LANES; step *= 2) {
		uint32_t other = __shfl_up_sync(ALL_LANES, sum, step);

		sum += lane_id() >= step ? other : 0;
	}
	*all = __shfl_sync(ALL_LANES, sum, LANES - 1);
	return sum - value;
}

/* By one warp: rows before those of each word of tokens. */
__device__ __forceinline__ void count_rows(const struct ll_exchange *e, const struct positions *p)
{
	uint32_t nr = e->nr_ranks * p->token_words, before = 0;

	for (uint32_t i = 0; i < nr; i += LANES) {
		uint32_t at = i + lane_id(), rows = at < nr ? __popc(p->present[at]) : 0, all;
		uint32_t first = before + lanes_before(rows, &all);

		if (at < nr)
			p->first_row[at] = first;
		before += all;
	}
	if (lane_id() == 0)
		p->sums[0] = before;
}

/* By one warp: where each source's rows of each expert begin. publish: to the caller as well. */
__device__ __forceinline__ void place_experts(const struct ll_dispatch *d, const struct positions *p, bool publish)
{
	const struct ll_exchange *e = &d->exchange;
	uint32_t end = 0, routes = 0, last = 0;

	for (uint32_t l0 = 0; l0 < e->nr_local; l0 += LANES) {
		uint32_t l = l0 + lane_id(), count = 0, all, all_routes, offset;

		for (uint32_t s = 0; l < e->nr_local && s < e->nr_ranks; s++) {
			uint32_t at = s * e->nr_local + l;

			p->base[at] = count;
			for (uint32_t w = 0; w * 32 < p->nr_tokens[s]; w++)
				count += __popc(p->bits[at * p->token_words + w]);
		}
		lanes_before(count, &all_routes);
		offset = end + lanes_before(ll_ceil(count, d->alignment) * d->alignment, &all);
		offset = d->padded ? l * d->capacity : offset;
		end += all;
		routes += all_routes;
		last = __shfl_sync(ALL_LANES, offset + count, min(e->nr_local - 1 - l0, LANES - 1));
		for (uint32_t s = 0; l < e->nr_local && s < e->nr_ranks; s++)
			p->base[s * e->nr_local + l] += offset;
		if (publish && l < e->nr_local) {
			d->out_counts[l] = count;
			d->out_offsets[l] = offset;
		}
	}
	if (publish && lane_id() == 0) {
		d->out_sums[0] = routes;
		d->out_sums[1] = d->padded ? e->nr_local * d->capacity : last;
	}
}

/* The row_index-th received row, in order of source and token. All lanes of the warp. */
__device__ __forceinline__ void find_row(const struct ll_exchange *e, const struct positions *p, uint32_t row_index, uint32_t *source, uint32_t *token)
{
	uint32_t nr = e->nr_ranks * p->token_words, hit = 0, at = 0, bits, rank;

	for (uint32_t i = 0; !hit; i += LANES) {
		uint32_t mine = i + lane_id();

		hit = __ballot_sync(ALL_LANES, mine < nr && row_index - p->first_row[mine] < __popc(p->present[mine]));
		at = i + __ffs(hit) - 1;
	}
	bits = p->present[at];
	rank = row_index - p->first_row[at];
	hit = __ballot_sync(ALL_LANES, (bits >> lane_id() & 1) && __popc(bits & ((1u << lane_id()) - 1)) == rank);
	*source = at / p->token_words;
	*token = at % p->token_words * 32 + __ffs(hit) - 1;
}

__device__ __forceinline__ uint32_t position_of(const struct ll_exchange *e, const struct positions *p, uint32_t source, uint32_t local, uint32_t token)
{
	uint32_t at = source * e->nr_local + local;
	uint32_t position = p->base[at];
	const uint32_t *bits = p->bits + at * p->token_words;

	for (uint32_t w = 0; w < token / 32; w++)
		position += __popc(bits[w]);
	return position + __popc(bits[token / 32] & ((1u << token % 32) - 1));
}

#endif
