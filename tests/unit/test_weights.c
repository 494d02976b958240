/* SPDX-License-Identifier: Apache-2.0 */
/* Experts' weights move between ranks that are threads, and every byte is compared with what it
 * should be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tern_weights.h"
#include "base/clock.h"
#include "testkit/random.h"
#include "tests/exchange/ranks.h"
#include "weights/store.h"
#include "weights/sum.h"

#define RANKS 4
#define EXPERTS 8u
#define PLACES 12u /* three on each rank, one of them free at first */
#define LAYERS 2u
#define PARTS 2u
#define WAIT 20000

static const uint64_t part_bytes[PARTS] = {10000, 777};
#define STRIDE 10240u

struct store_test {
	struct rank *rank;
	tern_engine *engine;
	tern_weight_store *store;
	struct tern_weights_part parts[LAYERS][PARTS];
	uint8_t *memory; /* [LAYERS][PARTS][3][STRIDE] */
	int32_t at[PLACES];
	uint32_t nr_loads;
	uint32_t apart; /* places of a rank; 0: three */
};

/* ---- what weights are ------------------------------------------------------------------------ */

static uint64_t seed = 77;

static void draw_part(uint32_t layer, int32_t expert, uint32_t part, uint8_t *to)
{
	uint64_t random = seed * 1000003 + layer * 4099 + (uint32_t)expert * 31 + part;

	for (uint64_t i = 0; i < part_bytes[part]; i++)
		to[i] = (uint8_t)random_below(&random, 256);
}

static uint8_t *part_at(const struct store_test *t, uint32_t layer, uint32_t place, uint32_t part)
{
	return (uint8_t *)t->parts[layer][part].base + place % (t->apart ? t->apart : 3) * STRIDE;
}

static void put(struct store_test *t, uint32_t layer, uint32_t place, int32_t expert)
{
	for (uint32_t k = 0; k < PARTS; k++)
		draw_part(layer, expert, k, part_at(t, layer, place, k));
}

static void check(struct store_test *t, uint32_t layer, uint32_t place, int32_t expert)
{
	uint8_t expected[STRIDE];

	for (uint32_t k = 0; k < PARTS; k++) {
		draw_part(layer, expert, k, expected);
		if (memcmp(expected, part_at(t, layer, place, k), part_bytes[k]))
			rank_fails(t->rank, "place %u of layer %u is not expert %d", place, layer,
				expert);
	}
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static int load(
	void *ctx, uint32_t layer, int32_t expert, uint64_t offset, void *into, uint64_t bytes)
{
	struct store_test *t = ctx;
	uint8_t whole[2 * STRIDE];

	t->nr_loads++;
	draw_part(layer, expert, 0, whole);
	draw_part(layer, expert, 1, whole + part_bytes[0]);
	memcpy(into, whole + offset, bytes);
	return 0;
}

static void settings(struct store_test *t, struct tern_weights_config *config)
{
	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t k = 0; k < PARTS; k++)
			t->parts[l][k] = (struct tern_weights_part){
				t->memory + (l * PARTS + k) * 3 * STRIDE, part_bytes[k], STRIDE};
	*config = (struct tern_weights_config){.size = sizeof(*config),
		.nr_layers = LAYERS,
		.nr_experts = EXPERTS,
		.nr_physical = PLACES,
		.nr_parts = PARTS,
		.parts = t->parts[0],
		.nr_backups = 8,
		.page_bytes = 1024,
		.window = 3};
}

static int store_open(
	struct store_test *t, struct rank *rank, void (*change)(struct tern_weights_config *))
{
	struct tern_weights_config config;
	struct tern_engine_config engine;

	*t = (struct store_test){.rank = rank, .memory = calloc(LAYERS * PARTS * 3, STRIDE)};
	settings(t, &config);
	config.load_ctx = t;
	if (change)
		change(&config);
	tern_engine_config_init(&engine);
	if (tern_engine_create(rank->group, &engine, &t->engine))
		return rank_fails(rank, "engine: %s", tern_last_error());
	if (tern_weights_create(t->engine, &config, &t->store))
		return rank_fails(rank, "store: %s", tern_last_error());
	/* Experts 2r and 2r + 1 lie on rank r; its third place is free. */
	for (uint32_t p = 0; p < PLACES; p++)
		t->at[p] = p % 3 < 2 ? (int32_t)(p / 3 * 2 + p % 3) : -1;
	for (uint32_t l = 0; l < LAYERS; l++) {
		for (uint32_t p = 0; p < PLACES; p++) {
			if (p / 3 != (uint32_t)rank->rank || t->at[p] < 0)
				continue;
			put(t, l, p, t->at[p]);
			if (tern_weights_hold(t->store, l, p, t->at[p]))
				return rank_fails(rank, "hold: %s", tern_last_error());
		}
		if (tern_weights_use(t->store, l, t->at))
			return rank_fails(rank, "use: %s", tern_last_error());
	}
	return ranks_meet(rank);
}

