/* SPDX-License-Identifier: Apache-2.0 */
/* How kernels are launched, as measured on 2 and 4 x H200 (docs/notebook): pure arithmetic, for the
 * library and for the lab. How rows are cut, which both ends have to know: gpu/wire/sizes.h; what a
 * block of the high-throughput combine is made of: ht/team.cuh. */
#ifndef TERN_GPU_CUDA_TUNING_H
#define TERN_GPU_CUDA_TUNING_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/wire/sizes.h"

#define GPU_MAX_WARPS 16

/* What blocks of a low-latency dispatch note of plans: all; slices, each block its own
 * (ll/slices.cuh); or all where no rank has many tokens, and else slices. */
enum ll_notes {
	LL_ALL_PLANS,
	LL_SLICES,
	LL_EITHER
};

struct gpu_launch {
	uint32_t nr_blocks;
	uint32_t nr_warps;   /* of a block, at most GPU_MAX_WARPS */
	uint32_t send_warps; /* of these; 1 to nr_warps - 1. nr_warps: all send, and then all
			      * receive; where ll_combine_whole. Both roles only */
	uint32_t early; /* may be scheduled before the kernel ahead of it has ended (programmatic
			 * dependent launch) */
	uint32_t own; /* of a combine, where ll_combine_whole: this rank's own sums pass through no
		       * window; so too where all send */
	enum ll_notes notes; /* of a dispatch */
	uint32_t helps;      /* with slices: who has sent receives too */
	uint32_t keeps;      /* likewise: rows for this rank pass through no window */
};

/* ---- low latency ----------------------------------------------------------------------------- */

/* What a dispatch's launch follows. */
struct ll_sizes {
	const struct row_geometry *row;
	uint32_t nr_ranks, nr_tokens, max_tokens;
	uint32_t noted_tokens;  /* as struct device_layout's, and so is sliced */
	bool sliced, may_slice; /* may: neither gates nor other nodes */
	bool gated;             /* gates, and no other nodes */
	bool scaled, quantised; /* quantised: here */
	bool by_source;
};

/* Blocks of so many warps, of which so many send. */
static inline struct gpu_launch ll_blocks(
	uint32_t nr_blocks, uint32_t nr_warps, uint32_t send_warps)
{
	struct gpu_launch launch = {
		nr_blocks, nr_warps, send_warps, 0, 0, LL_ALL_PLANS, 0, 0}; /* C++ warns of less */

	return launch;
}

/* This rank's own sums pass through no window. */
static inline struct gpu_launch ll_own_sums(struct gpu_launch launch)
{
	launch.own = 1;
	return launch;
}

/* So large that rows, and not their number, decide what is best. */
static inline bool ll_rule_large(const struct row_geometry *row)
{
	return row->row_bytes > 8192;
}

/* How many warps of 16 send the more than 64 tokens that each of two ranks has. The smaller a row,
 * and where it is neither quantised nor copied for several experts, the fewer keep NVLink busy. */
static inline uint32_t ll_rule_two_senders(const struct ll_sizes *s)
{
	if (s->by_source && !s->quantised)
		return ll_rule_large(s->row) ? 5 : 4;
	if (s->row->row_bytes <= 4096 && s->nr_tokens > 256)
		return 4;
	if (!s->scaled && ll_rule_large(s->row))
		return s->nr_tokens > 128 ? 7 : 6;
	return s->row->row_bytes <= (s->scaled ? 6144 : 4096) && !s->quantised ? 5 : 6;
}

/* Of two ranks' rows that travel as they are, many senders: they help the others when they are
 * through. */
static inline uint32_t ll_rule_slice_senders(const struct ll_sizes *s, bool many)
{
	if (ll_rule_large(s->row))
		return s->by_source && !many ? 9 : 10;
	return many || s->row->row_bytes <= 4096 ? 9 : 7;
}

/* So many tokens that plans are noted in slices. */
static inline bool ll_rule_sliced(const struct ll_sizes *s)
{
	return s->may_slice && (uint64_t)s->nr_tokens * s->nr_ranks > SLICES_FROM;
}

/* Hundreds of tokens between more than two ranks, whose rows travel as they are, behind gates. */
static inline bool ll_rule_hundreds_gated(const struct ll_sizes *s)
{
	return s->gated && !s->scaled && s->nr_tokens > 192;
}

/* Large rows of more than two ranks that travel as they are, until their copies take longer than
 * NVLink. */
static inline bool ll_rule_four_share(const struct ll_sizes *s)
{
	return !s->scaled && ll_rule_large(s->row) && s->nr_tokens <= 512;
}

