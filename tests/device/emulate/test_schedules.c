/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges on emulated GPUs whose every step follows from a seed: one thread makes all ranks'
 * calls, so what fails once fails again. Each rank has a device of its own. Skipped on real GPUs,
 * which follow no seed. TERN_TEST_SEED: where to start (1); TERN_TEST_CASES: how many (20);
 * TERN_TEST_SECONDS: go on for so long instead; TERN_TEST_ROUNDS: of each case (6). */
#include <stdio.h>
#include <string.h>

#include "testkit/draw.h"
#include "testkit/random.h"
#include "tests/device/emulate/seeded.h"

#define MOST_RANKS 4

static struct seeded seeded;

struct run {
	const struct job *job;
	uint64_t seed, history;
	struct device_rounds rounds[MOST_RANKS];
};

/* One thread, all ranks. */
static void drive(struct rank *rank, void *ctx)
{
	struct run *run = ctx;
	uint64_t nr = devices_setting("TERN_TEST_ROUNDS", 6);
	uint32_t nr_ranks = run->job->nr_ranks;

	seeded.reseed(run->seed);
	for (uint64_t round = 0; round < nr; round += run->job->config.nr_slots)
		for (uint32_t i = 0; i < DEVICE_ROUNDS_STEPS * nr_ranks; i++) {
			struct device_rounds *r = &run->rounds[i % nr_ranks];

			if (device_choose(seeded.ops, r->rank) ||
				device_rounds_step(r, i / nr_ranks, round)) {
				rank_fails(rank, "rank %u, step %u of round %llu: %s", r->rank,
					i / nr_ranks, (unsigned long long)round, tern_last_error());
				return;
			}
			if (r->difference.nr) {
				rank_fails(rank, "%llu differences; the first: %s",
					(unsigned long long)r->difference.nr, r->difference.first);
				return;
			}
		}
	run->history = seeded.history();
}

static void body(struct rank *rank)
{
	struct run *run = rank->ctx;
	struct device_rounds *rounds = &run->rounds[rank->rank];
	int rc = device_choose(seeded.ops, (uint32_t)rank->rank);

	rc = rc ? rc : device_rounds_open(rounds, rank->group, run->job, seeded.ops);
	if (rc)
		rank_fails(rank, "open: %s", tern_last_error());
	if (ranks_meet(rank) || rc)
		return;
	seeded_drive(rank, drive, run);
	device_choose(seeded.ops, (uint32_t)rank->rank);
	device_rounds_close(rounds);
}

static void draw_case(uint64_t seed, struct job *job)
{
	static const struct draw_limits limits = {
		.nr_ranks = MOST_RANKS, .hidden = 640, .nr_experts = 33, .nr_tokens = 33};
	static const struct draw_limits two = {
		.nr_ranks = 2, .hidden = 256, .nr_experts = 33, .nr_tokens = 33};
	uint64_t state = hash2(seed, 0x736368);
	struct tern_moe_config *c = &job->config;

	draw_job(&state, seed % 8 == 3 ? &two : &limits, job);
	if (seed % 8 == 3) { /* so many that low latency keeps own rows between two ranks
				(cuda/tuning.h) */
		c->mode = TERN_LOW_LATENCY;
		c->max_tokens = 65 + (uint32_t)random_below(&state, 16);
		job->nr_tokens = c->max_tokens - (uint32_t)random_below(&state, 3);
	}
	c->capacity = 0;
	c->device = TERN_DEVICE_CUDA;
	c->caller_output = c->mode == TERN_LOW_LATENCY && random_below(&state, 4) == 0;
	c->wait_ms = 5000; /* of the emulation's time */
	c->nr_slots = c->nr_slots < 3 ? c->nr_slots : 3;
	devices_draw_late_weights(seed % 4, job);
}

/* NULL, or what was wrong. */
static const char *run_case(uint64_t seed, uint64_t *history)
{
	static struct run run;
	const char *failure;
	struct reason why;
	struct job job;

	draw_case(seed, &job);
	if (job_open(&job, &why))
		return "no job";
	memset(&run, 0, sizeof(run));
	run.job = &job;
	run.seed = hash2(seed, 0x72756e);
	failure = run_ranks((int)job.nr_ranks, body, &run);
	*history = run.history;
	if (failure)
		printf("seed %llu: %s\n  ranks %u, mode %d, layout %d, reduce %d, hidden %u, "
		       "experts %u, topk %u, tokens %u, dtypes %d %d %d, slots %u\n",
			(unsigned long long)seed, failure, job.nr_ranks, (int)job.config.mode,
			(int)job.config.layout, (int)job.config.reduce, job.config.hidden,
			job.config.nr_experts, job.config.topk, job.config.max_tokens,
			(int)job.config.x_dtype, (int)job.config.dispatch_dtype,
			(int)job.config.combine_dtype, job.config.nr_slots);
	job_close(&job);
	return failure;
}

/* What the seed is worth. */
static int same_again(uint64_t seed)
{
	uint64_t once, again;
	int bad = run_case(seed, &once) || run_case(seed, &again);

	bad = bad || once != again || !once;
	printf("%s - same_again\n", bad ? "not ok" : "ok");
	return bad;
}

static int is_bad(uint64_t seed)
{
	uint64_t history;

	return run_case(seed, &history) != NULL;
}

int main(void)
{
	if (!seeded_open(&seeded, MOST_RANKS))
		return 77;
	return same_again(devices_setting("TERN_TEST_SEED", 1)) |
	       seeded_cases("schedules", 20, is_bad);
}
