/* SPDX-License-Identifier: Apache-2.0 */
/* Coroutines, and many ranks on them: who runs when, time, gatherings, deaths and limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "soak/coroutine.h"
#include "soak/fleet.h"
#include "tern.h"

/* ---- coroutines ------------------------------------------------------------------------------ */

struct counter {
	struct coroutine *coroutine;
	int steps, depth;
};

static int deep(struct counter *c, int depth)
{
	volatile char frame[512];

	frame[0] = (char)depth;
	if (depth == 0) {
		coroutine_yield(c->coroutine);
		return frame[0];
	}
	return deep(c, depth - 1) + (frame[0] == (char)depth);
}

static void count(void *ctx)
{
	struct counter *c = ctx;

	for (int i = 0; i < 3; i++) {
		c->steps++;
		coroutine_yield(c->coroutine);
	}
	c->depth = deep(c, 100);
}

static void coroutines_take_turns(void **state)
{
	struct counter c[3] = {{0}};

	(void)state;
	for (int i = 0; i < 3; i++)
		assert_non_null(c[i].coroutine = coroutine_create(128 << 10, count, &c[i]));
	for (int step = 1; step <= 3; step++)
		for (int i = 0; i < 3; i++) {
			coroutine_resume(c[i].coroutine);
			assert_int_equal(c[i].steps, step);
		}
	for (int i = 2; i >= 0; i--) {
		coroutine_resume(c[i].coroutine); /* to the bottom of its recursion */
		assert_false(coroutine_has_ended(c[i].coroutine));
	}
	for (int i = 0; i < 3; i++) {
		coroutine_resume(c[i].coroutine);
		assert_true(coroutine_has_ended(c[i].coroutine));
		assert_int_equal(c[i].depth, 100);
		coroutine_destroy(c[i].coroutine);
	}
}

static void one_that_never_began(void **state)
{
	(void)state;
	coroutine_destroy(coroutine_create(4096, count, NULL));
	coroutine_destroy(NULL);
}

/* ---- fleets ---------------------------------------------------------------------------------- */

#define RANKS 5
#define MS 1000000ull

struct story {
	int rc[RANKS];
	char text[RANKS][256];
	uint64_t end_ns[RANKS];
	uint32_t order[RANKS], nr_ended;
	int all[RANKS][RANKS];
	uint32_t victim; /* RANKS: nobody */
	uint32_t killer, nr_begun[RANKS];
	uint64_t pause_ns;
};

static void settings_init(struct fleet_settings *s, uint64_t seed, uint32_t per_node)
{
	*s = (struct fleet_settings){.seed = seed,
		.nr_ranks = RANKS,
		.ranks_per_node = per_node,
		.wait_ms = 1000,
		.limit_ns = 20000 * MS};
	sim_settings_init(&s->network);
	s->network.message_bytes = 1024;
	tern_engine_config_init(&s->engine);
	s->engine.nr_operations = 16;
	s->engine.depth = 16;
	s->engine.timeout_ms = 100;
	s->engine.wait_ms = 1000;
}

static void note_end(struct fleet *fleet, uint32_t rank, struct story *story, int rc)
{
	if (fleet_is_buried(fleet, rank))
		return;
	story->rc[rank] = rc;
	story->end_ns[rank] = fleet_now(fleet);
	story->order[story->nr_ended++] = rank;
	if (rc)
		snprintf(story->text[rank], sizeof(story->text[rank]), "%s", tern_last_error());
}

static void sleeps(struct fleet *fleet, uint32_t rank, void *ctx)
{
	struct story *story = ctx;

	fleet_does(fleet, rank, "sleeping");
	fleet_pause(fleet, rank, story->pause_ns * (RANKS - rank));
	note_end(fleet, rank, story, 0);
}

static void joins(struct fleet *fleet, uint32_t rank, void *ctx)
{
	struct story *story = ctx;
	tern_group *group;
	int mine = (int)rank * 7, rc;

	if (rank == story->victim)
		fleet_kill(fleet, rank, fleet_now(fleet));
	rc = fleet_join(fleet, rank, &group);
	if (!rc) {
		rc = tern_group_allgather(group, &mine, story->all[rank], sizeof(mine));
		tern_group_destroy(group);
	}
	note_end(fleet, rank, story, rc);
}

static struct fleet *start(
	const struct fleet_settings *settings, fleet_body body, struct story *story)
{
	struct fleet *fleet;

	assert_int_equal(fleet_create(settings, body, story, &fleet), 0);
	return fleet;
}

