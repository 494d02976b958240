/* SPDX-License-Identifier: Apache-2.0 */
/* Many rounds without a barrier between them: slots in flight, released rounds, slow ranks,
 * polling, epochs that wrap, and capacities that are exceeded now and then. */
#include "tests/exchange/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define BOTH_MODES(mode)                                                                           \
	for (enum tern_mode mode = TERN_LOW_LATENCY; mode <= TERN_HIGH_THROUGHPUT; mode++)

static void small_job(struct job *job, uint32_t nr_ranks, enum tern_mode mode)
{
	job_init(job);
	job->nr_ranks = nr_ranks;
	job->nr_tokens = job->config.max_tokens = 6;
	job->config.hidden = 32;
	job->config.nr_experts = 9;
	job->config.topk = 3;
	job->config.mode = mode;
	job->input = INPUT_RANDOM;
	job->routing.uneven = true;
	job->routing.drop = 0.1;
}

static void body(struct rank *rank)
{
	run_flow(rank, rank->ctx);
}

static void expect_flow(struct job *job, struct flow *flow)
{
	const char *failure;

	flow->job = job;
	if (job_open(job, NULL))
		fail_msg("no memory");
	failure = run_ranks((int)job->nr_ranks, body, flow);
	if (failure)
		fail_msg("ranks %u, slots %u, mode %d, layout %d, seed %llu: %s", job->nr_ranks,
			job->config.nr_slots, (int)job->config.mode, (int)job->config.layout,
			(unsigned long long)flow->seed, failure);
	job_close(job);
}

static void thousands_of_rounds(void **state)
{
	struct job job;

	(void)state;
	BOTH_MODES(mode)
	for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
		struct flow flow = {.rounds = scaled(4000), .sleeper = -1};

		small_job(&job, ranks, mode);
		expect_flow(&job, &flow);
	}
}

static void slots_in_any_order(void **state)
{
	static const uint32_t slots[] = {2, 3, 5, 16};
	struct job job;

	(void)state;
	BOTH_MODES(mode)
	for (size_t i = 0; i < sizeof(slots) / sizeof(slots[0]); i++)
		for (uint64_t seed = 1; seed <= 4; seed++) {
			struct flow flow = {.rounds = scaled(200), .seed = seed, .sleeper = -1};

			small_job(&job, 3, mode);
			job.config.nr_slots = slots[i];
			expect_flow(&job, &flow);
		}
}

static void released_rounds(void **state)
{
	struct job job;

	(void)state;
	BOTH_MODES(mode)
	for (uint32_t in = 1; in <= 3; in++) { /* all, half, a third */
		struct flow flow = {
			.rounds = scaled(400), .seed = in, .release_in = in, .sleeper = -1};

		small_job(&job, 3, mode);
		job.config.nr_slots = in;
		expect_flow(&job, &flow);
	}
}

static void slow_rank(void **state)
{
	struct job job;

	(void)state;
	BOTH_MODES(mode)
	for (int sleeper = 0; sleeper < 3; sleeper++) {
		struct flow flow = {
			.rounds = scaled(100), .seed = 7, .release_in = 4, .sleeper = sleeper};

		small_job(&job, 3, mode);
		job.config.nr_slots = 2;
		expect_flow(&job, &flow);
	}
}

/* wait_ms = 0: every half that waits is repeated until it is done. */
static void polling(void **state)
{
	struct job job;

	(void)state;
	BOTH_MODES(mode)
	for (uint32_t slots = 1; slots <= 2; slots++) {
		struct flow flow = {
			.rounds = scaled(300), .seed = 3, .release_in = 3, .sleeper = 1};

		small_job(&job, 3, mode);
		job.config.wait_ms = 0;
		job.config.nr_slots = slots;
		expect_flow(&job, &flow);
	}
}

