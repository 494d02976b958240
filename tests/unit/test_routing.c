/* SPDX-License-Identifier: Apache-2.0 */
#include "testkit/job.h"
#include "testkit/npy.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static void start(struct routing *routing, const char *text, uint32_t nr_experts, uint32_t topk)
{
	memset(routing, 0, sizeof(*routing));
	assert_int_equal(routing_parse(routing, text, NULL), 0);
	routing->seed = 7;
	routing->nr_experts = nr_experts;
	routing->topk = topk;
	routing->nr_homes = 4;
	routing->nr_tokens = 64;
	routing->nr_first = nr_experts / 4;
}

static void check_row(const struct routing *routing, const int32_t *ids)
{
	uint32_t k, other;

	for (k = 0; k < routing->topk; k++) {
		assert_in_range(ids[k] + 1, 0, routing->nr_experts);
		for (other = 0; other < k; other++)
			assert_true(ids[k] < 0 || ids[k] != ids[other]);
	}
}

static void test_rows_are_distinct(void **state)
{
	static const char *const kinds[] = {
		"uniform", "zipf:0", "zipf:1.2", "zipf:10", "grouped", "one"};
	static const uint32_t shapes[][2] = {{8, 1}, {16, 8}, {256, 8}, {512, 22}, {64, 32}};
	struct routing routing;
	int32_t ids[TERN_MAX_TOPK];
	float weights[TERN_MAX_TOPK];
	uint32_t kind, shape, token;

	(void)state;
	for (kind = 0; kind < 6; kind++) {
		for (shape = 0; shape < 5; shape++) {
			start(&routing, kinds[kind], shapes[shape][0], shapes[shape][1]);
			assert_int_equal(routing_open(&routing, NULL), 0);
			for (token = 0; token < 64; token++) {
				routing_token(&routing, 3, 1, token, ids, weights);
				check_row(&routing, ids);
			}
			routing_close(&routing);
		}
	}
}

static void test_same_seed_same_rows(void **state)
{
	struct routing routing;
	int32_t ids[8], again[8], other[8];
	float weights[8], weights_again[8];
	uint32_t token, nr_same = 0;

	(void)state;
	start(&routing, "zipf:1", 128, 8);
	assert_int_equal(routing_open(&routing, NULL), 0);
	for (token = 0; token < 64; token++) {
		routing_token(&routing, 3, 1, token, ids, weights);
		routing_token(&routing, 3, 1, token, again, weights_again);
		routing_token(&routing, 4, 1, token, other, weights_again);
		assert_memory_equal(ids, again, sizeof(ids));
		nr_same += !memcmp(ids, other, sizeof(ids));
	}
	assert_int_equal(nr_same, 0);
	routing_close(&routing);
}

/* How often the experts are taken, over many tokens. */
static void count_experts(struct routing *routing, uint32_t *counts, uint32_t nr_tokens)
{
	int32_t ids[TERN_MAX_TOPK];
	float weights[TERN_MAX_TOPK];
	uint32_t token, k;

	memset(counts, 0, routing->nr_experts * sizeof(*counts));
	for (token = 0; token < nr_tokens; token++) {
		routing_token(routing, 0, 0, token, ids, weights);
		for (k = 0; k < routing->topk; k++)
			if (ids[k] >= 0)
				counts[ids[k]]++;
	}
}

static int descending(const void *a, const void *b)
{
	return (*(const uint32_t *)a < *(const uint32_t *)b) -
	       (*(const uint32_t *)a > *(const uint32_t *)b);
}

static void test_popularity(void **state)
{
	struct routing routing;
	uint32_t counts[64];

	(void)state;
	start(&routing, "uniform", 64, 4);
	assert_int_equal(routing_open(&routing, NULL), 0);
	count_experts(&routing, counts, 16000); /* 1000 each, standard deviation about 31 */
	qsort(counts, 64, sizeof(*counts), descending);
	assert_in_range(counts[0], 1000, 1160);
	assert_in_range(counts[63], 840, 1000);
	routing_close(&routing);

	start(&routing, "zipf:1", 64, 1);
	assert_int_equal(routing_open(&routing, NULL), 0);
	count_experts(&routing, counts, 16000);
	qsort(counts, 64, sizeof(*counts), descending);
	assert_in_range(counts[0], 3100, 3640); /* 16000 / H(64) = 3373 */
	assert_in_range(counts[1], 1500, 1870);
	routing_close(&routing);
}

static void test_grouped_uses_four_groups(void **state)
{
	struct routing routing;
	int32_t ids[8];
	float weights[8];
	uint32_t token, k, group, nr;

	(void)state;
	start(&routing, "grouped", 256, 8);
	assert_int_equal(routing_open(&routing, NULL), 0);
	for (token = 0; token < 64; token++) {
		uint32_t used[8] = {0};

		routing_token(&routing, 0, 0, token, ids, weights);
		for (k = 0; k < 8; k++)
			used[ids[k] / 32] = 1;
		for (group = nr = 0; group < 8; group++)
			nr += used[group];
		assert_in_range(nr, 1, 4);
	}
	routing_close(&routing);
	start(&routing, "grouped", 60, 4);
	assert_int_equal(routing_open(&routing, NULL), -1);
	routing_close(&routing);
}

