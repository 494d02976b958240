/* SPDX-License-Identifier: Apache-2.0 */
/* Random exchanges over all settings at once, from a seed. TERN_TEST_SEED: where to start (1); TERN_TEST_CASES: how many (150);
 * TERN_TEST_SECONDS: go on for so long instead. A failure prints the command that repeats it. */
#include "ranks.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "bench/random.h"

#define ROUNDS 12

static uint64_t setting(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static uint32_t one_of(uint64_t *state, const uint32_t *values, uint32_t nr)
{
	return values[random_below(state, nr)];
}

static void draw_dtypes(uint64_t *state, struct tern_moe_config *c)
{
	c->x_dtype = (enum tern_dtype)(1 + random_below(state, 5));
	c->dispatch_dtype = c->x_dtype;
	if (c->x_dtype <= TERN_FP32 && random_below(state, 2))
		c->dispatch_dtype = TERN_FP8_E4M3;
	c->scale = c->dispatch_dtype == TERN_FP8_E4M3 ? (enum tern_scale)(1 + random_below(state, 2)) : TERN_SCALE_NONE;
	c->payload_bytes = c->dispatch_dtype == TERN_BYTES ? 16 * (1 + random_below(state, 40)) : 0;
	c->combine_dtype = (enum tern_dtype)(1 + random_below(state, 3));
}

static void draw_kind(uint64_t *state, struct tern_moe_config *c)
{
	c->mode = (enum tern_mode)(1 + random_below(state, 2));
	c->layout = (enum tern_layout)(1 + random_below(state, 3));
	c->reduce = (enum tern_reduce)(1 + random_below(state, 2));
	c->weights = (enum tern_weights)(1 + random_below(state, 2));
	if (c->layout == TERN_BY_SOURCE) {
		c->reduce = TERN_REDUCE_EXPERT;
		c->weights = TERN_WEIGHTS_PASS;
	}
}

static void draw_sizes(uint64_t *state, struct job *job)
{
	static const uint32_t hidden[] = {16, 32, 48, 112, 128, 144, 256, 272, 640, 1024, 2880};
	static const uint32_t experts[] = {1, 2, 3, 5, 8, 16, 33, 60, 64, 128};
	static const uint32_t tokens[] = {1, 2, 3, 7, 16, 33, 64, 130};
	static const uint32_t ranks[] = {1, 2, 2, 3, 3, 4, 4, 5, 6, 8};
	static const uint32_t slots[] = {1, 1, 1, 2, 2, 3, 7};
	static const uint32_t alignment[] = {1, 1, 2, 8, 16, 128};
	static const uint32_t epochs[] = {1, 1, 0, 7, UINT32_MAX, UINT32_MAX - 3, 1u << 31};
	struct tern_moe_config *c = &job->config;

#define ONE_OF(values) one_of(state, values, sizeof(values) / sizeof((values)[0]))
	job->nr_ranks = ONE_OF(ranks);
	c->hidden = ONE_OF(hidden);
	c->nr_experts = ONE_OF(experts);
	c->topk = 1 + random_below(state, c->nr_experts < TERN_MAX_TOPK ? c->nr_experts : TERN_MAX_TOPK);
	if (random_below(state, 2) && c->topk > 8)
		c->topk = 8;
	c->max_tokens = ONE_OF(tokens);
	job->nr_tokens = random_below(state, 4) ? c->max_tokens : random_below(state, c->max_tokens + 1);
	c->nr_slots = ONE_OF(slots);
	c->alignment = ONE_OF(alignment);
	c->first_epoch = ONE_OF(epochs);
#undef ONE_OF
	c->replica_ranks = random_below(state, 3) ? 1 : 1 + random_below(state, job->nr_ranks);
	while (job->nr_ranks % c->replica_ranks)
		c->replica_ranks--;
	if (c->mode == TERN_HIGH_THROUGHPUT && random_below(state, 3) == 0)
		c->capacity = 1 + random_below(state, 2 * c->max_tokens * c->topk);
}

static void draw_job(uint64_t *state, struct job *job)
{
	job_init(job);
	draw_kind(state, &job->config);
	draw_dtypes(state, &job->config);
	draw_sizes(state, job);
	job->seed = random_next(state);
	job->input = (enum job_input)random_below(state, 3);
	job->routing.kind = random_below(state, 5) == 0 ? ROUTING_ONE : random_below(state, 2) ? ROUTING_ZIPF : ROUTING_UNIFORM;
	job->routing.exponent = 1.2;
	job->routing.drop = random_below(state, 2) ? 0 : 0.3;
	job->routing.uneven = random_below(state, 2);
	job->nr_redundant = random_below(state, 3) ? 0 : random_below(state, 9);
	job->spread = random_below(state, 3) == 0;
	job->no_weights = random_below(state, 4) == 0;
	job->config.wait_ms = random_below(state, 5) == 0 ? 0 : 60000;
}

static void draw_flow(uint64_t *state, const struct job *job, struct flow *flow)
{
	*flow = (struct flow){.job = job, .rounds = ROUNDS, .seed = random_next(state),
		.release_in = random_below(state, 2) ? 0 : 1 + random_below(state, 4),
		.sleeper = random_below(state, 3) ? -1 : (int)random_below(state, job->nr_ranks)};
	flow->manner = (struct manner){.rows_apart = random_below(state, 2) * 32, .wide_ids = random_below(state, 2),
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

	print_error("seed %llu: %s\n  ranks %u (replicas %u), mode %d, layout %d, reduce %d, weights %d, hidden %u, experts %u + %u, topk %u,\n"
		    "  tokens %u of %u, dtypes %d %d %d, scale %d, payload %u, slots %u, alignment %u, capacity %llu, epoch %u, wait %d\n"
		    "repeat: TERN_TEST_SEED=%llu TERN_TEST_CASES=1 %s\n",
		(unsigned long long)seed, failure, job->nr_ranks, c->replica_ranks, (int)c->mode, (int)c->layout, (int)c->reduce, (int)c->weights,
		c->hidden, c->nr_experts, job->nr_redundant, c->topk, job->nr_tokens, c->max_tokens, (int)c->x_dtype, (int)c->dispatch_dtype,
		(int)c->combine_dtype, (int)c->scale, c->payload_bytes, c->nr_slots, c->alignment, (unsigned long long)c->capacity,
		c->first_epoch, c->wait_ms, (unsigned long long)seed, program_invocation_name);
}

/* Returns the rounds that were over capacity, to see that not all of them were. */
static int run_case(uint64_t seed)
{
	uint64_t state = hash2(seed, 0x7465726e);
	const char *failure;
	struct reason why;
	struct flow flow;
	struct job job;

	draw_job(&state, &job);
	draw_flow(&state, &job, &flow);
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
	print_message("# seeds %llu to %llu; %d of %llu rounds over capacity\n", (unsigned long long)seed,
		(unsigned long long)(seed + done - 1), nr_over, (unsigned long long)done * ROUNDS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_exchanges),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
