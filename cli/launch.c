/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/launch.h"
#include "cli/gather.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "cli/spawn.h"
#include "group/boot/launch_wire.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GRACE_MS 5000      /* default of grace_ms */
#define KILL_AFTER_MS 2000 /* from SIGTERM to SIGKILL */

enum stage { /* of ending the job before its ranks end by themselves */
	STAGE_RUN,
	STAGE_GRACE, /* the others may still notice and report */
	STAGE_TERM,  /* SIGTERM is sent */
	STAGE_KILL   /* SIGKILL is sent */
};

struct job {
	const struct launch_options *options;
	char *const *argv;
	struct spawned *ranks;
	int *restarts;          /* of each rank */
	struct output *outputs; /* two a rank, with label */
	struct pollfd *polls;
	struct gather *gather;
	struct signals signals;
	int nr_alive;
	int exit_code;
	int killed_code; /* elastic: of the first rank that was killed, 0: none */
	bool any_ended_well;
	int interrupted; /* the signal that ended the job, 0: none */
	enum stage stage;
	int64_t stage_end_ms; /* when the next stage begins; of STAGE_RUN: the job's time limit. 0:
				 never */
	bool sweep;           /* all children at the end are the ranks' */
};

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static __attribute__((format(printf, 2, 3))) void say(const struct job *j, const char *format, ...)
{
	char text[512];
	va_list args;

	if (j->options->quiet)
		return;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fprintf(stderr, "%s: %s\n", j->options->name, text);
}

/* ---- ending the job -------------------------------------------------------------------------- */

static void signal_ranks(struct job *j, int signal)
{
	for (int r = 0; r < j->options->nr_ranks; r++)
		if (j->ranks[r].pid > 0)
			kill(j->ranks[r].pid, signal);
}

static void enter_stage(struct job *j, enum stage stage, int for_ms)
{
	j->stage = stage;
	j->stage_end_ms = for_ms < 0 ? 0 : now_ms() + for_ms;
	if (stage == STAGE_TERM)
		signal_ranks(j, SIGTERM);
	if (stage == STAGE_KILL)
		signal_ranks(j, SIGKILL);
}

static void say_who_is_left(struct job *j, const char *why)
{
	char list[256] = "";
	size_t at = 0;

	for (int r = 0; r < j->options->nr_ranks && at < sizeof(list) - 16; r++)
		if (j->ranks[r].pid > 0)
			at += (size_t)snprintf(
				list + at, sizeof(list) - at, "%s%d", at ? ", " : "", r);
	say(j, "%s; ending rank %s%s", why, list, at < sizeof(list) - 16 ? "" : " ...");
}

static void end_stage(struct job *j)
{
	char why[128];

	switch (j->stage) {
	case STAGE_RUN:
		snprintf(why, sizeof(why), "%g s are over", j->options->timeout_ms / 1000.0);
		say_who_is_left(j, why);
		j->exit_code = LAUNCH_EXIT_TIMEOUT;
		enter_stage(j, STAGE_TERM, KILL_AFTER_MS);
		break;
	case STAGE_GRACE:
		snprintf(why, sizeof(why), "%g s have passed since the %s",
			j->options->grace_ms / 1000.0, j->interrupted ? "signal" : "failure");
		say_who_is_left(j, why);
		enter_stage(j, STAGE_TERM, KILL_AFTER_MS);
		break;
	case STAGE_TERM:
	case STAGE_KILL:
		enter_stage(j, STAGE_KILL, -1);
		break;
	}
}

/* ---- what happens ---------------------------------------------------------------------------- */

static void describe_end(int status, char *how, size_t size)
{
	if (WIFSIGNALED(status))
		snprintf(how, size, "died (signal %d, %s)", WTERMSIG(status),
			strsignal(WTERMSIG(status)));
	else
		snprintf(how, size, "ended (exit code %d)", WEXITSTATUS(status));
}

static int spawn(struct job *j, int rank)
{
	int rc;

	signals_hold(&j->signals);
	rc = spawn_rank(j->options, rank, j->restarts[rank], &j->signals.old_mask, j->argv,
		&j->ranks[rank]);
	signals_resume(&j->signals);
	j->nr_alive += !rc;
	if (!rc && j->outputs) {
		output_init(&j->outputs[2 * rank], j->ranks[rank].out[0], STDOUT_FILENO, rank);
		output_init(&j->outputs[2 * rank + 1], j->ranks[rank].out[1], STDERR_FILENO, rank);
	}
	return rc;
}