static void store_close(struct store_test *t)
{
	ranks_meet(t->rank);
	if (tern_weights_destroy(t->store) || tern_engine_destroy(t->engine))
		rank_fails(t->rank, "destroy: %s", tern_last_error());
	free(t->memory);
}

static struct tern_weights_stats stats_of(struct store_test *t)
{
	struct tern_weights_stats stats = {.size = sizeof(stats)};

	if (tern_weights_stats(t->store, &stats))
		rank_fails(t->rank, "stats: %s", tern_last_error());
	return stats;
}

static void run(rank_main body)
{
	const char *failure = run_ranks(RANKS, body, NULL);

	if (failure)
		fail_msg("%s", failure);
}

static int must(struct store_test *t, int rc, const char *what)
{
	return rc ? rank_fails(t->rank, "%s: %d, %s", what, rc, tern_last_error()) : 0;
}

static int expect(struct store_test *t, int rc, int due, const char *what, const char *words)
{
	if (rc == due && (!words || strstr(tern_last_error(), words)))
		return 0;
	return rank_fails(t->rank, "%s: %d and not %d, %s", what, rc, due, tern_last_error());
}

/* ---- moves ----------------------------------------------------------------------------------- */

/* Each rank takes the first expert of the next one into its free place, and all use it. */
static void replicas_are_made(struct rank *rank)
{
	struct tern_weights_progress progress = {.size = sizeof(progress)};
	struct tern_copy copies[RANKS];
	int32_t held[PLACES], all[RANKS][PLACES];
	struct store_test t;
	uint64_t ticket;

	if (store_open(&t, rank, NULL))
		return;
	for (uint32_t l = 0; l < LAYERS; l++) {
		for (int r = 0; r < RANKS; r++)
			copies[r] = (struct tern_copy){.expert = (r + 1) % RANKS * 2,
				.from = (r + 1) % RANKS * 3,
				.to = r * 3 + 2};
		must(&t, tern_weights_move(t.store, l, copies, RANKS, &ticket), "move");
		expect(&t,
			tern_weights_use(
				t.store, l, (int32_t[PLACES]){0, 1, 2, 2, 3, 4, 4, 5, 6, 6, 7, 0}),
			TERN_ERR_STATE, "use before it is whole", "a move fills it");
		must(&t, tern_weights_wait(t.store, ticket, WAIT, &progress), "wait");
		if (progress.nr_copies != 1 || progress.nr_whole != 1 || progress.bytes_left)
			rank_fails(rank, "progress: %u of %u, %llu bytes left", progress.nr_whole,
				progress.nr_copies, (unsigned long long)progress.bytes_left);
		check(&t, l, (uint32_t)rank->rank * 3 + 2, (rank->rank + 1) % RANKS * 2);
		must(&t, tern_weights_held(t.store, l, held), "held");
		must(&t, tern_group_allgather(rank->group, held, all, sizeof(held)), "gather");
		for (uint32_t p = 0; p < PLACES; p++)
			if (all[p / 3][p] !=
				(p % 3 < 2 ? t.at[p] : (int32_t)((p / 3 + 1) % RANKS * 2)))
				rank_fails(rank, "place %u holds %d", p, all[p / 3][p]);
		for (uint32_t p = 0; p < PLACES; p++)
			t.at[p] = all[p / 3][p];
		must(&t, tern_weights_use(t.store, l, t.at), "use");
	}
	if (stats_of(&t).pages != 22 || stats_of(&t).pages_wrong)
		rank_fails(rank, "%llu pages", (unsigned long long)stats_of(&t).pages);
	store_close(&t);
}

static void moves(void **state)
{
	(void)state;
	run(replicas_are_made);
}

/* Polls alone, and none of them takes more than one page. */
static void polled(struct rank *rank)
{
	struct tern_weights_progress progress = {.size = sizeof(progress)};
	const struct tern_copy copy = {
		.expert = (rank->rank + 2) % RANKS * 2 + 1, .from = -1, .to = rank->rank * 3 + 2};
	struct store_test t;
	uint64_t ticket, left = part_bytes[0] + part_bytes[1];
	int rc;

	if (store_open(&t, rank, NULL))
		return;
	must(&t, tern_weights_move(t.store, 1, &copy, 1, &ticket), "move");
	while ((rc = tern_weights_poll(t.store, ticket, &progress)) == TERN_ERR_TIMEOUT) {
		if (left - progress.bytes_left > 1024)
			rank_fails(rank, "%llu bytes in one poll",
				(unsigned long long)(left - progress.bytes_left));
		left = progress.bytes_left;
	}
	must(&t, rc, "poll");
	check(&t, 1, (uint32_t)rank->rank * 3 + 2, copy.expert);
	expect(&t, tern_weights_poll(t.store, ticket, NULL), TERN_ERR_INVALID, "poll again",
		"told before");
	must(&t, tern_weights_poll(t.store, 0, NULL), "poll of nothing");
	/* Two ranks were asked in vain where the source was not said. */
	if (stats_of(&t).sources_left != 1)
		rank_fails(rank, "%llu sources were passed over",
			(unsigned long long)stats_of(&t).sources_left);
	store_close(&t);
}