static void epochs_wrap(void **state)
{
	static const uint32_t first[] = {UINT32_MAX, UINT32_MAX - 1, UINT32_MAX - 2, UINT32_MAX - 7,
		0, 1, 0x7fffffff, 0x80000000};
	struct job job;

	(void)state;
	BOTH_MODES(mode)
	for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++)
		for (uint32_t slots = 1; slots <= 2; slots++) {
			struct flow flow = {.rounds = scaled(60),
				.seed = i,
				.release_in = 5,
				.sleeper = (int)i % 3};

			small_job(&job, 3, mode);
			job.config.first_epoch = first[i];
			job.config.nr_slots = slots;
			expect_flow(&job, &flow);
		}
}

/* Some rounds are over capacity, several in a row among them; the others are as right as ever. */
static void capacities(void **state)
{
	static const uint64_t capacity[] = {1, 4, 10, 16, 30};
	struct job job;
	int nr_over = 0, nr_rounds = 0;

	(void)state;
	for (enum tern_layout layout = TERN_PADDED; layout <= TERN_BY_SOURCE; layout++)
		for (size_t i = 0; i < sizeof(capacity) / sizeof(capacity[0]); i++)
			for (uint32_t slots = 1; slots <= 3; slots += 2) {
				struct flow flow = {.rounds = scaled(200),
					.seed = i,
					.release_in = 4,
					.sleeper = (int)i % 4};

				small_job(&job, 3, TERN_HIGH_THROUGHPUT);
				job.nr_tokens = job.config.max_tokens = 16;
				job.config.layout = layout;
				job.config.capacity = capacity[i];
				job.config.alignment =
					layout == TERN_CONTIGUOUS && slots > 1 ? 4 : 1;
				job.config.nr_slots = slots;
				job.config.first_epoch = UINT32_MAX - 20;
				job.config.wait_ms = i == 2 ? 0 : 30000;
				if (layout == TERN_BY_SOURCE) {
					job.config.reduce = TERN_REDUCE_EXPERT;
					job.config.weights = TERN_WEIGHTS_PASS;
				}
				expect_flow(&job, &flow);
				nr_over += flow.nr_over;
				nr_rounds += flow.rounds;
			}
	if (nr_over < nr_rounds / 10 || nr_over > nr_rounds * 9 / 10)
		fail_msg(
			"%d of %d rounds were over capacity: the test does not test what it should",
			nr_over, nr_rounds);
}

/* ---- several exchanges ----------------------------------------------------------------------- */

struct pair {
	struct job job[2];
};

static void two_exchanges_body(struct rank *rank)
{
	struct pair *pair = rank->ctx;
	struct round rounds[2] = {{0}};
	int rc = round_open(&rounds[0], rank, &pair->job[0], NULL);

	rc = rc ? rc : round_open(&rounds[1], rank, &pair->job[1], NULL);
	for (uint64_t i = 0; i < (uint64_t)scaled(100) && !rc; i++) {
		rounds[0].number = rounds[1].number = i;
		for (int half = 0; half < 4 && !rc; half++)
			for (int which = 0; which < 2 && !rc; which++) {
				static int (*const halves[])(struct round *) = {round_dispatch_send,
					round_dispatch_recv, round_combine_send,
					round_combine_recv};

				rc = halves[half](&rounds[which]);
			}
	}
	round_close(&rounds[rank->rank & 1]); /* in different orders on the ranks */
	round_close(&rounds[~rank->rank & 1]);
}

/* One of each mode, interleaved half by half. */
static void two_exchanges_of_a_group(void **state)
{
	struct pair pair;
	const char *failure;

	(void)state;
	small_job(&pair.job[0], 3, TERN_LOW_LATENCY);
	small_job(&pair.job[1], 3, TERN_HIGH_THROUGHPUT);
	pair.job[1].config.hidden = 96;
	assert_int_equal(job_open(&pair.job[0], NULL) | job_open(&pair.job[1], NULL), 0);
	failure = run_ranks(3, two_exchanges_body, &pair);
	job_close(&pair.job[0]);
	job_close(&pair.job[1]);
	if (failure)
		fail_msg("%s", failure);
}

