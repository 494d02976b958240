/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's window: shared memory without a name, which only the peers that were handed its
 * descriptor can map. It is gone with the last process that maps it. */
#ifndef TERN_GROUP_WINDOW_H
#define TERN_GROUP_WINDOW_H

#include <stdatomic.h>
#include <stdint.h>

#include "group/group.h"

struct window {
	uint8_t *base;
	uint64_t bytes;
	int fd;                 /* -1 once shared, but where others may join later */
	_Atomic int references; /* ranks of one process share the mapping itself */
};

/* Collective: makes this rank's window of `bytes` zeroed bytes (the same on all ranks) and maps
 * those of all reachable peers: windows[nr_ranks], NULL where there is no path. `round` numbers the
 * group's exchanges, from 1. */
int windows_create(tern_group *group, uint64_t bytes, uint32_t round, struct window **windows);
/* Local: one of this rank's own; one that `rank` has passed, which leaves `fd` the caller's. */
int window_make(uint64_t bytes, struct window **window);
int window_map(int rank, int fd, uint64_t bytes, struct window **window);
/* A reference of one's own, for who may still write there when the exchange is gone. */
void window_keep(struct window *window);
void window_drop(struct window *window);
void windows_destroy(tern_group *group, struct window **windows);

#endif
