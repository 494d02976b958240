/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated network: its promise under the worst order of arrival, its arithmetic against
 * closed forms, its faults, and that the same seed gives the same run. */
#include "testkit/sim/sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MAX_RANKS 256
#define ROOM 65536

struct rank {
	struct transport *transport;
	struct transport_info info;
	struct transport_region *region;
	struct transport_key key;
	uint8_t *memory; /* the first half is written from, the second half into */
	uint32_t nr_written, nr_immediates, nr_failed, nr_down, nr_messages;
	uint64_t last_written, written_ns, immediate_ns;
	uint32_t last_immediate, last_peer;
	int last_error;
	uint8_t message[256];
	uint32_t message_bytes;
};

struct world {
	struct sim_network *network;
	uint32_t nr_ranks;
	uint64_t room;
	struct rank ranks[MAX_RANKS];
};

static int join(struct world *world, uint32_t self)
{
	struct transport_options options = {.network = world->network,
		.self = self,
		.nr_peers = world->nr_ranks,
		.depth = 1u << 20,
		.message_bytes = 256};

	return transport_sim.open(
		&options, &world->ranks[self].transport, &world->ranks[self].info);
}

static void meet(struct world *world, uint32_t a, uint32_t b)
{
	uint8_t address[TRANSPORT_ADDRESS_BYTES];
	uint32_t bytes = sizeof(address);

	assert_int_equal(transport_sim.address(world->ranks[b].transport, address, &bytes), 0);
	assert_int_equal(transport_sim.connect(world->ranks[a].transport, b, address, bytes), 0);
}

static struct world *world_make(
	const struct sim_settings *settings, uint32_t nr_ranks, uint64_t room)
{
	struct world *world = calloc(1, sizeof(*world));
	uint32_t a, b;

	assert_non_null(world);
	world->nr_ranks = nr_ranks;
	world->room = room;
	assert_int_equal(sim_network_create(settings, &world->network), 0);
	for (a = 0; a < nr_ranks; a++) {
		struct rank *rank = &world->ranks[a];

		assert_int_equal(join(world, a), 0);
		rank->memory = calloc(2, room);
		assert_non_null(rank->memory);
		assert_int_equal(transport_sim.reg(rank->transport, rank->memory, 2 * room,
					 &rank->region, &rank->key),
			0);
	}
	for (a = 0; a < nr_ranks; a++)
		for (b = 0; b < nr_ranks; b++)
			meet(world, a, b);
	return world;
}

static void world_free(struct world *world)
{
	uint32_t i;

	for (i = 0; i < world->nr_ranks; i++)
		if (world->ranks[i].transport)
			transport_sim.close(world->ranks[i].transport);
	sim_network_destroy(world->network);
	for (i = 0; i < world->nr_ranks; i++)
		free(world->ranks[i].memory);
	free(world);
}

static struct transport_write make_write(
	struct world *world, uint32_t from, uint32_t to, uint64_t offset, uint64_t bytes)
{
	return (struct transport_write){.peer = to,
		.flags = WRITE_IMMEDIATE | WRITE_SIGNALLED,
		.immediate = from,
		.region = world->ranks[from].region,
		.from = world->ranks[from].memory + offset,
		.key = &world->ranks[to].key,
		.offset = world->room + offset,
		.bytes = bytes,
		.cookie = offset + 1};
}

static int post(struct world *world, uint32_t from, const struct transport_write *write)
{
	return transport_sim.write(world->ranks[from].transport, write);
}

static void take(struct world *world, struct rank *rank, const struct transport_event *event)
{
	switch (event->kind) {
	case EVENT_WRITTEN:
		rank->nr_written++;
		rank->last_written = event->cookie;
		rank->written_ns = sim_now(world->network);
		break;
	case EVENT_IMMEDIATE:
		rank->nr_immediates++;
		rank->last_immediate = event->immediate;
		rank->last_peer = event->peer;
		rank->immediate_ns = sim_now(world->network);
		break;
	case EVENT_MESSAGE:
		rank->nr_messages++;
		rank->last_peer = event->peer;
		rank->message_bytes = event->bytes;
		memcpy(rank->message, event->data, event->bytes);
		break;
	case EVENT_FAILED:
		rank->nr_failed++;
		rank->last_error = event->error;
		assert_non_null(event->text);
		break;
	case EVENT_PEER_DOWN:
		rank->nr_down++;
		rank->last_peer = event->peer;
		break;
	}
}