static void test_one_stays_on_rank_0(void **state)
{
	static const int32_t want[] = {0, 1, -1, -1};
	struct routing routing;
	int32_t ids[4];
	float weights[4];

	(void)state;
	start(&routing, "one", 8, 4);
	routing_token(&routing, 0, 2, 5, ids, weights);
	assert_memory_equal(ids, want, sizeof(want));
}

static void test_drop_and_uneven(void **state)
{
	struct routing routing;
	uint32_t counts[64], e, total = 0, round, nr, nr_zero = 0, nr_full = 0;

	(void)state;
	start(&routing, "uniform", 64, 4);
	routing.drop = 0.25;
	count_experts(&routing, counts, 4000);
	for (e = 0; e < 64; e++)
		total += counts[e];
	assert_in_range(total, 11700, 12300);
	routing.drop = 1;
	count_experts(&routing, counts, 100);
	assert_int_equal(counts[0], 0);
	routing.uneven = true;
	for (round = 0; round < 100; round++) {
		nr = routing_nr_tokens(&routing, round, 0);
		assert_in_range(nr, 0, 64);
		nr_zero += nr == 0;
		nr_full += nr == 64;
	}
	assert_true(nr_zero > 3 && nr_full > 3);
}

static void test_weights(void **state)
{
	struct routing routing;
	int32_t ids[8];
	float weights[8], sum = 0;
	uint32_t k;

	(void)state;
	start(&routing, "uniform", 64, 8);
	routing_token(&routing, 0, 0, 0, ids, weights);
	for (k = 0; k < 8; k++) {
		assert_true(weights[k] > 0);
		sum += weights[k];
	}
	assert_true(fabsf(sum - 1) < 1e-5f);
	routing.weights = WEIGHTS_EXACT;
	routing_token(&routing, 0, 0, 0, ids, weights);
	for (k = 0; k < 8; k++)
		assert_true(weights[k] == 0.5f || weights[k] == 1 || weights[k] == 2);
}

static int open_trace(const int64_t *ids, uint64_t nr_tokens, uint32_t topk,
	struct routing *routing, struct reason *why)
{
	struct npy npy = {NPY_INT64, 2, {nr_tokens, 2}, ids, 0};
	char path[] = "/tmp/tern-trace-XXXXXX.npy";
	int status, fd = mkstemps(path, 4);

	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(npy_write(path, &npy, NULL), 0);
	start(routing, path, 16, topk);
	status = routing_open(routing, why);
	unlink(path);
	return status;
}

static void test_trace(void **state)
{
	static const int64_t good[] = {0, 1, 15, -1, 3, 2};
	static const int64_t beyond[] = {0, 1, 16, 2};
	static const int64_t wide[] = {0, 1, INT64_C(1) << 32, 2};
	static const int64_t twice[] = {0, 1, 3, 3};
	struct routing routing;
	struct reason why;
	int32_t ids[2];
	float weights[2];

	(void)state;
	assert_int_equal(open_trace(good, 3, 2, &routing, &why), 0);
	routing_token(&routing, 0, 0, 4, ids, weights); /* row 4 % 3 */
	assert_int_equal(ids[0], 15);
	assert_int_equal(ids[1], -1);
	routing_close(&routing);
	assert_int_equal(open_trace(good, 3, 4, &routing, &why), -1);
	routing_close(&routing);
	assert_int_equal(open_trace(beyond, 2, 2, &routing, &why), -1);
	assert_non_null(strstr(why.text, "token 1, k 0 has expert 16"));
	routing_close(&routing);
	assert_int_equal(open_trace(wide, 2, 2, &routing, &why), -1);
	routing_close(&routing);
	assert_int_equal(open_trace(twice, 2, 2, &routing, &why), -1);
	assert_non_null(strstr(why.text, "expert 3 twice"));
	routing_close(&routing);
}

static void test_parse_refuses(void **state)
{
	static const char *const texts[] = {"", "zipf", "zipf:", "zipf:x", "zipf:1x", "zipf:-1",
		"zipf:nan", "zipf:11", "uniform2", ".npy", "ids.npz"};
	struct routing routing = {0};
	struct reason why;
	unsigned int i;

	(void)state;
	for (i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		assert_int_equal(routing_parse(&routing, texts[i], &why), -1);
	assert_int_equal(routing_parse(&routing, "nowhere.npy", &why), 0);
	routing.nr_experts = routing.topk = 1;
	assert_int_equal(routing_open(&routing, &why), -1);
	assert_non_null(strstr(why.text, "nowhere.npy"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows_are_distinct),
		cmocka_unit_test(test_same_seed_same_rows),
		cmocka_unit_test(test_popularity),
		cmocka_unit_test(test_grouped_uses_four_groups),
		cmocka_unit_test(test_one_stays_on_rank_0),
		cmocka_unit_test(test_drop_and_uneven),
		cmocka_unit_test(test_weights),
		cmocka_unit_test(test_trace),
		cmocka_unit_test(test_parse_refuses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
