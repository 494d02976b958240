/* SPDX-License-Identifier: Apache-2.0 */
/* A layer's experts in plain loops, one row after the other. Sums of a block of 128 are made by
 * themselves and scaled, as the kernels for devices do it. */
#include "exchange/cpu/layer.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/trace.h"
#include "base/private_memory.h"
#include "exchange/cpu/kernels/convert.h"
#include "exchange/cpu/kernels/kernels.h"

struct cpu_layer {
	uint32_t hidden, inner;
	float *x, *h, *up; /* [H], [I], [I]: a row, and what it becomes */
	float *h_scales;   /* [ceil(I/128)] */
	uint8_t *elements; /* [I] */
	float e4m3[256];
};

/* One expert's rows of weights, K elements each. */
struct matrix {
	enum tern_dtype dtype;
	uint32_t k;
	const uint8_t *rows;
	const float *scales; /* [ceil(rows/128)][ceil(K/128)], or NULL */
};

static uint32_t blocks_of(uint32_t n)
{
	return (n + SCALE_BLOCK - 1) / SCALE_BLOCK;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static float load(const struct cpu_layer *l, enum tern_dtype dtype, const uint8_t *from, uint32_t i)
{
	uint16_t half;
	float whole;

	if (dtype == TERN_FP8_E4M3)
		return l->e4m3[from[i]];
	if (dtype == TERN_FP32) {
		memcpy(&whole, from + (size_t)i * 4, 4);
		return whole;
	}
	memcpy(&half, from + (size_t)i * 2, 2);
	return dtype == TERN_BF16 ? bf16_to_float(half) : fp16_to_float(half);
}

static void store(enum tern_dtype dtype, float value, uint8_t *to, uint32_t i)
{
	uint16_t half = dtype == TERN_BF16 ? float_to_bf16(value) : float_to_fp16(value);

	if (dtype == TERN_FP32)
		memcpy(to + (size_t)i * 4, &value, 4);
	else
		memcpy(to + (size_t)i * 2, &half, 2);
}

static float dot(const struct cpu_layer *l, const struct matrix *m, uint32_t row, const float *x,
	const float *x_scales)
{
	const uint8_t *w = m->rows + (uint64_t)row * m->k * dtype_bytes(m->dtype);
	const float *scales =
		m->scales ? m->scales + (uint64_t)(row / SCALE_BLOCK) * blocks_of(m->k) : NULL;
	float sum = 0;

	for (uint32_t b = 0; b * SCALE_BLOCK < m->k; b++) {
		uint32_t end = (b + 1) * SCALE_BLOCK < m->k ? (b + 1) * SCALE_BLOCK : m->k;
		float part = scales ? 0 : sum;

		for (uint32_t i = b * SCALE_BLOCK; i < end; i++)
			part += x[i] * load(l, m->dtype, w, i);
		sum = scales ? sum + part * (x_scales[b] * scales[b]) : part;
	}
	return sum;
}

/* h as the second product reads it. */
static void round_h(struct cpu_layer *l, enum tern_dtype dtype)
{
	uint8_t one[4];

	if (dtype == TERN_FP8_E4M3) {
		quantise_row(l->h, TERN_FP32, l->inner, TERN_SCALE_FP32, l->elements, l->h_scales);
		for (uint32_t i = 0; i < l->inner; i++)
			l->h[i] = l->e4m3[l->elements[i]];
		return;
	}
	for (uint32_t i = 0; i < l->inner; i++) {
		store(dtype, l->h[i], one, 0);
		l->h[i] = load(l, dtype, one, 0);
	}
}

/* ---- rows ------------------------------------------------------------------------------------ */

static struct matrix matrix_of(const struct tern_layer *layer, uint32_t expert, int which)
{
	const struct tern_layer_config *c = &layer->config;
	uint32_t hidden = layer->moe->config.hidden, inner = c->inner;
	enum tern_dtype dtype = layer->moe->config.dispatch_dtype;
	uint64_t bytes = (uint64_t)hidden * inner * dtype_bytes(dtype),
		 scales = (uint64_t)blocks_of(hidden) * blocks_of(inner);
	const uint8_t *weights = which < 2 ? c->gate_up : c->down;
	const float *all = which < 2 ? c->gate_up_scales : c->down_scales;
	uint64_t at = which < 2 ? 2 * (uint64_t)expert + (uint32_t)which : expert;

	return (struct matrix){.dtype = dtype,
		.k = which < 2 ? hidden : inner,
		.rows = weights + at * bytes,
		.scales = all ? all + at * scales : NULL};
}

static void compute_row(const struct tern_layer *layer, const struct matrix m[3], const uint8_t *x,
	const float *x_scales, uint8_t *y)
{
	struct cpu_layer *l = layer->inside;
	bool linear = layer->config.activation == TERN_LINEAR_GATED;

	for (uint32_t i = 0; i < l->hidden; i++)
		l->x[i] = load(l, m[0].dtype, x, i);
	for (uint32_t i = 0; i < l->inner; i++) {
		float gate = dot(l, &m[0], i, l->x, x_scales);

		l->up[i] = dot(l, &m[1], i, l->x, x_scales);
		l->h[i] = linear ? gate : gate / (1 + expf(-gate));
		l->h[i] *= l->up[i];
	}
	round_h(l, m[0].dtype);
	for (uint32_t i = 0; i < l->hidden; i++)
		store(layer->moe->config.combine_dtype, dot(l, &m[2], i, l->h, l->h_scales), y, i);
}

int cpu_layer_experts(
	struct tern_layer *layer, uint32_t slot, const struct tern_received *received, void *y)
{
	const tern_moe *moe = layer->moe;
	const struct layout *l = &moe->layout;

	(void)slot;
	TRACE(TRACE_EXPERTS, TRACE_NOBODY);
	for (uint32_t e = 0; e < moe->nr_local; e++) {
		struct matrix m[3];

		for (int which = 0; which < 3; which++)
			m[which] = matrix_of(layer, e, which);
		for (uint64_t i = 0; i < received->counts[e]; i++) {
			uint64_t at = received->offsets[e] + i;
			const float *scales = received->scales;

			compute_row(layer, m, (const uint8_t *)received->x + at * l->payload_bytes,
				scales ? scales + at * blocks_of(moe->config.hidden) : NULL,
				(uint8_t *)y + at * l->combine_row_bytes);
		}
	}
	return 0;
}

/* ---- life ------------------------------------------------------------------------------------ */

int cpu_layer_open(struct tern_layer *layer)
{
	struct cpu_layer *l = calloc(1, sizeof(*l));
	uint32_t hidden = layer->moe->config.hidden, inner = layer->config.inner;

	layer->inside = l;
	if (!l)
		return fail(TERN_ERR_NOMEM, "no memory for a layer");
	l->hidden = hidden;
	l->inner = inner;
	l->x = calloc(hidden, sizeof(*l->x));
	l->h = calloc(inner, sizeof(*l->h));
	l->up = calloc(inner, sizeof(*l->up));
	l->h_scales = calloc(blocks_of(inner), sizeof(*l->h_scales));
	l->elements = calloc(inner, sizeof(*l->elements));
	for (uint32_t code = 0; code < 256; code++)
		l->e4m3[code] = e4m3_to_float((uint8_t)code);
	return l->x && l->h && l->up && l->h_scales && l->elements
		       ? 0
		       : fail(TERN_ERR_NOMEM, "no memory for a row of %u and %u elements", hidden,
				 inner);
}

void cpu_layer_close(struct tern_layer *layer)
{
	struct cpu_layer *l = layer->inside;

	if (!l)
		return;
	free(l->x);
	free(l->h);
	free(l->up);
	free(l->h_scales);
	free(l->elements);
	free(l);
}

int cpu_layer_room_open(tern_moe *moe, struct layer_room *room)
{
	room->slot_bytes = moe->layout.positions * moe->layout.combine_row_bytes;
	for (uint32_t slot = 0; slot < moe->config.nr_slots; slot++) {
		room->slots[slot] = private_map(room->slot_bytes, PRIVATE_DENSE);
		if (!room->slots[slot])
			return fail(TERN_ERR_NOMEM, "no address space for %llu bytes of y",
				(unsigned long long)room->slot_bytes);
	}
	return 0;
}

void cpu_layer_room_close(tern_moe *moe, struct layer_room *room)
{
	for (uint32_t slot = 0; slot < moe->config.nr_slots; slot++)
		if (room->slots[slot])
			private_unmap(room->slots[slot], room->slot_bytes);
}

void *cpu_layer_lend(struct tern_layer *layer, uint32_t slot)
{
	return layer->room->slots[slot];
}
