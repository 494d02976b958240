/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels behind gates: rows are copied as soon as their tile is said to be whole, and y is taken
 * home tile by tile while it is made. Even seeds are high throughput's, where rounds may be over
 * their capacity, too. On emulated GPUs every step follows from a seed, and with a mistake made on
 * purpose some seed has to fail; on real ones each rank's thread makes its calls. TERN_TEST_MODE
 * (ll, ht): all seeds are that mode's, and none is made wrong. TERN_TEST_NODES:
 * rows of other nodes come by runs; each rank's thread, too. TERN_TEST_WITHOUT=
 * combine: all rounds are released. TERN_TEST_SEED, TERN_TEST_CASES, TERN_TEST_ROUNDS as in
 * test_schedules. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "testkit/draw.h"
#include "testkit/random.h"
#include "testkit/device/inside.h"
#include "tests/device/emulate/seeded.h"

#define MOST_RANKS 4
#define MOST_SEEDED 3 /* ranks */
#define MOST_SMS 3    /* of the exchange's kernels: others are left to those behind gates */

static struct seeded seeded;
static bool by_seed;  /* else the GPUs are real, or there are nodes */
static bool by_nodes; /* TERN_TEST_NODES */
static int nr_devices;

struct ranks_rows {
	uint8_t *seen_x, *seen_scales, *y;
	uint64_t x_bytes, scales_bytes, y_bytes; /* of all */
};

struct run {
	const struct job *job;
	uint64_t seed;
	enum gate_mistake broken;
	bool wrong; /* as it has to be where there is a mistake: rows, sums, or a wait for a tile */
	uint32_t abandoned; /* ranks that were told so of this round */
	struct device_rounds rounds[MOST_RANKS];
	struct ranks_rows rows[MOST_RANKS];
};

static int make_rows(struct run *run, uint32_t rank)
{
	struct device_rounds *r = &run->rounds[rank];
	struct ranks_rows *rows = &run->rows[rank];
	int rc;

	rows->x_bytes = r->positions * job_received_bytes(run->job);
	rows->scales_bytes = r->positions * job_received_scales_bytes(run->job);
	rows->y_bytes = r->positions * job_y_bytes(run->job);
	rc = r->ops->memory_create(rows->x_bytes + 64, (void **)&rows->seen_x);
	rc = rc ? rc : r->ops->memory_create(rows->scales_bytes + 64, (void **)&rows->seen_scales);
	rc = rc ? rc : r->ops->memory_create(rows->y_bytes + 64, (void **)&rows->y);
	return device_passed_on(r, rc);
}

static void free_rows(struct run *run, uint32_t rank)
{
	void *all[] = {run->rows[rank].seen_x, run->rows[rank].seen_scales, run->rows[rank].y};

	for (int i = 0; i < 3; i++)
		if (all[i])
			run->rounds[rank].ops->memory_free(all[i]);
}

/* The same on all ranks. */
static struct device_manner manner_of(const struct run *run, uint64_t round)
{
	uint64_t state = hash2(run->seed, 0x6d616e6e + round);

	return (struct device_manner){.graphs = true,
		.apart = random_below(&state, 4) == 0,
		.release = !run->broken &&
			   (random_below(&state, 4) == 0 || devices_without("combine"))};
}

/* No kernel between the dispatch and a release, behind a round with a gated combine. */
static bool is_idle(const struct run *run, uint64_t round)
{
	return manner_of(run, round).release && hash2(run->seed, round) % 2;
}

/* All that goes onto a rank's stream in a round. */
static int put_round(struct run *run, uint32_t rank, uint64_t round)
{
	struct device_rounds *r = &run->rounds[rank];
	struct device_lane *lane = &r->lanes[0];
	struct ranks_rows *rows = &run->rows[rank];
	struct device_manner manner = manner_of(run, round);
	struct tern_combine combine = {.size = sizeof(combine), .y = rows->y, .gated = 1};
	struct gate_consumer c = {.gate = {.size = sizeof(c.gate)},
		.x_bytes = job_received_bytes(run->job),
		.scales_bytes = job_received_scales_bytes(run->job),
		.y_bytes = job_y_bytes(run->job),
		.prepared = lane->y,
		.y = rows->y,
		.seen_x = rows->seen_x,
		.seen_scales = rows->seen_scales,
		.broken = run->broken};
	int rc = device_put_inputs(r, 0, round);

	rc = rc ? rc
		: device_passed_on(
			  r, r->ops->fill(rows->seen_x, 0xa5, rows->x_bytes, lane->stream));
	rc = rc ? rc
		: device_passed_on(r,
			  r->ops->fill(rows->seen_scales, 0xa5, rows->scales_bytes, lane->stream));
	rc = rc ? rc
		: device_passed_on(r, r->ops->fill(rows->y, 0x5a, rows->y_bytes, lane->stream));
	rc = rc ? rc : tern_moe_gate(r->moe, 0, &c.gate);
	rc = rc ? rc : device_put_dispatch(r, 0, &manner, job_nr_tokens(run->job, round, r->rank));
	c.x = lane->received.x;
	c.scales = lane->received.scales;
	if (!is_idle(run, round))
		rc = rc ? rc : device_passed_on(r, r->ops->consume(&c, lane->stream));
	if (manner.release)
		return rc ? rc : tern_release(r->moe, 0);
	return rc ? rc : tern_combine(r->moe, &combine, lane->out, 0);
}

