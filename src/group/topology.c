/* SPDX-License-Identifier: Apache-2.0 */
#include "group/topology.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static void number_nodes(struct topology *n, const int *node_of)
{
	for (uint32_t r = 0; r < n->nr_ranks; r++) {
		uint32_t first = 0;

		while (node_of[first] != node_of[r])
			first++;
		n->node_of[r] = first == r ? n->nr_nodes++ : n->node_of[first];
		n->index_of[r] = n->size[n->node_of[r]]++;
	}
	for (uint32_t i = 1; i < n->nr_nodes; i++)
		n->first[i] = n->first[i - 1] + n->size[i - 1];
	for (uint32_t r = 0; r < n->nr_ranks; r++)
		n->ranks[n->first[n->node_of[r]] + n->index_of[r]] = r;
}

int topology_init(struct topology *n, const int *node_of, uint32_t nr_ranks)
{
	memset(n, 0, sizeof(*n));
	n->nr_ranks = nr_ranks;
	n->node_of = calloc(nr_ranks, sizeof(*n->node_of));
	n->index_of = calloc(nr_ranks, sizeof(*n->index_of));
	n->size = calloc(nr_ranks, sizeof(*n->size));
	n->first = calloc(nr_ranks, sizeof(*n->first));
	n->ranks = calloc(nr_ranks, sizeof(*n->ranks));
	if (!n->node_of || !n->index_of || !n->size || !n->first || !n->ranks)
		return fail(TERN_ERR_NOMEM, "no memory for a map of %u ranks", nr_ranks);
	number_nodes(n, node_of);
	return 0;
}

void topology_free(struct topology *n)
{
	free(n->node_of);
	free(n->index_of);
	free(n->size);
	free(n->first);
	free(n->ranks);
	memset(n, 0, sizeof(*n));
}

uint32_t topology_gateway(const struct topology *n, uint32_t source, uint32_t node)
{
	return n->ranks[n->first[node] + n->index_of[source] % n->size[node]];
}

/* Ranks of a node of `size` whose index is `index` modulo `modulus`; index < modulus. */
static uint32_t same_index(uint32_t size, uint32_t index, uint32_t modulus)
{
	return size > index ? (size - index - 1) / modulus + 1 : 0;
}

/* Sources on nodes below `below` that share the gateway `index` of `node`. */
static uint32_t channels_below(
	const struct topology *n, uint32_t below, uint32_t node, uint32_t index)
{
	uint32_t nr = 0;

	for (uint32_t i = 0; i < below; i++)
		nr += i == node ? 0 : same_index(n->size[i], index, n->size[node]);
	return nr;
}

uint32_t topology_channel(const struct topology *n, uint32_t source, uint32_t node)
{
	uint32_t index = n->index_of[source];

	return channels_below(n, n->node_of[source], node, index % n->size[node]) +
	       index / n->size[node];
}

/* The gateway with index 0 has the most of its node. */
uint32_t topology_most_channels(const struct topology *n)
{
	uint32_t most = 0;

	for (uint32_t node = 0; node < n->nr_nodes; node++) {
		uint32_t nr = channels_below(n, n->nr_nodes, node, 0);

		most = nr > most ? nr : most;
	}
	return most;
}
