/* SPDX-License-Identifier: Apache-2.0 */
/* A layer's experts as the host keeps them for their kernels: what these are told of weights and
 * rows, made anew only where rows lie elsewhere than in the last call. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "gpu/cuda/exchange_inside.h"
#include "gpu/cuda/layer/gemm.h"

/* If all ranks send as many tokens. Of a rank: with more, clusters cost gate and up 1 to 5 %. */
#define MOST_CLUSTERED_ROWS 2048
/* Of an expert, in bf16: with more, down's tiles that share weights are better side by side, unless
 * they are short, of few bytes of h. In fp8 down's are drawn always, and gate and up's from so many
 * rows on where blocks have several: rows are then whole tiles and a rest
 * (docs/notebook/gpu-layer-time.md). */
#define MOST_DRAWN_ROWS 96
#define MOST_SHORT_BYTES 1024
#define LEAST_DRAWN_ROWS 128
#define LEAST_DRAWN_TILES 2 /* a block */

struct prepared {
	struct device_layer_rows rows; /* all zeros: nothing */
	struct layer_args args[2];     /* enum layer_which */
	bool half; /* gate and up may have been launched, and counted, without down */
};

struct device_layer {
	struct device_exchange *exchange;
	struct tern_layer_config config;
	struct layer_shape shape;
	uint32_t nr_sms;
	int clusters_fit;
	struct layer_words *words; /* [nr_slots] */
	struct prepared *slots;    /* [nr_slots] */
};

/* ---- what the kernels can do ----------------------------------------------------------------- */

static int check_kinds(const struct tern_moe_config *c)
{
	if (c->dispatch_dtype != TERN_BF16 && c->dispatch_dtype != TERN_FP8_E4M3)
		return fail(TERN_ERR_UNSUPPORTED,
			"dispatch_dtype is %d; a layer's kernels take TERN_BF16, %d, and "
			"TERN_FP8_E4M3, %d",
			(int)c->dispatch_dtype, (int)TERN_BF16, (int)TERN_FP8_E4M3);
	if (c->combine_dtype != TERN_BF16)
		return fail(TERN_ERR_UNSUPPORTED,
			"combine_dtype is %d; a layer's kernels write TERN_BF16, %d",
			(int)c->combine_dtype, (int)TERN_BF16);
	return 0;
}

static int check_sizes(
	const struct tern_moe_config *c, const struct tern_layer_config *layer, uint32_t nr_local)
{
	bool scaled = c->dispatch_dtype == TERN_FP8_E4M3;
	/* A received row's scales lie as they are copied, without gaps. */
	uint32_t hidden = scaled ? SCALE_BLOCK * SCALES_AT_ONCE : 8,
		 inner = scaled ? SCALE_BLOCK : 8;

	if (c->hidden % hidden || layer->inner % inner)
		return fail(TERN_ERR_UNSUPPORTED,
			"hidden is %u and inner %u; a layer's kernels take multiples of %u and %u",
			c->hidden, layer->inner, hidden, inner);
	if (nr_local > LAYER_EXPERTS_MAX)
		return fail(TERN_ERR_UNSUPPORTED,
			"this rank has %u experts; a layer's kernels take %u", nr_local,
			LAYER_EXPERTS_MAX);
	return 0;
}

static int check_device(const struct device_exchange *x)
{
	struct cudaDeviceProp prop;
	int rc = cuda_check(cudaGetDeviceProperties(&prop, x->device), "cudaGetDeviceProperties");

	if (rc || layer_load() == cudaSuccess)
		return rc;
	return fail(TERN_ERR_UNSUPPORTED,
		"%s is of compute capability %d.%d, or the library was built without code for it; "
		"a layer's kernels are for 9.0 (sm_90a)",
		prop.name, prop.major, prop.minor);
}

/* ---- life ------------------------------------------------------------------------------------ */

static int make_words(struct device_layer *l)
{
	size_t bytes = l->exchange->config.nr_slots * sizeof(*l->words);
	int rc = cuda_check(cudaMalloc((void **)&l->words, bytes), "cudaMalloc of a layer's words");

	return rc ? rc
		  : cuda_check(cudaMemset(l->words, 0, bytes), "cudaMemset of a layer's words");
}

int device_layer_open(struct device_exchange *x, const struct tern_layer_config *config,
	struct device_layer **out)
{
	struct device_layer *l;
	uint32_t nr_local = x->slots[0].dispatch.exchange.nr_local;
	int nr_sms = 0, rc = device_check_current(x);

	rc = rc ? rc : check_kinds(&x->config);
	rc = rc ? rc : check_sizes(&x->config, config, nr_local);
	rc = rc ? rc : check_device(x);
	rc = rc ? rc
		: cuda_check(cudaDeviceGetAttribute(
				     &nr_sms, cudaDevAttrMultiProcessorCount, x->device),
			  "cudaDeviceGetAttribute");
	if (rc)
		return rc;
	l = calloc(1, sizeof(*l));
	if (l)
		l->slots = aligned_alloc(64, x->config.nr_slots * sizeof(*l->slots));
	if (!l || !l->slots) {
		free(l);
		return fail(TERN_ERR_NOMEM, "no memory for a layer");
	}
	memset(l->slots, 0, x->config.nr_slots * sizeof(*l->slots));
	l->exchange = x;
	l->config = *config;
	l->nr_sms = (uint32_t)nr_sms;
	l->shape = (struct layer_shape){
		.dtype = x->config.dispatch_dtype == TERN_FP8_E4M3 ? LAYER_FP8 : LAYER_BF16,
		.experts = nr_local,
		.hidden = x->config.hidden,
		.inner = config->inner,
		.rows_max = x->positions};
	l->clusters_fit = layer_clusters_fit(l->nr_sms);
	rc = make_words(l);
	if (rc)
		device_layer_close(l);
	else
		*out = l;
	return rc;
}

