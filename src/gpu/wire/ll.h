/* SPDX-License-Identifier: Apache-2.0 */
/* What one GPU stores into another's window in low-latency mode, byte for byte. Shared by the host
 * and by kernels.
 *
 * Nothing here is announced by a flag: every piece carries the epoch of its round, so a reader
 * polls the piece itself, and a writer needs no fence. There are two formats of a piece:
 *
 *   GPU_FLAG128   128 bytes, the last 4 the epoch. A line is stored by 8 neighbouring lanes in one
 *                 instruction, and read so too. Relies on such a store arriving whole, as it does
 *                 over NVLink and in a GPU's own memory. 3 % of the bytes are epochs.
 *   GPU_FLAG16   16 bytes, the last 4 the epoch. Relies on nothing but PTX's single-copy atomic
 *                128-bit accesses. 25 % are epochs.
 *
 * A row (or result) is cut into segments, one for a warp. The words that epochs displaced, and
 * scales, travel in words at the segment's end, so that each lane's 16 bytes are aligned as they
 * are in the caller's row:
 *
 *   GPU_FLAG128   | line 0 | line 1 | ... | (unused) | last line |      vector i of a warp is lines 4i .. 4i+3
 *                line:  31 words of the row, epoch      last line: of the row as well; its last nr_vectors pieces of 16 bytes hold the displaced words, epoch
 *                of a result: one vector a segment; each end takes several together as it likes
 *   with FP8   | line 0 | line 1 | ... | line n-1 | (unused) | extra line |      n <= 4 nr_vectors - 1
 *                line:  31 words of the row, epoch      extra line: scale, displaced word for each line, epoch; no longer than that: 32 bytes a vector
 *   GPU_FLAG16   | vector 0 of 32 lanes | vector 1 | ... | extra vectors |
 *                cell:  3 words of the row, epoch       extra cell: the same lane's displaced words (3; FP8: 2, and scales), epoch
 *
 *   window     | arrival words [R] | plan of source 0 | ... | R-1 | rows [R][T] | results |
 *   plan       of a source: its number of tokens, and for each token the physical experts [K] (16
 *              bits each, 0xffff: none). Sent to every rank in every round: from it a receiver
 *              knows which rows will come, and computes all positions.
 *   rows       of source s, token t at [s][t]: nobody has to count to know where a row goes. A head
 *              with the weights, then segments.
 *   results    [t][column]: of each route k; or, summed at the expert, of each rank, and where ranks
 *              are more than K in the place of the first route that leads there
 *   arrival    word of rank r: the epoch of the last round of which r has read all rows; stored by
 *              the combine
 */
#ifndef TERN_GPU_WIRE_LL_H
#define TERN_GPU_WIRE_LL_H

#include <stdint.h>

#ifdef __CUDACC__
#define HOST_DEVICE static __host__ __device__ __forceinline__
#else
#define HOST_DEVICE static inline
#endif

#define GPU_LINE_BYTES 128
#define GPU_NO_EXPERT 0xffffu
#define GPU_MAX_RANKS 256 /* their windows' addresses are among a kernel's arguments, of 4 KiB */

enum gpu_format {
	GPU_FLAG128 = 0,
	GPU_FLAG16 = 1
};

/* How a row, or a result, is cut. */
struct row_geometry {
	uint32_t row_bytes;      /* as the receiver stores it, without scales; a multiple of 16 */
	uint32_t nr_lines;       /* 128-byte pieces of it; FP8: blocks */
	uint32_t nr_vectors;     /* data vectors of a lane in a segment */
	uint32_t segment_pieces; /* of 16 bytes each; the last segment may have fewer */
	uint32_t nr_segments;
	uint32_t segment_bytes;
};

HOST_DEVICE uint32_t gpu_least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

HOST_DEVICE uint32_t gpu_ceil(uint32_t a, uint32_t b)
{
	return (a + b - 1) / b;
}

/* All vectors of a lane, extra ones included. */
HOST_DEVICE uint32_t gpu_all_vectors(enum gpu_format format, int scaled, uint32_t nr_vectors)
{
	return format == GPU_FLAG128 ? nr_vectors
				     : nr_vectors + gpu_ceil(nr_vectors, scaled ? 2 : 3);
}

/* Scales are of whole lines, of which segments have about as many each. Without them all lines of a
 * segment are full but those of the last one: a line that is not costs NVLink as much as one that
 * is. */
HOST_DEVICE struct row_geometry row_geometry_of(
	enum gpu_format format, int scaled, uint32_t row_bytes, uint32_t nr_vectors)
{
	struct row_geometry cut;
	uint32_t most = format == GPU_FLAG128 ? 4 * nr_vectors - 1 : 4 * nr_vectors;

	cut.row_bytes = row_bytes;
	cut.nr_lines = gpu_ceil(row_bytes, GPU_LINE_BYTES);
	cut.nr_vectors = nr_vectors;
	cut.nr_segments = gpu_ceil(cut.nr_lines, most);
	cut.segment_pieces = gpu_ceil(cut.nr_lines, cut.nr_segments) * (GPU_LINE_BYTES / 16);
	if (format == GPU_FLAG128 && !scaled) {
		cut.segment_pieces = 31 * nr_vectors;
		cut.nr_segments = gpu_ceil(row_bytes / 16, cut.segment_pieces);
	}
	cut.segment_bytes = gpu_all_vectors(format, scaled, nr_vectors) * 512;
	return cut;
}

