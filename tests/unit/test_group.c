/* SPDX-License-Identifier: Apache-2.0 */
/* Groups and windows: who is on which node, what is refused, what other processes can see of a
 * window. */
#include "base/error.h"
#include "group/group.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/exchange/ranks.h"
#include "tests/faults/processes.h"
#include "transport/shm/mailbox.h"
#include "group/window.h"

/* What the library opens by name; where it is `no_file` there are no descriptors left. */
static const char *no_file;

int open(const char *path, int flags, ...)
{
	va_list args;
	int mode;

	va_start(args, flags);
	mode = flags & O_CREAT ? va_arg(args, int) : 0;
	va_end(args);
	if (no_file && !strcmp(path, no_file)) {
		errno = EMFILE;
		return -1;
	}
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static bool same_pid;

pid_t getpid(void)
{
	return same_pid ? 1 : (pid_t)syscall(SYS_getpid);
}

/* ---- settings of a group --------------------------------------------------------------------- */

static int closed;

static void count_close(void *ctx)
{
	(void)ctx;
	closed++;
}

static int failing_allgather(void *ctx, const void *mine, void *all, size_t bytes)
{
	(void)ctx;
	(void)mine;
	(void)all;
	(void)bytes;
	return 42;
}

static void expect_refused(struct tern_group_config *config, int code, const char *text)
{
	tern_group *group = NULL;
	int before = closed, rc;

	config->boot.close = count_close;
	rc = tern_group_create(config, &group);
	assert_int_equal(rc, code);
	assert_null(group);
	if (!strstr(tern_last_error(), text))
		fail_msg("\"%s\" does not say \"%s\"", tern_last_error(), text);
	assert_int_equal(closed, before + 1); /* the bootstrap was taken over all the same */
}

static void bad_configs(void **state)
{
	char long_name[80];
	struct tern_group_config config;
	tern_group *group;

	(void)state;
#define REFUSED(code, text, ...)                                                                   \
	do {                                                                                       \
		tern_group_config_init(&config);                                                   \
		config.boot = (struct tern_boot){0, 1, failing_allgather, NULL, NULL};             \
		__VA_ARGS__;                                                                       \
		expect_refused(&config, code, text);                                               \
	} while (0)
	REFUSED(TERN_ERR_INVALID, "boot.nr_ranks is 0", config.boot.nr_ranks = 0);
	REFUSED(TERN_ERR_INVALID, "boot.nr_ranks is -1", config.boot.nr_ranks = -1);
	REFUSED(TERN_ERR_INVALID, "boot.nr_ranks is 65536", config.boot.nr_ranks = 65536);
	REFUSED(TERN_ERR_INVALID, "boot.rank is 1 of 1", config.boot.rank = 1);
	REFUSED(TERN_ERR_INVALID, "boot.rank is -1", config.boot.rank = -1);
	REFUSED(TERN_ERR_INVALID, "allgather is NULL for 2", config.boot.nr_ranks = 2;
		config.boot.allgather = NULL);
	REFUSED(TERN_ERR_INVALID, "wait_ms is -5", config.wait_ms = -5);
	memset(long_name, 'n', sizeof(long_name) - 1);
	long_name[sizeof(long_name) - 1] = 0;
	REFUSED(TERN_ERR_INVALID, "of 79 bytes; at most 64", config.node = long_name);
	REFUSED(TERN_ERR_BOOTSTRAP, "returned 42 on rank 0", (void)0);
#undef REFUSED
	assert_int_equal(tern_group_create(NULL, &group), TERN_ERR_INVALID);
	assert_int_equal(tern_group_create(&config, NULL), TERN_ERR_INVALID);
	config.size = 3;
	assert_int_equal(tern_group_create(&config, &group), TERN_ERR_INVALID);
}

/* It is closed wherever the config says that it has one, and nowhere else: what says nothing may
 * hold anything. */
static void refused_configs_close_their_boot(void **state)
{
	static const struct {
		size_t size;
		int times;
	} cases[] = {{sizeof(struct tern_group_config) + 4, 1},
		{offsetof(struct tern_group_config, wait_ms) + 4, 1},
		{offsetof(struct tern_group_config, wait_ms) - 1, 0}, {0, 0}, {3, 0}, {1u << 20, 0},
		{SIZE_MAX, 0}};
	struct tern_group_config config;
	tern_group *group = NULL;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		tern_group_config_init(&config);
		config.boot = (struct tern_boot){.nr_ranks = 1, .close = count_close};
		config.size = cases[i].size;
		closed = 0;
		assert_int_equal(tern_group_create(&config, &group), TERN_ERR_INVALID);
		assert_null(group);
		if (closed != cases[i].times)
			fail_msg("a size of %zu: closed %d times, not %d", cases[i].size, closed,
				cases[i].times);
	}
	tern_group_config_init(&config);
	config.boot = (struct tern_boot){.nr_ranks = 1, .close = count_close};
	closed = 0;
	assert_int_equal(tern_group_create(&config, NULL), TERN_ERR_INVALID);
	assert_int_equal(closed, 1);
}

