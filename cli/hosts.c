/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS 16

extern char **environ;

/* Runs one ip(8) command, words separated by blanks; its own complaints are not shown. 0 when it
 * succeeded. */
static int ip(const char *format, ...) __attribute__((format(printf, 1, 2)));

static int ip(const char *format, ...)
{
	char line[256], *words[WORDS + 1], *save = NULL;
	posix_spawn_file_actions_t files;
	int status = -1, nr = 0;
	va_list args;
	pid_t pid;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	words[nr++] = "ip";
	for (char *word = strtok_r(line, " ", &save); word && nr < WORDS;
		word = strtok_r(NULL, " ", &save))
		words[nr++] = word;
	words[nr] = NULL;
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
	posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
	if (!posix_spawnp(&pid, "ip", &files, NULL, words, environ))
		while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
			;
	posix_spawn_file_actions_destroy(&files);
	return status;
}

/* The hub holds a bridge for each link; each node has one end of a pair, named eth0 and so on, and
 * the hub the other. */
static int add_link(const struct hosts *n, int node, int link)
{
	int rc = ip("-n tern-%d-hub link add port%d-%d type veth peer name eth%d netns tern-%d-%d",
		n->id, link, node, link, n->id, node);

	rc = rc ? rc
		: ip("-n tern-%d-hub link set port%d-%d master bridge%d up", n->id, link, node,
			  link);
	rc = rc ? rc
		: ip("-n tern-%d-%d addr add 10.77.%d.%d/24 dev eth%d", n->id, node, link, node + 1,
			  link);
	return rc ? rc : ip("-n tern-%d-%d link set eth%d up", n->id, node, link);
}

static int add_node(const struct hosts *n, int node)
{
	int rc = ip("netns add tern-%d-%d", n->id, node);

	for (int link = 0; link < n->nr_links && !rc; link++)
		rc = add_link(n, node, link);
	return rc ? rc : ip("-n tern-%d-%d link set lo up", n->id, node);
}

static int add_namespaces(const struct hosts *n)
{
	int rc = ip("netns add tern-%d-hub", n->id);

	for (int link = 0; link < n->nr_links && !rc; link++) {
		rc = ip("-n tern-%d-hub link add bridge%d type bridge", n->id, link);
		rc = rc ? rc : ip("-n tern-%d-hub link set bridge%d up", n->id, link);
	}
	for (int node = 0; node < n->nr && !rc; node++)
		rc = add_node(n, node);
	return rc;
}

static void drop_namespaces(const struct hosts *n)
{
	for (int node = 0; node < n->nr; node++)
		ip("netns del tern-%d-%d", n->id, node);
	ip("netns del tern-%d-hub", n->id);
}

int hosts_open(struct hosts *hosts, int nr, int nr_links, bool namespaces, const char *name)
{
	*hosts = (struct hosts){.nr = nr, .nr_links = nr_links, .id = (int)getpid()};
	if (nr < 1 || nr > HOSTS_MOST) {
		fprintf(stderr, "%s: %d nodes; 1 to %d are possible\n", name, nr, HOSTS_MOST);
		return -1;
	}
	if (nr == 1 || !namespaces)
		return 0;
	hosts->namespaces = !add_namespaces(hosts);
	if (hosts->namespaces)
		return 0;
	drop_namespaces(hosts); /* whatever part of them was made */
	fprintf(stderr,
		"%s: no network namespaces (they take root and iproute2); nodes are told apart by "
		"name alone\n",
		name);
	return 0;
}

void hosts_close(const struct hosts *hosts)
{
	if (hosts->namespaces)
		drop_namespaces(hosts);
}

int hosts_of_rank(const struct hosts *hosts, int rank, int nr_ranks)
{
	return (int)((long)rank * hosts->nr / nr_ranks);
}

static int enter_namespace(const struct hosts *hosts, int node)
{
	char text[64];
	int fd, rc;

	snprintf(text, sizeof(text), "/run/netns/tern-%d-%d", hosts->id, node);
	fd = open(text, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	rc = setns(fd, CLONE_NEWNET);
	close(fd);
	snprintf(text, sizeof(text), "10.77.0.%d", node + 1);
	return rc ? rc : setenv("TERN_NODE_ADDRESS", text, 1);
}

int hosts_enter(const struct hosts *hosts, int node)
{
	char text[16];

	if (hosts->nr <= 1)
		return 0;
	snprintf(text, sizeof(text), "%d", node);
	if (setenv("TERN_NODE", text, 1))
		return -1;
	return hosts->namespaces ? enter_namespace(hosts, node) : 0;
}
