/* SPDX-License-Identifier: Apache-2.0 */
/* Several "machines" on one: ranks in network namespaces that are joined by a bridge, or, where those are not permitted, told apart by name alone. Ranks of
 * different nodes share no memory with each other through Tern. */
#ifndef TERN_CLI_NODES_H
#define TERN_CLI_NODES_H

#include <stdbool.h>

#define NODES_MOST 16

struct nodes {
	int nr, nr_links; /* eth0, eth1, ... of each node, each link with a bridge of its own */
	bool namespaces;
	int id; /* makes the names of this launcher's namespaces its own */
};

#define NODES_MOST_LINKS 4

/* Makes nr nodes; namespaces only if wanted and permitted, said on stderr by `name` if they are wanted and not permitted. 0, or -1 with the cause on stderr. */
int nodes_open(struct nodes *nodes, int nr, int nr_links, bool namespaces, const char *name);
void nodes_close(const struct nodes *nodes);

/* Ranks in blocks, as hosts of a job are filled. */
int nodes_of_rank(const struct nodes *nodes, int rank, int nr_ranks);

/* In a rank's process, before it runs: enters the node and sets TERN_NODE and, in a namespace, TERN_NODE_ADDRESS: that of eth0. 0 or -1 with errno. */
int nodes_enter(const struct nodes *nodes, int node);

#endif
