/* SPDX-License-Identifier: Apache-2.0 */
/* Which mode TERN_AUTO chooses, and that rounds go through in it. */
#include "tests/exchange/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

struct wish {
	uint32_t max_tokens, masks;
	uint64_t capacity;
	enum tern_mode mode, wanted;
};

static void one_exchange(struct rank *rank, const struct wish *wish)
{
	struct tern_moe_config config;
	tern_moe *moe = NULL;
	int rc;

	tern_moe_config_init(&config);
	if (config.mode != TERN_AUTO)
		rank_fails(rank, "the default mode is %d", (int)config.mode);
	config.hidden = 8;
	config.nr_experts = 4;
	config.topk = 2;
	config.max_tokens = wish->max_tokens;
	config.capacity = wish->capacity;
	config.masks = wish->masks;
	config.mode = wish->mode;
	rc = tern_moe_create(rank->group, &config, &moe);
	if (rc)
		rank_fails(rank, "%u tokens: %s", wish->max_tokens, tern_last_error());
	else if (tern_moe_mode(moe) != (int)wish->wanted)
		rank_fails(rank, "%u tokens, capacity %llu: mode %d", wish->max_tokens,
			(unsigned long long)wish->capacity, tern_moe_mode(moe));
	ranks_meet(rank);
	tern_moe_destroy(moe);
}

static void modes(struct rank *rank)
{
	static const struct wish wishes[] = {{1, 0, 0, TERN_AUTO, TERN_LOW_LATENCY},
		{256, 0, 0, TERN_AUTO, TERN_LOW_LATENCY},
		{257, 0, 0, TERN_AUTO, TERN_HIGH_THROUGHPUT},
		{1, 0, 2, TERN_AUTO, TERN_HIGH_THROUGHPUT},
		{257, 1, 0, TERN_AUTO, TERN_LOW_LATENCY},
		{1, 0, 0, TERN_HIGH_THROUGHPUT, TERN_HIGH_THROUGHPUT},
		{257, 0, 0, TERN_LOW_LATENCY, TERN_LOW_LATENCY}};

	for (size_t i = 0; i < sizeof(wishes) / sizeof(wishes[0]); i++)
		one_exchange(rank, &wishes[i]);
}

static void chosen(void **state)
{
	const char *failure = run_ranks(2, modes, NULL);

	(void)state;
	if (failure)
		fail_msg("%s", failure);
	assert_int_equal(tern_moe_mode(NULL), TERN_ERR_INVALID);
}

static void round_body(struct rank *rank)
{
	struct round r;
	int rc = round_open(&r, rank, rank->ctx, NULL);

	for (uint64_t i = 0; i < 3 && !rc; i++)
		rc = run_round(&r, i);
	round_close(&r);
}

static void rounds(void **state)
{
	(void)state;
	for (uint32_t tokens = 20; tokens <= 300; tokens += 280) {
		const char *failure;
		struct job job;

		job_init(&job);
		job.nr_ranks = 3;
		job.nr_tokens = job.config.max_tokens = tokens;
		job.config.hidden = 16;
		job.config.nr_experts = 6;
		job.config.topk = 3;
		job.config.mode = TERN_AUTO;
		assert_int_equal(job_open(&job, NULL), 0);
		failure = run_ranks(3, round_body, &job);
		if (failure)
			fail_msg("%u tokens: %s", tokens, failure);
		job_close(&job);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(chosen), cmocka_unit_test(rounds)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
