/* SPDX-License-Identifier: Apache-2.0
 *
 * within SECONDS [-o FILE] [-p FILE] [-b SECONDS BEGUN] COMMAND...: runs a test, and ends it when
 * it hangs.
 *
 * A clock on the wall would end right tests on a busy machine. What a busy machine takes from a
 * test is the time in which one of its threads could run and none does: that is not counted. What
 * is, over the command and all that it has begun, is
 *
 *   asleep      time in which none of its threads could run: what waits for a message that never
 *               comes
 *   running     time on processors, at most as much as has gone by: what runs in circles
 *
 * On a quiet machine the two are the time on the wall. When they are SECONDS, the command is ended,
 * and each process told with what it waits in. The exit code is the command's, 128 and the signal's
 * number, or 124 when it was ended. -o's FILE gets "wall processor asleep", in seconds. With -p
 * SECONDS are counted anew whenever that FILE has grown: for long tests, where what runs in circles
 * while it waits for others takes as long as they do on a busy machine. When no file
 * BEGUN is there after -b's seconds, likewise counted, the command is ended with 123.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS 100000000 /* between two looks */
#define FAMILY_EVERY 5    /* looks: who belongs to it is found out anew */
#define GRACE_LOOKS 50    /* from SIGTERM to SIGKILL */
#define MAX_PROCESSES 4096

struct process {
	int pid, parent;
	bool ours;
	double cpu_s; /* with that of children that it has waited for */
};

struct family {
	struct process list[MAX_PROCESSES];
	int nr;
};

static sigset_t signals, as_it_was; /* SIGCHLD, and those that ask this program to end */
static int told;                    /* which of them has */

/* Until a signal, or the next look. */
static void pause_between_looks(void)
{
	int number = sigtimedwait(&signals, NULL, &(struct timespec){.tv_nsec = LOOK_NS});

	if (number > 0 && number != SIGCHLD)
		told = number;
}

static void take_signals(void)
{
	static const int numbers[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};

	sigemptyset(&signals);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		sigaddset(&signals, numbers[i]);
	sigprocmask(SIG_BLOCK, &signals, &as_it_was);
}

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double time_s(struct timeval t)
{
	return (double)t.tv_sec + (double)t.tv_usec * 1e-6;
}

/* Reads a small file of /proc; false when its process is gone. */
static bool slurp(char *text, size_t size, const char *format, int pid, int tid)
{
	char path[64];
	FILE *file;
	size_t length;

	snprintf(path, sizeof(path), format, pid, tid);
	file = fopen(path, "r");
	if (!file)
		return false;
	length = fread(text, 1, size - 1, file);
	fclose(file);
	text[length] = 0;
	return length > 0;
}

/* What follows the name in a stat file: the name may hold anything. */
static const char *after_name(const char *stat)
{
	const char *at = strrchr(stat, ')');

	return at && at[1] ? at + 2 : NULL;
}

static bool look_at(struct process *p)
{
	unsigned long user, system;
	long of_children[2];
	char stat[1024];
	const char *at =
		slurp(stat, sizeof(stat), "/proc/%d/stat", p->pid, 0) ? after_name(stat) : NULL;

	if (!at || sscanf(at, "%*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %ld %ld",
			   &p->parent, &user, &system, &of_children[0], &of_children[1]) != 5)
		return false;
	p->cpu_s = (double)(user + system + (unsigned long)of_children[0] +
			    (unsigned long)of_children[1]) /
		   (double)sysconf(_SC_CLK_TCK);
	return true;
}

static struct process *find(struct family *f, int pid)
{
	for (int i = 0; i < f->nr; i++)
		if (f->list[i].pid == pid)
			return &f->list[i];
	return NULL;
}

/* Orphans become children of this process (PR_SET_CHILD_SUBREAPER), so parents lead here from all
 * that it has begun. */
