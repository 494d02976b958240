/* SPDX-License-Identifier: Apache-2.0 */
/* Writes that fail, are refused or never end: errors come to the operation concerned, with their
 * cause, and everything else goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/engine/fates.h"

static void one_fails(void **state)
{
	static const uint32_t caps[] = {0, TRANSPORT_ORDERED};

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct world *world = open_world(2, caps[i], 0);
		tern_op before, bad, after;

		fate_there = LOOP_FAILS;
		before = begin_write(world, 0, 1, 0, 5000);
		bad = begin_write(world, 0, 1, FATE_PLACE, 500);
		after = begin_write(world, 0, 1, 400000, 5000);
		expect_end(world, 0, after, 0, "");
		expect_end(world, 0, bad, TERN_ERR_SYSTEM,
			"a write to rank 1 failed: the test wants it so");
		expect_end(world, 0, before, 0, "");
		fate_there = LOOP_REFUSED;
		bad = begin_write(world, 0, 1, FATE_PLACE, 500);
		expect_end(world, 0, bad, TERN_ERR_INVALID, "the network will not have it");
		fate_there = LOOP_LANDS;
		expect_end(world, 0, begin_write(world, 0, 1, FATE_PLACE, 500), 0, "");
		close_world(world);
	}
}

/* One page of many, which may have gone unsignalled: the operation fails, once, and its immediate
 * is not sent. */
static void one_page_fails(void **state)
{
	static const uint32_t caps[] = {0, TRANSPORT_ORDERED};
	uint32_t pages[30];

	(void)state;
	for (uint32_t i = 0; i < 30; i++)
		pages[i] = i;
	for (int i = 0; i < 2; i++) {
		struct world *world = open_world(2, caps[i], 0);
		struct tern_paged_write w = {.size = sizeof(w),
			.peer = 1,
			.flags = TERN_IMMEDIATE,
			.immediate = 9,
			.nr_pages = 30,
			.local = world->regions[0],
			.remote = world->remotes[0][1],
			.page_bytes = 500,
			.remote_offset = FATE_PLACE - 5 * 1000,
			.local_stride = 500,
			.remote_stride = 1000,
			.local_pages = pages,
			.remote_pages = pages};
		uint64_t count;
		tern_op op;

		fate_there = LOOP_FAILS;
		assert_int_equal(tern_engine_write_pages(world->engines[0], &w, &op), 0);
		expect_end(world, 0, op, TERN_ERR_SYSTEM, "the test wants it so");
		settle_ns(world, 100000);
		assert_int_equal(tern_engine_count(world->engines[1], 9, &count), 0);
		if (!caps[i]) /* in order, later pages and the immediate may be on their way already
			       */
			assert_int_equal(count, 0);
		expect_end(world, 0, begin_write(world, 0, 1, 0, 10), 0, "");
		close_world(world);
	}
}

static bool has_refused;

/* From its first refusal on, the network takes nothing more. */
static enum loop_fate refused_for_good(uint32_t from, const struct transport_write *w)
{
	has_refused = has_refused || fate(from, w) == LOOP_REFUSED;
	return has_refused && w->peer == 1 ? LOOP_REFUSED : LOOP_LANDS;
}

static void note_under_way(void *ctx, int error, const char *cause)
{
	struct world *world = ctx;

	(void)cause;
	assert_int_not_equal(error, 0);
	world->watch_ctx = world; /* ended */
	assert_int_equal(loop_under_way(&world->net, 0), 0);
}

/* A page fails, or is refused, while others of the operation are on their way unsignalled: it does
 * not end, and so its source is nobody else's, before they have. */
