/* SPDX-License-Identifier: Apache-2.0 */
/* The halves of an exchange on a device: arguments checked, and kernels put on streams. */
#include "exchange/arguments.h"
#include "exchange/elastic.h"
#include "gpu/host/inside.h"
#include "base/error.h"

/* ---- settings -------------------------------------------------------------------------------- */

int device_set_stream(tern_moe *moe, uint32_t slot, void *stream)
{
	moe->device->streams[slot].stream = stream;
	return 0;
}

int device_set_nr_tokens_at(tern_moe *moe, uint32_t slot, const uint32_t *nr_tokens)
{
	int rc = nr_tokens ? device_outcome(moe->device, moe->device->ops->pointer_check(nr_tokens))
			   : 0;

	if (!rc)
		moe->device->streams[slot].nr_tokens_at = nr_tokens;
	return rc;
}

int device_set_sms(tern_moe *moe, uint32_t nr_sms)
{
	moe->device->nr_sms = nr_sms;
	return 0;
}

int device_gate(tern_moe *moe, uint32_t slot, struct tern_gate *gate)
{
	struct device *d = moe->device;

	if (!moe->config.gate_rows)
		return fail(TERN_ERR_STATE, "tern_moe_gate: gate_rows is 0; the exchange was made "
					    "without gates");
	d->ops->gate(d->exchange, slot, (uint64_t)moe->wait_ms * 1000000, gate);
	return 0;
}

/* ---- the halves ------------------------------------------------------------------------------ */

struct device_call device_call_of(const tern_moe *moe, uint32_t slot, uint32_t roles)
{
	const struct device *d = moe->device;

	return (struct device_call){.slot = slot,
		.roles = roles,
		.stream = d->streams[slot].stream,
		.nr_tokens_at = d->streams[slot].nr_tokens_at,
		.nr_sms = d->nr_sms,
		.wait_ns = (uint64_t)moe->wait_ms * 1000000};
}

/* What was found wrong with earlier ids is tern_moe_status's to tell. */
static int check_slot(tern_moe *moe, uint32_t slot, enum slot_state state, const char *call)
{
	int rc = device_look(moe);

	if (!rc && moe->slots[slot].state != state)
		rc = slot_wrong_state(moe, slot, call);
	return rc;
}

int device_check_reachable(const tern_moe *moe, const char *name, const void *pointer)
{
	return device_check_pointer(moe->device->ops, name, pointer);
}

/* NULL without one. */
static int check_plan(
	const tern_moe *moe, const struct tern_dispatch *args, struct held_plan **plan)
{
	int rc = args->plan ? device_plan_find(moe, args->plan, plan) : 0;

	if (rc || !args->plan)
		return rc;
	rc = plan_check_placed(moe, args->plan, &(*plan)->placed);
	return rc ? rc : arguments_plan(args, (*plan)->nr_tokens);
}

static int check_dispatch(tern_moe *moe, const struct tern_dispatch *args, const char *call)
{
	struct held_plan *plan;
	int rc = check_slot(moe, args->slot, SLOT_IDLE, call);

	rc = rc ? rc : check_plan(moe, args, &plan);
	rc = rc ? rc : arguments_dispatch(moe, args);
	if (rc || !args->nr_tokens)
		return rc;
	rc = device_check_reachable(moe, "x", args->x);
	rc = rc ? rc : device_check_reachable(moe, "scales", args->scales);
	rc = rc ? rc : device_check_reachable(moe, "topk_ids", args->topk_ids);
	return rc ? rc : device_check_reachable(moe, "topk_weights", args->topk_weights);
}

static int check_received(tern_moe *moe, const struct tern_received *received, const char *call)
{
	int rc = arguments_received(moe, received, call);

	if (!rc && !received->into_x && moe->config.caller_output)
		rc = fail(TERN_ERR_INVALID, "%s: into_x is NULL, and caller_output was set", call);
	rc = rc ? rc : device_check_reachable(moe, "into_x", received->into_x);
	rc = rc ? rc : device_check_reachable(moe, "wide_ids", received->wide_ids);
	rc = rc ? rc : device_check_reachable(moe, "expert_counts", received->expert_counts);
	rc = rc ? rc : device_check_reachable(moe, "expert_totals", received->expert_totals);
	rc = rc ? rc : device_check_reachable(moe, "gemm_scales", received->gemm_scales);
	rc = rc ? rc : device_check_reachable(moe, "into_counts", received->into_counts);
	rc = rc ? rc : device_check_reachable(moe, "into_offsets", received->into_offsets);
	rc = rc ? rc : device_check_reachable(moe, "waited_ns", received->waited_ns);
	if (!rc && moe->config.gate_rows && (received->into_counts || received->into_offsets))
		rc = fail(TERN_ERR_INVALID,
			"%s: into_counts or into_offsets is given; with gate_rows the lists are "
			"where tern_moe_gate says",
			call);
	if (!rc && received->waited_ns && moe->config.mode == TERN_HIGH_THROUGHPUT)
		rc = fail(TERN_ERR_INVALID,
			"%s: waited_ns is wanted, but on a device waits are told in low-latency "
			"mode alone",
			call);
	if (rc || !moe->layout.scales_bytes)
		return rc;
	return device_check_reachable(moe, "into_scales", received->into_scales);
}

