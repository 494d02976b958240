/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/host/layout.h"

#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "gpu/wire/state.h"
#include "gpu/wire/sizes.h"

#define LL_MOST_TOKENS 65536u /* a plan has 16 bits for one */

static uint32_t row_vectors(const struct tern_moe_config *c, enum gpu_format format, bool internode)
{
	bool scaled = c->dispatch_dtype == TERN_FP8_E4M3;

	if (format == GPU_FLAG16)
		return scaled ? 2 : 3;
	return internode ? 2 : ll_rule_row_vectors(scaled, c->max_tokens);
}

static uint64_t take(uint64_t *end, uint64_t bytes)
{
	uint64_t offset = *end;

	*end = align_up(offset + bytes, 256);
	return offset;
}

/* Each source has a token once for an expert. */
static void lay_out_gates(struct device_layout *d, const struct tern_moe_config *c,
	const struct layout *l, uint64_t *end)
{
	uint64_t rows = (uint64_t)l->nr_ranks * c->max_tokens, words;
	bool low = c->mode == TERN_LOW_LATENCY;

	d->gate_tiles = c->gate_rows ? (uint32_t)((rows + c->gate_rows - 1) / c->gate_rows) : 0;
	words = (uint64_t)d->gate_tiles * l->max_local * sizeof(uint32_t);
	d->gate_words = take(end, c->gate_rows ? 2 * sizeof(uint32_t) : 0);
	d->gate_ready = take(end, words);
	d->gate_done = take(end, words);
	d->route_tiles = take(end, c->gate_rows && low ? rows * c->topk * sizeof(uint32_t) : 0);
}

static void lay_out_slot(
	struct device_layout *d, const struct tern_moe_config *c, const struct layout *l)
{
	uint64_t end = 0, routes = (uint64_t)c->max_tokens * c->topk,
		 lists = l->nr_ranks > l->max_local ? l->nr_ranks : l->max_local;
	uint64_t of_source = c->layout == TERN_BY_SOURCE ? l->positions * c->topk : 0, output;
	bool low = c->mode == TERN_LOW_LATENCY, own_rows = low && !c->caller_output;

	d->state = take(&end, sizeof(struct gpu_state));
	d->row_tokens =
		take(&end, low ? (uint64_t)l->nr_ranks * c->max_tokens * sizeof(uint32_t) : 0);
	d->row_routes = take(&end, low ? l->nr_ranks * routes * 8 : 0);
	d->chunks = take(&end, low ? 0
				   : ((uint64_t)c->max_tokens + HT_CHUNK - 1) / HT_CHUNK *
					       (l->nr_physical + l->nr_ranks) * sizeof(uint32_t));
	d->routes = take(&end, low ? 0 : routes * 8);
	d->home_routes = take(&end, routes * 8);
	d->own_positions = take(&end, low ? routes * sizeof(uint32_t) : 0);
	lay_out_gates(d, c, l, &end);
	d->counts = take(&end, lists * sizeof(uint32_t));
	d->offsets = take(&end, (lists + 2) * sizeof(uint64_t));
	d->slices = take(&end, low ? 16ull * slice_pieces(l->max_local) *
					       most_slices_of(l->nr_ranks, c->max_tokens)
				   : 0);
	output = end;
	d->rows = take(&end, l->positions * sizeof(struct tern_row));
	d->ids = take(&end, of_source * sizeof(int32_t));
	d->weights = take(&end, of_source * sizeof(float));
	d->x = take(&end, own_rows ? l->positions * l->payload_bytes : 0);
	d->scales = take(&end, own_rows ? l->positions * l->scales_bytes : 0);
	d->slot_bytes = end;
	d->counters = align_up(end * c->nr_slots, 256);
	d->counters_bytes = sizeof(struct gpu_counters) + c->nr_experts * sizeof(uint64_t);
	d->private_bytes = output * c->nr_slots + d->counters_bytes;
	d->output_bytes = (end - output) * c->nr_slots;
}

/* Whether kernels divide numbers up to n right: the reciprocal of d is too large by so little. */
static bool divides(uint64_t n, uint32_t d)
{
	return n <= UINT32_MAX && n * (gpu_divisor_of(d).factor * d) <= UINT32_MAX;
}

