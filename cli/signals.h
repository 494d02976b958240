/* SPDX-License-Identifier: Apache-2.0 */
/* Signals to this process as something to poll, whichever of its threads takes them. A signalfd is
 * not that: tools put threads of their own into a process, which block nothing, and what one of
 * these takes, no signalfd tells. */
#ifndef TERN_CLI_SIGNALS_H
#define TERN_CLI_SIGNALS_H

#include <signal.h>
#include <stdbool.h>

#define NR_SIGNALS 4

struct signals {
	int fd;       /* readable when there is something to take */
	sigset_t set; /* the signals that come here */
	sigset_t old_mask;
	struct sigaction old[NR_SIGNALS];
};

struct signal_taken {
	int signo, code; /* as in siginfo_t */
};

/* SIGCHLD, SIGINT, SIGTERM and SIGHUP, but for what the caller ignores: nohup, and shells that
 * start us in the background, mean it. SIGCHLD may not be ignored: children would vanish unseen.
 * One at a time in a process. 0, or -1 with errno. */
int signals_open(struct signals *signals);
void signals_close(struct signals *signals);

/* False: nothing more has come. */
bool signals_take(const struct signals *signals, struct signal_taken *taken);

/* Around a fork, so that a child cannot tell its parent what was meant for itself. */
void signals_hold(const struct signals *signals);
void signals_resume(const struct signals *signals);

/* In a child that has been held back: its signals are as the parent's were before, and `mask` is.
 */
void signals_leave(const sigset_t *mask);

#endif
