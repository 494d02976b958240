/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/layout.h"

#include <string.h>

uint32_t dtype_bytes(enum tern_dtype dtype)
{
	switch (dtype) {
	case TERN_BF16:
	case TERN_FP16:
		return 2;
	case TERN_FP32:
		return 4;
	case TERN_FP8_E4M3:
	case TERN_BYTES:
		return 1;
	}
	return 0;
}

uint32_t scale_bytes(enum tern_scale scale)
{
	return scale == TERN_SCALE_FP32 ? 4 : scale == TERN_SCALE_UE8M0 ? 1 : 0;
}

static uint64_t take(uint64_t *end, uint64_t bytes)
{
	uint64_t offset = align_up(*end, 4096);

	*end = offset + bytes;
	return offset;
}

static uint64_t worst_case_rows(const struct layout *l, const struct tern_moe_config *config)
{
	uint64_t rows = (uint64_t)l->nr_ranks * l->share_tokens;
	uint64_t routes = l->topk < l->max_local ? l->topk : l->max_local;

	if (config->layout == TERN_CONTIGUOUS)
		return rows * routes + (uint64_t)l->max_local * (config->alignment - 1);
	return rows;
}

static uint32_t result_bytes_of(const struct tern_moe_config *config, uint32_t row_bytes)
{
	uint32_t nr = config->reduce == TERN_REDUCE_HOME ? 1 : config->topk;

	return config->combine_floats ? (uint32_t)align_up(row_bytes + nr * sizeof(float), 16)
				      : row_bytes;
}

static void layout_rows(struct layout *l, const struct tern_moe_config *config)
{
	uint32_t blocks = (config->hidden + SCALE_BLOCK - 1) / SCALE_BLOCK;

	l->payload_bytes = config->dispatch_dtype == TERN_BYTES
				   ? config->payload_bytes
				   : config->hidden * dtype_bytes(config->dispatch_dtype);
	l->scales_bytes =
		config->dispatch_dtype == TERN_FP8_E4M3 ? blocks * scale_bytes(config->scale) : 0;
	l->header_bytes = (uint32_t)align_up(
		sizeof(struct row_header) + l->topk * sizeof(struct route), CACHE_LINE);
	l->row_bytes = (uint32_t)align_up(
		(uint64_t)l->header_bytes + l->payload_bytes + l->scales_bytes, CACHE_LINE);
	l->combine_row_bytes = config->hidden * dtype_bytes(config->combine_dtype);
	l->result_bytes = result_bytes_of(config, l->combine_row_bytes);
	l->combine_rows =
		config->max_tokens * (config->reduce == TERN_REDUCE_HOME || l->topk < l->nr_ranks
						     ? l->topk
						     : l->nr_ranks);
	if (config->masks)
		l->combine_rows = l->nr_ranks * layout_results_of_rank(l, config);
}

/* Pieces of results are as large as chunks, and hold whole results. */
static void layout_channels(struct layout *l, const struct channel_shape *channels, uint64_t *end)
{
	uint64_t payload = align_up((uint64_t)l->payload_bytes + l->scales_bytes, CHUNK_ALIGNMENT);
	uint64_t place =
		sizeof(struct chunk_place) + sizeof(struct row_header) + sizeof(struct route);
	uint64_t heads = sizeof(struct chunk_row) + l->topk * place;
	uint64_t least = sizeof(struct chunk_head) + align_up(heads, CHUNK_ALIGNMENT) + payload;

	l->nr_channels = channels->nr_channels;
	l->nr_chunks = channels->nr_chunks;
	l->chunk_bytes = (uint32_t)align_up(
		least > channels->chunk_bytes ? least : channels->chunk_bytes, CACHE_LINE);
	l->piece_rows = l->chunk_bytes > l->result_bytes ? l->chunk_bytes / l->result_bytes : 1;
	l->notes = align_up(*end, CACHE_LINE);
	*end = l->notes + (uint64_t)l->nr_slots * l->nr_ranks * sizeof(struct results_note);
	l->channels = take(end, (uint64_t)l->nr_channels * l->nr_chunks * l->chunk_bytes);
}

static void layout_output_init(struct layout *l, const struct tern_moe_config *config)
{
	uint64_t end = 0, ids = config->layout == TERN_BY_SOURCE ? l->topk : 0;

	l->capacity = config->capacity ? config->capacity : worst_case_rows(l, config);
	l->positions = config->layout == TERN_PADDED ? l->capacity * l->max_local : l->capacity;
	l->output.x = take(&end, l->positions * l->payload_bytes);
	l->output.scales = take(&end, l->positions * l->scales_bytes);
	l->output.rows = take(&end, l->positions * sizeof(struct tern_row));
	l->output.topk_ids = take(&end, l->positions * ids * sizeof(int32_t));
	l->output.topk_weights = take(&end, l->positions * ids * sizeof(float));
	l->output.bytes = align_up(end, 4096);
}

static void layout_slot_init(struct layout *l, const struct tern_moe_config *config)
{
	uint64_t end = 0;

	if (config->mode == TERN_HIGH_THROUGHPUT) {
		l->counts_bytes =
			align_up(((uint64_t)l->nr_physical + l->nr_ranks) * sizeof(uint32_t) +
					 sizeof(struct placed),
				CACHE_LINE);
		l->region_bytes = (uint64_t)l->share_tokens * l->region_stride;
		l->counts = take(&end, 2 * l->nr_ranks * l->counts_bytes);
	} else {
		l->counts_bytes = align_up(
			sizeof(struct region_head) + l->max_local * sizeof(uint32_t), CACHE_LINE);
		l->region_bytes = l->counts_bytes + (uint64_t)l->share_tokens * l->row_bytes;
	}
	l->regions = take(&end, l->nr_ranks * l->region_bytes);
	if (config->mode == TERN_HIGH_THROUGHPUT)
		l->output_offset = take(&end, l->output.bytes);
	l->combine = take(&end, (uint64_t)l->combine_rows * l->result_bytes);
	l->slot_bytes = align_up(end, 4096);
}

void layout_init(struct layout *l, const struct tern_moe_config *config, uint32_t nr_ranks,
	uint32_t nr_physical, uint32_t max_local, const struct channel_shape *channels)
{
	uint64_t end = sizeof(struct window_head);

	memset(l, 0, sizeof(*l));
	l->nr_ranks = nr_ranks;
	l->nr_slots = config->nr_slots;
	l->nr_physical = nr_physical;
	l->max_local = max_local;
	l->topk = config->topk;
	l->share_tokens = (config->max_tokens + config->replica_ranks - 1) / config->replica_ranks;
	layout_rows(l, config);
	l->region_stride = config->mode == TERN_LOW_LATENCY ? l->row_bytes : l->header_bytes;
	layout_output_init(l, config);
	layout_slot_init(l, config);
	l->words = end;
	end += (uint64_t)l->nr_slots * NR_WORD_KINDS * nr_ranks * sizeof(struct arrival);
	l->event_counts = end;
	end += (uint64_t)l->nr_slots * NR_PHASES * sizeof(struct event_count);
	l->progress = end;
	end += config->elastic ? (uint64_t)l->nr_slots * PROGRESS_BYTES : 0;
	if (channels && config->mode == TERN_HIGH_THROUGHPUT)
		layout_channels(l, channels, &end);
	l->slots = align_up(end, 4096);
	l->window_bytes = l->slots + l->nr_slots * l->slot_bytes;
}
