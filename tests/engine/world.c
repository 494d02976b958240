/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/engine/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(int rc, const char *what)
{
	if (!rc)
		return;
	fprintf(stderr, "%s: %s: %s\n", what, tern_strerror(rc), tern_last_error());
	abort();
}

void world_settings(struct loop_settings *settings, struct tern_engine_config *config)
{
	*settings = (struct loop_settings){.caps = 0,
		.depth = 64,
		.inline_bytes = 0,
		.write_bytes = 1 << 20,
		.slowest = 3,
		.seed = 7};
	tern_engine_config_init(config);
	config->heartbeat_ms = 0;
	config->ring_entries = 256;
	config->depth = 64;
	config->peer_depth = 16;
	config->wait_ms = 2000;
}

static uint64_t world_clock(void *ctx)
{
	return ((struct world *)ctx)->now_ns;
}

void world_round(void *ctx)
{
	struct world *world = ctx;

	for (int r = 0; r < world->nr; r++)
		if (world->engines[r] && !world->frozen[r])
			engine_step(world->engines[r], world->now_ns);
	world->now_ns += world->pace_ns;
	if (world->watch)
		world->watch(world);
}

static void world_idle(void *ctx, uint64_t until_ns)
{
	(void)until_ns;
	world_round(ctx);
}

uint8_t world_byte(int rank, uint64_t at)
{
	return (uint8_t)(at * 7 + at / 251 + (uint64_t)rank * 31 + 1);
}

/* Of each rank, made once: engines are opened by the hundred. */
const uint8_t *world_bytes(int rank)
{
	static uint8_t *made[LOOP_RANKS];

	if (made[rank])
		return made[rank];
	made[rank] = malloc(WORLD_BYTES);
	for (uint64_t i = 0; i < WORLD_BYTES; i++)
		made[rank][i] = world_byte(rank, i);
	return made[rank];
}

static bool is_other(const struct world *world, int from, int to)
{
	return from == world->apart || to == world->apart;
}

struct loop_net *world_net(struct world *world, int from, int to)
{
	return is_other(world, from, to) ? &world->other : &world->net;
}

/* other_nics: 0 where there is one network alone. */
static void open_one(struct world *world, int r, const struct tern_engine_config *config,
	uint32_t other_nics, bool stepped)
{
	struct engine_setup setup = {.self = (uint32_t)r,
		.nr_peers = (uint32_t)world->nr,
		.nr_networks = other_nics ? 2 : 1};
	uint8_t network_of[LOOP_RANKS];

	for (int p = 0; p < world->nr; p++)
		network_of[p] = is_other(world, r, p);
	setup.network_of = network_of;
	setup.networks[0] =
		(struct engine_network){.ops = r == world->apart ? NULL : &transport_loop,
			.simulated = &world->net,
			.nr_nics = config->nr_nics};
	setup.networks[1] = (struct engine_network){
		.ops = &transport_loop, .simulated = &world->other, .nr_nics = other_nics};
	if (stepped) {
		world->scheduler =
			(struct scheduler){.ctx = world, .now = world_clock, .idle = world_idle};
		setup.scheduler = &world->scheduler;
	}
	must(engine_open(config, &setup, &world->engines[r]), "engine_open");
	world->memory[r] = malloc(WORLD_BYTES);
	memcpy(world->memory[r], world_bytes(r), WORLD_BYTES);
}

static void share_memory(struct world *world)
{
	struct tern_descriptor descriptor;

	for (int r = 0; r < world->nr; r++) {
		must(tern_engine_register(
			     world->engines[r], world->memory[r], WORLD_BYTES, &world->regions[r]),
			"register");
		must(tern_region_descriptor(world->regions[r], &descriptor), "descriptor");
		for (int at = 0; at < world->nr; at++)
			must(tern_engine_import(
				     world->engines[at], &descriptor, &world->remotes[at][r]),
				"import");
	}
}

void world_open_mixed(struct world *world, int nr, const struct loop_settings *settings,
	const struct loop_settings *other, uint32_t other_nics, int apart,
	const struct tern_engine_config *config, bool stepped)
{
	struct engine_address *all = calloc((size_t)nr, sizeof(*all));

	memset(world, 0, sizeof(*world));
	world->nr = nr;
	world->apart = apart;
	world->now_ns = 1000000;
	world->pace_ns = 1000;
	loop_net_init(&world->net, settings);
	loop_net_init(&world->other, other);
	for (int r = 0; r < nr; r++) {
		open_one(world, r, config, other_nics, stepped);
		must(engine_address(world->engines[r], &all[r]), "engine_address");
	}
	for (int r = 0; r < nr; r++)
		must(engine_connect(world->engines[r], all), "engine_connect");
	for (int r = 0; r < nr; r++)
		must(engine_start(world->engines[r]), "engine_start");
	share_memory(world);
	free(all);
}

void world_open(struct world *world, int nr, const struct loop_settings *settings,
	const struct tern_engine_config *config, bool stepped)
{
	world_open_mixed(world, nr, settings, settings, 0, -1, config, stepped);
}

void world_close(struct world *world)
{
	for (int r = 0; r < world->nr; r++) {
		must(tern_engine_destroy(world->engines[r]), "destroy");
		world->engines[r] = NULL;
	}
	for (int r = 0; r < world->nr; r++)
		free(world->memory[r]);
	loop_net_close(&world->net);
	loop_net_close(&world->other);
}
