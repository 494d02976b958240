/* SPDX-License-Identifier: Apache-2.0 */
/* What the exchange's path asks of the engine beside the public calls: counters and claims; on all
 * networks of tests/engine/networks.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/engine/networks.h"

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
		struct engine_write w = {.peer = 1,
			.flags = TERN_IMMEDIATE,
			.immediate = 0xab000000u + i,
			.counter = counters.id + i % 2,
			.local = world->regions[0],
			.remote = world->remotes[0][1],
			.local_offset = i * 1000,
			.remote_offset = 400000 + i * 1000,
			.bytes = i * 20};

		assert_int_equal(engine_write(world->engines[0], &w), 0);
	}
	for (int i = 0;
		i < 5000 && engine_counter_ended(&each[0]) + engine_counter_ended(&each[1]) < 50;
		i++)
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

/* Lists of counters stand side by side; a number that is in none of them is refused, and nothing is
 * counted or sent. */
static void counters_by_number(struct world *world, size_t which)
{
	static const struct engine_counter zero;
	struct engine_counter each[5] = {zero, zero, zero, zero, zero};
	struct engine_counters first = {.first = each, .nr = 2},
			       second = {.first = each + 2, .nr = 3},
			       none = {.first = each, .nr = 0};
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
		struct engine_write w = {
			.peer = 1, .flags = TERN_IMMEDIATE, .immediate = 77, .counter = numbers[i]};

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

ON_ALL(counters_and_claims)
ON_ALL(counters_by_number)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(counters_and_claims_on_all),
		cmocka_unit_test(counters_by_number_on_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
