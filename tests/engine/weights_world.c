/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/engine/weights_world.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "soak/fleet.h"
#include "tern_weights.h"
#include "testkit/random.h"

#define MOST_RANKS 6u
#define KEPT 2u  /* places of a rank whose experts stay */
#define LOCAL 4u /* and others, into which it moves some */
#define PAGE 256u
#define BYTES 2000u
#define MS 1000000ull
#define PATIENCE_MS 2000

struct actor {
	struct weights_world *world;
	struct fleet *fleet;
	uint32_t rank, nr_ranks;
	uint64_t random;
	tern_engine *engine;
	tern_weight_store *store;
	struct tern_weights_part part;
	uint8_t memory[LOCAL][BYTES];
};

struct play {
	struct weights_world *world;
	uint32_t nr_ranks, victim, window;
	uint32_t silence_ms;
};

static void fails(struct actor *a, const char *format, ...)
{
	struct weights_world *w = a->world;
	va_list args;
	int at;

	if (*w->failure || fleet_is_buried(a->fleet, a->rank))
		return;
	at = snprintf(w->failure, sizeof(w->failure),
		"seed %llu, rank %u: ", (unsigned long long)w->seed, a->rank);
	va_start(args, format);
	vsnprintf(w->failure + at, sizeof(w->failure) - (size_t)at, format, args);
	va_end(args);
}

static void draw(const struct actor *a, int32_t expert, uint8_t *to)
{
	uint64_t random = a->world->seed * 977 + (uint64_t)expert;

	for (uint32_t i = 0; i < BYTES; i += 8) {
		uint64_t word = random_next(&random);

		memcpy(to + i, &word, sizeof(word));
	}
}

static void judge_places(struct actor *a)
{
	int32_t held[MOST_RANKS * LOCAL];
	uint8_t due[BYTES];

	if (tern_weights_held(a->store, 0, held)) {
		fails(a, "held: %s", tern_last_error());
		return;
	}
	for (uint32_t i = 0; i < LOCAL; i++) {
		int32_t expert = held[a->rank * LOCAL + i];

		if (expert < 0)
			continue;
		draw(a, expert, due);
		a->world->nr_wrong += memcmp(due, a->memory[i], BYTES) != 0;
	}
}

static int hold_own(struct actor *a)
{
	int32_t logical[MOST_RANKS * LOCAL];
	int rc = 0;

	memset(logical, -1, sizeof(logical));
	for (uint32_t i = 0; i < KEPT && !rc; i++) {
		int32_t expert = (int32_t)(a->rank * KEPT + i);

		draw(a, expert, a->memory[i]);
		rc = tern_weights_hold(a->store, 0, a->rank * LOCAL + i, expert);
		logical[a->rank * LOCAL + i] = expert;
	}
	return rc ? rc : tern_weights_use(a->store, 0, logical);
}

static int open_actor(struct actor *a, const struct play *play, tern_group **group)
{
	struct tern_weights_config config = {.size = sizeof(config),
		.nr_layers = 1,
		.nr_experts = a->nr_ranks * KEPT,
		.nr_physical = a->nr_ranks * LOCAL,
		.nr_parts = 1,
		.parts = &a->part,
		.page_bytes = PAGE,
		.window = play->window,
		.silence_ms = play->silence_ms};
	struct tern_engine_config engine;
	int rc = fleet_join(a->fleet, a->rank, group);

	a->part = (struct tern_weights_part){a->memory, BYTES, 0};
	tern_engine_config_init(&engine);
	if (!rc)
		rc = tern_engine_create(*group, &engine, &a->engine);
	if (!rc)
		rc = tern_weights_create(a->engine, &config, &a->store);
	return rc ? rc : hold_own(a);
}

/* Where nobody holds it for good any more it may be lost; else not. */
static void judge_end(struct actor *a, const struct play *play, int32_t expert, int rc)
{
	bool may_be_lost = a->world->spoil_per_mille ||
			   (play->victim < a->nr_ranks && fleet_is_dead(a->fleet, play->victim));

	a->world->nr_whole += rc == 0;
	a->world->nr_lost += rc == TERN_ERR_LOST_EXPERTS;
	if (rc && (rc != TERN_ERR_LOST_EXPERTS || !may_be_lost))
		fails(a, "expert %d: %d, %s", expert, rc, tern_last_error());
}

