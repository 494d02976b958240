/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's operations, each on networks that are ordered or not, have fences or not, refuse each post, or cut writes into pieces; stepped in the test's own thread. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/engine/world.h"
#include "tests/exchange/ranks.h"

#define WAIT 1000 /* ms of the world's time */

static const struct {
	const char *name;
	uint32_t caps, again, slowest, nics, depth, inline_bytes;
	uint64_t write_bytes;
	uint32_t beside; /* 0: none; else which network leads from and to rank 2 in its place */
} networks[] = {
	{"unordered", 0, 0, 5, 1, 64, 0, 1 << 20, 0},
	{"ordered", TRANSPORT_ORDERED, 0, 5, 1, 64, 16, 1 << 20, 0},
	{"fences, again at each post", TRANSPORT_FENCE, 2, 5, 1, 16, 8, 1 << 20, 0},
	{"ordered, again, short writes", TRANSPORT_ORDERED, 1, 3, 1, 8, 0, 1000, 0},
	{"unordered, short writes, one at a time", 0, 1, 2, 1, 1, 0, 777, 0},
	{"3 NICs with fences", TRANSPORT_FENCE, 0, 5, 3, 16, 32, 50000, 0},
	{"4 NICs, unordered, again", 0, 1, 5, 4, 4, 0, 1 << 20, 0},
	{"ordered, beside 3 NICs with fences", TRANSPORT_ORDERED, 0, 5, 1, 64, 16, 1 << 20, 5},
	{"3 NICs with fences, beside ordered, again, short writes", TRANSPORT_FENCE, 0, 5, 3, 16, 32, 50000, 3},
	{"2 NICs, unordered, beside ordered", 0, 1, 5, 2, 4, 0, 1 << 20, 1},
	{"ordered, beside unordered, short writes, one at a time", TRANSPORT_ORDERED, 0, 5, 1, 64, 16, 1 << 20, 4},
};
#define NETWORKS (sizeof(networks) / sizeof(networks[0]))

static struct loop_settings settings_of(size_t which)
{
	struct tern_engine_config unused;
	struct loop_settings settings;

	world_settings(&settings, &unused);
	settings.caps = networks[which].caps;
	settings.again_first = networks[which].again;
	settings.slowest = networks[which].slowest;
	settings.depth = networks[which].depth;
	settings.inline_bytes = networks[which].inline_bytes;
	settings.write_bytes = networks[which].write_bytes;
	return settings;
}

static void open_network(struct world *world, size_t which, int nr)
{
	struct loop_settings settings = settings_of(which), other = settings_of(networks[which].beside);
	struct tern_engine_config config;
	struct loop_settings unused;

	world_settings(&unused, &config);
	config.nr_nics = networks[which].nics;
	config.stripe_bytes = 20000;
	if (networks[which].beside)
		world_open_mixed(world, nr, &settings, &other, networks[networks[which].beside].nics, 2, &config, true);
	else
		world_open(world, nr, &settings, &config, true);
}

static void close_network(struct world *world)
{
	assert_int_equal(world->net.nr_changed, 0);
	assert_int_equal(world->other.nr_changed, 0);
	world_close(world);
}

/* The network from rank 0 to this one: which of `networks`. */
static size_t network_to(size_t which, int rank)
{
	return rank == 2 && networks[which].beside ? networks[which].beside : which;
}

/* Runs a test on each network, with three ranks. */
static void on_all(void (*test)(struct world *world, size_t which))
{
	for (size_t i = 0; i < NETWORKS; i++) {
		struct world *world = malloc(sizeof(*world));

		open_network(world, i, 3);
		test(world, i);
		close_network(world);
		free(world);
	}
}

static void settle(struct world *world, int rounds)
{
	for (int i = 0; i < rounds; i++)
		world_round(world);
}

static void expect_bytes(struct world *world, int at, uint64_t offset, int from, uint64_t from_offset, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i++)
		if (world->memory[at][offset + i] != world_byte(from, from_offset + i))
			fail_msg("byte %llu of rank %d is %u, not rank %d's %u", (unsigned long long)(offset + i), at, world->memory[at][offset + i], from,
				world_byte(from, from_offset + i));
}