/* Rows that are quantised keep those that send busy, who then help the others. Of two ranks' rows
 * half are a rank's own: with many tokens best taken from x, but not where they would be quantised
 * twice.
 */
static inline struct gpu_launch ll_rule_slices(const struct ll_sizes *s)
{
	struct gpu_launch launch = ll_blocks(132, 16, 7);
	bool busy = s->scaled && s->row->row_bytes > 4096, two = s->nr_ranks <= 2,
	     many = s->nr_tokens > 768;

	launch.notes = LL_SLICES;
	launch.helps = 1;
	launch.keeps = !s->quantised && two && many;
	if (!two)
		launch.send_warps = ll_rule_four_share(s) ? 9 : busy ? 5 : 6;
	else if (!s->scaled)
		launch.send_warps = ll_rule_slice_senders(s, many);
	else if (s->quantised && busy && !many)
		launch.send_warps = 6;
	return launch;
}

/* With few rows, few blocks, which start and end sooner. With many, few warps that send: more would
 * only wait for NVLink, and take the place of those that receive; but large rows that travel as
 * they are, and two ranks, ask for more. */
static inline struct gpu_launch ll_rule_all_plans(const struct ll_sizes *s)
{
	uint32_t nr_tokens = s->nr_tokens;
	bool two = s->nr_ranks <= 2;

	if (nr_tokens <= 2)
		return ll_blocks(24, 8, 4);
	if (two && nr_tokens * (s->row->nr_segments + 1) <= 96)
		return ll_blocks(48, 8, 4);
	if (nr_tokens <= 16)
		return ll_blocks(96, 16, 8);
	if (nr_tokens <= (two ? 64 : 32))
		return ll_blocks(96, 16, 4);
	if (two)
		return ll_blocks(132, 16, ll_rule_two_senders(s));
	if (nr_tokens <= 64)
		return ll_blocks(112, 16, 4);
	return ll_blocks(132, 16, ll_rule_hundreds_gated(s) ? 3 : ll_rule_large(s->row) ? 6 : 2);
}

/* Who has few tokens may be sent many, and does not know it: where there can be so many, at least
 * as much of the GPU receives them. Costs a round of one token 0.5 us where there can be hundreds,
 * and 0.9 where there can be thousands. */
static inline struct gpu_launch ll_rule_beside_many(struct gpu_launch launch, uint32_t max_tokens)
{
	bool whole = launch.send_warps == launch.nr_warps;
	uint32_t least = whole ? 64 : max_tokens > 1024 ? 96 : 48;

	if (max_tokens <= 128)
		return launch;
	if (launch.nr_blocks < least)
		launch.nr_blocks = least;
	if (launch.nr_warps < 16) {
		launch.nr_warps = 16;
		launch.send_warps = whole ? 16 : 4;
	}
	return launch;
}

static inline struct gpu_launch ll_rule_dispatch(const struct ll_sizes *s)
{
	struct gpu_launch launch;

	if (ll_rule_sliced(s))
		return ll_rule_slices(s);
	launch = ll_rule_beside_many(ll_rule_all_plans(s), s->max_tokens);
	if (s->noted_tokens && s->nr_tokens <= s->noted_tokens) {
		launch.notes = LL_EITHER;
	} else if (s->sliced) {
		launch.notes = LL_SLICES;
		launch.helps = s->quantised;
		launch.keeps = !s->quantised;
	}
	return launch;
}

/* Where all warps send, and then receive: at least as many as there are segments of sums, of other
 * ranks' tokens and of this rank's, or some have two, one after the other; and few blocks. */
static inline struct gpu_launch ll_rule_whole(uint32_t nr_segments, uint32_t nr_ranks)
{
	if (nr_segments <= (nr_ranks <= 2 ? 192 : 128))
		return ll_own_sums(ll_blocks(24, 8, 8));
	if (nr_ranks <= 2 && nr_segments <= 384)
		return ll_own_sums(ll_blocks(24, 16, 16));
	return ll_own_sums(ll_blocks(nr_segments <= 800    ? 64
				     : nr_segments <= 1500 ? 96
							   : 132,
		16, 16));
}

/* Vectors of 16 bytes a lane that a warp takes of a result at a time. Between two ranks each is a
 * sum of twice as many rows. */
static inline uint32_t ll_rule_result_vectors(uint32_t nr_tokens, uint32_t nr_ranks)
{
	return nr_ranks > 2 || nr_tokens <= 64 ? 1 : 2;
}