static void polls(void **state)
{
	(void)state;
	run(polled);
}

/* ---- backups and the checkpoint -------------------------------------------------------------- */

static void backed_up(struct rank *rank)
{
	struct store_test t;
	uint64_t ticket;
	uint32_t mine = 0, nr[RANKS];

	if (store_open(&t, rank, NULL))
		return;
	for (uint32_t l = 0; l < LAYERS; l++) {
		must(&t, tern_weights_backup(t.store, l, t.at, NULL, &ticket), "backup");
		must(&t, tern_weights_wait(t.store, ticket, WAIT, NULL), "wait");
		/* Once more costs nothing. */
		must(&t, tern_weights_backup(t.store, l, t.at, NULL, &ticket), "backup");
		must(&t, tern_weights_poll(t.store, ticket, NULL), "poll");
	}
	for (uint32_t i = 0; i < t.store->config.nr_backups; i++)
		mine += t.store->places[LAYERS * 3 + i].state == PLACE_WHOLE;
	must(&t, tern_group_allgather(rank->group, &mine, nr, sizeof(mine)), "gather");
	for (uint32_t r = 0; r < RANKS; r++)
		if (nr[r] > LAYERS * (EXPERTS / RANKS + 1))
			rank_fails(rank, "rank %u has %u backups", r, nr[r]);
	if (nr[0] + nr[1] + nr[2] + nr[3] != LAYERS * EXPERTS)
		rank_fails(rank, "not every expert has a backup");
	/* Rank 0 forgets what it served, and gets it from backups. */
	if (rank->rank == 0)
		for (uint32_t l = 0; l < LAYERS; l++) {
			const struct tern_copy copies[] = {{0, -1, 0}, {1, -1, 1}};

			must(&t, tern_weights_use(t.store, l, NULL), "use");
			for (uint32_t p = 0; p < 2; p++) {
				must(&t, tern_weights_hold(t.store, l, p, -1), "hold");
				memset(part_at(&t, l, p, 0), 0xee, part_bytes[0]);
				memset(part_at(&t, l, p, 1), 0xee, part_bytes[1]);
			}
			must(&t, tern_weights_move(t.store, l, copies, 2, &ticket), "move");
			must(&t, tern_weights_wait(t.store, ticket, WAIT, NULL), "wait");
			check(&t, l, 0, 0);
			check(&t, l, 1, 1);
		}
	store_close(&t);
}

static void backups(void **state)
{
	(void)state;
	run(backed_up);
}

static void with_load(struct tern_weights_config *config)
{
	config->load = load;
}

/* No rank holds it any more. */
static void loaded(struct rank *rank)
{
	const struct tern_copy copy = {.expert = 5, .from = 7, .to = 0};
	struct store_test t;
	uint64_t ticket;

	if (store_open(&t, rank, with_load))
		return;
	must(&t, tern_weights_use(t.store, 0, NULL), "use");
	if (rank->rank == 2)
		must(&t, tern_weights_hold(t.store, 0, 7, -1), "hold");
	ranks_meet(rank);
	must(&t, tern_weights_move(t.store, 0, &copy, 1, &ticket), "move");
	must(&t, tern_weights_wait(t.store, ticket, WAIT, NULL), "wait");
	if (rank->rank == 0) {
		check(&t, 0, 0, 5);
		if (t.nr_loads != 11 || stats_of(&t).pages_loaded != 11)
			rank_fails(rank, "%u loads", t.nr_loads);
	}
	store_close(&t);
}

static void checkpoint(void **state)
{
	(void)state;
	run(loaded);
}

static void lost(struct rank *rank)
{
	const struct tern_copy copy = {.expert = 5, .from = 7, .to = 0};
	struct store_test t;
	uint64_t ticket;

	if (store_open(&t, rank, NULL))
		return;
	must(&t, tern_weights_use(t.store, 0, NULL), "use");
	if (rank->rank == 2)
		must(&t, tern_weights_hold(t.store, 0, 7, -1), "hold");
	ranks_meet(rank);
	must(&t, tern_weights_move(t.store, 0, &copy, 1, &ticket), "move");
	if (rank->rank == 0) {
		int32_t held[PLACES];

		expect(&t, tern_weights_wait(t.store, ticket, WAIT, NULL), TERN_ERR_LOST_EXPERTS,
			"wait", "rank 2 does not hold it");
		must(&t, tern_weights_held(t.store, 0, held), "held");
		if (held[0] != -1 || held[1] != 1)
			rank_fails(rank, "place 0 holds %d, place 1 %d", held[0], held[1]);
		must(&t, tern_weights_move(t.store, 0, &(struct tern_copy){4, 6, 0}, 1, &ticket),
			"another move");
		must(&t, tern_weights_wait(t.store, ticket, WAIT, NULL), "wait");
		check(&t, 0, 0, 4);
	} else {
		must(&t, tern_weights_wait(t.store, ticket, WAIT, NULL), "wait of nothing");
	}
	store_close(&t);
}

