/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are killed while an elastic group makes rounds of all kinds: with a plan that is made,
 * dispatched with and combined again, and rounds that are released, while experts move between
 * rounds. No sum is wrong, and each row that comes is its source's. */
#include "tests/faults/acts.h"
#include "tests/faults/tokens.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "exchange/state.h"
#include "testkit/random.h"

#define ROUNDS 400
#define COPIES 3
#define NR_RANKS 4
#define PLACES (EXPERTS * COPIES)
#define MOVES_IN 3 /* rounds; so plans are made, dispatched with and combined across moves */
#define LOSES_AT 5 /* the round whose tables have experts on the victim alone */
#define VERSION_LOSES 1000
#define VERSION_BACK 1001

static bool moves; /* for ranks that are started next */

/* Of round n: n % NR_KINDS. What begins with a plan follows the round that made it. */
enum kind {
	MAKES_PLAN,
	DISPATCHES_PLAN, /* other x, the same routes */
	COMBINES_PLAN,   /* twice the results of the round before */
	RELEASES,
	NR_KINDS
};

struct worker {
	struct rank *rank;
	struct scene *scene;
	tern_moe *moe;
	uint64_t number, plan;
	struct tokens in;
	uint32_t version; /* of the placement */
	float out[TOKENS][HIDDEN] __attribute__((aligned(16)));
	float *y;
	size_t nr_y;
	enum {
		Y_OTHER,
		Y_LAST,  /* of the round before, at the plan's positions */
		Y_DOUBLE /* twice those */
	} y_is;
	uint32_t nr_changes, nr_owed, nr_parted, nr_lost;
};

static enum kind kind_of(uint64_t number)
{
	return (enum kind)(number % NR_KINDS);
}

/* Whose results the round's are. */
static uint64_t results_of(uint64_t number)
{
	return kind_of(number) == COMBINES_PLAN ? number - 1 : number;
}

static void draw(uint64_t number, int rank, struct tokens *in)
{
	uint64_t routes = kind_of(number) == RELEASES ? number : number - number % NR_KINDS;
	uint64_t random = routes * 64 + (uint64_t)rank + 1,
		 other = results_of(number) * 64 + (uint64_t)rank + 12345;

	tokens_draw(in, &random, &other);
}

/* ---- places ---------------------------------------------------------------------------------- */

static int32_t rank_of(int place)
{
	return (place % EXPERTS + place / EXPERTS) % NR_RANKS;
}

/* What place serves. Copies are on three ranks each, whatever the version; but VERSION_LOSES has
 * experts 0 to 8 on the victim alone, and VERSION_BACK all on the others. */
static int32_t expert_at(int place, uint32_t version, int victim)
{
	int32_t here = 0, elsewhere = 0;

	if (version < VERSION_LOSES)
		return (int32_t)((uint32_t)place + 5 * version) % EXPERTS;
	for (int p = 0; p < place; p++)
		*(rank_of(p) == victim ? &here : &elsewhere) += 1;
	if (rank_of(place) == victim)
		return here % 9;
	return version == VERSION_LOSES ? 9 + elsewhere % 3 : elsewhere % EXPERTS;
}

static int32_t local_expert(const struct worker *w, int local, uint32_t version)
{
	int place = 0;

	while (rank_of(place) != w->rank->rank || local-- > 0)
		place++;
	return expert_at(place, version, w->scene->victim);
}

