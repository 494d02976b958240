/* SPDX-License-Identifier: Apache-2.0 */
/* Plans that outlive their round: their memory, and their kernels put on streams. Nothing here
 * waits for a kernel: kernels wait for other ranks, which may wait for this one. So memory of plans
 * that are gone is kept for others, which get it when its last kernels have ended; what graphs
 * hold, which may be replayed at any time, stays until the exchange goes. */
#include <stdlib.h>

#include "base/error.h"
#include "gpu/cuda/exchange_inside.h"
#include "gpu/cuda/plans/kernels.h"

#define PLAN_BLOCKS 32 /* beginning a combine takes no more */

struct device_kept {
	struct device_kept *next;
	uint8_t *memory;
	uint64_t bytes;
	uint32_t nr_tokens;
	bool spare;                  /* its plan is gone */
	bool captured;               /* by a graph */
	cudaEvent_t used[MAX_SLOTS]; /* behind the last kernel of a slot; NULL: not made yet */
	bool pending[MAX_SLOTS];     /* it has not been seen to have ended */
};

static struct gpu_kept_layout layout_of(const struct device_exchange *x, uint32_t nr_tokens)
{
	const struct gpu_exchange *e = &x->slots[0].dispatch.exchange;

	return gpu_kept_layout_of(
		e->nr_ranks, e->max_tokens, e->topk, nr_tokens, x->config.mode == TERN_LOW_LATENCY);
}

static struct gpu_kept kept_of(const struct device_exchange *x, const struct device_slot *s,
	const struct device_kept *kept)
{
	struct gpu_kept_layout at = layout_of(x, kept->nr_tokens);

	return (struct gpu_kept){.state = (struct gpu_kept_state *)(kept->memory + at.state),
		.ids = (int32_t *)(kept->memory + at.ids),
		.weights = (float *)(kept->memory + at.weights),
		.home_routes = (uint2 *)(kept->memory + at.home_routes),
		.numbers = (uint32_t *)(kept->memory + at.numbers),
		.row_tokens = (uint32_t *)(kept->memory + at.row_tokens),
		.row_routes = (uint2 *)(kept->memory + at.row_routes),
		.own_positions = (uint32_t *)(kept->memory + at.own_positions),
		.heads = (uint4 *)(kept->memory + at.heads),
		.low = x->config.mode == TERN_LOW_LATENCY,
		.local_ids =
			x->config.mode == TERN_LOW_LATENCY && x->config.layout == TERN_BY_SOURCE
				? s->dispatch.out_ids
				: NULL};
}

/* ---- memory ---------------------------------------------------------------------------------- */

static bool is_free(struct device_kept *kept, uint64_t bytes)
{
	if (!kept->spare || kept->captured || kept->bytes < bytes)
		return false;
	for (uint32_t slot = 0; slot < MAX_SLOTS; slot++) {
		if (kept->pending[slot] && cudaEventQuery(kept->used[slot]) != cudaSuccess) {
			(void)cudaGetLastError(); /* that a kernel has not ended is none */
			return false;
		}
		kept->pending[slot] = false;
	}
	return true;
}

static void kept_free(struct device_kept *kept)
{
	for (uint32_t slot = 0; slot < MAX_SLOTS; slot++)
		if (kept->used[slot])
			(void)cudaEventDestroy(kept->used[slot]);
	(void)cudaFree(kept->memory);
	free(kept);
}

static int kept_alloc(struct device_exchange *x, uint64_t bytes, struct device_kept **out)
{
	struct device_kept *kept = calloc(1, sizeof(*kept));
	int rc =
		kept ? cuda_check(cudaMalloc((void **)&kept->memory, bytes), "cudaMalloc of a plan")
		     : fail(TERN_ERR_NOMEM, "no memory for a plan");

	if (rc) {
		free(kept);
		return rc;
	}
	kept->bytes = bytes;
	x->kept_bytes += bytes;
	*out = kept;
	return 0;
}

/* Who has not been taken for longest comes first: its kernels have most likely ended. */
static int kept_take(struct device_exchange *x, uint32_t nr_tokens, struct device_kept **out)
{
	uint64_t bytes = layout_of(x, nr_tokens).bytes;
	struct device_kept **at = &x->kept;
	int rc;

	while (*at && !is_free(*at, bytes))
		at = &(*at)->next;
	*out = *at;
	if (*out) {
		*at = (*out)->next;
	} else {
		rc = kept_alloc(x, bytes, out);
		if (rc)
			return rc;
	}
	while (*at)
		at = &(*at)->next;
	*at = *out;
	(*out)->next = NULL;
	(*out)->nr_tokens = nr_tokens;
	(*out)->spare = false;
	return 0;
}