static tern_op expect_immediates(struct world *world, int rank, uint32_t value, uint64_t count)
{
	struct tern_expect expect = {.size = sizeof(expect), .immediate = value, .count = count};
	tern_op op;

	assert_int_equal(tern_engine_expect(world->engines[rank], &expect, &op), 0);
	return op;
}

static struct tern_write write_args(struct world *world, int from, int to, uint64_t local, uint64_t remote, uint64_t bytes)
{
	return (struct tern_write){.size = sizeof(struct tern_write),
		.peer = (uint32_t)to,
		.local = world->regions[from],
		.remote = world->remotes[from][to],
		.local_offset = local,
		.remote_offset = remote,
		.bytes = bytes};
}

/* ---- writes ------------------------------------------------------------------------------------------------------- */

struct told {
	int times, error;
	char text[256];
};

static void tell(void *ctx, int error, const char *text)
{
	struct told *told = ctx;

	told->times++;
	told->error = error;
	snprintf(told->text, sizeof(told->text), "%s", text);
}

static void writes(struct world *world, size_t which)
{
	static const uint64_t sizes[] = {0, 1, 8, 777, 5000, 100000};
	(void)which;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		for (int to = 0; to < 3; to++) { /* to itself, too */
			struct tern_write w = write_args(world, 0, to, 3, 500000 + 120000 * i % 400000, sizes[i]);
			struct told told = {0};
			tern_op op, arrival = expect_immediates(world, to, 0xffffffffu, 1);

			w.flags = TERN_IMMEDIATE;
			w.immediate = 0xffffffffu;
			w.done = tell;
			w.ctx = &told;
			assert_int_equal(tern_engine_write(world->engines[0], &w, &op), 0);
			assert_int_equal(tern_op_wait(world->engines[to], arrival, WAIT), 0);
			expect_bytes(world, to, w.remote_offset, 0, 3, sizes[i]); /* all is there when the immediate is */
			assert_int_equal(tern_op_wait(world->engines[0], op, WAIT), 0);
			assert_int_equal(told.times, 1);
			assert_int_equal(told.error, 0);
			assert_int_equal(tern_op_poll(world->engines[0], op), TERN_ERR_INVALID); /* given back */
		}
}

/* What is for a rank goes over the network that leads to it, and over that alone. */
static void each_on_its_network(struct world *world, size_t which)
{
	uint64_t before[2];

	for (int from = 0; from < 3; from++)
		for (int to = 0; to < 3; to++) {
			struct loop_net *net = world_net(world, from, to);
			struct tern_write w = write_args(world, from, to, 0, 200000, 60000);
			tern_op op;

			before[0] = net->nr_writes;
			before[1] = world->net.nr_writes + world->other.nr_writes - before[0];
			assert_int_equal(tern_engine_write(world->engines[from], &w, &op), 0);
			assert_int_equal(tern_op_wait(world->engines[from], op, WAIT), 0);
			assert_true(net->nr_writes > before[0]);
			assert_int_equal(world->net.nr_writes + world->other.nr_writes - net->nr_writes, before[1]);
		}
	assert_int_equal(world->other.nr_writes > 0, networks[which].beside > 0);
}

static void nothing_at_all(struct world *world, size_t which)
{
	struct tern_write w = write_args(world, 0, 1, 0, 0, 0);
	tern_op op;

	(void)which;
	assert_int_equal(tern_engine_write(world->engines[0], &w, &op), 0);
	assert_int_equal(tern_op_wait(world->engines[0], op, WAIT), 0);
	assert_int_equal(world->net.nr_writes, 0);
}

static void refusals(struct world *world, size_t which)
{
	struct tern_write w;
	tern_op op = 99;

	(void)which;
#define REFUSED(text, ...)                                                                        \
	do {                                                                                      \
		w = write_args(world, 0, 1, 0, 0, 100);                                           \
		__VA_ARGS__;                                                                      \
		assert_int_equal(tern_engine_write(world->engines[0], &w, &op), TERN_ERR_INVALID); \
		if (!strstr(tern_last_error(), text))                                             \
			fail_msg("\"%s\" does not say \"%s\"", tern_last_error(), text);          \
	} while (0)
	REFUSED("size", w.size = 8);
	REFUSED("peer 3 of 3", w.peer = 3);
	REFUSED("local or remote is NULL", w.local = NULL);
	REFUSED("local or remote is NULL", w.remote = NULL);
	REFUSED("another engine's", w.local = world->regions[1]);
	REFUSED("at 1048477 of a region", w.local_offset = WORLD_BYTES - 99);
	REFUSED("at 18446744073709551615 of", w.local_offset = UINT64_MAX);
	REFUSED("at 1048477 of rank 1's region", w.remote_offset = WORLD_BYTES - 99);
	REFUSED("to rank 2", w.peer = 2);
#undef REFUSED
	assert_int_equal(op, 99);
	assert_int_equal(tern_engine_write(NULL, &w, &op), TERN_ERR_INVALID);
	assert_int_equal(world->net.nr_writes, 0);
}

