/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cmd.h"
#include "cli/launch.h"
#include "group/boot/launch_wire.h"
#include "testkit/options.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct settings {
	struct launch_options launch;
	char **env;
	int nr_nodes, nr_links;
	bool by_name;
};

/* A number from min to max, times scale. -1, said, if it is none. */
static int number(const char *flag, const char *text, double min, double max, int scale, int *into)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= min) || value > max ||
		(scale == 1 && value != (int)value)) {
		fprintf(stderr, "tern run: %s is \"%s\": a number from %g to %g is needed\n", flag,
			text, min, max);
		return -1;
	}
	*into = (int)(value * scale);
	return 0;
}

static int set_scaled(void *args, const struct option_row *row, const char *text, int scale)
{
	char flag[24];
	int value;

	snprintf(flag, sizeof(flag), "--%s", row->name);
	if (number(flag, text, (double)row->least / scale, (double)row->most, scale, &value))
		return -1;
	option_store(args, row, (uint64_t)value);
	return 0;
}

static int set_whole(void *args, const struct option_row *row, const char *text)
{
	return set_scaled(args, row, text, 1);
}

/* Milliseconds, given in seconds; least is in milliseconds, too. */
static int set_seconds(void *args, const struct option_row *row, const char *text)
{
	return set_scaled(args, row, text, 1000);
}

static int set_ranks(void *ctx, const struct option_row *row, const char *text)
{
	struct settings *settings = ctx;

	return number(
		"-n", text, (double)row->least, (double)row->most, 1, &settings->launch.nr_ranks);
}

static int add_env(void *ctx, const struct option_row *row, const char *text)
{
	struct settings *settings = ctx;

	(void)row;
	if (!strchr(text, '=') || text[0] == '=') {
		fprintf(stderr, "tern run: --env is \"%s\": K=V is needed\n", text);
		return -1;
	}
	settings->env[settings->launch.nr_env++] = (char *)(uintptr_t)text;
	return 0;
}

#define FIELD(field) OPTION_FIELD(struct settings, field)
#define FLAG(field) .set = option_flag, FIELD(field)
#define WHOLE(field, from, to) .set = set_whole, FIELD(field), .least = from, .most = to
#define SECONDS(field, from, to) .set = set_seconds, FIELD(field), .least = from, .most = to

static const struct option_row options[] = {
	{.help = "Ranks"},
	{.name = "ranks",
		.letter = 'n',
		.argument = "N",
		.set = set_ranks,
		.least = 1,
		.most = LAUNCH_MAX_RANKS,
		.help = "how many ranks"},
	{.name = "label",
		.letter = 'l',
		FLAG(launch.label),
		.help = "put [rank] before each line of output"},
	{.name = "bind",
		.letter = 'b',
		FLAG(launch.bind),
		.help = "give each rank its share of the cores"},
	{.name = "env",
		.letter = 'e',
		.argument = "K=V",
		.set = add_env,
		.help = "set a variable for the ranks; may be repeated"},
	{.help = "Nodes"},
	{.name = "nodes",
		.letter = 'N',
		.argument = "N",
		WHOLE(nr_nodes, 1, HOSTS_MOST),
		.help = "spread the ranks over N nodes: network namespaces on a bridge, which "
			"takes root, else by name"},
	{.name = "links",
		.argument = "N",
		WHOLE(nr_links, 1, HOSTS_MOST_LINKS),
		.help = "connect the nodes by N links, eth0 and so on, for transports such as "
			"ofi@eth0,eth1 (default #)"},
	{.name = "by-name", FLAG(by_name), .help = "tell nodes apart by name alone (TERN_NODE)"},
	{.help = "How long"},
	{.name = "wait",
		.letter = 'w',
		.argument = "MS",
		WHOLE(launch.wait_ms, 0, INT_MAX),
		.help = "longest wait for other ranks at start (TERN_WAIT_MS; default 30000)"},
	{.name = "timeout",
		.letter = 't',
		.argument = "S",
		SECONDS(launch.timeout_ms, 1, INT_MAX / 1000),
		.help = "end the job after S seconds, with exit code 124"},
	{.name = "grace",
		.letter = 'g',
		.argument = "S",
		SECONDS(launch.grace_ms, 0, INT_MAX / 1000),
		.help = "how long the others may go on after a rank has failed (default 5)"},
	{.name = "keep-going",
		.letter = 'k',
		FLAG(launch.keep_going),
		.help = "let them go on for as long as they like"},
	{.name = "elastic",
		.letter = 'E',
		FLAG(launch.elastic),
		.help = "a rank that is killed is no failure while another ends well"},
	{.name = "restart",
		.letter = 'r',
		.argument = "N",
		WHOLE(launch.restarts, 0, INT_MAX),
		.help = "with --elastic: start a rank that is killed anew, up to N times; it joins "
			"the others (TERN_RESTARTS)"},
	{.name = "help", .letter = 'h', .set = option_help, .help = "this text"},
	{0},
};

static void set_defaults(struct settings *settings, char **env)
{
	*settings = (struct settings){.nr_nodes = 1, .nr_links = 1, .env = env};
	launch_options_init(&settings->launch);
	settings->launch.nr_ranks = 0;
	settings->launch.env = env;
}

static void usage(void)
{
	struct settings defaults;

	set_defaults(&defaults, NULL);
	fputs("Usage: tern run -n N [options] [--] program [arguments]\n"
	      "Starts N ranks of a program on this machine; tern_boot_env() finds them.\n",
		stdout);
	options_print(options, &defaults, stdout);
	fputs("\n"
	      "The exit code is that of the first rank that failed (128 + signal if it was "
	      "killed), 0 if none\n"
	      "did, 127 if the program is not there, 125 if the ranks cannot be started.\n",
		stdout);
}

static int launch_on_nodes(struct settings *settings, char *const argv[])
{
	struct hosts hosts;
	int rc;

	if (hosts_open(&hosts, settings->nr_nodes, settings->nr_links, !settings->by_name,
		    settings->launch.name))
		return LAUNCH_EXIT_ERROR;
	settings->launch.hosts = &hosts;
	rc = launch_ranks(&settings->launch, argv);
	hosts_close(&hosts);
	return rc;
}

static int run(int argc, char **argv, char **env)
{
	struct settings settings;
	int rc;

	set_defaults(&settings, env);
	argv[0] = (char *)"tern run"; /* for getopt's messages */
	rc = options_parse(options, &settings, argc, argv, true);
	if (rc == OPTIONS_UNKNOWN)
		fprintf(stderr, "Try 'tern run --help'.\n");
	if (rc == OPTIONS_HELP)
		usage();
	if (rc)
		return rc == OPTIONS_HELP ? 0 : EXIT_USAGE;
	if (!settings.launch.nr_ranks || optind == argc) {
		fprintf(stderr, "tern run: %s\nTry 'tern run --help'.\n",
			settings.launch.nr_ranks ? "which program?" : "how many ranks? Say -n N");
		return EXIT_USAGE;
	}
	if (settings.launch.restarts && !settings.launch.elastic) {
		fprintf(stderr, "tern run: --restart is for jobs that are --elastic\n");
		return EXIT_USAGE;
	}
	return launch_on_nodes(&settings, argv + optind);
}

int cmd_run(int argc, char **argv)
{
	char **env = calloc((size_t)argc, sizeof(*env)); /* as many as there can be */
	int rc;

	if (!env) {
		fprintf(stderr, "tern run: no memory\n");
		return LAUNCH_EXIT_ERROR;
	}
	rc = run(argc, argv, env);
	free(env);
	return rc;
}
