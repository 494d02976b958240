/* SPDX-License-Identifier: Apache-2.0 */
/* tern bench where no launcher has started its ranks: starts them, and then the program that it is
 * compared with. */
#ifndef TERN_BENCH_COMMAND_START_H
#define TERN_BENCH_COMMAND_START_H

#include "bench/command/args.h"

/* The path of this program; -1: why not has been said on stderr. */
int find_self(const struct bench_args *args, char *path, size_t size);

/* The exit code. */
int bench_start(const struct bench_args *args, int argc, char **argv);

/* Whether an engine would understand it: 0, or an error with its text. */
int transport_check(const char *transport);

bool is_against(const struct bench_args *args, const char *what);

/* Says what failed, and why, on stderr; returns the exit code. */
int fail_with(const struct bench_args *args, const char *what, int rc);

#endif