/* ---- pages, slices -------------------------------------------------------------------------------------------------- */

static void pages(struct world *world, size_t which)
{
	uint32_t local[40], remote[40];
	struct tern_paged_write w = {.size = sizeof(w), .peer = 2, .flags = TERN_IMMEDIATE, .immediate = 5, .nr_pages = 40, .local = world->regions[1],
		.remote = world->remotes[1][2], .page_bytes = 2000, .local_offset = 11, .remote_offset = 500000, .local_stride = 2100, .remote_stride = 3000,
		.local_pages = local, .remote_pages = remote};
	tern_op op, arrival = expect_immediates(world, 2, 5, 1);

	for (uint32_t i = 0; i < 40; i++) {
		local[i] = i * 7 % 40;
		remote[i] = i * 11 % 40;
	}
	assert_int_equal(tern_engine_write_pages(world->engines[1], &w, &op), 0);
	assert_int_equal(tern_op_wait(world->engines[2], arrival, WAIT), 0);
	for (uint32_t i = 0; i < 40; i++)
		expect_bytes(world, 2, 500000 + remote[i] * 3000, 1, 11 + local[i] * 2100, 2000);
	assert_int_equal(tern_op_wait(world->engines[1], op, WAIT), 0);
	which = network_to(which, 2);
	if ((networks[which].caps & TRANSPORT_ORDERED) && networks[which].nics == 1 && networks[which].depth > 1)
		assert_true(world_net(world, 1, 2)->nr_unsignalled > 0);
	else
		assert_int_equal(world_net(world, 1, 2)->nr_unsignalled, 0);
	remote[39] = 1000;
	assert_int_equal(tern_engine_write_pages(world->engines[1], &w, &op), TERN_ERR_INVALID);
	assert_non_null(strstr(tern_last_error(), "remote page 1000, number 39"));
	remote[39] = 0;
	w.local_stride = UINT64_MAX / 2;
	assert_int_equal(tern_engine_write_pages(world->engines[1], &w, &op), TERN_ERR_INVALID);
}

static void scatters(struct world *world, size_t which)
{
	static const uint32_t ranks[] = {2, 0, 1};
	tern_remote *remotes[] = {world->remotes[1][2], world->remotes[1][0], world->remotes[1][1]};
	struct tern_slice slices[] = {{100, 600000, 30000, 7, 0}, {31000, 700000, 0, 8, 0}, {200, 800000, 17, 9, 0}};
	struct tern_scatter scatter = {.size = sizeof(scatter), .flags = TERN_IMMEDIATE, .local = world->regions[1], .slices = slices};
	tern_op op, arrivals[3];
	tern_peers *peers;

	(void)which;
	assert_int_equal(tern_peers_create(world->engines[1], ranks, remotes, 3, &peers), 0);
	scatter.peers = peers;
	for (int i = 0; i < 3; i++)
		arrivals[i] = expect_immediates(world, (int)ranks[i], slices[i].immediate, 1);
	assert_int_equal(tern_engine_scatter(world->engines[1], &scatter, &op), 0);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(tern_op_wait(world->engines[ranks[i]], arrivals[i], WAIT), 0);
		expect_bytes(world, (int)ranks[i], slices[i].remote_offset, 1, slices[i].local_offset, slices[i].bytes);
	}
	assert_int_equal(tern_op_wait(world->engines[1], op, WAIT), 0);
	scatter.flags = 0; /* empty slices send nothing now */
	assert_int_equal(tern_engine_scatter(world->engines[1], &scatter, &op), 0);
	assert_int_equal(tern_op_wait(world->engines[1], op, WAIT), 0);
	slices[1].remote_offset = WORLD_BYTES;
	slices[1].bytes = 1;
	assert_int_equal(tern_engine_scatter(world->engines[1], &scatter, &op), TERN_ERR_INVALID);
	assert_int_equal(tern_peers_destroy(peers, WAIT), 0);
	assert_int_equal(tern_peers_create(world->engines[1], (uint32_t[]){1, 1}, NULL, 2, &peers), TERN_ERR_INVALID);
	assert_int_equal(tern_peers_create(world->engines[1], ranks + 1, remotes, 1, &peers), TERN_ERR_INVALID);
}

