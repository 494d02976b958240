/* SPDX-License-Identifier: Apache-2.0 */
/* Halves of an exchange put on a stream: the arguments of a round, and with how many blocks. */
#include "base/error.h"
#include "gpu/cuda/exchange_inside.h"
#include "gpu/cuda/tuning.h"

#define BESIDE_BLOCKS 32 /* copying some numbers of each token takes no more */

int device_check_current(const struct device_exchange *x)
{
	int device = -1, rc = cuda_check(cudaGetDevice(&device), "cudaGetDevice");

	if (!rc && device != x->device)
		rc = fail(TERN_ERR_INVALID,
			"device %d is current for this thread; the exchange was made on device %d",
			device, x->device);
	return rc;
}

static struct gpu_launch fit_launch(
	const struct device_exchange *x, const struct device_call *call, struct gpu_launch launch)
{
	launch.nr_blocks = gpu_least(launch.nr_blocks,
		call->nr_sms ? gpu_least(call->nr_sms, x->most_blocks) : x->most_blocks);
	launch.early = x->early;
	return launch;
}

/* Where the library's own received rows lie. */
static uint8_t *own_rows(const struct device_exchange *x, const struct device_slot *s,
	uint64_t in_memory, uint64_t in_window)
{
	const struct gpu_exchange *e = &s->dispatch.exchange;

	return x->config.mode == TERN_HIGH_THROUGHPUT ? e->windows[e->rank] + in_window
						      : s->memory + in_memory;
}

/* All blocks that fit, unless the caller wants fewer: bytes are what counts here. */
static struct gpu_launch ht_launch(const struct device_exchange *x, const struct device_call *call)
{
	uint32_t most = call->nr_sms ? gpu_least(call->nr_sms, x->most_blocks) : x->most_blocks;

	return (struct gpu_launch){.nr_blocks = most, .nr_warps = GPU_MAX_WARPS, .early = x->early};
}

static int put_ht_dispatch(struct device_exchange *x, const struct device_call *call)
{
	struct device_slot *s = &x->slots[call->slot];
	struct gpu_launch launch = ht_launch(x, call);
	int rc = 0;

	launch.send_warps = ht_rule_senders(launch.nr_blocks, s->dispatch.exchange.nr_ranks,
		s->dispatch.exchange.row.row_bytes, s->dispatch.kind == GPU_X_COPY);
	if (call->roles & DEVICE_SEND)
		rc = cuda_check(ht_plan_launch(&s->dispatch, &s->ht, &launch, call->stream),
			"the plan's kernels");
	if (!rc && x->internode && call->roles & DEVICE_SEND)
		rc = cuda_check(internode_dispatch_launch(
					&s->dispatch, &s->ht, &launch, GPU_SEND, call->stream),
			"the internode dispatch's kernel");
	rc = rc ? rc
		: cuda_check(ht_dispatch_launch(&s->dispatch, &s->ht, &launch, call->stream),
			  "the dispatch kernel");
	if (!rc && x->internode && call->roles & DEVICE_RECEIVE)
		rc = cuda_check(internode_dispatch_launch(
					&s->dispatch, &s->ht, &launch, GPU_RECEIVE, call->stream),
			"the internode dispatch's kernel");
	return rc;
}

/* What this rank sends. */
static void take_sent(const struct tern_moe_config *c, const struct device_call *call,
	const struct tern_dispatch *args, struct gpu_dispatch *d)
{
	uint32_t x_bytes =
		c->x_dtype == TERN_BYTES ? c->payload_bytes : c->hidden * dtype_bytes(c->x_dtype);

	d->nr_tokens = args->nr_tokens;
	d->nr_tokens_at = call->nr_tokens_at;
	d->x = args->x;
	d->x_stride = args->x_stride ? args->x_stride : x_bytes;
	d->scales = args->scales;
	d->scales_stride = args->scales_stride
				   ? args->scales_stride
				   : (c->hidden + SCALE_BLOCK - 1) / SCALE_BLOCK * d->scale_bytes;
	d->topk_ids = args->topk_ids;
	d->ids_64 = args->topk_ids_bits == 64;
	d->topk_weights = args->topk_weights;
}

