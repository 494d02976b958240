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

/* So large that rows, and not their number, decide what is best. */
static inline int ll_rule_large(const struct row_geometry *row)
{
	return row->row_bytes > 8192;
}

/* How many warps of 16 send the more than 64 tokens that each of two ranks has. The smaller a row,
 * and where it is neither quantised nor copied for several experts, the fewer keep NVLink busy. */
static inline uint32_t ll_rule_two_senders(
	uint32_t nr_tokens, const struct row_geometry *row, int quantised, int by_source)
{
	if (by_source && !quantised)
		return ll_rule_large(row) ? 5 : 4;
	if (row->row_bytes <= 4096 && nr_tokens > 256)
		return 4;
	return row->row_bytes <= 6144 && !quantised ? 5 : 6;
}

static inline bool ll_rule_sliced(uint32_t nr_tokens, uint32_t nr_ranks)
{
	return (uint64_t)nr_tokens * nr_ranks > SLICES_FROM;
}

/* Rows that are quantised keep those that send busy, who then help the others. Of two ranks, half
 * of many tokens' rows are a rank's own: best taken from x, but not where they would be quantised
 * twice.
 */
static inline struct gpu_launch ll_rule_slices(uint32_t nr_tokens, uint32_t nr_ranks,
	const struct row_geometry *row, int scaled, int quantised)
{
	struct gpu_launch launch = {132, 16, 7, 0, 0, LL_SLICES, quantised != 0, 0};
	bool large = ll_rule_large(row), busy = scaled && row->row_bytes > 4096;

	if (!quantised && nr_ranks <= 2 && nr_tokens > 768) {
		launch.helps = launch.keeps = 1;
		if (!scaled)
			launch.send_warps = large ? 10 : 9;
	} else if (quantised || nr_ranks <= 2 ? busy && nr_tokens <= 768 : busy || large) {
		launch.send_warps = 6;
	}
	return launch;
}

/* With few rows, few blocks, which start and end sooner. With many, few warps that send: more would
 * only wait for NVLink, and take the place of those that receive; but large rows that travel as
 * they are, and two ranks, ask for more. */
static inline struct gpu_launch ll_rule_dispatch(uint32_t nr_tokens, uint32_t nr_ranks,
	const struct row_geometry *row, int quantised, int by_source)
{
	static const struct gpu_launch one = {24, 8, 4, 0, 0, LL_ALL_PLANS, 0, 0},
				       little = {48, 8, 4, 0, 0, LL_ALL_PLANS, 0, 0},
				       few = {96, 16, 8, 0, 0, LL_ALL_PLANS, 0, 0},
				       some = {96, 16, 4, 0, 0, LL_ALL_PLANS, 0, 0},
				       more = {112, 16, 4, 0, 0, LL_ALL_PLANS, 0, 0},
				       many = {132, 16, 2, 0, 0, LL_ALL_PLANS, 0, 0},
				       large = {132, 16, 6, 0, 0, LL_ALL_PLANS, 0, 0};

	if (nr_tokens <= 2)
		return one;
	if (nr_ranks <= 2 && nr_tokens * (row->nr_segments + 1) <= 96)
		return little;
	if (nr_tokens <= 16)
		return few;
	if (nr_ranks <= 2 && nr_tokens > 64)
		return (struct gpu_launch){132, 16,
			ll_rule_two_senders(nr_tokens, row, quantised, by_source), 0, 0,
			LL_ALL_PLANS, 0, 0};
	if (nr_ranks <= 2)
		return some;
	return nr_tokens <= 32 ? some : nr_tokens <= 64 ? more : ll_rule_large(row) ? large : many;
}

/* Where all warps send, and then receive: at least as many as there are segments of sums, of other
 * ranks' tokens and of this rank's, or some have two, one after the other; and few blocks. */