/* ---- barriers and counts ------------------------------------------------------------------------------------------------ */

static void barriers(struct world *world, size_t which)
{
	static const uint32_t ranks[] = {0, 1, 2};
	tern_peers *peers[3];
	tern_op ops[3];

	(void)which;
	for (int r = 0; r < 3; r++)
		assert_int_equal(tern_peers_create(world->engines[r], ranks, NULL, 3, &peers[r]), 0);
	for (uint32_t round = 0; round < 20; round++) {
		int last = (int)(round % 3);

		for (int i = 1; i <= 3; i++) {
			struct tern_barrier barrier = {.size = sizeof(barrier), .immediate = UINT32_MAX - 3 + round, .peers = peers[(last + i) % 3]};

			if (i == 3) /* nobody passes before the last one has come */
				for (int r = 1; r < 3; r++) {
					settle(world, 50);
					assert_int_equal(tern_op_poll(world->engines[(last + r) % 3], ops[(last + r) % 3]), TERN_ERR_TIMEOUT);
				}
			assert_int_equal(tern_engine_barrier(world->engines[(last + i) % 3], &barrier, &ops[(last + i) % 3]), 0);
		}
		for (int r = 0; r < 3; r++)
			assert_int_equal(tern_op_wait(world->engines[r], ops[r], WAIT), 0);
	}
}

static void send_immediate(struct world *world, int from, int to, uint32_t value)
{
	struct tern_write w = write_args(world, from, to, 0, 0, 0);

	w.flags = TERN_IMMEDIATE;
	w.immediate = value;
	assert_int_equal(tern_engine_write(world->engines[from], &w, NULL), 0);
}

static void counts(struct world *world, size_t which)
{
	tern_op first, second, none;
	uint64_t count;

	(void)which;
	for (int i = 0; i < 5; i++) /* before anybody expects them */
		send_immediate(world, i % 3, 0, 77);
	settle(world, 200);
	assert_int_equal(tern_engine_count(world->engines[0], 77, &count), 0);
	assert_int_equal(count, 5);
	first = expect_immediates(world, 0, 77, 4);
	second = expect_immediates(world, 0, 77, 3);
	none = expect_immediates(world, 0, 77, 0); /* waits its turn */
	assert_int_equal(tern_op_wait(world->engines[0], first, WAIT), 0);
	settle(world, 100);
	assert_int_equal(tern_op_poll(world->engines[0], second), TERN_ERR_TIMEOUT);
	assert_int_equal(tern_op_poll(world->engines[0], none), TERN_ERR_TIMEOUT);
	send_immediate(world, 1, 0, 77);
	send_immediate(world, 1, 0, 78);
	send_immediate(world, 2, 0, 77);
	assert_int_equal(tern_op_wait(world->engines[0], second, WAIT), 0);
	assert_int_equal(tern_op_wait(world->engines[0], none, WAIT), 0);
	settle(world, 100);
	assert_int_equal(tern_engine_count(world->engines[0], 77, &count), 0);
	assert_int_equal(count, 0);
	assert_int_equal(tern_engine_count(world->engines[0], 78, &count), 0);
	assert_int_equal(count, 1);
}