static int place(struct worker *w, uint32_t version)
{
	int32_t logical[PLACES];
	int rc;

	for (int p = 0; p < PLACES; p++)
		logical[p] = expert_at(p, version, w->scene->victim);
	rc = tern_moe_place(w->moe, version, logical, PLACES);
	if (rc)
		return rc;
	w->version = version;
	for (int l = 0; l < tern_moe_nr_local(w->moe); l++)
		if (tern_moe_local_expert(w->moe, (uint32_t)l) != local_expert(w, l, version))
			return rank_fails(w->rank, "local expert %d is %d in version %u", l,
				tern_moe_local_expert(w->moe, (uint32_t)l), version);
	return 0;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static float expert_result(float x, uint64_t number, int32_t expert)
{
	float of_round = tokens_result(x, results_of(number), expert);

	return kind_of(number) == COMBINES_PLAN ? 2 * of_round : of_round;
}

static int check_sums(struct worker *w)
{
	if (kind_of(w->number) == RELEASES)
		return 0;
	return tokens_check(w->rank, &w->in, w->out, w->number, expert_result, w->number);
}

static int check_row(struct worker *w, const struct tern_row *row, const float *x, uint64_t number)
{
	static struct tokens theirs;
	static uint64_t drawn = UINT64_MAX;

	if (drawn != number * NR_RANKS + (uint64_t)row->rank)
		draw(number, row->rank, &theirs);
	drawn = number * NR_RANKS + (uint64_t)row->rank;
	if ((uint32_t)row->token < theirs.nr_tokens &&
		!memcmp(x, theirs.x[row->token], sizeof(theirs.x[0])))
		return 0;
	return rank_fails(w->rank, "round %llu: token %d of rank %d came with other elements",
		(unsigned long long)number, row->token, row->rank);
}

static int run_experts(struct worker *w, const struct tern_received *received, uint64_t number)
{
	for (int l = 0; l < tern_moe_nr_local(w->moe); l++) {
		int32_t expert = local_expert(w, l, received->version);

		for (uint64_t i = 0; i < received->counts[l]; i++) {
			uint64_t at = received->offsets[l] + i;
			const float *x = (const float *)received->x + at * HIDDEN;
			float *y = w->y + at * HIDDEN;

			if (check_row(w, &received->rows[at], x, number))
				return -1;
			for (uint32_t h = 0; h < HIDDEN; h++)
				y[h] = expert_result(x[h], number, expert);
		}
	}
	return 0;
}

static int make_plan(struct worker *w)
{
	if (w->plan && tern_plan_destroy(w->moe, w->plan))
		return rank_fails(w->rank, "tern_plan_destroy: %s", tern_last_error());
	return tern_plan_create(w->moe, 0, &w->plan);
}

/* The victim, when it has told one that all is there: that one is ahead, where the round has no
 * more words to wait for. A plan's results have another before they go home. */
static void fall(struct worker *w)
{
	const struct scene *s = w->scene;

	if (w->rank->rank == s->victim && w->number == (uint64_t)s->halves)
		fall_before_telling(
			w->rank, w->moe, s->fate_at, kind_of(w->number) != COMBINES_PLAN);
}

/* `number` is told by the tag to who makes it for others. */
static int dispatched_round(struct worker *w, bool for_others, uint64_t number)
{
	enum kind kind = kind_of(number);
	bool with_plan = !for_others && (kind == DISPATCHES_PLAN || kind == COMBINES_PLAN);
	struct tern_dispatch dispatch = {.size = sizeof(dispatch),
		.nr_tokens = for_others ? 0 : w->in.nr_tokens,
		.x = w->in.x,
		.topk_ids = with_plan ? NULL : w->in.ids,
		.topk_weights = with_plan ? NULL : &w->in.weights[0][0],
		.plan = with_plan ? w->plan : 0,
		.tag = number};
	struct tern_received received = {.size = sizeof(received)};
	struct tern_combine combine = {.size = sizeof(combine), .y = w->y};
	int rc;

	do
		rc = tern_dispatch(w->moe, &dispatch, &received);
	while (rc == TERN_ERR_TIMEOUT);
	rc = rc ? rc : run_experts(w, &received, number);
	if (!rc && kind == MAKES_PLAN && !for_others)
		rc = make_plan(w);
	if (rc)
		return rc;
	fall(w);
	do
		rc = kind == RELEASES ? tern_release(w->moe, 0)
				      : tern_combine(w->moe, &combine, w->out, 0);
	while (rc == TERN_ERR_TIMEOUT);
	return rc;
}

static int combined_again(struct worker *w)
{
	struct tern_combine combine = {
		.size = sizeof(combine), .y = w->y, .plan = w->plan, .tag = w->number};
	int rc;

	for (size_t i = 0; i < w->nr_y && w->y_is == Y_LAST; i++)
		w->y[i] *= 2;
	w->y_is = Y_DOUBLE;
	fall(w);
	do
		rc = tern_combine(w->moe, &combine, w->out, 0);
	while (rc == TERN_ERR_TIMEOUT);
	return rc;
}

static int make_round(struct worker *w)
{
	int rc;

	if (kind_of(w->number) == COMBINES_PLAN && w->y_is != Y_OTHER) {
		rc = combined_again(w);
		if (rc != TERN_ERR_STATE)
			return rc;
		if (!strstr(tern_last_error(), "is not whole") &&
			!strstr(tern_last_error(), "of the placement, and now it is"))
			return rank_fails(w->rank, "combining again: %s", tern_last_error());
		w->nr_parted++;
	}
	w->y_is = Y_OTHER;
	rc = dispatched_round(w, false, w->number);
	if (!rc && kind_of(w->number) == DISPATCHES_PLAN)
		w->y_is = Y_LAST;
	return rc;
}

static int survive(void *worker)
{
	struct worker *w = worker;
	struct tern_view view = {.size = sizeof(view)};
	int rc = tern_group_view_change(w->rank->group, &view);
	uint64_t tag;

	if (rc)
		return rc;
	w->nr_changes += view.nr_gone > 0;
	rc = tern_moe_owed(w->moe, 0, &tag);
	if (rc != 1)
		return rc;
	w->y_is = Y_OTHER;
	if (tag != w->number - 1)
		return rank_fails(w->rank, "owes round %llu before round %llu",
			(unsigned long long)tag, (unsigned long long)w->number);
	w->nr_owed++;
	return dispatched_round(w, true, tag);
}

static int open_worker(struct worker *w)
{
	int32_t logical[PLACES], ranks[PLACES];
	struct tern_moe_config config;

	tokens_config(&config, w->scene->job.config.mode);
	config.wait_ms = w->scene->job.config.wait_ms;
	for (int p = 0; p < PLACES; p++) {
		logical[p] = expert_at(p, 0, w->scene->victim);
		ranks[p] = rank_of(p);
	}
	config.placement =
		(struct tern_placement){.nr_physical = PLACES, .logical = logical, .rank = ranks};
	if (tern_moe_create(w->rank->group, &config, &w->moe))
		return rank_fails(w->rank, "tern_moe_create: %s", tern_last_error());
	w->nr_y = (size_t)HIDDEN * TOKENS * TOPK * NR_RANKS;
	w->y = calloc(w->nr_y, sizeof(float));
	return w->y ? 0 : rank_fails(w->rank, "no memory");
}

/* As the next round wants it; no change is under way here. */
static int move_experts(struct worker *w)
{
	uint32_t version = (uint32_t)(w->number / MOVES_IN);

	return moves && version != w->version ? place(w, version) : 0;
}

static void survivor_body(struct rank *rank)
{
	struct scene *s = rank->ctx;
	struct worker w = {.rank = rank, .scene = s};
	int rc = 0;

	if (join(rank, &s->first, rank->rank) || open_worker(&w))
		return;
	for (w.number = 0; w.number < ROUNDS && !rc; w.number++) {
		if (w.number == ROUNDS - 50) /* the last come when somebody has died */
			await_fate(s);
		draw(w.number, rank->rank, &w.in);
		rc = move_experts(&w);
		while (!rc && (rc = make_round(&w)) == TERN_ERR_MEMBERS)
			if ((rc = survive_all(survive, &w)))
				break;
		rc = rc ? rc : check_sums(&w);
		if (w.number == 2)
			atomic_fetch_add(&s->nr_past, 1);
		if (w.number == (uint64_t)s->halves)
			atomic_fetch_add(&s->nr_ready, 1);
	}
	rc = rc ? rc : stay_until_all_are_done(rank, survive, &w);
	if (rc < 0 && !*rank->failure)
		rank_fails(rank, "round %llu: %s", (unsigned long long)w.number, tern_last_error());
	atomic_fetch_add(&s->nr_told, (int)w.nr_changes);
	atomic_fetch_add(&s->nr_rounds, (int)(w.nr_owed + 1000 * w.nr_parted));
	tern_moe_destroy(w.moe);
	tern_group_destroy(rank->group);
	free(w.y);
}

static void kill_one(int nr_times)
{
	const char *seed = getenv("TERN_TEST_SEED");
	uint64_t random = seed ? strtoull(seed, NULL, 0) : 3;
	int nr_owed = 0;

	for (int i = 0; i < nr_times; i++) {
		struct scene *s =
			scene_open(NR_RANKS, i & 1 ? TERN_LOW_LATENCY : TERN_HIGH_THROUGHPUT);

		s->elastic = true;
		s->victim = i % NR_RANKS;
		s->halves = -1;
		s->job.config.wait_ms = i & 2 && !getenv("TERN_TEST_NODES") ? 0 : 30000;
		nr_owed += kill_victims(s, survivor_body, random_below(&random, 12000000), 0);
	}
	print_message("# %d rounds were made for others, %d plans had lost rows\n", nr_owed % 1000,
		nr_owed / 1000);
}

static void one_dies(void **state)
{
	(void)state;
	kill_one(scaled(8));
}

static void one_dies_between_nodes(void **state)
{
	(void)state;
	setenv("TERN_TEST_NODES", "2", 0);
	kill_one(getenv("LONG") ? 24 : 2);
	unsetenv("TERN_TEST_NODES");
}

/* In a round of each kind it dies when it has told some that all is there, and others not. Those
 * are ahead, and serve the others once more. */
static void dies_between_peers(void **state)
{
	int nr_owed = 0;

	(void)state;
	BOTH_MODES(mode)
	for (int kind = 0; kind < NR_KINDS; kind++) {
		pid_t pids[MAX_PROCESSES];
		struct scene *s = scene_open(NR_RANKS, mode);

		s->elastic = true;
		s->victim = (kind + (int)mode) % NR_RANKS;
		s->halves = 2 * NR_KINDS + kind;
		s->fate_at = (s->victim + 2) % NR_RANKS;
		atomic_store(&s->fate_ns, 1);
		scene_start(s, survivor_body, pids);
		scene_finish(s, pids, SIGSEGV);
		nr_owed += atomic_load(&s->nr_rounds) % 1000;
		scene_close(s);
	}
	assert_int_equal(nr_owed, 2 * (NR_KINDS - 1));
}

static void dies_while_experts_move(void **state)
{
	moves = true;
	one_dies(state);
	one_dies_between_nodes(state);
	dies_between_peers(state);
	moves = false;
}

/* ---- experts that come back ------------------------------------------------------------------ */

/* Puts the lost experts back, and takes part in what it owes. */
static int bring_back(struct worker *w)
{
	int rc = TERN_ERR_LOST_EXPERTS;

	while (rc == TERN_ERR_LOST_EXPERTS) {
		rc = place(w, VERSION_BACK);
		rc = rc ? rc : survive_all(survive, w);
	}
	return rc;
}

static int round_with_losses(struct worker *w)
{
	int rc = make_round(w);

	while (rc == TERN_ERR_MEMBERS || rc == TERN_ERR_LOST_EXPERTS) {
		rc = rc == TERN_ERR_MEMBERS ? survive_all(survive, w) : rc;
		if (rc == TERN_ERR_LOST_EXPERTS) {
			w->nr_lost++;
			rc = bring_back(w);
		}
		rc = rc ? rc : make_round(w);
	}
	return rc;
}

static void loser_body(struct rank *rank)
{
	struct scene *s = rank->ctx;
	struct worker w = {.rank = rank, .scene = s};
	int rc = 0;

	if (join(rank, &s->first, rank->rank) || open_worker(&w))
		return;
	for (w.number = 0; w.number < LOSES_AT + 2 * NR_KINDS && !rc; w.number++) {
		draw(w.number, rank->rank, &w.in);
		if (w.number == LOSES_AT)
			rc = place(&w, VERSION_LOSES);
		if (w.number == LOSES_AT + 1 && rank->rank == s->victim)
			raise(SIGKILL);
		rc = rc ? rc : round_with_losses(&w);
		rc = rc ? rc : check_sums(&w);
	}
	rc = rc ? rc : stay_until_all_are_done(rank, survive, &w);
	if (rc < 0)
		rank_fails(rank, "round %llu: %s", (unsigned long long)w.number, tern_last_error());
	if (!w.nr_lost || w.version != VERSION_BACK)
		rank_fails(
			rank, "no experts were lost, or they are not back: version %u", w.version);
	tern_moe_destroy(w.moe);
	tern_group_destroy(rank->group);
	free(w.y);
}

static void lost_experts_come_back(void **state)
{
	(void)state;
	BOTH_MODES(mode)
	for (int i = 0; i < scaled(4); i++) {
		struct scene *s = scene_open(NR_RANKS, mode);

		s->elastic = true;
		s->victim = i % NR_RANKS;
		s->halves = -1;
		scene_play(s, loser_body, SIGKILL);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_dies),
		cmocka_unit_test(one_dies_between_nodes),
		cmocka_unit_test(dies_between_peers),
		cmocka_unit_test(dies_while_experts_move),
		cmocka_unit_test(lost_experts_come_back),
	};

	if (getenv("TERN_FORCE_ENGINE")) {
		printf("it chooses itself which ranks are mapped\n");
		return 77;
	}
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
