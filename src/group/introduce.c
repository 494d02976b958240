/* SPDX-License-Identifier: Apache-2.0 */
#include "group/introduce.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/environment.h"
#include "base/error.h"

#define LONGEST_NODE 64
#define SHORTEST_SILENCE_MS 500

/* Two words that a child finds empty when it was forked; made when first asked for, and never given
 * back. NULL: no address space. */
static _Atomic uint64_t *words_of_process(void)
{
	static _Atomic(_Atomic uint64_t *) known;
	_Atomic uint64_t *words = atomic_load(&known), *mine;
	size_t bytes = 2 * sizeof(*mine);

	if (words)
		return words;
	mine = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mine == MAP_FAILED)
		return NULL;
	madvise(mine, bytes, MADV_WIPEONFORK); /* where it is refused the pid tells a child */
	if (atomic_compare_exchange_strong(&known, &words, mine))
		return mine;
	munmap(mine, bytes); /* another thread was first */
	return words;
}

/* A random number for this process. Pids and the inodes of their name spaces may be the same for
 * others, which would follow pointers of this one. Each word is set once, by who comes first. */
static int process_identity(uint64_t *process)
{
	_Atomic uint64_t *words = words_of_process();
	uint64_t random[2];

	if (!words)
		return fail_errno("a page for what this process is known by");
	if (getrandom(random, sizeof(random), 0) != sizeof(random))
		return fail_errno("getrandom");
	for (int i = 0; i < 2; i++) {
		process[i] = 0;
		if (atomic_compare_exchange_strong(&words[i], &process[i], random[i] | 1))
			process[i] = random[i] | 1;
	}
	return 0;
}

static uint64_t namespace_inode(const char *path)
{
	struct stat st;

	return stat(path, &st) ? 0 : st.st_ino;
}

/* The config's, else the environment's; NULL: neither. *by: who says so. */
static const char *node_name(const struct tern_group_config *config, const char **by)
{
	*by = config->node ? "node" : "TERN_NODE";
	return config->node ? config->node : getenv("TERN_NODE");
}

/* Ranks that have this text in common can pass descriptors: one kernel, one network namespace
 * (abstract sockets belong to it), and not told apart by setting. */
static int node_identity(char *text, size_t bytes, const char *node)
{
	const char *path = "/proc/sys/kernel/random/boot_id";
	char boot_id[40] = "";
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 && error_of_errno(errno) == TERN_ERR_NOMEM)
		return fail_errno("opening %s", path);
	if (fd >= 0) {
		ssize_t length = read(fd, boot_id, sizeof(boot_id) - 1);

		boot_id[length > 0 ? length : 0] = 0;
		boot_id[strcspn(boot_id, "\n")] = 0;
		close(fd);
	}
	snprintf(text, bytes, "%s/%llu/%s", boot_id,
		(unsigned long long)namespace_inode("/proc/self/ns/net"), node ? node : "");
	return 0;
}

/* Nodes are numbered in the order of their lowest ranks. */
static void assign_nodes(tern_group *group, const struct introduction *all)
{
	const struct introduction *me = &all[group->rank];

	for (int r = 0; r < group->nr_ranks; r++) {
		struct peer *peer = &group->peers[r];
		bool same_node = !strncmp(all[r].node, me->node, NODE_TEXT);
		int first = 0;

		while (strncmp(all[first].node, all[r].node, NODE_TEXT))
			first++;
		peer->node = first == r ? group->nr_nodes++ : group->peers[first].node;
		peer->path = r == group->rank ? TERN_PATH_SELF
			     : same_node      ? TERN_PATH_MAPPED
					      : TERN_PATH_NONE;
		peer->beside = !memcmp(all[r].process, me->process, sizeof(me->process)) &&
			       all[r].pid == me->pid;
		peer->same_process = same_node && peer->beside;
		peer->lifeline = peer->line = -1;
	}
}

/* A descriptor that becomes readable, or hung up, for others when this process ends; passed on to
 * peers, so that process namespaces do not matter. Where there are no pidfds (old kernels, some
 * sandboxes) it is the end of a pipe whose other end this process holds. */
int introduce_lifeline(tern_group *group)
{
	int ends[2];

	group->own_lifeline = (int)syscall(SYS_pidfd_open, getpid(), 0);
	if (group->own_lifeline >= 0)
		return 0;
	if (pipe2(ends, O_CLOEXEC))
		return fail_errno("pidfd_open and pipe");
	group->lifeline = ends[1];
	group->own_lifeline = ends[0];
	return 0;
}

