/* SPDX-License-Identifier: Apache-2.0 */
/* NVLink domains: devices that reach each other's memory: no GPU is needed to divide them. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#include "testkit/random.h"
#include "gpu/host/reach.h"

#define MOST 16

static void assert_nvlink_domains(
	const char *links, const uint32_t *node_of, uint32_t nr, const int *expected)
{
	uint8_t all[MOST * MOST];
	int nvlink_domain_of[MOST];

	for (uint32_t i = 0; i < nr * nr; i++)
		all[i] = (uint8_t)(links[i] - '0');
	device_nvlink_domains(all, node_of, nr, nvlink_domain_of);
	assert_memory_equal(nvlink_domain_of, expected, nr * sizeof(int));
}

static void by_hand(void **state)
{
	static const uint32_t one[4], two[4] = {0, 1, 0, 1};

	(void)state;
	assert_nvlink_domains("2222"
			      "2222"
			      "2222"
			      "2222",
		one, 4, (const int[]){0, 0, 0, 0});
	assert_nvlink_domains("2222"
			      "2222"
			      "2222"
			      "2222",
		two, 4, (const int[]){0, 1, 0, 1});
	assert_nvlink_domains("2100"
			      "1200"
			      "0021"
			      "0012",
		one, 4, (const int[]){0, 0, 2, 2});
	assert_nvlink_domains("2000"
			      "0200"
			      "0020"
			      "0002",
		one, 4, (const int[]){0, 1, 2, 3});
	/* Not transitive: 0 reaches 1, and 1 reaches 2. One way is not enough. */
	assert_nvlink_domains("210"
			      "121"
			      "012",
		one, 3, (const int[]){0, 0, 2});
	assert_nvlink_domains("22"
			      "02",
		one, 2, (const int[]){0, 1});
}

/* All of an nvlink_domain are of one node and reach each other, and its number is its lowest rank;
 * devices that all reach each other stay together. */
static void any_links(void **state)
{
	uint8_t links[MOST * MOST];
	uint32_t node_of[MOST];
	int nvlink_domain_of[MOST];

	(void)state;
	for (uint64_t seed = 1; seed < 2000; seed++) {
		uint64_t r = seed;
		uint32_t nr = 1 + random_below(&r, MOST), nodes = 1 + random_below(&r, 3),
			 few = random_below(&r, 4);

		for (uint32_t i = 0; i < nr * nr; i++)
			links[i] =
				(uint8_t)(random_below(&r, 8) < few ? 0 : 1 + random_below(&r, 2));
		for (uint32_t i = 0; i < nr; i++)
			node_of[i] = random_below(&r, nodes);
		device_nvlink_domains(links, node_of, nr, nvlink_domain_of);
		for (uint32_t a = 0; a < nr; a++) {
			assert_true(nvlink_domain_of[a] >= 0 && nvlink_domain_of[a] <= (int)a &&
				    nvlink_domain_of[nvlink_domain_of[a]] == nvlink_domain_of[a]);
			for (uint32_t b = 0; b < a; b++) {
				bool same = nvlink_domain_of[a] == nvlink_domain_of[b];

				assert_true(
					!same || (node_of[a] == node_of[b] && links[a * nr + b] &&
							 links[b * nr + a]));
				assert_true(few || same == (node_of[a] == node_of[b]));
			}
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(by_hand),
		cmocka_unit_test(any_links),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
