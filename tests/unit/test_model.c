/* SPDX-License-Identifier: Apache-2.0 */
/* The engine against what transformers computed from the same weights (train/golden.py), and
 * against itself: a token's bits depend on nothing but its own sequence. */
#include "examples/generate/experts.h"
#include "examples/generate/model.h"
#include "examples/generate/moe.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define NR_PROMPTS 3
#define NR_GREEDY 48
#define MAX_TOKENS 256
/* Both sides compute in fp32 and sum in different orders. Measured: 2e-5 on logits that reach 20.
 */
#define LOGIT_TOLERANCE 1e-4

static struct {
	struct mapped_file file;
	struct safetensors golden;
	struct model_config config;
	struct model model;
	struct experts experts;
	struct moe_local *local;
	struct workspace *workspace;
	float *logits; /* [MAX_TOKENS][vocab] */
} world;

static const char *folder(void)
{
	const char *given = getenv("GENERATE_MODEL");

	return given ? given : "examples/generate/model";
}

static int set_up(void **state)
{
	struct checkpoint checkpoint;
	struct fault fault = {""};
	char path[4096];

	(void)state;
	snprintf(path, sizeof(path), "%s/golden.safetensors", folder());
	if (file_map(path, &world.file, &fault) ||
		safetensors_parse(world.file.bytes, world.file.size, &world.golden, &fault) ||
		config_read(folder(), &world.config, &fault) ||
		checkpoint_open(folder(), &checkpoint, &fault) ||
		model_load(&checkpoint, &world.config, &world.model, &fault) ||
		experts_load(&checkpoint, &world.config, NULL, world.config.nr_experts,
			world.config.nr_experts, &world.experts, &fault)) {
		print_error("%s\n", fault.text);
		return -1;
	}
	checkpoint_close(&checkpoint);
	world.local = moe_local_create(&world.experts, world.config.topk, MAX_TOKENS,
		(struct moe_types){WIRE_FP32, WIRE_FP32});
	world.workspace = workspace_create(&world.config, MAX_TOKENS);
	world.logits = malloc((size_t)MAX_TOKENS * world.config.vocab * sizeof(float));
	return world.local && world.workspace && world.logits ? 0 : -1;
}

static int tear_down(void **state)
{
	(void)state;
	free(world.logits);
	workspace_destroy(world.workspace);
	moe_local_destroy(world.local);
	experts_destroy(&world.experts);
	model_destroy(&world.model);
	safetensors_free(&world.golden);
	file_unmap(&world.file);
	return 0;
}

static const void *golden(const char *name, uint32_t *nr)
{
	const struct tensor *tensor = safetensors_find(&world.golden, name);

	assert_non_null(tensor);
	*nr = (uint32_t)tensor->shape[tensor->nr_dims == 3 ? 1 : 0];
	return tensor->data;
}

static const int32_t *golden_prompt(uint32_t index, const char *what, uint32_t *nr)
{
	char name[32];

	snprintf(name, sizeof(name), "%u.%s", index, what);
	return golden(name, nr);
}

static void forward(
	const struct batch_token *tokens, uint32_t nr, const struct moe_exchange *exchange)
{
	struct moe_exchange local = moe_local_exchange(world.local);
	struct fault fault = {""};

	if (model_forward(&world.model, world.workspace, tokens, nr, exchange ? exchange : &local,
		    &fault))
		fail_msg("%s", fault.text);
}

/* nr tokens of one sequence from `position` on; their logits are rows of `logits`. */
static void put_tokens(struct batch_token *tokens, const int32_t *ids, uint32_t nr,
	uint32_t position, struct cache *cache, float *logits)
{
	for (uint32_t t = 0; t < nr; t++)
		tokens[t] = (struct batch_token){
			ids[t], position + t, cache, logits + (size_t)t * world.config.vocab};
}

