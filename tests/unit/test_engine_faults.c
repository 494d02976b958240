/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong: writes that fail, are refused or never end, peers that die aloud or in silence, leave, or break the rules; commands that are noise. Errors come to the operation
 * concerned, with their cause, and everything else goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/random.h"
#include "engine/inside.h"
#include <cmocka.h>

#include "tests/engine/world.h"
#include "tests/exchange/ranks.h"

#define WAIT 1000

/* The fate of writes to this place of rank 1; all others land. */
static enum loop_fate fate_there;
static uint64_t there = 300000;

static enum loop_fate fate(uint32_t from, const struct transport_write *w)
{
	(void)from;
	return w->peer == 1 && w->bytes && w->offset >= there && w->offset < there + 1000 ? fate_there : LOOP_LANDS;
}

/* One rank is apart, reached over a network of its own; -1: none. */
static struct world *open_mixed(int nr, uint32_t caps, int apart, uint32_t other_caps, int heartbeat_ms)
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

static struct world *open_world(int nr, uint32_t caps, int heartbeat_ms)
{
	return open_mixed(nr, caps, -1, 0, heartbeat_ms);
}

static void close_world(struct world *world)
{
	world_close(world);
	free(world);
}

static void settle(struct world *world, uint64_t ns)
{
	for (uint64_t until = world->now_ns + ns; world->now_ns < until;)
		world_round(world);
}

static tern_op begin_write(struct world *world, int from, int to, uint64_t remote, uint64_t bytes)
{
	struct tern_write w = {.size = sizeof(w), .peer = (uint32_t)to, .local = world->regions[from], .remote = world->remotes[from][to],
		.remote_offset = remote, .bytes = bytes};
	tern_op op;

	assert_int_equal(tern_engine_write(world->engines[from], &w, &op), 0);
	return op;
}

static void expect_end(struct world *world, int rank, tern_op op, int error, const char *text)
{
	int rc = tern_op_wait(world->engines[rank], op, WAIT);

	if (rc != error || (error && !strstr(tern_last_error(), text)))
		fail_msg("op ended with %d, \"%s\"; not with %d, \"%s\"", rc, rc ? tern_last_error() : "", error, text);
}

static void one_fails(void **state)
{
	static const uint32_t caps[] = {0, TRANSPORT_ORDERED};

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct world *world = open_world(2, caps[i], 0);
		tern_op before, bad, after;

		fate_there = LOOP_FAILS;
		before = begin_write(world, 0, 1, 0, 5000);
		bad = begin_write(world, 0, 1, there, 500);
		after = begin_write(world, 0, 1, 400000, 5000);
		expect_end(world, 0, after, 0, "");
		expect_end(world, 0, bad, TERN_ERR_SYSTEM, "a write to rank 1 failed: the test wants it so");
		expect_end(world, 0, before, 0, "");
		fate_there = LOOP_REFUSED;
		bad = begin_write(world, 0, 1, there, 500);
		expect_end(world, 0, bad, TERN_ERR_INVALID, "the network will not have it");
		fate_there = LOOP_LANDS;
		expect_end(world, 0, begin_write(world, 0, 1, there, 500), 0, "");
		close_world(world);
	}
}