static void time_is_counted(void **state)
{
	struct story story = {.pause_ns = 3000 * MS};
	struct fleet_settings settings;
	struct fleet *fleet;

	(void)state;
	settings_init(&settings, 1, 1);
	fleet = start(&settings, sleeps, &story);
	assert_true(fleet_run(fleet));
	for (uint32_t r = 0; r < RANKS; r++) {
		assert_int_equal(story.end_ns[r], story.pause_ns * (RANKS - r));
		assert_int_equal(story.order[r], RANKS - 1 - r);
	}
	fleet_destroy(fleet);
}

static void a_limit_names_who_waits(void **state)
{
	struct story story = {.pause_ns = 4100 * MS}; /* rank 0 would need 20.5 s */
	struct fleet_settings settings;
	struct fleet *fleet;

	(void)state;
	settings_init(&settings, 1, 1);
	fleet = start(&settings, sleeps, &story);
	assert_false(fleet_run(fleet));
	assert_non_null(strstr(fleet_failure(fleet), "rank 0 is in sleeping since 0.000 ms"));
	assert_null(strstr(fleet_failure(fleet), "rank 1"));
	assert_int_equal(story.nr_ended, RANKS - 1);
	fleet_destroy(fleet);
}

static uint64_t run_joining(uint64_t seed, uint32_t per_node)
{
	struct story story = {.victim = RANKS};
	struct fleet_settings settings;
	struct fleet *fleet;
	uint64_t digest;

	settings_init(&settings, seed, per_node);
	fleet = start(&settings, joins, &story);
	if (!fleet_run(fleet))
		fail_msg("seed %llu: %s", (unsigned long long)seed, fleet_failure(fleet));
	for (uint32_t r = 0; r < RANKS; r++) {
		if (story.rc[r])
			fail_msg("seed %llu, rank %u: %s", (unsigned long long)seed, r,
				story.text[r]);
		for (uint32_t from = 0; from < RANKS; from++)
			assert_int_equal(story.all[r][from], from * 7);
	}
	digest = fleet_digest(fleet);
	fleet_destroy(fleet);
	return digest;
}

static void groups_over_the_network(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++)
		for (uint32_t per_node = 1; per_node <= RANKS; per_node++)
			assert_true(run_joining(seed, per_node) == run_joining(seed, per_node));
	assert_true(run_joining(1, 1) != run_joining(2, 1));
}

static void a_dead_rank_is_missed(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 10; seed++) {
		struct story story = {.victim = (uint32_t)seed % RANKS};
		struct fleet_settings settings;
		struct fleet *fleet;
		char name[32];

		settings_init(&settings, seed, 1 + (uint32_t)seed % 2);
		fleet = start(&settings, joins, &story);
		assert_true(fleet_run(fleet));
		assert_true(fleet_is_dead(fleet, story.victim));
		assert_int_equal(story.nr_ended, RANKS - 1);
		snprintf(name, sizeof(name), "rank %u did not come", story.victim);
		for (uint32_t r = 0; r < RANKS; r++)
			if (r != story.victim &&
				(story.rc[r] != TERN_ERR_BOOTSTRAP || !strstr(story.text[r], name)))
				fail_msg("seed %llu, rank %u: %d (%s)", (unsigned long long)seed, r,
					story.rc[r], story.text[r]);
		fleet_destroy(fleet);
	}
}

static void kills(struct fleet *fleet, uint32_t rank, void *ctx)
{
	struct story *story = ctx;

	story->nr_begun[rank]++;
	if (rank == story->killer)
		fleet_kill(fleet, story->victim, fleet_now(fleet));
	fleet_pause(fleet, rank, MS);
	note_end(fleet, rank, story, 0);
}

/* At once, whether or not the victim has begun. */
static void a_rank_kills_another(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 4 * RANKS * RANKS; seed++) {
		struct story story = {.killer = (uint32_t)seed % RANKS,
			.victim = (uint32_t)(seed / RANKS) % RANKS};
		struct fleet_settings settings;
		struct fleet *fleet;

		settings_init(&settings, seed, 1);
		fleet = start(&settings, kills, &story);
		assert_true(fleet_run(fleet));
		assert_true(fleet_is_dead(fleet, story.victim));
		assert_int_equal(story.nr_ended, RANKS - 1);
		for (uint32_t r = 0; r < RANKS; r++)
			assert_int_equal(story.nr_begun[r], 1);
		fleet_destroy(fleet);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(coroutines_take_turns),
		cmocka_unit_test(one_that_never_began),
		cmocka_unit_test(time_is_counted),
		cmocka_unit_test(a_limit_names_who_waits),
		cmocka_unit_test(groups_over_the_network),
		cmocka_unit_test(a_dead_rank_is_missed),
		cmocka_unit_test(a_rank_kills_another),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