/* The second group has the ranks in reverse order. */
static void two_groups_body(struct rank *rank)
{
	struct {
		struct pair pair;
		struct tern_threads *threads;
	} *ctx = rank->ctx;
	struct rank second = {.rank = rank->nr_ranks - 1 - rank->rank, .nr_ranks = rank->nr_ranks};
	struct tern_group_config config;

	tern_group_config_init(&config);
	if (tern_threads_boot(ctx->threads, second.rank, &config.boot) ||
		tern_group_create(&config, &second.group)) {
		rank_fails(rank, "second group: %s", tern_last_error());
		return;
	}
	for (int i = 0; i < 3; i++) {
		run_rounds(rank, &ctx->pair.job[0], scaled(20));
		run_rounds(&second, &ctx->pair.job[1], scaled(20));
	}
	if (*second.failure)
		rank_fails(rank, "in the second group, %s", second.failure);
	if (tern_group_destroy(second.group))
		rank_fails(rank, "leaving the second group: %s", tern_last_error());
}

static void two_groups(void **state)
{
	struct {
		struct pair pair;
		struct tern_threads *threads;
	} ctx;
	const char *failure;

	(void)state;
	small_job(&ctx.pair.job[0], 3, TERN_LOW_LATENCY);
	small_job(&ctx.pair.job[1], 3, TERN_HIGH_THROUGHPUT);
	assert_int_equal(job_open(&ctx.pair.job[0], NULL) | job_open(&ctx.pair.job[1], NULL), 0);
	assert_int_equal(tern_threads_create(3, 60000, &ctx.threads), 0);
	failure = run_ranks(3, two_groups_body, &ctx);
	tern_threads_destroy(ctx.threads);
	job_close(&ctx.pair.job[0]);
	job_close(&ctx.pair.job[1]);
	if (failure)
		fail_msg("%s", failure);
}

/* ---- release against combine ----------------------------------------------------------------- */

static int expect_protocol(struct rank *rank, const char *call, int rc, const char *text)
{
	if (rc == TERN_ERR_PROTOCOL && strstr(tern_last_error(), text))
		return 0;
	return rank_fails(rank, "%s returned %d (%s), not TERN_ERR_PROTOCOL with \"%s\"", call, rc,
		tern_last_error(), text);
}

/* Rank 1 releases what rank 0 combines: both are told, by name, and told again. */
static void disagreement_body(struct rank *rank)
{
	struct tern_dispatch args;
	struct round r;
	int rc = round_open(&r, rank, rank->ctx, NULL);

	rc = rc ? rc : run_round(&r, 0);
	r.number = 1;
	rc = rc ? rc : round_dispatch_send(&r);
	rc = rc ? rc : round_dispatch_recv(&r);
	rc = rc ? rc : rank->rank ? round_release(&r) : round_combine_send(&r);
	round_arguments(&r, &args);
	for (int i = 0; i < 2 && !rc; i++)
		rc = rank->rank ? expect_protocol(rank, "dispatch_send",
					  tern_dispatch_send(r.moe, &args),
					  "rank 0 combined what rank 1 released")
				: expect_protocol(rank, "combine_recv",
					  tern_combine_recv(r.moe, 0, r.buffers->out, 0),
					  "rank 1 released what rank 0 combines");
	round_close(&r);
}

static void release_against_combine(void **state)
{
	struct job job;
	const char *failure;

	(void)state;
	BOTH_MODES(mode)
	{
		small_job(&job, 2, mode);
		assert_int_equal(job_open(&job, NULL), 0);
		failure = run_ranks(2, disagreement_body, &job);
		job_close(&job);
		if (failure)
			fail_msg("mode %d: %s", (int)mode, failure);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(thousands_of_rounds),
		cmocka_unit_test(slots_in_any_order),
		cmocka_unit_test(released_rounds),
		cmocka_unit_test(slow_rank),
		cmocka_unit_test(polling),
		cmocka_unit_test(epochs_wrap),
		cmocka_unit_test(capacities),
		cmocka_unit_test(two_exchanges_of_a_group),
		cmocka_unit_test(two_groups),
		cmocka_unit_test(release_against_combine),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
