/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks serve, and every few rounds the balancer moves experts: weights go to other ranks between
 * rounds, then the exchange names them there. A rank is killed in the middle of moves. Every sum is
 * compared, and before each round all bytes of all weights that it reads. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "tern_balance.h"
#include "tern_weights.h"
#include "testkit/random.h"
#include "tests/faults/acts.h"
#include "tests/faults/tokens.h"

#define RANKS 4
#define LOCAL 8
#define PLACES (RANKS * LOCAL)
#define VICTIM 2
#define STEP 8 /* rounds between gatherings */
#define FLOATS (16u << 10)
#define PAGE 8192
#define PLANS 6 /* that move something; or gatherings after the death */
#define MOST_ROUNDS 20000

struct server {
	struct rank *rank;
	struct scene *scene;
	uint64_t seed, number; /* of the round */
	tern_moe *moe;
	tern_engine *engine;
	tern_weight_store *store;
	tern_balance *balance;
	float (*weights)[FLOATS];        /* [LOCAL] */
	uint64_t ticket;                 /* 0: nothing moves here */
	struct tern_copy copies[PLACES]; /* that are to begin */
	uint32_t nr_copies;
	uint32_t nr_plans, nr_after; /* that moved something; gatherings without the victim */
	uint32_t nr_polls, dies_at;  /* of moves under way here; 0: never */
	struct tokens in;
	float out[TOKENS][HIDDEN] __attribute__((aligned(16)));
	float *y;
};

/* What all tell each other. */
struct news {
	uint64_t number; /* + 1; 0: of one that is gone */
	int32_t busy;
	int32_t held[PLACES];
};

static float weight_of(int32_t expert)
{
	return (float)(expert + 1);
}

static float result(float x, uint64_t of, int32_t expert)
{
	return x * weight_of(expert) + (float)(of % 7);
}

static int rank_of(int32_t place)
{
	return place / LOCAL;
}

/* ---- a round --------------------------------------------------------------------------------- */

/* All bytes of what is named here: in that place, or in another of this rank. */
static const float *weights_named(struct server *s, uint32_t local)
{
	int32_t expert = tern_moe_local_expert(s->moe, local), held[PLACES];
	uint32_t first = (uint32_t)s->rank->rank * LOCAL, at = LOCAL;

	if (tern_weights_held(s->store, 0, held))
		rank_fails(s->rank, "held: %s", tern_last_error());
	for (uint32_t i = 0; i < LOCAL && at == LOCAL; i++)
		if (held[first + (local + i) % LOCAL] == expert)
			at = (local + i) % LOCAL;
	for (uint32_t i = 0; at < LOCAL && i < FLOATS; i++)
		if (s->weights[at][i] != weight_of(expert))
			at = LOCAL;
	if (at < LOCAL)
		return s->weights[at];
	rank_fails(s->rank, "round %llu: expert %d is named, and not whole",
		(unsigned long long)s->number, expert);
	return s->weights[0];
}

static int make_round(struct server *s, uint32_t nr_tokens, uint64_t tag)
{
	struct tern_dispatch dispatch = {.size = sizeof(dispatch),
		.nr_tokens = nr_tokens,
		.x = s->in.x,
		.topk_ids = s->in.ids,
		.topk_weights = &s->in.weights[0][0],
		.tag = tag};
	struct tern_received received = {.size = sizeof(received)};
	struct tern_combine combine = {.size = sizeof(combine), .y = s->y};
	int rc = tern_dispatch(s->moe, &dispatch, &received);

	if (rc)
		return rc;
	for (uint32_t l = 0; l < LOCAL; l++) {
		const float *weights = weights_named(s, l);

		for (uint64_t i = 0; i < (uint64_t)received.counts[l] * HIDDEN; i++) {
			uint64_t at = received.offsets[l] * HIDDEN + i;

			s->y[at] = ((const float *)received.x)[at] * weights[i * 97 % FLOATS] +
				   (float)(tag % 7);
		}
	}
	return tern_combine(s->moe, &combine, s->out, 0);
}

