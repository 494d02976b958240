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
#include <time.h>
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

/* By weights of the dispatch, none, or those of the combine. */
static enum weighting draw_weighting(struct player *p, const struct tern_moe_config *c)
{
	uint32_t what = (uint32_t)random_below(&p->state, 4);

	if (what == 1)
		return WEIGHTED_NOT;
	return what == 2 && c->reduce == TERN_REDUCE_HOME ? WEIGHTED_AT_COMBINE : WEIGHTED_AS_MADE;
}

static int combine(struct player *p, struct round *round)
{
	round->weighting = draw_weighting(p, &round->job->config);
	if (random_below(&p->state, 2))
		return round_combine(round);
	return round_combine_send(round) ? -1 : round_combine_recv(round);
}

/* After a dispatch: its combine, or none. */
static int end_round(struct player *p, struct round *round)
{
	return random_below(&p->state, 3) ? combine(p, round) : round_release(round);
}

/* What is told beside a plan, as its round has it. */
struct told {
	struct tern_plan_beside beside;
	int32_t *ids; /* of the round */
	float *weights;
};

static int told_open(struct told *t, const struct round *round)
{
	const struct tern_moe_config *c = &round->job->config;
	uint64_t rows = round->received.extent + 1, topk = c->topk,
		 routes = (uint64_t)c->max_tokens * topk + 1;
	bool by_source = c->layout == TERN_BY_SOURCE;

	t->beside = (struct tern_plan_beside){.size = sizeof(t->beside),
		.nr_rows = rows - 1,
		.wide_ids = by_source ? calloc(rows * topk, sizeof(int64_t)) : NULL,
		.tokens = calloc(rows, sizeof(int32_t)),
		.topk_ids = calloc(routes, sizeof(int32_t))};
	t->ids = calloc(routes, sizeof(int32_t));
	t->weights = calloc(routes, sizeof(float));
	return t->beside.tokens && t->beside.topk_ids && t->ids && t->weights ? 0 : -1;
}

static void told_close(struct told *t)
{
	free(t->beside.wide_ids);
	free(t->beside.tokens);
	free(t->beside.topk_ids);
	free(t->ids);
	free(t->weights);
}

static bool is_row(const struct round *round, uint64_t position)
{
	const struct tern_received *r = &round->received;
	uint32_t lists = round->job->config.layout == TERN_BY_SOURCE
				 ? (uint32_t)round->rank->nr_ranks
				 : (uint32_t)tern_moe_nr_local(round->moe);

	for (uint32_t i = 0; i < lists; i++)
		if (position >= r->offsets[i] && position < r->offsets[i] + r->counts[i])
			return true;
	return false;
}

/* The number of the first thing that is not so; 0: all is. */
static int told_wrong(struct told *t, const struct round *round)
{
	const struct tern_received *r = &round->received;
	const struct tern_plan_beside *b = &t->beside;
	uint32_t rank = (uint32_t)round->rank->rank, topk = round->job->config.topk,
		 n = job_nr_tokens(round->job, round->number, rank);

	for (uint64_t i = 0; i < b->nr_rows; i++)
		if (is_row(round, i) && b->tokens[i] != r->rows[i].token)
			return 1;
	for (uint64_t i = 0; i < b->nr_rows * topk && b->wide_ids; i++)
		if (b->wide_ids[i] != r->topk_ids[i])
			return 2;
	job_routes(round->job, round->number, rank, t->ids, t->weights);
	if (memcmp(b->topk_ids, t->ids, (size_t)n * topk * sizeof(*t->ids)))
		return 3;
	/* Behind them, nothing. */
	return b->tokens[b->nr_rows] || (b->wide_ids && b->wide_ids[b->nr_rows * topk]) ? 4 : 0;
}