static bool overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes)
{
	return (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

/* One kernel reads x and writes into_x, in no order. */
static int check_apart(
	const tern_moe *moe, const struct tern_dispatch *args, const struct tern_received *received)
{
	uint64_t x_bytes = x_row_bytes(moe),
		 into_bytes = moe->layout.positions * moe->layout.payload_bytes;

	if (!received->into_x || !args->nr_tokens)
		return 0;
	x_bytes += (args->nr_tokens - 1) * (uint64_t)(args->x_stride ? args->x_stride : x_bytes);
	if (!overlap(args->x, x_bytes, received->into_x, into_bytes))
		return 0;
	return fail(TERN_ERR_INVALID,
		"tern_dispatch: x, %llu bytes at %p, overlaps into_x, %llu bytes at %p",
		(unsigned long long)x_bytes, args->x, (unsigned long long)into_bytes,
		received->into_x);
}

static int put_dispatch(tern_moe *moe, uint32_t slot, uint32_t roles,
	const struct tern_dispatch *args, struct tern_received *received, enum slot_state next)
{
	struct device_call call = device_call_of(moe, slot, roles);
	struct held_plan *plan = NULL;
	int rc = args ? check_plan(moe, args, &plan) : 0;

	if (!rc && args && moe->config.elastic) /* where the device knows it, there may be none */
		rc = elastic_begin_round(
			moe, slot, args->nr_tokens && !call.nr_tokens_at, args->tag);
	if (rc)
		return rc;
	moe->device->busy = true;
	call.kept = plan ? plan->kept : NULL;
	call.gemm_scales_stride = received ? gemm_scales_stride(moe, received) : 0;
	rc = device_outcome(moe->device,
		moe->device->ops->dispatch(moe->device->exchange, &call, args, received));
	if (rc)
		return rc;
	moe->slots[slot].state = next;
	if (args) {
		moe->slots[slot].nr_tokens = args->nr_tokens;
		moe->slots[slot].placed = moe->placement.placed;
		moe->device->streams[slot].plan = plan;
	}
	if (received)
		received->version = moe->slots[slot].placed.version;
	return 0;
}

int device_dispatch_send(tern_moe *moe, const struct tern_dispatch *args)
{
	int rc = check_dispatch(moe, args, "tern_dispatch_send");

	return rc ? rc : put_dispatch(moe, args->slot, DEVICE_SEND, args, NULL, SLOT_DISPATCHED);
}

int device_received_sizes(tern_moe *moe, uint32_t slot, uint64_t *nr_rows, uint64_t *extent)
{
	struct device_call call = device_call_of(moe, slot, 0);
	uint64_t sums[2];
	int rc = device_look(moe);

	rc = rc ? rc
		: device_outcome(
			  moe->device, moe->device->ops->sizes(moe->device->exchange, &call, sums));
	rc = rc ? rc : device_look(moe); /* what kernels have found by now */
	if (rc)
		return rc;
	*nr_rows = sums[0];
	*extent = sums[1];
	return 0;
}

int device_dispatch_recv(tern_moe *moe, uint32_t slot, struct tern_received *received)
{
	int rc = check_slot(moe, slot, SLOT_DISPATCHED, "tern_dispatch_recv");

	rc = rc ? rc : check_received(moe, received, "tern_dispatch_recv");
	if (!rc && moe->config.mode == TERN_HIGH_THROUGHPUT &&
		(received->into_counts || received->into_offsets))
		rc = fail(TERN_ERR_INVALID,
			"tern_dispatch_recv: into_counts or into_offsets is given; in "
			"high-throughput mode the first half has written the lists, so it takes "
			"tern_dispatch");
	return rc ? rc : put_dispatch(moe, slot, DEVICE_RECEIVE, NULL, received, SLOT_RECEIVED);
}

int device_dispatch(tern_moe *moe, const struct tern_dispatch *args, struct tern_received *received)
{
	int rc = check_dispatch(moe, args, "tern_dispatch");

	rc = rc ? rc : check_received(moe, received, "tern_dispatch");
	rc = rc ? rc : check_apart(moe, args, received);
	return rc ? rc
		  : put_dispatch(moe, args->slot, DEVICE_SEND | DEVICE_RECEIVE, args, received,
			    SLOT_RECEIVED);
}

/* The tokens that come home. */
static uint32_t combined_tokens(const tern_moe *moe, const struct tern_combine *args)
{
	struct held_plan *plan;

	return args->plan && !device_plan_find(moe, args->plan, &plan)
		       ? plan->nr_tokens
		       : moe->slots[args->slot].nr_tokens;
}

/* Weights that come with the combine. */
static int check_late_weights(
	const tern_moe *moe, const struct tern_combine *args, const char *call)
{
	uint32_t nr_tokens = combined_tokens(moe, args);

	if (!moe->config.late_weights || args->topk_weights || args->unweighted || !nr_tokens)
		return 0;
	return fail(TERN_ERR_INVALID,
		"%s: neither topk_weights nor unweighted for %u tokens; the exchange was made with "
		"late_weights",
		call, nr_tokens);
}

/* With a plan the slot has no round under way. */
static int check_combine(tern_moe *moe, const struct tern_combine *args, const char *call)
{
	enum slot_state wanted = SLOT_RECEIVED;
	struct held_plan *plan;
	int rc = device_look(moe);

	if (!rc && args->gated && (!moe->config.gate_rows || args->plan))
		rc = fail(TERN_ERR_INVALID,
			"%s: gated is %u, with gate_rows %u and plan %llu; it takes gate_rows, and "
			"no plan",
			call, args->gated, moe->config.gate_rows, (unsigned long long)args->plan);
	if (!rc && args->gated && moe->config.combine_dtype != TERN_BF16)
		rc = fail(TERN_ERR_UNSUPPORTED,
			"%s: gated is %u, with combine_dtype %d; a combine waits for tiles of "
			"results of BF16, %d",
			call, args->gated, (int)moe->config.combine_dtype, (int)TERN_BF16);
	if (!rc && args->plan && moe->slots[args->slot].state == SLOT_RECEIVED)
		rc = fail(TERN_ERR_INVALID,
			"%s: plan is %llu; the slot's round is of 0 (0: it was dispatched)", call,
			(unsigned long long)args->plan);
	if (args->plan) {
		rc = rc ? rc : device_plan_find(moe, args->plan, &plan);
		rc = rc ? rc : plan_check_placed(moe, args->plan, &plan->placed);
		wanted = SLOT_IDLE;
	}
	rc = rc ? rc : check_slot(moe, args->slot, wanted, call);
	rc = rc ? rc : arguments_y(moe, args, moe->slots[args->slot].nr_rows);
	rc = rc ? rc : check_late_weights(moe, args, call);
	rc = rc ? rc : device_check_reachable(moe, "y", args->y);
	rc = rc ? rc : device_check_reachable(moe, "topk_weights", args->topk_weights);
	rc = rc ? rc : device_check_reachable(moe, "floats", args->floats);
	return rc ? rc : device_check_reachable(moe, "out_floats", args->out_floats);
}

static int check_out(const tern_moe *moe, uint32_t nr_tokens, const void *out, size_t stride)
{
	int rc = arguments_out(moe, nr_tokens, out, stride);

	return rc ? rc : device_check_reachable(moe, "out", out);
}

static int put_combine(tern_moe *moe, uint32_t slot, uint32_t roles,
	const struct tern_combine *args, void *out, size_t stride, enum slot_state next)
{
	struct device_call call = device_call_of(moe, slot, roles);
	struct held_plan *plan = NULL;
	int rc = args && args->plan ? device_plan_find(moe, args->plan, &plan) : 0;

	if (rc)
		return rc;
	moe->device->busy = true;
	call.kept = plan ? plan->kept : NULL;
	rc = device_outcome(moe->device,
		moe->device->ops->combine(moe->device->exchange, &call, args, out, stride));
	if (rc)
		return rc;
	moe->slots[slot].state = next;
	moe->slots[slot].owed = moe->slots[slot].owed && next != SLOT_IDLE;
	moe->device->streams[slot].plan = NULL;
	if (plan)
		moe->slots[slot].nr_tokens = plan->nr_tokens;
	return 0;
}

int device_combine_send(tern_moe *moe, const struct tern_combine *args)
{
	int rc = check_combine(moe, args, "tern_combine_send");

	return rc ? rc : put_combine(moe, args->slot, DEVICE_SEND, args, NULL, 0, SLOT_COMBINED);
}

int device_combine_recv(tern_moe *moe, uint32_t slot, void *out, size_t out_stride)
{
	int rc = check_slot(moe, slot, SLOT_COMBINED, "tern_combine_recv");

	rc = rc ? rc : check_out(moe, moe->slots[slot].nr_tokens, out, out_stride);
	return rc ? rc : put_combine(moe, slot, DEVICE_RECEIVE, NULL, out, out_stride, SLOT_IDLE);
}

int device_combine(tern_moe *moe, const struct tern_combine *args, void *out, size_t out_stride)
{
	int rc = check_combine(moe, args, "tern_combine");

	rc = rc ? rc : check_out(moe, combined_tokens(moe, args), out, out_stride);
	return rc ? rc
		  : put_combine(moe, args->slot, DEVICE_SEND | DEVICE_RECEIVE, args, out,
			    out_stride, SLOT_IDLE);
}

/* The kernel waits for everybody's word itself, so the slot is free behind it. */
int device_release(tern_moe *moe, uint32_t slot)
{
	struct device_call call;
	int rc = check_slot(moe, slot, SLOT_RECEIVED, "tern_release");

	if (rc)
		return rc;
	call = device_call_of(moe, slot, DEVICE_SEND | DEVICE_RECEIVE);
	rc = device_outcome(moe->device, moe->device->ops->release(moe->device->exchange, &call));
	if (rc)
		return rc;
	moe->slots[slot].state = SLOT_IDLE;
	moe->slots[slot].owed = false;
	moe->device->streams[slot].plan = NULL;
	return 0;
}