static void wakes_nobody(void *ctx, uint32_t rank)
{
	(void)ctx;
	(void)rank;
}

/* A scheduler that is for engines alone. */
static void scheduler_without_engine(void **state)
{
	static const struct scheduler scheduler = {.wake = wakes_nobody};
	struct tern_group_config config;
	tern_group *group = NULL;

	(void)state;
	tern_group_config_init(&config);
	config.boot = (struct tern_boot){
		.nr_ranks = 1, .allgather = failing_allgather, .close = count_close};
	closed = 0;
	assert_int_equal(group_create_scheduled(&config, &scheduler, &group), TERN_ERR_INVALID);
	assert_non_null(strstr(tern_last_error(), "lacks engine"));
	assert_null(group);
	assert_int_equal(closed, 1);
}

/* ---- one rank's bad setting ------------------------------------------------------------------ */

#define LONG_NODE "a-name-of-a-node-that-is-much-longer-than-anybody-would-ever-want-to-read"

/* The culprit's is bad, or all ranks', from the environment: all are told, and by whom. */
struct bad_setting {
	struct tern_threads *threads;
	const char *node, *text;
	const char *name, *value; /* in the environment, when the test's own groups have been made
				   */
	int wait_ms, culprit;
};

static void bad_setting_body(struct rank *rank)
{
	const struct bad_setting *bad = rank->ctx;
	struct tern_group_config config;
	tern_group *group = NULL;
	char text[256];
	int rc;

	tern_group_config_init(&config);
	if (rank->rank == bad->culprit) {
		config.node = bad->node;
		config.wait_ms = bad->wait_ms;
	}
	snprintf(text, sizeof(text), "joining: %s%s",
		bad->name || rank->rank == bad->culprit ? "" : "rank 1: ", bad->text);
	ranks_meet(rank);
	if (bad->name && rank->rank == 0)
		setenv(bad->name, bad->value, 1);
	ranks_meet(rank);
	rc = tern_threads_boot(bad->threads, rank->rank, &config.boot);
	rc = rc ? rc : tern_group_create(&config, &group);
	if (rc != TERN_ERR_INVALID || !strstr(tern_last_error(), text))
		rank_fails(rank, "returned %d, \"%s\", which does not say \"%s\"", rc,
			tern_last_error(), text);
	ranks_meet(rank);
	if (bad->name && rank->rank == 0)
		unsetenv(bad->name);
	tern_group_destroy(group);
}

static void refused_on_all_ranks(struct bad_setting bad)
{
	const char *failure;

	assert_int_equal(tern_threads_create(3, 30000, &bad.threads), 0);
	failure = run_ranks(3, bad_setting_body, &bad);
	tern_threads_destroy(bad.threads);
	if (failure)
		fail_msg("%s", failure);
}