static inline struct gpu_launch ll_rule_whole(uint32_t nr_segments, uint32_t nr_ranks)
{
	static const struct gpu_launch one = {24, 8, 8, 0, 1, LL_ALL_PLANS, 0, 0},
				       little = {24, 16, 16, 0, 1, LL_ALL_PLANS, 0, 0},
				       few = {64, 16, 16, 0, 1, LL_ALL_PLANS, 0, 0},
				       some = {96, 16, 16, 0, 1, LL_ALL_PLANS, 0, 0},
				       all = {132, 16, 16, 0, 1, LL_ALL_PLANS, 0, 0};

	if (nr_segments <= (nr_ranks <= 2 ? 192 : 128))
		return one;
	if (nr_ranks <= 2 && nr_segments <= 384)
		return little;
	return nr_segments <= 800 ? few : nr_segments <= 1500 ? some : all;
}

/* summed: a result is a sum of several rows here, each as large as the result. whole: all warps can
 * send, and then receive; results that take NVLink longer than a kernel takes to begin and end are
 * better sent while others are received. */
static inline struct gpu_launch ll_rule_combine(uint32_t nr_tokens, uint32_t nr_ranks,
	const struct row_geometry *result, int summed, int whole)
{
	static const struct gpu_launch one = {64, 16, 4, 0, 0, LL_ALL_PLANS, 0, 0},
				       few = {96, 16, 8, 0, 0, LL_ALL_PLANS, 0, 0},
				       some = {132, 16, 8, 0, 0, LL_ALL_PLANS, 0, 0},
				       many = {132, 16, 9, 0, 0, LL_ALL_PLANS, 0, 0},
				       small = {112, 16, 10, 0, 0, LL_ALL_PLANS, 0, 0},
				       two_small = {132, 16, 10, 0, 0, LL_ALL_PLANS, 0, 0},
				       two_large = {132, 16, 7, 0, 1, LL_ALL_PLANS, 0, 0},
				       two_whole_rows = {132, 16, 9, 0, 0, LL_ALL_PLANS, 0, 0};
	bool short_of_links = (uint64_t)nr_tokens * result->row_bytes <= 2000000;

	if (whole && (nr_ranks <= 2 ? short_of_links : nr_tokens * result->nr_segments <= 900))
		return ll_rule_whole(nr_ranks * nr_tokens * result->nr_segments, nr_ranks);
	if (nr_tokens <= 16)
		return nr_tokens <= 2 ? one : few;
	if (nr_ranks > 2)
		return nr_tokens <= 64 || ll_rule_large(result) ? many : small;
	return nr_tokens <= 64                   ? some
	       : !summed && !short_of_links      ? two_whole_rows
	       : summed && ll_rule_large(result) ? two_large
						 : two_small;
}

/* Who has few tokens may be sent thousands, and does not know it: where there can be so many, at
 * least as much of the GPU receives them. Costs a round of one token 0.5 to 0.8 us. */
static inline struct gpu_launch ll_rule_beside_many(struct gpu_launch launch, uint32_t max_tokens)
{
	bool whole = launch.send_warps == launch.nr_warps;
	uint32_t least = whole ? 64 : 96;

	if (max_tokens <= 1024)
		return launch;
	if (launch.nr_blocks < least)
		launch.nr_blocks = least;
	if (launch.nr_warps < 16) {
		launch.nr_warps = 16;
		launch.send_warps = whole ? 16 : 4;
	}
	return launch;
}

/* How many warps share the destinations of one segment. Each quantises it, which rows that travel
 * as they are need not. */
static inline uint32_t ll_rule_share(
	int scaled, uint32_t nr_tokens, uint32_t nr_ranks, const struct row_geometry *row)
{
	uint32_t most = nr_tokens <= 2       ? 4
			: nr_tokens <= 16    ? 1
			: nr_tokens <= 64    ? 2
			: ll_rule_large(row) ? 4
			: scaled             ? 1
					     : 2;

	if (nr_ranks <= 2 && nr_tokens > 2)
		most = nr_tokens > 64 && !scaled ? 2 : 1;
	return nr_ranks < most ? nr_ranks : most;
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
