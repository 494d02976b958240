/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the engine on networks that are ordered or not, have fences or not, refuse each post, or
 * cut writes into pieces; stepped in the test's own thread. With cmocka: what does not hold fails
 * the test. */
#ifndef TERN_TESTS_ENGINE_NETWORKS_H
#define TERN_TESTS_ENGINE_NETWORKS_H

#include "tests/engine/world.h"

#define WAIT 1000 /* ms of the world's time */

struct network {
	const char *name;
	uint32_t caps, again, slowest, nics, depth, inline_bytes;
	uint64_t write_bytes;
	uint32_t beside; /* 0: none; else which network leads from and to rank 2 in its place */
};
extern const struct network networks[];

void open_network(struct world *world, size_t which, int nr);
void close_network(struct world *world);
size_t network_to(size_t which, int rank); /* that from rank 0 to this one */

/* Runs a test on each network, with three ranks. */
void on_all(void (*test)(struct world *world, size_t which));
#define ON_ALL(name)                                                                               \
	static void name##_on_all(void **state)                                                    \
	{                                                                                          \
		(void)state;                                                                       \
		on_all(name);                                                                      \
	}

void settle(struct world *world, int rounds);
/* In the memory of rank `at` lies what rank `from` began with. */
void expect_bytes(struct world *world, int at, uint64_t offset, int from, uint64_t from_offset,
	uint64_t bytes);
tern_op expect_immediates(struct world *world, int rank, uint32_t value, uint64_t count);
struct tern_write write_args(
	struct world *world, int from, int to, uint64_t local, uint64_t remote, uint64_t bytes);
void send_immediate(struct world *world, int from, int to, uint32_t value);

#endif