/* Scales by rows, or, where the caller has no room for these, in columns. */
static void give_scales(const struct device_call *call, struct gpu_dispatch *d,
	const struct tern_received *received)
{
	uint32_t stride = (uint32_t)call->gemm_scales_stride, blocks = d->exchange.row.nr_lines,
		 columns = d->scale_bytes == 4 ? blocks : blocks / 4;

	d->out_columns = received->into_x && !received->into_scales ? received->gemm_scales : NULL;
	d->column_stride = stride;
	d->list_skip = d->out_columns && d->padded ? columns * stride - (uint32_t)d->capacity : 0;
	d->scale_step = !d->out_columns       ? 4 * d->scale_bytes
			: d->scale_bytes == 4 ? 16 * stride
					      : 4 * stride;
}

/* Where it receives. */
static void give_received(const struct device_exchange *x, const struct device_call *call,
	const struct device_slot *s, struct gpu_dispatch *d, struct tern_received *received)
{
	d->out_x =
		received->into_x ? received->into_x : own_rows(x, s, x->layout.x, x->layout.ht.x);
	d->out_scales = received->into_x ? received->into_scales
					 : own_rows(x, s, x->layout.scales, x->layout.ht.scales);
	give_scales(call, d, received);
	if (received->into_counts)
		d->out_counts = received->into_counts;
	if (received->into_offsets)
		d->out_offsets = received->into_offsets;
	received->x = d->out_x;
	received->scales = d->scale_bytes ? d->out_scales : NULL;
	received->counts = d->out_counts;
	received->offsets = d->out_offsets;
	received->rows = (const struct tern_row *)d->out_rows;
	received->topk_ids = d->by_source ? d->out_ids : NULL;
	received->topk_weights = d->by_source ? d->out_weights : NULL;
	received->nr_rows = received->extent = x->positions;
}

static uint32_t call_blocks(const struct device_exchange *x, const struct device_call *call)
{
	return call->nr_sms ? gpu_least(call->nr_sms, x->most_blocks) : x->most_blocks;
}

static uint32_t beside_blocks(const struct device_exchange *x, const struct device_call *call)
{
	return gpu_least(call_blocks(x, call), BESIDE_BLOCKS);
}

/* What the caller wants beside rows, behind them. */
static int put_wanted(struct device_exchange *x, const struct device_call *call,
	const struct tern_received *received)
{
	const struct gpu_dispatch *d = &x->slots[call->slot].dispatch;
	uint32_t blocks = d->exchange.row.nr_lines;
	struct gpu_launch launch = {
		.early = x->early && !call->nr_sms, .nr_blocks = beside_blocks(x, call)};
	struct gpu_wanted wanted = {.wide_ids = received->wide_ids,
		.expert_counts = received->expert_counts,
		.expert_totals = received->expert_totals,
		.gemm_scales = d->out_columns ? NULL : received->gemm_scales,
		.stride = call->gemm_scales_stride,
		.columns = d->scale_bytes == 4 ? blocks : (blocks + 3) / 4,
		.positions = x->positions,
		.alignment = received->counts_alignment ? received->counts_alignment : 1};

	if (!wanted.wide_ids && !wanted.expert_counts && !wanted.expert_totals &&
		!wanted.gemm_scales)
		return 0;
	if (wanted.gemm_scales)
		launch.nr_blocks = call_blocks(x, call);
	return cuda_check(dispatch_beside_launch(d, &wanted, &launch, call->stream),
		"the kernel beside received rows");
}

int device_exchange_sizes(
	struct device_exchange *x, const struct device_call *call, uint64_t sums[2])
{
	uint64_t *here = x->reports[call->slot].sums;
	int rc = device_check_current(x);

	rc = rc ? rc
		: cuda_check(cudaMemcpyAsync(here, x->slots[call->slot].dispatch.out_sums,
				     2 * sizeof(*here), cudaMemcpyDeviceToHost, call->stream),
			  "cudaMemcpyAsync of sizes");
	rc = rc ? rc : cuda_check(cudaStreamSynchronize(call->stream), "cudaStreamSynchronize");
	sums[0] = rc ? 0 : here[0];
	sums[1] = rc ? 0 : here[1];
	return rc;
}