static int survive(struct server *s)
{
	struct tern_view view = {.size = sizeof(view)};
	uint64_t tag;
	int rc;

	do {
		rc = tern_group_view_change(s->rank->group, &view);
		if (!rc && (rc = tern_moe_owed(s->moe, 0, &tag)) == 1)
			rc = make_round(s, 0, tag);
	} while (rc == TERN_ERR_MEMBERS);
	return rc;
}

static int right_round(struct server *s)
{
	uint64_t random = s->number * 64 + (uint64_t)s->rank->rank + s->seed * 1000003;
	int rc;

	tokens_draw(&s->in, &random, &random);
	while ((rc = make_round(s, s->in.nr_tokens, s->number)) == TERN_ERR_MEMBERS)
		if ((rc = survive(s)))
			return rc;
	return rc ? rc : tokens_check(s->rank, &s->in, s->out, s->number, result, s->number);
}

/* ---- experts move ---------------------------------------------------------------------------- */

/* Ranks that serve an expert by this table, but for one place; by what is held: aliases are none.
 */
static int count_ranks(const int32_t *held, int32_t expert, int32_t but)
{
	uint32_t ranks = 0;

	for (int32_t p = 0; p < PLACES; p++)
		if (p != but && held[p] == expert)
			ranks |= 1u << rank_of(p);
	return __builtin_popcount(ranks);
}

/* An expert of the same rank, for the exchange to name in a place that is being filled. */
static int32_t other_of_rank(const int32_t *held, int32_t place)
{
	for (int32_t p = rank_of(place) * LOCAL; p < (rank_of(place) + 1) * LOCAL; p++)
		if (p != place && held[p] >= 0)
			return held[p];
	return -1;
}

/* Who lacks an expert may take it from any place that holds it. */
static bool is_brought(const struct tern_copy *copies, uint32_t nr, int32_t expert)
{
	for (uint32_t i = 0; i < nr; i++)
		if (copies[i].expert == expert)
			return true;
	return false;
}

/* Of the plan's copies those after which each expert is on two ranks still, and that fill no place
 * of which another copy may read; taken out of `held`. */
static uint32_t choose_copies(
	const struct tern_copy *all, uint32_t nr, int32_t *held, struct tern_copy *chosen)
{
	uint32_t nr_chosen = 0;

	for (uint32_t i = 0; i < nr; i++) {
		int32_t before = held[all[i].to];

		if (before >= 0 &&
			(count_ranks(held, before, all[i].to) < 2 || is_brought(all, nr, before)))
			continue;
		held[all[i].to] = -1;
		chosen[nr_chosen++] = all[i];
	}
	return nr_chosen;
}

static uint32_t plan(
	struct server *s, const int32_t *held, const uint8_t *alive, struct tern_copy *copies)
{
	uint64_t random = hash2(s->seed, s->number);
	struct tern_balance_result found = {.size = sizeof(found)};
	int32_t next[PLACES];
	double load[EXPERTS];
	struct tern_balance_input input = {.size = sizeof(input),
		.load = load,
		.now = held,
		.alive = alive,
		.max_copies = 4,
		.spread = 2};

	for (int e = 0; e < EXPERTS; e++)
		load[e] = 1 + random_below(&random, 100);
	if (tern_balance_plan(s->balance, &input, next, copies, &found))
		rank_fails(s->rank, "plan: %s", tern_last_error());
	return found.nr_copies;
}

