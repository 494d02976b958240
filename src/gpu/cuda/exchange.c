/* SPDX-License-Identifier: Apache-2.0 */
/* An exchange as kernels see it: memory, tables and arguments; what kernels have reported and
 * counted. */
#include <stdlib.h>
#include <string.h>

#include "gpu/cuda/dtypes.h"
#include "base/error.h"
#include "gpu/cuda/exchange_inside.h"
#include "gpu/cuda/plans/kernels.h"
#include "gpu/wire/sizes.h"

/* Behind them the ring's tickets, what each slot notes of its rows and results, and the sink. */
static int upload_internode(struct device_exchange *x, const struct device_plan *plan)
{
	const struct tern_moe_config *c = plan->config;
	uint32_t nr = plan->internode ? c->nr_slots : 0, high = c->mode == TERN_HIGH_THROUGHPUT;
	uint64_t tables = align_up(nr * sizeof(*x->internode), 256),
		 internode = nr ? plan->internode->nr_internode : 0,
		 results = align_up(high * internode * c->max_tokens * sizeof(uint32_t), 256),
		 going = align_up(internode * internode_going_words(c->max_tokens) * 16 *
					  (high && c->gate_rows ? 2 : 1),
			 256),
		 numbers = align_up((uint64_t)c->max_tokens * c->topk * sizeof(uint32_t), 256),
		 runs = align_up(internode * INTERNODE_GROUPS * sizeof(uint32_t), 256),
		 each = results + going + numbers + runs;
	uint64_t sink = tables + 256 + nr * each,
		 bytes = sink + (uint64_t)high * c->max_tokens * c->topk * 16;
	uint8_t *memory;
	int rc;

	if (!nr)
		return 0;
	rc = cuda_check(
		cudaMalloc((void **)&memory, bytes), "cudaMalloc of internode ranks' tables");
	if (rc)
		return rc;
	x->internode = (struct internode_table *)memory;
	x->sink = memory + sink;
	rc = cuda_check(cudaMemset(memory, 0, bytes), "cudaMemset");
	for (uint32_t slot = 0; slot < nr && !rc; slot++) {
		struct internode_table table = plan->internode[slot];

		table.tickets = (unsigned long long *)(memory + tables);
		table.bytes = (unsigned long long *)&x->counters->engine_bytes;
		table.results = (uint32_t *)(memory + tables + 256 + slot * each);
		table.going = (uint8_t *)table.results + results;
		table.numbers = (uint32_t *)(table.going + going);
		table.runs = (uint32_t *)((uint8_t *)table.numbers + numbers);
		rc = cuda_check(cudaMemcpy(x->internode + slot, &table, sizeof(table),
					cudaMemcpyHostToDevice),
			"cudaMemcpy of internode ranks' tables");
	}
	return rc;
}

/* Where the window of a rank on another node would be. Its dispatch kernel stores heads there. */
static uint8_t *no_window(const struct device_exchange *x, const struct device_plan *plan)
{
	const struct tern_moe_config *c = plan->config;

	return c->mode == TERN_HIGH_THROUGHPUT
		       ? x->sink - x->layout.ht.heads -
				 (uint64_t)plan->rank * c->max_tokens * c->topk * 16
		       : NULL;
}

static void make_exchange(struct device_exchange *x, const struct device_plan *plan, uint32_t slot,
	struct gpu_exchange *e)
{
	const struct tern_moe_config *c = plan->config;
	const struct device_layout *l = &x->layout;
	uint8_t *memory = x->slots[slot].memory;

	e->rank = plan->rank;
	e->nr_ranks = plan->nr_ranks;
	e->topk = c->topk;
	e->max_tokens = c->max_tokens;
	e->nr_local = plan->placement->nr_local[plan->rank];
	e->at_home = c->reduce == TERN_REDUCE_HOME;
	e->format = l->format;
	e->row = l->row;
	e->by_topk = gpu_divisor_of(c->topk);
	e->by_ranks = gpu_divisor_of(plan->nr_ranks);
	e->by_others = gpu_divisor_of(plan->nr_ranks > 1 ? plan->nr_ranks - 1 : 1);
	e->result = l->result;
	e->by_result_segments = gpu_divisor_of(l->result.nr_segments);
	e->by_row_parts = gpu_divisor_of(l->row.nr_segments + 1);
	e->by_replicas = gpu_divisor_of(c->replica_ranks);
	e->window = l->window;
	for (uint32_t r = 0; r < plan->nr_ranks; r++)
		e->windows[r] = plan->windows[r]
					? (uint8_t *)plan->windows[r] + slot * l->slot_window_bytes
					: no_window(x, plan);
	e->internode = x->internode ? x->internode + slot : NULL;
	e->state = (struct gpu_state *)(memory + l->state);
	e->report = &x->reports[slot].report;
	e->input_error = &x->reports[slot].input_error;
	e->leave_statuses = plan->leave_statuses;
	e->counters = x->counters;
	e->row_tokens = (uint32_t *)(memory + l->row_tokens);
	e->row_routes = (uint2 *)(memory + l->row_routes);
	e->home_routes = (uint2 *)(memory + l->home_routes);
	e->slice_counts = memory + l->slices;
	e->most_slices = most_slices_of(plan->nr_ranks, c->max_tokens);
	e->own_positions = (uint32_t *)(memory + l->own_positions);
	e->view = x->view;
}