/* Many values at once, coming and going in an order of their own: the table closes its gaps. */
static void many_values(void **state)
{
	struct world *world = malloc(sizeof(*world));
	uint64_t count;

	(void)state;
	open_network(world, 0, 2);
	for (uint32_t i = 0; i < 1000; i++) {
		send_immediate(world, 0, 1, i * 0x01000193u);
		settle(world, 1);
	}
	settle(world, 100);
	for (uint32_t i = 0; i < 1000; i++) {
		uint32_t value = i * 7 % 1000 * 0x01000193u;
		tern_op op = expect_immediates(world, 1, value, 1);

		assert_int_equal(tern_op_wait(world->engines[1], op, WAIT), 0);
	}
	for (uint32_t i = 0; i < 1100; i++) { /* more than there is room for */
		send_immediate(world, 0, 1, i);
		settle(world, 1);
	}
	settle(world, 100);
	assert_int_equal(tern_engine_count(world->engines[1], 5, &count), 0);
	assert_int_equal(count, 1);
	assert_int_equal(tern_op_wait(world->engines[1], expect_immediates(world, 1, 5, 1), WAIT), TERN_ERR_CAPACITY);
	close_network(world);
	free(world);
}

/* ---- put with signal ------------------------------------------------------------------------------------------------------- */

#define PUTS 24
#define SIGNALS 900000 /* where the words lie */

struct puts {
	uint64_t bytes[PUTS];
	int nr_seen;
	bool seen[PUTS];
};

/* After each round: whoever sees a signal sees all of its put. */
static void watch_signals(struct world *world)
{
	struct puts *puts = world->watch_ctx;

	for (int i = 0; i < PUTS; i++) {
		int to = 1 + i % 2;
		uint64_t word;

		memcpy(&word, world->memory[to] + SIGNALS + 8 * i, sizeof(word));
		if (word != 1000u + (uint64_t)i)
			continue;
		if (!puts->seen[i])
			expect_bytes(world, to, 10000u * (uint64_t)i, 0, 300u * (uint64_t)i, puts->bytes[i]);
		puts->nr_seen += !puts->seen[i];
		puts->seen[i] = true;
	}
}

static void put_all(struct world *world, enum tern_signal_policy policy, const struct puts *puts, tern_op group)
{
	for (int i = 0; i < PUTS; i++) {
		int to = 1 + i % 2;
		struct tern_put put = {.peer = (uint32_t)to, .local = world->regions[0], .remote = world->remotes[0][to], .local_offset = 300u * (uint64_t)i,
			.remote_offset = 10000u * (uint64_t)i, .bytes = puts->bytes[i], .signal_remote = world->remotes[0][to],
			.signal_offset = SIGNALS + 8u * (uint64_t)i, .signal = policy == TERN_SIGNAL_IMMEDIATE ? 42 : 1000u + (uint64_t)i};

		assert_int_equal(tern_engine_put(world->engines[0], group, &put, 0), 0);
	}
}

static void put_with_policy(struct world *world, size_t which, enum tern_signal_policy policy)
{
	struct puts puts = {.nr_seen = 0};
	bool fenced = policy == TERN_SIGNAL_NIC_FENCE || policy == TERN_SIGNAL_PERSEUS, refused = false;
	uint64_t nr_fences = 0;
	struct tern_put extra = {.peer = 1, .signal_remote = world->remotes[0][1]};
	struct tern_engine_stats stats = {.size = sizeof(stats)};
	tern_op group;

	for (int i = 0; i < PUTS; i++) {
		puts.bytes[i] = i % 5 ? (uint64_t)i * 400 : 0; /* empty ones signal all the same */
		memset(world->memory[1 + i % 2] + 10000u * (uint64_t)i, 0, 10000);
	}
	memset(world->memory[1] + SIGNALS, 0, 8 * PUTS);
	memset(world->memory[2] + SIGNALS, 0, 8 * PUTS);
	world->watch = watch_signals;
	world->watch_ctx = &puts;
	for (int to = 1; to <= 2; to++) {
		uint32_t caps = networks[network_to(which, to)].caps;

		refused = refused || !(caps & (TRANSPORT_FENCE | TRANSPORT_ORDERED));
		nr_fences += !(caps & TRANSPORT_ORDERED);
	}
	if (fenced && refused) {
		assert_int_equal(tern_engine_put_group(world->engines[0], policy, PUTS, NULL, NULL, &group), TERN_ERR_UNSUPPORTED);
		return;
	}
	world->net.nr_fenced = world->other.nr_fenced = 0;
	assert_int_equal(tern_engine_put_group(world->engines[0], policy, PUTS, NULL, NULL, &group), 0);
	put_all(world, policy, &puts, group);
	assert_int_equal(tern_engine_put(world->engines[0], group, &extra, 0), TERN_ERR_STATE);
	assert_int_equal(tern_op_wait(world->engines[0], group, WAIT), 0);
	watch_signals(world);
	assert_int_equal(puts.nr_seen, policy == TERN_SIGNAL_PUT_ONLY || policy == TERN_SIGNAL_IMMEDIATE ? 0 : PUTS);
	for (int i = 0; i < PUTS; i++)
		expect_bytes(world, 1 + i % 2, 10000u * (uint64_t)i, 0, 300u * (uint64_t)i, puts.bytes[i]);
	if (policy == TERN_SIGNAL_IMMEDIATE)
		assert_int_equal(tern_op_wait(world->engines[1], expect_immediates(world, 1, 42, PUTS / 2), WAIT), 0);
	if (policy == TERN_SIGNAL_PERSEUS) /* one fence for each peer */
		assert_int_equal(world->net.nr_fenced + world->other.nr_fenced, nr_fences);
	assert_int_equal(tern_engine_stats(world->engines[0], &stats), 0);
	if (policy == TERN_SIGNAL_COUPLED || policy == TERN_SIGNAL_COUPLED_ALL_PEERS)
		assert_true(stats.drains >= PUTS);
	world->watch = NULL;
}