static struct ll_sizes sizes_of(const struct device_exchange *x, const struct gpu_dispatch *d)
{
	return (struct ll_sizes){.row = &d->exchange.row,
		.nr_ranks = d->exchange.nr_ranks,
		.nr_tokens = d->nr_tokens,
		.max_tokens = d->exchange.max_tokens,
		.noted_tokens = d->noted_tokens,
		.sliced = x->layout.sliced,
		.may_slice = !x->internode && !d->gate.row_bits,
		.gated = !x->internode && d->gate.row_bits,
		.scaled = d->kind != GPU_X_COPY,
		.quantised = d->kind != GPU_X_COPY && d->kind != GPU_X_GIVEN,
		.by_source = d->by_source};
}

static int put_dispatch(struct device_exchange *x, const struct device_call *call)
{
	struct gpu_dispatch *d = &x->slots[call->slot].dispatch;
	struct ll_sizes sizes;
	struct gpu_launch launch;

	if (x->config.mode == TERN_HIGH_THROUGHPUT)
		return put_ht_dispatch(x, call);
	sizes = sizes_of(x, d);
	d->by_share = gpu_divisor_of(ll_rule_share(&sizes));
	launch = fit_launch(x, call, ll_rule_dispatch(&sizes));
	return cuda_check(ll_dispatch_launch(d, &launch, call->stream), "the dispatch kernel");
}

/* Between what is sent and what is received, so that others need not wait for who is timed. */
static int put_timed_dispatch(
	struct device_exchange *x, const struct device_call *call, uint64_t *waited_ns)
{
	struct gpu_dispatch *d = &x->slots[call->slot].dispatch;
	int rc = 0;

	d->roles = DEVICE_SEND;
	if (call->roles & DEVICE_SEND)
		rc = put_dispatch(x, call);
	rc = rc ? rc
		: cuda_check(dispatch_waits_launch(d, waited_ns, call->stream),
			  "the kernel that times waits");
	d->roles = DEVICE_RECEIVE;
	return rc ? rc : put_dispatch(x, call);
}

int device_exchange_dispatch(struct device_exchange *x, const struct device_call *call,
	const struct tern_dispatch *args, struct tern_received *received)
{
	struct device_slot *s = &x->slots[call->slot];
	struct gpu_dispatch *d = &s->dispatch;
	int rc = device_check_current(x);

	if (rc)
		return rc;
	d->roles = call->roles;
	d->exchange.wait_ns = call->wait_ns;
	d->out_counts = (uint32_t *)(s->memory + x->layout.counts);
	d->out_offsets = (uint64_t *)(s->memory + x->layout.offsets);
	if (call->roles & DEVICE_SEND)
		take_sent(&x->config, call, args, d);
	if (call->roles & DEVICE_SEND && call->kept)
		device_kept_dispatch(x, call->kept, d);
	if (call->roles & DEVICE_RECEIVE)
		give_received(x, call, s, d, received);
	rc = call->roles & DEVICE_RECEIVE && received->waited_ns
		     ? put_timed_dispatch(x, call, received->waited_ns)
		     : put_dispatch(x, call);
	if (!rc && call->roles & DEVICE_RECEIVE)
		rc = put_wanted(x, call, received);
	return rc || !call->kept ? rc : device_kept_used(call->kept, call);
}

/* One role after the other: results from other nodes are in the window before the kernel begins
 * that sums them. */
static int put_internode_combine(
	struct device_exchange *x, const struct device_call *call, const struct gpu_launch *launch)
{
	struct device_slot *s = &x->slots[call->slot];
	int rc = 0;

	for (enum gpu_roles role = GPU_SEND; role <= GPU_RECEIVE && !rc; role++) {
		if (!(call->roles & role))
			continue;
		s->combine.roles = role;
		rc = cuda_check(
			internode_combine_launch(&s->combine, &s->ht, launch, role, call->stream),
			"the internode combine's kernel");
		rc = rc ? rc
			: cuda_check(ht_combine_launch(&s->combine, &s->ht, launch, call->stream),
				  "the combine kernel");
	}
	return rc;
}

static int launch_ll_combine(struct device_exchange *x, const struct device_call *call)
{
	struct gpu_combine *c = &x->slots[call->slot].combine;
	const struct gpu_dispatch *d = &x->slots[call->slot].dispatch;
	const struct gpu_exchange *e = &c->exchange;
	uint32_t rows = e->at_home ? 0 : d->by_source ? 1 : gpu_ceil(e->topk, e->nr_ranks);
	struct gpu_launch launch;

	cut_results(c, d->nr_tokens);
	launch = ll_rule_combine(
		d->nr_tokens, e->max_tokens, e->nr_ranks, &e->result, rows, ll_combine_whole(c));
	launch = fit_launch(x, call, launch);
	if (c->release)
		launch.nr_blocks = 1;
	return cuda_check(ll_combine_launch(c, &launch, call->stream), "the combine kernel");
}

