/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands, each with a table of its options (struct option_row). argv[0] is its name; the
 * result is the exit code. */
#ifndef TERN_CLI_CMD_H
#define TERN_CLI_CMD_H

#define EXIT_USAGE 2

int cmd_run(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_bench_signal(int argc, char **argv);
int cmd_soak(int argc, char **argv);
int cmd_soak_views(int argc, char **argv); /* from "--views" on */
int cmd_balance(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_doctor(int argc, char **argv);

#endif
