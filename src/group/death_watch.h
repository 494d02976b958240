/* SPDX-License-Identifier: Apache-2.0 */
/* Who cannot look after peers while it waits, as kernels cannot, is told of their death: a thread
 * sleeps until a process of this machine ends. It watches the end of a pipe that each process holds
 * beside the lifeline of group.h, as a pidfd of a process that used a GPU is readable only when
 * the driver has taken all down, some 60 ms later than the pipe's end. One a group. */
#ifndef TERN_GROUP_DEATH_WATCH_H
#define TERN_GROUP_DEATH_WATCH_H

#include <stdint.h>

#include "group/group.h"

struct death_watcher {
	/* Called in the watch's thread, or in death_watch_add's; once or more for each rank. */
	void (*died)(void *ctx, uint32_t rank);
	void *ctx;
	struct death_watcher *next; /* the watch's own */
};

/* Collective, the first time; later calls do nothing. Not for groups that a scheduler runs. */
int death_watch_open(tern_group *group);
void death_watch_close(tern_group *group);

/* It has seen the end of that rank's process: no thread of it runs. Any thread. */
bool death_watch_saw(const tern_group *group, uint32_t rank);

/* From now on; of those that have died already, too. It has to live until it is removed. */
void death_watch_add(tern_group *group, struct death_watcher *watcher);
/* When it returns, the watcher is not called and will not be. */
void death_watch_remove(tern_group *group, struct death_watcher *watcher);

#endif
