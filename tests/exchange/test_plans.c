/* SPDX-License-Identifier: Apache-2.0 */
/* Plans that outlive their round: dispatched and combined again in any order, with other x and y,
 * bit for bit as the reference has it; and what is refused. TERN_TEST_SEED: where to start (1);
 * TERN_TEST_CASES: how many exchanges; TERN_TEST_ROUNDS: of each. */
#include "tests/exchange/ranks.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "testkit/draw.h"
#include "testkit/random.h"

#define NR_KEPT 3

static uint64_t setting(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

struct kept {
	uint64_t plan, round; /* whose routes it has; plan 0: none */
	uint64_t extent;      /* of the rows received then */
};

/* The same steps on all ranks. */
struct player {
	struct round *rounds; /* [slots] */
	struct kept kept[NR_KEPT];
	uint64_t state, nr;
	uint32_t nr_slots;
};

static int step_fails(struct round *round, const char *what, int rc)
{
	return rank_fails(round->rank, "round %llu: %s: %d (%s)", (unsigned long long)round->number,
		what, rc, tern_last_error());
}

static int halves(struct player *p, struct round *round)
{
	if (random_below(&p->state, 2))
		return round_dispatch(round);
	return round_dispatch_send(round) ? -1 : round_dispatch_recv(round);
}

static int combine(struct player *p, struct round *round)
{
	if (random_below(&p->state, 2))
		return round_combine(round);
	return round_combine_send(round) ? -1 : round_combine_recv(round);
}

/* After a dispatch: its combine, or none. */
static int end_round(struct player *p, struct round *round)
{
	return random_below(&p->state, 3) ? combine(p, round) : round_release(round);
}

/* A round with routes of its own, which a plan may be made of, in place of another. */
static int fresh_round(struct player *p, struct round *round, struct kept *kept)
{
	uint64_t old = kept->plan;
	int rc = 0;

	round->plan = 0;
	if (halves(p, round))
		return -1;
	if (random_below(&p->state, 2)) {
		rc = tern_plan_create(round->moe, round->slot, &kept->plan);
		kept->round = p->nr;
		kept->extent = round->received.extent;
		if (!rc && old)
			rc = tern_plan_destroy(round->moe, old);
	}
	return rc ? step_fails(round, "plan", rc) : end_round(p, round);
}

static int step(struct player *p)
{
	struct round *round = &p->rounds[random_below(&p->state, p->nr_slots)];
	struct kept *kept = &p->kept[random_below(&p->state, NR_KEPT)];
	uint32_t what = (uint32_t)random_below(&p->state, 5);

	round->number = p->nr;
	round->replays = false;
	if (!kept->plan || what == 0)
		return fresh_round(p, round, kept);
	round->plan = kept->plan;
	round->routes = kept->round;
	if (what < 3)
		return halves(p, round) ? -1 : end_round(p, round);
	round->replays = true;
	round->received.extent = kept->extent;
	return combine(p, round);
}

struct game {
	struct job job;
	uint64_t seed, rounds;
};

static void play(struct rank *rank)
{
	static const struct manner plain;
	const struct game *game = rank->ctx;
	struct player p = {
		.state = hash2(game->seed, 0x706c616e), .nr_slots = game->job.config.nr_slots};
	uint32_t opened = 0;
	int rc = 0;

	p.rounds = calloc(p.nr_slots, sizeof(*p.rounds));
	for (; p.rounds && opened < p.nr_slots && !rc; opened++)
		rc = opened ? round_open_beside(&p.rounds[opened], &p.rounds[0], opened)
			    : round_open(&p.rounds[0], rank, &game->job, &plain);
	for (; p.rounds && p.nr < game->rounds && !rc; p.nr++)
		rc = step(&p);
	if (p.nr < game->rounds)
		rank_fails(rank, "%llu of %llu rounds were played", (unsigned long long)p.nr,
			(unsigned long long)game->rounds);
	while (opened)
		round_close(&p.rounds[--opened]);
	free(p.rounds);
}

static void draw_game(uint64_t seed, struct game *game)
{
	static const struct draw_limits limits = {
		.nr_ranks = 6, .hidden = 640, .nr_experts = 64, .nr_tokens = 40};
	uint64_t state = hash2(seed, 0x67616d65);

	draw_job(&state, &limits, &game->job);
	game->job.config.capacity = 0;
	game->job.config.wait_ms = random_below(&state, 5) == 0 ? 0 : 60000;
	game->job.config.nr_threads = 1 + (uint32_t)random_below(&state, 4) / 3;
	game->seed = seed;
	game->rounds = setting("TERN_TEST_ROUNDS", 40);
}

static void random_games(void **unused)
{
	uint64_t seed = setting("TERN_TEST_SEED", 1);
	uint64_t cases = setting("TERN_TEST_CASES", (uint64_t)scaled(60));

	(void)unused;
	for (uint64_t i = 0; i < cases; i++) {
		const char *failure;
		struct reason why;
		struct game game;

		draw_game(seed + i, &game);
		if (job_open(&game.job, &why))
			fail_msg("seed %llu: no job: %s", (unsigned long long)(seed + i), why.text);
		failure = run_ranks((int)game.job.nr_ranks, play, &game);
		if (failure)
			fail_msg("%s\nrepeat: TERN_TEST_SEED=%llu TERN_TEST_CASES=1 %s", failure,
				(unsigned long long)(seed + i), program_invocation_name);
		job_close(&game.job);
	}
	print_message("# %llu exchanges, %llu rounds each\n", (unsigned long long)cases,
		(unsigned long long)setting("TERN_TEST_ROUNDS", 40));
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void small_job(struct job *job, enum tern_mode mode)
{
	job_init(job);
	job->nr_ranks = 2;
	job->nr_tokens = job->config.max_tokens = 8;
	job->config.mode = mode;
	job->config.hidden = 64;
	job->config.nr_experts = 8;
	job->config.topk = 2;
	job->config.wait_ms = 60000;
}

static int wants(struct round *round, int rc, int wanted, const char *text)
{
	if (rc == wanted && strstr(tern_last_error(), text))
		return 0;
	return rank_fails(round->rank, "got %d (%s), wanted %d (...%s...)", rc, tern_last_error(),
		wanted, text);
}

/* Each is refused, and nothing has changed: the round that was meant follows. */
static int refuse_all(struct round *round)
{
	struct tern_dispatch args = {.size = sizeof(args)};
	struct tern_combine combine = {.size = sizeof(combine)};
	uint64_t plan = 0, other = 0;
	tern_moe *moe = round->moe;
	int32_t ids[16] = {0};

	round->number = 1;
	if (wants(round, tern_plan_create(moe, 0, &plan), TERN_ERR_STATE, "dispatch_send") ||
		wants(round, tern_plan_destroy(moe, 7), TERN_ERR_STATE, "no plan 7") ||
		round_dispatch_send(round) ||
		wants(round, tern_plan_create(moe, 0, &plan), TERN_ERR_STATE, "dispatch_recv") ||
		round_dispatch_recv(round) || tern_plan_create(moe, 0, &plan) ||
		tern_plan_create(moe, 0, &other))
		return -1;
	combine.plan = plan;
	combine.y = round->buffers->y;
	if (wants(round, tern_combine_send(moe, &combine), TERN_ERR_INVALID, "0: it was") ||
		round_combine_send(round) ||
		wants(round, tern_plan_create(moe, 0, &plan), TERN_ERR_STATE, "combine_recv") ||
		round_combine_recv(round) ||
		wants(round, tern_combine_recv(moe, 0, round->buffers->out, 0), TERN_ERR_STATE,
			"dispatch_send"))
		return -1;
	args.plan = plan;
	args.nr_tokens = 7;
	args.x = round->buffers->x;
	if (wants(round, tern_dispatch_send(moe, &args), TERN_ERR_INVALID, "has 8"))
		return -1;
	args.nr_tokens = 8;
	args.topk_ids = ids;
	if (wants(round, tern_dispatch_send(moe, &args), TERN_ERR_INVALID, "topk_ids"))
		return -1;
	args.topk_ids = NULL;
	args.x = NULL;
	if (wants(round, tern_dispatch_send(moe, &args), TERN_ERR_INVALID, "x is NULL"))
		return -1;
	combine.y = NULL;
	if (wants(round, tern_combine_send(moe, &combine), TERN_ERR_INVALID, "y is NULL"))
		return -1;
	combine.y = round->buffers->y;
	if (wants(round, tern_combine(moe, &combine, NULL, 0), TERN_ERR_INVALID, "out is NULL") ||
		tern_plan_destroy(moe, plan))
		return -1;
	args.x = round->buffers->x;
	if (wants(round, tern_dispatch_send(moe, &args), TERN_ERR_STATE, "or no more") ||
		wants(round, tern_combine_send(moe, &combine), TERN_ERR_STATE, "or no more") ||
		wants(round, tern_plan_destroy(moe, plan), TERN_ERR_STATE, "or no more"))
		return -1;
	round->plan = other;
	round->routes = 1;
	round->number = 5;
	round->replays = true;
	if (round_results(round, &combine) || ranks_meet(round->rank) || tern_moe_set_wait(moe, 0))
		return -1;
	/* Begun, and the other has not: with another plan, or none, it does not go on. */
	if (round->rank->rank == 0) {
		if (wants(round, tern_combine_send(moe, &combine), TERN_ERR_TIMEOUT, "missing") ||
			wants(round, tern_plan_destroy(moe, other), TERN_ERR_STATE, "in use") ||
			wants(round, tern_release(moe, 0), TERN_ERR_STATE, "with its plan"))
			return -1;
		combine.plan = 0;
		if (wants(round, tern_combine_send(moe, &combine), TERN_ERR_STATE, "with its plan"))
			return -1;
	}
	if (ranks_meet(round->rank) || tern_moe_set_wait(moe, 60000))
		return -1;
	return round_combine(round);
}

static void refusals_of_rank(struct rank *rank)
{
	static const struct manner plain;
	const struct job *job = rank->ctx;
	struct round round;

	if (!round_open(&round, rank, job, &plain))
		refuse_all(&round);
	round_close(&round);
}

static void refusals(void **unused)
{
	(void)unused;
	for (int mode = TERN_LOW_LATENCY; mode <= TERN_HIGH_THROUGHPUT; mode++) {
		const char *failure;
		struct reason why;
		struct job job;

		small_job(&job, (enum tern_mode)mode);
		assert_int_equal(job_open(&job, &why), 0);
		failure = run_ranks(2, refusals_of_rank, &job);
		if (failure)
			fail_msg("%s", failure);
		job_close(&job);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_games),
		cmocka_unit_test(refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
