/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/engine/networks.h"

const struct network networks[] = {
	{"unordered", 0, 0, 5, 1, 64, 0, 1 << 20, 0},
	{"ordered", TRANSPORT_ORDERED, 0, 5, 1, 64, 16, 1 << 20, 0},
	{"fences, again at each post", TRANSPORT_FENCE, 2, 5, 1, 16, 8, 1 << 20, 0},
	{"ordered, again, short writes", TRANSPORT_ORDERED, 1, 3, 1, 8, 0, 1000, 0},
	{"unordered, short writes, one at a time", 0, 1, 2, 1, 1, 0, 777, 0},
	{"3 NICs with fences", TRANSPORT_FENCE, 0, 5, 3, 16, 32, 50000, 0},
	{"4 NICs, unordered, again", 0, 1, 5, 4, 4, 0, 1 << 20, 0},
	{"ordered, beside 3 NICs with fences", TRANSPORT_ORDERED, 0, 5, 1, 64, 16, 1 << 20, 5},
	{"3 NICs with fences, beside ordered, again, short writes", TRANSPORT_FENCE, 0, 5, 3, 16,
		32, 50000, 3},
	{"2 NICs, unordered, beside ordered", 0, 1, 5, 2, 4, 0, 1 << 20, 1},
	{"ordered, beside unordered, short writes, one at a time", TRANSPORT_ORDERED, 0, 5, 1, 64,
		16, 1 << 20, 4},
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

void open_network(struct world *world, size_t which, int nr)
{
	struct loop_settings settings = settings_of(which),
			     other = settings_of(networks[which].beside);
	struct tern_engine_config config;
	struct loop_settings unused;

	world_settings(&unused, &config);
	config.nr_nics = networks[which].nics;
	config.stripe_bytes = 20000;
	if (networks[which].beside)
		world_open_mixed(world, nr, &settings, &other,
			networks[networks[which].beside].nics, 2, &config, true);
	else
		world_open(world, nr, &settings, &config, true);
}

void close_network(struct world *world)
{
	assert_int_equal(world->net.nr_changed, 0);
	assert_int_equal(world->other.nr_changed, 0);
	world_close(world);
}

size_t network_to(size_t which, int rank)
{
	return rank == 2 && networks[which].beside ? networks[which].beside : which;
}

void on_all(void (*test)(struct world *world, size_t which))
{
	for (size_t i = 0; i < NETWORKS; i++) {
		struct world *world = malloc(sizeof(*world));

		open_network(world, i, 3);
		test(world, i);
		close_network(world);
		free(world);
	}
}

void settle(struct world *world, int rounds)
{
	for (int i = 0; i < rounds; i++)
		world_round(world);
}

void expect_bytes(struct world *world, int at, uint64_t offset, int from, uint64_t from_offset,
	uint64_t bytes)
{
	if (!memcmp(world->memory[at] + offset, world_bytes(from) + from_offset, bytes))
		return;
	for (uint64_t i = 0; i < bytes; i++)
		if (world->memory[at][offset + i] != world_byte(from, from_offset + i))
			fail_msg("byte %llu of rank %d is %u, not rank %d's %u",
				(unsigned long long)(offset + i), at, world->memory[at][offset + i],
				from, world_byte(from, from_offset + i));
}

tern_op expect_immediates(struct world *world, int rank, uint32_t value, uint64_t count)
{
	struct tern_expect expect = {.size = sizeof(expect), .immediate = value, .count = count};
	tern_op op;

	assert_int_equal(tern_engine_expect(world->engines[rank], &expect, &op), 0);
	return op;
}

struct tern_write write_args(
	struct world *world, int from, int to, uint64_t local, uint64_t remote, uint64_t bytes)
{
	return (struct tern_write){.size = sizeof(struct tern_write),
		.peer = (uint32_t)to,
		.local = world->regions[from],
		.remote = world->remotes[from][to],
		.local_offset = local,
		.remote_offset = remote,
		.bytes = bytes};
}

void send_immediate(struct world *world, int from, int to, uint32_t value)
{
	struct tern_write w = write_args(world, from, to, 0, 0, 0);

	w.flags = TERN_IMMEDIATE;
	w.immediate = value;
	assert_int_equal(tern_engine_write(world->engines[from], &w, NULL), 0);
}