int introduce_guests(tern_group *group)
{
	group->guests = calloc((size_t)group->nr_ranks, sizeof(*group->guests));
	return group->guests ? 0 : fail(TERN_ERR_NOMEM, "no memory for %d peers", group->nr_ranks);
}

/* What may be wrong on one rank and is for all to know. */
static int read_settings(tern_group *group, const struct tern_group_config *config)
{
	const char *by, *node = node_name(config, &by);
	int forced = 0, rc = environment_number("TERN_FORCE_ENGINE", 0, 1, &forced);

	group->engine_forced = config->force_engine || forced;
	rc = rc ? rc : check_range("wait_ms", config->wait_ms, 0, INT_MAX);
	if (!rc && config->silence_ms)
		rc = check_range("silence_ms", config->silence_ms, SHORTEST_SILENCE_MS, INT_MAX);
	if (rc)
		return rc;
	if (node && strlen(node) > LONGEST_NODE)
		return fail(TERN_ERR_INVALID,
			"%s is \"%.*s...\", of %zu bytes; at most %d are possible", by,
			LONGEST_NODE, node, strlen(node), LONGEST_NODE);
	return 0;
}

int introduce_check(const struct introduction *me, const struct introduction *other, int rank)
{
	if (other->abi != me->abi)
		return fail(TERN_ERR_MISMATCH, "rank %d runs another version of Tern than rank %d",
			rank, me->rank);
	if (other->rank == rank && other->nr_ranks == me->nr_ranks)
		return 0;
	return fail(TERN_ERR_MISMATCH,
		"rank %d of %d: in the place of rank %d is one that says it is rank %d of %d",
		me->rank, me->nr_ranks, rank, other->rank, other->nr_ranks);
}

static int exchange_lifelines(tern_group *group, const struct introduction *all)
{
	int rc = introduce_guests(group);

	rc = rc ? rc : introduce_lifeline(group);
	rc = group_agree_status(group, rc, "joining");
	for (int r = 0; r < group->nr_ranks && !rc; r++)
		group->guests[r].address = all[r].address;
	if (!rc) {
		rc = group_pass_fd(group, 0, group->own_lifeline);
		for (int r = 0; r < group->nr_ranks; r++)
			group->peers[r].lifeline = group->guests[r].fd;
		rc = group_agree_status(group, rc, "joining");
	}
	return rc;
}

int introduce_self(
	tern_group *group, const struct tern_group_config *config, struct introduction *me)
{
	const char *by;
	int rc = read_settings(group, config);

	*me = (struct introduction){.abi = (uint64_t)TERN_VERSION_MAJOR << 32 |
					   TERN_VERSION_MINOR << 16 | sizeof(void *),
		.rank = group->rank,
		.nr_ranks = group->nr_ranks,
		.pid = (uint64_t)getpid()};
	group->transport = config->transport ? strdup(config->transport) : NULL;
	if (!rc && config->transport && !group->transport)
		rc = fail(TERN_ERR_NOMEM, "no memory for %d ranks", group->nr_ranks);
	rc = rc ? rc : node_identity(me->node, sizeof(me->node), node_name(config, &by));
	rc = rc ? rc : process_identity(me->process);
	rc = rc ? rc : fd_passing_open(&group->passing);
	if (!rc)
		fd_passing_address(group->passing, &me->address);
	if (!rc && config->rendezvous.get) {
		group->me = malloc(sizeof(*me));
		if (!group->me)
			return fail(TERN_ERR_NOMEM, "no memory for what others are told");
		*group->me = *me;
	}
	return rc;
}

int introduce(tern_group *group, const struct tern_group_config *config)
{
	struct introduction *all = calloc((size_t)group->nr_ranks, sizeof(*all)), me;
	int rc = introduce_self(group, config, &me);

	if (!rc && !all)
		rc = fail(TERN_ERR_NOMEM, "no memory for %d ranks", group->nr_ranks);
	rc = group_agree_status(group, rc, "joining");
	if (!rc)
		rc = group_allgather(group, &me, all, sizeof(me));
	for (int r = 0; r < group->nr_ranks && !rc; r++)
		rc = introduce_check(&me, &all[r], r);
	if (!rc) {
		assign_nodes(group, all);
		rc = exchange_lifelines(group, all);
	}
	free(all);
	return rc;
}