/* Between two ranks, of sums that NVLink takes longer for than a kernel takes to begin and end: own
 * sums of several rows are better kept, where few warps send; single rows go through the window.
 * Of large ones all SMs at once are in each other's way. */
static inline struct gpu_launch ll_rule_two_sums(
	uint32_t nr_tokens, const struct row_geometry *result, uint32_t rows)
{
	uint64_t bytes = (uint64_t)nr_tokens * result->row_bytes;

	if (ll_rule_large(result))
		return rows > 1    ? ll_own_sums(ll_blocks(120, 16, 7))
		       : rows == 1 ? ll_blocks(120, 16, 10)
				   : ll_blocks(132, 16, nr_tokens <= 1024 ? 9 : 10);
	if (rows > 2)
		return ll_own_sums(bytes > 4 << 20 ? ll_blocks(124, 16, 7) : ll_blocks(132, 16, 8));
	return ll_blocks(132, 16, 10);
}

/* rows: a result is a sum of about so many rows here, each as large as the result; 0: rows are
 * summed at home, and all of a token's go there. whole: all warps
 * can send, and then receive; results that take NVLink longer than a kernel takes to begin and end
 * are better sent while others are received. */
static inline struct gpu_launch ll_rule_combine(uint32_t nr_tokens, uint32_t max_tokens,
	uint32_t nr_ranks, const struct row_geometry *result, uint32_t rows, bool whole)
{
	bool short_of_links = (uint64_t)nr_tokens * result->row_bytes <= 2000000,
	     large = ll_rule_large(result);
	struct gpu_launch launch;

	if (whole && (nr_ranks <= 2 ? short_of_links : nr_tokens * result->nr_segments <= 900))
		launch = ll_rule_whole(nr_ranks * nr_tokens * result->nr_segments, nr_ranks);
	else if (nr_tokens <= 16)
		launch = nr_tokens <= 2 ? ll_blocks(64, 16, 4) : ll_blocks(96, 16, 8);
	else if (nr_ranks > 2)
		launch = nr_tokens <= 64 || large ? ll_blocks(132, 16, 9) : ll_blocks(112, 16, 10);
	else if (nr_tokens <= 64)
		launch = ll_blocks(132, 16, 8);
	else
		launch = ll_rule_two_sums(nr_tokens, result, rows);
	return ll_rule_beside_many(launch, max_tokens);
}

/* How many warps share the destinations of one segment. Each quantises it, which rows that travel
 * as they are need not. */
static inline uint32_t ll_rule_share(const struct ll_sizes *s)
{
	uint32_t most = s->nr_tokens <= 2       ? 4
			: s->nr_tokens <= 16    ? 1
			: s->nr_tokens <= 64    ? 2
			: ll_rule_large(s->row) ? 4
			: s->scaled             ? 1
						: 2;

	if (s->nr_ranks <= 2 && s->nr_tokens > 2)
		most = s->nr_tokens > 64 && !s->scaled ? 2 : 1;
	else if (ll_rule_sliced(s))
		most = ll_rule_four_share(s) ? 4 : 2;
	else if (ll_rule_hundreds_gated(s))
		most = 2;
	return s->nr_ranks < most ? s->nr_ranks : most;
}

/* ---- high throughput ------------------------------------------------------------------------- */

/* With so many blocks or fewer the dispatch has a telling warp (dispatch_heads.cuh), and for rows
 * of more bytes. Without it the fences of all sending warps can take 1.7 ms where one warp's take
 * 0.2: docs/notebook/gpu-high-throughput.md. */
#define HT_FEW_BLOCKS 48
#define HT_LARGE_ROW 8192

/* Warps of a block that send: together as many bytes as keep NVLink busy, and no more: all rows
 * that are under way arrive together, and those that arrive last are copied last. With few blocks
 * none of them waits for fences. Measured, docs/notebook/gpu-high-throughput.md. */
static inline uint32_t ht_rule_senders(
	uint32_t nr_blocks, uint32_t nr_ranks, uint32_t row_bytes, bool copied)
{
	bool few = nr_blocks <= HT_FEW_BLOCKS, once = nr_ranks <= 2;
	uint32_t bytes = few ? (once ? 4600000 : 1370000) : once && !copied ? 5700000 : 3700000;
	uint32_t wanted = (bytes / row_bytes + nr_blocks - 1) / nr_blocks,
		 most = few      ? (once ? 12 : 8)
			: copied ? 6
				 : 8;

	return wanted < 3 ? 3 : gpu_least(wanted, most);
}

#endif
