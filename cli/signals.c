/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static const int numbers[NR_SIGNALS] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};
static int pipe_ends[2] = {-1, -1}; /* a handler is told nothing but the signal */

/* A pipe that is full tells enough: the reader looks at all children, and at all that is in the
 * pipe. */
static void note(int signo, siginfo_t *info, void *context)
{
	const struct signal_taken taken = {.signo = signo, .code = info->si_code};
	int saved = errno;
	ssize_t n = write(pipe_ends[1], &taken, sizeof(taken));

	(void)n;
	(void)context;
	errno = saved;
}

static bool is_left_ignored(const struct signals *signals, int i)
{
	return numbers[i] != SIGCHLD && signals->old[i].sa_handler == SIG_IGN;
}

int signals_open(struct signals *signals)
{
	struct sigaction action = {
		.sa_sigaction = note, .sa_flags = SA_SIGINFO | SA_RESTART | SA_NOCLDSTOP};

	if (pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK))
		return -1;
	signals->fd = pipe_ends[0];
	sigemptyset(&signals->set);
	sigfillset(&action.sa_mask);
	for (int i = 0; i < NR_SIGNALS; i++) {
		sigaction(numbers[i], NULL, &signals->old[i]);
		if (is_left_ignored(signals, i))
			continue;
		sigaddset(&signals->set, numbers[i]);
		sigaction(numbers[i], &action, NULL);
	}
	return sigprocmask(SIG_UNBLOCK, &signals->set, &signals->old_mask);
}

void signals_close(struct signals *signals)
{
	sigprocmask(SIG_SETMASK, &signals->old_mask, NULL);
	for (int i = 0; i < NR_SIGNALS; i++)
		sigaction(numbers[i], &signals->old[i], NULL);
	for (int i = 0; i < 2; i++) {
		close(pipe_ends[i]);
		pipe_ends[i] = -1;
	}
}

bool signals_take(const struct signals *signals, struct signal_taken *taken)
{
	return read(signals->fd, taken, sizeof(*taken)) == sizeof(*taken);
}

void signals_hold(const struct signals *signals)
{
	sigprocmask(SIG_BLOCK, &signals->set, NULL);
}

void signals_resume(const struct signals *signals)
{
	sigprocmask(SIG_UNBLOCK, &signals->set, NULL);
}

void signals_leave(const sigset_t *mask)
{
	struct sigaction action;

	for (int i = 0; i < NR_SIGNALS; i++)
		if (!sigaction(numbers[i], NULL, &action) && action.sa_sigaction == note)
			signal(numbers[i], SIG_DFL);
	sigprocmask(SIG_SETMASK, mask, NULL);
}
