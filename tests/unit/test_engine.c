/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's operations: writes, pages, slices, barriers, counts and messages, each on all
 * networks of tests/engine/networks.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/engine/networks.h"

/* ---- writes ---------------------------------------------------------------------------------- */

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
			struct tern_write w =
				write_args(world, 0, to, 3, 500000 + 120000 * i % 400000, sizes[i]);
			struct told told = {0};
			tern_op op, arrival = expect_immediates(world, to, 0xffffffffu, 1);

			w.flags = TERN_IMMEDIATE;
			w.immediate = 0xffffffffu;
			w.done = tell;
			w.ctx = &told;
			assert_int_equal(tern_engine_write(world->engines[0], &w, &op), 0);
			assert_int_equal(tern_op_wait(world->engines[to], arrival, WAIT), 0);
			expect_bytes(world, to, w.remote_offset, 0, 3, sizes[i]); /* all is there
										     when the
										     immediate is */
			assert_int_equal(tern_op_wait(world->engines[0], op, WAIT), 0);
			assert_int_equal(told.times, 1);
			assert_int_equal(told.error, 0);
			assert_int_equal(tern_op_poll(world->engines[0], op),
				TERN_ERR_INVALID); /* given back */
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
			assert_int_equal(
				world->net.nr_writes + world->other.nr_writes - net->nr_writes,
				before[1]);
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
#define REFUSED(text, ...)                                                                         \
	do {                                                                                       \
		w = write_args(world, 0, 1, 0, 0, 100);                                            \
		__VA_ARGS__;                                                                       \
		assert_int_equal(tern_engine_write(world->engines[0], &w, &op), TERN_ERR_INVALID); \
		if (!strstr(tern_last_error(), text))                                              \
			fail_msg("\"%s\" does not say \"%s\"", tern_last_error(), text);           \
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

/* ---- pages, slices --------------------------------------------------------------------------- */

static void pages(struct world *world, size_t which)
{
	uint32_t local[40], remote[40];
	struct tern_paged_write w = {.size = sizeof(w),
		.peer = 2,
		.flags = TERN_IMMEDIATE,
		.immediate = 5,
		.nr_pages = 40,
		.local = world->regions[1],
		.remote = world->remotes[1][2],
		.page_bytes = 2000,
		.local_offset = 11,
		.remote_offset = 500000,
		.local_stride = 2100,
		.remote_stride = 3000,
		.local_pages = local,
		.remote_pages = remote};
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
	if ((networks[which].caps & TRANSPORT_ORDERED) && networks[which].nics == 1 &&
		networks[which].depth > 1)
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
	struct tern_slice slices[] = {
		{100, 600000, 30000, 7, 0}, {31000, 700000, 0, 8, 0}, {200, 800000, 17, 9, 0}};
	struct tern_scatter scatter = {.size = sizeof(scatter),
		.flags = TERN_IMMEDIATE,
		.local = world->regions[1],
		.slices = slices};
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
		expect_bytes(world, (int)ranks[i], slices[i].remote_offset, 1,
			slices[i].local_offset, slices[i].bytes);
	}
	assert_int_equal(tern_op_wait(world->engines[1], op, WAIT), 0);
	scatter.flags = 0; /* empty slices send nothing now */
	assert_int_equal(tern_engine_scatter(world->engines[1], &scatter, &op), 0);
	assert_int_equal(tern_op_wait(world->engines[1], op, WAIT), 0);
	slices[1].remote_offset = WORLD_BYTES;
	slices[1].bytes = 1;
	assert_int_equal(tern_engine_scatter(world->engines[1], &scatter, &op), TERN_ERR_INVALID);
	assert_int_equal(tern_peers_destroy(peers, WAIT), 0);
	assert_int_equal(tern_peers_create(world->engines[1], (uint32_t[]){1, 1}, NULL, 2, &peers),
		TERN_ERR_INVALID);
	assert_int_equal(tern_peers_create(world->engines[1], ranks + 1, remotes, 1, &peers),
		TERN_ERR_INVALID);
}

/* ---- barriers and counts --------------------------------------------------------------------- */

static void barriers(struct world *world, size_t which)
{
	static const uint32_t ranks[] = {0, 1, 2};
	tern_peers *peers[3];
	tern_op ops[3];

	(void)which;
	for (int r = 0; r < 3; r++)
		assert_int_equal(
			tern_peers_create(world->engines[r], ranks, NULL, 3, &peers[r]), 0);
	for (uint32_t round = 0; round < 20; round++) {
		int last = (int)(round % 3);

		for (int i = 1; i <= 3; i++) {
			struct tern_barrier barrier = {.size = sizeof(barrier),
				.immediate = UINT32_MAX - 3 + round,
				.peers = peers[(last + i) % 3]};

			if (i == 3) /* nobody passes before the last one has come */
				for (int r = 1; r < 3; r++) {
					settle(world, 50);
					assert_int_equal(
						tern_op_poll(world->engines[(last + r) % 3],
							ops[(last + r) % 3]),
						TERN_ERR_TIMEOUT);
				}
			assert_int_equal(tern_engine_barrier(world->engines[(last + i) % 3],
						 &barrier, &ops[(last + i) % 3]),
				0);
		}
		for (int r = 0; r < 3; r++)
			assert_int_equal(tern_op_wait(world->engines[r], ops[r], WAIT), 0);
	}
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
	assert_int_equal(tern_op_wait(world->engines[1], expect_immediates(world, 1, 5, 1), WAIT),
		TERN_ERR_CAPACITY);
	close_network(world);
	free(world);
}

/* ---- messages -------------------------------------------------------------------------------- */

static void messages(struct world *world, size_t which)
{
	struct tern_engine *from = world->engines[0], *to = world->engines[1];
	uint32_t peer, bytes, value;
	tern_op last = 0;

	(void)which;
	for (uint32_t i = 0; i < 30; i++) { /* more than there are credits */
		struct tern_send send = {
			.size = sizeof(send), .peer = 1, .data = &i, .bytes = sizeof(i)};

		assert_int_equal(tern_engine_send(from, &send, i == 29 ? &last : NULL), 0);
	}
	settle(world, 300);
	assert_int_equal(tern_op_poll(from, last), TERN_ERR_TIMEOUT);
	for (uint32_t i = 0; i < 30; i++) {
		bytes = 2;
		if (i == 3) { /* too little room: it stays */
			assert_int_equal(
				tern_engine_recv(to, &peer, &value, &bytes, 20), TERN_ERR_CAPACITY);
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

ON_ALL(writes)
ON_ALL(each_on_its_network)
ON_ALL(nothing_at_all)
ON_ALL(refusals)
ON_ALL(pages)
ON_ALL(scatters)
ON_ALL(barriers)
ON_ALL(counts)
ON_ALL(messages)

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
		cmocka_unit_test(messages_on_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
