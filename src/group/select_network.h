/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_GROUP_SELECT_NETWORK_H
#define TERN_GROUP_SELECT_NETWORK_H

#include <stddef.h>

#include "group/group.h"

/* The networks that this rank offers; which of them leads to whom, the ranks' engines work out
 * together (engine/offers.h). */
struct choice {
	const char *transport; /* for tern_engine_config.transport */
	const char *device; /* for its devices[0], where a network is named without one; or NULL */
	const char *by;     /* who has set it: "by TERN_TRANSPORT" */
};

/* The setting, else TERN_TRANSPORT, else verbs and ofi. */
void select_networks(const char *setting, struct choice *choice);

/* For people: how each peer is reached, and why so. choice: NULL where no engine was called for. */
void describe_paths(const tern_group *group, const struct choice *choice, char *text, size_t bytes);

/* Adds to the description of a group, unless it says so already: whoever reads it meanwhile sees
 * all of it or nothing. */
void describe_more(tern_group *group, const char *what);

#endif