static void bad_settings_of_one_rank(void **state)
{
	(void)state;
	refused_on_all_ranks((struct bad_setting){.culprit = 1,
		.wait_ms = 30000,
		.node = LONG_NODE,
		.text = "node is "
			"\"a-name-of-a-node-that-is-much-longer-than-anybody-would-ever-wan...\", "
			"of 73 bytes; at most 64"});
	refused_on_all_ranks(
		(struct bad_setting){.culprit = 1, .wait_ms = -5, .text = "wait_ms is -5"});
}

static void bad_environment(void **state)
{
	char text[256], node[160];

	(void)state;
	memset(node, 'n', sizeof(node) - 1);
	node[sizeof(node) - 1] = 0;
	snprintf(text, sizeof(text), "TERN_NODE is \"%.64s...\", of 159 bytes; at most 64", node);
	refused_on_all_ranks((struct bad_setting){
		.culprit = -1, .name = "TERN_NODE", .value = node, .text = text});
	refused_on_all_ranks((struct bad_setting){.culprit = -1,
		.name = "TERN_FORCE_ENGINE",
		.value = "maybe",
		.text = "TERN_FORCE_ENGINE is \"maybe\"; it has to be a whole number from 0 to 1"});
}

/* ---- virtual nodes --------------------------------------------------------------------------- */

struct nodes {
	const char *name[6];
	int number[6];
	int nr;
};

/* Ranks of other nodes are reached through an engine; without one there is no path, and exchanges
 * are refused. */
static void joins_node(
	struct rank *rank, struct nodes *nodes, struct tern_threads *threads, const char *transport)
{
	bool reaches = transport != NULL;
	struct tern_moe_config moe_config;
	struct tern_group_config config;
	tern_group *group = NULL;
	tern_moe *moe = NULL;

	tern_group_config_init(&config);
	config.node = nodes->name[rank->rank];
	config.transport = transport;
	if (tern_threads_boot(threads, rank->rank, &config.boot) ||
		tern_group_create(&config, &group)) {
		rank_fails(rank, "joining: %s", tern_last_error());
		return;
	}
	if (tern_group_nr_nodes(group) != nodes->nr)
		rank_fails(rank, "%d nodes, not %d", tern_group_nr_nodes(group), nodes->nr);
	for (int r = 0; r < rank->nr_ranks; r++) {
		int same = nodes->number[r] == nodes->number[rank->rank];
		int path = r == rank->rank ? TERN_PATH_SELF
			   : same          ? TERN_PATH_MAPPED
			   : reaches       ? TERN_PATH_ENGINE
					   : TERN_PATH_NONE;

		if (tern_group_node(group, r) != nodes->number[r] ||
			tern_group_path(group, r) != path)
			rank_fails(rank, "rank %d is on node %d, path %d", r,
				tern_group_node(group, r), tern_group_path(group, r));
	}
	if (nodes->nr > 1 &&
		!strstr(tern_group_describe(group), transport ? "by setting" : "by TERN_TRANSPORT"))
		rank_fails(rank, "the path is described as \"%s\"", tern_group_describe(group));
	tern_moe_config_init(&moe_config);
	moe_config.hidden = 16;
	moe_config.nr_experts = moe_config.max_tokens = moe_config.topk = 1;
	if (tern_moe_create(group, &moe_config, &moe) !=
		(nodes->nr > 1 && !reaches ? TERN_ERR_UNSUPPORTED : 0))
		rank_fails(rank, "an exchange over nodes: %s", tern_last_error());
	if (nodes->nr > 1 && !reaches && !strstr(tern_last_error(), "no path from rank"))
		rank_fails(rank, "no path: %s", tern_last_error());
	tern_moe_destroy(moe);
	tern_group_destroy(group);
}

struct nodes_and_threads {
	struct nodes *nodes;
	struct tern_threads *threads;
	const char *transport;
};

static void nodes_body(struct rank *rank)
{
	struct nodes_and_threads *ctx = rank->ctx;

	joins_node(rank, ctx->nodes, ctx->threads, ctx->transport);
}

