/* SPDX-License-Identifier: Apache-2.0 */
/* What one GPU stores into another's window in low-latency mode, byte for byte. Shared by the host and by kernels.
 *
 * Nothing here is announced by a flag: every piece carries the epoch of its round, so a reader polls the piece itself, and a
 * writer needs no fence. There are two formats of a piece:
 *
 *   LL_LINES   128 bytes, the last 4 the epoch. A line is stored by 8 neighbouring lanes in one instruction, and read so too. Relies on
 *              such a store arriving whole, as it does over NVLink and in a GPU's own memory. 3 % of the bytes are epochs.
 *   LL_CELLS   16 bytes, the last 4 the epoch. Relies on nothing but PTX's single-copy atomic 128-bit accesses. 25 % are epochs.
 *
 * A row (or result) is cut into segments, one for a warp. The words that epochs displaced, and scales, travel in words at the segment's end, so that
 * each lane's 16 bytes are aligned as they are in the caller's row:
 *
 *   LL_LINES   | line 0 | line 1 | ... | (unused) | last line |      vector i of a warp is lines 4i .. 4i+3
 *                line:  31 words of the row, epoch      last line: of the row as well; its last nr_vectors pieces of 16 bytes hold the displaced words, epoch
 *   with FP8   | line 0 | line 1 | ... | line n-1 | (unused) | extra line |      n <= 4 nr_vectors - 1
 *                line:  31 words of the row, epoch      extra line: scale, displaced word for each line, epoch; no longer than that: 32 bytes a vector
 *   LL_CELLS   | vector 0 of 32 lanes | vector 1 | ... | extra vectors |
 *                cell:  3 words of the row, epoch       extra cell: the same lane's displaced words (3; FP8: 2, and scales), epoch
 *
 *   window     | arrival words [R] | plan of source 0 | ... | R-1 | rows [R][T] | results |
 *   plan       of a source: its number of tokens, and for each token the physical experts [K] (16 bits each, 0xffff: none). Sent to
 *              every rank in every round: from it a receiver knows which rows will come, and computes all positions.
 *   rows       of source s, token t at [s][t]: nobody has to count to know where a row goes. A head with the weights, then segments.
 *   results    [t][k]: of each route, or, summed at the expert, in the place of the first route that leads to its rank
 *   arrival    word of rank r: the epoch of the last round of which r has read all rows; stored by the combine
 */
#ifndef TERN_WIRE_LL_H
#define TERN_WIRE_LL_H

#include <stdint.h>

#ifdef __CUDACC__
#define LL_BOTH static __host__ __device__ __forceinline__
#else
#define LL_BOTH static inline
#endif

#define LL_LINE_BYTES 128
#define LL_NO_EXPERT 0xffffu
#define LL_MAX_RANKS 72 /* of one NVLink domain */

enum ll_format {
	LL_LINES = 0,
	LL_CELLS = 1
};

/* How a row, or a result, is cut. */
struct ll_cut {
	uint32_t row_bytes;	/* as the receiver stores it, without scales; a multiple of 16 */
	uint32_t nr_lines;	/* 128-byte pieces of it; FP8: blocks */
	uint32_t nr_vectors;	/* data vectors of a lane in a segment */
	uint32_t segment_pieces; /* of 16 bytes each; the last segment may have fewer */
	uint32_t nr_segments;
	uint32_t segment_bytes;
};

LL_BOTH uint32_t ll_least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

LL_BOTH uint32_t ll_ceil(uint32_t a, uint32_t b)
{
	return (a + b - 1) / b;
}

/* All vectors of a lane, extra ones included. */
LL_BOTH uint32_t ll_all_vectors(enum ll_format format, int scaled, uint32_t nr_vectors)
{
	return format == LL_LINES ? nr_vectors : nr_vectors + ll_ceil(nr_vectors, scaled ? 2 : 3);
}

/* Scales are of whole lines, of which segments have about as many each. Without them all lines of a segment are full but those of the last one: a line that is not
 * costs NVLink as much as one that is. */
LL_BOTH struct ll_cut ll_cut_row(enum ll_format format, int scaled, uint32_t row_bytes, uint32_t nr_vectors)
{
	struct ll_cut cut;
	uint32_t most = format == LL_LINES ? 4 * nr_vectors - 1 : 4 * nr_vectors;

	cut.row_bytes = row_bytes;
	cut.nr_lines = ll_ceil(row_bytes, LL_LINE_BYTES);
	cut.nr_vectors = nr_vectors;
	cut.nr_segments = ll_ceil(cut.nr_lines, most);
	cut.segment_pieces = ll_ceil(cut.nr_lines, cut.nr_segments) * (LL_LINE_BYTES / 16);
	if (format == LL_LINES && !scaled) {
		cut.segment_pieces = 31 * nr_vectors;
		cut.nr_segments = ll_ceil(row_bytes / 16, cut.segment_pieces);
	}
	cut.segment_bytes = ll_all_vectors(format, scaled, nr_vectors) * 512;
	return cut;
}

