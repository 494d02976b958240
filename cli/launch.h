/* SPDX-License-Identifier: Apache-2.0 */
/* Starts ranks as processes of this machine and looks after them until the last one is gone. */
#ifndef TERN_CLI_LAUNCH_H
#define TERN_CLI_LAUNCH_H

#include "cli/hosts.h"

#include <stdbool.h>

#define LAUNCH_EXIT_ERROR 125   /* the launcher itself failed */
#define LAUNCH_EXIT_TIMEOUT 124 /* timeout_ms is over; as timeout(1) */
#define LAUNCH_EXIT_NOT_RUN 126 /* the program is there and cannot be run; as the shell */
#define LAUNCH_EXIT_NOT_FOUND 127

struct launch_options {
	int nr_ranks;
	bool label;       /* "[rank] " before each line of output */
	bool bind;        /* each rank to its share of the cores */
	bool keep_going;  /* a rank's failure does not end the others */
	bool elastic;     /* a rank that is killed ends nothing, while others end well */
	int restarts;     /* elastic: how often a rank that was killed is started anew */
	bool quiet;       /* say nothing on stderr about ranks that fail */
	int wait_ms;      /* TERN_WAIT_MS of the ranks; -1: theirs */
	int timeout_ms;   /* longest run; 0: no limit */
	int grace_ms;     /* how long the others may go on after a failure: long enough to report it
			     themselves */
	char *const *env; /* nr_env texts K=V */
	int nr_env;
	const struct hosts *hosts; /* that the ranks are spread over; NULL: one */
	const char *name;          /* who speaks on stderr, such as "tern run" */
};

void launch_options_init(struct launch_options *options);

/* Runs argv[0] with argv in nr_ranks processes. Returns 0 when all ended well, else the exit code
 * of the first that failed (128 + signal if it was killed), or one of LAUNCH_EXIT_*. Waits for all
 * children of this process, and takes SIGINT, SIGTERM, SIGHUP and SIGCHLD for itself while it runs:
 * ranks that die with their launcher leave nothing behind. */
int launch_ranks(const struct launch_options *options, char *const argv[]);

#endif
