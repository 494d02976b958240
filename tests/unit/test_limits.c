/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's limits: a full ring, no more operations, memory that is still in use; on all
 * networks of tests/engine/networks.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#include "tests/engine/networks.h"

/* A ring that nobody reads fills up; then TERN_TRY and a bounded wait say so, and nothing was
 * begun. */
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
	assert_int_equal(tern_region_deregister(world->regions[0], WAIT), 0); /* waits until it is
										 over */
	assert_int_equal(tern_remote_forget(world->remotes[0][1], WAIT), 0);
	assert_int_equal(tern_op_poll(world->engines[0], op), 0);
	expect_bytes(world, 1, 0, 0, 0, 50000);
}

ON_ALL(full_ring)
ON_ALL(too_many_operations)
ON_ALL(deregister_while_busy)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(full_ring_on_all),
		cmocka_unit_test(too_many_operations_on_all),
		cmocka_unit_test(deregister_while_busy_on_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