/* Kernels number what warps do, and find token, rank and part by division. */
static int check_numbers(
	const struct device_layout *d, const struct tern_moe_config *c, const struct layout *l)
{
	bool low = c->mode == TERN_LOW_LATENCY;
	uint32_t of_row = low ? d->row.nr_segments + 1 : 1;
	uint32_t of_result = low ? d->result.nr_segments : 1;
	uint64_t rows = (uint64_t)c->max_tokens * l->nr_ranks;
	uint64_t parts = rows * (of_row > of_result ? of_row : of_result);

	if (divides(parts, l->nr_ranks) && divides(rows, l->nr_ranks > 1 ? l->nr_ranks - 1 : 1) &&
		divides(parts, of_row) && divides(parts, of_result) &&
		divides((uint64_t)c->max_tokens * c->topk, c->topk) &&
		(!low || divides(rows + c->alignment, c->alignment)))
		return 0;
	return fail(TERN_ERR_UNSUPPORTED,
		"%u tokens, top-%u, %u ranks, rows in %u parts, results in %u, %u rows of "
		"alignment: more than a GPU's kernels can number",
		c->max_tokens, c->topk, l->nr_ranks, of_row, of_result, c->alignment);
}

/* What a block notes of few tokens lies beside what it notes of a slice. */
static void lay_out_slices(struct device_layout *d, const struct tern_moe_config *c,
	const struct layout *l, bool internode)
{
	uint32_t few = SLICES_FROM / l->nr_ranks;
	uint64_t bytes =
		either_bytes(d->format, l->nr_ranks, l->max_local, few, c->max_tokens, c->topk);

	d->shared_bytes = slices_bytes(d->format, l->nr_ranks, l->max_local, c->topk);
	if (internode || bytes > d->block_bytes)
		return;
	d->noted_tokens = few;
	d->shared_bytes = bytes;
}

static int lay_out_low_latency(struct device_layout *d, const struct tern_moe_config *c,
	const struct layout *l, bool internode)
{
	int scaled = c->dispatch_dtype == TERN_FP8_E4M3;

	d->shared_bytes =
		positions_bytes(d->format, l->nr_ranks, l->max_local, c->max_tokens, c->topk) +
		(c->gate_rows && internode ? positions_groups_bytes(l->nr_ranks, c->max_tokens)
					   : 0);
	d->sliced = d->shared_bytes > d->block_bytes;
	if (d->sliced)
		lay_out_slices(d, c, l, internode);
	if (c->max_tokens > LL_MOST_TOKENS)
		return fail(TERN_ERR_UNSUPPORTED,
			"%u tokens; a GPU takes %u in low-latency mode, and more in "
			"high-throughput mode",
			c->max_tokens, LL_MOST_TOKENS);
	if (d->sliced && c->gate_rows)
		return fail(TERN_ERR_UNSUPPORTED,
			"gate_rows is %u with %u tokens of %u ranks: gates are where a block notes "
			"all plans, for which there is no room",
			c->gate_rows, c->max_tokens, l->nr_ranks);
	if (d->shared_bytes > d->block_bytes)
		return fail(TERN_ERR_UNSUPPORTED,
			"top-%u, %u ranks and %u experts on a rank: what a block notes of a slice "
			"takes %llu bytes of a GPU's shared memory, where it may have %u",
			c->topk, l->nr_ranks, l->max_local, (unsigned long long)d->shared_bytes,
			d->block_bytes);
	d->row = row_geometry_of(
		d->format, scaled, l->payload_bytes, row_vectors(c, d->format, internode));
	d->result = row_geometry_of(
		d->format, 0, l->combine_row_bytes, d->format == GPU_FLAG16 ? 3 : 1);
	d->row_wire_bytes =
		ll_head_wire_bytes(d->format, c->topk) + gpu_wire_bytes(d->format, scaled, &d->row);
	d->result_wire_bytes = gpu_wire_bytes(d->format, 0, &d->result);
	d->window = ll_window_of(d->format, &d->row, &d->result, l->nr_ranks, c->max_tokens,
		c->topk, c->reduce == TERN_REDUCE_HOME);
	d->slot_window_bytes = align_up(d->window.bytes, 256);
	return 0;
}

