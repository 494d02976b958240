/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that die aloud or in silence, are silent for a while, or leave; networks that fail. What
 * concerns them ends with the cause, and everything else goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "engine/inside.h"
#include <cmocka.h>

#include "tests/engine/fates.h"

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
	struct tern_put put = {.peer = 1,
		.local = world->regions[0],
		.remote = world->remotes[0][1],
		.bytes = 8,
		.signal_remote = world->remotes[0][1]};
	tern_op writes[40], expected, met, sent, group;
	const char *cause;
	tern_peers *peers;

	downs = 0;
	world->pace_ns = 50000;
	settle_ns(world, 50000000);
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
	assert_int_equal(tern_engine_put_group(
				 world->engines[0], TERN_SIGNAL_DECOUPLED, 1, NULL, NULL, &group),
		0);
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
	settle_ns(world, 300000000);
	assert_int_equal(downs, 1);
	assert_int_equal(down_error, TERN_ERR_PEER_DEAD);
	assert_int_equal(engine_nr_down(world->engines[0]), 1); /* nobody else is missed */
	assert_int_equal(tern_region_deregister(world->regions[0], WAIT), 0); /* nothing of the dead
										 one holds it */
	close_world(world);
}

static void told_death(void **state)
{
	(void)state;
	rank_1_dies(open_world(3, TRANSPORT_SEES_DEATH, 0), true, "its plug was pulled");
	rank_1_dies(open_world(3, TRANSPORT_SEES_DEATH | TRANSPORT_ORDERED, 0), true,
		"its plug was pulled");
}

static void silent_death(void **state)
{
	(void)state;
	rank_1_dies(open_world(3, 0, 20), false, "nothing was heard from rank 1 for 10");
	rank_1_dies(
		open_world(3, TRANSPORT_ORDERED, -1), false, "nothing was heard from rank 1 for 1");
}

/* One network says so, and from those behind the other nothing may be heard: heartbeats go over
 * that which needs them, so nobody is missed for want of any. */
static void death_on_each_network(void **state)
{
	(void)state;
	rank_1_dies(open_mixed(3, TRANSPORT_SEES_DEATH | TRANSPORT_ORDERED, 2, 0, -1), true,
		"its plug was pulled");
	rank_1_dies(open_mixed(3, TRANSPORT_SEES_DEATH | TRANSPORT_ORDERED, 1, 0, -1), false,
		"nothing was heard from rank 1 for 1");
	rank_1_dies(open_mixed(3, 0, 1, TRANSPORT_SEES_DEATH, -1), true, "its plug was pulled");
	rank_1_dies(open_mixed(3, TRANSPORT_ORDERED, 2, TRANSPORT_SEES_DEATH, -1), false,
		"nothing was heard from rank 1 for 1");
}

/* A network that cannot be polled any more takes those behind it with it. Rank 3 is there alone; 0
 * to 2 go on with each other, and with nothing of rank 3's. */
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
		expect_end(world, 0, lost[i], TERN_ERR_SYSTEM,
			"the network failed: the test has cut it");
		expect_end(world, 0, kept[i], 0, "");
	}
	settle_ns(world, 300000000);
	for (int r = 0; r < 3; r++) {
		assert_int_equal(tern_engine_peer(world->engines[r], 3), TERN_ERR_SYSTEM);
		assert_int_equal(engine_nr_down(world->engines[r]), 1);
		expect_end(world, r, begin_write(world, r, (r + 1) % 3, 0, 5000), 0, "");
	}
	assert_int_equal(engine_nr_down(world->engines[3]), 4); /* itself too, as that is how it
								   reached itself */
	assert_int_equal(tern_region_deregister(world->regions[0], WAIT), 0);
	close_world(world);
}

static enum loop_fate vanish_at_rank_1(uint32_t from, const struct transport_write *w)
{
	(void)from;
	return w->bytes && w->peer == 1 ? LOOP_VANISHES : LOOP_LANDS;
}

/* Writes to rank 1 that never end hold all credits of its network. Rank 2, which is behind the
 * same, is given four times as long, as that is not its doing; rank 3, behind another with room, is
 * not held up at all, and the room there does not make rank 2 look refused. */
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
	settle_ns(world, 1000000);
	op = begin_write(world, 0, 2, 0, 900);
	for (int i = 0; i < 50; i++)
		expect_end(world, 0, begin_write(world, 0, 3, (uint64_t)i * 1000, 900), 0, "");
	settle_ns(world, 300000000);
	assert_int_equal(tern_op_poll(world->engines[0], op), TERN_ERR_TIMEOUT);
	expect_end(world, 0, op, TERN_ERR_SYSTEM, "the network has taken no write to rank 2 for 4");
	close_world(world);
}

static bool puts_off;

static enum loop_fate put_off_at_rank_2(uint32_t from, const struct transport_write *w)
{
	return puts_off && w->peer == 2 ? LOOP_AGAIN : vanish_at_rank_1(from, w);
}

/* A write that a NIC has put off comes back to that one, which writes to rank 1 have filled
 * meanwhile; the room that the other NIC has does not make rank 2 look refused. */
