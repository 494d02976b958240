/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that are noise, and peers that break the rules: descriptors of other networks, more
 * messages than there are credits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "testkit/random.h"
#include "engine/inside.h"
#include "engine/peer.h"
#include <cmocka.h>

#include "tests/engine/fates.h"
#include "tests/exchange/ranks.h"

/* Whoever can write the ring can write anything into it. Numbers are near what is valid, so that
 * some is. */
static void noise_in_the_ring(void **state)
{
	struct world *world = open_world(3, TRANSPORT_FENCE, 0);
	uint64_t random = 5;

	(void)state;
	for (int i = 0; i < scaled(20000); i++) {
		struct command c = {.kind = (uint8_t)random_below(&random, 2)
						    ? COMMAND_WRITE
						    : (uint8_t)random_below(&random, 256),
			.flags = (uint8_t)random_below(&random, 4),
			.peer = random_below(&random, 5),
			.completion =
				random_below(&random, 3) ? NONE : random_below(&random, 70000),
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
	settle_ns(world, 1000000);
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
	settle_ns(world, 100000);
	assert_int_equal(tern_engine_peer(world->engines[0], 1), TERN_ERR_PROTOCOL);
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
	assert_int_equal(
		tern_engine_import(world->engines[0], &descriptor, &remote), TERN_ERR_MISMATCH);
	assert_non_null(strstr(tern_last_error(), "rank 2's descriptor has no key for NIC 1"));
	close_world(world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(noise_in_the_ring),
		cmocka_unit_test(too_many_messages),
		cmocka_unit_test(descriptor_without_its_key),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