static void make_dispatch(
	struct device_exchange *x, const struct device_plan *plan, struct device_slot *s)
{
	const struct tern_moe_config *c = plan->config;
	const struct device_layout *l = &x->layout;
	struct gpu_dispatch *d = &s->dispatch;
	uint32_t lists = c->layout == TERN_BY_SOURCE ? plan->nr_ranks : d->exchange.nr_local;

	d->kind = gpu_x_kind(c);
	d->scale_bytes = scale_bytes(c->scale);
	d->padded = c->layout == TERN_PADDED;
	d->by_source = c->layout == TERN_BY_SOURCE;
	d->noted_tokens = l->noted_tokens;
	d->capacity = plan->layout->capacity;
	d->by_alignment = gpu_divisor_of(c->layout == TERN_CONTIGUOUS ? c->alignment : 1);
	d->out_rows = (int4 *)(s->memory + l->rows);
	d->out_ids = (int32_t *)(s->memory + l->ids);
	d->out_weights = (float *)(s->memory + l->weights);
	d->out_sums = (uint64_t *)(s->memory + l->offsets) + lists;
	if (!c->gate_rows)
		return;
	d->gate = (struct gpu_gate){.row_bits = (uint32_t)__builtin_ctz(c->gate_rows),
		.tiles = l->gate_tiles,
		.parts = c->mode == TERN_HIGH_THROUGHPUT ? 1 : l->row.nr_segments,
		.words = (uint32_t *)(s->memory + l->gate_words),
		.ready = (uint32_t *)(s->memory + l->gate_ready),
		.done = (uint32_t *)(s->memory + l->gate_done),
		.offsets = (const uint64_t *)(s->memory + l->offsets),
		.route_tiles = (uint32_t *)(s->memory + l->route_tiles)};
	s->combine.gate = d->gate;
}

static void make_ht(struct device_exchange *x, const struct device_plan *plan, uint32_t slot)
{
	struct device_slot *s = &x->slots[slot];

	s->ht = (struct ht_exchange){.window = x->layout.ht,
		.nr_physical = plan->placement->nr_physical,
		.nr_columns = plan->placement->nr_physical + plan->nr_ranks,
		.order = x->tables.order,
		.first = x->tables.first,
		.logical = tables_of(x, slot).logical,
		.chunks = (uint32_t *)(s->memory + x->layout.chunks),
		.block_bytes = x->block_bytes,
		.routes = (uint2 *)(s->memory + x->layout.routes)};
}

static int make_slot(struct device_exchange *x, const struct device_plan *plan, uint32_t slot)
{
	struct device_slot *s = &x->slots[slot];
	const struct tern_moe_config *c = plan->config;
	struct gpu_state first = {.epoch_dispatch = c->first_epoch ? c->first_epoch : 1}; /* fresh
											     windows
											     hold
											     zeros
											   */

	s->memory = x->memory + slot * x->layout.slot_bytes;
	s->dispatch.exchange.placement = tables_of(x, slot).placement;
	make_exchange(x, plan, slot, &s->dispatch.exchange);
	s->combine.exchange = s->dispatch.exchange;
	make_dispatch(x, plan, s);
	make_ht(x, plan, slot);
	s->combine.kind = gpu_y_kind(c);
	s->combine.late = c->late_weights != 0;
	s->combine.weight_cells = x->layout.weight_cells;
	s->beside = (struct gpu_beside){.low = c->mode == TERN_LOW_LATENCY,
		.by_source = c->layout == TERN_BY_SOURCE,
		.cells = x->layout.floats,
		.local_ids = s->dispatch.out_ids};
	return cuda_check(cudaMemcpy(s->memory + x->layout.state, &first, sizeof(first),
				  cudaMemcpyHostToDevice),
		"cudaMemcpy of a slot's state");
}

/* The plan's one block waits for other ranks' too, so where kernels of several slots or ranks share
 * a device some SMs are left to it. */