static void signals(struct world *world, size_t which)
{
	for (int policy = TERN_SIGNAL_PUT_ONLY; policy <= TERN_SIGNAL_IMMEDIATE; policy++)
		put_with_policy(world, which, (enum tern_signal_policy)policy);
}

/* Two groups at once, their puts mixed. */
static void mixed_groups(struct world *world, size_t which)
{
	tern_op groups[2];

	(void)which;
	for (int g = 0; g < 2; g++)
		assert_int_equal(tern_engine_put_group(world->engines[0], TERN_SIGNAL_DECOUPLED, 10, NULL, NULL, &groups[g]), 0);
	for (uint64_t i = 0; i < 20; i++) {
		struct tern_put put = {.peer = 1, .local = world->regions[0], .remote = world->remotes[0][1], .local_offset = i, .remote_offset = i * 100, .bytes = 100,
			.signal_remote = world->remotes[0][1], .signal_offset = SIGNALS + 8 * i, .signal = i};

		assert_int_equal(tern_engine_put(world->engines[0], groups[i % 2], &put, 0), 0);
	}
	assert_int_equal(tern_op_wait(world->engines[0], groups[1], WAIT), 0);
	assert_int_equal(tern_op_wait(world->engines[0], groups[0], WAIT), 0);
	for (uint64_t i = 0; i < 20; i++)
		assert_memory_equal(world->memory[1] + SIGNALS + 8 * i, &i, 8);
}

/* ---- messages ------------------------------------------------------------------------------------------------------------------ */

static void messages(struct world *world, size_t which)
{
	struct tern_engine *from = world->engines[0], *to = world->engines[1];
	uint32_t peer, bytes, value;
	tern_op last = 0;

	(void)which;
	for (uint32_t i = 0; i < 30; i++) { /* more than there are credits */
		struct tern_send send = {.size = sizeof(send), .peer = 1, .data = &i, .bytes = sizeof(i)};

		assert_int_equal(tern_engine_send(from, &send, i == 29 ? &last : NULL), 0);
	}
	settle(world, 300);
	assert_int_equal(tern_op_poll(from, last), TERN_ERR_TIMEOUT);
	for (uint32_t i = 0; i < 30; i++) {
		bytes = 2;
		if (i == 3) { /* too little room: it stays */
			assert_int_equal(tern_engine_recv(to, &peer, &value, &bytes, 20), TERN_ERR_CAPACITY);
			assert_int_equal(bytes, 4);
		}
		bytes = sizeof(value);
		assert_int_equal(tern_engine_recv(to, &peer, &value, &bytes, WAIT), 0);
		assert_int_equal(peer, 0);
		assert_int_equal(bytes, 4);
		assert_int_equal(value, i);
	}
	assert_int_equal(tern_op_wait(from, last, WAIT), 0);
	assert_int_equal(tern_engine_recv(to, &peer, &value, &bytes, 5), TERN_ERR_TIMEOUT);
}

/* ---- limits --------------------------------------------------------------------------------------------------------------------- */

