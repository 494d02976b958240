/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/command/start.h"
#include "cli/cmd.h"
#include "cli/launch.h"
#include "engine/offers.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_RANKS 4

bool is_against(const struct bench_args *args, const char *what)
{
	return args->against && !strcmp(args->against, what);
}

int fail_with(const struct bench_args *args, const char *what, int rc)
{
	fprintf(stderr, "%s: %s: %s: %s\n", args->program, what, tern_strerror(rc),
		tern_last_error());
	return rc == TERN_ERR_INVALID ? EXIT_USAGE : 1;
}

int transport_check(const char *transport)
{
	struct tern_engine_config config;
	struct network_list list = {0};
	int rc;

	tern_engine_config_init(&config);
	config.transport = transport;
	rc = network_list_parse(&config, &list);
	free(list.texts);
	return rc;
}

/* ---- starting ranks -------------------------------------------------------------------------- */

int find_self(const struct bench_args *args, char *path, size_t size)
{
	ssize_t length = readlink("/proc/self/exe", path, size - 1);

	if (length < 0) {
		fprintf(stderr, "%s: /proc/self/exe: %s\n", args->program, strerror(errno));
		return -1;
	}
	path[length] = 0;
	return 0;
}

static int launch_self(const struct bench_args *args, uint32_t nr_ranks, int argc, char **argv)
{
	struct launch_options options;
	struct hosts hosts;
	char self[PATH_MAX];
	char **command;
	int rc;

	if (find_self(args, self, sizeof(self)))
		return 1;
	command = calloc((size_t)argc + 2, sizeof(*command));
	if (!command)
		return fail_with(args, "starting ranks", TERN_ERR_NOMEM);
	command[0] = self;
	command[1] = (char *)"bench";
	memcpy(command + 2, argv + 1, (size_t)(argc - 1) * sizeof(*command));
	launch_options_init(&options);
	options.nr_ranks = (int)nr_ranks;
	options.quiet = true; /* the ranks report their failures, in more detail */
	options.name = args->program;
	if (args->transport)
		setenv("TERN_TRANSPORT", args->transport, 1);
	rc = hosts_open(&hosts, args->nr_nodes ? (int)args->nr_nodes : 1, 1, true, args->program);
	if (!rc) {
		options.hosts = &hosts;
		rc = launch_ranks(&options, command);
		hosts_close(&hosts);
	}
	free(command);
	if (rc > 128)
		fprintf(stderr, "%s: a rank was killed by signal %d\n", args->program, rc - 128);
	return rc;
}

/* ---- against another library ----------------------------------------------------------------- */

static bool in_path(const char *program)
{
	const char *path = getenv("PATH");
	char copy[4096], candidate[PATH_MAX], *folder, *rest = copy;

	if (!path || strlen(path) >= sizeof(copy))
		return false;
	strcpy(copy, path);
	while ((folder = strsep(&rest, ":"))) {
		snprintf(candidate, sizeof(candidate), "%s/%s", folder, program);
		if (!access(candidate, X_OK))
			return true;
	}
	return false;
}

/* The program beside this one, or -1 with a message about what is missing. */
static int find_against(const struct bench_args *args, char *program, size_t size)
{
	char self[PATH_MAX], *slash;

	if (find_self(args, self, sizeof(self)))
		return -1;
	slash = strrchr(self, '/');
	if (slash)
		*slash = 0;
	if (snprintf(program, size, "%.3900s/tern-against-mpi", self) >= (int)size)
		return -1;
	if (access(program, X_OK)) {
		fprintf(stderr,
			"%s: --against mpi needs %s: %s. `make` builds it where it finds mpicc\n",
			args->program, program, strerror(errno));
		return -1;
	}
	if (!in_path("mpirun")) {
		fprintf(stderr,
			"%s: --against mpi needs mpirun, which is not in PATH; install an MPI such "
			"as Open MPI\n",
			args->program);
		return -1;
	}
	return 0;
}

/* True for flags that are ours alone; *skip: how many words they take. */
static bool is_ours(const char *word, int *skip)
{
	static const char *const ours[] = {"--ranks", "--against", "--json"};
	unsigned int i;

	for (i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
		size_t length = strlen(ours[i]);

		if (strncmp(word, ours[i], length) || (word[length] && word[length] != '='))
			continue;
		*skip = word[length] ? 1 : 2;
		return true;
	}
	return false;
}

static int exec_against(const struct bench_args *args, const char *program, uint32_t nr_ranks,
	int argc, char **argv)
{
	char number[16];
	char **command = calloc((size_t)argc + 8, sizeof(*command));
	int i, skip, at = 0;

	if (!command)
		return fail_with(args, "mpirun", TERN_ERR_NOMEM);
	snprintf(number, sizeof(number), "%u", nr_ranks);
	command[at++] = (char *)"mpirun";
	command[at++] = (char *)"--allow-run-as-root";
	command[at++] = (char *)"--oversubscribe";
	command[at++] = (char *)"-n";
	command[at++] = number;
	command[at++] = (char *)program;
	for (i = 1; i < argc; i += skip) {
		skip = 1;
		if (!is_ours(argv[i], &skip))
			command[at++] = argv[i];
	}
	fflush(NULL);
	execvp(command[0], command);
	fprintf(stderr, "%s: mpirun: %s\n", args->program, strerror(errno));
	free(command);
	return 1;
}

int bench_start(const struct bench_args *args, int argc, char **argv)
{
	uint32_t nr_ranks = args->nr_ranks ? args->nr_ranks : DEFAULT_RANKS;
	char program[PATH_MAX];
	bool mpi = is_against(args, "mpi");
	int rc;

	if (mpi && find_against(args, program, sizeof(program)))
		return 1;
	rc = launch_self(args, nr_ranks, argc, argv);
	if (rc || !mpi)
		return rc;
	return exec_against(args, program, nr_ranks, argc, argv);
}
