/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks are together on which node, and which of them takes rows for its node from which
 * source. Pure functions: all ranks have the same map. */
#ifndef TERN_GROUP_TOPOLOGY_H
#define TERN_GROUP_TOPOLOGY_H

#include <stdint.h>

struct topology {
	uint32_t nr_ranks, nr_nodes;
	uint32_t *node_of;  /* [R] numbered in the order of their lowest ranks */
	uint32_t *index_of; /* [R] within the node, by rank */
	uint32_t *size;     /* [N] ranks on it */
	uint32_t *first;    /* [N] where its ranks begin in `ranks` */
	uint32_t *ranks;    /* [R] by node */
};

/* node_of[nr_ranks]: numbers of any kind, the same for ranks of one node. 0, or TERN_ERR_NOMEM. */
int topology_init(struct topology *topology, const int *node_of, uint32_t nr_ranks);
void topology_free(struct topology *topology);

/* The gateway of a source to another node: its rank with the source's own index, modulo its number
 * of ranks. */
uint32_t topology_gateway(const struct topology *topology, uint32_t source, uint32_t node);

/* The sources of one gateway are numbered: the channel of `source` at its gateway to that node. */
uint32_t topology_channel(const struct topology *topology, uint32_t source, uint32_t node);

/* The most channels that any gateway has. */
uint32_t topology_most_channels(const struct topology *topology);

#endif