static int make_plan(struct player *p, struct round *round, uint64_t *plan)
{
	uint64_t what = random_below(&p->state, 8); /* all ranks draw alike */
	struct told told;
	int rc, wrong;

	if (what < 4)
		return tern_plan_create(round->moe, round->slot, plan);
	rc = told_open(&told, round) ? TERN_ERR_NOMEM : 0;
	if (!rc && told.beside.nr_rows && what == 7)
		told.beside.nr_rows--;
	rc = rc ? rc : tern_plan_create_beside(round->moe, round->slot, &told.beside, plan);
	wrong = rc ? 0 : told_wrong(&told, round);
	told_close(&told);
	return wrong ? step_fails(round, "what is told beside a plan", wrong) : rc;
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
		rc = make_plan(p, round, &kept->plan);
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
	game->job.config.combine_floats = (uint32_t)random_below(&state, 2);
	game->job.wants = random_below(&state, 2);
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
	struct tern_plan_beside odd = {
		.size = sizeof(odd), .tokens = (int32_t *)(void *)((char *)ids + 1)};

	round->number = 1;
	if (wants(round, tern_plan_create(moe, 0, &plan), TERN_ERR_STATE, "dispatch_send") ||
		wants(round, tern_plan_destroy(moe, 7), TERN_ERR_STATE, "no plan 7") ||
		round_dispatch_send(round) ||
		wants(round, tern_plan_create(moe, 0, &plan), TERN_ERR_STATE, "dispatch_recv") ||
		round_dispatch_recv(round) ||
		wants(round, tern_plan_create_beside(moe, 0, &odd, &plan), TERN_ERR_INVALID,
			"have to be aligned") ||
		tern_plan_create(moe, 0, &plan) || tern_plan_create(moe, 0, &other))
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

/* ---- what a combine cannot take along -------------------------------------------------------- */

/* What there is not beside rows. */
static int refuse_wishes(struct round *round)
{
	struct tern_received r = {.size = sizeof(r)};
	struct tern_dispatch args;
	uint64_t numbers[4], extent;
	char *odd = (char *)numbers + 1;

	round_arguments(round, &args);
	if (wants(round, tern_received_sizes(round->moe, 0, numbers, &extent), TERN_ERR_STATE,
		    "dispatch_send") ||
		wants(round, tern_received_sizes(round->moe, 0, NULL, &extent), TERN_ERR_INVALID,
			"is NULL"))
		return -1;
	r.wide_ids = (int64_t *)numbers;
	if (wants(round, tern_dispatch(round->moe, &args, &r), TERN_ERR_INVALID,
		    "it takes TERN_BY_SOURCE"))
		return -1;
	r.wide_ids = NULL;
	r.expert_counts = (uint32_t *)(void *)odd;
	if (wants(round, tern_dispatch(round->moe, &args, &r), TERN_ERR_INVALID,
		    "expert_counts at"))
		return -1;
	r.expert_counts = NULL;
	r.into_counts = (uint32_t *)(void *)odd;
	if (wants(round, tern_dispatch(round->moe, &args, &r), TERN_ERR_INVALID, "into_counts at"))
		return -1;
	r.into_counts = NULL;
	r.gemm_scales = numbers;
	return wants(round, tern_dispatch(round->moe, &args, &r), TERN_ERR_INVALID,
		"rows have no scales");
}

static int refuse_manners(struct round *round)
{
	struct tern_combine args, wrong;
	float numbers[16] = {0};
	char *odd = (char *)numbers + 1;
	bool home = round->job->config.reduce == TERN_REDUCE_HOME;

	round->number = 1;
	if (refuse_wishes(round) || round_dispatch(round) || round_results(round, &args))
		return -1;
	wrong = args;
	wrong.topk_weights = numbers;
	if (!home && wants(round, tern_combine_send(round->moe, &wrong), TERN_ERR_INVALID,
			     "it takes TERN_REDUCE_HOME"))
		return -1;
	wrong.unweighted = 1;
	if (wants(round, tern_combine_send(round->moe, &wrong), TERN_ERR_INVALID, "and unweighted"))
		return -1;
	wrong = args;
	wrong.topk_weights = home ? (float *)(void *)odd : NULL;
	if (home && wants(round, tern_combine_send(round->moe, &wrong), TERN_ERR_INVALID,
			    "topk_weights at"))
		return -1;
	wrong = args;
	wrong.floats = numbers;
	if (wants(round, tern_combine_send(round->moe, &wrong), TERN_ERR_INVALID,
		    "made without combine_floats"))
		return -1;
	wrong.floats = NULL;
	wrong.out_floats = numbers;
	if (wants(round, tern_combine(round->moe, &wrong, round->buffers->out, 0), TERN_ERR_INVALID,
		    "made without combine_floats"))
		return -1;
	return round_combine(round);
}

/* Rank 1 is late: the others have waited for it, and for nobody else as long. */
static void late_of_rank(struct rank *rank)
{
	static const struct manner plain;
	struct timespec nap = {.tv_nsec = 60000000};
	struct round round;

	if (!round_open(&round, rank, rank->ctx, &plain)) {
		const uint64_t *waited;

		ranks_meet(rank);
		if (rank->rank == 1)
			nanosleep(&nap, NULL);
		round.number = 1;
		if (!run_round(&round, 1)) {
			waited = round.buffers->waited_ns;
			if (rank->rank != 1 &&
				(waited[1] < 20000000 || waited[rank->rank] > waited[1]))
				rank_fails(rank, "waited %llu ns for rank 1, %llu for itself",
					(unsigned long long)waited[1],
					(unsigned long long)waited[rank->rank]);
		}
	}
	round_close(&round);
}

static void late(void **unused)
{
	const char *failure;
	struct reason why;
	struct job job;

	(void)unused;
	small_job(&job, TERN_LOW_LATENCY);
	job.nr_ranks = 3;
	job.wants = true;
	assert_int_equal(job_open(&job, &why), 0);
	failure = run_ranks(3, late_of_rank, &job);
	if (failure)
		fail_msg("%s", failure);
	job_close(&job);
}

static void manners_of_rank(struct rank *rank)
{
	static const struct manner plain;
	struct round round;

	if (!round_open(&round, rank, rank->ctx, &plain))
		refuse_manners(&round);
	round_close(&round);
}

static void refused_manners(void **unused)
{
	(void)unused;
	for (int reduce = TERN_REDUCE_HOME; reduce <= TERN_REDUCE_EXPERT; reduce++) {
		const char *failure;
		struct reason why;
		struct job job;

		small_job(&job, TERN_LOW_LATENCY);
		job.config.reduce = (enum tern_reduce)reduce;
		assert_int_equal(job_open(&job, &why), 0);
		failure = run_ranks(2, manners_of_rank, &job);
		if (failure)
			fail_msg("%s", failure);
		job_close(&job);
	}
}

/* ---- what training calls --------------------------------------------------------------------- */

/* Of integers, so that sums are exact in any order: <D x, g> = <x, D' g>, where D is the dispatch
 * and D' the unweighted combine; <C y, h> = <y, C' h>, where C is the combine and C' the dispatch
 * of h, weighted; and the gates' gradients, which come home as floats: <C y, h> = <w, dw>. */
#define ADJOINT_HIDDEN 32
#define ADJOINT_TOKENS 24
#define ADJOINT_TOPK 4
#define ADJOINT_ROWS (4 * ADJOINT_TOKENS * ADJOINT_TOPK * 8)

struct products {
	int64_t rows, tokens, sums, gradients, gates;
};

struct adjoint {
	const struct job *job;
	struct rank *rank;
	tern_moe *moe;
	struct tern_received received;
	uint32_t nr_tokens, nr_groups;
	int32_t ids[ADJOINT_TOKENS * ADJOINT_TOPK];
	float weights[ADJOINT_TOKENS * ADJOINT_TOPK], gates[ADJOINT_TOKENS * ADJOINT_TOPK];
	float *x, *out, *y, *floats; /* of tokens; of rows */
	uint64_t plan;
};

static float integer(uint64_t seed, uint64_t number, int most)
{
	return (float)((int)(hash2(seed, number) % (uint64_t)(2 * most + 1)) - most);
}

static void fill(float *values, size_t nr, uint64_t seed)
{
	for (size_t i = 0; i < nr; i++)
		values[i] = integer(seed, i, 4);
}

static int64_t dot(const float *a, const float *b)
{
	int64_t sum = 0;

	for (int i = 0; i < ADJOINT_HIDDEN; i++)
		sum += (int64_t)a[i] * (int64_t)b[i];
	return sum;
}

static int64_t dot_tokens(const struct adjoint *a)
{
	int64_t sum = 0;

	for (uint32_t t = 0; t < a->nr_tokens; t++)
		sum += dot(a->x + t * ADJOINT_HIDDEN, a->out + t * ADJOINT_HIDDEN);
	return sum;
}

/* Over received rows; the floats are each row's share. */
static int64_t dot_rows(struct adjoint *a, bool weighted)
{
	const struct tern_received *r = &a->received;
	uint32_t each = a->job->config.layout == TERN_BY_SOURCE ? ADJOINT_TOPK : 1;
	int64_t sum = 0;

	memset(a->floats, 0, ADJOINT_ROWS * sizeof(*a->floats));
	for (uint32_t g = 0; g < a->nr_groups; g++)
		for (uint64_t p = r->offsets[g]; p < r->offsets[g] + r->counts[g]; p++) {
			int64_t here = dot((const float *)r->x + p * ADJOINT_HIDDEN,
				a->y + p * ADJOINT_HIDDEN);

			if (each == 1)
				a->floats[p] = (float)here;
			sum += here * (weighted ? (int64_t)r->rows[p].weight : 1);
		}
	return sum;
}

static int adjoint_dispatch(struct adjoint *a, uint64_t plan)
{
	struct tern_dispatch args = {.size = sizeof(args),
		.nr_tokens = a->nr_tokens,
		.x = a->x,
		.topk_ids = plan ? NULL : a->ids,
		.topk_weights = plan ? NULL : a->weights,
		.plan = plan};

	a->received = (struct tern_received){.size = sizeof(a->received)};
	return tern_dispatch(a->moe, &args, &a->received);
}

static int adjoint_combine(struct adjoint *a, uint64_t plan, bool unweighted)
{
	struct tern_combine args = {.size = sizeof(args),
		.y = a->y,
		.plan = plan,
		.unweighted = unweighted,
		.floats = a->floats,
		.out_floats = a->gates};

	return tern_combine(a->moe, &args, a->out, 0);
}

static int64_t dot_gates(const struct adjoint *a)
{
	int64_t sum = 0;

	for (uint32_t i = 0; i < a->nr_tokens * ADJOINT_TOPK; i++)
		sum += (int64_t)a->weights[i] * (int64_t)a->gates[i];
	return sum;
}

static int multiply(struct adjoint *a, uint64_t seed, struct products *p)
{
	bool by_source = a->job->config.layout == TERN_BY_SOURCE;
	size_t tokens = (size_t)ADJOINT_TOKENS * ADJOINT_HIDDEN,
	       rows = (size_t)ADJOINT_ROWS * ADJOINT_HIDDEN;
	int rc;

	fill(a->x, tokens, seed);
	rc = adjoint_dispatch(a, 0);
	fill(a->y, rows, seed + 1);
	p->rows = rc ? 0 : dot_rows(a, false);
	rc = rc ? rc : tern_plan_create(a->moe, 0, &a->plan);
	rc = rc ? rc : adjoint_combine(a, 0, true);
	p->tokens = dot_tokens(a);
	rc = rc ? rc : adjoint_combine(a, a->plan, false);
	fill(a->x, tokens, seed + 2);
	p->sums = dot_tokens(a);
	rc = rc ? rc : adjoint_dispatch(a, a->plan);
	p->gradients = rc ? 0 : dot_rows(a, !by_source);
	rc = rc ? rc : tern_release(a->moe, 0);
	rc = rc ? rc : adjoint_combine(a, a->plan, true);
	p->gates = dot_gates(a);
	return rc ? rc : tern_plan_destroy(a->moe, a->plan);
}

/* Of all ranks. */
static int add_up(struct adjoint *a, struct products *mine)
{
	struct products all[8];
	int rc = tern_group_allgather(a->rank->group, mine, all, sizeof(*mine));

	memset(mine, 0, sizeof(*mine));
	for (int r = 0; r < a->rank->nr_ranks; r++) {
		mine->rows += all[r].rows;
		mine->tokens += all[r].tokens;
		mine->sums += all[r].sums;
		mine->gradients += all[r].gradients;
		mine->gates += all[r].gates;
	}
	return rc;
}

static int judge_products(struct adjoint *a, uint64_t round, const struct products *p)
{
	bool by_source = a->job->config.layout == TERN_BY_SOURCE;

	if (p->rows == p->tokens && p->sums == p->gradients && (by_source || p->sums == p->gates) &&
		p->rows && p->sums)
		return 0;
	return rank_fails(a->rank,
		"round %llu: <D x, g> is %lld, <x, D' g> %lld; <C y, h> is %lld, <y, C' h> %lld, "
		"<w, dw> %lld",
		(unsigned long long)round, (long long)p->rows, (long long)p->tokens,
		(long long)p->sums, (long long)p->gradients, (long long)p->gates);
}

static int adjoint_round(struct adjoint *a, uint64_t round)
{
	uint32_t rank = (uint32_t)a->rank->rank;
	struct products p;
	int rc;

	a->nr_tokens = job_nr_tokens(a->job, round, rank);
	job_routes(a->job, round, rank, a->ids, a->weights);
	for (uint32_t i = 0; i < a->nr_tokens * ADJOINT_TOPK; i++)
		a->weights[i] = integer(hash2(round, job_home(a->job, rank)), i, 3);
	rc = multiply(a, hash4(round, rank, 0, 0), &p);
	rc = rc ? rc : add_up(a, &p);
	return rc ? step_fails(&(struct round){.rank = a->rank}, "adjoint", rc)
		  : judge_products(a, round, &p);
}

static void adjoint_of_rank(struct rank *rank)
{
	struct adjoint *a = calloc(1, sizeof(*a));
	size_t row = ADJOINT_HIDDEN * sizeof(float);

	a->job = rank->ctx;
	a->rank = rank;
	a->x = aligned_alloc(64, ADJOINT_TOKENS * row);
	a->out = aligned_alloc(64, ADJOINT_TOKENS * row);
	a->y = aligned_alloc(64, ADJOINT_ROWS * row);
	a->floats = aligned_alloc(64, ADJOINT_ROWS * sizeof(float));
	if (tern_moe_create(rank->group, &a->job->config, &a->moe))
		rank_fails(rank, "%s", tern_last_error());
	a->nr_groups = a->job->config.layout == TERN_BY_SOURCE ? (uint32_t)rank->nr_ranks
		       : a->moe                                ? (uint32_t)tern_moe_nr_local(a->moe)
							       : 0;
	for (uint64_t round = 0; round < 20 && !*rank->failure; round++)
		adjoint_round(a, round);
	tern_moe_destroy(a->moe);
	free(a->x);
	free(a->out);
	free(a->y);
	free(a->floats);
	free(a);
}

static void adjoint_case(enum tern_mode mode, enum tern_layout layout, enum tern_reduce reduce)
{
	const char *failure;
	struct reason why;
	struct job job;

	small_job(&job, mode);
	job.nr_ranks = 4;
	job.nr_tokens = job.config.max_tokens = ADJOINT_TOKENS;
	job.routing.uneven = true;
	job.routing.drop = 0.2;
	job.config.layout = layout;
	job.config.reduce = reduce;
	job.config.weights = layout == TERN_BY_SOURCE ? TERN_WEIGHTS_PASS : TERN_WEIGHTS_COMBINE;
	job.config.hidden = ADJOINT_HIDDEN;
	job.config.nr_experts = 12;
	job.config.topk = ADJOINT_TOPK;
	job.config.x_dtype = job.config.dispatch_dtype = job.config.combine_dtype = TERN_FP32;
	job.config.combine_floats = 1;
	assert_int_equal(job_open(&job, &why), 0);
	failure = run_ranks(4, adjoint_of_rank, &job);
	if (failure)
		fail_msg("mode %d, layout %d, reduce %d: %s", mode, layout, reduce, failure);
	job_close(&job);
}

static void adjoints(void **unused)
{
	(void)unused;
	for (int mode = TERN_LOW_LATENCY; mode <= TERN_HIGH_THROUGHPUT; mode++)
		for (int layout = TERN_PADDED; layout <= TERN_BY_SOURCE; layout++)
			for (int reduce = layout == TERN_BY_SOURCE ? TERN_REDUCE_EXPERT
								   : TERN_REDUCE_HOME;
				reduce <= TERN_REDUCE_EXPERT; reduce++)
				adjoint_case((enum tern_mode)mode, (enum tern_layout)layout,
					(enum tern_reduce)reduce);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_games),
		cmocka_unit_test(refused_manners),
		cmocka_unit_test(late),
		cmocka_unit_test(adjoints),
		cmocka_unit_test(refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