/* Behind each of its kernels. */
int device_kept_used(struct device_kept *kept, const struct device_call *call)
{
	enum cudaStreamCaptureStatus status;
	int rc = cuda_check(cudaStreamIsCapturing(call->stream, &status), "cudaStreamIsCapturing");

	if (rc)
		return rc;
	if (status != cudaStreamCaptureStatusNone) {
		kept->captured = true;
		return 0;
	}
	if (!kept->used[call->slot])
		rc = cuda_check(
			cudaEventCreateWithFlags(&kept->used[call->slot], cudaEventDisableTiming),
			"cudaEventCreate of a plan");
	rc = rc ? rc
		: cuda_check(cudaEventRecord(kept->used[call->slot], call->stream),
			  "cudaEventRecord of a plan");
	kept->pending[call->slot] = !rc;
	return rc;
}

/* ---- what the host asks for ------------------------------------------------------------------ */

static uint32_t all_blocks_of(const struct device_exchange *x, const struct device_call *call)
{
	return call->nr_sms ? gpu_least(call->nr_sms, x->most_blocks) : x->most_blocks;
}

static uint32_t nr_blocks_of(const struct device_exchange *x, const struct device_call *call)
{
	return gpu_least(all_blocks_of(x, call), PLAN_BLOCKS);
}

static int keep(struct device_exchange *x, const struct device_call *call, uint32_t nr_tokens,
	const struct tern_plan_beside *beside, struct device_kept **kept)
{
	struct device_slot *s = &x->slots[call->slot];
	struct gpu_plan_beside told = {.nr_rows = beside->nr_rows,
		.wide_ids = beside->wide_ids,
		.tokens = beside->tokens,
		.topk_ids = beside->topk_ids};
	struct gpu_kept k;
	int rc = kept_take(x, nr_tokens, kept);

	if (rc)
		return rc;
	k = kept_of(x, s, *kept);
	rc = cuda_check(dispatch_keep_launch(&s->dispatch, &s->ht, &k, &told,
				all_blocks_of(x, call), call->stream),
		"the kernel that keeps a plan");
	rc = rc ? rc : device_kept_used(*kept, call);
	if (rc)
		device_kept_destroy(x, *kept);
	return rc;
}

/* While a stream is being captured, by whomever, memory and events are had by who says that he
 * knows what he does. */
int device_kept_create(struct device_exchange *x, const struct device_call *call,
	uint32_t nr_tokens, const struct tern_plan_beside *beside, struct device_kept **kept)
{
	enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
	int rc = device_check_current(x);

	rc = rc ? rc
		: cuda_check(cudaThreadExchangeStreamCaptureMode(&mode),
			  "cudaThreadExchangeStreamCaptureMode");
	if (rc)
		return rc;
	rc = keep(x, call, nr_tokens, beside, kept);
	(void)cudaThreadExchangeStreamCaptureMode(&mode);
	return rc;
}

void device_kept_destroy(struct device_exchange *x, struct device_kept *kept)
{
	(void)x;
	kept->spare = true;
}

uint64_t device_kept_bytes(const struct device_exchange *x)
{
	return x->kept_bytes;
}

void device_kept_close(struct device_exchange *x)
{
	while (x->kept) {
		struct device_kept *kept = x->kept;

		x->kept = kept->next;
		kept_free(kept);
	}
}

/* ---- rounds with a plan ---------------------------------------------------------------------- */

void device_kept_dispatch(
	const struct device_exchange *x, const struct device_kept *kept, struct gpu_dispatch *d)
{
	struct gpu_kept k = kept_of(x, &x->slots[0], kept);

	d->nr_tokens_at = &k.state->nr_tokens;
	d->topk_ids = k.ids;
	d->ids_64 = 0;
	d->topk_weights = k.weights;
}

int device_kept_combine(
	struct device_exchange *x, struct device_kept *kept, const struct device_call *call)
{
	struct device_slot *s = &x->slots[call->slot];
	struct gpu_kept k = kept_of(x, s, kept);

	s->dispatch.nr_tokens = kept->nr_tokens; /* by which launches are sized */
	s->combine.exchange.wait_ns = call->wait_ns;
	return cuda_check(
		combine_begin_launch(&s->combine, &s->ht, &k, nr_blocks_of(x, call), call->stream),
		"the kernel that begins a combine with a plan");
}
