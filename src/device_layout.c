/* SPDX-License-Identifier: Apache-2.0 */
#include "device_layout.h"

#include <stdbool.h>
#include <string.h>

#include "error.h"
#include "kernels/cuda/kernels_state.h"
#include "kernels/cuda/sizes.h"

/* Vectors of 16 bytes a lane and segment: with few rows, less in a row for one warp; with many, fewer bytes beside the rows. docs/benchmarks.md. */
static uint32_t row_vectors(const struct tern_moe_config *c, enum ll_format format)
{
	bool scaled = c->dispatch_dtype == TERN_FP8_E4M3;

	if (format == LL_CELLS)
		return scaled ? 2 : 3;
	if (scaled && c->x_dtype != TERN_BF16)
		return 2;
	return c->max_tokens <= 16 ? 1 : 2;
}

static uint32_t result_vectors(const struct tern_moe_config *c, enum ll_format format)
{
	if (format == LL_CELLS)
		return 3;
	return c->combine_dtype == TERN_BF16 && c->max_tokens <= 16 ? 1 : 2;
}

static uint64_t take(uint64_t *end, uint64_t bytes)
{
	uint64_t offset = *end;

	*end = align_up(offset + bytes, 256);
	return offset;
}

static void lay_out_slot(struct device_layout *d, const struct tern_moe_config *c, const struct layout *l)
{
	uint64_t end = 0, routes = (uint64_t)c->max_tokens * c->topk, lists = l->nr_ranks > l->max_local ? l->nr_ranks : l->max_local;
	uint64_t of_source = c->layout == TERN_BY_SOURCE ? l->positions * c->topk : 0, output;

	d->state = take(&end, sizeof(struct ll_state));
	d->row_tokens = take(&end, (uint64_t)l->nr_ranks * c->max_tokens * sizeof(uint32_t));
	d->row_routes = take(&end, l->nr_ranks * routes * 8);
	d->home_routes = take(&end, routes * 8);
	d->counts = take(&end, lists * sizeof(uint32_t));
	d->offsets = take(&end, (lists + 2) * sizeof(uint64_t));
	output = end;
	d->rows = take(&end, l->positions * sizeof(struct tern_row));
	d->ids = take(&end, of_source * sizeof(int32_t));
	d->weights = take(&end, of_source * sizeof(float));
	d->x = take(&end, c->caller_output ? 0 : l->positions * l->payload_bytes);
	d->scales = take(&end, c->caller_output ? 0 : l->positions * l->scales_bytes);
	d->slot_bytes = end;
	d->private_bytes = output * c->nr_slots;
	d->output_bytes = (end - output) * c->nr_slots;
}

int device_layout_init(struct device_layout *d, const struct tern_moe_config *c, const struct layout *l, enum ll_format format)
{
	int scaled = c->dispatch_dtype == TERN_FP8_E4M3;

	memset(d, 0, sizeof(*d));
	if (c->mode != TERN_LOW_LATENCY)
		return fail(TERN_ERR_UNSUPPORTED, "high-throughput mode is not there on GPUs");
	if (l->nr_ranks > LL_MAX_RANKS || l->nr_physical >= LL_NO_EXPERT)
		return fail(TERN_ERR_UNSUPPORTED, "%u ranks and %u physical experts; GPUs take %u and %u", l->nr_ranks, l->nr_physical,
			LL_MAX_RANKS, LL_NO_EXPERT - 1);
	d->format = format;
	d->shared_bytes = positions_bytes(format, l->nr_ranks, l->max_local, c->max_tokens, c->topk);
	if (c->max_tokens > 65536 || d->shared_bytes > DEVICE_MAX_SHARED_BYTES)
		return fail(TERN_ERR_UNSUPPORTED,
			"%u tokens, top-%u, %u ranks and %u experts on a rank: their plan takes %llu bytes of a GPU's shared memory, where %u are possible",
			c->max_tokens, c->topk, l->nr_ranks, l->max_local, (unsigned long long)d->shared_bytes, DEVICE_MAX_SHARED_BYTES);
	d->row = ll_cut_row(format, scaled, l->payload_bytes, row_vectors(c, format));
	d->result = ll_cut_row(format, 0, l->combine_row_bytes, result_vectors(c, format));
	d->window = ll_window_of(format, &d->row, &d->result, l->nr_ranks, c->max_tokens, c->topk);
	d->window.bytes = align_up(d->window.bytes, 256);
	d->window_bytes = c->nr_slots * d->window.bytes;
	lay_out_slot(d, c, l);
	return 0;
}
