/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_CHOOSE_H
#define TERN_CHOOSE_H

#include "group.h"

struct choice {
	const char *transport; /* for tern_engine_config.transport */
	char why[224];
};

/* The setting, else TERN_TRANSPORT, else verbs if all ranks have a port that can be used, else ofi. Collective where neither is set: they have to be set on all ranks or on
 * none. `device`: the one to use, or NULL. */
int choose_transport(tern_group *group, const char *setting, const char *device, struct choice *choice);

#endif