static void one_move(struct actor *a, const struct play *play)
{
	struct tern_copy copies[2];
	uint64_t ticket;
	int rc;

	for (uint32_t i = 0; i < 2; i++) {
		copies[i].expert = (int32_t)random_below(&a->random, a->nr_ranks * KEPT);
		copies[i].from = (int32_t)random_below(&a->random, a->nr_ranks * LOCAL + 1) - 1;
		copies[i].to = (int32_t)(a->rank * LOCAL + KEPT + i);
		if (copies[i].from / (int32_t)LOCAL == (int32_t)a->rank)
			copies[i].from = -1;
	}
	rc = tern_weights_move(a->store, 0, copies, 2, &ticket);
	if (rc == TERN_ERR_STATE) { /* somebody copies from there */
		fleet_pause(a->fleet, a->rank, random_below(&a->random, MS));
		return;
	}
	if (rc)
		fails(a, "move: %s", tern_last_error());
	fleet_does(a->fleet, a->rank, "moving");
	for (int i = 0; !rc && i < PATIENCE_MS && !fleet_is_buried(a->fleet, a->rank); i++) {
		rc = tern_weights_wait(a->store, ticket, 1, NULL);
		judge_places(a);
		if (rc != TERN_ERR_TIMEOUT)
			break;
		rc = 0;
	}
	if (!fleet_is_buried(a->fleet, a->rank))
		judge_end(a, play, copies[0].expert, rc);
}

static void add_up(struct actor *a)
{
	struct tern_weights_stats stats = {.size = sizeof(stats)};

	if (tern_weights_stats(a->store, &stats))
		fails(a, "stats: %s", tern_last_error());
	a->world->nr_wrong_pages += stats.pages_wrong;
	a->world->nr_left += stats.sources_left;
}

static void act(struct fleet *fleet, uint32_t rank, void *ctx)
{
	const struct play *play = ctx;
	struct actor *a = calloc(1, sizeof(*a));
	tern_group *group = NULL;
	int rc;

	if (!a)
		return;
	a->world = play->world;
	a->fleet = fleet;
	a->rank = rank;
	a->nr_ranks = play->nr_ranks;
	a->random = play->world->seed * 64 + rank;
	rc = open_actor(a, play, &group);
	if (rc)
		fails(a, "opening: %d, %s", rc, tern_last_error());
	if (!rc && rank == 0 && play->victim < play->nr_ranks)
		fleet_kill(
			fleet, play->victim, fleet_now(fleet) + random_below(&a->random, 3 * MS));
	for (uint32_t i = 0; !rc && i < play->world->nr_moves; i++) {
		if (fleet_is_buried(fleet, rank))
			break;
		one_move(a, play);
		judge_places(a);
	}
	if (!rc && !fleet_is_buried(fleet, rank)) {
		add_up(a);
		fleet_pause(fleet, rank, 500 * MS); /* others may still ask */
	}
	tern_weights_destroy(a->store);
	tern_engine_destroy(a->engine);
	tern_group_destroy(group);
	free(a);
}

static void draw_settings(struct fleet_settings *s, struct play *play, uint64_t seed)
{
	uint64_t random = seed;

	play->nr_ranks = 2 + (uint32_t)random_below(&random, MOST_RANKS - 1);
	play->window = 1 + (uint32_t)random_below(&random, 5);
	play->silence_ms = play->world->kills ? 2 + (uint32_t)random_below(&random, 30) : 900;
	play->victim = play->world->kills ? (uint32_t)random_below(&random, play->nr_ranks)
					  : play->nr_ranks;
	*s = (struct fleet_settings){.seed = seed,
		.nr_ranks = play->nr_ranks,
		.ranks_per_node = play->nr_ranks, /* the group needs no engine of its own */
		.wait_ms = 1000,
		.limit_ns = 100000 * MS};
	if (random_below(&random, 2)) {
		sim_settings_init(&s->network);
		sim_settings_foul(&s->network, seed);
	} else {
		sim_settings_init(&s->network);
	}
	s->network.near = s->network.far;
	s->network.ordered = random_below(&random, 2);
	s->network.sees_death = random_below(&random, 2);
	s->network.target_polls = random_below(&random, 2);
	s->network.message_bytes = 1024;
	s->network.poison = true;
	s->network.spoil_per_mille = play->world->spoil_per_mille;
	tern_engine_config_init(&s->engine);
	s->engine.timeout_ms = 60;
	s->engine.wait_ms = 1000;
	s->engine.message_credits = 1 + (uint32_t)random_below(&random, 8);
}

void weights_world_run(struct weights_world *world)
{
	struct play play = {.world = world};
	struct fleet_settings settings;
	struct sim_stats stats;
	struct fleet *fleet;

	*world->failure = 0;
	draw_settings(&settings, &play, world->seed);
	if (fleet_create(&settings, act, &play, &fleet)) {
		snprintf(world->failure, sizeof(world->failure), "%s", tern_last_error());
		return;
	}
	if (!fleet_run(fleet) && !*world->failure)
		snprintf(world->failure, sizeof(world->failure), "seed %llu: %s",
			(unsigned long long)world->seed, fleet_failure(fleet));
	sim_stats(fleet_network(fleet), &stats);
	world->nr_spoilt += stats.spoilt;
	if (stats.bad_keys && !*world->failure)
		snprintf(world->failure, sizeof(world->failure),
			"seed %llu: %llu writes outside of registered memory",
			(unsigned long long)world->seed, (unsigned long long)stats.bad_keys);
	fleet_destroy(fleet);
}
