/* SPDX-License-Identifier: Apache-2.0 */
/* A comparison that never fails is worth nothing: a perfect exchange, made by hand, has no
 * differences, and each damage is found. */
#include "testkit/convert.h"
#include "testkit/verify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define RANKS 3
#define TOKENS 6
#define HIDDEN 144
#define TOPK 3
#define POSITIONS 512

struct perfect {
	struct job job;
	struct reference *reference;
	struct received_layout layout;
	struct tern_received received;
	struct difference difference;
	uint8_t x[POSITIONS * HIDDEN];
	uint8_t scales[POSITIONS * 2];
	struct tern_row rows[POSITIONS];
	int32_t topk_ids[POSITIONS * TOPK];
	float topk_weights[POSITIONS * TOPK];
	uint16_t out[TOKENS * HIDDEN];
	uint64_t a_row; /* some position with a row */
};

static int make_place(void *ctx, const struct place *place, bool first_of_token)
{
	struct perfect *p = ctx;
	const void *x, *scales;
	uint32_t k;

	(void)first_of_token;
	p->a_row = place->position;
	reference_received_row(p->reference, place->home, place->token, &x, &scales);
	memcpy(p->x + place->position * HIDDEN, x, HIDDEN);
	memcpy(p->scales + place->position * 2, scales, 2);
	p->rows[place->position] = (struct tern_row){
		(int32_t)place->source, (int32_t)place->token, place->k, place->weight};
	reference_local_ids(
		p->reference, 1, place->home, place->token, p->topk_ids + place->position * TOPK);
	for (k = 0; k < TOPK; k++)
		p->topk_weights[place->position * TOPK + k] =
			p->topk_ids[place->position * TOPK + k] < 0
				? 0
				: reference_weights(p->reference, place->home, place->token)[k];
	return 0;
}

/* What rank 1 gets. */
static struct perfect *make(enum tern_layout layout)
{
	struct perfect *p = calloc(1, sizeof(*p));
	uint32_t token;

	assert_non_null(p);
	job_init(&p->job);
	p->job.nr_ranks = RANKS;
	p->job.nr_tokens = p->job.config.max_tokens = TOKENS;
	p->job.input = INPUT_RANDOM;
	p->job.config.hidden = HIDDEN;
	p->job.config.nr_experts = 9;
	p->job.config.topk = TOPK;
	p->job.config.layout = layout;
	p->job.config.dispatch_dtype = TERN_FP8_E4M3;
	p->job.config.scale = TERN_SCALE_UE8M0;
	if (layout == TERN_BY_SOURCE) {
		p->job.config.reduce = TERN_REDUCE_EXPERT;
		p->job.config.weights = TERN_WEIGHTS_PASS;
	}
	assert_int_equal(job_open(&p->job, NULL), 0);
	p->reference = reference_create(&p->job);
	assert_non_null(p->reference);
	assert_int_equal(received_layout_create(p->reference, 1, &p->layout), 0);
	assert_true(p->layout.end <= POSITIONS);
	reference_walk(p->reference, 1, &p->layout, make_place, p);
	for (token = 0; token < TOKENS; token++)
		memcpy(p->out + token * HIDDEN, reference_combined_row(p->reference, 1, token),
			HIDDEN * 2);
	p->received = (struct tern_received){
		.size = sizeof(p->received),
		.x = p->x,
		.scales = p->scales,
		.counts = p->layout.counts,
		.offsets = p->layout.offsets,
		.rows = p->rows,
		.topk_ids = layout == TERN_BY_SOURCE ? p->topk_ids : NULL,
		.topk_weights = layout == TERN_BY_SOURCE ? p->topk_weights : NULL,
		.nr_rows = p->layout.nr_rows,
		.extent = p->layout.end,
	};
	return p;
}

static void destroy(struct perfect *p)
{
	received_layout_destroy(&p->layout);
	reference_destroy(p->reference);
	job_close(&p->job);
	free(p);
}

static uint64_t nr_differences(struct perfect *p)
{
	memset(&p->difference, 0, sizeof(p->difference));
	assert_int_equal(verify_received(p->reference, 1, &p->received, &p->difference), 0);
	assert_int_equal(verify_combined(p->reference, 1, p->out, 0, &p->difference), 0);
	return p->difference.nr;
}