static void test_logits(void **state)
{
	double worst = 0, largest = 0;

	(void)state;
	for (uint32_t i = 0; i < NR_PROMPTS; i++) {
		struct batch_token tokens[MAX_TOKENS];
		struct cache cache;
		uint32_t nr, rows;
		const int32_t *ids = golden_prompt(i, "input_ids", &nr);
		const float *want = (const float *)golden_prompt(i, "logits", &rows);

		assert_int_equal(nr, rows);
		assert_int_equal(cache_create(&world.config, nr, &cache), 0);
		put_tokens(tokens, ids, nr, 0, &cache, world.logits);
		forward(tokens, nr, NULL);
		for (uint32_t j = 0; j < nr * world.config.vocab; j++) {
			worst = fmax(worst, fabs((double)world.logits[j] - want[j]));
			largest = fmax(largest, fabs((double)want[j]));
		}
		cache_destroy(&cache);
	}
	print_message("largest error of a logit: %.2e (largest logit %.1f)\n", worst, largest);
	assert_true(worst < LOGIT_TOLERANCE);
}

static int32_t most_likely(const float *logits)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < world.config.vocab; i++)
		if (logits[i] > logits[best])
			best = i;
	return (int32_t)best;
}

static void test_greedy(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < NR_PROMPTS; i++) {
		struct batch_token tokens[MAX_TOKENS];
		struct cache cache;
		uint32_t nr, nr_greedy;
		const int32_t *ids = golden_prompt(i, "input_ids", &nr),
			      *want = golden_prompt(i, "greedy", &nr_greedy);
		int32_t next;

		assert_int_equal(nr_greedy, NR_GREEDY);
		assert_int_equal(cache_create(&world.config, nr + NR_GREEDY, &cache), 0);
		put_tokens(tokens, ids, nr, 0, &cache, world.logits);
		forward(tokens, nr, NULL);
		next = most_likely(world.logits + (size_t)(nr - 1) * world.config.vocab);
		for (uint32_t t = 0; t < NR_GREEDY; t++) {
			assert_int_equal(next, want[t]);
			put_tokens(tokens, &next, 1, nr + t, &cache, world.logits);
			forward(tokens, 1, NULL);
			next = most_likely(world.logits);
		}
		cache_destroy(&cache);
	}
}

/* ---- routing --------------------------------------------------------------------------------- */

struct spy {
	const int32_t *ids; /* [layer][token][topk] */
	const float *weights;
	double worst;
};

static int compare_routing(void *ctx, const struct moe_call *call, struct fault *fault)
{
	struct spy *spy = ctx;
	size_t nr = (size_t)call->nr_tokens * world.config.topk, first = call->layer * nr;
	struct moe_exchange local = moe_local_exchange(world.local);

	for (size_t i = 0; i < nr; i++) {
		assert_int_equal(call->ids[i], spy->ids[first + i]);
		spy->worst =
			fmax(spy->worst, fabs((double)call->weights[i] - spy->weights[first + i]));
	}
	return local.run(local.ctx, call, fault);
}

static void test_routing(void **state)
{
	struct batch_token tokens[MAX_TOKENS];
	uint32_t nr, rows;
	const int32_t *ids = golden_prompt(1, "input_ids", &nr);
	struct spy spy = {
		.ids = golden("router.ids", &rows), .weights = golden("router.weights", &rows)};
	struct moe_exchange exchange = {compare_routing, &spy};
	struct cache cache;

	(void)state;
	assert_int_equal(rows, nr);
	assert_int_equal(cache_create(&world.config, nr, &cache), 0);
	put_tokens(tokens, ids, nr, 0, &cache, world.logits);
	forward(tokens, nr, &exchange);
	cache_destroy(&cache);
	print_message("largest error of a gate weight: %.2e\n", spy.worst);
	assert_true(spy.worst < 1e-5);
}

/* ---- independence ---------------------------------------------------------------------------- */

/* All prompts' logits into out, prompt after prompt, in batches of at most `step` tokens of each
 * prompt. */