void device_layer_close(struct device_layer *l)
{
	(void)cudaFree(l->words);
	free(l->slots);
	free(l);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static int prepare(const struct device_layer *l, const struct device_layer_rows *r,
	enum layer_which which, struct layer_args *args)
{
	bool gate_up = which == LAYER_GATE_UP, scaled = l->shape.dtype == LAYER_FP8;
	struct layer_rows by_expert = {.counts = r->counts, .offsets = r->offsets};
	struct layer_product product = {.rows = gate_up ? r->x : r->h,
		.rows_scales = gate_up ? r->x_scales : r->h_scales,
		.weights = gate_up ? l->config.gate_up : l->config.down,
		.weights_scales = gate_up ? l->config.gate_up_scales : l->config.down_scales,
		.out = gate_up ? r->h : r->y,
		.out_scales = gate_up && scaled ? r->h_scales : NULL};
	const char *cause = layer_prepare(which, &l->shape, &by_expert, &product, args);

	if (cause)
		return fail(TERN_ERR_UNSUPPORTED, "a layer's kernels: %s", cause);
	args->activation = l->config.activation == TERN_SWIGLU ? LAYER_SWIGLU : LAYER_LINEAR;
	return 0;
}

static int prepare_slot(
	struct device_layer *l, struct prepared *p, const struct device_layer_rows *r)
{
	int rc;

	if (!memcmp(&p->rows, r, sizeof(*r)))
		return 0;
	memset(&p->rows, 0, sizeof(p->rows));
	rc = prepare(l, r, LAYER_GATE_UP, &p->args[LAYER_GATE_UP]);
	rc = rc ? rc : prepare(l, r, LAYER_DOWN, &p->args[LAYER_DOWN]);
	if (!rc)
		p->rows = *r;
	return rc;
}

/* This rank's rows, if all ranks send as many tokens. */
static uint64_t expected_rows(const struct device_exchange *x, uint32_t slot)
{
	return (uint64_t)x->slots[slot].dispatch.nr_tokens * x->config.topk;
}

static bool draws_down(const struct layer_shape *shape, uint64_t rows)
{
	return shape->dtype == LAYER_FP8 || rows <= (uint64_t)shape->experts * MOST_DRAWN_ROWS ||
	       shape->inner * 2 <= MOST_SHORT_BYTES;
}

static bool draws_gate_up(const struct device_layer *l, uint64_t rows)
{
	uint64_t tiles = rows / 128 * ((l->shape.inner + 127) / 128);

	return l->shape.dtype == LAYER_FP8 &&
	       rows >= (uint64_t)l->shape.experts * LEAST_DRAWN_ROWS &&
	       tiles >= (uint64_t)l->nr_sms * LEAST_DRAWN_TILES;
}

/* Clusters keep blocks of an early kernel side by side, as those of others are anyway. Gate and up
 * that is early, and waits for the dispatch's end, begins 1 us sooner and takes up to a tenth
 * longer (docs/notebook/gpu-layer-time.md). */
static int put_products(const struct device_layer *l, struct prepared *p,
	const struct device_call *call, bool beside)
{
	uint64_t rows = expected_rows(l->exchange, call->slot);
	bool early = l->exchange->early;
	const struct layer_grid gate_up = {.blocks = l->nr_sms,
		.early = early && beside,
		.drawn = beside || draws_gate_up(l, rows),
		.clusters = l->clusters_fit && rows <= MOST_CLUSTERED_ROWS && !beside};
	const struct layer_grid down = {.blocks = l->nr_sms,
		.early = early,
		.drawn = draws_down(&l->shape, rows),
		.clusters = l->clusters_fit && early};
	struct layer_words *words = p->args[LAYER_DOWN].words;
	int rc = p->half ? cuda_check(cudaMemsetAsync(words, 0, sizeof(*words), call->stream),
				   "cudaMemsetAsync of a layer's words")
			 : 0;

	p->half = true;
	rc = rc ? rc
		: cuda_check(layer_launch(LAYER_GATE_UP, l->shape.dtype, &p->args[LAYER_GATE_UP],
				     &gate_up, call->stream),
			  "the kernel of gate and up");
	rc = rc ? rc
		: cuda_check(layer_launch(LAYER_DOWN, l->shape.dtype, &p->args[LAYER_DOWN], &down,
				     call->stream),
			  "the kernel of down");
	p->half = rc != 0;
	return rc;
}

int device_layer_run(struct device_layer *l, const struct device_call *call,
	const struct device_layer_rows *rows, bool beside)
{
	struct prepared *p = &l->slots[call->slot];
	struct tern_gate *gate = &p->args[LAYER_GATE_UP].gate;
	int rc = device_check_current(l->exchange);

	if (rc || !l->shape.experts)
		return rc;
	rc = prepare_slot(l, p, rows);
	memset(gate, 0, sizeof(*gate));
	if (beside)
		device_exchange_gate(l->exchange, call->slot, call->wait_ns, gate);
	for (int which = 0; which < 2; which++)
		p->args[which].words = l->words + call->slot;
#ifdef TERN_TRACE
	for (int which = 0; which < 2; which++)
		p->args[which].marks = l->exchange->layer_trace[which];
#endif
	return rc ? rc : put_products(l, p, call, beside);
}