static void look(struct world *world, uint32_t self)
{
	struct rank *rank = &world->ranks[self];
	struct transport_event events[4];
	int i, nr;

	while ((nr = transport_sim.poll(rank->transport, events, 4)) > 0)
		for (i = 0; i < nr; i++)
			take(world, rank, &events[i]);
}

/* Until nothing is pending. */
static void run(struct world *world)
{
	uint32_t rank;

	do
		while (sim_take_ready(world->network, &rank))
			look(world, rank);
	while (sim_step(world->network));
}

static void plain_settings(struct sim_settings *settings)
{
	sim_settings_init(settings);
	settings->far = (struct sim_link){.latency_ns = 2000};
	settings->nic = (struct sim_nic){.bytes_per_second = 1000000000}; /* a byte a nanosecond */
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

static void test_one_write(void **state)
{
	struct sim_settings settings;
	struct transport_write write;
	struct world *world;

	(void)state;
	plain_settings(&settings);
	settings.nic.post_ns = 300;
	settings.nic.completion_ns = 70;
	world = world_make(&settings, 2, ROOM);
	memset(world->ranks[0].memory, 7, ROOM);
	write = make_write(world, 0, 1, 0, 5000);
	assert_int_equal(post(world, 0, &write), 0);
	run(world);
	assert_int_equal(world->ranks[1].immediate_ns, 300 + 2000 + 5000);
	assert_int_equal(world->ranks[0].written_ns, 300 + 2000 + 5000 + 2000 + 70);
	assert_int_equal(world->ranks[0].last_written, 1);
	assert_int_equal(world->ranks[1].last_peer, 0);
	assert_memory_equal(world->ranks[1].memory + ROOM, world->ranks[0].memory, 5000);
	assert_int_equal(world->ranks[1].memory[ROOM + 5000], 0);
	world_free(world);
}

/* n writes to one peer leave one after the other; n writers to one peer arrive one after the other.
 */
static void test_bandwidth(void **state)
{
	const uint32_t n = 10;
	struct sim_settings settings;
	struct transport_write write;
	struct world *world;
	uint32_t i;

	(void)state;
	plain_settings(&settings);
	settings.nic.request_ns = 1500;
	world = world_make(&settings, n + 1, ROOM);
	for (i = 0; i < n; i++) {
		write = make_write(world, 0, 1, i * 1000, 1000);
		assert_int_equal(post(world, 0, &write), 0);
	}
	run(world);
	assert_int_equal(world->ranks[1].immediate_ns, 1500 * (n - 1) + 2000 + 1000); /* the message
											 rate is the
											 limit */
	world_free(world);

	settings.nic.request_ns = 0;
	world = world_make(&settings, n + 1, ROOM);
	for (i = 0; i < n; i++) {
		write = make_write(world, i + 1, 0, i * 1000, 1000);
		assert_int_equal(post(world, i + 1, &write), 0);
	}
	run(world);
	assert_int_equal(world->ranks[0].immediate_ns, 2000 + 1000 * n);
	world_free(world);
}

static void test_links(void **state)
{
	struct sim_link slow = {.latency_ns = 9000, .bytes_per_second = 100000000};
	struct sim_settings settings;
	struct transport_write write;
	struct world *world;

	(void)state;
	plain_settings(&settings);
	settings.ranks_per_node = 2;
	settings.near = (struct sim_link){.latency_ns = 50, .bytes_per_second = 10000000000};
	world = world_make(&settings, 4, ROOM);
	write = make_write(world, 0, 1, 0, 1000);
	assert_int_equal(post(world, 0, &write), 0);
	run(world);
	assert_int_equal(world->ranks[1].immediate_ns, 50 + 100);
	world_free(world);

	world = world_make(&settings, 4, ROOM);
	assert_int_equal(sim_link_set(world->network, 0, 2, &slow), 0);
	write = make_write(world, 0, 2, 0, 1000);
	assert_int_equal(post(world, 0, &write), 0);
	run(world);
	assert_int_equal(world->ranks[2].immediate_ns, 9000 + 10000);
	assert_int_equal(world->ranks[0].written_ns, 19000 + 2000); /* the way back is the usual one
								     */
	world_free(world);
}

/* The proxy posts one write after another, and polls only when it has done so. */
static void test_proxy(void **state)
{
	struct sim_settings settings;
	struct transport_write write;
	struct world *world;
	uint32_t i;

	(void)state;
	plain_settings(&settings);
	settings.nic.bytes_per_second = 0;
	settings.nic.post_ns = 1000;
	world = world_make(&settings, 2, ROOM);
	for (i = 0; i < 20; i++) {
		write = make_write(world, 0, 1, i, 0);
		assert_int_equal(post(world, 0, &write), 0);
	}
	assert_int_equal(sim_proxy_free(world->network, 0), 20000);
	sim_spend(world->network, 0, 500);
	run(world);
	assert_int_equal(world->ranks[1].immediate_ns, 20000 + 2000);
	assert_int_equal(world->ranks[1].nr_immediates, 20);
	assert_int_equal(world->ranks[0].nr_written, 20);
	assert_int_equal(world->ranks[0].written_ns, 24000);
	world_free(world);
}

/* A fenced write waits a round trip for what is before it in its queue pair, and for nothing else.
 */
static void test_fence(void **state)
{
	struct sim_settings settings;
	struct transport_write write;
	struct world *world;
	struct sim_stats stats;

	(void)state;
	plain_settings(&settings);
	settings.nic.bytes_per_second = 0;
	settings.nic.nr_queue_pairs = 2;
	settings.fence = true;
	world = world_make(&settings, 4, ROOM);
	assert_true(world->ranks[0].info.caps & TRANSPORT_FENCE);
	write = make_write(world, 0, 1, 0, 100);
	assert_int_equal(post(world, 0, &write), 0);
	write.flags |= WRITE_FENCE;
	assert_int_equal(post(world, 0, &write), 0);
	write = make_write(world, 0, 2, 0, 100); /* another queue pair */
	write.flags |= WRITE_FENCE;
	assert_int_equal(post(world, 0, &write), 0);
	write = make_write(world, 0, 3, 0, 100); /* behind the fence */
	assert_int_equal(post(world, 0, &write), 0);
	run(world);
	assert_int_equal(world->ranks[2].immediate_ns, 2000);
	assert_int_equal(world->ranks[1].immediate_ns, 4000 + 2000);
	assert_int_equal(world->ranks[3].immediate_ns, 4000 + 2000);
	sim_stats(world->network, &stats);
	assert_int_equal(stats.fences_waited, 1);
	world_free(world);
}

/* ---- the promise ----------------------------------------------------------------------------- */

static void fill(uint8_t *memory, uint64_t bytes, uint64_t seed)
{
	uint64_t i;

	for (i = 0; i < bytes; i++)
		memory[i] = (uint8_t)((i + seed) * 2654435761u >> 24 | 1);
}

/* Whenever an immediate is reported, all bytes of its write are there. Nothing else is: writes pass
 * each other. */
static void check_promise(uint64_t seed, uint32_t *nr_swapped)
{
	const uint32_t n = 32, bytes = 2000;
	struct sim_settings settings;
	struct transport_write write;
	struct transport_event event;
	struct world *world;
	uint32_t i, last = 0, nr = 0;

	plain_settings(&settings);
	settings.seed = seed;
	settings.piece_bytes = 64;
	settings.max_pieces = 32;
	settings.reorder_ns = 1000000;
	settings.far.jitter_ns = 5000;
	settings.completion_jitter_ns = 10000;
	settings.duplicate_per_mille = 300;
	settings.poison = true;
	world = world_make(&settings, 2, ROOM);
	fill(world->ranks[0].memory, ROOM, seed);
	for (i = 0; i < n; i++) {
		write = make_write(world, 0, 1, i * bytes, bytes);
		write.immediate = i;
		assert_int_equal(post(world, 0, &write), 0);
		assert_int_equal(world->ranks[1].memory[ROOM + i * bytes], SIM_POISON);
	}
	do
		while (transport_sim.poll(world->ranks[1].transport, &event, 1) == 1) {
			uint64_t at = event.immediate * bytes;

			assert_int_equal(event.kind, EVENT_IMMEDIATE);
			assert_memory_equal(world->ranks[1].memory + ROOM + at,
				world->ranks[0].memory + at, bytes);
			*nr_swapped += nr++ && event.immediate < last;
			last = event.immediate;
		}
	while (sim_step(world->network));
	assert_int_equal(nr, n);
	look(world, 0);
	assert_int_equal(world->ranks[0].nr_written, n); /* duplicates are dropped */
	world_free(world);
}

static void test_promise(void **state)
{
	uint32_t nr_swapped = 0;
	uint64_t seed;

	(void)state;
	for (seed = 0; seed < 50; seed++)
		check_promise(seed, &nr_swapped);
	assert_true(nr_swapped > 500);
}

static void test_ordered(void **state)
{
	struct sim_settings settings;
	struct transport_write write;
	struct transport_event event;
	struct world *world;
	uint32_t i, next = 0;

	(void)state;
	plain_settings(&settings);
	settings.ordered = true;
	settings.reorder_ns = 1000000;
	settings.far.jitter_ns = 50000;
	settings.completion_jitter_ns = 50000;
	settings.piece_bytes = 16;
	world = world_make(&settings, 2, ROOM);
	for (i = 0; i < 200; i++) {
		write = make_write(world, 0, 1, i, 1 + i % 7 * 100);
		write.immediate = i;
		assert_int_equal(post(world, 0, &write), 0);
	}
	while (sim_step(world->network))
		while (transport_sim.poll(world->ranks[1].transport, &event, 1) == 1)
			assert_int_equal(event.immediate, next++);
	assert_int_equal(next, 200);
	for (i = 0; transport_sim.poll(world->ranks[0].transport, &event, 1) == 1; i++)
		assert_int_equal(event.cookie, i + 1);
	assert_int_equal(i, 200);
	world_free(world);
}

static void test_messages(void **state)
{
	struct sim_settings settings;
	struct transport_event event;
	struct world *world;
	uint32_t i, sum = 0;

	(void)state;
	plain_settings(&settings);
	settings.far.jitter_ns = 100000;
	world = world_make(&settings, 3, ROOM);
	for (i = 0; i < 100; i++)
		assert_int_equal(
			transport_sim.send(world->ranks[0].transport, 1, &i, sizeof(i)), 0);
	while (sim_step(world->network))
		while (transport_sim.poll(world->ranks[1].transport, &event, 1) == 1) {
			memcpy(&i, event.data, sizeof(i));
			assert_int_equal(event.kind, EVENT_MESSAGE);
			assert_int_equal(event.peer, 0);
			assert_int_equal(i, sum++);
		}
	assert_int_equal(sum, 100);
	assert_int_equal(
		transport_sim.send(world->ranks[0].transport, 1, world->ranks[0].memory, 257),
		TERN_ERR_INVALID);
	world_free(world);
}

/* ---- trouble --------------------------------------------------------------------------------- */

/* Posts until it is taken, as an engine would, letting time pass. */
static void insist(struct world *world, uint32_t from, const struct transport_write *write)
{
	int rc;

	while ((rc = post(world, from, write)) == TRANSPORT_AGAIN)
		assert_true(sim_step(world->network));
	assert_int_equal(rc, 0);
}

static void test_again(void **state)
{
	struct sim_settings settings;
	struct transport_write write;
	struct sim_stats stats;
	struct world *world;
	uint32_t i;

	(void)state;
	plain_settings(&settings);
	settings.fence = true;
	settings.again_first = 2;
	settings.again_per_mille = 200;
	settings.connect_ns = 5000;
	settings.depth = 3;
	world = world_make(&settings, 2, ROOM);
	assert_int_equal(world->ranks[0].info.depth, 3);
	for (i = 0; i < 100; i++) {
		write = make_write(world, 0, 1, i, 10);
		write.flags |= WRITE_FENCE;
		insist(world, 0, &write);
	}
	run(world);
	assert_int_equal(world->ranks[1].nr_immediates, 100);
	sim_stats(world->network, &stats);
	assert_true(stats.agains >= 200);
	assert_int_equal(stats.changed_retries, 0);
	assert_int_equal(stats.most_in_flight, 3);

	write = make_write(world, 0, 1, 0, 10); /* the bug that loses a fence on its second try */
	write.flags |= WRITE_FENCE;
	assert_int_equal(post(world, 0, &write), TRANSPORT_AGAIN);
	write.flags &= ~(uint32_t)WRITE_FENCE;
	insist(world, 0, &write);
	sim_stats(world->network, &stats);
	assert_int_equal(stats.changed_retries, 1);
	world_free(world);
}

static void test_death(void **state)
{
	struct sim_settings settings;
	struct transport_write write;
	struct world *world;
	uint32_t i;

	(void)state;
	plain_settings(&settings);
	settings.sees_death = true;
	settings.detect_ns = 50000;
	world = world_make(&settings, 3, ROOM);
	sim_kill_at(world->network, 1, 2500);
	for (i = 0; i < 5; i++) {
		write = make_write(world, 0, 1, i * 1000, 1000);
		assert_int_equal(post(world, 0, &write), 0);
	}
	write = make_write(world, 0, 2, 0, 1000);
	assert_int_equal(post(world, 0, &write), 0);
	write = make_write(world, 2, 1, 0, 100);
	write.flags &= ~(uint32_t)WRITE_SIGNALLED;
	assert_int_equal(post(world, 2, &write), 0);
	while (sim_now(world->network) < 2500)
		sim_step(world->network);
	run(world);
	assert_int_equal(world->ranks[0].nr_failed, 5);
	assert_int_equal(world->ranks[0].nr_down, 1);
	assert_int_equal(world->ranks[0].last_peer, 1);
	assert_int_equal(world->ranks[0].nr_written, 1);
	assert_int_equal(world->ranks[2].nr_immediates, 1);
	assert_int_equal(world->ranks[2].nr_failed, 0); /* unsignalled: only the peer's death is
							   told */
	assert_int_equal(world->ranks[2].nr_down, 1);
	write = make_write(world, 0, 1, 0, 10);
	assert_int_equal(post(world, 0, &write), TERN_ERR_PEER_DEAD);
	write = make_write(world, 0, 2, 0, 10);
	assert_int_equal(post(world, 0, &write), 0);
	world_free(world);
}

/* A writer that dies leaves torn writes, but never an immediate without all of its bytes. */
static void test_torn(void **state)
{
	uint32_t torn = 0, whole = 0;
	struct sim_settings settings;
	struct transport_write write;
	uint64_t seed;

	(void)state;
	for (seed = 0; seed < 100; seed++) {
		struct world *world;
		uint32_t i, ones = 0;

		plain_settings(&settings);
		settings.seed = seed;
		settings.piece_bytes = 100;
		settings.max_pieces = 10;
		settings.reorder_ns = 2000;
		world = world_make(&settings, 2, ROOM);
		memset(world->ranks[0].memory, 1, 1000);
		write = make_write(world, 0, 1, 0, 1000);
		assert_int_equal(post(world, 0, &write), 0);
		assert_int_equal(sim_kill_random(world->network, 1, 1000, 6000), 0);
		while (sim_step(world->network))
			look(world, 1);
		for (i = 0; i < 1000; i++)
			ones += world->ranks[1].memory[ROOM + i];
		if (world->ranks[1].nr_immediates)
			assert_int_equal(ones, 1000);
		torn += ones && ones < 1000;
		whole += world->ranks[1].nr_immediates;
		world_free(world);
	}
	assert_true(torn > 5);
	assert_true(whole > 5);
}

static void test_black_hole(void **state)
{
	struct sim_settings settings;
	struct transport_write write;
	struct world *world;

	(void)state;
	plain_settings(&settings);
	world = world_make(&settings, 3, ROOM);
	sim_cut(world->network, 0, 1);
	write = make_write(world, 0, 1, 0, 100);
	assert_int_equal(post(world, 0, &write), 0);
	write = make_write(world, 1, 0, 0, 100); /* lands; its acknowledgement is swallowed */
	assert_int_equal(post(world, 1, &write), 0);
	run(world);
	assert_int_equal(world->ranks[1].nr_immediates, 0);
	assert_int_equal(world->ranks[0].nr_immediates, 1);
	assert_int_equal(
		world->ranks[0].nr_written + world->ranks[0].nr_failed + world->ranks[0].nr_down,
		0);
	assert_int_equal(
		world->ranks[1].nr_written + world->ranks[1].nr_failed + world->ranks[1].nr_down,
		0);
	world_free(world);

	settings.retry_ns = 100000;
	world = world_make(&settings, 3, ROOM);
	sim_cut(world->network, 0, 1);
	write = make_write(world, 0, 1, 0, 100);
	assert_int_equal(post(world, 0, &write), 0);
	run(world);
	assert_int_equal(world->ranks[0].nr_failed, 1);
	assert_int_equal(world->ranks[0].nr_down, 1);
	assert_int_equal(world->ranks[0].last_error, TERN_ERR_PEER_DEAD);
	assert_int_equal(sim_now(world->network), 100000);
	world_free(world);
}

static void test_bad_memory(void **state)
{
	struct sim_settings settings;
	struct transport_write write;
	struct world *world;

	(void)state;
	plain_settings(&settings);
	world = world_make(&settings, 2, ROOM);
	write = make_write(world, 0, 1, 0, 100);
	write.offset = 2 * ROOM - 99;
	assert_int_equal(post(world, 0, &write), TERN_ERR_INVALID);
	write.offset = 0;
	transport_sim.dereg(world->ranks[1].transport, world->ranks[1].region); /* too early */
	assert_int_equal(post(world, 0, &write), 0);
	run(world);
	assert_int_equal(world->ranks[0].nr_failed, 1);
	assert_int_equal(world->ranks[1].nr_immediates, 0);
	write = make_write(world, 0, 1, 0, 100);
	write.from = world->ranks[1].memory;
	assert_int_equal(post(world, 0, &write), TERN_ERR_INVALID);
	write = make_write(world, 0, 1, 0, 100);
	write.flags |= WRITE_FENCE;
	assert_int_equal(post(world, 0, &write), TERN_ERR_UNSUPPORTED);
	write.flags = WRITE_INLINE;
	assert_int_equal(post(world, 0, &write), TERN_ERR_INVALID);
	world_free(world);
}

static void test_target_polls(void **state)
{
	struct sim_settings settings;
	struct transport_write write;
	struct world *world;

	(void)state;
	plain_settings(&settings);
	settings.target_polls = true;
	world = world_make(&settings, 2, ROOM);
	memset(world->ranks[0].memory, 5, 100);
	write = make_write(world, 0, 1, 0, 100);
	assert_int_equal(post(world, 0, &write), 0);
	while (sim_step(world->network))
		look(world, 0);
	assert_int_equal(world->ranks[1].memory[ROOM], 0);
	look(world, 1);
	run(world);
	assert_int_equal(world->ranks[1].memory[ROOM], 5);
	assert_int_equal(world->ranks[1].nr_immediates, 1);
	assert_int_equal(world->ranks[0].nr_written, 1);
	world_free(world);
}

static void test_reopen(void **state)
{
	struct sim_settings settings;
	struct transport_write write;
	struct world *world;
	struct rank *one;
	uint32_t i;

	(void)state;
	plain_settings(&settings);
	settings.sees_death = true;
	world = world_make(&settings, 2, ROOM);
	one = &world->ranks[1];
	for (i = 0; i < 20; i++) {
		write = make_write(world, 0, 1, 0, 100);
		assert_int_equal(post(world, 0, &write), 0);
		sim_step(world->network);
		transport_sim.close(one->transport);
		one->transport = NULL;
		run(world);
		assert_int_equal(world->ranks[0].nr_down, i + 1);
		assert_int_equal(world->ranks[0].nr_failed, i + 1);
		assert_int_equal(join(world, 1), 0);
		assert_int_equal(transport_sim.reg(one->transport, one->memory, 2 * ROOM,
					 &one->region, &one->key),
			0);
		assert_int_equal(transport_sim.disconnect(world->ranks[0].transport, 1), 0);
		meet(world, 0, 1);
		meet(world, 1, 0);
		write = make_write(world, 0, 1, 0, 100);
		assert_int_equal(post(world, 0, &write), 0);
		run(world);
		assert_int_equal(one->nr_immediates, i + 1);
	}
	world_free(world);
}

/* ---- repeatability and scale ----------------------------------------------------------------- */

/* All to all, in bad weather. */
static uint64_t all_to_all(
	uint64_t seed, uint32_t nr_ranks, uint32_t bytes, struct sim_stats *stats)
{
	struct sim_settings settings;
	struct transport_write write;
	struct world *world;
	uint32_t a, b, nr = 0;
	uint64_t hash;

	sim_settings_init(&settings);
	settings.seed = seed;
	settings.ranks_per_node = 8;
	settings.reorder_ns = 20000;
	settings.stall_per_mille = 5;
	settings.stall_ns = 3000;
	settings.duplicate_per_mille = 50;
	settings.again_per_mille = 20;
	settings.depth = 1u << 20;
	world = world_make(&settings, nr_ranks, (uint64_t)nr_ranks * bytes);
	for (a = 0; a < nr_ranks; a++) {
		memset(world->ranks[a].memory, (int)(a + 1), (size_t)nr_ranks * bytes);
		for (b = 0; b < nr_ranks; b++) {
			write = make_write(world, a, b, 0, bytes);
			write.offset = world->room + (uint64_t)a * bytes;
			while (post(world, a, &write))
				;
		}
	}
	run(world);
	for (a = 0; a < nr_ranks; a++) {
		nr += world->ranks[a].nr_immediates;
		for (b = 0; b < nr_ranks; b++)
			assert_int_equal(
				world->ranks[a]
					.memory[world->room + (uint64_t)b * bytes + bytes - 1],
				(uint8_t)(b + 1));
	}
	assert_int_equal(nr, nr_ranks * nr_ranks);
	sim_stats(world->network, stats);
	hash = sim_trace_hash(world->network) ^ sim_now(world->network);
	world_free(world);
	return hash;
}

static void test_repeats(void **state)
{
	struct sim_stats stats;
	uint64_t first = all_to_all(1, 16, 10000, &stats);

	(void)state;
	assert_true(stats.duplicates_dropped && stats.stalls && stats.agains);
	assert_true(all_to_all(1, 16, 10000, &stats) == first);
	assert_true(all_to_all(2, 16, 10000, &stats) != first);
	assert_true(all_to_all(3, 16, 10000, &stats) != first);
}

static void test_scale(void **state)
{
	struct sim_stats stats;

	(void)state;
	all_to_all(1, 256, 64, &stats);
	assert_int_equal(stats.landed, 65536);
	assert_true(stats.pool_bytes < 64u << 20);
}

static void test_settings(void **state)
{
	struct sim_settings settings;
	struct sim_network *network;

	(void)state;
	sim_settings_init(&settings);
	settings.max_pieces = 65;
	assert_int_equal(sim_network_create(&settings, &network), TERN_ERR_INVALID);
	sim_settings_init(&settings);
	settings.again_per_mille = 1000;
	assert_int_equal(sim_network_create(&settings, &network), TERN_ERR_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_write),
		cmocka_unit_test(test_bandwidth),
		cmocka_unit_test(test_links),
		cmocka_unit_test(test_proxy),
		cmocka_unit_test(test_fence),
		cmocka_unit_test(test_promise),
		cmocka_unit_test(test_ordered),
		cmocka_unit_test(test_messages),
		cmocka_unit_test(test_again),
		cmocka_unit_test(test_death),
		cmocka_unit_test(test_torn),
		cmocka_unit_test(test_black_hole),
		cmocka_unit_test(test_bad_memory),
		cmocka_unit_test(test_target_polls),
		cmocka_unit_test(test_reopen),
		cmocka_unit_test(test_repeats),
		cmocka_unit_test(test_scale),
		cmocka_unit_test(test_settings),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
