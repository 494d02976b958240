/* SPDX-License-Identifier: Apache-2.0 */
#include "testkit/measure.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void test_percentile(void **state)
{
	double sorted[101];
	int i;

	(void)state;
	for (i = 0; i <= 100; i++)
		sorted[i] = i;
	assert_true(percentile(sorted, 101, 0.5) == 50);
	assert_true(percentile(sorted, 101, 0.99) == 99);
	assert_true(percentile(sorted, 101, 1) == 100);
	assert_true(percentile(sorted, 1, 0.99) == 0);
	assert_true(percentile(sorted + 7, 1, 0.5) == 7);
	assert_true(percentile(sorted, 0, 0.5) == 0);
}

static void test_slowest_rank_of_each_round(void **state)
{
	static const double all[] = {1, 9, 3, /* rank 0 */ 2, 4, 8 /* rank 1 */};
	double scratch[3];
	struct spread spread;

	(void)state;
	spread_of_slowest(all, 2, 3, scratch, &spread);
	assert_true(spread.min == 2 && spread.p50 == 8 && spread.max == 9 && spread.p99 == 9);
	assert_true(spread.mean == 19.0 / 3);
}

static int copy_twice(void *ctx, const void *mine, void *all, size_t bytes)
{
	(void)ctx;
	memcpy(all, mine, bytes);
	memcpy((char *)all + bytes, mine, bytes);
	return 0;
}

static void test_gather(void **state)
{
	struct times times;
	struct spread spreads[NR_MEASURES];

	(void)state;
	assert_int_equal(times_create(&times, 3), 0);
	times.us[MEASURE_PAIR][1] = 5;
	assert_int_equal(measure_gather(&times, 2, copy_twice, NULL, spreads), 0);
	assert_true(spreads[MEASURE_PAIR].max == 5 && spreads[MEASURE_PAIR].p50 == 0 &&
		    spreads[MEASURE_DISPATCH].max == 0);
	times_destroy(&times);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_percentile),
		cmocka_unit_test(test_slowest_rank_of_each_round),
		cmocka_unit_test(test_gather),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