static void lost_experts(void **state)
{
	(void)state;
	run(lost);
}

/* ---- wrong bytes ----------------------------------------------------------------------------- */

/* What rank 1 holds has changed since it was summed; rank 2 has the same expert as it was. */
static void spoilt(struct rank *rank)
{
	const struct tern_copy again = {.expert = 2, .from = 3, .to = 8},
			       copy = {.expert = 2, .from = 3, .to = 2};
	struct store_test t;
	uint64_t ticket;

	if (store_open(&t, rank, NULL))
		return;
	must(&t, tern_weights_move(t.store, 0, &again, 1, &ticket), "move");
	must(&t, tern_weights_wait(t.store, ticket, WAIT, NULL), "wait");
	ranks_meet(rank);
	if (rank->rank == 1)
		part_at(&t, 0, 3, 0)[5000] ^= 0x10;
	ranks_meet(rank);
	must(&t, tern_weights_move(t.store, 0, &copy, 1, &ticket), "move");
	must(&t, tern_weights_wait(t.store, ticket, WAIT, NULL), "wait");
	if (rank->rank == 0) {
		check(&t, 0, 2, 2);
		if (stats_of(&t).pages_wrong != 3 || stats_of(&t).sources_left != 1)
			rank_fails(rank, "%llu pages were wrong, %llu sources passed over",
				(unsigned long long)stats_of(&t).pages_wrong,
				(unsigned long long)stats_of(&t).sources_left);
	}
	store_close(&t);
}

static void wrong_bytes(void **state)
{
	(void)state;
	run(spoilt);
}

static void sums(void **state)
{
	uint8_t bytes[300];
	uint64_t random = 3, sum;

	(void)state;
	for (uint32_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)random_below(&random, 256);
	for (uint32_t n = 0; n <= sizeof(bytes); n++) {
		sum = weights_sum(bytes, n);
		assert_true(sum == weights_sum(bytes, n));
		for (uint32_t bit = 0; bit < n * 8; bit++) {
			bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
			assert_true(sum != weights_sum(bytes, n));
			bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
		}
		for (uint32_t m = 0; m < n; m++)
			assert_true(sum != weights_sum(bytes, m));
	}
	memset(bytes, 0, sizeof(bytes));
	for (uint32_t n = 0; n < sizeof(bytes); n++)
		assert_true(weights_sum(bytes, n) != weights_sum(bytes, n + 1));
	for (uint32_t i = 0; i + 8 < sizeof(bytes); i += 8) { /* words that change places */
		memset(bytes, 0, sizeof(bytes));
		bytes[i] = 1;
		sum = weights_sum(bytes, sizeof(bytes));
		bytes[i] = 0;
		bytes[i + 8] = 1;
		assert_true(sum != weights_sum(bytes, sizeof(bytes)));
	}
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refused(struct rank *rank)
{
	static const struct {
		struct tern_copy copies[2];
		int nr, rc;
		const char *words;
	} cases[] = {
		{{{8, -1, 2}}, 1, TERN_ERR_INVALID, "expert is 8 of 8"},
		{{{-1, -1, 2}}, 1, TERN_ERR_INVALID, "expert is -1"},
		{{{3, -1, 12}}, 1, TERN_ERR_INVALID, "to 12 of 12"},
		{{{3, -1, -1}}, 1, TERN_ERR_INVALID, "to -1"},
		{{{3, 12, 2}}, 1, TERN_ERR_INVALID, "from place 12"},
		{{{3, -2, 2}}, 1, TERN_ERR_INVALID, "from place -2"},
		{{{3, 4, 2}, {5, 7, 2}}, 2, TERN_ERR_INVALID, "a target already"},
		{{{3, 4, 2}, {5, 2, 8}}, 2, TERN_ERR_INVALID, "a source of the same move"},
		{{{3, 2, 2}}, 1, TERN_ERR_INVALID, "a source of the same move"},
		{{{3, 4, 2}, {3, 4, 0}}, 2, TERN_ERR_STATE, "which the placement in use names"},
	};
	struct store_test t;
	uint64_t ticket = 4711;
	int32_t at[PLACES], before[PLACES];

	if (store_open(&t, rank, NULL))
		return;
	must(&t, tern_weights_held(t.store, 0, before), "held");
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]) && rank->rank == 0; i++)
		expect(&t,
			tern_weights_move(
				t.store, 0, cases[i].copies, (uint32_t)cases[i].nr, &ticket),
			cases[i].rc, "a bad copy", cases[i].words);
	expect(&t, tern_weights_move(t.store, 2, cases[0].copies, 1, &ticket), TERN_ERR_INVALID,
		"a bad layer", "layer 2 of 2");
	expect(&t, tern_weights_move(t.store, 0, NULL, 1, &ticket), TERN_ERR_INVALID, "no copies",
		"NULL");
	expect(&t, tern_weights_move(t.store, 0, cases[0].copies, UINT32_MAX, &ticket),
		TERN_ERR_INVALID, "many copies", "4294967295 copies into 12");
	expect(&t, tern_weights_hold(t.store, 0, 12, 0), TERN_ERR_INVALID, "hold", "12 of 12");
	expect(&t, tern_weights_hold(t.store, 0, (uint32_t)(rank->rank * 3 + 3) % PLACES, 0),
		TERN_ERR_INVALID, "another's", "is rank");
	expect(&t, tern_weights_hold(t.store, 0, (uint32_t)rank->rank * 3 + 2, 8), TERN_ERR_INVALID,
		"an expert that is none", "expert 8 of 8");
	expect(&t, tern_weights_hold(t.store, 0, (uint32_t)rank->rank * 3, 7), TERN_ERR_STATE,
		"a place in use", "names");
	memcpy(at, t.at, sizeof(at));
	at[rank->rank * 3 + 2] = 1;
	expect(&t, tern_weights_use(t.store, 0, at), TERN_ERR_STATE, "an empty place",
		"does not hold it");
	at[0] = 8;
	expect(&t, tern_weights_use(t.store, 0, at), TERN_ERR_INVALID, "use", "logical[0] is 8");
	expect(&t, tern_weights_backup(t.store, 0, at, NULL, &ticket), TERN_ERR_INVALID, "backup",
		"logical[0] is 8");
	if (ticket != 4711 || t.store->copies || t.store->tickets)
		rank_fails(rank, "a refused call has begun something");
	must(&t, tern_weights_held(t.store, 0, at), "held");
	if (memcmp(at, before, sizeof(at)))
		rank_fails(rank, "a refused call has changed a place");
	for (uint32_t p = 0; p < 2; p++)
		check(&t, 0, (uint32_t)rank->rank * 3 + p, t.at[rank->rank * 3 + (int)p]);
	expect(&t, tern_weights_poll(t.store, 1, NULL), TERN_ERR_INVALID, "poll", "no move");
	store_close(&t);
}

