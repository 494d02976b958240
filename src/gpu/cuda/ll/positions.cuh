/* SPDX-License-Identifier: Apache-2.0 */
/* What follows from all plans, in a block's shared memory: which rows come, and where each goes.
 * Low-latency mode. How plans are taken there: take_plans.cuh. */
#ifndef TERN_GPU_CUDA_LL_POSITIONS_CUH
#define TERN_GPU_CUDA_LL_POSITIONS_CUH

#include "gpu/cuda/common/plan.cuh"

#define NOT_YET UINT32_MAX
#define NEVER (UINT32_MAX - 1) /* it did not come, or says what cannot be: reported */

/* Rows of bits have room for as many tokens as there can be; a round clears and reads the words of
 * those that have come. */
struct positions {
	uint32_t tokens;   /* of a source, at most */
	uint32_t stride;   /* from one row of bits to the next, of words of 32 tokens each */
	uint32_t words;    /* of each row that this round uses; the others are undefined */
	uint32_t *bits;    /* [R][L][stride] tokens of a source that go to a local expert */
	uint32_t *present; /* [R][stride] tokens of a source that come here at all */
	uint32_t *groups;  /* [POSITIONS_GROUPS][R][stride] those with an expert of a group, or of
			      one below it; where rows come by groups */
	uint32_t *base;  /* [R][L] rows for an expert of the sources before; by_source: [R] position
			    of a source's first row */
	uint32_t *start; /* [L] position of an expert's first row */
	uint32_t *most_tokens; /* that any other rank has */
	uint32_t *failed;      /* some plan did not come, or was none */
	uint32_t *sums;        /* [2 GPU_MAX_WARPS] of warps */
	uint32_t *nr_tokens;   /* [R] as line 0 of each plan says; until then NOT_YET, or NEVER */
	uint16_t *ids;         /* [R][ids_stride] physical experts, by token and k */
	uint32_t ids_stride;   /* of whole warps' pieces */
};

/* GROUPED: internode/groups.cuh. */
template <int FORMAT, bool GROUPED = false>
__device__ __forceinline__ struct positions positions_in(
	uint32_t *shared, const struct gpu_exchange *e, uint32_t tokens)
{
	struct positions p;

	p.tokens = tokens;
	p.stride = positions_stride(tokens);
	p.words = 0;
	p.bits = shared;
	p.present = p.bits + e->nr_ranks * e->nr_local * p.stride;
	p.groups = p.present + e->nr_ranks * p.stride;
	p.base = p.groups + (GROUPED ? POSITIONS_GROUPS * e->nr_ranks * p.stride : 0);
	p.start = p.base + e->nr_ranks * max(e->nr_local, 1u);
	p.most_tokens = p.start + e->nr_local;
	p.failed = p.most_tokens + 1;
	p.sums = p.failed + 1;
	p.nr_tokens = p.sums + 2 * GPU_MAX_WARPS;
	p.ids = (uint16_t *)(p.nr_tokens + e->nr_ranks);
	p.ids_stride = positions_ids((enum gpu_format)FORMAT, tokens * e->topk);
	return p;
}

/* Warps' pieces of a plan that name that many tokens. */
template <int FORMAT>
__device__ __forceinline__ uint32_t fours_of(const struct gpu_exchange *e, uint32_t nr_tokens)
{
	return gpu_ceil(ll_plan_lines((enum gpu_format)FORMAT, nr_tokens * e->topk), 4);
}

/* Words of a row of bits that have room for all tokens of so many pieces. */
template <int FORMAT>
__device__ __forceinline__ uint32_t words_of(const struct gpu_exchange *e, uint32_t nr_fours)
{
	uint32_t tokens = gpu_div(nr_fours * 4 * plan_line<FORMAT>::IDS + e->topk - 1, e->by_topk);

	return gpu_ceil(min(tokens, e->max_tokens), 32);
}

/* All rows' words from p->words up to `words`, which are used from now on. */
__device__ __forceinline__ void clear_words(
	struct positions *p, uint32_t words, uint32_t thread, uint32_t nr_threads)
{
	if (p->words == 0 && words == p->stride) {
		for (uint32_t *at = p->bits + thread; at < p->base; at += nr_threads)
			*at = 0;
	} else {
		for (uint32_t *row = p->bits + thread * p->stride; row < p->base;
			row += nr_threads * p->stride)
			for (uint32_t w = p->words; w < words; w++)
				row[w] = 0;
	}
	p->words = words;
}

