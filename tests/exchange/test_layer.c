/* SPDX-License-Identifier: Apache-2.0 */
/* The experts of a layer on CPU ranks: every element where sums are exact, SwiGLU against fp64, and
 * what is refused. */
#include "tests/exchange/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "testkit/convert.h"
#include "testkit/layer.h"
#include "testkit/layer_values.h"
#include "tern_layer.h"

#define ROUNDS 3

struct shape {
	enum tern_dtype dtype;
	enum tern_mode mode;
	enum tern_layout layout;
	enum tern_reduce reduce;
	uint32_t hidden, inner, nr_experts, topk, nr_ranks;
};

static void make_job(struct job *job, const struct shape *s)
{
	job_init(job);
	job->nr_ranks = s->nr_ranks;
	job->nr_tokens = job->config.max_tokens = 7;
	job->config.hidden = s->hidden;
	job->config.nr_experts = s->nr_experts;
	job->config.topk = s->topk;
	job->config.mode = s->mode;
	job->config.layout = s->layout;
	job->config.reduce = s->reduce;
	job->config.dispatch_dtype = s->dtype;
	job->config.scale = s->dtype == TERN_FP8_E4M3 ? TERN_SCALE_FP32 : TERN_SCALE_NONE;
	job->routing.uneven = true;
	job->routing.drop = 0.1;
	job->input = INPUT_EXACT;
	assert_int_equal(job_open(job, NULL), 0);
}

/* ---- weights --------------------------------------------------------------------------------- */

struct weights {
	uint8_t *gate_up, *down;
	float *gate_up_scales, *down_scales;
};

static uint64_t blocks_of(uint32_t n)
{
	return (n + LAYER_BLOCK - 1) / LAYER_BLOCK;
}

static void put(enum tern_dtype dtype, uint8_t *row, struct layer_term t)
{
	uint16_t half = bf16_encode(t.value);

	if (dtype == TERN_FP8_E4M3)
		row[t.at] = e4m3_encode(t.value);
	else
		memcpy(row + 2 * (size_t)t.at, &half, 2);
}

static void fill_matrix(enum layer_matrix matrix, uint32_t expert, enum tern_dtype dtype,
	uint32_t rows, uint32_t k, uint8_t *to, float *scales)
{
	size_t bytes = dtype == TERN_FP8_E4M3 ? k : 2 * (size_t)k;

	for (uint32_t row = 0; row < rows; row++)
		for (uint32_t i = 0; i < layer_nr_terms(matrix, row, k); i++)
			put(dtype, to + row * bytes, layer_term_of(matrix, expert, row, k, i));
	for (uint32_t b = 0; b < blocks_of(rows) && scales; b++)
		for (uint32_t c = 0; c < blocks_of(k); c++)
			scales[b * blocks_of(k) + c] = layer_scale_of(matrix, expert, b, c);
}

static void weights_open(struct weights *w, const struct job *job, uint32_t inner, tern_moe *moe)
{
	uint32_t hidden = job->config.hidden, nr = (uint32_t)tern_moe_nr_local(moe);
	enum tern_dtype dtype = job->config.dispatch_dtype;
	bool scaled = dtype == TERN_FP8_E4M3;
	size_t bytes = (size_t)hidden * inner * (scaled ? 1 : 2),
	       scales = blocks_of(hidden) * blocks_of(inner);

	w->gate_up = calloc(nr + 1, 2 * bytes);
	w->down = calloc(nr + 1, bytes);
	w->gate_up_scales = scaled ? calloc(nr + 1, 2 * scales * sizeof(float)) : NULL;
	w->down_scales = scaled ? calloc(nr + 1, scales * sizeof(float)) : NULL;
	for (uint32_t e = 0; e < nr; e++) {
		uint32_t expert = (uint32_t)tern_moe_local_expert(moe, e);

		for (uint32_t m = 0; m < 2; m++)
			fill_matrix(m, expert, dtype, inner, hidden,
				w->gate_up + (2 * e + m) * bytes,
				scaled ? w->gate_up_scales + (2 * e + m) * scales : NULL);
		fill_matrix(LAYER_OUT, expert, dtype, hidden, inner, w->down + e * bytes,
			scaled ? w->down_scales + e * scales : NULL);
	}
}