/* Division by what is known before the launch: n * d < 2^32. */
struct ll_divisor {
	uint32_t d, factor;
};

LL_BOTH struct ll_divisor ll_divisor_of(uint32_t d)
{
	struct ll_divisor v;

	v.d = d;
	v.factor = 0xffffffffu / d + 1;
	return v;
}

LL_BOTH uint32_t ll_div(uint32_t n, struct ll_divisor v)
{
	return v.d == 1 ? n : (uint32_t)((uint64_t)n * v.factor >> 32);
}

/* The plan: seven lanes' pieces of a line hold 16-bit ids, in the order of topk_ids; the eighth the number of tokens. */
LL_BOTH uint32_t ll_lane_ids(enum ll_format format)
{
	return format == LL_LINES ? 8 : 6;
}

/* At least one: no tokens is news too. */
LL_BOTH uint32_t ll_plan_lines(enum ll_format format, uint32_t nr_ids)
{
	uint32_t lines = ll_ceil(nr_ids, 7 * ll_lane_ids(format));

	return lines ? lines : 1;
}

/* A row's head: seven (LL_CELLS: eight) lanes' pieces of a line hold gate weights in the order of k. Two lines are enough for 32. */
#define LL_HEAD_BYTES (2 * LL_LINE_BYTES)

/* What is stored of it for topk weights. */
LL_BOTH uint32_t ll_head_wire_bytes(enum ll_format format, uint32_t topk)
{
	return topk > (format == LL_LINES ? 28u : 24u) ? 2 * LL_LINE_BYTES : LL_LINE_BYTES;
}

/* Lanes whose pieces hold what epochs displaced, and scales: FP8, of an extra line from its first lane on; else of a segment's last line, its last lanes. */
LL_BOTH uint32_t ll_extra_lanes(int scaled, uint32_t nr_vectors)
{
	return (scaled ? 2 : 1) * nr_vectors;
}

/* What is stored of a row's segments, or a result's: its lines, and what a segment has besides. The last line of LL_LINES, without scales, is there whether or not it
 * has anything of the row. */
LL_BOTH uint64_t ll_wire_bytes(enum ll_format format, int scaled, const struct ll_cut *cut)
{
	uint32_t cells = 512 * (ll_all_vectors(format, scaled, cut->nr_vectors) - cut->nr_vectors), lines, last;

	if (format == LL_LINES && !scaled) {
		last = cut->row_bytes / 16 - (cut->nr_segments - 1) * cut->segment_pieces;
		lines = (cut->nr_segments - 1) * 4 * cut->nr_vectors + ll_least(ll_ceil(last, 8) + 1, 4 * cut->nr_vectors);
		return (uint64_t)LL_LINE_BYTES * lines;
	}
	return (uint64_t)LL_LINE_BYTES * cut->nr_lines + (uint64_t)cut->nr_segments * (format == LL_LINES ? ll_extra_lanes(scaled, cut->nr_vectors) * 16 : cells);
}

struct ll_window {
	uint64_t arrivals, plans, rows, results, bytes; /* offsets */
	uint64_t plan_bytes;				/* of one source */
	uint64_t row_bytes, result_bytes;		/* from one to the next */
};

LL_BOTH struct ll_window ll_window_of(enum ll_format format, const struct ll_cut *row, const struct ll_cut *result, uint32_t nr_ranks,
	uint32_t max_tokens, uint32_t topk)
{
	struct ll_window w;

	w.arrivals = 0;
	w.plans = (uint64_t)nr_ranks * LL_LINE_BYTES;
	w.plan_bytes = (uint64_t)ll_ceil(ll_plan_lines(format, max_tokens * topk), 4) * 4 * LL_LINE_BYTES; /* a warp reads four lines */
	w.rows = w.plans + nr_ranks * w.plan_bytes;
	w.row_bytes = LL_HEAD_BYTES + (uint64_t)row->nr_segments * row->segment_bytes;
	w.results = w.rows + (uint64_t)nr_ranks * max_tokens * w.row_bytes;
	w.result_bytes = (uint64_t)result->nr_segments * result->segment_bytes;
	w.bytes = w.results + (uint64_t)topk * max_tokens * w.result_bytes;
	return w;
}

#endif
