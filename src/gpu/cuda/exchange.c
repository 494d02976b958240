/* SPDX-License-Identifier: Apache-2.0 */
/* An exchange as kernels see it: memory, tables and arguments; what kernels have reported and counted. */
#include <stdlib.h>
#include <string.h>

#include "gpu/cuda/dtypes.h"
#include "base/error.h"
#include "gpu/cuda/exchange_inside.h"
#include "gpu/cuda/spin.h"

/* The placement's tables, one after the other, as kernels want them. */
static int upload_placement(struct device_exchange *x, const struct placement *p, struct ll_placement *out)
{
	uint32_t nr = p->nr_physical;
	size_t words = 4 * (size_t)nr + p->nr_experts + p->nr_ranks + 2, bytes = words * sizeof(uint32_t);
	uint32_t *host = calloc(words, sizeof(*host)), *first = host + words - p->nr_ranks - 1, *order = first - nr, *logical = order - nr;
	bool blocks = nr % p->nr_ranks == 0, plain = nr == p->nr_experts;
	uint32_t *table = NULL;
	int rc = host ? 0 : fail(TERN_ERR_NOMEM, "no memory for tables of %u experts", nr);

	for (uint32_t i = 0; i < nr && !rc; i++) {
		host[i] = p->rank[i] << 16 | p->local[i];
		host[nr + i] = p->replicas[i];
		logical[i] = p->logical[i];
		blocks = blocks && p->rank[i] == i / (nr / p->nr_ranks);
		plain = plain && p->logical[i] == i;
	}
	for (uint32_t r = 0; r < p->nr_ranks && !rc; r++)
		first[r + 1] = first[r] + p->nr_local[r];
	for (uint32_t i = 0; i < nr && !rc; i++)
		order[first[p->rank[i]] + p->local[i]] = i;
	if (!rc)
		memcpy(host + 2 * (size_t)nr, p->first_replica, (p->nr_experts + 1) * sizeof(*host));
	rc = rc ? rc : cuda_check(cudaMalloc((void **)&table, bytes), "cudaMalloc of tables");
	x->tables = (uint8_t *)table;
	rc = rc ? rc : cuda_check(cudaMemcpy(table, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy of tables");
	x->order = table + (order - host);
	x->first = table + (first - host);
	x->logical = table + (logical - host);
	free(host);
	if (rc)
		return rc;
	*out = (struct ll_placement){.nr_experts = p->nr_experts, .nr_physical = nr, .place = table};
	if (blocks) {
		out->per_rank = nr / p->nr_ranks;
		out->by_per_rank = ll_divisor_of(out->per_rank);
	}
	if (!plain) {
		out->replicas = table + nr;
		out->replica_start = table + 2 * (size_t)nr;
	}
	return 0;
}

/* Behind them the ring's tickets, what each slot notes of its results, and the sink. */
static int upload_far(struct device_exchange *x, const struct device_plan *plan)
{
	const struct tern_moe_config *c = plan->config;
	uint32_t nr = plan->far ? c->nr_slots : 0, high = c->mode == TERN_HIGH_THROUGHPUT;
	uint64_t tables = align_up(nr * sizeof(*x->far), 256), results = nr ? (uint64_t)high * plan->far->nr_far * c->max_tokens * sizeof(uint32_t) : 0;
	uint64_t sink = tables + 256 + align_up(nr * results, 256), bytes = sink + (uint64_t)high * c->max_tokens * c->topk * 16;
	uint8_t *memory;
	int rc;

	if (!nr)
		return 0;
	rc = cuda_check(cudaMalloc((void **)&memory, bytes), "cudaMalloc of far ranks' tables");
	if (rc)
		return rc;
	x->far = (struct far_table *)memory;
	x->sink = memory + sink;
	rc = cuda_check(cudaMemset(memory, 0, bytes), "cudaMemset");
	for (uint32_t slot = 0; slot < nr && !rc; slot++) {
		struct far_table table = plan->far[slot];

		table.tickets = (unsigned long long *)(memory + tables);
		table.bytes = (unsigned long long *)&x->tally->engine_bytes;
		table.results = (uint32_t *)(memory + tables + 256 + slot * results);
		rc = cuda_check(cudaMemcpy(x->far + slot, &table, sizeof(table), cudaMemcpyHostToDevice), "cudaMemcpy of far ranks' tables");
	}
	return rc;
}

/* Where the window of a rank on another node would be. Its dispatch kernel stores heads there. */
static uint8_t *no_window(const struct device_exchange *x, const struct device_plan *plan)
{
	const struct tern_moe_config *c = plan->config;

	return c->mode == TERN_HIGH_THROUGHPUT ? x->sink - x->layout.ht.heads - (uint64_t)plan->rank * c->max_tokens * c->topk * 16 : NULL;
}

static void make_exchange(struct device_exchange *x, const struct device_plan *plan, uint32_t slot, struct ll_exchange *e)
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
	e->result = l->result;
	e->by_topk = ll_divisor_of(c->topk);
	e->by_ranks = ll_divisor_of(plan->nr_ranks);
	e->by_others = ll_divisor_of(plan->nr_ranks > 1 ? plan->nr_ranks - 1 : 1);
	e->by_result_segments = ll_divisor_of(l->result.nr_segments);
	e->by_row_parts = ll_divisor_of(l->row.nr_segments + 1);
	e->by_replicas = ll_divisor_of(c->replica_ranks);
	e->window = l->window;
	for (uint32_t r = 0; r < plan->nr_ranks; r++)
		e->windows[r] = plan->windows[r] ? (uint8_t *)plan->windows[r] + slot * l->slot_window_bytes : no_window(x, plan);
	e->far = x->far ? x->far + slot : NULL;
	e->state = (struct ll_state *)(memory + l->state);
	e->report = &x->reports[slot].report;
	e->complaint = &x->reports[slot].complaint;
	e->partings = plan->partings;
	e->tally = x->tally;
	e->row_tokens = (uint32_t *)(memory + l->row_tokens);
	e->row_routes = (uint2 *)(memory + l->row_routes);
	e->home_routes = (uint2 *)(memory + l->home_routes);
	e->own_positions = (uint32_t *)(memory + l->own_positions);
}

static void make_dispatch(struct device_exchange *x, const struct device_plan *plan, struct device_slot *s)
{
	const struct tern_moe_config *c = plan->config;
	const struct device_layout *l = &x->layout;
	struct ll_dispatch *d = &s->dispatch;
	uint32_t lists = c->layout == TERN_BY_SOURCE ? plan->nr_ranks : d->exchange.nr_local;

	d->kind = ll_x_kind(c);
	d->scale_bytes = scale_bytes(c->scale);
	d->padded = c->layout == TERN_PADDED;
	d->by_source = c->layout == TERN_BY_SOURCE;
	d->capacity = plan->layout->capacity;
	d->by_alignment = ll_divisor_of(c->layout == TERN_CONTIGUOUS ? c->alignment : 1);
	d->out_rows = (int4 *)(s->memory + l->rows);
	d->out_ids = (int32_t *)(s->memory + l->ids);
	d->out_weights = (float *)(s->memory + l->weights);
	d->out_counts = (uint32_t *)(s->memory + l->counts);
	d->out_offsets = (uint64_t *)(s->memory + l->offsets);
	d->out_sums = d->out_offsets + lists;
}

static void make_ht(struct device_exchange *x, const struct device_plan *plan, struct device_slot *s)
{
	s->ht = (struct ht_exchange){.window = x->layout.ht,
		.nr_physical = plan->placement->nr_physical,
		.nr_columns = plan->placement->nr_physical + plan->nr_ranks,
		.order = x->order,
		.first = x->first,
		.logical = x->logical,
		.chunks = (uint32_t *)(s->memory + x->layout.chunks),
		.block_bytes = x->block_bytes,
		.routes = (uint2 *)(s->memory + x->layout.routes)};
}

static int make_slot(struct device_exchange *x, const struct device_plan *plan, const struct ll_placement *placement, uint32_t slot)
{
	struct device_slot *s = &x->slots[slot];
	const struct tern_moe_config *c = plan->config;
	struct ll_state first = {.epoch_dispatch = c->first_epoch ? c->first_epoch : 1}; /* fresh windows hold zeros */

	s->memory = x->memory + slot * x->layout.slot_bytes;
	s->dispatch.exchange.placement = *placement;
	make_exchange(x, plan, slot, &s->dispatch.exchange);
	s->combine.exchange = s->dispatch.exchange;
	make_dispatch(x, plan, s);
	make_ht(x, plan, s);
	s->combine.kind = ll_y_kind(c);
	/* BY_SOURCE: the caller has reduced and weighted. */
	s->combine.weighted = c->weights == TERN_WEIGHTS_COMBINE;
	return cuda_check(cudaMemcpy(s->memory + x->layout.state, &first, sizeof(first), cudaMemcpyHostToDevice), "cudaMemcpy of a slot's state");
}

/* The plan's one block waits for other ranks' too, so where kernels of several slots or ranks share a device some SMs are left to it. */
static int count_ht_blocks(struct device_exchange *x)
{
	struct device_slot *s = &x->slots[0];
	int device = 0, nr_sms = 0, rc = cuda_check(ht_most_blocks(&s->dispatch, &s->combine, &s->ht, &x->most_blocks), "high throughput's kernels");

	rc = rc ? rc : cuda_check(cudaGetDevice(&device), "cudaGetDevice");
	rc = rc ? rc : cuda_check(cudaDeviceGetAttribute(&nr_sms, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
	if (!rc && x->far)
		rc = cuda_check(far_dispatch_prepare(&s->dispatch), "the far dispatch's kernels");
	if (!rc && x->far)
		rc = cuda_check(far_combine_prepare(&s->combine), "the far combine's kernels");
	if (rc)
		return rc;
	if (x->most_blocks > (uint32_t)nr_sms)
		x->most_blocks = (uint32_t)nr_sms;
	if (x->nr_sharing > 1)
		x->most_blocks = (x->most_blocks - x->most_blocks / 8) / x->nr_sharing;
	return x->most_blocks ? 0 : fail(TERN_ERR_UNSUPPORTED, "%u slots of all ranks share a device of %d SMs", x->nr_sharing, nr_sms);
}

/* Kernels are loaded when they are first launched or asked for, and loading may wait for kernels under way, which may wait for this rank:
 * so all are asked for here. */
static int count_blocks(struct device_exchange *x)
{
	struct ll_launch launch = {.nr_warps = LL_MAX_WARPS, .send_warps = 1};
	struct device_slot *s = &x->slots[0];
	uint32_t dispatch = 0, combine = 0;
	int rc;

	s->dispatch.roles = s->combine.roles = LL_SEND | LL_RECEIVE;
	if (x->config.mode == TERN_HIGH_THROUGHPUT)
		return count_ht_blocks(x);
	rc = cuda_check(ll_dispatch_most_blocks(&s->dispatch, &launch, &dispatch), "the dispatch kernel");
	rc = rc ? rc : cuda_check(ll_combine_most_blocks(&s->combine, &launch, &combine), "the combine kernel");
	if (rc)
		return rc;
	x->most_blocks = (dispatch < combine ? dispatch : combine) / x->nr_sharing;
	if (!x->most_blocks)
		return fail(TERN_ERR_UNSUPPORTED, "%u slots of all ranks share a device that holds %u blocks at once", x->nr_sharing,
			dispatch < combine ? dispatch : combine);
	return 0;
}

/* early: it waits for the kernel ahead before it touches anything, so only the room it takes could harm. The code for older GPUs has no such wait, on whatever device it runs. */
static int ask_device(struct device_exchange *x)
{
	int version = 0, rc = cuda_check(cudaGetDevice(&x->device), "cudaGetDevice");

	rc = rc ? rc : cuda_check(code_version(&version), "cudaFuncGetAttributes");
	x->early = version >= 90 && x->nr_sharing == 1;
	return rc;
}

static int fill_exchange(struct device_exchange *x, const struct device_plan *plan)
{
	struct ll_placement placement;
	uint32_t nr_slots = plan->config->nr_slots;
	uint64_t bytes = x->layout.tally + x->layout.tally_bytes;
	int rc = cuda_check(cudaMalloc((void **)&x->memory, bytes), "cudaMalloc of an exchange");

	rc = rc ? rc : cuda_check(cudaMemset(x->memory, 0, bytes), "cudaMemset");
	rc = rc ? rc : cuda_check(cudaMallocHost((void **)&x->reports, nr_slots * sizeof(*x->reports) + x->layout.tally_bytes), "cudaMallocHost");
	if (!rc) {
		memset(x->reports, 0, nr_slots * sizeof(*x->reports));
		x->read = (struct ll_tally *)(x->reports + nr_slots);
		x->tally = (struct ll_tally *)(x->memory + x->layout.tally);
	}
	rc = rc ? rc : ask_device(x);
	rc = rc ? rc : upload_placement(x, plan->placement, &placement);
	rc = rc ? rc : upload_far(x, plan);
	for (uint32_t slot = 0; slot < nr_slots && !rc; slot++)
		rc = make_slot(x, plan, &placement, slot);
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
	(void)cudaFree(x->memory);
	(void)cudaFree(x->tables);
	(void)cudaFree(x->far);
	if (x->reports)
		(void)cudaFreeHost(x->reports);
	(void)cudaGetLastError();
	free(x);
}

/* ---- what kernels have said ---------------------------------------------------------------------------------- */

void device_exchange_report(const struct device_exchange *x, uint32_t slot, struct ll_report *report)
{
	const struct ll_report *r = &x->reports[slot].report;

	report->reason = __atomic_load_n(&r->reason, __ATOMIC_ACQUIRE);
	if (report->reason)
		*report = *r;
}

void device_exchange_complaint(struct device_exchange *x, uint32_t slot, struct ll_complaint *complaint)
{
	struct ll_complaint *c = &x->reports[slot].complaint;

	complaint->reason = __atomic_load_n(&c->reason, __ATOMIC_ACQUIRE);
	if (!complaint->reason)
		return;
	*complaint = *c;
	__atomic_store_n(&c->reason, 0, __ATOMIC_RELEASE);
}

/* On a stream of its own, which waits for no kernel. To pinned memory, so that it may be asked while the caller's streams are being captured. */
int device_exchange_tally(struct device_exchange *x, struct ll_tally *tally)
{
	int rc = x->reader ? 0 : cuda_check(cudaStreamCreateWithFlags(&x->reader, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");

	rc = rc ? rc : cuda_check(cudaMemcpyAsync(x->read, x->tally, x->layout.tally_bytes, cudaMemcpyDeviceToHost, x->reader), "cudaMemcpyAsync of statistics");
	rc = rc ? rc : cuda_check(cudaStreamSynchronize(x->reader), "cudaStreamSynchronize");
	if (!rc)
		memcpy(tally, x->read, x->layout.tally_bytes);
	return rc;
}