/* What was seen through the gates, and what came home. */
static int verify_round(struct run *run, uint32_t rank, uint64_t round)
{
	struct device_rounds *r = &run->rounds[rank];
	struct device_lane *lane = &r->lanes[0];
	struct device_manner manner = manner_of(run, round);
	uint64_t extent;
	int rc = device_passed_on(r, r->ops->stream_wait(lane->stream));

	rc = rc ? rc : tern_moe_status(r->moe);
	if (rc == TERN_ERR_CAPACITY && run->job->config.capacity) {
		__atomic_fetch_add(&run->abandoned, 1, __ATOMIC_RELAXED);
		return 0;
	}
	if (!is_idle(run, round)) {
		lane->received.x = run->rows[rank].seen_x;
		lane->received.scales =
			run->rows[rank].scales_bytes ? run->rows[rank].seen_scales : NULL;
	}
	rc = rc ? rc : device_verify_rows(r, 0, round, &extent);
	return rc ? rc : device_verify_results(r, 0, round, &manner);
}

/* Or for results that wait for one: whichever wait expires first is told. */
static bool waits_for_tiles(const char *error)
{
	return strstr(error, "for a tile of y") || strstr(error, "for a result");
}

/* One thread, all ranks. */
static void drive(struct rank *rank, void *ctx)
{
	struct run *run = ctx;
	uint64_t nr = devices_setting("TERN_TEST_ROUNDS", 3);
	uint32_t nr_ranks = run->job->nr_ranks;

	seeded.reseed(run->seed);
	for (uint64_t round = 0; round < nr; round++) {
		run->abandoned = 0;
		for (uint32_t i = 0; i < 2 * nr_ranks; i++) {
			struct device_rounds *r = &run->rounds[i % nr_ranks];

			if (device_choose(seeded.ops, r->rank) ||
				(i < nr_ranks ? put_round(run, r->rank, round)
					      : verify_round(run, r->rank, round))) {
				run->wrong = waits_for_tiles(tern_last_error());
				if (run->broken != GATE_SILENT || !run->wrong)
					rank_fails(rank, "rank %u, round %llu: %s", r->rank,
						(unsigned long long)round, tern_last_error());
				return;
			}
			run->wrong = run->wrong || r->difference.nr;
			if (r->difference.nr && !run->broken)
				rank_fails(rank, "%llu differences; the first: %s",
					(unsigned long long)r->difference.nr, r->difference.first);
			if (r->difference.nr)
				return;
		}
		if (run->abandoned && run->abandoned < nr_ranks)
			rank_fails(rank, "round %llu: %u of %u ranks were told that it is empty",
				(unsigned long long)round, run->abandoned, nr_ranks);
	}
}

/* Each rank by itself. */
static void drive_own(struct rank *rank, struct run *run)
{
	struct device_rounds *r = &run->rounds[rank->rank];
	uint64_t nr = devices_setting("TERN_TEST_ROUNDS", 20);
	int rc = 0;

	for (uint64_t round = 0; round < nr && !rc && !r->difference.nr; round++) {
		rc = put_round(run, r->rank, round);
		rc = rc ? rc : verify_round(run, r->rank, round);
	}
	if (rc)
		rank_fails(rank, "%s", tern_last_error());
	if (r->difference.nr)
		rank_fails(rank, "%llu differences; the first: %s",
			(unsigned long long)r->difference.nr, r->difference.first);
}

static void body(struct rank *rank)
{
	struct run *run = rank->ctx;
	struct device_rounds *rounds = &run->rounds[rank->rank];
	int rc = device_choose(seeded.ops, (uint32_t)rank->rank);

	rc = rc ? rc : device_rounds_open(rounds, rank->group, run->job, seeded.ops);
	rc = rc ? rc : tern_moe_set_sms(rounds->moe, MOST_SMS);
	rc = rc ? rc : make_rows(run, (uint32_t)rank->rank);
	if (rc)
		rank_fails(rank, "open: %s", tern_last_error());
	if (ranks_meet(rank) || rc)
		return;
	if (by_seed)
		seeded_drive(rank, drive, run);
	else
		drive_own(rank, run);
	ranks_meet(rank);
	device_choose(seeded.ops, (uint32_t)rank->rank);
	free_rows(run, (uint32_t)rank->rank);
	device_rounds_close(rounds);
}

static enum tern_mode mode_of(uint64_t seed)
{
	const char *mode = getenv("TERN_TEST_MODE");

	if (mode)
		return strcmp(mode, "ht") ? TERN_LOW_LATENCY : TERN_HIGH_THROUGHPUT;
	return seed % 2 ? TERN_LOW_LATENCY : TERN_HIGH_THROUGHPUT;
}

