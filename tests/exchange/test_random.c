/* SPDX-License-Identifier: Apache-2.0 */
/* Random exchanges over all settings at once, from a seed. TERN_TEST_SEED: where to start (1);
 * TERN_TEST_CASES: how many (150); TERN_TEST_SECONDS: go on for so long instead. A failure prints
 * the command that repeats it. */
#include "tests/exchange/ranks.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "testkit/draw.h"
#include "testkit/random.h"

#define ROUNDS 12

static uint64_t setting(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static void draw_exchange(uint64_t *state, struct job *job)
{
	static const struct draw_limits limits = {
		.nr_ranks = 8, .hidden = 2880, .nr_experts = 128, .nr_tokens = 130};

	draw_job(state, &limits, job);
	job->config.wait_ms = random_below(state, 5) == 0 ? 0 : 60000;
	job->place_in = random_below(state, 3) ? 0 : 1 + random_below(state, 4);
}

/* One piece after the other, the last one first: the least that a caller's pool may do. */
static void backwards(void *ctx, uint32_t nr, void (*body)(void *arg, uint32_t i), void *arg)
{
	(void)ctx;
	while (nr--)
		body(arg, nr);
}

/* By a third of the exchanges, half of them over the caller's pool. */
static void draw_threads(uint64_t *state, struct tern_moe_config *config)
{
	config->nr_threads = 1 + (uint32_t)random_below(state, 3) / 2 * 2;
	if (config->nr_threads > 1 && random_below(state, 2))
		config->parallel_for = backwards;
}

static void draw_flow(uint64_t *state, const struct job *job, struct flow *flow)
{
	*flow = (struct flow){.job = job,
		.rounds = ROUNDS,
		.seed = random_next(state),
		.release_in = random_below(state, 2) ? 0 : 1 + random_below(state, 4),
		.sleeper = random_below(state, 3) ? -1 : (int)random_below(state, job->nr_ranks)};
	flow->manner = (struct manner){.rows_apart = random_below(state, 2) * 32,
		.wide_ids = random_below(state, 2),
		.into = job->config.mode == TERN_LOW_LATENCY && random_below(state, 3) == 0,
		.stream = random_below(state, 4) == 0};
}

static void body(struct rank *rank)
{
	run_flow(rank, rank->ctx);
}

static void print_case(uint64_t seed, const struct job *job, const char *failure)
{
	const struct tern_moe_config *c = &job->config;

	print_error("seed %llu: %s\n  ranks %u (replicas %u), mode %d, layout %d, reduce %d, "
		    "weights %d, hidden %u, experts %u + %u, topk %u,\n"
		    "  tokens %u of %u, replicas %u, experts move in %u, dtypes %d %d %d, scale "
		    "%d, payload %u, slots %u, alignment "
		    "%u, capacity %llu, epoch %u, wait %d, threads %u\n"
		    "repeat: TERN_TEST_SEED=%llu TERN_TEST_CASES=1 %s\n",
		(unsigned long long)seed, failure, job->nr_ranks, c->replica_ranks, (int)c->mode,
		(int)c->layout, (int)c->reduce, (int)c->weights, c->hidden, c->nr_experts,
		job->nr_redundant, c->topk, job->nr_tokens, c->max_tokens, c->replicas,
		job->place_in, (int)c->x_dtype, (int)c->dispatch_dtype, (int)c->combine_dtype,
		(int)c->scale, c->payload_bytes, c->nr_slots, c->alignment,
		(unsigned long long)c->capacity, c->first_epoch, c->wait_ms, c->nr_threads,
		(unsigned long long)seed, program_invocation_name);
}

/* Returns the rounds that were over capacity, to see that not all of them were. */
static int run_case(uint64_t seed)
{
	uint64_t state = hash2(seed, 0x7465726e);
	const char *failure;
	struct reason why;
	struct flow flow;
	struct job job;

	draw_exchange(&state, &job);
	draw_flow(&state, &job, &flow);
	draw_threads(&state, &job.config);
	if (job_open(&job, &why))
		fail_msg("seed %llu: no job: %s", (unsigned long long)seed, why.text);
	failure = run_ranks((int)job.nr_ranks, body, &flow);
	if (failure) {
		print_case(seed, &job, failure);
		fail();
	}
	job_close(&job);
	return flow.nr_over;
}

static void random_exchanges(void **state)
{
	uint64_t seed = setting("TERN_TEST_SEED", 1), seconds = setting("TERN_TEST_SECONDS", 0);
	uint64_t cases = setting("TERN_TEST_CASES", (uint64_t)scaled(150)), done = 0;
	time_t end = time(NULL) + (time_t)seconds;
	int nr_over = 0;

	(void)state;
	for (; seconds ? time(NULL) < end : done < cases; done++)
		nr_over += run_case(seed + done);
	print_message("# seeds %llu to %llu; %d of %llu rounds over capacity\n",
		(unsigned long long)seed, (unsigned long long)(seed + done - 1), nr_over,
		(unsigned long long)done * ROUNDS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_exchanges),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
