/* SPDX-License-Identifier: Apache-2.0 */
/* In the build without marks: its sibling that has them does it all. */
#include "bench/command/start.h"
#include "bench/command/trace.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int trace_command(const struct bench_args *args, int argc, char **argv)
{
	char **command, path[PATH_MAX];

	if (!args->trace)
		return 0;
	if (find_self(args, path, sizeof(path) - sizeof("-traced")))
		return 1;
	strcat(path, "-traced");
	command = calloc((size_t)argc + 2, sizeof(*command));
	if (command) {
		command[0] = path;
		command[1] = (char *)"bench";
		memcpy(command + 2, argv + 1, (size_t)(argc - 1) * sizeof(*command));
		execv(path, command);
	}
	fprintf(stderr, "%s: --trace: %s: %s; `make traced` builds it\n", args->program, path,
		strerror(errno));
	free(command);
	return 1;
}

int trace_file_open(const struct bench_args *args, tern_group *group, struct trace_file **file)
{
	(void)args;
	(void)group;
	*file = NULL;
	return 0;
}

int trace_rounds(struct trace_file *file, struct rounds *rounds)
{
	(void)file;
	(void)rounds;
	return 0;
}

int trace_device_begin(struct trace_file *file, struct device_rounds *rounds)
{
	(void)file;
	(void)rounds;
	return 0;
}

int trace_device_rounds(
	struct trace_file *file, struct device_rounds *rounds, struct device_graph *graph)
{
	(void)graph;
	(void)file;
	(void)rounds;
	return 0;
}

int trace_file_add(struct trace_file *file, const struct bench_case *bench_case)
{
	(void)file;
	(void)bench_case;
	return 0;
}

int trace_file_close(struct trace_file *file)
{
	(void)file;
	return 0;
}