/* All ranks come to the same, from what all were told. */
static int go_on_from(struct server *s, const struct news all[RANKS])
{
	struct tern_copy planned[PLACES];
	int32_t held[PLACES], table[PLACES];
	uint8_t alive[RANKS];
	uint32_t nr = 0;
	bool busy = false;
	int rc;

	for (int r = 0; r < RANKS; r++) {
		alive[r] = all[r].number != 0;
		busy = busy || all[r].busy;
	}
	for (int p = 0; p < PLACES; p++)
		held[p] = alive[rank_of(p)] ? all[rank_of(p)].held[p] : -1;
	s->nr_after += !alive[VICTIM];
	if (!busy)
		nr = choose_copies(planned, plan(s, held, alive, planned), held, s->copies);
	for (int p = 0; p < PLACES; p++)
		table[p] = held[p] >= 0        ? held[p]
			   : alive[rank_of(p)] ? other_of_rank(held, p)
					       : p % EXPERTS; /* nobody's, by the view */
	rc = tern_weights_use(s->store, 0, held);
	rc = rc ? rc : tern_moe_place(s->moe, (uint32_t)s->number, table, PLACES);
	s->nr_copies = nr;
	s->nr_plans += nr > 0;
	return rc;
}

static int gather(struct server *s)
{
	struct news mine = {.number = s->number + 1, .busy = s->ticket || s->nr_copies}, all[RANKS];
	int rc = tern_weights_held(s->store, 0, mine.held);

	if (rc)
		return rc;
	while ((rc = tern_group_allgather(s->rank->group, &mine, all, sizeof(mine))) ==
		TERN_ERR_MEMBERS)
		if ((rc = survive(s)))
			return rc;
	return rc ? rc : go_on_from(s, all);
}

/* Word that another's copy from a place has ended may still be on its way. */
static int begin_move(struct server *s)
{
	int rc = s->nr_copies ? tern_weights_move(s->store, 0, s->copies, s->nr_copies, &s->ticket)
			      : 0;

	if (rc == TERN_ERR_STATE && strstr(tern_last_error(), "copies"))
		return 0;
	s->nr_copies = 0;
	return rc;
}

