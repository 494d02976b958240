/* SPDX-License-Identifier: Apache-2.0 */
/* A ring that a device writes, its part taken by this thread: one writer with tickets of its own,
 * no room and no bell. Engines have their proxies, so ThreadSanitizer sees both sides. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "engine/ring.h"
#include "base/ordering.h"
#include "tests/engine/world.h"
#include "tests/exchange/ranks.h"

#define ENTRIES 8
#define PIECE 64u

struct device {
	struct world world;
	struct ring ring;
	struct command entries[ENTRIES] __attribute__((aligned(CACHE_LINE)));
	struct engine_counter counter;
	struct engine_counters counters;
	uint64_t tickets;
};

static struct device *open_device(bool awake)
{
	struct device *d =
		aligned_alloc(CACHE_LINE, (sizeof(*d) + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
	struct tern_engine_config config;
	struct loop_settings settings;

	memset(d, 0, sizeof(*d));
	world_settings(&settings, &config);
	world_open(&d->world, 2, &settings, &config, false);
	d->counters = (struct engine_counters){.first = &d->counter, .nr = 1};
	assert_int_equal(engine_counters_open(d->world.engines[0], &d->counters), 0);
	ring_open_over(&d->ring, d->entries, ENTRIES);
	assert_int_equal(engine_ring_attach(d->world.engines[0], &d->ring, awake), 0);
	return d;
}

static void close_device(struct device *d)
{
	engine_ring_detach(d->world.engines[0], &d->ring);
	engine_counters_close(d->world.engines[0], &d->counters);
	world_close(&d->world);
	free(d);
}

/* As a kernel does: everything but the turn, then the turn. */
static void ring_a_write(
	struct device *d, uint32_t peer, uint64_t from, uint64_t to, uint64_t bytes)
{
	uint64_t ticket = d->tickets++;
	struct command *entry = &d->entries[ticket % ENTRIES];
	struct command c = {.kind = COMMAND_WRITE,
		.flags = COMMAND_COUNTED,
		.peer = peer,
		.completion = d->counters.id,
		.local = engine_region_id(d->world.regions[0]),
		.remote = engine_remote_id(d->world.remotes[0][1]),
		.local_offset = from,
		.remote_offset = to,
		.bytes = bytes};

	memcpy((char *)entry + sizeof(entry->turn), (char *)&c + sizeof(c.turn),
		sizeof(c) - sizeof(c.turn));
	ring_publish(entry, ring_lap(&d->ring, ticket));
}

static void wait_for(struct device *d, uint64_t ended)
{
	while (engine_counter_ended(&d->counter) != ended)
		sched_yield();
}

/* Never more under way than entries; the proxy has slept in between now and then. */
static void writes_land(void **state)
{
	uint64_t nr = (uint64_t)scaled(2000), room = WORLD_BYTES / 2 / PIECE;
	struct device *d = open_device(false);

	(void)state;
	for (uint64_t i = 0; i < nr; i++) {
		uint64_t at = i % room * PIECE;

		ring_a_write(d, 1, at, WORLD_BYTES / 2 + at, PIECE);
		if (i % ENTRIES == ENTRIES - 1)
			wait_for(d, i + 1);
		if (i % 512 == ENTRIES - 1)
			nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
	}
	wait_for(d, nr);
	assert_int_equal(d->counter.failed, 0);
	for (uint64_t at = 0; at < (nr < room ? nr : room) * PIECE; at++)
		assert_int_equal(d->world.memory[1][WORLD_BYTES / 2 + at], world_byte(0, at));
	close_device(d);
}

/* What a kernel writes is checked like anybody's. */
static void bad_numbers(void **state)
{
	struct device *d = open_device(false);

	(void)state;
	ring_a_write(d, 1, WORLD_BYTES - PIECE, 0, PIECE + 1);
	ring_a_write(d, 7, 0, 0, PIECE);
	ring_a_write(d, 1, 0, ~UINT64_C(0), PIECE);
	wait_for(d, 3);
	assert_int_equal(d->counter.failed, 3);
	assert_int_equal(d->counter.error, TERN_ERR_INVALID);
	ring_a_write(d, 1, 0, 0, PIECE);
	wait_for(d, 4);
	assert_int_equal(d->counter.done, 1);
	close_device(d);
}