static void ends_after_unsignalled(enum loop_fate how, bool closable)
{
	uint32_t pages[30];

	for (uint32_t i = 0; i < 30; i++)
		pages[i] = i;
	for (uint64_t seed = 1; seed <= 40; seed++) {
		struct loop_settings settings;
		struct tern_engine_config config;
		struct world world;
		struct tern_paged_write w;

		world_settings(&settings, &config);
		settings.caps = TRANSPORT_ORDERED;
		settings.seed = seed;
		settings.again_first = seed % 3;
		settings.slowest = 20;
		settings.fate = closable ? fate : refused_for_good;
		has_refused = false;
		fate_there = how;
		world_open(&world, 2, &settings, &config, true);
		w = (struct tern_paged_write){.size = sizeof(w),
			.peer = 1,
			.flags = TERN_IMMEDIATE,
			.immediate = 9,
			.nr_pages = 30,
			.local = world.regions[0],
			.remote = world.remotes[0][1],
			.page_bytes = 500,
			.remote_offset = FATE_PLACE - 5 * 1000,
			.local_stride = 500,
			.remote_stride = 1000,
			.local_pages = pages,
			.remote_pages = pages,
			.done = note_under_way,
			.ctx = &world};
		assert_int_equal(tern_engine_write_pages(world.engines[0], &w, NULL), 0);
		for (int i = 0; i < 2000 && !world.watch_ctx; i++)
			world_round(&world);
		assert_non_null(world.watch_ctx);
		assert_int_equal(
			tern_engine_peer(world.engines[0], 1), closable ? 0 : TERN_ERR_PEER_DEAD);
		if (closable)
			expect_end(&world, 0, begin_write(&world, 0, 1, 0, 10), 0, "");
		world_close(&world);
	}
}

static void unsignalled_pages_fail(void **state)
{
	(void)state;
	ends_after_unsignalled(LOOP_FAILS, true);
}

static void later_page_refused(void **state)
{
	(void)state;
	ends_after_unsignalled(LOOP_REFUSED, true);
}

static void closing_refused(void **state)
{
	(void)state;
	ends_after_unsignalled(LOOP_REFUSED, false);
}

/* The peer answers, but one write does not end: that operation is told, its memory stays in use,
 * the peer stays. */
static void one_never_ends(void **state)
{
	struct world *world = open_world(2, 0, 20);
	tern_op op;

	(void)state;
	world->pace_ns = 100000;
	fate_there = LOOP_VANISHES;
	op = begin_write(world, 0, 1, FATE_PLACE, 500);
	expect_end(world, 0, op, TERN_ERR_SYSTEM, "a write to rank 1 has not landed in");
	assert_int_equal(tern_engine_peer(world->engines[0], 1), 0);
	assert_int_equal(tern_region_deregister(world->regions[0], 5), TERN_ERR_TIMEOUT);
	expect_end(world, 0, begin_write(world, 0, 1, 0, 10), 0, "");
	close_world(world);
}

/* A put that fails keeps its signal back. */
static void no_signal_after_failure(void **state)
{
	static const enum tern_signal_policy policies[] = {
		BASELINE_COUPLED, BASELINE_COUPLED_ALL_PEERS, TERN_SIGNAL_DECOUPLED};

	(void)state;
	for (int i = 0; i < 3; i++) {
		struct world *world = open_world(2, 0, 0);
		struct tern_put put = {.peer = 1,
			.local = world->regions[0],
			.remote = world->remotes[0][1],
			.bytes = 100,
			.signal_remote = world->remotes[0][1],
			.signal = 77};
		uint64_t words[2];
		tern_op group;

		memset(world->memory[1] + 800000, 0, 16);
		fate_there = LOOP_FAILS;
		assert_int_equal(
			engine_put_group(world->engines[0], policies[i], 2, NULL, NULL, &group), 0);
		for (uint64_t p = 0; p < 2; p++) {
			put.remote_offset = p ? 0 : FATE_PLACE;
			put.signal_offset = 800000 + 8 * p;
			assert_int_equal(tern_engine_put(world->engines[0], group, &put, 0), 0);
		}
		expect_end(world, 0, group, TERN_ERR_SYSTEM, "the test wants it so");
		memcpy(words, world->memory[1] + 800000, sizeof(words));
		assert_int_equal(words[0], 0);
		assert_int_equal(words[1], 77);
		close_world(world);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_fails),
		cmocka_unit_test(one_page_fails),
		cmocka_unit_test(unsignalled_pages_fail),
		cmocka_unit_test(later_page_refused),
		cmocka_unit_test(closing_refused),
		cmocka_unit_test(one_never_ends),
		cmocka_unit_test(no_signal_after_failure),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