static void find_family(struct family *f)
{
	DIR *dir = opendir("/proc");
	bool more = true;

	f->nr = 0;
	for (struct dirent *entry; dir && (entry = readdir(dir)) && f->nr < MAX_PROCESSES;) {
		struct process *p = &f->list[f->nr];

		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		*p = (struct process){.pid = atoi(entry->d_name)};
		f->nr += look_at(p);
	}
	if (dir)
		closedir(dir);
	while (more) {
		more = false;
		for (int i = 0; i < f->nr; i++) {
			struct process *p = &f->list[i],
				       *parent = p->ours ? NULL : find(f, p->parent);

			if (!p->ours && (p->parent == getpid() || (parent && parent->ours)))
				p->ours = more = true;
		}
	}
}

/* R: it runs or could; D: a disk keeps it. Nothing else happens without somebody's doing. */
static bool can_run(int pid)
{
	char path[32], stat[1024];
	bool any = false;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	dir = opendir(path);
	for (struct dirent *entry; dir && !any && (entry = readdir(dir));) {
		const char *at;

		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		at = slurp(stat, sizeof(stat), "/proc/%d/task/%d/stat", pid, atoi(entry->d_name))
			     ? after_name(stat)
			     : NULL;
		any = at && (*at == 'R' || *at == 'D');
	}
	if (dir)
		closedir(dir);
	return any;
}

static bool any_can_run(const struct family *f)
{
	for (int i = 0; i < f->nr; i++)
		if (f->list[i].ours && can_run(f->list[i].pid))
			return true;
	return false;
}

static double cpu_of(struct family *f)
{
	double sum = 0;

	for (int i = 0; i < f->nr; i++)
		if (f->list[i].ours && look_at(&f->list[i]))
			sum += f->list[i].cpu_s;
	return sum;
}

static void describe(const struct family *f)
{
	for (int i = 0; i < f->nr; i++) {
		char name[64] = "", state[1024] = "", call[256] = "", place[128] = "";
		const struct process *p = &f->list[i];
		const char *at;

		if (!p->ours || !slurp(state, sizeof(state), "/proc/%d/stat", p->pid, 0))
			continue;
		at = after_name(state);
		slurp(name, sizeof(name), "/proc/%d/comm", p->pid, 0);
		slurp(call, sizeof(call), "/proc/%d/syscall", p->pid, 0);
		slurp(place, sizeof(place), "/proc/%d/wchan", p->pid, 0);
		name[strcspn(name, "\n")] = 0;
		fprintf(stderr,
			"within: process %d (%s), state %c, %.1f s of processor, in %s, system "
			"call %.*s\n",
			p->pid, name, at ? *at : '?', p->cpu_s, place, (int)strcspn(call, "\n"),
			call);
	}
}

static void signal_all(struct family *f, int number)
{
	find_family(f);
	for (int i = 0; i < f->nr; i++)
		if (f->list[i].ours)
			kill(f->list[i].pid, number);
}

/* Takes in who has ended: true when the command is among them. Sums what orphans had used. */
static bool reap(int command, int *status, double *orphans_s)
{
	struct rusage usage;
	int got, pid;
	bool over = false;

	while ((pid = wait4(-1, &got, WNOHANG, &usage)) > 0) {
		*orphans_s += time_s(usage.ru_utime) + time_s(usage.ru_stime);
		if (pid == command) {
			*status = got;
			over = true;
		}
	}
	return over;
}

static int begin(char **command)
{
	int pid = fork();

	if (pid == 0) {
		sigprocmask(SIG_SETMASK, &as_it_was, NULL);
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execvp(command[0], command);
		fprintf(stderr, "within: %s: %s\n", command[0], strerror(errno));
		_exit(127);
	}
	return pid;
}

static void write_times(const char *path, double wall_s, double cpu_s, double asleep_s)
{
	FILE *file = path ? fopen(path, "w") : NULL;

	if (file) {
		fprintf(file, "%.2f %.2f %.2f\n", wall_s, cpu_s, asleep_s);
		fclose(file);
	}
}

struct watch {
	int command;
	double limit_s, begin_s;
	const char *begun; /* NULL: has begun, or is not asked for */
	const char *grows; /* NULL: there is no such file */
	off_t grown;
	double asleep_s, running_s;
	double since_s;            /* of both, when it last grew */
	double cpu_s, ended_cpu_s; /* the second: of orphans and the command, which have ended */
	int status;
	struct family family;
};

