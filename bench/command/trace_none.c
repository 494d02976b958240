/* SPDX-License-Identifier: Apache-2.0 */
/* In the build without marks: its sibling that has them does it all. */
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
	ssize_t length;

	if (!args->trace)
		return 0;
	command = calloc((size_t)argc + 2, sizeof(*command));
	length = readlink("/proc/self/exe", path, sizeof(path) - sizeof("-traced"));
	if (command && length > 0) {
		strcpy(path + length, "-traced");
		command[0] = path;
		command[1] = (char *)"bench";
		memcpy(command + 2, argv + 1, (size_t)(argc - 1) * sizeof(*command));
		execv(path, command);
	}
	fprintf(stderr, "%s: --trace: %s: %s; `make traced` builds it\n", args->program,
		length > 0 ? path : "/proc/self/exe", strerror(errno));
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