/* Division by what is known before the launch: n * d < 2^32. */
struct gpu_divisor {
	uint32_t d, factor;
};

HOST_DEVICE struct gpu_divisor gpu_divisor_of(uint32_t d)
{
	struct gpu_divisor v;

	v.d = d;
	v.factor = 0xffffffffu / d + 1;
	return v;
}

HOST_DEVICE uint32_t gpu_div(uint32_t n, struct gpu_divisor v)
{
	return v.d == 1 ? n : (uint32_t)((uint64_t)n * v.factor >> 32);
}

/* The plan: seven lanes' pieces of a line hold 16-bit ids, in the order of topk_ids; the eighth the
 * number of tokens. */
HOST_DEVICE uint32_t ll_lane_ids(enum gpu_format format)
{
	return format == GPU_FLAG128 ? 8 : 6;
}

/* At least one: no tokens is news too. */
HOST_DEVICE uint32_t ll_plan_lines(enum gpu_format format, uint32_t nr_ids)
{
	uint32_t lines = gpu_ceil(nr_ids, 7 * ll_lane_ids(format));

	return lines ? lines : 1;
}

/* A row's head: seven (GPU_FLAG16: eight) lanes' pieces of a line hold gate weights in the order of
 * k. Two lines are enough for 32. */
#define LL_HEAD_BYTES (2 * GPU_LINE_BYTES)

/* What is stored of it for topk weights. */
HOST_DEVICE uint32_t ll_head_wire_bytes(enum gpu_format format, uint32_t topk)
{
	return topk > (format == GPU_FLAG128 ? 28u : 24u) ? 2 * GPU_LINE_BYTES : GPU_LINE_BYTES;
}

/* Lanes whose pieces hold what epochs displaced, and scales: FP8, of an extra line from its first
 * lane on; else of a segment's last line, its last lanes. */
HOST_DEVICE uint32_t gpu_extra_lanes(int scaled, uint32_t nr_vectors)
{
	return (scaled ? 2 : 1) * nr_vectors;
}

/* What is stored of a row's segments, or a result's: its lines, and what a segment has besides. The
 * last line of GPU_FLAG128, without scales, is there whether or not it has anything of the row. */
HOST_DEVICE uint64_t gpu_wire_bytes(
	enum gpu_format format, int scaled, const struct row_geometry *cut)
{
	uint32_t cells = 512 * (gpu_all_vectors(format, scaled, cut->nr_vectors) - cut->nr_vectors),
		 lines, last;

	if (format == GPU_FLAG128 && !scaled) {
		last = cut->row_bytes / 16 - (cut->nr_segments - 1) * cut->segment_pieces;
		lines = (cut->nr_segments - 1) * 4 * cut->nr_vectors +
			gpu_least(gpu_ceil(last, 8) + 1, 4 * cut->nr_vectors);
		return (uint64_t)GPU_LINE_BYTES * lines;
	}
	return (uint64_t)GPU_LINE_BYTES * cut->nr_lines +
	       (uint64_t)cut->nr_segments *
		       (format == GPU_FLAG128 ? gpu_extra_lanes(scaled, cut->nr_vectors) * 16
					      : cells);
}

struct ll_window {
	uint64_t arrivals, plans, rows, results, bytes; /* offsets */
	uint64_t plan_bytes;                            /* of one source */
	uint64_t row_bytes, result_bytes;               /* from one to the next */
	uint32_t nr_columns;                            /* results of a token */
	uint32_t rank_columns;                          /* a column is a rank; else a k */
};

HOST_DEVICE struct ll_window ll_window_of(enum gpu_format format, const struct row_geometry *row,
	const struct row_geometry *result, uint32_t nr_ranks, uint32_t max_tokens, uint32_t topk,
	int at_home)
{
	struct ll_window w;

	w.rank_columns = !at_home && nr_ranks <= topk;
	w.nr_columns = w.rank_columns ? nr_ranks : topk;
	w.arrivals = 0;
	w.plans = (uint64_t)nr_ranks * GPU_LINE_BYTES;
	w.plan_bytes = (uint64_t)gpu_ceil(ll_plan_lines(format, max_tokens * topk), 4) * 4 *
		       GPU_LINE_BYTES; /* a warp reads four lines */
	w.rows = w.plans + nr_ranks * w.plan_bytes;
	w.row_bytes = LL_HEAD_BYTES + (uint64_t)row->nr_segments * row->segment_bytes;
	w.results = w.rows + (uint64_t)nr_ranks * max_tokens * w.row_bytes;
	w.result_bytes = (uint64_t)result->nr_segments * result->segment_bytes;
	w.bytes = w.results + (uint64_t)w.nr_columns * max_tokens * w.result_bytes;
	return w;
}

#endif