/* Some rounds are over it, or all, or none. */
static uint64_t draw_capacity(uint64_t *state, const struct tern_moe_config *c)
{
	return c->mode == TERN_HIGH_THROUGHPUT && random_below(state, 3) == 0
		       ? 1 + random_below(state, 2 * c->max_tokens)
		       : 0;
}

static void draw_case(uint64_t seed, struct job *job)
{
	int most = by_nodes ? MOST_RANKS : MOST_SEEDED;
	const struct draw_limits limits = {
		.nr_ranks = (uint32_t)(nr_devices < most ? nr_devices : most),
		.hidden = 640,
		.nr_experts = 9,
		.nr_tokens = by_seed ? 60 : 400};
	uint64_t state = hash2(seed, 0x67617465);
	struct tern_moe_config *c = &job->config;

	draw_job(&state, &limits, job);
	c->mode = mode_of(seed);
	c->layout = random_below(&state, 2) ? TERN_CONTIGUOUS : TERN_PADDED;
	c->alignment = c->layout == TERN_PADDED ? 1 : c->alignment;
	c->weights = TERN_WEIGHTS_COMBINE;
	c->combine_dtype = TERN_BF16;
	c->x_dtype = TERN_BF16;
	c->dispatch_dtype = random_below(&state, 2) ? TERN_FP8_E4M3 : TERN_BF16;
	c->scale = c->dispatch_dtype == TERN_FP8_E4M3 ? TERN_SCALE_FP32 : TERN_SCALE_NONE;
	c->hidden = 16 * (1 + random_below(&state, 40));
	c->gate_rows = random_below(&state, 2) ? 64 : 128;
	c->payload_bytes = 0;
	c->capacity = draw_capacity(&state, c);
	if (c->mode == TERN_HIGH_THROUGHPUT && random_below(&state, 4) == 0)
		c->hidden = 4096; /* in BF16 a row goes in two parts */
	c->device = TERN_DEVICE_CUDA;
	c->caller_output = 0;
	/* Of the emulation's time. */
	c->wait_ms = (int)devices_setting("TERN_TEST_WAIT_MS", by_nodes ? 20000 : 5000);
	c->nr_slots = 1;
	devices_keep_homes_together(job);
	job->wants = false;
	job->routing.kind = random_below(&state, 3) ? ROUTING_UNIFORM : ROUTING_ONE;
}

/* NULL, or what was wrong; *wrong: rows or sums were. */
static const char *run_case(uint64_t seed, enum gate_mistake broken, bool *wrong)
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
	run.broken = broken;
	failure = run_ranks((int)job.nr_ranks, body, &run);
	*wrong = run.wrong;
	if (failure)
		printf("seed %llu: %s\n  mode %d, capacity %llu, ranks %u, layout %d, reduce %d, "
		       "hidden %u, experts %u, topk %u, tokens %u, dtype %d, gate_rows %u\n",
			(unsigned long long)seed, failure, (int)job.config.mode,
			(unsigned long long)job.config.capacity, job.nr_ranks,
			(int)job.config.layout, (int)job.config.reduce, job.config.hidden,
			job.config.nr_experts, job.config.topk, job.config.max_tokens,
			(int)job.config.dispatch_dtype, job.config.gate_rows);
	job_close(&job);
	return failure;
}

static int is_bad(uint64_t seed)
{
	bool wrong;

	return run_case(seed, GATE_RIGHT, &wrong) != NULL;
}

/* Some of a few seeds shows it. */
static int is_found(const char *name, enum gate_mistake broken, enum tern_mode mode)
{
	uint64_t first = devices_setting("TERN_TEST_SEED", 1);
	bool found = false;

	for (uint64_t seed = first; seed < first + 16 && !found; seed++)
		if (mode_of(seed) == mode && run_case(seed, broken, &found))
			break;
	printf("%s - finds_%s%s\n", found ? "ok" : "not ok", name,
		mode == TERN_HIGH_THROUGHPUT ? "_in_high_throughput" : "");
	return !found;
}

int main(void)
{
	seeded.ops = devices_open(&nr_devices);
	if (!seeded.ops)
		return 77;
	by_nodes = getenv("TERN_TEST_NODES");
	by_seed = seeded_open(&seeded, MOST_SEEDED) && !by_nodes;
	if (!by_seed || getenv("TERN_TEST_MODE"))
		return seeded_cases("gates", 30, is_bad);
	return is_found("rows_not_waited_for", GATE_BLIND, TERN_LOW_LATENCY) |
	       is_found("rows_not_waited_for", GATE_BLIND, TERN_HIGH_THROUGHPUT) |
	       is_found("marks_too_early", GATE_HASTY, TERN_LOW_LATENCY) |
	       is_found("marks_too_early", GATE_HASTY, TERN_HIGH_THROUGHPUT) |
	       is_found("marks_missing", GATE_SILENT, TERN_LOW_LATENCY) |
	       is_found("marks_missing", GATE_SILENT, TERN_HIGH_THROUGHPUT) |
	       seeded_cases("gates", 16, is_bad);
}