/* One page of many, which may have gone unsignalled: the operation fails, once, and its immediate is not sent. */
static void one_page_fails(void **state)
{
	static const uint32_t caps[] = {0, TRANSPORT_ORDERED};
	uint32_t pages[30];

	(void)state;
	for (uint32_t i = 0; i < 30; i++)
		pages[i] = i;
	for (int i = 0; i < 2; i++) {
		struct world *world = open_world(2, caps[i], 0);
		struct tern_paged_write w = {.size = sizeof(w), .peer = 1, .flags = TERN_IMMEDIATE, .immediate = 9, .nr_pages = 30, .local = world->regions[0],
			.remote = world->remotes[0][1], .page_bytes = 500, .remote_offset = there - 5 * 1000, .local_stride = 500, .remote_stride = 1000,
			.local_pages = pages, .remote_pages = pages};
		uint64_t count;
		tern_op op;

		fate_there = LOOP_FAILS;
		assert_int_equal(tern_engine_write_pages(world->engines[0], &w, &op), 0);
		expect_end(world, 0, op, TERN_ERR_SYSTEM, "the test wants it so");
		settle(world, 100000);
		assert_int_equal(tern_engine_count(world->engines[1], 9, &count), 0);
		if (!caps[i]) /* in order, later pages and the immediate may be on their way already */
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

/* A page fails, or is refused, while others of the operation are on their way unsignalled: it does not end, and so its source is nobody else's, before they have. */
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
		w = (struct tern_paged_write){.size = sizeof(w), .peer = 1, .flags = TERN_IMMEDIATE, .immediate = 9, .nr_pages = 30, .local = world.regions[0],
			.remote = world.remotes[0][1], .page_bytes = 500, .remote_offset = there - 5 * 1000, .local_stride = 500, .remote_stride = 1000,
			.local_pages = pages, .remote_pages = pages, .done = note_under_way, .ctx = &world};
		assert_int_equal(tern_engine_write_pages(world.engines[0], &w, NULL), 0);
		for (int i = 0; i < 2000 && !world.watch_ctx; i++)
			world_round(&world);
		assert_non_null(world.watch_ctx);
		assert_int_equal(tern_engine_peer(world.engines[0], 1), closable ? 0 : TERN_ERR_PEER_DEAD);
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

/* The peer answers, but one write does not end: that operation is told, its memory stays in use, the peer stays. */
static void one_never_ends(void **state)
{
	struct world *world = open_world(2, 0, 20);
	tern_op op;

	(void)state;
	world->pace_ns = 100000;
	fate_there = LOOP_VANISHES;
	op = begin_write(world, 0, 1, there, 500);
	expect_end(world, 0, op, TERN_ERR_SYSTEM, "a write to rank 1 has not landed in");
	assert_int_equal(tern_engine_peer(world->engines[0], 1), 0);
	assert_int_equal(tern_region_deregister(world->regions[0], 5), TERN_ERR_TIMEOUT);
	expect_end(world, 0, begin_write(world, 0, 1, 0, 10), 0, "");
	close_world(world);
}

/* ---- deaths --------------------------------------------------------------------------------------------------------------- */

static int downs, down_error;

static void note_down(void *ctx, uint32_t peer, int error)
{
	(void)ctx;
	downs += peer == 1;
	down_error = error;
}

static void ignore(void *ctx, uint32_t peer, uint32_t immediate)
{
	(void)ctx;
	(void)peer;
	(void)immediate;
}

/* All that needs rank 1 ends with the cause; what does not goes on; nothing new begins. */
static void rank_1_dies(struct world *world, bool told, const char *text)
{
	static const uint32_t ranks[] = {0, 1, 2};
	struct engine_claim claim = {.immediate = ignore, .peer_down = note_down};
	struct tern_expect expect = {.size = sizeof(expect), .immediate = 3, .count = 2};
	struct tern_barrier barrier = {.size = sizeof(barrier), .immediate = 4};
	struct tern_write again = {.size = sizeof(again), .peer = 1, .flags = TERN_IMMEDIATE};
	struct tern_send send = {.size = sizeof(send), .peer = 1, .data = "x", .bytes = 1};
	struct tern_put put = {.peer = 1, .local = world->regions[0], .remote = world->remotes[0][1], .bytes = 8, .signal_remote = world->remotes[0][1]};
	tern_op writes[40], expected, met, sent, group;
	const char *cause;
	tern_peers *peers;

	downs = 0;
	world->pace_ns = 50000;
	settle(world, 50000000);
	assert_int_equal(engine_claim(world->engines[0], 0xcc, &claim), 0);
	assert_int_equal(tern_peers_create(world->engines[0], ranks, NULL, 3, &peers), 0);
	expect.peers = barrier.peers = peers;
	assert_int_equal(tern_engine_expect(world->engines[0], &expect, &expected), 0);
	assert_int_equal(tern_engine_barrier(world->engines[0], &barrier, &met), 0);
	loop_kill(world_net(world, 0, 1), 1, told);
	for (int i = 0; i < 40; i++)
		writes[i] = begin_write(world, 0, i % 2 ? 1 : 2, (uint64_t)i * 1000, 900);
	for (int i = 0; i < 12; i++)
		assert_int_equal(tern_engine_send(world->engines[0], &send, &sent), 0);
	assert_int_equal(tern_engine_put_group(world->engines[0], TERN_SIGNAL_DECOUPLED, 1, NULL, NULL, &group), 0);
	assert_int_equal(tern_engine_put(world->engines[0], group, &put, 0), 0);
	for (int i = 0; i < 40; i++)
		expect_end(world, 0, writes[i], i % 2 ? TERN_ERR_PEER_DEAD : 0, text);
	expect_end(world, 0, expected, TERN_ERR_PEER_DEAD, text);
	expect_end(world, 0, met, TERN_ERR_PEER_DEAD, text);
	expect_end(world, 0, sent, TERN_ERR_PEER_DEAD, text);
	expect_end(world, 0, group, TERN_ERR_PEER_DEAD, text);
	assert_int_equal(engine_peer_down(world->engines[0], 1, &cause), TERN_ERR_PEER_DEAD);
	assert_non_null(strstr(cause, text));
	assert_int_equal(engine_nr_down(world->engines[0]), 1);
	assert_int_equal(tern_engine_write(world->engines[0], &again, NULL), TERN_ERR_PEER_DEAD);
	assert_int_equal(tern_engine_expect(world->engines[0], &expect, &expected), 0);
	expect_end(world, 0, expected, TERN_ERR_PEER_DEAD, text);
	settle(world, 300000000);
	assert_int_equal(downs, 1);
	assert_int_equal(down_error, TERN_ERR_PEER_DEAD);
	assert_int_equal(engine_nr_down(world->engines[0]), 1); /* nobody else is missed */
	assert_int_equal(tern_region_deregister(world->regions[0], WAIT), 0); /* nothing of the dead one holds it */
	close_world(world);
}

static void told_death(void **state)
{
	(void)state;
	rank_1_dies(open_world(3, TRANSPORT_SEES_DEATH, 0), true, "its plug was pulled");
	rank_1_dies(open_world(3, TRANSPORT_SEES_DEATH | TRANSPORT_ORDERED, 0), true, "its plug was pulled");
}

static void silent_death(void **state)
{
	(void)state;
	rank_1_dies(open_world(3, 0, 20), false, "nothing was heard from rank 1 for 10");
	rank_1_dies(open_world(3, TRANSPORT_ORDERED, -1), false, "nothing was heard from rank 1 for 1");
}

/* One network says so, and from those behind the other nothing may be heard: heartbeats go over that which needs them, so nobody is missed for want of any. */
static void death_on_each_network(void **state)
{
	(void)state;
	rank_1_dies(open_mixed(3, TRANSPORT_SEES_DEATH | TRANSPORT_ORDERED, 2, 0, -1), true, "its plug was pulled");
	rank_1_dies(open_mixed(3, TRANSPORT_SEES_DEATH | TRANSPORT_ORDERED, 1, 0, -1), false, "nothing was heard from rank 1 for 1");
	rank_1_dies(open_mixed(3, 0, 1, TRANSPORT_SEES_DEATH, -1), true, "its plug was pulled");
	rank_1_dies(open_mixed(3, TRANSPORT_ORDERED, 2, TRANSPORT_SEES_DEATH, -1), false, "nothing was heard from rank 1 for 1");
}

/* A network that cannot be polled any more takes those behind it with it. Rank 3 is there alone; 0 to 2 go on with each other, and with nothing of rank 3's. */
static void one_network_fails(void **state)
{
	struct world *world = open_mixed(4, TRANSPORT_ORDERED, 3, TRANSPORT_FENCE, 20);
	tern_op lost[20], kept[20];

	(void)state;
	world->pace_ns = 50000;
	for (int i = 0; i < 20; i++) {
		lost[i] = begin_write(world, 0, 3, (uint64_t)i * 1000, 900);
		kept[i] = begin_write(world, 0, 1 + i % 2, (uint64_t)i * 1000, 900);
	}
	atomic_store(&world->other.broken, true);
	for (int i = 0; i < 20; i++) {
		expect_end(world, 0, lost[i], TERN_ERR_SYSTEM, "the network failed: the test has cut it");
		expect_end(world, 0, kept[i], 0, "");
	}
	settle(world, 300000000);
	for (int r = 0; r < 3; r++) {
		assert_int_equal(tern_engine_peer(world->engines[r], 3), TERN_ERR_SYSTEM);
		assert_int_equal(engine_nr_down(world->engines[r]), 1);
		expect_end(world, r, begin_write(world, r, (r + 1) % 3, 0, 5000), 0, "");
	}
	assert_int_equal(engine_nr_down(world->engines[3]), 4); /* itself too, as that is how it reached itself */
	assert_int_equal(tern_region_deregister(world->regions[0], WAIT), 0);
	close_world(world);
}

static enum loop_fate vanish_at_rank_1(uint32_t from, const struct transport_write *w)
{
	(void)from;
	return w->bytes && w->peer == 1 ? LOOP_VANISHES : LOOP_LANDS;
}

/* Writes to rank 1 that never end hold all credits of its network. Rank 2, which is behind the same, is given four times as long, as that is not its doing; rank 3, behind another with
 * room, is not held up at all, and the room there does not make rank 2 look refused. */
static void credits_are_a_networks_own(void **state)
{
	struct world *world = malloc(sizeof(*world));
	struct loop_settings settings, other;
	struct tern_engine_config config;
	tern_op op;

	(void)state;
	world_settings(&settings, &config);
	other = settings;
	settings.fate = vanish_at_rank_1;
	settings.depth = 4;
	config.timeout_ms = 100;
	config.heartbeat_ms = 20;
	world_open_mixed(world, 4, &settings, &other, 1, 3, &config, true);
	world->pace_ns = 50000;
	for (int i = 0; i < 4; i++)
		begin_write(world, 0, 1, (uint64_t)i * 1000, 900);
	settle(world, 1000000);
	op = begin_write(world, 0, 2, 0, 900);
	for (int i = 0; i < 50; i++)
		expect_end(world, 0, begin_write(world, 0, 3, (uint64_t)i * 1000, 900), 0, "");
	settle(world, 300000000);
	assert_int_equal(tern_op_poll(world->engines[0], op), TERN_ERR_TIMEOUT);
	expect_end(world, 0, op, TERN_ERR_SYSTEM, "the network has taken no write to rank 2 for 4");
	close_world(world);
}

/* Pages that are on their way without a signal when their peer dies, behind the second NIC: their credits go back to where they came from. */
static void unsignalled_to_the_dead(void **state)
{
	struct world *world = open_mixed(3, TRANSPORT_ORDERED, 1, TRANSPORT_ORDERED, 20);
	uint32_t pages[100];
	struct tern_paged_write w = {.size = sizeof(w), .peer = 1, .nr_pages = 100, .local = world->regions[0], .remote = world->remotes[0][1], .page_bytes = 500,
		.local_stride = 500, .remote_stride = 500, .local_pages = pages, .remote_pages = pages};
	tern_op op;

	(void)state;
	for (uint32_t i = 0; i < 100; i++)
		pages[i] = i;
	world->pace_ns = 50000;
	settle(world, 1000000);
	loop_kill(&world->other, 1, false);
	assert_int_equal(tern_engine_write_pages(world->engines[0], &w, &op), 0);
	expect_end(world, 0, op, TERN_ERR_PEER_DEAD, "nothing was heard from rank 1");
	assert_true(world->other.nr_unsignalled > 0);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(world->engines[0]->nics[i].under_way, 0);
		assert_int_equal(world->engines[0]->nics[i].unsignalled, 0);
	}
	w.peer = 2;
	w.remote = world->remotes[0][2];
	assert_int_equal(tern_engine_write_pages(world->engines[0], &w, &op), 0);
	expect_end(world, 0, op, 0, "");
	close_world(world);
}

/* A descriptor of an engine that has other networks. */
static void descriptor_without_its_key(void **state)
{
	struct world *world = open_mixed(3, 0, 2, 0, 0);
	struct tern_descriptor descriptor;
	tern_remote *remote = NULL;

	(void)state;
	assert_int_equal(tern_region_descriptor(world->regions[2], &descriptor), 0);
	assert_int_equal(descriptor.nr_nics, 2);
	assert_true(!descriptor.nic[0].bytes && descriptor.nic[1].bytes == WORLD_BYTES);
	descriptor.nic[0] = descriptor.nic[1];
	memset(&descriptor.nic[1], 0, sizeof(descriptor.nic[1]));
	assert_int_equal(tern_engine_import(world->engines[0], &descriptor, &remote), TERN_ERR_MISMATCH);
	assert_non_null(strstr(tern_last_error(), "rank 2's descriptor has no key for NIC 1"));
	close_world(world);
}

/* A rank that does nothing for longer than the engine's time-out, and goes on while somebody is still willing to wait; then it stays away. */
static void silence_borne(void **state)
{
	struct world *world = open_world(2, 0, 20);
	tern_op op;

	(void)state;
	world->pace_ns = 50000;
	engine_bear_silence(world->engines[0], 400);
	engine_bear_silence(world->engines[0], 50);
	world->frozen[1] = true;
	op = begin_write(world, 0, 1, 0, 900);
	settle(world, 300000000);
	world->frozen[1] = false;
	settle(world, 100000000);
	assert_int_equal(tern_engine_peer(world->engines[0], 1), 0);
	expect_end(world, 0, op, 0, "");
	world->frozen[1] = true;
	settle(world, 550000000);
	assert_int_equal(tern_engine_peer(world->engines[0], 1), TERN_ERR_PEER_DEAD);
	assert_non_null(strstr(tern_last_error(), "nothing was heard from rank 1 for 4"));
	close_world(world);
}

/* A put that fails keeps its signal back. */
static void no_signal_after_failure(void **state)
{
	static const enum tern_signal_policy policies[] = {TERN_SIGNAL_COUPLED, TERN_SIGNAL_COUPLED_ALL_PEERS, TERN_SIGNAL_DECOUPLED};

	(void)state;
	for (int i = 0; i < 3; i++) {
		struct world *world = open_world(2, 0, 0);
		struct tern_put put = {.peer = 1, .local = world->regions[0], .remote = world->remotes[0][1], .bytes = 100, .signal_remote = world->remotes[0][1],
			.signal = 77};
		uint64_t words[2];
		tern_op group;

		memset(world->memory[1] + 800000, 0, 16);
		fate_there = LOOP_FAILS;
		assert_int_equal(tern_engine_put_group(world->engines[0], policies[i], 2, NULL, NULL, &group), 0);
		for (uint64_t p = 0; p < 2; p++) {
			put.remote_offset = p ? 0 : there;
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

/* ---- leaving ---------------------------------------------------------------------------------------------------------------- */

struct told {
	int times, error;
};

static void tell(void *ctx, int error, const char *text)
{
	struct told *told = ctx;

	(void)text;
	told->times++;
	told->error = error;
}

static void one_leaves(void **state)
{
	struct world *world = open_world(3, 0, 0);
	struct tern_write w = {.size = sizeof(w), .peer = 1, .flags = TERN_IMMEDIATE};
	struct told told = {0, 0};
	struct tern_expect expect = {.size = sizeof(expect), .immediate = 1, .count = 1, .done = tell, .ctx = &told};
	tern_op sent;

	(void)state;
	assert_int_equal(tern_engine_expect(world->engines[1], &expect, NULL), 0);
	w.peer = 0;
	assert_int_equal(tern_engine_write(world->engines[1], &w, &sent), 0);
	expect_end(world, 1, sent, 0, "");
	assert_int_equal(tern_engine_destroy(world->engines[1]), 0);
	world->engines[1] = NULL;
	assert_int_equal(told.times, 1); /* what it still waited for has ended */
	assert_int_equal(told.error, TERN_ERR_STATE);
	settle(world, 60000000);
	assert_int_equal(tern_engine_peer(world->engines[0], 1), TERN_ERR_PEER_LEFT);
	assert_int_equal(tern_engine_peer(world->engines[2], 1), TERN_ERR_PEER_LEFT);
	w.peer = 1;
	assert_int_equal(tern_engine_write(world->engines[0], &w, NULL), TERN_ERR_PEER_LEFT);
	close_world(world);
}

static void destroyed_while_busy(void **state)
{
	struct world *world = open_world(2, 0, 0);
	struct tern_write w = {.size = sizeof(w), .peer = 1, .local = world->regions[0], .remote = world->remotes[0][1], .bytes = 100, .done = tell};
	struct told told = {0, 0};
	struct tern_put put = {.peer = 1, .signal_remote = world->remotes[0][1]};
	tern_op group;

	(void)state;
	w.ctx = &told;
	for (int i = 0; i < 100; i++)
		assert_int_equal(tern_engine_write(world->engines[0], &w, NULL), 0);
	assert_int_equal(tern_engine_put_group(world->engines[0], TERN_SIGNAL_DECOUPLED, 5, tell, &told, &group), 0);
	assert_int_equal(tern_engine_put(world->engines[0], group, &put, 0), 0); /* four are missing, for ever */
	assert_int_equal(tern_engine_put_group(world->engines[0], TERN_SIGNAL_DECOUPLED, 5, tell, &told, &group), 0);
	assert_int_equal(tern_engine_destroy(world->engines[0]), 0);
	world->engines[0] = NULL;
	assert_int_equal(told.times, 102);
	close_world(world);
}

/* ---- noise -------------------------------------------------------------------------------------------------------------------- */

/* Whoever can write the ring can write anything into it. Numbers are near what is valid, so that some is. */
static void noise_in_the_ring(void **state)
{
	struct world *world = open_world(3, TRANSPORT_FENCE, 0);
	uint64_t random = 5;

	(void)state;
	for (int i = 0; i < scaled(20000); i++) {
		struct command c = {.kind = (uint8_t)random_below(&random, 2) ? COMMAND_WRITE : (uint8_t)random_below(&random, 256),
			.flags = (uint8_t)random_below(&random, 4),
			.peer = random_below(&random, 5),
			.completion = random_below(&random, 3) ? NONE : random_below(&random, 70000),
			.local = (uint16_t)random_below(&random, 4),
			.remote = (uint16_t)random_below(&random, 6),
			.signal_remote = (uint16_t)random_below(&random, 70000),
			.local_offset = random_below(&random, WORLD_BYTES + 100),
			.remote_offset = random_below(&random, WORLD_BYTES + 100),
			.bytes = random_below(&random, 5000),
			.signal_offset = random_below(&random, WORLD_BYTES + 100),
			.value = random_below(&random, 100)};

		while (!ring_put(&world->engines[0]->ring, &c))
			world_round(world);
	}
	settle(world, 1000000);
	expect_end(world, 0, begin_write(world, 0, 1, 0, 10), 0, "");
	close_world(world);
}

/* A peer with more to say than it has credits for. */
static void too_many_messages(void **state)
{
	struct world *world = open_world(2, 0, 0);

	(void)state;
	world->engines[1]->peers[0].message_credits = 1000;
	for (int i = 0; i < 30; i++) {
		struct tern_send send = {.size = sizeof(send), .peer = 0, .data = "x", .bytes = 1};

		assert_int_equal(tern_engine_send(world->engines[1], &send, NULL), 0);
	}
	settle(world, 100000);
	assert_int_equal(tern_engine_peer(world->engines[0], 1), TERN_ERR_PROTOCOL);
	close_world(world);
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
		cmocka_unit_test(told_death),
		cmocka_unit_test(silent_death),
		cmocka_unit_test(death_on_each_network),
		cmocka_unit_test(one_network_fails),
		cmocka_unit_test(credits_are_a_networks_own),
		cmocka_unit_test(unsignalled_to_the_dead),
		cmocka_unit_test(descriptor_without_its_key),
		cmocka_unit_test(silence_borne),
		cmocka_unit_test(no_signal_after_failure),
		cmocka_unit_test(one_leaves),
		cmocka_unit_test(destroyed_while_busy),
		cmocka_unit_test(noise_in_the_ring),
		cmocka_unit_test(too_many_messages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