/* It joins the others by itself; where one has ended well they are about to end. */
static void restart(struct job *j, int rank)
{
	if (j->restarts[rank] == j->options->restarts || j->any_ended_well)
		return;
	for (int i = 0; j->outputs && i < 2; i++)
		if (j->outputs[2 * rank + i].fd >= 0)
			output_end(&j->outputs[2 * rank + i]);
	j->restarts[rank]++;
	if (spawn(j, rank))
		return;
	gather_rank_restarted(j->gather, rank, j->ranks[rank].socket);
	say(j, "rank %d is started anew, %d of %d times", rank, j->restarts[rank],
		j->options->restarts);
}

/* Elastic: killed, or in the place of one that was, and too late for the others. */
static bool is_no_failure(const struct job *j, int rank, int status)
{
	return j->options->elastic && j->stage == STAGE_RUN &&
	       (WIFSIGNALED(status) || (j->restarts[rank] && WEXITSTATUS(status)));
}

static void rank_ended(struct job *j, int rank, int status)
{
	int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
	char how[128];

	describe_end(status, how, sizeof(how));
	j->ranks[rank].pid = 0;
	j->nr_alive--;
	gather_rank_ended(j->gather, rank, how);
	j->any_ended_well = j->any_ended_well || !code;
	if (is_no_failure(j, rank, status)) {
		say(j, "rank %d %s", rank, how);
		j->killed_code = j->killed_code ? j->killed_code : code;
		restart(j, rank);
		return;
	}
	if (!code || j->stage >= STAGE_TERM || j->interrupted) {
		if (code && !j->exit_code)
			j->exit_code = code;
		return;
	}
	say(j, "rank %d %s", rank, how);
	if (!j->exit_code)
		j->exit_code = code;
	if (j->stage == STAGE_RUN && !j->options->keep_going)
		enter_stage(j, STAGE_GRACE, j->options->grace_ms);
}

static void reap(struct job *j)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (int r = 0; r < j->options->nr_ranks; r++)
			if (j->ranks[r].pid == pid)
				rank_ended(j, r, status);
}

/* The ranks are in our process group, so what a terminal sends (Ctrl-C) has reached them already; a
 * signal that one process sends to us has not. */
static void interrupt(struct job *j, const struct signal_taken *taken)
{
	bool again = j->interrupted;

	j->interrupted = taken->signo;
	if (again) {
		enter_stage(j, STAGE_KILL, -1);
		return;
	}
	if (taken->code != SI_KERNEL)
		signal_ranks(j, j->interrupted);
	enter_stage(j, STAGE_GRACE, j->options->grace_ms);
}

