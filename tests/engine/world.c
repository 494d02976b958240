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
	*settings = (struct loop_settings){.caps = 0, .depth = 64, .inline_bytes = 0, .write_bytes = 1 << 20, .slowest = 3, .seed = 7};
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

static void open_one(struct world *world, int r, const struct tern_engine_config *config, bool stepped)
{
	struct engine_setup setup = {.self = (uint32_t)r, .nr_peers = (uint32_t)world->nr, .nr_networks = 1,
		.networks = {{.ops = &transport_loop, .simulated = &world->net, .nr_nics = config->nr_nics}}};

	if (stepped) {
		world->driver = (struct driver){.ctx = world, .now = world_clock, .idle = world_idle};
		setup.driver = &world->driver;
	}
	must(engine_open(config, &setup, &world->engines[r]), "engine_open");
	world->memory[r] = malloc(WORLD_BYTES);
	for (uint64_t i = 0; i < WORLD_BYTES; i++)
		world->memory[r][i] = world_byte(r, i);
}

void world_open(struct world *world, int nr, const struct loop_settings *settings, const struct tern_engine_config *config, bool stepped)
{
	struct engine_address *all = calloc((size_t)nr, sizeof(*all));
	struct tern_descriptor descriptor;

	memset(world, 0, sizeof(*world));
	world->nr = nr;
	world->now_ns = 1000000;
	world->pace_ns = 1000;
	loop_net_init(&world->net, settings);
	for (int r = 0; r < nr; r++) {
		open_one(world, r, config, stepped);
		must(engine_address(world->engines[r], &all[r]), "engine_address");
	}
	for (int r = 0; r < nr; r++)
		must(engine_connect(world->engines[r], all), "engine_connect");
	for (int r = 0; r < nr; r++)
		must(engine_start(world->engines[r]), "engine_start");
	for (int r = 0; r < nr; r++) {
		must(tern_engine_register(world->engines[r], world->memory[r], WORLD_BYTES, &world->regions[r]), "register");
		must(tern_region_descriptor(world->regions[r], &descriptor), "descriptor");
		for (int at = 0; at < nr; at++)
			must(tern_engine_import(world->engines[at], &descriptor, &world->remotes[at][r]), "import");
	}
	free(all);
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
}
