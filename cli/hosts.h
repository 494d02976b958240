/* SPDX-License-Identifier: Apache-2.0 */
/* Several "machines" on one: ranks in network namespaces that are joined by a bridge, or, where
 * those are not permitted, told apart by name alone. Ranks of different nodes share no memory with
 * each other through Tern. */
#ifndef TERN_CLI_HOSTS_H
#define TERN_CLI_HOSTS_H

#include <stdbool.h>

#define HOSTS_MOST 16

struct hosts {
	int nr, nr_links; /* eth0, eth1, ... of each node, each link with a bridge of its own */
	bool namespaces;
	int id; /* makes the names of this launcher's namespaces its own */
};

#define HOSTS_MOST_LINKS 4

/* Makes nr nodes; namespaces only if wanted and permitted, said on stderr by `name` if they are
 * wanted and not permitted. 0, or -1 with the cause on stderr. */
int hosts_open(struct hosts *hosts, int nr, int nr_links, bool namespaces, const char *name);
void hosts_close(const struct hosts *hosts);

/* Ranks in blocks, as hosts of a job are filled. */
int hosts_of_rank(const struct hosts *hosts, int rank, int nr_ranks);

/* In a rank's process, before it runs: enters the node and sets TERN_NODE and, in a namespace,
 * TERN_NODE_ADDRESS: that of eth0. 0 or -1 with errno. */
int hosts_enter(const struct hosts *hosts, int node);

#endif