static void expect_one(struct perfect *p, const char *words)
{
	assert_int_equal(nr_differences(p), 1);
	if (!strstr(p->difference.first, words))
		fail_msg("'%s' does not say '%s'", p->difference.first, words);
}

static void check_rows(enum tern_layout layout)
{
	struct perfect *p = make(layout);

	assert_int_equal(nr_differences(p), 0);
	p->x[p->a_row * HIDDEN + 130] ^= 1;
	expect_one(p, "element 130 is 0x");
	p->x[p->a_row * HIDDEN + 130] ^= 1;
	p->scales[p->a_row * 2 + 1] ^= 0x80;
	expect_one(p, "scale 1 is 0x");
	p->scales[p->a_row * 2 + 1] ^= 0x80;
	p->rows[p->a_row].token++;
	expect_one(p, "described as");
	p->rows[p->a_row].token--;
	p->received.nr_rows++;
	expect_one(p, "nr_rows");
	p->received.nr_rows--;
	p->received.extent = p->layout.end - 1;
	expect_one(p, "extent");
	p->received.extent = p->layout.end;
	p->received.scales = NULL;
	expect_one(p, "NULL");
	p->received.scales = p->scales;
	assert_int_equal(nr_differences(p), 0);
	destroy(p);
}

static void test_padded(void **state)
{
	(void)state;
	check_rows(TERN_PADDED);
}

static void test_contiguous(void **state)
{
	(void)state;
	check_rows(TERN_CONTIGUOUS);
}

static void test_by_source(void **state)
{
	struct perfect *p;

	(void)state;
	check_rows(TERN_BY_SOURCE);
	p = make(TERN_BY_SOURCE);
	p->topk_ids[p->a_row * TOPK + 2] = 7;
	expect_one(p, "topk_ids[2] is 7");
	destroy(p);
	p = make(TERN_BY_SOURCE);
	p->topk_weights[p->a_row * TOPK + 1] += 1;
	expect_one(p, "topk_weights[1] is");
	destroy(p);
}

static void test_counts_and_offsets(void **state)
{
	struct perfect *p = make(TERN_CONTIGUOUS);
	uint32_t counts[3];
	uint64_t offsets[3];

	(void)state;
	memcpy(counts, p->layout.counts, sizeof(counts));
	memcpy(offsets, p->layout.offsets, sizeof(offsets));
	p->received.counts = counts;
	p->received.offsets = offsets;
	counts[2]++;
	expect_one(p, "counts[2]");
	counts[2]--;
	offsets[1]++;
	expect_one(p, "offsets[1]");
	destroy(p);
}

static void test_combined(void **state)
{
	struct perfect *p = make(TERN_CONTIGUOUS);

	(void)state;
	p->out[4 * HIDDEN + 17] ^= 1;
	expect_one(p, "token 4, element 17");
	p->out[5 * HIDDEN + 3] ^= 0x8000;
	assert_int_equal(nr_differences(p), 2);
	destroy(p);
}

static void test_fill_y(void **state)
{
	struct perfect *p = make(TERN_CONTIGUOUS);
	uint16_t *y = calloc(POSITIONS, HIDDEN * 2);
	const struct tern_row *row = &p->rows[p->a_row];
	uint32_t expert =
		(uint32_t)p->reference->ids[(row->rank * TOKENS + row->token) * TOPK + row->k];

	(void)state;
	assert_non_null(y);
	assert_int_equal(fill_y(p->reference, 1, y, 0), 0);
	assert_memory_equal(y + p->a_row * HIDDEN,
		job_y_row(&p->job, 0, expert, (uint32_t)row->rank, (uint32_t)row->token),
		HIDDEN * 2);
	free(y);
	destroy(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_padded),
		cmocka_unit_test(test_contiguous),
		cmocka_unit_test(test_by_source),
		cmocka_unit_test(test_counts_and_offsets),
		cmocka_unit_test(test_combined),
		cmocka_unit_test(test_fill_y),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