static int count_ht_blocks(struct device_exchange *x)
{
	struct device_slot *s = &x->slots[0];
	int device = 0, nr_sms = 0,
	    rc = cuda_check(ht_most_blocks(&s->dispatch, &s->combine, &s->ht, &x->most_blocks),
		    "high throughput's kernels");

	rc = rc ? rc : cuda_check(cudaGetDevice(&device), "cudaGetDevice");
	rc = rc ? rc
		: cuda_check(
			  cudaDeviceGetAttribute(&nr_sms, cudaDevAttrMultiProcessorCount, device),
			  "cudaDeviceGetAttribute");
	if (!rc && x->internode)
		rc = cuda_check(internode_dispatch_prepare(&s->dispatch),
			"the internode dispatch's kernels");
	if (!rc && x->internode)
		rc = cuda_check(
			internode_combine_prepare(&s->combine), "the internode combine's kernels");
	if (rc)
		return rc;
	if (x->most_blocks > (uint32_t)nr_sms)
		x->most_blocks = (uint32_t)nr_sms;
	if (x->nr_sharing > 1)
		x->most_blocks = (x->most_blocks - x->most_blocks / 8) / x->nr_sharing;
	return x->most_blocks ? 0
			      : fail(TERN_ERR_UNSUPPORTED,
					"%u slots of all ranks share a device of %d SMs",
					x->nr_sharing, nr_sms);
}

void cut_results(struct gpu_combine *c, uint32_t nr_tokens)
{
	struct gpu_exchange *e = &c->exchange;
	uint32_t bytes = e->result.row_bytes;
	bool one_cut = e->internode || c->kind != GPU_Y_BF16;

	if (e->format != GPU_FLAG128)
		return;
	e->result = row_geometry_of(
		e->format, 0, bytes, one_cut ? 2 : ll_rule_result_vectors(nr_tokens, e->nr_ranks));
	e->by_result_segments = gpu_divisor_of(e->result.nr_segments);
}

/* Kernels are loaded when they are first launched or asked for, and loading may wait for kernels
 * under way, which may wait for this rank: so all are asked for here. */
static int count_blocks(struct device_exchange *x)
{
	struct gpu_launch launch = {.nr_warps = GPU_MAX_WARPS,
		.send_warps = 1,
		.notes = x->layout.sliced ? LL_SLICES : LL_ALL_PLANS};
	struct device_slot *s = &x->slots[0];
	uint32_t combine = 0;
	int rc;

	s->dispatch.roles = s->combine.roles = GPU_SEND | GPU_RECEIVE;
	rc = cuda_check(plans_prepare(), "the kernels of plans");
	rc = rc ? rc : cuda_check(beside_prepare(), "the kernels beside a combine");
	if (rc || x->config.mode == TERN_HIGH_THROUGHPUT)
		return rc ? rc : count_ht_blocks(x);
	rc = cuda_check(ll_dispatch_most_blocks(&s->dispatch, &launch, &x->most_blocks),
		"the dispatch kernel");
	for (uint32_t i = 0; !rc && i < 2; i++) {
		cut_results(&s->combine, i * x->config.max_tokens);
		rc = cuda_check(ll_combine_most_blocks(&s->combine, &launch, &combine),
			"the combine kernel");
		x->most_blocks = combine < x->most_blocks ? combine : x->most_blocks;
	}
	if (rc)
		return rc;
	if (x->most_blocks < x->nr_sharing)
		return fail(TERN_ERR_UNSUPPORTED,
			"%u slots of all ranks share a device that holds %u blocks at once",
			x->nr_sharing, x->most_blocks);
	x->most_blocks /= x->nr_sharing;
	return 0;
}

/* early: it waits for the kernel ahead before it touches anything, so only the room it takes could
 * harm. The code for older GPUs has no such wait, on whatever device it runs. */
static int ask_device(struct device_exchange *x)
{
	int version = 0, rc = cuda_check(cudaGetDevice(&x->device), "cudaGetDevice");

	rc = rc ? rc : cuda_check(code_version(&version), "cudaFuncGetAttributes");
	x->early = version >= 90 && x->nr_sharing == 1;
	return rc;
}

static int make_view(struct device_exchange *x)
{
	int rc;

	if (!x->config.elastic)
		return 0;
	rc = cuda_check(cudaMalloc((void **)&x->view, sizeof(*x->view)), "cudaMalloc of a view");
	return rc ? rc
		  : cuda_check(cudaMemset(x->view, 0, sizeof(*x->view)), "cudaMemset of a view");
}