static void take_signals(struct job *j)
{
	struct signal_taken taken;

	while (signals_take(&j->signals, &taken))
		if (taken.signo != SIGCHLD)
			interrupt(j, &taken);
	reap(j);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static int fill_polls(struct job *j)
{
	int n = j->options->nr_ranks;

	j->polls[0] = (struct pollfd){.fd = j->signals.fd, .events = POLLIN};
	for (int r = 0; r < n; r++)
		j->polls[1 + r] = (struct pollfd){
			.fd = gather_fd(j->gather, r), .events = gather_events(j->gather, r)};
	for (int i = 0; j->outputs && i < 2 * n; i++)
		j->polls[1 + n + i] = (struct pollfd){.fd = j->outputs[i].fd, .events = POLLIN};
	return 1 + n + (j->outputs ? 2 * n : 0);
}

static int next_wake_ms(struct job *j)
{
	int wake = gather_tick(j->gather);
	int64_t left;

	if (!j->stage_end_ms)
		return wake;
	left = j->stage_end_ms - now_ms();
	left = left < 0 ? 0 : left > 3600000 ? 3600000 : left;
	return wake < 0 || left < wake ? (int)left : wake;
}

static void step(struct job *j)
{
	int n = j->options->nr_ranks;
	int wake_ms = next_wake_ms(j);
	int nr = fill_polls(j);

	if (poll(j->polls, (nfds_t)nr, wake_ms) < 0)
		return;
	for (int i = 1 + n; i < nr; i++)
		if (j->polls[i].revents)
			output_ready(&j->outputs[i - 1 - n]);
	for (int r = 0; r < n; r++)
		if (j->polls[1 + r].revents && gather_fd(j->gather, r) >= 0)
			gather_ready(j->gather, r, j->polls[1 + r].revents);
	if (j->polls[0].revents)
		take_signals(j);
	if (j->stage_end_ms && now_ms() >= j->stage_end_ms)
		end_stage(j);
}

/* ---- what ranks leave behind ----------------------------------------------------------------- */

static bool kill_children_listed(void)
{
	char path[64];
	FILE *list;
	long pid;
	bool any = false;

	snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
	list = fopen(path, "re");
	while (list && fscanf(list, "%ld", &pid) == 1) {
		kill((pid_t)pid, SIGKILL);
		any = true;
	}
	if (list)
		fclose(list);
	return any;
}

/* A rank that is a shell dies without its children. We are their subreaper, so they have become
 * ours. Each turn may bring up a generation more. */
static void sweep_orphans(void)
{
	for (int turn = 0; turn < 64 && kill_children_listed(); turn++)
		while (waitpid(-1, NULL, 0) > 0)
			;
}

/* ---- start ----------------------------------------------------------------------------------- */

static bool has_children(void)
{
	siginfo_t info;

	return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

static int start(struct job *j)
{
	int n = j->options->nr_ranks, rc = 0;
	int *fds = malloc((size_t)n * sizeof(*fds));

	if (!fds)
		return LAUNCH_EXIT_ERROR;
	for (int r = 0; r < n && !rc; r++) {
		rc = spawn(j, r);
		fds[r] = j->ranks[r].socket;
	}
	if (!rc) {
		j->gather = gather_new(n, fds);
		rc = j->gather ? 0 : LAUNCH_EXIT_ERROR;
	}
	free(fds);
	return rc;
}

static int allocate(struct job *j)
{
	size_t n = (size_t)j->options->nr_ranks;

	j->ranks = calloc(n, sizeof(*j->ranks));
	j->restarts = calloc(n, sizeof(*j->restarts));
	j->polls = calloc(1 + 3 * n, sizeof(*j->polls));
	if (j->options->label)
		j->outputs = calloc(2 * n, sizeof(*j->outputs));
	for (size_t i = 0; j->outputs && i < 2 * n; i++)
		j->outputs[i].fd = -1;
	return j->ranks && j->restarts && j->polls && (j->outputs || !j->options->label) ? 0 : -1;
}

/* Anyone still there was started before another could not be. */
static void stop_half_started(struct job *j)
{
	signal_ranks(j, SIGKILL);
	for (int r = 0; r < j->options->nr_ranks; r++) {
		if (j->ranks[r].pid > 0)
			waitpid(j->ranks[r].pid, NULL, 0);
		if (!j->gather && j->ranks[r].pid > 0)
			close(j->ranks[r].socket);
	}
}

static void finish(struct job *j)
{
	stop_half_started(j);
	if (j->sweep)
		sweep_orphans();
	for (int i = 0; j->outputs && i < 2 * j->options->nr_ranks; i++)
		if (j->outputs[i].fd >= 0)
			output_end(&j->outputs[i]);
	gather_free(j->gather);
	free(j->outputs);
	free(j->polls);
	free(j->ranks);
	free(j->restarts);
}

static int run_job(struct job *j)
{
	int rc = start(j);

	if (rc)
		return rc;
	j->stage_end_ms = j->options->timeout_ms ? now_ms() + j->options->timeout_ms : 0;
	while (j->nr_alive)
		step(j);
	if (!j->any_ended_well && !j->exit_code)
		j->exit_code = j->killed_code;
	return j->exit_code || !j->interrupted ? j->exit_code : 128 + j->interrupted;
}

void launch_options_init(struct launch_options *options)
{
	*options = (struct launch_options){
		.nr_ranks = 1, .wait_ms = -1, .grace_ms = GRACE_MS, .name = "tern run"};
}

int launch_ranks(const struct launch_options *options, char *const argv[])
{
	struct job j = {.options = options, .argv = argv, .sweep = !has_children()};
	int rc = LAUNCH_EXIT_ERROR;

	if (options->nr_ranks < 1 || options->nr_ranks > LAUNCH_MAX_RANKS || allocate(&j)) {
		fprintf(stderr, "%s: %d ranks are not possible\n", options->name,
			options->nr_ranks);
		goto out;
	}
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	if (signals_open(&j.signals)) {
		fprintf(stderr, "%s: signals: %s\n", options->name, strerror(errno));
		goto out;
	}
	rc = run_job(&j);
	finish(&j);
	signals_close(&j.signals);
	return rc;
out:
	free(j.ranks);
	free(j.restarts);
	free(j.polls);
	free(j.outputs);
	return rc;
}
