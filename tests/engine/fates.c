/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/engine/fates.h"

enum loop_fate fate_there;

enum loop_fate fate(uint32_t from, const struct transport_write *w)
{
	(void)from;
	return w->peer == 1 && w->bytes && w->offset >= FATE_PLACE && w->offset < FATE_PLACE + 1000
		       ? fate_there
		       : LOOP_LANDS;
}

struct world *open_mixed(int nr, uint32_t caps, int apart, uint32_t other_caps, int heartbeat_ms)
{
	struct world *world = malloc(sizeof(*world));
	struct loop_settings settings, other;
	struct tern_engine_config config;

	world_settings(&settings, &config);
	settings.fate = fate;
	other = settings;
	settings.caps = caps;
	other.caps = other_caps;
	fate_there = LOOP_LANDS;
	config.heartbeat_ms = heartbeat_ms;
	config.timeout_ms = 100;
	world_open_mixed(world, nr, &settings, &other, apart >= 0, apart, &config, true);
	return world;
}

struct world *open_world(int nr, uint32_t caps, int heartbeat_ms)
{
	return open_mixed(nr, caps, -1, 0, heartbeat_ms);
}

void close_world(struct world *world)
{
	world_close(world);
	free(world);
}

void settle_ns(struct world *world, uint64_t ns)
{
	for (uint64_t until = world->now_ns + ns; world->now_ns < until;)
		world_round(world);
}

tern_op begin_write(struct world *world, int from, int to, uint64_t remote, uint64_t bytes)
{
	struct tern_write w = {.size = sizeof(w),
		.peer = (uint32_t)to,
		.local = world->regions[from],
		.remote = world->remotes[from][to],
		.remote_offset = remote,
		.bytes = bytes};
	tern_op op;

	assert_int_equal(tern_engine_write(world->engines[from], &w, &op), 0);
	return op;
}

void expect_end(struct world *world, int rank, tern_op op, int error, const char *text)
{
	int rc = tern_op_wait(world->engines[rank], op, WAIT);

	if (rc != error || (error && !strstr(tern_last_error(), text)))
		fail_msg("op ended with %d, \"%s\"; not with %d, \"%s\"", rc,
			rc ? tern_last_error() : "", error, text);
}
