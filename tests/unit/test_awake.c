/* SPDX-License-Identifier: Apache-2.0 */
/* For whom there is a core to stay awake on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "gpu/host/awake.h"
#include "tern.h"

#define RANKS 4

static struct core_share ranks[RANKS];

/* Of each of the first nr ranks: so many cores, from this one on; and rank r's begin `apart` cores
 * behind those of rank r - 1. */
static void ranks_on(uint32_t nr, int nr_cores, int apart)
{
	memset(ranks, 0, sizeof(ranks));
	for (uint32_t r = 0; r < nr; r++) {
		ranks[r].here = true;
		for (int core = 0; core < nr_cores; core++)
			CPU_SET((int)r * apart + core, &ranks[r].cores);
	}
}

static void all_share(void **state)
{
	(void)state;
	ranks_on(4, 8, 0);
	assert_true(cores_suffice(ranks, RANKS, 0) && cores_suffice(ranks, RANKS, 3));
	ranks_on(4, 7, 0);
	assert_false(cores_suffice(ranks, RANKS, 0) || cores_suffice(ranks, RANKS, 3));
	ranks_on(1, 1, 0);
	assert_false(cores_suffice(ranks, 1, 0));
	ranks_on(1, 2, 0);
	assert_true(cores_suffice(ranks, 1, 0));
}

static void bound_to_their_own(void **state)
{
	(void)state;
	ranks_on(4, 2, 2);
	assert_true(cores_suffice(ranks, RANKS, 0) && cores_suffice(ranks, RANKS, 3));
	ranks_on(4, 1, 1);
	assert_false(cores_suffice(ranks, RANKS, 0) || cores_suffice(ranks, RANKS, 3));
	ranks_on(4, 3, 2); /* each shares one with the next */
	assert_false(cores_suffice(ranks, RANKS, 0) || cores_suffice(ranks, RANKS, 3));
	ranks_on(4, 5, 4);
	assert_true(cores_suffice(ranks, RANKS, 3));
	assert_false(cores_suffice(ranks, RANKS, 1)); /* with two */
}

/* Ranks of other machines have cores of the same numbers. */
static void on_other_machines(void **state)
{
	(void)state;
	ranks_on(4, 4, 0);
	assert_false(cores_suffice(ranks, RANKS, 1));
	ranks[2].here = ranks[3].here = false;
	assert_true(cores_suffice(ranks, RANKS, 1));
}

static void not_known(void **state)
{
	(void)state;
	ranks_on(4, 0, 0);
	assert_false(cores_suffice(ranks, RANKS, 1));
}

static void as_the_environment_says(void **state)
{
	bool awake = false;

	(void)state;
	ranks_on(4, 2, 0);
	setenv("TERN_PROXY_AWAKE", "1", 1);
	assert_int_equal(proxy_awake(ranks, RANKS, 0, &awake), 0);
	assert_true(awake);
	ranks_on(4, 8, 0);
	setenv("TERN_PROXY_AWAKE", "0", 1);
	assert_int_equal(proxy_awake(ranks, RANKS, 0, &awake), 0);
	assert_false(awake);
	setenv("TERN_PROXY_AWAKE", "yes", 1);
	assert_int_equal(proxy_awake(ranks, RANKS, 0, &awake), TERN_ERR_INVALID);
	unsetenv("TERN_PROXY_AWAKE");
	assert_int_equal(proxy_awake(ranks, RANKS, 0, &awake), 0);
	assert_true(awake);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_share),
		cmocka_unit_test(bound_to_their_own),
		cmocka_unit_test(on_other_machines),
		cmocka_unit_test(not_known),
		cmocka_unit_test(as_the_environment_says),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