static void refusals(void **state)
{
	(void)state;
	run(refused);
}

/* Rank 1 copies from rank 0's place and stands still in the middle of it. */
static void lent_out(struct rank *rank)
{
	struct tern_weights_progress progress = {.size = sizeof(progress)};
	const struct tern_copy out = {.expert = 0, .from = 0, .to = 5},
			       in = {.expert = 6, .from = 9, .to = 0};
	struct store_test t;
	uint64_t ticket = 0, other;

	if (store_open(&t, rank, NULL))
		return;
	must(&t, tern_weights_use(t.store, 0, NULL), "use");
	if (rank->rank == 1) {
		must(&t, tern_weights_move(t.store, 0, &out, 1, &ticket), "move");
		do
			tern_weights_poll(t.store, ticket, &progress);
		while (progress.bytes_left > 5000);
		expect(&t, tern_weights_move(t.store, 0, &(struct tern_copy){1, 1, 5}, 1, &other),
			TERN_ERR_STATE, "a place that is being filled", "by another move");
		expect(&t, tern_weights_hold(t.store, 0, 5, 0), TERN_ERR_STATE, "hold",
			"by another move");
	}
	ranks_meet(rank);
	if (rank->rank == 0) {
		expect(&t, tern_weights_move(t.store, 0, &in, 1, &other), TERN_ERR_STATE,
			"a place that is copied", "which rank 1 copies");
		expect(&t, tern_weights_hold(t.store, 0, 0, -1), TERN_ERR_STATE, "hold",
			"which rank 1 copies");
	}
	ranks_meet(rank);
	if (rank->rank == 1) {
		must(&t, tern_weights_wait(t.store, ticket, WAIT, NULL), "wait");
		check(&t, 0, 5, 0);
	}
	ranks_meet(rank);
	if (rank->rank == 0) {
		int rc;

		/* Its word that it has ended may still be on its way. */
		while ((rc = tern_weights_move(t.store, 0, &in, 1, &other)) == TERN_ERR_STATE)
			tern_weights_poll(t.store, 0, NULL);
		must(&t, rc, "move");
		must(&t, tern_weights_wait(t.store, other, WAIT, NULL), "wait");
		check(&t, 0, 0, 6);
	}
	store_close(&t);
}

static void lent(void **state)
{
	(void)state;
	run(lent_out);
}

/* ---- a peer that says anything --------------------------------------------------------------- */

static uint32_t near(uint64_t *random, uint32_t most)
{
	return random_below(random, 20) ? (uint32_t)random_below(random, most)
					: (uint32_t)random_next(random);
}

