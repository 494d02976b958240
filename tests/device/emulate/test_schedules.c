/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges on emulated GPUs whose every step follows from a seed: one thread makes all ranks' calls, so what fails once fails again. Each rank has a device of
 * its own. Skipped on real GPUs, which follow no seed.
 * TERN_TEST_SEED: where to start (1); TERN_TEST_CASES: how many (20); TERN_TEST_SECONDS: go on for so long instead; TERN_TEST_ROUNDS: of each case (6). */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/draw.h"
#include "bench/random.h"
#include "cli/device_rounds.h"
#include "tests/exchange/ranks.h"

#define MOST_RANKS 4

static const struct device_ops *ops;
static void (*reseed)(uint64_t seed);
static uint64_t (*history_of)(void);

struct run {
	const struct job *job;
	uint64_t seed, history;
	struct device_rounds rounds[MOST_RANKS];
};

static uint64_t setting(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

/* One thread, all ranks. */
static void drive(struct rank *rank, struct run *run)
{
	uint64_t nr = setting("TERN_TEST_ROUNDS", 6);
	uint32_t nr_ranks = run->job->nr_ranks;

	reseed(run->seed);
	for (uint64_t round = 0; round < nr; round += run->job->config.nr_slots)
		for (uint32_t i = 0; i < DEVICE_ROUNDS_STEPS * nr_ranks; i++) {
			struct device_rounds *r = &run->rounds[i % nr_ranks];

			if (device_choose(ops, r->rank) || device_rounds_step(r, i / nr_ranks, round)) {
				rank_fails(rank, "rank %u, step %u of round %llu: %s", r->rank, i / nr_ranks, (unsigned long long)round, tern_last_error());
				return;
			}
			if (r->difference.nr) {
				rank_fails(rank, "%llu differences; the first: %s", (unsigned long long)r->difference.nr, r->difference.first);
				return;
			}
		}
	run->history = history_of();
}

static void body(struct rank *rank)
{
	struct run *run = rank->ctx;
	struct device_rounds *rounds = &run->rounds[rank->rank];
	int rc = device_choose(ops, (uint32_t)rank->rank);

	rc = rc ? rc : device_rounds_open(rounds, rank->group, run->job, ops);
	if (rc)
		rank_fails(rank, "open: %s", tern_last_error());
	if (ranks_meet(rank) || rc)
		return;
	if (rank->rank == 0)
		drive(rank, run);
	ranks_meet(rank);
	device_choose(ops, (uint32_t)rank->rank);
	device_rounds_close(rounds);
}

static void draw_case(uint64_t seed, struct job *job)
{
	static const struct draw_limits limits = {.nr_ranks = MOST_RANKS, .hidden = 640, .nr_experts = 33, .nr_tokens = 33};
	uint64_t state = hash2(seed, 0x736368);
	struct tern_moe_config *c = &job->config;

	draw_job(&state, &limits, job);
	c->capacity = 0;
	c->device = TERN_DEVICE_CUDA;
	c->caller_output = c->mode == TERN_LOW_LATENCY && random_below(&state, 4) == 0;
	c->wait_ms = 5000; /* of the emulation's time */
	c->nr_slots = c->nr_slots < 3 ? c->nr_slots : 3;
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
		printf("seed %llu: %s\n  ranks %u, mode %d, layout %d, reduce %d, hidden %u, experts %u, topk %u, tokens %u, dtypes %d %d %d, slots %u\n",
			(unsigned long long)seed, failure, job.nr_ranks, (int)job.config.mode, (int)job.config.layout, (int)job.config.reduce, job.config.hidden,
			job.config.nr_experts, job.config.topk, job.config.max_tokens, (int)job.config.x_dtype, (int)job.config.dispatch_dtype,
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

static int schedules(uint64_t seed)
{
	uint64_t seconds = setting("TERN_TEST_SECONDS", 0), cases = setting("TERN_TEST_CASES", 20), done = 0, history;
	time_t end = time(NULL) + (time_t)seconds;
	int bad = 0;

	for (; !bad && (seconds ? time(NULL) < end : done < cases); done++)
		bad = run_case(seed + done, &history) != NULL;
	if (bad)
		printf("repeat: TERN_TEST_SEED=%llu TERN_TEST_CASES=1, and the same TERN_TEST_ROUNDS and TERN_EMULATED_...\n", (unsigned long long)(seed + done - 1));
	printf("# seeds %llu to %llu\n%s - schedules\n", (unsigned long long)seed, (unsigned long long)(seed + done - 1), bad ? "not ok" : "ok");
	return bad;
}

int main(void)
{
	const char *path = getenv("TERN_CUDA_LIBRARY");
	uint64_t seed = setting("TERN_TEST_SEED", 1);
	void *library;
	int nr = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	ops = device_ops_load();
	library = ops && path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
	reseed = library ? (void (*)(uint64_t))dlsym(library, "emulated_reseed") : NULL;
	history_of = library ? (uint64_t(*)(void))dlsym(library, "emulated_history") : NULL;
	if (!reseed || !history_of || ops->nr_devices(&nr) || nr < MOST_RANKS) {
		printf("TERN_CUDA_LIBRARY names no emulated GPUs, or fewer than %d\n", MOST_RANKS);
		return 77;
	}
	return same_again(seed) | schedules(seed);
}