/* A page between two rounds. The victim ends in the middle of one of its own. */
static int poll_move(struct server *s)
{
	int rc;

	if (!s->ticket)
		return 0;
	rc = tern_weights_poll(s->store, s->ticket, NULL);
	if (rc == TERN_ERR_TIMEOUT && ++s->nr_polls == s->dies_at) {
		atomic_store(&s->scene->at_place, true);
		raise(SIGKILL);
	}
	if (rc == TERN_ERR_TIMEOUT)
		return 0;
	s->ticket = 0;
	return rc;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static int open_store(struct server *s, const int32_t *logical)
{
	struct tern_weights_part part = {s->weights, sizeof(s->weights[0]), 0};
	struct tern_weights_config config = {.size = sizeof(config),
		.nr_layers = 1,
		.nr_experts = EXPERTS,
		.nr_physical = PLACES,
		.nr_parts = 1,
		.parts = &part,
		.page_bytes = PAGE,
		.silence_ms = 2000};
	struct tern_balance_config balance = {.size = sizeof(balance),
		.nr_experts = EXPERTS,
		.nr_physical = PLACES,
		.nr_ranks = RANKS};
	struct tern_engine_config engine;
	int rc;

	tern_engine_config_init(&engine);
	rc = tern_engine_create(s->rank->group, &engine, &s->engine);
	rc = rc ? rc : tern_weights_create(s->engine, &config, &s->store);
	rc = rc ? rc : tern_balance_create(&balance, &s->balance);
	for (uint32_t i = 0; i < LOCAL && !rc; i++) {
		uint32_t place = (uint32_t)s->rank->rank * LOCAL + i;

		for (uint32_t k = 0; k < FLOATS; k++)
			s->weights[i][k] = weight_of(logical[place]);
		rc = tern_weights_hold(s->store, 0, place, logical[place]);
	}
	return rc ? rc : tern_weights_use(s->store, 0, logical);
}

/* Each expert on two ranks and more. */
static int open_server(struct server *s)
{
	int32_t logical[PLACES];
	struct tern_moe_config config;
	int rc;

	for (int p = 0; p < PLACES; p++)
		logical[p] = (p % LOCAL * RANKS + rank_of(p)) % EXPERTS;
	for (int p = 0; p < PLACES; p++) /* neighbours share */
		logical[p] = p % LOCAL < 3   ? rank_of(p) * 3 + p % LOCAL
			     : p % LOCAL < 6 ? (rank_of(p) + 1) % RANKS * 3 + p % LOCAL - 3
					     : (rank_of(p) + 2) % RANKS * 3 + p % LOCAL - 6;
	tokens_config(&config, s->scene->job.config.mode);
	config.placement = (struct tern_placement){.nr_physical = PLACES, .logical = logical};
	s->weights = aligned_alloc(64, LOCAL * sizeof(s->weights[0]));
	s->y = aligned_alloc(64, sizeof(float) * HIDDEN * TOKENS * TOPK * RANKS);
	if (!s->weights || !s->y)
		return TERN_ERR_NOMEM;
	rc = tern_moe_create(s->rank->group, &config, &s->moe);
	rc = rc ? rc : open_store(s, logical);
	return rc ? rc : tern_group_allgather(s->rank->group, "", (char[RANKS]){0}, 1);
}

/* The same on all ranks, after the same gathering. */
static bool is_done(const struct server *s)
{
	return s->number > MOST_ROUNDS ||
	       (s->number % STEP == 1 && (s->scene->halves ? s->nr_after : s->nr_plans) >= PLANS);
}

static int serve(struct server *s)
{
	int rc = 0;

	for (s->number = 1; !is_done(s) && !rc; s->number++) {
		if (s->number % STEP == 0)
			rc = gather(s);
		rc = rc ? rc : right_round(s);
		rc = rc ? rc : begin_move(s);
		rc = rc ? rc : poll_move(s);
	}
	return rc;
}

static void body(struct rank *rank)
{
	struct server s = {.rank = rank, .scene = rank->ctx};
	int rc;

	s.seed = s.scene->job.seed;
	if (rank->rank == VICTIM)
		s.dies_at = (uint32_t)s.scene->halves;
	if (join(rank, &s.scene->first, rank->rank))
		return;
	rc = open_server(&s);
	rc = rc ? rc : serve(&s);
	if (rc && !*rank->failure)
		rank_fails(rank, "round %llu: %d, %s", (unsigned long long)s.number, rc,
			tern_last_error());
	if (!rc && s.number > MOST_ROUNDS)
		rank_fails(rank, "only %u plans moved anything", s.nr_plans);
	tern_weights_destroy(s.store);
	tern_engine_destroy(s.engine);
	tern_balance_destroy(s.balance);
	tern_moe_destroy(s.moe);
	tern_group_destroy(rank->group);
	free(s.weights);
	free(s.y);
}

static void play(enum tern_mode mode, uint64_t seed, int dies_at)
{
	struct scene *s = scene_open(RANKS, mode);

	s->victim = VICTIM;
	s->elastic = true;
	s->job.seed = seed;
	s->halves = dies_at;
	print_message("# seed %llu, mode %d, killed at poll %d\n", (unsigned long long)seed,
		(int)mode, dies_at);
	scene_play(s, body, dies_at ? SIGKILL : 0);
}

static void nobody_dies(void **state)
{
	(void)state;
	BOTH_MODES(mode)
	play(mode, 1, 0);
}

static void killed_while_experts_move(void **state)
{
	const char *text = getenv("TERN_TEST_SEED");
	uint64_t first = text ? strtoull(text, NULL, 0) : 2, random = first,
		 nr = getenv("LONG") ? 100 : (uint64_t)scaled(4);

	(void)state;
	for (uint64_t seed = first; seed < first + nr; seed++)
		BOTH_MODES(mode)
	play(mode, seed, 1 + (int)random_below(&random, 30));
}

/* test_moving [PATTERN]: those of that name. TERN_TEST_SEED: where deaths start. LONG: 100 seeds.
 */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nobody_dies),
		cmocka_unit_test(killed_while_experts_move),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