static void babble(struct store_test *t, int nr)
{
	uint64_t random = 12345;

	for (int i = 0; i < nr; i++) {
		struct store_message m = {.generation = random_below(&random, 50) ? 1 : 0,
			.kind = (uint16_t)near(&random, 5),
			.status = (uint16_t)near(&random, 5),
			.slot = near(&random, 5),
			.number = near(&random, 40),
			.layer = near(&random, 3),
			.page = near(&random, 12),
			.expert = (int32_t)near(&random, 9),
			.sum = random_next(&random),
			.whole = random_next(&random),
			.busy_ns = random_next(&random)};
		const struct tern_send send = {.size = sizeof(send),
			.peer = (uint32_t)random_below(&random, RANKS - 1),
			.data = &m,
			.bytes = random_below(&random, 30) ? (uint32_t)sizeof(m)
							   : near(&random, sizeof(m))};

		/* Of a length that an engine takes. */
		if (send.bytes <= 256 && tern_engine_send(t->engine, &send, NULL))
			rank_fails(t->rank, "send: %s", tern_last_error());
	}
}

/* What it has asked for keeps places from being filled, until it says that it has ended. */
static void say_the_end(struct store_test *t)
{
	for (uint32_t i = 0; i < (RANKS - 1) * LAYERS * EXPERTS; i++) {
		const struct store_message m = {.generation = 1,
			.kind = STORE_END,
			.layer = i / EXPERTS % LAYERS,
			.expert = (int32_t)(i % EXPERTS)};
		const struct tern_send send = {.size = sizeof(send),
			.peer = i / EXPERTS / LAYERS,
			.data = &m,
			.bytes = sizeof(m)};

		if (tern_engine_send(t->engine, &send, NULL))
			rank_fails(t->rank, "send: %s", tern_last_error());
	}
}

/* The last rank tells the others whatever comes to its mind, while they copy from each other. */
static void beside_babble(struct rank *rank)
{
	struct store_test t;
	uint64_t ticket;
	int rc;

	if (store_open(&t, rank, NULL))
		return;
	if (rank->rank == RANKS - 1)
		babble(&t, scaled(20000));
	if (rank->rank == RANKS - 1)
		say_the_end(&t);
	for (int i = 0; i < 20 && rank->rank < RANKS - 1; i++) {
		const struct tern_copy copy = {.expert = (rank->rank + 1) % 3 * 2 + i % 2,
			.from = (rank->rank + 1) % 3 * 3 + i % 2,
			.to = rank->rank * 3 + 2};

		must(&t, tern_weights_move(t.store, i / 2 % LAYERS, &copy, 1, &ticket), "move");
		must(&t, tern_weights_wait(t.store, ticket, WAIT, NULL), "wait");
		check(&t, i / 2 % LAYERS, (uint32_t)rank->rank * 3 + 2, copy.expert);
		while ((rc = tern_weights_hold(t.store, i / 2 % LAYERS,
				(uint32_t)rank->rank * 3 + 2, -1)) == TERN_ERR_STATE)
			tern_weights_poll(t.store, 0, NULL);
		must(&t, rc, "hold");
	}
	for (uint32_t p = 0; p < 2; p++)
		for (uint32_t l = 0; l < LAYERS; l++)
			check(&t, l, (uint32_t)rank->rank * 3 + p, rank->rank * 2 + (int32_t)p);
	store_close(&t);
}

static void hostile_peer(void **state)
{
	(void)state;
#ifdef __SANITIZE_THREAD__
	print_message("# SKIP a page that nobody waits for any more may be written beside another: "
		      "its sum tells, and no lock\n");
	skip();
#endif
	run(beside_babble);
}

/* ---- any calls ------------------------------------------------------------------------------- */

#define LONE 5 /* places of one rank alone */

/* What the contract says of a store of one layer on one rank, whose moves are waited for. */
struct model {
	int32_t holds[LONE];
	bool named[LONE];
};

static int32_t odd(uint64_t *random, int32_t most)
{
	static const int32_t values[] = {-1, -2, INT32_MAX, INT32_MIN, 5, 8};

	return random_below(random, 12) ? (int32_t)random_below(random, (uint64_t)most)
					: values[random_below(random, 6)];
}

static int due_hold(const struct model *m, int32_t place, int32_t expert)
{
	if (place < 0 || place >= LONE || expert < -1 || expert >= (int32_t)EXPERTS)
		return TERN_ERR_INVALID;
	return m->named[place] ? TERN_ERR_STATE : 0;
}

static int due_use(const struct model *m, const int32_t *logical)
{
	for (int p = 0; p < LONE; p++) {
		if (logical[p] < -1 || logical[p] >= (int32_t)EXPERTS)
			return TERN_ERR_INVALID;
		if (logical[p] >= 0 && m->holds[p] != logical[p])
			return TERN_ERR_STATE;
	}
	return 0;
}

static int due_move(const struct model *m, const struct tern_copy *copies, uint32_t nr)
{
	int rc = 0;

	for (uint32_t i = 0; i < nr; i++)
		if (copies[i].expert < 0 || copies[i].expert >= (int32_t)EXPERTS ||
			copies[i].to < 0 || copies[i].to >= LONE || copies[i].from < -1 ||
			copies[i].from >= LONE)
			return TERN_ERR_INVALID;
	for (uint32_t i = 0; i < nr; i++)
		for (uint32_t j = 0; j < nr; j++)
			if (copies[i].to == copies[j].from ||
				(i != j && copies[i].to == copies[j].to))
				return TERN_ERR_INVALID;
	for (uint32_t i = 0; i < nr; i++)
		rc = m->named[copies[i].to] ? TERN_ERR_STATE : rc;
	return rc;
}

