/* SPDX-License-Identifier: Apache-2.0 */
/* Many rounds of many shapes on GPUs, each round with fresh inputs and routing, every element
 * compared: so many of one mode and number of ranks, as ranks are threads of one process with a GPU
 * each. Shapes are small, so that what takes time is not the reference. Among them: rounds in which
 * ranks have no tokens, all tokens to one expert, and a rank that is late. Skipped where there is
 * no GPU. TERN_TEST_MODE: ll, ht (both, one after the other); TERN_TEST_RANKS (2); TERN_TEST_TOTAL:
 * rounds of each mode (200); TERN_TEST_ROUNDS: of each shape (20); TERN_TEST_SEED: where to start
 * (1); TERN_TEST_SECONDS: fails if a mode takes longer than this (no bound). */
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "testkit/draw.h"
#include "testkit/random.h"
#include "tests/device/devices.h"

#define MOST_LATE_NS 1000000

static const struct bench_device_ops *ops;
static int nr_devices;

/* What has been seen, so that nobody has to believe that it was there. */
struct seen {
	_Atomic uint64_t rank_rounds, replayed, late; /* of ranks */
	uint64_t shapes, rounds, released, without_tokens, one_expert;
};

struct shape {
	struct job job;
	uint64_t seed, nr_rounds;
	struct seen *seen;
};

/* One rank in some shapes is held up before some rounds; so are kernels of the others, which wait
 * for it. */
static int hold_up(const struct shape *shape, struct device_rounds *rounds, uint64_t round)
{
	uint64_t state = hash2(shape->seed, 0x6c617465),
		 late = random_below(&state, 4 * shape->job.nr_ranks), own = hash2(state, round);

	if (late != rounds->rank || random_below(&own, 2))
		return 0;
	shape->seen->late++;
	return ops->spin(random_below(&own, MOST_LATE_NS), rounds->lanes[0].stream);
}

static void body(struct rank *rank)
{
	struct shape *shape = rank->ctx;
	struct device_rounds rounds = {0};
	uint64_t i = 0;
	int rc = device_choose(ops, (uint32_t)rank->rank);

	rc = rc ? rc : device_rounds_open(&rounds, rank->group, &shape->job, ops);
	for (; i < shape->nr_rounds && !rc; i += shape->job.config.nr_slots) {
		rc = hold_up(shape, &rounds, i);
		rc = rc ? rc : device_rounds_verify(&rounds, i);
	}
	for (uint64_t j = 0; j < i; j++)
		shape->seen->replayed += device_rounds_replay(&rounds, j);
	shape->seen->rank_rounds += i;
	for (uint64_t j = 0; j < i && !rank->rank; j++)
		shape->seen->released += device_rounds_release(&rounds, j);
	devices_judge(rank, &rounds, i, rc);
	devices_close(rank, &rounds);
}

static void draw_shape(uint64_t seed, enum tern_mode mode, struct job *job)
{
	uint32_t nr_ranks = (uint32_t)devices_setting("TERN_TEST_RANKS", 2);
	const struct draw_limits limits = {
		.nr_ranks = nr_ranks, .hidden = 2880, .nr_experts = 128, .nr_tokens = 130};
	uint64_t state = hash2(hash2(seed, mode), 0x6c6f6e67);
	struct tern_moe_config *c = &job->config;
	uint32_t here = (nr_ranks + (uint32_t)nr_devices - 1) / (uint32_t)nr_devices;

	draw_job(&state, &limits, job);
	job->nr_ranks = nr_ranks;
	while (nr_ranks % c->replica_ranks)
		c->replica_ranks--;
	c->mode = mode;
	devices_keep_homes_together(job);
	c->capacity = 0;
	c->device = TERN_DEVICE_CUDA;
	c->caller_output = mode == TERN_LOW_LATENCY && random_below(&state, 4) == 0;
	c->wait_ms = 5000;
	while (here * c->nr_slots > devices_setting("TERN_TEST_SHARING", 16))
		c->nr_slots--;
}

static void note_shape(const struct shape *shape, struct seen *seen)
{
	uint32_t slots = shape->job.config.nr_slots;
	uint64_t nr = (shape->nr_rounds + slots - 1) / slots * slots;

	seen->shapes++;
	seen->rounds += nr;
	seen->one_expert += shape->job.routing.kind == ROUTING_ONE ? nr : 0;
	for (uint64_t i = 0; i < nr; i++) {
		bool none = false;

		for (uint32_t r = 0; r < shape->job.nr_ranks; r++)
			none |= job_nr_tokens(&shape->job, i, r) == 0;
		seen->without_tokens += none;
	}
}

static int run_shape(uint64_t seed, enum tern_mode mode, uint64_t nr_rounds, struct seen *seen)
{
	struct shape shape = {.seed = seed, .nr_rounds = nr_rounds, .seen = seen};
	const char *failure;
	struct reason why;

	draw_shape(seed, mode, &shape.job);
	if (job_open(&shape.job, &why)) {
		printf("seed %llu: no job: %s\n", (unsigned long long)seed, why.text);
		return 1;
	}
	failure = run_ranks((int)shape.job.nr_ranks, body, &shape);
	if (failure) {
		printf("seed %llu: %s\n", (unsigned long long)seed, failure);
		devices_print_job(&shape.job);
		printf("repeat: TERN_TEST_SEED=%llu TERN_TEST_TOTAL=1 TERN_TEST_MODE=%s "
		       "TERN_TEST_RANKS=%u, and the same TERN_TEST_ROUNDS\n",
			(unsigned long long)seed, mode == TERN_LOW_LATENCY ? "ll" : "ht",
			shape.job.nr_ranks);
	} else {
		note_shape(&shape, seen);
	}
	job_close(&shape.job);
	return failure != NULL;
}

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int run_mode(enum tern_mode mode)
{
	const char *const name = mode == TERN_LOW_LATENCY ? "ll" : "ht";
	uint64_t first = devices_setting("TERN_TEST_SEED", 1),
		 total = devices_setting("TERN_TEST_TOTAL", 200), seed = first;
	uint64_t each = devices_setting("TERN_TEST_ROUNDS", 20),
		 most = devices_setting("TERN_TEST_SECONDS", 0);
	struct seen seen = {0};
	double from = now_s();
	int bad = 0;

	while (!bad && seen.rounds < total && (!most || now_s() - from < (double)most))
		bad = run_shape(seed++, mode, each, &seen);
	printf("# %s, %llu ranks on %d devices: %llu rounds of %llu shapes (seeds %llu to %llu) in "
	       "%.1f s: %llu released, %llu with a rank without tokens, %llu with all to one "
	       "expert;\n"
	       "#   of %llu rounds of a rank %llu by graph replay, %llu held up\n",
		name, (unsigned long long)devices_setting("TERN_TEST_RANKS", 2), nr_devices,
		(unsigned long long)seen.rounds, (unsigned long long)seen.shapes,
		(unsigned long long)first, (unsigned long long)seed - 1, now_s() - from,
		(unsigned long long)seen.released, (unsigned long long)seen.without_tokens,
		(unsigned long long)seen.one_expert, (unsigned long long)seen.rank_rounds,
		(unsigned long long)seen.replayed, (unsigned long long)seen.late);
	if (!bad && seen.rounds < total)
		printf("# of %llu rounds, only these in %llu s\n", (unsigned long long)total,
			(unsigned long long)most);
	bad |= seen.rounds < total;
	printf("%s - long_%s\n", bad ? "not ok" : "ok", name);
	return bad;
}

int main(void)
{
	ops = devices_open(&nr_devices);
	return ops ? devices_run_modes(run_mode) : 77;
}