static int launch_ht_combine(struct device_exchange *x, const struct device_call *call)
{
	struct device_slot *s = &x->slots[call->slot];
	struct gpu_launch launch = ht_launch(x, call);

	/* Its blocks would wait on other SMs than the dispatch's: they do behind gates. */
	launch.early = launch.early && (!call->nr_sms || s->combine.gate.marks);
	if (x->internode && !s->combine.release)
		return put_internode_combine(x, call, &launch);
	if (s->combine.release)
		launch.nr_blocks = 1;
	return cuda_check(ht_combine_launch(&s->combine, &s->ht, &launch, call->stream),
		"the combine kernel");
}

static int launch_combine(struct device_exchange *x, const struct device_call *call)
{
	struct gpu_combine *c = &x->slots[call->slot].combine;

	c->roles = call->roles;
	c->exchange.wait_ns = call->wait_ns;
	return x->config.mode == TERN_HIGH_THROUGHPUT ? launch_ht_combine(x, call)
						      : launch_ll_combine(x, call);
}

/* What goes beside results: ahead of the kernels that sum and send them. */
static int put_beside(struct device_exchange *x, const struct device_call *call)
{
	struct device_slot *s = &x->slots[call->slot];
	uint32_t nr_blocks = beside_blocks(x, call);
	int rc = 0;

	s->beside.roles = call->roles;
	s->combine.exchange.wait_ns = call->wait_ns;
	if (call->roles & DEVICE_SEND && s->beside.weights)
		rc = cuda_check(combine_weights_launch(
					&s->combine, &s->ht, &s->beside, nr_blocks, call->stream),
			"the kernel of a combine's weights");
	if (!rc && x->config.combine_floats && !s->beside.no_floats)
		rc = cuda_check(combine_floats_launch(
					&s->combine, &s->ht, &s->beside, nr_blocks, call->stream),
			"the kernel of a combine's floats");
	return rc;
}

static void take_combined(
	const struct device_exchange *x, struct device_slot *s, const struct tern_combine *args)
{
	struct gpu_combine *c = &s->combine;

	c->y = args->y;
	c->y_stride = args->y_stride ? args->y_stride : x->layout.result.row_bytes;
	c->weighted = !args->unweighted &&
		      (args->topk_weights || c->late || x->config.weights == TERN_WEIGHTS_COMBINE);
	c->gate.marks = args->gated;
	c->weights_come = c->late && !args->unweighted;
	c->late_weights = args->topk_weights;
	c->late_tokens = args->topk_weights ? s->dispatch.nr_tokens : 0;
	s->beside.weights = c->late ? NULL : args->topk_weights;
	s->beside.no_floats = args->no_floats;
	s->beside.floats = args->floats;
	s->beside.out_floats = args->out_floats;
}

int device_exchange_combine(struct device_exchange *x, const struct device_call *call,
	const struct tern_combine *args, void *out, size_t out_stride)
{
	struct gpu_combine *c = &x->slots[call->slot].combine;
	uint32_t row_bytes = x->layout.result.row_bytes;
	int rc = device_check_current(x);

	if (!rc && call->kept && call->roles & DEVICE_SEND)
		rc = device_kept_combine(x, call->kept, call);
	if (rc)
		return rc;
	c->release = 0;
	if (call->roles & DEVICE_SEND)
		take_combined(x, &x->slots[call->slot], args);
	if (call->roles & DEVICE_RECEIVE) {
		c->out = out;
		c->out_stride = out_stride ? out_stride : row_bytes;
	}
	rc = put_beside(x, call);
	rc = rc ? rc : launch_combine(x, call);
	return rc || !call->kept ? rc : device_kept_used(call->kept, call);
}

int device_exchange_release(struct device_exchange *x, const struct device_call *call)
{
	int rc = device_check_current(x);

	if (rc)
		return rc;
	x->slots[call->slot].combine.release = 1;
	x->slots[call->slot].combine.gate.marks = 0; /* it waits for the kernel ahead, whichever
							that is */
	return launch_combine(x, call);
}