__device__ __forceinline__ void positions_clear(
	const struct positions *p, uint32_t nr_ranks, uint32_t thread, uint32_t nr_threads)
{
	for (uint32_t s = thread; s < nr_ranks; s += nr_threads)
		p->nr_tokens[s] = NOT_YET;
	if (thread == 0)
		*p->failed = *p->most_tokens = 0;
}

__device__ __forceinline__ uint32_t rows_of_source(const struct positions *p, uint32_t source)
{
	uint32_t rows = 0;

#pragma unroll 1
	for (uint32_t w = 0; w < p->words; w++)
		rows += __popc(p->present[source * p->stride + w]);
	return rows;
}

/* By one warp: each token once, source after source. */
__device__ __forceinline__ void place_sources(
	const struct gpu_dispatch *d, const struct positions *p, bool publish)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t first = 0;

	for (uint32_t s = 0; s < e->nr_ranks; s += LANES) {
		uint32_t source = s + lane_id(),
			 rows = source < e->nr_ranks ? rows_of_source(p, source) : 0, all;
		uint32_t start = first + lanes_before(rows, &all);

		first += all;
		if (source >= e->nr_ranks)
			continue;
		p->base[source] = start;
		if (publish) {
			d->out_counts[source] = rows;
			d->out_offsets[source] = start;
		}
	}
	if (publish && lane_id() == 0) {
		d->out_sums[0] = d->out_sums[1] = first;
		counters_received(e, first);
	}
}

/* Words: 0, or how many there are; then they are loaded as one. */
template <int WORDS>
__device__ __forceinline__ uint32_t count_bits(const uint32_t *bits, uint32_t nr_words)
{
	if constexpr (WORDS == 4) {
		uint4 v = *(const uint4 *)bits;

		return __popc(v.x) + __popc(v.y) + __popc(v.z) + __popc(v.w);
	} else if constexpr (WORDS == 1) {
		return __popc(*bits);
	} else {
		uint32_t nr = 0;

#pragma unroll 1
		for (uint32_t w = 0; w < nr_words; w++)
			nr += __popc(bits[w]);
		return nr;
	}
}

/* One expert's rows, by one thread: those of the sources before each to base, the sum returned. An
 * expert named twice gets one. The loads of four sources are under way together. */
template <int WORDS>
__device__ __forceinline__ uint32_t count_sources(
	const struct gpu_exchange *e, const struct positions *p, uint32_t expert)
{
	uint32_t all = 0;

#pragma unroll 1
	for (uint32_t first = 0; first < e->nr_ranks; first += 4) {
		uint32_t rows[4];

#pragma unroll
		for (uint32_t i = 0; i < 4; i++)
			rows[i] = count_bits<WORDS>(
				p->bits + (min(first + i, e->nr_ranks - 1) * e->nr_local + expert) *
						  p->stride,
				p->words);
#pragma unroll
		for (uint32_t i = 0; i < 4; i++) {
			if (first + i < e->nr_ranks)
				p->base[(first + i) * e->nr_local + expert] = all;
			all += first + i < e->nr_ranks ? rows[i] : 0;
		}
	}
	return all;
}

__device__ __forceinline__ uint32_t count_expert(
	const struct gpu_exchange *e, const struct positions *p, uint32_t expert)
{
	return p->words == 4 && p->stride == 4 ? count_sources<4>(e, p, expert)
	       : p->words == 1                 ? count_sources<1>(e, p, expert)
					       : count_sources<0>(e, p, expert);
}

/* When positions are known. */
__device__ __forceinline__ uint32_t rows_of_expert(
	const struct gpu_exchange *e, const struct positions *p, uint32_t expert)
{
	uint32_t last = (e->nr_ranks - 1) * e->nr_local + expert;

	return p->base[last] + count_bits<0>(p->bits + last * p->stride, p->words);
}

__device__ __forceinline__ uint32_t round_to_alignment(const struct gpu_dispatch *d, uint32_t rows)
{
	return gpu_div(rows + d->by_alignment.d - 1, d->by_alignment) * d->by_alignment.d;
}

