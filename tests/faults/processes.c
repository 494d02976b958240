/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/faults/processes.h"

#include "tern_engine.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define GATHERING_LIMIT_MS 120000

static bool shm_is_ours; /* /dev/shm is this process's and its children's alone */

unsigned long long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (unsigned long long)now.tv_sec * 1000000000u + (unsigned long long)now.tv_nsec;
}

static void nap(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

/* ---- gatherings ------------------------------------------------------------------------------ */

struct seat {
	struct board *board;
	int number, gathering;
};

static int board_allgather(void *ctx, const void *mine, void *all, size_t bytes)
{
	struct seat *seat = ctx;
	struct board *b = seat->board;
	int g = seat->gathering++;
	unsigned long long end = now_ns() + (unsigned long long)b->limit_ms * 1000000;

	if (g >= MAX_GATHERINGS || bytes > GATHERING_BYTES)
		return -1;
	memcpy(b->payload[g][seat->number], mine, bytes);
	atomic_store(&b->present[g][seat->number], 1);
	for (int r = 0; r < b->nr_ranks; r++) {
		while (!atomic_load(&b->present[g][r])) {
			if (now_ns() > end)
				return -2;
			nap();
		}
		memcpy((char *)all + (size_t)r * bytes, b->payload[g][r], bytes);
	}
	return 0;
}

int try_join(struct rank *rank, struct board *board, int number)
{
	const struct scene *scene = rank->ctx;
	struct seat *seat = calloc(1, sizeof(*seat));
	struct tern_group_config config;
	char node[16], transport[256];

	tern_group_config_init(&config);
	config.node = test_node(number, board->nr_ranks, node, sizeof(node));
	config.transport = test_transport(number, transport, sizeof(transport));
	*seat = (struct seat){.board = board, .number = number};
	config.boot = (struct tern_boot){.rank = number,
		.nr_ranks = board->nr_ranks,
		.allgather = board_allgather,
		.ctx = seat,
		.close = free};
	config.elastic = scene->elastic;
	config.rendezvous = scene->rendezvous;
	config.silence_ms = scene->silence_ms;
	config.wait_ms = scene->wait_ms ? scene->wait_ms : config.wait_ms;
	rank->rank = number;
	rank->nr_ranks = board->nr_ranks;
	return tern_group_create(&config, &rank->group);
}

int join(struct rank *rank, struct board *board, int number)
{
	if (!try_join(rank, board, number))
		return 0;
	return rank_fails(rank, "joining: %s", tern_last_error());
}

bool transport_is_there(const char *transport)
{
	struct tern_engine_config config;
	struct tern_group_config alone;
	tern_engine *engine = NULL;
	tern_group *group;
	int rc;

	tern_group_config_init(&alone);
	tern_engine_config_init(&config);
	config.transport = transport;
	assert_int_equal(tern_boot_self(&alone.boot), 0);
	assert_int_equal(tern_group_create(&alone, &group), 0);
	rc = tern_engine_create(group, &config, &engine);
	tern_engine_destroy(engine);
	tern_group_destroy(group);
	assert_true(rc == 0 || rc == TERN_ERR_UNSUPPORTED);
	return rc == 0;
}

/* ---- scenes ---------------------------------------------------------------------------------- */

static int count_files(const char *path)
{
	DIR *dir = opendir(path);
	int nr = 0;

	while (dir && readdir(dir))
		nr++;
	if (dir)
		closedir(dir);
	return nr;
}

/* Once for all scenes: other programs' files come and go. Takes root; without, files are not looked
 * at. */
static void own_shm(void)
{
	static bool tried;

	if (tried)
		return;
	tried = true;
	shm_is_ours = !unshare(CLONE_NEWNS) && !mount("none", "/", NULL, MS_REC | MS_SLAVE, NULL) &&
		      !mount("tern-test", "/dev/shm", "tmpfs", 0, NULL);
	if (!shm_is_ours)
		print_message("# no /dev/shm of its own (%s): files that are left there are not "
			      "looked for\n",
			strerror(errno));
}

struct scene *scene_open(int nr_ranks, enum tern_mode mode)
{
	struct scene *s =
		mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (s == MAP_FAILED)
		fail_msg("no memory");
	own_shm();
	s->nr_ranks = s->first.nr_ranks = nr_ranks;
	s->second.nr_ranks = nr_ranks - 1;
	s->first.limit_ms = s->second.limit_ms = GATHERING_LIMIT_MS;
	s->victim = 1;
	s->other_victim = -1;
	job_init(&s->job);
	s->job.nr_ranks = (uint32_t)nr_ranks;
	s->job.nr_tokens = s->job.config.max_tokens = 24;
	s->job.config.hidden = 256;
	s->job.config.nr_experts = 12;
	s->job.config.topk = 3;
	s->job.config.mode = mode;
	s->job.input = INPUT_RANDOM;
	s->job.routing.uneven = true;
	return s;
}

void scene_close(struct scene *s)
{
	int left = waitpid(-1, NULL, WNOHANG);

	munmap(s, sizeof(*s));
	assert_int_equal(left, -1);
	assert_int_equal(errno, ECHILD);
	if (shm_is_ours)
		assert_int_equal(count_files("/dev/shm"), 2); /* itself and its parent */
}

void scene_start(struct scene *s, rank_main body, pid_t *pids)
{
	pid_t parent = getpid();

	fflush(NULL);
	for (int r = 0; r < s->nr_ranks; r++) {
		struct rank rank = {.rank = r, .nr_ranks = s->nr_ranks, .ctx = s};

		pids[r] = fork();
		if (pids[r] < 0)
			fail_msg("fork: %s", strerror(errno));
		if (pids[r] > 0)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		body(&rank);
		memcpy(s->failure[r], rank.failure, sizeof(rank.failure));
		_exit(*rank.failure ? 1 : 0);
	}
}

/* Returns the wait status, or -1 when the time is over. */
static int wait_for(pid_t pid, unsigned long long end)
{
	int status;

	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (now_ns() > end) {
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
			return -1;
		}
		nap();
	}
	return status;
}

