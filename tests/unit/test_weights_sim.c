/* SPDX-License-Identifier: Apache-2.0 */
/* Stores of weights on networks that spoil pages, lose ranks, reorder and stall: what a place is
 * said to hold it holds, byte for byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/engine/weights_world.h"
#include "tests/exchange/ranks.h"

static struct weights_world run_seeds(uint64_t first, int nr, uint32_t spoil, int kills)
{
	struct weights_world w = {.spoil_per_mille = spoil, .nr_moves = 12, .kills = kills};

	for (int i = 0; i < scaled(nr); i++) {
		w.seed = first + (uint64_t)i;
		weights_world_run(&w);
		if (*w.failure)
			fail_msg("%s", w.failure);
		if (w.nr_wrong)
			fail_msg("seed %llu: a place holds other bytes than it says",
				(unsigned long long)w.seed);
	}
	return w;
}

static void in_peace(void **state)
{
	struct weights_world w = run_seeds(1, 30, 0, 0);

	(void)state;
	assert_true(w.nr_whole > (uint64_t)scaled(100));
	assert_int_equal(w.nr_lost, 0);
	assert_int_equal(w.nr_spoilt, 0);
}

static void pages_are_spoilt(void **state)
{
	struct weights_world w = run_seeds(1000, 30, 100, 0);

	(void)state;
	assert_true(w.nr_whole > (uint64_t)scaled(100));
	assert_true(w.nr_spoilt > (uint64_t)scaled(50) && w.nr_wrong_pages > (uint64_t)scaled(50));
}

static void a_rank_dies(void **state)
{
	struct weights_world w = run_seeds(2000, 60, 0, 1);

	(void)state;
	assert_true(w.nr_whole > (uint64_t)scaled(100));
	assert_true(w.nr_left > (uint64_t)scaled(10));
}

static void both(void **state)
{
	struct weights_world w = run_seeds(3000, 30, 50, 1);

	(void)state;
	assert_true(w.nr_whole > (uint64_t)scaled(100));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(in_peace),
		cmocka_unit_test(pages_are_spoilt),
		cmocka_unit_test(a_rank_dies),
		cmocka_unit_test(both),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