static void virtual_nodes(void **state)
{
	struct nodes cases[] = {
		{{"a", "a", "a"}, {0, 0, 0}, 1},
		{{"a", "b", "a"}, {0, 1, 0}, 2},
		{{"z", "y", "x"}, {0, 1, 2}, 3},
		{{"", NULL, "x"}, {0, 0, 1}, 2},
	};

	(void)state;
	setenv("TERN_TRANSPORT", "no-such-network", 1);
	for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
		struct nodes_and_threads ctx = {&cases[i / 2], NULL, i % 2 ? "shm" : NULL};
		const char *failure;

		assert_int_equal(tern_threads_create(3, 30000, &ctx.threads), 0);
		failure = run_ranks(3, nodes_body, &ctx);
		tern_threads_destroy(ctx.threads);
		if (failure)
			fail_msg("case %zu: %s", i, failure);
	}
	unsetenv("TERN_TRANSPORT");
}

/* Nothing is set: what the ranks choose together is said, with its cause, and is the same on all.
 */
static void chooses_body(struct rank *rank)
{
	struct tern_threads *threads = rank->ctx;
	struct tern_group_config config;
	tern_group *group = NULL;
	static const char *const choices[] = {": verbs, which both offer; ",
		": ofi:tcp;ofi_rxm, as verbs cannot be used here: ",
		": creating an engine: libfabric "};
	char all[3][1024] = {{0}}, mine[1024] = {0};
	const char *choice = NULL;

	tern_group_config_init(&config);
	config.node = rank->rank ? "b" : "a";
	if (tern_threads_boot(threads, rank->rank, &config.boot) ||
		tern_group_create(&config, &group)) {
		rank_fails(rank, "joining: %s", tern_last_error());
		return;
	}
	snprintf(mine, sizeof(mine), "%s", tern_group_describe(group));
	for (int i = 0; i < 3 && !choice; i++) /* the last where there is no libfabric */
		choice = strstr(mine, choices[i]) ? choices[i] : NULL;
	if (!choice || !strstr(mine, "offered here by default: verbs+ofi"))
		rank_fails(rank, "the choice is described as \"%s\"", mine);
	if (tern_group_allgather(group, mine, all, sizeof(mine)))
		rank_fails(rank, "gathering: %s", tern_last_error());
	for (int r = 0; r < rank->nr_ranks; r++)
		if (choice && !strstr(all[r], choice))
			rank_fails(rank, "rank %d chose \"%s\", this one \"%s\"", r, all[r], mine);
	tern_group_destroy(group);
}

static void transport_is_chosen(void **state)
{
	struct tern_threads *threads;
	const char *failure;

	(void)state;
	unsetenv("TERN_TRANSPORT");
	assert_int_equal(tern_threads_create(3, 30000, &threads), 0);
	failure = run_ranks(3, chooses_body, threads);
	tern_threads_destroy(threads);
	if (failure)
		fail_msg("%s", failure);
}

/* Each rank's way to each other in words. Rank 3 would rather have something that the others do not
 * offer. */
static void describes_body(struct rank *rank)
{
	static const char *const
		nodes[] = {"a", "a", "b", "c"},
		*const said[] = {"rank 1: shared memory; rank 2: shm, which both offer; rank 3: "
				 "shm, as ofi:none is not offered here; offered here by setting: "
				 "shm; open: shm (process_vm_writev), 1 NIC",
			"rank 0: shared memory; rank 2: shm, which both offer; rank 3: shm, as "
			"ofi:none is not offered here; offered here by setting: shm; open: shm "
			"(process_vm_writev), 1 NIC",
			"ranks 0-1: shm, which both offer; rank 3: shm, as ofi:none is not offered "
			"here; offered here by setting: shm; open: shm (process_vm_writev), 1 NIC",
			"ranks 0-2: shm, as ofi:none is not offered there; offered here by "
			"setting: ofi:none+shm; open: shm (process_vm_writev), 1 NIC"};
	struct tern_group_config config;
	tern_group *group = NULL;

	tern_group_config_init(&config);
	config.node = nodes[rank->rank];
	config.transport = rank->rank == 3 ? "ofi:none+shm" : "shm";
	if (tern_threads_boot(rank->ctx, rank->rank, &config.boot) ||
		tern_group_create(&config, &group))
		rank_fails(rank, "joining: %s", tern_last_error());
	else if (strcmp(tern_group_describe(group), said[rank->rank]))
		rank_fails(rank, "described as \"%s\"", tern_group_describe(group));
	tern_group_destroy(group);
}