/* All targets are emptied first; a place that is being filled is nobody's source. */
static int model_move(struct model *m, const struct tern_copy *copies, uint32_t nr)
{
	int32_t before[LONE];
	int rc = 0;

	for (uint32_t i = 0; i < nr; i++)
		m->holds[copies[i].to] = -1;
	memcpy(before, m->holds, sizeof(before));
	for (uint32_t i = 0; i < nr; i++) {
		bool found = false;

		for (int p = 0; p < LONE; p++)
			found = found || before[p] == copies[i].expert;
		m->holds[copies[i].to] = found ? copies[i].expert : -1;
		rc = found || rc ? rc : TERN_ERR_LOST_EXPERTS;
	}
	return rc;
}

static void one_call(struct store_test *t, struct model *m, uint64_t *random)
{
	int32_t logical[LONE], held[LONE], place = odd(random, LONE), expert = odd(random, 8);
	struct tern_copy copies[3];
	uint32_t nr = (uint32_t)random_below(random, 4);
	uint64_t ticket;
	int due;

	switch (random_below(random, 4)) {
	case 0:
		due = due_hold(m, place, expert);
		if (!due && expert >= 0)
			put(t, 0, (uint32_t)place, expert);
		expect(t, tern_weights_hold(t->store, 0, (uint32_t)place, expert), due, "hold",
			NULL);
		if (!due)
			m->holds[place] = expert;
		break;
	case 1:
		for (int p = 0; p < LONE; p++)
			logical[p] = random_below(random, 8) ? m->holds[p] : odd(random, 8);
		if (random_below(random, 4))
			logical[random_below(random, LONE)] = -1;
		due = due_use(m, logical);
		expect(t, tern_weights_use(t->store, 0, logical), due, "use", NULL);
		for (int p = 0; p < LONE && !due; p++)
			m->named[p] = logical[p] >= 0;
		break;
	case 2:
		expect(t, tern_weights_use(t->store, 0, NULL), 0, "use nothing", NULL);
		memset(m->named, 0, sizeof(m->named));
		break;
	default:
		for (uint32_t i = 0; i < nr; i++)
			copies[i] = (struct tern_copy){
				odd(random, 8), odd(random, LONE), odd(random, LONE)};
		due = due_move(m, copies, nr);
		expect(t, tern_weights_move(t->store, 0, copies, nr, &ticket), due, "move", NULL);
		if (!due)
			expect(t, tern_weights_wait(t->store, ticket, WAIT, NULL),
				model_move(m, copies, nr), "wait", NULL);
	}
	must(t, tern_weights_held(t->store, 0, held), "held");
	for (uint32_t p = 0; p < LONE; p++) {
		if (held[p] != m->holds[p])
			rank_fails(
				t->rank, "place %u holds %d and not %d", p, held[p], m->holds[p]);
		if (held[p] >= 0)
			check(t, 0, p, held[p]);
	}
}

static void alone(struct rank *rank)
{
	struct store_test t = {.rank = rank, .memory = calloc(PARTS * LONE, STRIDE)};
	struct tern_weights_config config = {.size = sizeof(config),
		.nr_layers = 2,
		.nr_experts = EXPERTS,
		.nr_physical = LONE,
		.nr_parts = PARTS,
		.page_bytes = 4096,
		.parts = t.parts[0]};
	struct model m = {.holds = {-1, -1, -1, -1, -1}};
	struct tern_engine_config engine;
	uint64_t random = 4;

	for (uint32_t l = 0; l < 2; l++)
		for (uint32_t k = 0; k < PARTS; k++)
			t.parts[l][k] = (struct tern_weights_part){
				t.memory + k * LONE * STRIDE, part_bytes[k], STRIDE};
	t.apart = LONE;
	tern_engine_config_init(&engine);
	must(&t, tern_engine_create(rank->group, &engine, &t.engine), "engine");
	must(&t, tern_weights_create(t.engine, &config, &t.store), "store");
	for (int i = 0; i < scaled(4000) && !*rank->failure; i++)
		one_call(&t, &m, &random);
	must(&t, tern_weights_destroy(t.store), "destroy");
	must(&t, tern_engine_destroy(t.engine), "engine");
	free(t.memory);
}

static void any_calls(void **state)
{
	const char *failure = run_ranks(1, alone, NULL);

	(void)state;
	if (failure)
		fail_msg("%s", failure);
}

/* ---- making one ------------------------------------------------------------------------------ */