static int fill_exchange(struct device_exchange *x, const struct device_plan *plan)
{
	uint32_t nr_slots = plan->config->nr_slots;
	uint64_t bytes = x->layout.counters + x->layout.counters_bytes;
	int rc = cuda_check(cudaMalloc((void **)&x->memory, bytes), "cudaMalloc of an exchange");

	rc = rc ? rc : cuda_check(cudaMemset(x->memory, 0, bytes), "cudaMemset");
	rc = rc ? rc
		: cuda_check(cudaMallocHost((void **)&x->reports,
				     nr_slots * sizeof(*x->reports) + x->layout.counters_bytes),
			  "cudaMallocHost");
	if (!rc) {
		memset(x->reports, 0, nr_slots * sizeof(*x->reports));
		x->read = (struct gpu_counters *)(x->reports + nr_slots);
		x->counters = (struct gpu_counters *)(x->memory + x->layout.counters);
	}
	rc = rc ? rc : ask_device(x);
	rc = rc ? rc : make_view(x);
	rc = rc ? rc : tables_open(x, plan->rank, plan->placement);
	rc = rc ? rc : upload_internode(x, plan);
	for (uint32_t slot = 0; slot < nr_slots && !rc; slot++)
		rc = make_slot(x, plan, slot);
	rc = rc ? rc : count_blocks(x);
	return rc ? rc : cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

int device_exchange_open(const struct device_plan *plan, struct device_exchange **out)
{
	struct device_exchange *x = calloc(1, sizeof(*x));
	int rc;

	if (!x)
		return fail(TERN_ERR_NOMEM, "no memory for an exchange");
	x->config = *plan->config;
	x->nr_ranks = plan->nr_ranks;
	x->layout = *plan->device_layout;
	x->positions = plan->layout->positions;
	x->nr_sharing = plan->nr_sharing;
	x->block_bytes = plan->block_bytes;
	rc = fill_exchange(x, plan);
	if (rc)
		device_exchange_close(x);
	else
		*out = x;
	return rc;
}

void device_exchange_close(struct device_exchange *x)
{
	if (x->reader)
		(void)cudaStreamDestroy(x->reader);
	device_kept_close(x);
	(void)cudaFree(x->memory);
	tables_close(x);
	(void)cudaFree(x->view);
#ifdef TERN_TRACE
	(void)cudaFree(x->trace);
#endif
	(void)cudaFree(x->internode);
	if (x->reports)
		(void)cudaFreeHost(x->reports);
	(void)cudaGetLastError();
	free(x);
}

/* Of the slot's own memory: what a caller gives in place of counts and offsets is not known yet. */
void device_exchange_gate(
	const struct device_exchange *x, uint32_t slot, uint64_t wait_ns, struct tern_gate *gate)
{
	const struct device_slot *s = &x->slots[slot];
	const struct gpu_gate *g = &s->dispatch.gate;

	*gate = (struct tern_gate){.size = sizeof(*gate),
		.nr_local = s->dispatch.exchange.nr_local,
		.tile_rows = 1u << g->row_bits,
		.tiles = g->tiles,
		.whole = g->parts << g->row_bits,
		.wait_ns = wait_ns,
		.counts = (const uint32_t *)(s->memory + x->layout.counts),
		.offsets = (const uint64_t *)(s->memory + x->layout.offsets),
		.words = g->words,
		.ready = g->ready,
		.done = g->done,
		.failed = &s->dispatch.exchange.state->failed};
}

/* ---- what kernels have said ------------------------------------------------------------------ */

void device_exchange_report(
	const struct device_exchange *x, uint32_t slot, struct gpu_report *report)
{
	const struct gpu_report *r = &x->reports[slot].report;

	report->reason = __atomic_load_n(&r->reason, __ATOMIC_ACQUIRE);
	if (report->reason)
		*report = *r;
}

void device_exchange_input_error(
	struct device_exchange *x, uint32_t slot, struct gpu_input_error *input_error)
{
	struct gpu_input_error *c = &x->reports[slot].input_error;

	input_error->reason = __atomic_load_n(&c->reason, __ATOMIC_ACQUIRE);
	if (!input_error->reason)
		return;
	*input_error = *c;
	__atomic_store_n(&c->reason, 0, __ATOMIC_RELEASE);
}

/* On a stream of its own, which waits for no kernel. To pinned memory, so that it may be asked
 * while the caller's streams are being captured. */
int device_exchange_counters(struct device_exchange *x, struct gpu_counters *counters)
{
	int rc = x->reader
			 ? 0
			 : cuda_check(cudaStreamCreateWithFlags(&x->reader, cudaStreamNonBlocking),
				   "cudaStreamCreateWithFlags");

	rc = rc ? rc
		: cuda_check(cudaMemcpyAsync(x->read, x->counters, x->layout.counters_bytes,
				     cudaMemcpyDeviceToHost, x->reader),
			  "cudaMemcpyAsync of statistics");
	rc = rc ? rc : cuda_check(cudaStreamSynchronize(x->reader), "cudaStreamSynchronize");
	if (!rc)
		memcpy(counters, x->read, x->layout.counters_bytes);
	return rc;
}