static void credits_are_a_nics_own(void **state)
{
	struct world *world = malloc(sizeof(*world));
	struct loop_settings settings;
	struct tern_engine_config config;
	tern_op op;

	(void)state;
	world_settings(&settings, &config);
	settings.fate = put_off_at_rank_2;
	settings.depth = config.depth = 2;
	config.timeout_ms = 100;
	config.heartbeat_ms = 20;
	world_open_mixed(world, 4, &settings, &settings, 2, 0, &config, true);
	world->pace_ns = 50000;
	puts_off = true;
	op = begin_write(world, 0, 2, 0, 900);
	settle_ns(world, 1000000);
	for (int i = 0; i < 2; i++) {
		expect_end(world, 0, begin_write(world, 0, 3, 0, 900), 0, "");
		begin_write(world, 0, 1, (uint64_t)i * 1000, 900);
		settle_ns(world, 1000000);
	}
	puts_off = false;
	for (int i = 0; i < 50; i++)
		expect_end(world, 0, begin_write(world, 0, 3, (uint64_t)i * 1000, 900), 0, "");
	settle_ns(world, 300000000);
	assert_int_equal(tern_op_poll(world->engines[0], op), TERN_ERR_TIMEOUT);
	expect_end(world, 0, op, TERN_ERR_SYSTEM, "the network has taken no write to rank 2 for 4");
	close_world(world);
}

/* Pages that are on their way without a signal when their peer dies, behind the second NIC: their
 * credits go back to where they came from. */
static void unsignalled_to_the_dead(void **state)
{
	struct world *world = open_mixed(3, TRANSPORT_ORDERED, 1, TRANSPORT_ORDERED, 20);
	uint32_t pages[100];
	struct tern_paged_write w = {.size = sizeof(w),
		.peer = 1,
		.nr_pages = 100,
		.local = world->regions[0],
		.remote = world->remotes[0][1],
		.page_bytes = 500,
		.local_stride = 500,
		.remote_stride = 500,
		.local_pages = pages,
		.remote_pages = pages};
	tern_op op;

	(void)state;
	for (uint32_t i = 0; i < 100; i++)
		pages[i] = i;
	world->pace_ns = 50000;
	settle_ns(world, 1000000);
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

/* A rank that does nothing for longer than the engine's time-out, and goes on while somebody is
 * still willing to wait; then it stays away. */
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
	settle_ns(world, 300000000);
	world->frozen[1] = false;
	settle_ns(world, 100000000);
	assert_int_equal(tern_engine_peer(world->engines[0], 1), 0);
	expect_end(world, 0, op, 0, "");
	world->frozen[1] = true;
	settle_ns(world, 550000000);
	assert_int_equal(tern_engine_peer(world->engines[0], 1), TERN_ERR_PEER_DEAD);
	assert_non_null(strstr(tern_last_error(), "nothing was heard from rank 1 for 4"));
	close_world(world);
}

/* ---- leaving --------------------------------------------------------------------------------- */

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
	struct tern_expect expect = {
		.size = sizeof(expect), .immediate = 1, .count = 1, .done = tell, .ctx = &told};
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
	settle_ns(world, 60000000);
	assert_int_equal(tern_engine_peer(world->engines[0], 1), TERN_ERR_PEER_LEFT);
	assert_int_equal(tern_engine_peer(world->engines[2], 1), TERN_ERR_PEER_LEFT);
	w.peer = 1;
	assert_int_equal(tern_engine_write(world->engines[0], &w, NULL), TERN_ERR_PEER_LEFT);
	close_world(world);
}

static void destroyed_while_busy(void **state)
{
	struct world *world = open_world(2, 0, 0);
	struct tern_write w = {.size = sizeof(w),
		.peer = 1,
		.local = world->regions[0],
		.remote = world->remotes[0][1],
		.bytes = 100,
		.done = tell};
	struct told told = {0, 0};
	struct tern_put put = {.peer = 1, .signal_remote = world->remotes[0][1]};
	tern_op group;

	(void)state;
	w.ctx = &told;
	for (int i = 0; i < 100; i++)
		assert_int_equal(tern_engine_write(world->engines[0], &w, NULL), 0);
	assert_int_equal(tern_engine_put_group(
				 world->engines[0], TERN_SIGNAL_DECOUPLED, 5, tell, &told, &group),
		0);
	assert_int_equal(tern_engine_put(world->engines[0], group, &put, 0), 0); /* four are
										    missing, for
										    ever */
	assert_int_equal(tern_engine_put_group(
				 world->engines[0], TERN_SIGNAL_DECOUPLED, 5, tell, &told, &group),
		0);
	assert_int_equal(tern_engine_destroy(world->engines[0]), 0);
	world->engines[0] = NULL;
	assert_int_equal(told.times, 102);
	close_world(world);
}

static void expect_caps(struct world *world, int rank, bool shuts_out, bool pins)
{
	assert_int_equal(engine_shuts_out(world->engines[rank]), shuts_out);
	assert_int_equal(engine_pins(world->engines[rank]), pins);
}

/* That the dead are shut out all networks have to see to; that regions are pinned, one does. Rank 2
 * has one network, the others both. */
static void caps_of_two_networks(void **state)
{
	struct world *world = open_mixed(3, TRANSPORT_PINS, 2, TRANSPORT_SHUTS_OUT, -1);

	(void)state;
	expect_caps(world, 0, false, true);
	expect_caps(world, 2, true, false);
	close_world(world);
	world = open_mixed(3, TRANSPORT_SHUTS_OUT, 2, TRANSPORT_SHUTS_OUT | TRANSPORT_PINS, -1);
	expect_caps(world, 0, true, true);
	close_world(world);
	world = open_world(2, TRANSPORT_SHUTS_OUT, -1);
	expect_caps(world, 0, true, false);
	close_world(world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(caps_of_two_networks),
		cmocka_unit_test(told_death),
		cmocka_unit_test(silent_death),
		cmocka_unit_test(death_on_each_network),
		cmocka_unit_test(one_network_fails),
		cmocka_unit_test(credits_are_a_networks_own),
		cmocka_unit_test(credits_are_a_nics_own),
		cmocka_unit_test(unsignalled_to_the_dead),
		cmocka_unit_test(silence_borne),
		cmocka_unit_test(one_leaves),
		cmocka_unit_test(destroyed_while_busy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