static void bad_settings(struct rank *rank)
{
	struct store_test t = {.rank = rank, .memory = calloc(LAYERS * PARTS * 3, STRIDE)};
	struct tern_weights_config config;
	struct tern_engine_config engine;
	tern_weight_store *store = NULL, *other = NULL;
	static const int32_t ranks[PLACES] = {0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 4};

	tern_engine_config_init(&engine);
	if (tern_engine_create(rank->group, &engine, &t.engine)) {
		rank_fails(rank, "%s", tern_last_error());
		return;
	}
	settings(&t, &config);
	config.nr_layers = 0;
	expect(&t, tern_weights_create(t.engine, &config, &store), TERN_ERR_INVALID, "no layers",
		"nr_layers is 0");
	settings(&t, &config);
	config.page_bytes = 1000;
	expect(&t, tern_weights_create(t.engine, &config, &store), TERN_ERR_INVALID, "odd pages",
		"page_bytes is 1000");
	settings(&t, &config);
	config.rank = ranks;
	expect(&t, tern_weights_create(t.engine, &config, &store), TERN_ERR_INVALID, "bad ranks",
		"rank[11] is 4");
	settings(&t, &config);
	t.parts[1][0].bytes = 9000;
	expect(&t, tern_weights_create(t.engine, &config, &store), TERN_ERR_INVALID, "odd layers",
		"part 0 of layer 1 has 9000 bytes");
	settings(&t, &config);
	t.parts[0][0].stride = 100;
	expect(&t, tern_weights_create(t.engine, &config, &store), TERN_ERR_INVALID, "strides",
		"100 from place to place");
	settings(&t, &config);
	config.nr_experts = rank->rank == 2 ? 9 : 8;
	expect(&t, tern_weights_create(t.engine, &config, &store), TERN_ERR_MISMATCH, "experts",
		"nr_experts");
	settings(&t, &config);
	config.parts = rank->rank == 3 ? NULL : config.parts;
	expect(&t, tern_weights_create(t.engine, &config, &store), TERN_ERR_INVALID, "one rank's",
		rank->rank == 3 ? "parts is NULL" : "rank 3");
	settings(&t, &config);
	if (store)
		rank_fails(rank, "*store was set by a call that was refused");
	must(&t, tern_weights_create(t.engine, &config, &store), "create");
	expect(&t, tern_weights_create(t.engine, &config, &other), TERN_ERR_STATE, "a second one",
		"another store");
	must(&t, tern_weights_destroy(store), "destroy");
	must(&t, tern_weights_create(t.engine, &config, &other), "another one");
	must(&t, tern_weights_destroy(other), "destroy");
	must(&t, tern_engine_destroy(t.engine), "engine");
	free(t.memory);
}

static void creation(void **state)
{
	(void)state;
	run(bad_settings);
}

/* ---- rates ----------------------------------------------------------------------------------- */

/* What a bucket lets through in any time is bounded by its rate, and one page more. */
static void rates(void **state)
{
	struct bucket bucket = {0};
	uint64_t now = 1000000000, taken = 0, from = now, random = 9, wait;

	(void)state;
	for (int i = 0; i < 100000; i++) {
		wait = bucket_take(&bucket, 1000000, 100, now);
		if (!wait)
			taken += 100;
		else if (i % 3 == 0)
			assert_int_equal(bucket_take(&bucket, 1000000, 100, now + wait - 1), 1);
		assert_true((double)taken <= (double)(now - from) / 1000 + 200);
		now += random_below(&random, 60000);
	}
	assert_true((double)taken > (double)(now - from) / 1000 * 0.5);
	assert_int_equal(bucket_take(&bucket, 0, 1ull << 40, 0), 0);
}

static void slow(struct tern_weights_config *config)
{
	config->rate = 2000000;
}

/* 10777 bytes at 2 MB/s: not before 4 ms, as the first two pages are free of charge. */
static void at_a_rate(struct rank *rank)
{
	const struct tern_copy copy = {.expert = (rank->rank + 1) % RANKS * 2,
		.from = (rank->rank + 1) % RANKS * 3,
		.to = rank->rank * 3 + 2};
	struct store_test t;
	uint64_t ticket, begun;

	if (store_open(&t, rank, slow))
		return;
	begun = clock_ns();
	must(&t, tern_weights_move(t.store, 0, &copy, 1, &ticket), "move");
	must(&t, tern_weights_wait(t.store, ticket, WAIT, NULL), "wait");
	if (clock_ns() - begun < 4000000)
		rank_fails(
			rank, "it took %llu us", (unsigned long long)(clock_ns() - begun) / 1000);
	check(&t, 0, (uint32_t)rank->rank * 3 + 2, copy.expert);
	store_close(&t);
}

static void rate_is_kept(void **state)
{
	(void)state;
	run(at_a_rate);
}

/* test_weights [PATTERN]: those of that name. */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(moves),
		cmocka_unit_test(polls),
		cmocka_unit_test(backups),
		cmocka_unit_test(checkpoint),
		cmocka_unit_test(lost_experts),
		cmocka_unit_test(wrong_bytes),
		cmocka_unit_test(sums),
		cmocka_unit_test(refusals),
		cmocka_unit_test(lent),
		cmocka_unit_test(hostile_peer),
		cmocka_unit_test(any_calls),
		cmocka_unit_test(creation),
		cmocka_unit_test(rates),
		cmocka_unit_test(rate_is_kept),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