/* The first position of each expert, by a thread each; of the threads before, sums tell. What an
 * expert takes is a whole number of alignments. */
template <int CASE>
__device__ __forceinline__ uint32_t span_of(const struct gpu_dispatch *d, uint32_t rows)
{
	return CASE == GPU_PLAIN ? rows : round_to_alignment(d, rows);
}

/* By all receiving warps, a thread an expert; those without one have nothing to wait for here.
 * publish: to the caller as well. */
template <int CASE, typename TABLES>
__device__ __forceinline__ void place_experts(const struct gpu_dispatch *d, const TABLES *p,
	uint32_t thread, uint32_t nr_threads, bool publish)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t nr = e->nr_local, warp = thread / LANES, before = 0, all_rows = 0;
	uint32_t nr_sums = min(nr_threads / LANES, gpu_ceil(nr, LANES));
	bool padded = CASE != GPU_PLAIN && d->padded;

	for (uint32_t first = 0; first < nr && warp < nr_sums; first += nr_threads) {
		uint32_t expert = first + thread,
			 rows = expert < nr ? count_expert(e, p, expert) : 0, all;
		uint32_t start = before + lanes_before(span_of<CASE>(d, rows), &all);

		if (lane_id() == 0)
			p->sums[warp] = all;
		if (CASE != GPU_PLAIN) {
			all = __reduce_add_sync(ALL_LANES, rows);
			if (lane_id() == 0)
				p->sums[GPU_MAX_WARPS + warp] = all;
		}
		some_warps_sync(nr_sums * LANES);
#pragma unroll 4
		for (uint32_t w = 0; w < nr_sums; w++) {
			uint32_t sum = p->sums[w];

			start += w < warp ? sum : 0;
			before += sum;
			all_rows += p->sums[CASE == GPU_PLAIN ? w : GPU_MAX_WARPS + w];
		}
		start = padded ? (uint32_t)(expert * d->capacity) : start;
		if (expert < nr)
			p->start[expert] = start;
		if (publish && expert < nr) {
			d->out_counts[expert] = rows;
			d->out_offsets[expert] = start;
		}
		if (publish && expert == nr - 1)
			d->out_sums[1] = padded ? nr * d->capacity : start + rows;
		if (first + nr_threads < nr)
			some_warps_sync(nr_sums * LANES); /* sums are used again */
	}
	if (publish && thread == 0) {
		d->out_sums[0] = all_rows;
		counters_received(e, all_rows);
	}
	if (publish && thread == 0 && nr == 0)
		d->out_sums[1] = 0;
}

/* By one warp, of one block: rows from each source, for the combine. */
__device__ __forceinline__ void count_rows(const struct gpu_exchange *e, const struct positions *p)
{
	uint32_t all = 0;

	for (uint32_t s = lane_id(); s < e->nr_ranks; s += LANES) {
		uint32_t rows = rows_of_source(p, s);

		e->state->nr_from[s] = rows;
		all += rows;
	}
	all = __reduce_add_sync(ALL_LANES, all);
	if (lane_id() == 0)
		e->state->nr_arrived = all;
}

/* Of a word's bits those that come before bit number `token`, which may lie before the word
 * (negative) or behind it. */
__device__ __forceinline__ uint32_t earlier_bits(uint32_t word, int token)
{
	return token >= 32 ? word : token > 0 ? word & ((1u << token) - 1) : 0;
}

/* Bits before bit number `token`. */
__device__ __forceinline__ uint32_t bits_before(
	const struct positions *p, const uint32_t *bits, uint32_t token)
{
	uint32_t nr;

	if (p->stride == 4) { /* words that are not used hold no earlier tokens */
		uint4 v = *(const uint4 *)bits;

		return __popc(earlier_bits(v.x, (int)token)) +
		       __popc(earlier_bits(v.y, (int)token - 32)) +
		       __popc(earlier_bits(v.z, (int)token - 64)) +
		       __popc(earlier_bits(v.w, (int)token - 96));
	}
	nr = __popc(bits[token / 32] & ((1u << token % 32) - 1));

#pragma unroll 1
	for (uint32_t w = 0; w < token / 32; w++)
		nr += __popc(bits[w]);
	return nr;
}

#endif