/* Callers go on beside it, and what is in the ring when it is detached is carried out. */
static void detached(void **state)
{
	struct device *d = open_device(false);
	struct engine_write write = {.peer = 1,
		.counter = d->counters.id,
		.local = d->world.regions[0],
		.remote = d->world.remotes[0][1],
		.bytes = PIECE};

	(void)state;
	for (int i = 0; i < 4; i++)
		assert_int_equal(engine_write(d->world.engines[0], &write), 0);
	for (uint32_t i = 0; i < ENTRIES; i++)
		ring_a_write(d, 1, i * PIECE, WORLD_BYTES / 2 + i * PIECE, PIECE);
	engine_ring_detach(d->world.engines[0], &d->ring);
	wait_for(d, 4 + ENTRIES);
	assert_int_equal(d->counter.failed, 0);
	assert_int_equal(engine_ring_attach(d->world.engines[0], &d->ring, false), 0);
	close_device(d);
}

/* ---- awake ----------------------------------------------------------------------------------- */

#define REST_NS 5000000L /* ten times as long as a proxy waits before it sleeps */
#define MOST_RESTS 2000
#define ENOUGH_STEPS 1000

/* What a proxy does while nobody asks it anything: asking wakes it. */
static void at_rest(struct device *d, uint64_t *steps, uint64_t *sleeps)
{
	struct tern_engine_stats before = {.size = sizeof(before)}, after = before;

	assert_int_equal(tern_engine_stats(d->world.engines[0], &before), 0);
	nanosleep(&(struct timespec){.tv_nsec = REST_NS}, NULL);
	assert_int_equal(tern_engine_stats(d->world.engines[0], &after), 0);
	*steps += after.steps - before.steps;
	*sleeps += after.sleeps - before.sleeps;
}

static void sleeps_at_rest(struct device *d)
{
	uint64_t steps = 0, sleeps = 0;

	for (int i = 0; i < MOST_RESTS && !sleeps; i++)
		at_rest(d, &steps, &sleeps);
	assert_int_not_equal(sleeps, 0);
}

/* However busy the machine is: it has had its rounds, and slept in none of the rests. */
static void awake_at_rest(struct device *d)
{
	uint64_t steps = 0, sleeps = 0;

	for (int i = 0; i < MOST_RESTS && steps < ENOUGH_STEPS; i++)
		at_rest(d, &steps, &sleeps);
	assert_in_range(steps, ENOUGH_STEPS, UINT64_MAX);
	assert_int_equal(sleeps, 0);
}

/* As long as any ring asks for it, whichever goes first. */
static void kept_awake(void **state)
{
	struct device *d = open_device(true);
	tern_engine *engine = d->world.engines[0];
	struct command entries[ENTRIES] __attribute__((aligned(CACHE_LINE))) = {{0}};
	struct ring other = {0};

	(void)state;
	ring_open_over(&other, entries, ENTRIES);
	awake_at_rest(d);
	assert_int_equal(engine_ring_attach(engine, &other, false), 0);
	awake_at_rest(d);
	engine_ring_detach(engine, &d->ring);
	sleeps_at_rest(d);
	assert_int_equal(engine_ring_attach(engine, &d->ring, true), 0);
	engine_ring_detach(engine, &other);
	awake_at_rest(d);
	engine_ring_detach(engine, &d->ring);
	sleeps_at_rest(d);
	assert_int_equal(engine_ring_attach(engine, &d->ring, false), 0);
	sleeps_at_rest(d);
	close_device(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(writes_land),
		cmocka_unit_test(bad_numbers),
		cmocka_unit_test(detached),
		cmocka_unit_test(kept_awake),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
