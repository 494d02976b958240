/* SPDX-License-Identifier: Apache-2.0 */
/* Who a rank is, where it runs, and how others learn of its end. */
#ifndef TERN_GROUP_INTRODUCE_H
#define TERN_GROUP_INTRODUCE_H

#include "group/group.h"

#define NODE_TEXT 160 /* boot id, namespace and node: compared whole */

/* What the ranks tell each other on joining. */
struct introduction {
	uint64_t abi; /* version and pointer width: ranks of different builds cannot share windows
		       */
	int32_t rank, nr_ranks;
	char node[NODE_TEXT];
	uint64_t process[2], pid;
	struct fd_passing_address address;
};

/* Local: this rank's own, from its settings, with the socket that others call. */
int introduce_self(
	tern_group *group, const struct tern_group_config *config, struct introduction *me);

/* A descriptor that tells others of this process's end, in group->own_lifeline. */
int introduce_lifeline(tern_group *group);

int introduce_check(const struct introduction *me, const struct introduction *other, int rank);

/* Where the others are found. */
int introduce_guests(tern_group *group);

/* Collective: all of these, of all. */
int introduce(tern_group *group, const struct tern_group_config *config);

#endif
