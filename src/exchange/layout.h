/* SPDX-License-Identifier: Apache-2.0 */
/* Where everything lies in a window. All ranks compute the same layout from the same settings, so
 * an offset means the same place in every rank's window.
 *
 *   window   head | arrival words [slot][kind][rank] | event_counts [slot][phase] | progress [slot] (elastic) | notes | channels | slot 0 | slot 1 | ...
 *   slot     low latency:     region of source 0 | ... | region R-1 | combine rows
 *            high throughput: counts [2][R] | headers of source 0 | ... | R-1 | output | combine rows
 *   channels    high throughput, some ranks not mapped: [channel][chunk]; notes [slot][rank]
 *               likewise
 *   region   number of rows, rows of each local expert [max_local] | row | row | ...        row: header, payload, scales
 *   output   x | scales | rows | topk_ids | topk_weights    (low latency: the same, in private memory)
 */
#ifndef TERN_EXCHANGE_LAYOUT_H
#define TERN_EXCHANGE_LAYOUT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/ordering.h"
#include "tern.h"
#include "exchange/wire.h"

enum word_kind {
	WORD_COUNTS_EVEN, /* two sets of counts, by the epoch's parity: see docs/protocol.md,
			     abandoned rounds */
	WORD_COUNTS_ODD,
	WORD_DISPATCH,
	WORD_COMBINE,
	NR_WORD_KINDS
};
#define NR_PHASES 3               /* enum tern_phase */
#define PROGRESS_BYTES CACHE_LINE /* of struct slot_progress: elastic.h */

struct window_head {
	_Atomic uint64_t leave_status; /* wire.h; written by the owner alone */
} __attribute__((aligned(CACHE_LINE)));

struct output_layout {
	uint64_t x, scales, rows, topk_ids, topk_weights, bytes;
};

/* How rows travel to ranks that are not mapped, in high-throughput mode. */
struct channel_shape {
	uint32_t nr_channels; /* sources of one gateway, at most */
	uint32_t nr_chunks;   /* of a channel */
	uint32_t chunk_bytes; /* at least; a row fits */
};

struct layout {
	uint32_t nr_ranks, nr_slots, nr_physical, max_local, topk;
	uint32_t share_tokens;  /* most rows from one source to one rank */
	uint32_t payload_bytes; /* of a row's elements */
	uint32_t scales_bytes;  /* of a row */
	uint32_t header_bytes;
	uint32_t row_bytes;     /* header, payload and scales */
	uint32_t region_stride; /* from header to header in a region: rows, or in high-throughput
				   mode headers alone */
	uint32_t combine_row_bytes;
	uint32_t result_bytes; /* of what comes home: a combine row, and its floats */
	uint32_t combine_rows; /* that may come home in one round */
	uint64_t capacity;     /* row positions: of an expert (PADDED), else of all */
	uint64_t positions;    /* row positions in the output */
	uint64_t counts_bytes; /* high throughput: one source's counts: [nr_physical] routes,
				  [nr_ranks] rows, struct placed */
	uint64_t region_bytes; /* one source's region or headers */
	uint32_t nr_channels, nr_chunks;
	uint32_t chunk_bytes; /* from chunk to chunk of a channel */
	uint32_t piece_rows;  /* results that go home in one piece */
	uint64_t words, event_counts, progress, notes, channels, slots, slot_bytes; /* offsets in
										       the window
										     */
	uint64_t counts, regions, output_offset, combine; /* offsets in a slot */
	struct output_layout output;
	uint64_t window_bytes;
};

/* What the sizes depend on, besides the group: config is valid. channels: NULL where all ranks are
 * mapped. */
void layout_init(struct layout *layout, const struct tern_moe_config *config, uint32_t nr_ranks,
	uint32_t nr_physical, uint32_t max_local, const struct channel_shape *channels);

static inline uint64_t align_up(uint64_t value, uint64_t alignment)
{
	return (value + alignment - 1) / alignment * alignment;
}

static inline uint64_t layout_word(
	const struct layout *l, uint32_t slot, enum word_kind kind, uint32_t source)
{
	return l->words + (((uint64_t)slot * NR_WORD_KINDS + kind) * l->nr_ranks + source) *
				  sizeof(struct arrival);
}

static inline uint64_t layout_event_count(
	const struct layout *l, uint32_t slot, enum tern_phase phase)
{
	return l->event_counts + ((uint64_t)slot * NR_PHASES + phase) * sizeof(struct event_count);
}

/* Elastic exchanges: how far the owner has come. */
static inline uint64_t layout_progress(const struct layout *l, uint32_t slot)
{
	return l->progress + (uint64_t)slot * PROGRESS_BYTES;
}

/* Where a source tells how many pieces of results it sent. */
static inline uint64_t layout_note(const struct layout *l, uint32_t slot, uint32_t source)
{
	return l->notes + ((uint64_t)slot * l->nr_ranks + source) * sizeof(struct results_note);
}

static inline uint64_t layout_chunk(const struct layout *l, uint32_t channel, uint32_t chunk)
{
	return l->channels + ((uint64_t)channel * l->nr_chunks + chunk) * l->chunk_bytes;
}

static inline uint64_t layout_slot(const struct layout *l, uint32_t slot)
{
	return l->slots + slot * l->slot_bytes;
}

static inline uint64_t layout_counts(
	const struct layout *l, uint32_t slot, uint32_t epoch, uint32_t source)
{
	return layout_slot(l, slot) + l->counts +
	       ((epoch & 1) * (uint64_t)l->nr_ranks + source) * l->counts_bytes;
}

static inline uint64_t layout_region(const struct layout *l, uint32_t slot, uint32_t source)
{
	return layout_slot(l, slot) + l->regions + source * l->region_bytes;
}

/* The most results that one rank sends home in a round. */
static inline uint32_t layout_results_of_rank(
	const struct layout *l, const struct tern_moe_config *config)
{
	uint32_t routes = l->topk < l->max_local ? l->topk : l->max_local;

	return config->max_tokens * (config->reduce == TERN_REDUCE_HOME ? routes : 1);
}

static inline uint64_t layout_combine_row(const struct layout *l, uint32_t slot, uint32_t home_row)
{
	return layout_slot(l, slot) + l->combine + (uint64_t)home_row * l->result_bytes;
}

static inline uint64_t layout_output(const struct layout *l, uint32_t slot)
{
	return layout_slot(l, slot) + l->output_offset;
}

/* Elements of a block that share one scale. */
#define SCALE_BLOCK 128

uint32_t dtype_bytes(enum tern_dtype dtype);
uint32_t scale_bytes(enum tern_scale scale);

#endif
