/* SPDX-License-Identifier: Apache-2.0 */
#include "testkit/layer.h"
#include "testkit/convert.h"
#include "testkit/layer_values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_COMPARED 64 /* tokens of a round */

/* One rank's view of a round, and what one row passes through. */
struct plain {
	const struct job *job;
	uint32_t hidden, inner;
	bool scaled, swiglu;
	float *x, *h, *y, *partial, *sum;
	float *x_scales, *h_scales;
	uint8_t *elements;
};

void layer_exact_x(const struct job *job, uint64_t round, uint32_t rank, uint16_t *x)
{
	uint32_t n = job_nr_tokens(job, round, rank), hidden = job->config.hidden;

	for (uint32_t t = 0; t < n; t++)
		for (uint32_t i = 0; i < hidden; i++)
			x[(size_t)t * hidden + i] = bf16_encode(layer_x_of(round, rank, t, i));
}

/* What arrives: elements with their scales, or the values themselves. */
static void quantise(struct plain *p, float *values, uint32_t n, float *scales)
{
	if (!p->scaled) {
		for (uint32_t i = 0; i < n; i++)
			values[i] = bf16_decode(bf16_encode(values[i]));
		return;
	}
	reference_quantise(TERN_SCALE_FP32, values, n, p->elements, scales);
	for (uint32_t i = 0; i < n; i++)
		values[i] = e4m3_decode(p->elements[i]);
}

/* No block has two terms, so that products of blocks are single ones. */
static float row_of(const struct plain *p, enum layer_matrix matrix, uint32_t expert, uint32_t row,
	const float *v, const float *scales, uint32_t k)
{
	uint32_t nr = layer_nr_terms(matrix, row, k);
	float sum = 0;

	for (uint32_t i = 0; i < nr; i++) {
		struct layer_term t = layer_term_of(matrix, expert, row, k, i);
		uint32_t block = t.at / LAYER_BLOCK;
		float scale = p->scaled ? scales[block] * layer_scale_of(matrix, expert,
								  row / LAYER_BLOCK, block)
					: 1;

		sum += v[t.at] * t.value * scale;
	}
	return sum;
}

/* y of the expert, rounded, of the token whose x stands in p. */
static void expert_of(struct plain *p, uint32_t expert)
{
	for (uint32_t i = 0; i < p->inner; i++) {
		float gate = row_of(p, LAYER_GATE, expert, i, p->x, p->x_scales, p->hidden);

		if (p->swiglu)
			gate /= 1 + expf(-gate);
		p->h[i] = gate * row_of(p, LAYER_UP, expert, i, p->x, p->x_scales, p->hidden);
	}
	quantise(p, p->h, p->inner, p->h_scales);
	for (uint32_t i = 0; i < p->hidden; i++)
		p->y[i] = bf16_decode(
			bf16_encode(row_of(p, LAYER_OUT, expert, i, p->h, p->h_scales, p->inner)));
}

static uint32_t rank_of(const struct job *job, uint32_t expert)
{
	uint32_t whole = job->config.nr_experts / job->nr_ranks,
		 more = job->config.nr_experts % job->nr_ranks;

	return expert < more * (whole + 1) ? expert / (whole + 1)
					   : more + (expert - more * (whole + 1)) / whole;
}

/* Sums of a rank's routes in k order, rounded for the way; sums of ranks in their order. */
static void token_of(struct plain *p, uint64_t round, uint32_t home, uint32_t token,
	const int32_t *ids, const float *weights)
{
	const struct job *job = p->job;
	bool at_home = job->config.reduce == TERN_REDUCE_HOME;

	for (uint32_t i = 0; i < p->hidden; i++)
		p->x[i] = layer_x_of(round, home, token, i);
	quantise(p, p->x, p->hidden, p->x_scales);
	memset(p->sum, 0, p->hidden * sizeof(float));
	for (uint32_t rank = 0; rank < (at_home ? 1 : job->nr_ranks); rank++) {
		memset(p->partial, 0, p->hidden * sizeof(float));
		for (uint32_t k = 0; k < job->config.topk; k++) {
			if (ids[k] < 0 || (!at_home && rank_of(job, (uint32_t)ids[k]) != rank))
				continue;
			expert_of(p, (uint32_t)ids[k]);
			for (uint32_t i = 0; i < p->hidden; i++)
				p->partial[i] += weights[k] * p->y[i];
		}
		for (uint32_t i = 0; i < p->hidden; i++)
			p->sum[i] +=
				at_home ? p->partial[i] : bf16_decode(bf16_encode(p->partial[i]));
	}
}

