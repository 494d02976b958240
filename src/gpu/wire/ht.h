/* SPDX-License-Identifier: Apache-2.0 */
/* What one GPU stores into another's window in high-throughput mode. Shared by the host and by
 * kernels.
 *
 *   window    count words [2][R] | counts [2][R] | heads [R][T] | result words [T][C] | x | scales | results [T][C] | early rows [R][S] | their scales
 *   counts    of a source, by the epoch's parity: rows for each physical expert [P], rows for each
 *             rank [R], its number of tokens, how many of them are early, and by which tables they
 * are routed. Its word, the epoch, is released behind it. Who has the counts of all knows where
 * every row goes.
 *   x         rows, in their final places; a row that has several here is stored in the first, and
 *             copied to the others by the receiver
 *   head      of source s, token t: for each k 16 bytes: position (UINT32_MAX: not here), weight,
 *             local expert, epoch. Released behind the row, so it is also what announces it. Stored
 *             to every rank, row or none.
 *   early     rows of a source's first tokens (at most S): they leave before any place is known,
 *             and the receiver copies them from here to all their places. Their heads are like any
 *             other's, and leave when places are known; in an abandoned round, without places.
 *   results   of token t, in column c: as many columns as there can be results of a token (ranks,
 *             or k). Their word, the epoch, is released behind each. This rank's own are there only
 *             where halves are called apart or ranks have replicas: else they are summed from y.
 *
 * Why rows, early ones too, and results of the next round may overwrite these: they are stored by a
 * rank that has the counts of all for that round, and a rank sends those behind its combine of this
 * one. Why counts have two places: docs/protocol.md, abandoned rounds.
 */
#ifndef TERN_GPU_WIRE_HT_H
#define TERN_GPU_WIRE_HT_H

#include "gpu/wire/ll.h"

#define HT_CHUNK 128 /* tokens that are counted together */

struct ht_window {
	uint64_t count_words, counts, heads, result_words, x, scales, results, bytes; /* offsets */
	uint64_t early_x, early_scales;
	uint64_t counts_bytes; /* of one source */
	uint32_t nr_early;     /* S; 0: no row leaves early */
	uint32_t nr_columns;
	uint32_t rank_columns; /* a column is a rank; else a k */
};

HOST_DEVICE uint64_t ht_align(uint64_t bytes)
{
	return (bytes + 255) / 256 * 256;
}

/* From all sources together: what NVLink carries while a plan is made, several times over. */
#define HT_EARLY_BYTES (32u << 20)

HOST_DEVICE uint32_t ht_early_slots(uint32_t nr_ranks, uint32_t max_tokens, uint32_t row_bytes)
{
	uint32_t most = HT_EARLY_BYTES / nr_ranks / row_bytes;

	return most < max_tokens ? most : max_tokens;
}

/* nr_early: slots for them; row_bytes, row_scales_bytes: of one row. */
HOST_DEVICE struct ht_window ht_window_of(uint32_t nr_ranks, uint32_t nr_physical,
	uint32_t max_tokens, uint32_t topk, int at_home, uint64_t positions, uint32_t row_bytes,
	uint32_t row_scales_bytes, uint32_t result_bytes, uint32_t nr_early)
{
	uint64_t early = (uint64_t)nr_ranks * nr_early;
	struct ht_window w;

	w.rank_columns = !at_home && nr_ranks <= topk;
	w.nr_columns = w.rank_columns ? nr_ranks : topk;
	w.counts_bytes = ht_align(4ull * (nr_physical + nr_ranks + 4));
	w.count_words = 0;
	w.counts = w.count_words + 2ull * nr_ranks * GPU_LINE_BYTES;
	w.heads = w.counts + 2 * nr_ranks * w.counts_bytes;
	w.result_words = w.heads + ht_align((uint64_t)nr_ranks * max_tokens * topk * 16);
	w.x = w.result_words + ht_align(4ull * max_tokens * w.nr_columns);
	w.scales = w.x + ht_align(positions * row_bytes);
	w.results = w.scales + ht_align(positions * row_scales_bytes);
	w.early_x = w.results + ht_align((uint64_t)max_tokens * w.nr_columns * result_bytes);
	w.early_scales = w.early_x + ht_align(early * row_bytes);
	w.bytes = w.early_scales + ht_align(early * row_scales_bytes);
	w.nr_early = nr_early;
	return w;
}

/* In whole vectors: no word is displaced by an epoch here. */
HOST_DEVICE struct row_geometry ht_row_geometry(uint32_t row_bytes, uint32_t nr_vectors)
{
	struct row_geometry cut;

	cut.row_bytes = row_bytes;
	cut.nr_lines = gpu_ceil(row_bytes, GPU_LINE_BYTES);
	cut.nr_vectors = nr_vectors;
	cut.nr_segments = gpu_ceil(cut.nr_lines, 4 * nr_vectors);
	cut.segment_pieces = 32 * nr_vectors;
	cut.segment_bytes = nr_vectors * 512;
	return cut;
}

/* Through a block's shared memory rows go in parts, with the parts' scales behind them. Whole
 * segments of 1024 bytes. */
#define HT_PART_BYTES 7168

HOST_DEVICE uint32_t ht_part_bytes(uint32_t row_bytes)
{
	return gpu_ceil(gpu_ceil(row_bytes, gpu_ceil(row_bytes, HT_PART_BYTES)), 1024) * 1024;
}

HOST_DEVICE uint32_t ht_part_buffer(uint32_t row_bytes, uint32_t scale_bytes)
{
	return ht_part_bytes(row_bytes) +
	       gpu_ceil(ht_part_bytes(row_bytes) / GPU_LINE_BYTES * scale_bytes, GPU_LINE_BYTES) *
		       GPU_LINE_BYTES;
}

#endif