/* A ring that nobody reads fills up; then TERN_TRY and a bounded wait say so, and nothing was begun. */
static void full_ring(struct world *world, size_t which)
{
	struct tern_write w = write_args(world, 0, 1, 0, 0, 8);
	uint32_t begun = 0;
	int rc;

	(void)which;
	world->frozen[0] = true;
	w.flags = TERN_TRY;
	while (!(rc = tern_engine_write(world->engines[0], &w, NULL)))
		begun++;
	assert_int_equal(rc, TERN_ERR_TIMEOUT);
	assert_int_equal(begun, 256);
	world->pace_ns = 10000000;
	w.flags = 0;
	assert_int_equal(tern_engine_write(world->engines[0], &w, NULL), TERN_ERR_TIMEOUT);
	world->pace_ns = 1000;
	world->frozen[0] = false;
	settle(world, 5000);
	assert_true(world->net.nr_writes == begun);
}

static void too_many_operations(struct world *world, size_t which)
{
	struct tern_write w = write_args(world, 0, 1, 0, 0, 8);
	tern_op ops[1024], one_more;

	(void)which;
	w.flags = TERN_TRY;
	for (int i = 0; i < 1024; i++) {
		while (tern_engine_write(world->engines[0], &w, &ops[i]))
			settle(world, 1);
	}
	assert_int_equal(tern_engine_write(world->engines[0], &w, &one_more), TERN_ERR_TIMEOUT);
	assert_non_null(strstr(tern_last_error(), "nr_operations"));
	for (int i = 0; i < 1024; i++)
		if (i % 2)
			assert_int_equal(tern_op_forget(world->engines[0], ops[i]), 0);
		else
			assert_int_equal(tern_op_wait(world->engines[0], ops[i], WAIT), 0);
	settle(world, 300);
	assert_int_equal(tern_engine_write(world->engines[0], &w, &one_more), 0);
	assert_int_equal(tern_op_wait(world->engines[0], one_more, WAIT), 0);
}

static void deregister_while_busy(struct world *world, size_t which)
{
	struct tern_write w = write_args(world, 0, 1, 0, 0, 50000);
	tern_op op;

	(void)which;
	assert_int_equal(tern_engine_write(world->engines[0], &w, &op), 0);
	world->frozen[0] = true; /* time passes, the write does not */
	world->pace_ns = 1000000;
	assert_int_equal(tern_region_deregister(world->regions[0], 5), TERN_ERR_TIMEOUT);
	assert_int_equal(tern_remote_forget(world->remotes[0][1], 0), TERN_ERR_TIMEOUT);
	world->frozen[0] = false;
	world->pace_ns = 1000;
	world_round(world);
	assert_int_equal(tern_region_deregister(world->regions[0], WAIT), 0); /* waits until it is over */
	assert_int_equal(tern_remote_forget(world->remotes[0][1], WAIT), 0);
	assert_int_equal(tern_op_poll(world->engines[0], op), 0);
	expect_bytes(world, 1, 0, 0, 0, 50000);
}

/* ---- the exchange's path ------------------------------------------------------------------------------------------------------------ */

struct claimed {
	uint32_t nr, last;
};

static void take_immediate(void *ctx, uint32_t peer, uint32_t immediate)
{
	struct claimed *claimed = ctx;

	(void)peer;
	claimed->nr++;
	claimed->last = immediate;
}

static void counters_and_claims(struct world *world, size_t which)
{
	static const struct engine_counter zero;
	struct engine_counter each[2] = {zero, zero};
	struct engine_counters counters = {.first = each, .nr = 2};
	struct claimed claimed = {0, 0};
	struct engine_claim claim = {.immediate = take_immediate, .ctx = &claimed};
	uint64_t count;

	(void)which;
	assert_int_equal(engine_counters_open(world->engines[0], &counters), 0);
	assert_int_equal(engine_claim(world->engines[1], 0xab, &claim), 0);
	assert_int_equal(engine_claim(world->engines[1], 0xab, &claim), TERN_ERR_STATE);
	for (uint32_t i = 0; i < 50; i++) {
		struct engine_write w = {.peer = 1, .flags = TERN_IMMEDIATE, .immediate = 0xab000000u + i, .counter = counters.id + i % 2, .local = world->regions[0],
			.remote = world->remotes[0][1], .local_offset = i * 1000, .remote_offset = 400000 + i * 1000, .bytes = i * 20};

		assert_int_equal(engine_write(world->engines[0], &w), 0);
	}
	for (int i = 0; i < 5000 && engine_counter_ended(&each[0]) + engine_counter_ended(&each[1]) < 50; i++)
		world_round(world);
	settle(world, 20);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(each[i].done, 25);
		assert_int_equal(each[i].failed, 0);
	}
	assert_int_equal(claimed.nr, 50);
	for (uint32_t i = 0; i < 50; i++)
		expect_bytes(world, 1, 400000 + i * 1000, 0, i * 1000, i * 20);
	assert_int_equal(engine_unclaim(world->engines[1], 0xab), 0);
	send_immediate(world, 0, 1, 0xab000001u);
	settle(world, 100);
	assert_int_equal(claimed.nr, 50);
	assert_int_equal(tern_engine_count(world->engines[1], 0xab000001u, &count), 0);
	assert_int_equal(count, 1);
	engine_counters_close(world->engines[0], &counters);
}