static void paths_are_described(void **state)
{
	struct tern_threads *threads;
	const char *failure;

	(void)state;
	assert_int_equal(tern_threads_create(4, 30000, &threads), 0);
	failure = run_ranks(4, describes_body, threads);
	tern_threads_destroy(threads);
	if (failure)
		fail_msg("%s", failure);
}

/* ---- the group's own gathering --------------------------------------------------------------- */

static void gather_body(struct rank *rank)
{
	int all[5], mine;

	for (int i = 0; i < 100; i++) {
		mine = rank->rank * 1000 + i;
		if (tern_group_allgather(rank->group, &mine, all, sizeof(mine)))
			rank_fails(rank, "%s", tern_last_error());
		for (int r = 0; r < 5; r++)
			if (all[r] != r * 1000 + i)
				rank_fails(rank, "gathered %d from rank %d", all[r], r);
	}
	if (tern_group_rank(rank->group) != rank->rank || tern_group_nr_ranks(rank->group) != 5)
		rank_fails(rank, "rank %d of %d", tern_group_rank(rank->group),
			tern_group_nr_ranks(rank->group));
}

static void gathering(void **state)
{
	const char *failure = run_ranks(5, gather_body, NULL);

	(void)state;
	if (failure)
		fail_msg("%s", failure);
}

static void alone(void **state)
{
	struct tern_group_config config;
	tern_group *group;
	int mine = 5, all = 0;

	(void)state;
	tern_group_config_init(&config);
	config.boot = (struct tern_boot){.nr_ranks = 1}; /* no allgather */
	assert_int_equal(tern_group_create(&config, &group), 0);
	assert_int_equal(tern_group_allgather(group, &mine, &all, sizeof(all)), 0);
	assert_int_equal(all, 5);
	assert_int_equal(tern_group_destroy(group), 0);
}

static void exhaustion_is_nomem(void **state)
{
	static const int causes[] = {ENOMEM, EMFILE, ENFILE, ENOBUFS};

	(void)state;
	for (size_t i = 0; i < sizeof(causes) / sizeof(causes[0]); i++) {
		errno = causes[i];
		assert_int_equal(fail_errno("call %zu", i), TERN_ERR_NOMEM);
		assert_non_null(strstr(tern_last_error(), strerror(causes[i])));
	}
	errno = EACCES;
	assert_int_equal(fail_errno("a call"), TERN_ERR_SYSTEM);
}

/* A rank that cannot read who it is does not guess that it is alone on its node. */
static void unknown_node(void **state)
{
	struct tern_group_config config;
	tern_group *group = NULL;

	(void)state;
	tern_group_config_init(&config);
	config.boot = (struct tern_boot){.nr_ranks = 1};
	no_file = "/proc/sys/kernel/random/boot_id";
	assert_int_equal(tern_group_create(&config, &group), TERN_ERR_NOMEM);
	no_file = NULL;
	assert_null(group);
	assert_non_null(strstr(tern_last_error(), "boot_id: Too many open files"));
}

/* ---- windows --------------------------------------------------------------------------------- */

#define WINDOW_BYTES (5 * 4096)