static void weights_close(struct weights *w)
{
	free(w->gate_up);
	free(w->down);
	free(w->gate_up_scales);
	free(w->down_scales);
}

static int layer_open(tern_moe *moe, const struct weights *w, uint32_t inner,
	enum tern_activation activation, tern_layer **layer)
{
	struct tern_layer_config config;

	tern_layer_config_init(&config);
	config.inner = inner;
	config.activation = activation;
	config.gate_up = w->gate_up;
	config.down = w->down;
	config.gate_up_scales = w->gate_up_scales;
	config.down_scales = w->down_scales;
	return tern_layer_create(moe, &config, layer);
}

/* ---- exact ----------------------------------------------------------------------------------- */

struct case_of {
	const struct shape *shape;
	const struct job *job;
};

/* By tern_layer_run, and in the three calls with y of the caller's. */
static int run_layer(struct rank *rank, tern_moe *moe, tern_layer *layer, const struct job *job,
	uint64_t round, uint16_t *out)
{
	struct tern_received received = {.size = sizeof(received)};
	struct tern_dispatch d = {.size = sizeof(d)};
	struct tern_combine c = {.size = sizeof(c)};
	uint32_t n = job_nr_tokens(job, round, (uint32_t)rank->rank), topk = job->config.topk;
	uint16_t *x = calloc(n * (size_t)job->config.hidden + 8, sizeof(*x));
	int32_t *ids = calloc(n * (size_t)topk + 1, sizeof(*ids));
	float *weights = calloc(n * (size_t)topk + 1, sizeof(*weights));
	void *y = NULL;
	int rc;

	layer_exact_x(job, round, (uint32_t)rank->rank, x);
	job_routes(job, round, (uint32_t)rank->rank, ids, weights);
	d.nr_tokens = n;
	d.x = x;
	d.topk_ids = ids;
	d.topk_weights = weights;
	if (round % 2) {
		rc = tern_layer_run(layer, &d, out, 0);
	} else {
		rc = tern_dispatch(moe, &d, &received);
		y = aligned_alloc(16, (received.extent + 1) * job_y_bytes(job));
		rc = rc ? rc : tern_layer_experts(layer, 0, &received, y);
		c.y = y;
		rc = rc ? rc : tern_combine(moe, &c, out, 0);
	}
	free(x);
	free(ids);
	free(weights);
	free(y);
	return rc ? rank_fails(rank, "round %d: %s", (int)round, tern_last_error()) : 0;
}

static void exact_body(struct rank *rank)
{
	const struct case_of *of = rank->ctx;
	const struct job *job = of->job;
	uint16_t *out = calloc(job->config.max_tokens + 1, job_y_bytes(job));
	struct difference difference = {0};
	struct weights w = {0};
	tern_layer *layer = NULL;
	tern_moe *moe = NULL;
	int rc = tern_moe_create(rank->group, &job->config, &moe);

	if (!rc)
		weights_open(&w, job, of->shape->inner, moe);
	rc = rc ? rc : layer_open(moe, &w, of->shape->inner, TERN_LINEAR_GATED, &layer);
	if (rc)
		rank_fails(rank, "%s", tern_last_error());
	for (uint64_t round = 0; round < ROUNDS && !rc; round++) {
		rc = run_layer(rank, moe, layer, job, round, out);
		if (!rc && layer_compare(job, of->shape->inner, round, (uint32_t)rank->rank, out,
				   &difference) < 0)
			rc = rank_fails(rank, "no memory");
	}
	if (difference.nr)
		rank_fails(rank, "%s", difference.first);
	tern_layer_destroy(layer);
	tern_moe_destroy(moe);
	weights_close(&w);
	free(out);
}

static void exact(void **state)
{
	static const struct shape shapes[] = {{TERN_FP8_E4M3, TERN_LOW_LATENCY, TERN_CONTIGUOUS,
						      TERN_REDUCE_EXPERT, 256, 384, 6, 3, 2},
		{TERN_FP8_E4M3, TERN_HIGH_THROUGHPUT, TERN_PADDED, TERN_REDUCE_HOME, 208, 128, 5, 2,
			3},
		{TERN_BF16, TERN_HIGH_THROUGHPUT, TERN_CONTIGUOUS, TERN_REDUCE_EXPERT, 200, 328, 2,
			2, 3},
		{TERN_BF16, TERN_LOW_LATENCY, TERN_PADDED, TERN_REDUCE_HOME, 1032, 72, 8, 5, 1}};

	(void)state;
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		struct job job;
		struct case_of of = {&shapes[i], &job};
		const char *failure;

		make_job(&job, &shapes[i]);
		failure = run_ranks((int)shapes[i].nr_ranks, exact_body, &of);
		job_close(&job);
		if (failure)
			fail_msg("shape %zu: %s", i, failure);
	}
}

