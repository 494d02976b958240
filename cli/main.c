/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cmd.h"
#include "tern.h"

#include <stdio.h>
#include <string.h>

static int cmd_help(int argc, char **argv);
static int cmd_version(int argc, char **argv);

static const struct command {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *what;
} commands[] = {
	{"run", cmd_run, "start ranks of a program on this machine"},
	{"bench", cmd_bench, "measure dispatch and combine"},
	{"soak", cmd_soak, "try the exchange on a simulated network, with faults"},
	{"balance", cmd_balance, "plan where experts should live, from recorded loads"},
	{"info", cmd_info, "what this build and this machine offer"},
	{"doctor", cmd_doctor, "which networks work here, and what to do where not"},
	{"help", cmd_help, "this text"},
	{"version", cmd_version, "the version"},
};

#define NR_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static int cmd_version(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	printf("tern %s\n", tern_version());
	return 0;
}

static int cmd_help(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	printf("Tern %s: dispatch and combine for expert parallelism.\n\nUsage: tern <command> "
	       "[options]\n\n",
		tern_version());
	for (size_t i = 0; i < NR_COMMANDS; i++)
		printf("  %-8s %s\n", commands[i].name, commands[i].what);
	printf("\n'tern <command> --help' tells a command's options. The exit code is 0 when all "
	       "went\n"
	       "well, 1 when something failed, 2 when the command line was wrong; 'tern run' has "
	       "those of\n"
	       "its ranks.\n");
	return 0;
}

/* The usual flags are names of commands, too. */
static const char *name_of(const char *word)
{
	if (!strcmp(word, "--version") || !strcmp(word, "-V"))
		return "version";
	if (!strcmp(word, "--help") || !strcmp(word, "-h"))
		return "help";
	return word;
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		cmd_help(0, NULL);
		return EXIT_USAGE;
	}
	for (size_t i = 0; i < NR_COMMANDS; i++)
		if (!strcmp(name_of(argv[1]), commands[i].name))
			return commands[i].run(argc - 1, argv + 1);
	fprintf(stderr, "tern: there is no command \"%s\".\nTry 'tern help'.\n", argv[1]);
	return EXIT_USAGE;
}