static uint32_t run_together(uint32_t step, float *out)
{
	struct cache caches[NR_PROMPTS];
	const int32_t *ids[NR_PROMPTS];
	uint32_t nr[NR_PROMPTS], first[NR_PROMPTS], total = 0, longest = 0;

	for (uint32_t i = 0; i < NR_PROMPTS; i++) {
		ids[i] = golden_prompt(i, "input_ids", &nr[i]);
		first[i] = total;
		total += nr[i];
		longest = nr[i] > longest ? nr[i] : longest;
		assert_int_equal(cache_create(&world.config, nr[i], &caches[i]), 0);
	}
	for (uint32_t at = 0; at < longest; at += step) {
		struct batch_token tokens[MAX_TOKENS];
		uint32_t n = 0;

		for (uint32_t i = 0; i < NR_PROMPTS; i++) {
			uint32_t some = at >= nr[i] ? 0 : nr[i] - at < step ? nr[i] - at : step;

			put_tokens(tokens + n, ids[i] + at, some, at, &caches[i],
				out + (size_t)(first[i] + at) * world.config.vocab);
			n += some;
		}
		forward(tokens, n, NULL);
	}
	for (uint32_t i = 0; i < NR_PROMPTS; i++)
		cache_destroy(&caches[i]);
	return total;
}

static void test_batches_do_not_matter(void **state)
{
	static const uint32_t steps[] = {1, 3, 17, 64};
	float *other = malloc((size_t)MAX_TOKENS * world.config.vocab * sizeof(float));
	uint32_t total;

	(void)state;
	assert_non_null(other);
	total = run_together(MAX_TOKENS, world.logits);
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		run_together(steps[i], other);
		assert_memory_equal(
			world.logits, other, (size_t)total * world.config.vocab * sizeof(float));
	}
	free(other);
}

/* A rank that holds experts [8, 13) computes with them what a rank that holds all does. */
static void test_some_experts(void **state)
{
	struct checkpoint checkpoint;
	const int32_t ids[] = {8, 9, 10, 11, 12};
	struct experts some;
	uint32_t hidden = world.config.hidden;
	float *x = malloc(3 * hidden * sizeof(float)), *y = malloc(3 * hidden * sizeof(float)),
	      *z = malloc(3 * hidden * sizeof(float));

	(void)state;
	assert_true(x && y && z);
	assert_int_equal(checkpoint_open(folder(), &checkpoint, NULL), 0);
	assert_int_equal(experts_load(&checkpoint, &world.config, ids, 5, 5, &some, NULL), 0);
	for (uint32_t i = 0; i < 3 * hidden; i++)
		x[i] = sinf((float)i);
	for (uint32_t local = 0; local < some.nr; local++) {
		experts_run(&some, 2, local, x, 3, y);
		experts_run(&world.experts, 2, 8 + local, x, 3, z);
		assert_memory_equal(y, z, 3 * hidden * sizeof(float));
	}
	experts_destroy(&some);
	checkpoint_close(&checkpoint);
	free(x);
	free(y);
	free(z);
}

/* ---- what travels ---------------------------------------------------------------------------- */

/* Rounding leaves alone what the format has, and takes the nearest of it otherwise. */
static void test_e4m3(void **state)
{
	(void)state;
	for (uint32_t byte = 0; byte < 126; byte++) {
		float low = float_from_e4m3((uint8_t)byte),
		      high = float_from_e4m3((uint8_t)(byte + 1));
		float even = byte & 1 ? high : low;
		float row[4] = {448.0f, low, (low + high) / 2, low + (high - low) * 0.75f}; /* 448
											       makes
											       the
											       scale
											       1 */

		row_round(WIRE_FP8, row, 4);
		assert_true(row[0] == 448.0f && row[1] == low && row[2] == even && row[3] == high);
	}
}

static void test_bf16(void **state)
{
	(void)state;
	assert_int_equal(bf16_from_float(1.0f), 0x3f80);
	assert_int_equal(bf16_from_float(0x1.01p0f), 0x3f80); /* a tie, to even */
	assert_int_equal(bf16_from_float(0x1.03p0f), 0x3f82);
	assert_int_equal(bf16_from_float(0x1.010002p0f), 0x3f81);
	assert_int_equal(bf16_from_float(-INFINITY), 0xff80);
	assert_true(isnan(float_from_bf16(bf16_from_float(NAN))));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_logits),
		cmocka_unit_test(test_greedy),
		cmocka_unit_test(test_routing),
		cmocka_unit_test(test_batches_do_not_matter),
		cmocka_unit_test(test_some_experts),
		cmocka_unit_test(test_e4m3),
		cmocka_unit_test(test_bf16),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