static bool is_over(struct watch *w)
{
	double counted_s = w->asleep_s + w->running_s;
	struct stat is;

	if (w->grows && !stat(w->grows, &is) && is.st_size > w->grown) {
		w->grown = is.st_size;
		w->since_s = counted_s;
	}
	return counted_s - w->since_s > (w->begun ? w->begin_s : w->limit_s);
}

/* Looks until the command has ended, or has to: then true, once. */
static bool watch(struct watch *w)
{
	double last = now_s();

	for (int look = 0;; look++) {
		double passed, ran;

		pause_between_looks();
		if (reap(w->command, &w->status, &w->ended_cpu_s))
			return false;
		if (look % FAMILY_EVERY == 0 || !any_can_run(&w->family))
			find_family(&w->family); /* who is not known yet may be the one that runs */
		passed = now_s() - last;
		last += passed;
		ran = w->ended_cpu_s + cpu_of(&w->family) - w->cpu_s;
		w->cpu_s += ran;
		if (!any_can_run(&w->family))
			w->asleep_s += passed;
		else if (ran > 0)
			w->running_s += ran < passed ? ran : passed;
		if (w->begun && !access(w->begun, F_OK))
			w->begun = NULL;
		if (told || is_over(w))
			return true;
	}
}

static void end_all(struct watch *w)
{
	if (!told) {
		fprintf(stderr,
			"within: ended after %.1f s asleep and %.1f s running, together more than "
			"%g s%s\n",
			w->asleep_s, w->running_s, w->begun ? w->begin_s : w->limit_s,
			w->grows ? " without progress" : "");
		describe(&w->family);
	}
	signal_all(&w->family, told ? told : SIGTERM);
	for (int look = 0; look < GRACE_LOOKS; look++) {
		pause_between_looks();
		reap(w->command, &w->status, &w->ended_cpu_s);
		find_family(&w->family);
		if (!cpu_of(&w->family) && !any_can_run(&w->family) &&
			!find(&w->family, w->command))
			break;
	}
}

/* What the command has left behind goes with it. */
static void clear_away(struct watch *w)
{
	for (int look = 0; look < GRACE_LOOKS; look++) {
		signal_all(&w->family, SIGKILL);
		reap(w->command, &w->status, &w->ended_cpu_s);
		if (waitpid(-1, NULL, WNOHANG) < 0)
			return; /* no children */
		pause_between_looks();
	}
}

static int usage(void)
{
	fprintf(stderr,
		"within SECONDS [-o FILE] [-p FILE] [-b SECONDS BEGUN] COMMAND...: runs a test, "
		"and ends it when it hangs\n");
	return 125;
}

int main(int nr, char **args)
{
	static struct watch w;
	const char *times = NULL;
	double started = now_s();
	char *end;
	bool ended;

	w.limit_s = nr > 2 ? strtod(args[1], &end) : 0;
	if (nr < 3 || *end || w.limit_s <= 0)
		return usage();
	args += 2;
	if (!strcmp(args[0], "-o") && args[1] && args[2]) {
		times = args[1];
		args += 2;
	}
	if (!strcmp(args[0], "-p") && args[1] && args[2]) {
		w.grows = args[1];
		args += 2;
	}
	if (!strcmp(args[0], "-b") && args[1] && args[2] && args[3]) {
		w.begin_s = strtod(args[1], &end);
		w.begun = args[2];
		args += 3;
		if (*end || w.begin_s <= 0)
			return usage();
	}
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	take_signals();
	w.command = begin(args);
	if (w.command < 0)
		return usage();
	ended = watch(&w);
	if (ended)
		end_all(&w);
	clear_away(&w);
	write_times(times, now_s() - started, ended ? w.cpu_s : w.ended_cpu_s, w.asleep_s);
	if (ended)
		return told ? 128 + told : w.begun ? 123 : 124;
	return WIFSIGNALED(w.status) ? 128 + WTERMSIG(w.status) : WEXITSTATUS(w.status);
}