/* Each rank sees each other's bytes, in processes and in threads. */
static void window_body(struct rank *rank)
{
	struct window *windows[4] = {NULL};

	if (windows_create(rank->group, WINDOW_BYTES, 1, windows)) {
		rank_fails(rank, "%s", tern_last_error());
		return;
	}
	for (uint32_t i = 0; i < WINDOW_BYTES; i++)
		if (windows[rank->rank]->base[i])
			rank_fails(rank, "byte %u is not zero", i);
	memset(windows[rank->rank]->base, rank->rank + 1, WINDOW_BYTES);
	ranks_meet(rank);
	for (int r = 0; r < rank->nr_ranks; r++)
		if (windows[r]->base[0] != r + 1 || windows[r]->base[WINDOW_BYTES - 1] != r + 1)
			rank_fails(rank, "rank %d's window begins with %d", r, windows[r]->base[0]);
	ranks_meet(rank);
	windows_destroy(rank->group, windows);
}

static void windows_of_threads(void **state)
{
	const char *failure = run_ranks(4, window_body, NULL);

	(void)state;
	if (failure)
		fail_msg("%s", failure);
}

static int count_named(const char *directory)
{
	DIR *dir = opendir(directory);
	struct dirent *entry;
	int nr = 0;

	while (dir && (entry = readdir(dir)))
		nr += strstr(entry->d_name, "tern") != NULL;
	if (dir)
		closedir(dir);
	return nr;
}

/* Its descriptor cannot be shrunk or grown, is not inherited by a program, and has no name
 * anywhere. */
static void check_descriptor(struct rank *rank)
{
	struct window *windows[4] = {NULL};
	struct tern_group *group = rank->group;
	int before = count_named("/dev/shm"), fd = -1;
	char path[64], target[256];

	if (windows_create(group, WINDOW_BYTES, 1, windows)) {
		rank_fails(rank, "%s", tern_last_error());
		return;
	}
	if (count_named("/dev/shm") != before || windows[rank->rank]->fd != -1)
		rank_fails(rank, "a name or a descriptor is left");
	for (int i = 0; i < 1024 && fd < 0; i++) { /* no descriptor of a window stays open */
		ssize_t length;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", i);
		length = readlink(path, target, sizeof(target) - 1);
		target[length > 0 ? length : 0] = 0;
		if (strstr(target, "tern-window"))
			fd = i;
	}
	if (fd >= 0)
		rank_fails(rank, "descriptor %d of a window is open", fd);
	windows_destroy(group, windows);
}

static void processes_body(struct rank *rank)
{
	struct scene *s = rank->ctx;

	if (join(rank, &s->first, rank->rank))
		return;
	window_body(rank);
	check_descriptor(rank);
	tern_group_destroy(rank->group);
}

static void windows_of_processes(void **state)
{
	struct scene *s = scene_open(4, TERN_LOW_LATENCY);
	pid_t pids[MAX_PROCESSES];

	(void)state;
	s->victim = -1;
	scene_start(s, processes_body, pids);
	scene_finish(s, pids, 0);
	scene_close(s);
}

/* A peer may pass anything: what is not a sealed window of the right size is refused. Here a peer
 * that seals nothing. */
static void impostor_body(struct rank *rank)
{
	struct scene *s = rank->ctx;
	struct window *windows[2] = {NULL};
	int rc;

	if (join(rank, &s->first, rank->rank))
		return;
	rc = windows_create(rank->group, rank->rank ? 4096 : WINDOW_BYTES, 1, windows);
	if (rc != TERN_ERR_PROTOCOL || !strstr(tern_last_error(), "passed a window of"))
		rank_fails(rank, "returned %d, %s", rc, tern_last_error());
	tern_group_destroy(rank->group);
}

static void window_of_another_size(void **state)
{
	struct scene *s = scene_open(2, TERN_LOW_LATENCY);
	pid_t pids[MAX_PROCESSES];

	(void)state;
	s->victim = -1;
	scene_start(s, impostor_body, pids);
	scene_finish(s, pids, 0);
	scene_close(s);
}

/* ---- a rank without descriptors -------------------------------------------------------------- */

#define TIGHT_RANKS 3
#define TIGHT_MOST 9 /* with so many descriptors there is always enough */

