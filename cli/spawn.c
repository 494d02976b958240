/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/spawn.h"
#include "cli/signals.h"
#include "group/boot/launch_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Everything that is opened for one rank: [0] is ours, [1] is the rank's. */
struct ends {
	int socket[2];
	int out[2];
	int err[2];
	int failure[2]; /* closed by a successful exec; else brings its errno */
};

static void close_both(int *pair)
{
	for (int i = 0; i < 2; i++)
		if (pair[i] >= 0)
			close(pair[i]);
	pair[0] = pair[1] = -1;
}

static void close_ends(struct ends *e)
{
	close_both(e->socket);
	close_both(e->out);
	close_both(e->err);
	close_both(e->failure);
}

static int open_ends(const struct launch_options *options, struct ends *e)
{
	*e = (struct ends){{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}};
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, e->socket) ||
		pipe2(e->failure, O_CLOEXEC))
		return -1;
	if (options->label && (pipe2(e->out, O_CLOEXEC) || pipe2(e->err, O_CLOEXEC)))
		return -1;
	return 0;
}

/* ---- in the child ---------------------------------------------------------------------------- */

static void set_number(const char *name, int value)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", value);
	setenv(name, text, 1);
}

static void set_environment(const struct launch_options *options, int rank, int restarts, int fd)
{
	for (int i = 0; i < options->nr_env; i++)
		putenv(options->env[i]);
	if (options->wait_ms >= 0)
		set_number(LAUNCH_ENV_WAIT_MS, options->wait_ms);
	set_number(LAUNCH_ENV_RANK, rank);
	set_number(LAUNCH_ENV_NR_RANKS, options->nr_ranks);
	set_number(LAUNCH_ENV_FD, fd);
	if (options->restarts)
		set_number(LAUNCH_ENV_RESTARTS, restarts);
	else
		unsetenv(LAUNCH_ENV_RESTARTS); /* of a launcher around this one */
}

/* The k-th core that the launcher may use. */
static int nth_core(const cpu_set_t *allowed, int k)
{
	for (int core = 0; core < CPU_SETSIZE; core++)
		if (CPU_ISSET(core, allowed) && k-- == 0)
			return core;
	return 0;
}

/* Neighbouring ranks get neighbouring cores: an equal share each, or one core for several ranks. */
static void bind_to_cores(const struct launch_options *options, int rank)
{
	cpu_set_t allowed, mine;
	int nr_cores, first, end;

	if (sched_getaffinity(0, sizeof(allowed), &allowed))
		return;
	nr_cores = CPU_COUNT(&allowed);
	first = (int)((long)rank * nr_cores / options->nr_ranks);
	end = (int)((long)(rank + 1) * nr_cores / options->nr_ranks);
	CPU_ZERO(&mine);
	for (int k = first; k == first || k < end; k++)
		CPU_SET(nth_core(&allowed, k), &mine);
	sched_setaffinity(0, sizeof(mine), &mine);
}

/* One rank at most may read what is typed; the others find an end of file. */
static void set_files(const struct ends *e, int rank)
{
	int nothing = rank ? open("/dev/null", O_RDONLY) : -1;

	if (nothing >= 0) {
		dup2(nothing, STDIN_FILENO);
		close(nothing);
	}
	if (e->out[1] >= 0) {
		dup2(e->out[1], STDOUT_FILENO);
		dup2(e->err[1], STDERR_FILENO);
	}
	fcntl(e->socket[1], F_SETFD, 0); /* the only one of them that survives exec */
}

static _Noreturn void be_rank(const struct launch_options *options, int rank, int restarts,
	pid_t launcher, const sigset_t *mask, const struct ends *e, char *const argv[])
{
	ssize_t n;
	int cause;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != launcher) /* it died before that took effect */
		_exit(LAUNCH_EXIT_ERROR);
	set_files(e, rank);
	set_environment(options, rank, restarts, e->socket[1]);
	if (options->bind)
		bind_to_cores(options, rank);
	signals_leave(mask);
	if (!options->hosts || !hosts_enter(options->hosts,
				       hosts_of_rank(options->hosts, rank, options->nr_ranks)))
		execvp(argv[0], argv);
	cause = errno;
	n = write(e->failure[1], &cause, sizeof(cause));
	_exit(n == sizeof(cause) ? LAUNCH_EXIT_NOT_FOUND : LAUNCH_EXIT_ERROR);
}

/* ---- in the launcher ------------------------------------------------------------------------- */

/* errno of the child's exec; 0: the program runs. */
static int exec_failure(struct ends *e)
{
	int cause = 0;
	ssize_t n;

	close(e->failure[1]);
	e->failure[1] = -1;
	do
		n = read(e->failure[0], &cause, sizeof(cause));
	while (n < 0 && errno == EINTR);
	return n == sizeof(cause) ? cause : 0;
}

static int say_failure(
	const struct launch_options *options, int rank, const char *what, int cause, int code)
{
	fprintf(stderr, "%s: rank %d: %s: %s\n", options->name, rank, what, strerror(cause));
	return code;
}

int spawn_rank(const struct launch_options *options, int rank, int restarts, const sigset_t *mask,
	char *const argv[], struct spawned *spawned)
{
	pid_t launcher = getpid(), pid;
	struct ends e;
	int cause;

	if (open_ends(options, &e)) {
		cause = errno;
		close_ends(&e);
		return say_failure(options, rank, "socket or pipe", cause, LAUNCH_EXIT_ERROR);
	}
	pid = fork();
	if (pid == 0)
		be_rank(options, rank, restarts, launcher, mask, &e, argv);
	cause = pid < 0 ? errno : exec_failure(&e);
	if (cause) {
		close_ends(&e);
		if (pid < 0)
			return say_failure(options, rank, "fork", cause, LAUNCH_EXIT_ERROR);
		waitpid(pid, NULL, 0);
		return say_failure(options, rank, argv[0], cause,
			cause == ENOENT ? LAUNCH_EXIT_NOT_FOUND : LAUNCH_EXIT_NOT_RUN);
	}
	*spawned = (struct spawned){.pid = pid, .socket = e.socket[0], .out = {e.out[0], e.err[0]}};
	e.socket[0] = e.out[0] = e.err[0] = -1;
	close_ends(&e);
	return 0;
}
