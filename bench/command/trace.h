/* SPDX-License-Identifier: Apache-2.0 */
/* tern bench --trace FILE: what each rank's threads do in some rounds of each case, for
 * ui.perfetto.dev. Marks are in a second build of the command alone (tern-traced, with trace.c);
 * the first one runs it in its place (trace_none.c). */
#ifndef TERN_BENCH_COMMAND_TRACE_H
#define TERN_BENCH_COMMAND_TRACE_H

#include "bench/command/args.h"
#include "bench/command/rounds.h"

#define TRACED_ROUNDS 4

struct trace_file;
struct device_graph;
struct device_rounds;

/* Before anything else is done. In the build without marks it comes back only with an exit status,
 * that of a build with marks that is not there; otherwise 0. */
int trace_command(const struct bench_args *args, int argc, char **argv);

/* Collective, as all below; *file is NULL where no trace is wanted. 0, or an enum tern_error: the
 * ranks lost each other, or on rank 0 FILE cannot be written, which all of them are told. */
int trace_file_open(const struct bench_args *args, tern_group *group, struct trace_file **file);

/* TRACED_ROUNDS more rounds, whose marks are kept. */
int trace_rounds(struct trace_file *file, struct rounds *rounds);

/* Likewise on a device: before its graphs are captured, and then of one of them. */
int trace_device_begin(struct trace_file *file, struct device_rounds *rounds);
int trace_device_rounds(
	struct trace_file *file, struct device_rounds *rounds, struct device_graph *graph);

/* Into the file, as what this case did. */
int trace_file_add(struct trace_file *file, const struct bench_case *bench_case);

/* The file is whole only then. */
int trace_file_close(struct trace_file *file);

#endif