/* Lists of counters stand side by side; a number that is in none of them is refused, and nothing is counted or sent. */
static void counters_by_number(struct world *world, size_t which)
{
	static const struct engine_counter zero;
	struct engine_counter each[5] = {zero, zero, zero, zero, zero};
	struct engine_counters first = {.first = each, .nr = 2}, second = {.first = each + 2, .nr = 3}, none = {.first = each, .nr = 0};
	struct tern_engine_stats stats = {.size = sizeof(stats)};
	uint32_t numbers[6];

	(void)which;
	assert_int_equal(engine_counters_open(world->engines[0], &none), TERN_ERR_CAPACITY);
	none.nr = UINT32_MAX;
	assert_int_equal(engine_counters_open(world->engines[0], &none), TERN_ERR_CAPACITY);
	assert_int_equal(engine_counters_open(world->engines[0], &first), 0);
	assert_int_equal(engine_counters_open(world->engines[0], &second), 0);
	numbers[0] = first.id + 1;
	numbers[1] = second.id + 2;
	numbers[2] = first.id + 2;
	numbers[3] = second.id + 3;
	numbers[4] = 0;
	numbers[5] = UINT32_MAX - 1;
	for (int i = 0; i < 6; i++) {
		struct engine_write w = {.peer = 1, .flags = TERN_IMMEDIATE, .immediate = 77, .counter = numbers[i]};

		assert_int_equal(engine_write(world->engines[0], &w), 0);
	}
	settle(world, 200);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(each[i].done, i == 1 || i == 4);
		assert_int_equal(each[i].failed, 0);
	}
	assert_int_equal(tern_engine_stats(world->engines[0], &stats), 0);
	assert_int_equal(stats.failed, 4);
	engine_counters_close(world->engines[0], &first);
	engine_counters_close(world->engines[0], &second);
}

#define ON_ALL(name)                          \
	static void name##_on_all(void **state) \
	{                                     \
		(void)state;                  \
		on_all(name);                 \
	}
ON_ALL(writes)
ON_ALL(each_on_its_network)
ON_ALL(nothing_at_all)
ON_ALL(refusals)
ON_ALL(pages)
ON_ALL(scatters)
ON_ALL(barriers)
ON_ALL(counts)
ON_ALL(signals)
ON_ALL(mixed_groups)
ON_ALL(messages)
ON_ALL(full_ring)
ON_ALL(too_many_operations)
ON_ALL(deregister_while_busy)
ON_ALL(counters_and_claims)
ON_ALL(counters_by_number)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(writes_on_all),
		cmocka_unit_test(each_on_its_network_on_all),
		cmocka_unit_test(nothing_at_all_on_all),
		cmocka_unit_test(refusals_on_all),
		cmocka_unit_test(pages_on_all),
		cmocka_unit_test(scatters_on_all),
		cmocka_unit_test(barriers_on_all),
		cmocka_unit_test(counts_on_all),
		cmocka_unit_test(many_values),
		cmocka_unit_test(signals_on_all),
		cmocka_unit_test(mixed_groups_on_all),
		cmocka_unit_test(messages_on_all),
		cmocka_unit_test(full_ring_on_all),
		cmocka_unit_test(too_many_operations_on_all),
		cmocka_unit_test(deregister_while_busy_on_all),
		cmocka_unit_test(counters_and_claims_on_all),
		cmocka_unit_test(counters_by_number_on_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
