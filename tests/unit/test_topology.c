/* SPDX-License-Identifier: Apache-2.0 */
/* The map of nodes, gateways and channels, against a count by hand over random nodes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "testkit/random.h"
#include "group/topology.h"

static void uneven_nodes(void **state)
{
	static const int node_of[] = {7, 7, 3, 9};
	struct topology n;

	(void)state;
	assert_int_equal(topology_init(&n, node_of, 4), 0);
	assert_int_equal(n.nr_nodes, 3);
	assert_int_equal(n.node_of[3], 2);
	assert_int_equal(n.index_of[1], 1);
	assert_int_equal(topology_gateway(&n, 0, 1), 2); /* a lone rank takes from both */
	assert_int_equal(topology_gateway(&n, 1, 1), 2);
	assert_int_equal(topology_channel(&n, 0, 1), 0);
	assert_int_equal(topology_channel(&n, 1, 1), 1);
	assert_int_equal(topology_channel(&n, 3, 1), 2);
	assert_int_equal(topology_gateway(&n, 2, 0), 0); /* both lone ones come to the first of the
							    pair */
	assert_int_equal(topology_gateway(&n, 3, 0), 0);
	assert_int_equal(topology_channel(&n, 3, 0), 1);
	assert_int_equal(topology_most_channels(&n), 3);
	topology_free(&n);
}

static void one_node(void **state)
{
	static const int node_of[] = {0, 0, 0};
	struct topology n;

	(void)state;
	assert_int_equal(topology_init(&n, node_of, 3), 0);
	assert_int_equal(n.nr_nodes, 1);
	assert_int_equal(topology_most_channels(&n), 0);
	topology_free(&n);
}

/* Each gateway numbers its sources 0, 1, ... in any order, each once; and is on the node, with the
 * source's index where there is one. */
static void check_gateway(const struct topology *n, uint32_t gateway, uint32_t *most)
{
	uint32_t node = n->node_of[gateway], nr = 0;
	uint64_t seen = 0;

	for (uint32_t s = 0; s < n->nr_ranks; s++) {
		if (n->node_of[s] == node)
			continue;
		assert_int_equal(n->node_of[topology_gateway(n, s, node)], node);
		if (n->index_of[s] < n->size[node])
			assert_int_equal(n->index_of[topology_gateway(n, s, node)], n->index_of[s]);
		if (topology_gateway(n, s, node) != gateway)
			continue;
		assert_in_range(topology_channel(n, s, node), 0, n->nr_ranks - 1);
		assert_false(seen >> topology_channel(n, s, node) & 1);
		seen |= 1ull << topology_channel(n, s, node);
		nr++;
	}
	assert_true(seen == (nr ? ~0ull >> (64 - nr) : 0));
	*most = nr > *most ? nr : *most;
}

static void random_nodes(void **state)
{
	uint64_t random = 5;

	(void)state;
	for (int i = 0; i < 500; i++) {
		uint32_t nr = 1 + random_below(&random, 24), of = 1 + random_below(&random, 6),
			 most = 0;
		int node_of[24];
		struct topology n;

		for (uint32_t r = 0; r < nr; r++)
			node_of[r] = (int)random_below(&random, of);
		assert_int_equal(topology_init(&n, node_of, nr), 0);
		for (uint32_t r = 0; r < nr; r++) {
			assert_int_equal(n.ranks[n.first[n.node_of[r]] + n.index_of[r]], r);
			check_gateway(&n, r, &most);
		}
		assert_int_equal(topology_most_channels(&n), most);
		topology_free(&n);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(uneven_nodes),
		cmocka_unit_test(one_node),
		cmocka_unit_test(random_nodes),
	};

	return cmocka_run_group_tests_name("nodes", tests, NULL, NULL);
}