/* ---- alone ----------------------------------------------------------------------------------- */

/* One rank, two experts of which the token goes to the second. */
static const struct tern_moe_config *alone_config(enum tern_dtype dtype)
{
	static _Thread_local struct tern_moe_config config;

	tern_moe_config_init(&config);
	config.hidden = 16;
	config.nr_experts = 2;
	config.topk = 1;
	config.max_tokens = 1;
	config.x_dtype = config.dispatch_dtype = config.combine_dtype = dtype;
	config.nr_slots = 2;
	return &config;
}

static tern_group *alone(const struct tern_moe_config *config, tern_moe **moe)
{
	struct tern_group_config gc;
	tern_group *group;

	tern_group_config_init(&gc);
	assert_int_equal(tern_boot_self(&gc.boot), 0);
	assert_int_equal(tern_group_create(&gc, &group), 0);
	assert_int_equal(tern_moe_create(group, config, moe), 0);
	return group;
}

#define INNER 5

static double silu(double v)
{
	return v / (1 + exp(-v));
}

/* gate and up are not each other's, rows not columns. */
static void swiglu(void **state)
{
	static float gate_up[2][2][INNER][16] __attribute__((aligned(16))),
		down[2][16][INNER] __attribute__((aligned(16))), x[16] __attribute__((aligned(16))),
		out[16] __attribute__((aligned(16)));
	struct weights w = {(uint8_t *)gate_up, (uint8_t *)down, NULL, NULL};
	struct tern_dispatch d = {.size = sizeof(d), .nr_tokens = 1, .slot = 1, .x = x};
	int32_t id = 1;
	uint64_t seed = 7;
	tern_layer *layer, *other;
	tern_moe *moe;
	tern_group *group = alone(alone_config(TERN_FP32), &moe);

	(void)state;
	for (int i = 0; i < 2 * 2 * INNER * 16; i++)
		((float *)gate_up)[i] = (float)(layer_mix(seed, (uint64_t)i) % 2001) / 1000 - 1;
	for (int i = 0; i < 2 * 16 * INNER; i++)
		((float *)down)[i] = (float)(layer_mix(seed, 5000 + (uint64_t)i) % 2001) / 1000 - 1;
	for (int i = 0; i < 16; i++)
		x[i] = (float)(layer_mix(seed, 9000 + (uint64_t)i) % 2001) / 1000 - 1;
	d.topk_ids = &id;
	assert_int_equal(layer_open(moe, &w, INNER, TERN_SWIGLU, &layer), 0);
	assert_int_equal(layer_open(moe, &w, INNER, TERN_SWIGLU, &other), 0);
	assert_int_equal(tern_layer_memory(layer), tern_layer_memory(other)); /* shared */
	assert_int_equal(tern_layer_destroy(other), 0);
	assert_int_equal(tern_layer_run(layer, &d, out, 0), 0);
	for (int o = 0; o < 16; o++) {
		double y = 0;

		for (int i = 0; i < INNER; i++) {
			double gate = 0, up = 0;

			for (int k = 0; k < 16; k++) {
				gate += (double)gate_up[1][0][i][k] * (double)x[k];
				up += (double)gate_up[1][1][i][k] * (double)x[k];
			}
			y += silu(gate) * up * (double)down[1][o][i];
		}
		assert_true(fabs((double)out[o] - y) < 1e-5);
	}
	assert_int_equal(tern_layer_destroy(layer), 0);
	tern_moe_destroy(moe);
	tern_group_destroy(group);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void says(int rc, int wanted, const char *text)
{
	assert_int_equal(rc, wanted);
	if (!strstr(tern_last_error(), text))
		fail_msg("'%s' is not in: %s", text, tern_last_error());
}

static void refuses_settings(void **state)
{
	static float memory[64] __attribute__((aligned(16)));
	struct tern_layer_config good, c;
	tern_layer *layer = (tern_layer *)memory;
	tern_moe *moe;
	tern_group *group = alone(alone_config(TERN_FP32), &moe);

	(void)state;
	tern_layer_config_init(&good);
	good.inner = 4;
	good.gate_up = good.down = memory;
	c = good, c.inner = 0;
	says(tern_layer_create(moe, &c, &layer), TERN_ERR_INVALID, "inner is 0");
	c = good, c.activation = 3;
	says(tern_layer_create(moe, &c, &layer), TERN_ERR_INVALID, "activation is 3");
	c = good, c.down = NULL;
	says(tern_layer_create(moe, &c, &layer), TERN_ERR_INVALID, "down is NULL");
	c = good, c.gate_up = (char *)memory + 8;
	says(tern_layer_create(moe, &c, &layer), TERN_ERR_INVALID, "aligned to 16 bytes");
	c = good, c.down_scales = memory;
	says(tern_layer_create(moe, &c, &layer), TERN_ERR_INVALID, "FP8 weights have scales");
	c = good, c.beside_sms = 3;
	says(tern_layer_create(moe, &c, &layer), TERN_ERR_INVALID, "beside_sms is 3");
	c = good, c.beside_sms = TERN_BESIDE_NEVER; /* is no number of them */
	assert_int_equal(tern_layer_create(moe, &c, &layer), 0);
	assert_int_equal(tern_layer_destroy(layer), 0);
	layer = (tern_layer *)memory;
	c = good, c.size = 7;
	says(tern_layer_create(moe, &c, &layer), TERN_ERR_INVALID, "tern_layer_config.size is 7");
	says(tern_layer_create(NULL, &good, &layer), TERN_ERR_INVALID, "NULL");
	assert_ptr_equal(layer, memory); /* set on success alone */
	assert_int_equal(tern_layer_destroy(NULL), 0);
	assert_int_equal(tern_layer_memory(NULL), 0);
	assert_int_equal(tern_moe_destroy(moe), 0);
	tern_group_destroy(group);
}

static void refuses_exchanges(void **state)
{
	struct tern_moe_config config = *alone_config(TERN_BF16);
	static uint16_t memory[256] __attribute__((aligned(16)));
	struct weights w = {(uint8_t *)memory, (uint8_t *)memory, NULL, NULL};
	tern_layer *layer;
	tern_moe *moe;
	tern_group *group;

	(void)state;
	config.weights = TERN_WEIGHTS_PASS;
	group = alone(&config, &moe);
	says(layer_open(moe, &w, 4, TERN_SWIGLU, &layer), TERN_ERR_INVALID, "TERN_WEIGHTS_PASS");
	tern_moe_destroy(moe);
	config.layout = TERN_BY_SOURCE;
	assert_int_equal(tern_moe_create(group, &config, &moe), 0);
	says(layer_open(moe, &w, 4, TERN_SWIGLU, &layer), TERN_ERR_INVALID, "TERN_BY_SOURCE");
	tern_moe_destroy(moe);
	tern_group_destroy(group);
}

static void refuses_what_devices_take(void **state)
{
	struct tern_moe_config config = *alone_config(TERN_BF16);
	struct tern_gate gate = {.size = sizeof(gate)};
	tern_moe *moe, *other = NULL;
	tern_group *group = alone(&config, &moe);

	(void)state;
	says(tern_moe_gate(moe, 0, &gate), TERN_ERR_INVALID, "not on a device");
	says(tern_moe_gate(moe, 0, NULL), TERN_ERR_INVALID, "tern_gate is NULL");
	config.nr_sms = 24;
	says(tern_moe_create(group, &config, &other), TERN_ERR_INVALID, "nr_sms is 24; it is for");
	config.nr_sms = 0;
	config.gate_rows = 32;
	says(tern_moe_create(group, &config, &other), TERN_ERR_INVALID, "gate_rows is 32; 0, 64");
	config.gate_rows = 64;
	says(tern_moe_create(group, &config, &other), TERN_ERR_INVALID, "gates are for devices");
	assert_null(other);
	tern_moe_destroy(moe);
	tern_group_destroy(group);
}

/* A refused call has changed nothing: the round goes on as if it had not been made. */
static void refuses_calls(void **state)
{
	static float memory[512] __attribute__((aligned(16))), out[16] __attribute__((aligned(16)));
	struct weights w = {(uint8_t *)memory, (uint8_t *)memory, NULL, NULL};
	struct tern_received received = {.size = sizeof(received)};
	struct tern_dispatch d = {.size = sizeof(d), .nr_tokens = 1, .x = memory};
	int32_t id = 0;
	tern_layer *layer;
	tern_moe *moe;
	tern_group *group = alone(alone_config(TERN_FP32), &moe);

	(void)state;
	d.topk_ids = &id;
	assert_int_equal(layer_open(moe, &w, 4, TERN_SWIGLU, &layer), 0);
	says(tern_moe_destroy(moe), TERN_ERR_STATE, "1 layers of the exchange live");
	says(tern_layer_experts(layer, 0, &received, memory), TERN_ERR_STATE, "dispatch_send");
	says(tern_layer_experts(layer, 2, &received, memory), TERN_ERR_INVALID, "slot");
	says(tern_layer_run(layer, &d, (char *)out + 4, 0), TERN_ERR_INVALID, "out");
	d.plan = 1;
	says(tern_layer_run(layer, &d, out, 0), TERN_ERR_INVALID, "plan is 1");
	d.plan = 0;
	assert_int_equal(tern_dispatch(moe, &d, &received), 0);
	says(tern_layer_experts(layer, 0, &received, NULL), TERN_ERR_INVALID, "y is");
	says(tern_layer_run(layer, &d, out, 0), TERN_ERR_STATE, "combine_send or release");
	assert_int_equal(tern_release(moe, 0), 0);
	assert_int_equal(tern_layer_run(layer, &d, out, 0), 0);
	assert_int_equal(tern_layer_destroy(layer), 0);
	assert_int_equal(tern_moe_destroy(moe), 0);
	tern_group_destroy(group);
}

/* ---- waits ----------------------------------------------------------------------------------- */

static float ones[256] __attribute__((aligned(16)));

/* wait_ms 0: each call polls once and goes on where it was. */
static void polls_body(struct rank *rank)
{
	struct tern_moe_config config = *alone_config(TERN_FP32);
	struct weights w = {(uint8_t *)ones, (uint8_t *)ones, NULL, NULL};
	struct tern_dispatch d = {.size = sizeof(d), .nr_tokens = 1};
	float x[16] __attribute__((aligned(16))) = {1}, out[16] __attribute__((aligned(16))) = {0};
	int32_t id = 1 - rank->rank;
	tern_layer *layer = NULL;
	tern_moe *moe = NULL;
	int rc = tern_moe_create(rank->group, &config, &moe);

	rc = rc ? rc : layer_open(moe, &w, 4, TERN_LINEAR_GATED, &layer);
	rc = rc ? rc : tern_moe_set_wait(moe, 0);
	d.x = x;
	d.topk_ids = &id;
	/* Rank 1 has not begun, so that rank 0 waits at least once. */
	if (!rc && !rank->rank && tern_layer_run(layer, &d, out, 0) != TERN_ERR_TIMEOUT)
		rank_fails(rank, "nothing was waited for");
	rc = rc ? rc : ranks_meet(rank);
	for (int round = 0; round < 50 && !rc; round++)
		while ((rc = tern_layer_run(layer, &d, out, 0)) == TERN_ERR_TIMEOUT)
			;
	if (rc || out[0] != 4) /* gate and up are 1, and I is 4 */
		rank_fails(rank, "%d, %g: %s", rc, (double)out[0], tern_last_error());
	tern_layer_destroy(layer);
	tern_moe_destroy(moe);
}

static void goes_on(void **state)
{
	const char *failure;

	(void)state;
	for (int i = 0; i < 256; i++)
		ones[i] = 1;
	failure = run_ranks(2, polls_body, NULL);
	if (failure)
		fail_msg("%s", failure);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(exact), cmocka_unit_test(swiglu),
		cmocka_unit_test(refuses_settings), cmocka_unit_test(refuses_exchanges),
		cmocka_unit_test(refuses_what_devices_take), cmocka_unit_test(refuses_calls),
		cmocka_unit_test(goes_on)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