static int lay_out_high_throughput(struct device_layout *d, const struct tern_moe_config *c,
	const struct layout *l, bool internode)
{
	uint64_t output = l->positions * ((uint64_t)l->payload_bytes + l->scales_bytes);
	uint64_t rows = ((uint64_t)c->max_tokens * l->nr_ranks + c->alignment) *
			(l->max_local ? l->max_local : 1);

	d->shared_bytes = 4ull * 5 * (l->nr_physical + l->nr_ranks);
	if (d->shared_bytes > d->block_bytes)
		return fail(TERN_ERR_UNSUPPORTED,
			"%u physical experts and %u ranks: their plan takes %llu bytes of a GPU's "
			"shared "
			"memory, where a block may have %u",
			l->nr_physical, l->nr_ranks, (unsigned long long)d->shared_bytes,
			d->block_bytes);
	if (rows > UINT32_MAX / 2)
		return fail(TERN_ERR_UNSUPPORTED,
			"%u tokens of %u ranks, aligned to %u, for %u experts: up to %llu rows of "
			"a GPU; its "
			"plan counts to %u",
			c->max_tokens, l->nr_ranks, c->alignment, l->max_local,
			(unsigned long long)rows, UINT32_MAX / 2);
	d->row = ht_row_geometry(l->payload_bytes, c->dispatch_dtype == TERN_FP8_E4M3 ? 2 : 4);
	d->result = ht_row_geometry(l->combine_row_bytes, 4);
	d->row_wire_bytes = (uint64_t)c->topk * 16 + l->payload_bytes + l->scales_bytes;
	d->result_wire_bytes = l->combine_row_bytes;
	d->ht = ht_window_of(l->nr_ranks, l->nr_physical, c->max_tokens, c->topk,
		c->reduce == TERN_REDUCE_HOME, l->positions, l->payload_bytes, l->scales_bytes,
		l->combine_row_bytes,
		internode ? 0 : ht_early_slots(l->nr_ranks, c->max_tokens, l->payload_bytes));
	d->slot_window_bytes = d->ht.bytes;
	d->output_bytes += c->nr_slots * output;
	return 0;
}

int device_layout_init(struct device_layout *d, const struct tern_moe_config *c,
	const struct layout *l, enum gpu_format format, bool internode, uint32_t block_bytes)
{
	bool low = c->mode == TERN_LOW_LATENCY;
	int rc;

	memset(d, 0, sizeof(*d));
	d->format = format;
	d->block_bytes = block_bytes;
	if (l->nr_ranks > GPU_MAX_RANKS || l->nr_physical >= GPU_NO_EXPERT)
		return fail(TERN_ERR_UNSUPPORTED,
			"%u ranks and %u physical experts; GPUs take %u and %u", l->nr_ranks,
			l->nr_physical, GPU_MAX_RANKS, GPU_NO_EXPERT - 1);
	if (!low && c->caller_output)
		return fail(TERN_ERR_INVALID, "caller_output is for low-latency mode; in "
					      "high-throughput mode rows arrive in library memory");
	if (c->combine_floats && internode)
		return fail(TERN_ERR_UNSUPPORTED,
			"combine_floats is %u; between GPUs of several nodes floats do not travel",
			c->combine_floats);
	if (c->late_weights && (internode || format != GPU_FLAG128))
		return fail(TERN_ERR_UNSUPPORTED,
			"late_weights is %u; they are for ranks of one node, over NVLink",
			c->late_weights);
	if (c->gate_rows && format != GPU_FLAG128)
		return fail(TERN_ERR_UNSUPPORTED,
			"gate_rows is %u with %u ranks, some without NVLink; gates are for nodes "
			"whose ranks have it",
			c->gate_rows, l->nr_ranks);
	if (c->gate_rows && c->x_dtype != c->dispatch_dtype && c->x_dtype != TERN_BF16)
		return fail(TERN_ERR_UNSUPPORTED,
			"gate_rows is %u with x_dtype %d, dispatch_dtype %d; gates are for x of "
			"BF16, %d, or as it travels",
			c->gate_rows, (int)c->x_dtype, (int)c->dispatch_dtype, (int)TERN_BF16);
	lay_out_slot(d, c, l);
	rc = low ? lay_out_low_latency(d, c, l, internode)
		 : lay_out_high_throughput(d, c, l, internode);
	d->floats = align_up(d->slot_window_bytes, 256);
	if (c->combine_floats)
		d->slot_window_bytes =
			d->floats + align_up((uint64_t)c->max_tokens * c->topk * 16, 256);
	d->weight_cells = d->slot_window_bytes;
	if (c->late_weights)
		d->slot_window_bytes =
			d->weight_cells +
			align_up((uint64_t)l->nr_ranks * c->max_tokens * c->topk * 16, 256);
	d->window_bytes = c->nr_slots * d->slot_window_bytes;
	return rc ? rc : check_numbers(d, c, l);
}
