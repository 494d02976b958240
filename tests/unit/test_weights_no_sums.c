/* SPDX-License-Identifier: Apache-2.0 */
/* The same with sums that see nothing, in place of the library's: wrong bytes have to be found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/engine/weights_world.h"
#include "weights/sum.h"

uint64_t weights_sum(const void *data, uint64_t bytes)
{
	(void)data;
	return bytes;
}

static void wrong_bytes_are_found(void **state)
{
	struct weights_world w = {.spoil_per_mille = 100, .nr_moves = 12};

	(void)state;
	for (w.seed = 1000; w.seed < 1010; w.seed++)
		weights_world_run(&w);
	assert_true(w.nr_spoilt > 0);
	assert_true(w.nr_wrong > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wrong_bytes_are_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