const char *scene_verdict(struct scene *s, const pid_t *pids, int fate)
{
	static char text[MAX_PROCESSES * 420];
	unsigned long long end = now_ns() + SCENE_LIMIT_NS;
	size_t at = 0;

	*text = 0;
	for (int r = 0; r < s->nr_ranks; r++) {
		int status = wait_for(pids[r], end),
		    signal_due = r == s->victim || r == s->other_victim ? fate : 0;

		if (*s->failure[r])
			at += (size_t)snprintf(
				text + at, sizeof(text) - at, "%.400s; ", s->failure[r]);
		else if (status == -1)
			at += (size_t)snprintf(
				text + at, sizeof(text) - at, "rank %d did not end; ", r);
		else if (signal_due ? !WIFSIGNALED(status) || WTERMSIG(status) != signal_due
				    : !WIFEXITED(status) || WEXITSTATUS(status))
			at += (size_t)snprintf(text + at, sizeof(text) - at,
				"rank %d ended with wait status 0x%x; ", r, (unsigned int)status);
	}
	return *text ? text : NULL;
}

void scene_finish(struct scene *s, const pid_t *pids, int fate)
{
	const char *wrong = scene_verdict(s, pids, fate);

	if (wrong)
		fail_msg("ranks %d, mode %d, victim %d after %d halves: %s", s->nr_ranks,
			(int)s->job.config.mode, s->victim, s->halves, wrong);
}

/* Stopped, or ended. */
static bool thread_stands(pid_t pid, const char *thread)
{
	char path[96], state = 'X';
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/task/%.32s/stat", (int)pid, thread);
	file = fopen(path, "r");
	if (file && fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
		state = 'X';
	if (file)
		fclose(file);
	return strchr("TtZXx", state);
}

static bool process_stands(pid_t pid)
{
	bool stands = true;
	char path[48];
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	dir = opendir(path);
	for (struct dirent *entry; dir && stands && (entry = readdir(dir));)
		stands = entry->d_name[0] == '.' || thread_stands(pid, entry->d_name);
	if (dir)
		closedir(dir);
	return stands;
}

void await_standstill(pid_t pid)
{
	while (!process_stands(pid))
		nap();
}

void scene_play(struct scene *s, rank_main body, int fate)
{
	pid_t pids[MAX_PROCESSES];

	scene_start(s, body, pids);
	scene_finish(s, pids, fate);
	scene_close(s);
}