/* What came of it where rank 1 has `left` descriptors left. */
struct tight {
	struct board boards[TIGHT_MOST + 1];
	int codes[2][TIGHT_MOST + 1][TIGHT_RANKS];
	char texts[2][TIGHT_MOST + 1][TIGHT_RANKS][512];
};

static struct tight *tight;

static void leave_descriptors(int nr)
{
	struct rlimit now;
	int lowest = dup(0);

	close(lowest);
	getrlimit(RLIMIT_NOFILE, &now);
	now.rlim_cur = (rlim_t)(lowest + nr);
	setrlimit(RLIMIT_NOFILE, &now);
}

/* Joining, or sharing windows, with few descriptors on rank 1. */
static int try_tight(struct rank *rank, int windows, int left)
{
	struct window *shared[TIGHT_RANKS] = {NULL};
	struct rlimit before;
	int rc;

	getrlimit(RLIMIT_NOFILE, &before);
	if (rank->rank == 1)
		leave_descriptors(left);
	rc = windows ? windows_create(rank->group, WINDOW_BYTES, (uint32_t)left + 1, shared)
		     : try_join(rank, &tight->boards[left], rank->rank);
	setrlimit(RLIMIT_NOFILE, &before);
	tight->codes[windows][left][rank->rank] = rc;
	snprintf(tight->texts[windows][left][rank->rank], 512, "%s", rc ? tern_last_error() : "");
	if (!rc && windows)
		windows_destroy(rank->group, shared);
	return rc;
}

static void tight_body(struct rank *rank)
{
	struct scene *s = rank->ctx;

	for (int left = 0; left <= TIGHT_MOST; left++)
		if (!try_tight(rank, 0, left))
			tern_group_destroy(rank->group);
	if (join(rank, &s->first, rank->rank))
		return;
	for (int left = 0; left <= TIGHT_MOST; left++)
		try_tight(rank, 1, left);
	tern_group_destroy(rank->group);
}

/* It says so itself, and all others say that it was this one. */
static void check_tight(int windows, int left)
{
	const int *codes = tight->codes[windows][left];

	for (int r = 0; r < TIGHT_RANKS; r++) {
		const char *text = tight->texts[windows][left][r];

		if (codes[r] != codes[1] || (codes[r] && codes[r] != TERN_ERR_NOMEM))
			fail_msg("%d left, windows %d: rank %d got %d, rank 1 %d: %s", left,
				windows, r, codes[r], codes[1], text);
		if (codes[r] && r != 1 && !strstr(text, "rank 1: "))
			fail_msg("%d left, windows %d: rank %d does not name rank 1: %s", left,
				windows, r, text);
	}
}