static void compare_row(const struct plain *p, uint64_t round, uint32_t rank, uint32_t token,
	const uint16_t *out, struct difference *difference)
{
	for (uint32_t i = 0; i < p->hidden; i++) {
		uint16_t right = bf16_encode(p->sum[i]);

		if (out[i] == right || difference->nr++)
			continue;
		snprintf(difference->first, sizeof(difference->first),
			"layer, round %llu: rank %u, token %u, element %u is %#x (%g), not %#x "
			"(%g)",
			(unsigned long long)round, rank, token, i, out[i],
			(double)bf16_decode(out[i]), right, (double)bf16_decode(right));
	}
}

static bool plain_open(struct plain *p, const struct job *job, uint32_t inner)
{
	uint32_t hidden = job->config.hidden, most = hidden > inner ? hidden : inner;

	*p = (struct plain){.job = job,
		.hidden = hidden,
		.inner = inner,
		.scaled = job->config.dispatch_dtype == TERN_FP8_E4M3};
	p->x = calloc(7 * (size_t)most, sizeof(float));
	p->elements = calloc(most, 1);
	if (!p->x || !p->elements)
		return false;
	p->h = p->x + most;
	p->y = p->h + most;
	p->partial = p->y + most;
	p->sum = p->partial + most;
	p->x_scales = p->sum + most;
	p->h_scales = p->x_scales + most;
	return true;
}

static void add_distance(const struct plain *p, const uint16_t *out, double far[2])
{
	for (uint32_t i = 0; i < p->hidden; i++) {
		double right = (double)p->sum[i], d = (double)bf16_decode(out[i]) - right;

		far[0] += d * d;
		far[1] += right * right;
	}
}

/* far NULL: every bit. */
static int compare(const struct job *job, uint32_t inner, uint64_t round, uint32_t rank,
	const uint16_t *out, struct difference *difference, double *far)
{
	uint32_t n = job_nr_tokens(job, round, rank), topk = job->config.topk, nr = 0;
	uint32_t step = (n + MOST_COMPARED - 1) / MOST_COMPARED;
	int32_t *ids = calloc((size_t)n * topk + 1, sizeof(*ids));
	float *weights = calloc((size_t)n * topk + 1, sizeof(*weights));
	struct plain p = {0};
	bool open = ids && weights && plain_open(&p, job, inner);

	p.swiglu = far != NULL;
	if (open)
		job_routes(job, round, rank, ids, weights);
	for (uint32_t t = 0; open && t < n; t += step, nr++) {
		const uint16_t *row = out + (size_t)t * p.hidden;

		token_of(&p, round, rank, t, ids + (size_t)t * topk, weights + (size_t)t * topk);
		if (far)
			add_distance(&p, row, far);
		else
			compare_row(&p, round, rank, t, row, difference);
	}
	free(p.x);
	free(p.elements);
	free(ids);
	free(weights);
	return open ? (int)nr : TERN_ERR_NOMEM;
}

int layer_compare(const struct job *job, uint32_t inner, uint64_t round, uint32_t rank,
	const uint16_t *out, struct difference *difference)
{
	return compare(job, inner, round, rank, out, difference, NULL);
}

int layer_distance(const struct job *job, uint32_t inner, uint64_t round, uint32_t rank,
	const uint16_t *out, double far[2])
{
	return compare(job, inner, round, rank, out, NULL, far);
}
