/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's process: its sockets and pipes, its environment, its cores. */
#ifndef TERN_CLI_SPAWN_H
#define TERN_CLI_SPAWN_H

#include "cli/launch.h"

#include <signal.h>
#include <sys/types.h>

struct spawned {
	pid_t pid;  /* 0: not running */
	int socket; /* our end, for gatherings */
	int out[2]; /* reading ends of its stdout and stderr, with label */
};

/* 0, or a LAUNCH_EXIT_* code, said on stderr. `mask`: the signals the rank starts with. `restarts`:
 * how often it was started before. */
int spawn_rank(const struct launch_options *options, int rank, int restarts, const sigset_t *mask,
	char *const argv[], struct spawned *spawned);

#endif