static void few_descriptors(void **state)
{
	struct scene *s = scene_open(TIGHT_RANKS, TERN_LOW_LATENCY);
	pid_t pids[MAX_PROCESSES];

	(void)state;
	tight = mmap(
		NULL, sizeof(*tight), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(tight != MAP_FAILED);
	for (int left = 0; left <= TIGHT_MOST; left++)
		tight->boards[left] = s->first;
	s->victim = -1;
	scene_start(s, tight_body, pids);
	scene_finish(s, pids, 0);
	scene_close(s);
	for (int windows = 0; windows < 2; windows++) {
		for (int left = 0; left <= TIGHT_MOST; left++)
			check_tight(windows, left);
		assert_int_equal(tight->codes[windows][0][1], TERN_ERR_NOMEM);
		assert_int_equal(tight->codes[windows][TIGHT_MOST][1], 0);
	}
	munmap(tight, sizeof(*tight));
}

/* ---- who is in this process ------------------------------------------------------------------ */

static void threads_body(struct rank *rank)
{
	for (int r = 0; r < rank->nr_ranks; r++)
		if (!rank->group->peers[r].same_process)
			rank_fails(rank, "rank %d is a thread beside this one", r);
}

static void threads_are_known(void **state)
{
	const char *failure = run_ranks(3, threads_body, NULL);

	(void)state;
	if (failure)
		fail_msg("%s", failure);
}

/* In containers of their own two processes can have the same number, and nothing to tell their name
 * spaces apart by. */
static void same_pid_body(struct rank *rank)
{
	struct scene *s = rank->ctx;

	same_pid = true;
	if (join(rank, &s->first, rank->rank))
		return;
	for (int r = 0; r < rank->nr_ranks; r++)
		if (rank->group->peers[r].beside != (r == rank->rank))
			rank_fails(rank, "rank %d counts as a thread of this process", r);
	if (!*rank->failure)
		window_body(rank);
	tern_group_destroy(rank->group);
}

static void processes_with_one_pid(void **state)
{
	struct scene *s = scene_open(3, TERN_LOW_LATENCY);
	struct tern_group_config config;
	pid_t pids[MAX_PROCESSES];
	tern_group *group;

	(void)state;
	/* The ranks inherit whatever their parent knows itself by. */
	tern_group_config_init(&config);
	config.boot = (struct tern_boot){.nr_ranks = 1};
	assert_int_equal(tern_group_create(&config, &group), 0);
	s->victim = -1;
	scene_start(s, same_pid_body, pids);
	scene_finish(s, pids, 0);
	scene_close(s);
	tern_group_destroy(group);
}

/* ---- a limit on the size of files ------------------------------------------------------------ */

/* Rank 1 may make no file as long as a window, or a mailbox: it lives, says so, and is named. */
static void short_files_body(struct rank *rank)
{
	struct rlimit limit = {WINDOW_BYTES - 1, RLIM_INFINITY};
	struct mailbox_shape shape = {
		.nr_connections = 8, .nr_immediates = 4096, .message_bytes = 4096};
	struct window *windows[3] = {NULL};
	struct mailbox *mailbox = NULL;
	struct scene *s = rank->ctx;
	int rc;

	if (join(rank, &s->first, rank->rank))
		return;
	if (rank->rank == 1)
		setrlimit(RLIMIT_FSIZE, &limit);
	rc = windows_create(rank->group, WINDOW_BYTES, 1, windows);
	if (rc != TERN_ERR_NOMEM ||
		!strstr(tern_last_error(), "20480 bytes: the limit on files is 20479"))
		rank_fails(rank, "returned %d, %s", rc, tern_last_error());
	rc = mailbox_make(&shape, &mailbox);
	if (rc != (rank->rank == 1 ? TERN_ERR_NOMEM : 0))
		rank_fails(rank, "a mailbox: %d, %s", rc, tern_last_error());
	mailbox_release(mailbox);
	limit.rlim_cur = WINDOW_BYTES;
	setrlimit(RLIMIT_FSIZE, &limit);
	window_body(rank);
	tern_group_destroy(rank->group);
}

static void short_files(void **state)
{
	struct scene *s = scene_open(3, TERN_LOW_LATENCY);
	pid_t pids[MAX_PROCESSES];

	(void)state;
	s->victim = -1;
	scene_start(s, short_files_body, pids);
	scene_finish(s, pids, 0);
	scene_close(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bad_configs),
		cmocka_unit_test(refused_configs_close_their_boot),
		cmocka_unit_test(scheduler_without_engine),
		cmocka_unit_test(bad_settings_of_one_rank),
		cmocka_unit_test(bad_environment),
		cmocka_unit_test(virtual_nodes),
		cmocka_unit_test(transport_is_chosen),
		cmocka_unit_test(paths_are_described),
		cmocka_unit_test(gathering),
		cmocka_unit_test(alone),
		cmocka_unit_test(exhaustion_is_nomem),
		cmocka_unit_test(unknown_node),
		cmocka_unit_test(windows_of_threads),
		cmocka_unit_test(windows_of_processes),
		cmocka_unit_test(window_of_another_size),
		cmocka_unit_test(few_descriptors),
		cmocka_unit_test(threads_are_known),
		cmocka_unit_test(processes_with_one_pid),
		cmocka_unit_test(short_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
