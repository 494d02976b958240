/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cmd.h"
#include "cli/launch.h"
#include "group/boot/launch_wire.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
	"Usage: tern run -n N [options] [--] program [arguments]\n"
	"Starts N ranks of a program on this machine; tern_boot_env() finds them.\n"
	"\n"
	"  -n, --ranks N      how many ranks\n"
	"  -l, --label        put [rank] before each line of output\n"
	"  -b, --bind         give each rank its share of the cores\n"
	"  -N, --nodes N      spread the ranks over N nodes: network namespaces on a bridge, which "
	"takes root, else by name\n"
	"      --links N      connect the nodes by N links, eth0 and so on, for transports such as "
	"ofi@eth0,eth1 (default 1)\n"
	"      --by-name      tell nodes apart by name alone (TERN_NODE)\n"
	"  -e, --env K=V      set a variable for the ranks; may be repeated\n"
	"  -w, --wait MS      longest wait for other ranks at start (TERN_WAIT_MS; default 30000)\n"
	"  -t, --timeout S    end the job after S seconds, with exit code 124\n"
	"  -g, --grace S      how long the others may go on after a rank has failed (default 5)\n"
	"  -k, --keep-going   let them go on for as long as they like\n"
	"  -h, --help         this text\n"
	"\n"
	"The exit code is that of the first rank that failed (128 + signal if it was killed), 0 if "
	"none did,\n"
	"127 if the program is not there, 125 if the ranks cannot be started.\n";

static const struct option flags[] = {
	{"ranks", required_argument, NULL, 'n'},
	{"label", no_argument, NULL, 'l'},
	{"bind", no_argument, NULL, 'b'},
	{"nodes", required_argument, NULL, 'N'},
	{"links", required_argument, NULL, 'L'},
	{"by-name", no_argument, NULL, 'B'},
	{"env", required_argument, NULL, 'e'},
	{"wait", required_argument, NULL, 'w'},
	{"timeout", required_argument, NULL, 't'},
	{"grace", required_argument, NULL, 'g'},
	{"keep-going", no_argument, NULL, 'k'},
	{"help", no_argument, NULL, 'h'},
	{NULL, 0, NULL, 0},
};

/* A number within 0 (or 1 for ranks) to max, times scale; -1, said, if it is none. */
static int number(const char *flag, const char *text, double min, double max, int scale)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= min) || value > max ||
		(scale == 1 && value != (int)value)) {
		fprintf(stderr, "tern run: %s is \"%s\": a number from %g to %g is needed\n", flag,
			text, min, max);
		return -1;
	}
	return (int)(value * scale);
}

static int add_env(struct launch_options *options, char **env, char *text)
{
	if (!strchr(text, '=') || text[0] == '=') {
		fprintf(stderr, "tern run: --env is \"%s\": K=V is needed\n", text);
		return -1;
	}
	env[options->nr_env++] = text;
	return 0;
}

struct settings {
	struct launch_options launch;
	int nr_nodes, nr_links;
	bool by_name;
};

/* A negative result ends with EXIT_USAGE. */
static int take_flag(struct settings *settings, char **env, int flag)
{
	struct launch_options *options = &settings->launch;

	switch (flag) {
	case 'n':
		return options->nr_ranks = number("-n", optarg, 1, LAUNCH_MAX_RANKS, 1);
	case 'l':
		options->label = true;
		return 0;
	case 'b':
		options->bind = true;
		return 0;
	case 'N':
		return settings->nr_nodes = number("--nodes", optarg, 1, HOSTS_MOST, 1);
	case 'L':
		return settings->nr_links = number("--links", optarg, 1, HOSTS_MOST_LINKS, 1);
	case 'B':
		settings->by_name = true;
		return 0;
	case 'e':
		return add_env(options, env, optarg);
	case 'w':
		return options->wait_ms = number("--wait", optarg, 0, INT_MAX, 1);
	case 't':
		return options->timeout_ms =
			       number("--timeout", optarg, 0.001, INT_MAX / 1000, 1000);
	case 'g':
		return options->grace_ms = number("--grace", optarg, 0, INT_MAX / 1000, 1000);
	case 'k':
		options->keep_going = true;
		return 0;
	}
	fprintf(stderr, "Try 'tern run --help'.\n"); /* getopt has said what is wrong */
	return -1;
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
	struct settings settings = {.nr_nodes = 1, .nr_links = 1};
	int flag;

	launch_options_init(&settings.launch);
	settings.launch.nr_ranks = 0;
	settings.launch.env = env;
	argv[0] = (char *)"tern run"; /* for getopt's messages */
	optind = 1;
	while ((flag = getopt_long(argc, argv, "+n:lbN:e:w:t:g:kh", flags, NULL)) != -1) {
		if (flag == 'h') {
			fputs(usage, stdout);
			return 0;
		}
		if (take_flag(&settings, env, flag) < 0)
			return EXIT_USAGE;
	}
	if (!settings.launch.nr_ranks || optind == argc) {
		fprintf(stderr, "tern run: %s\nTry 'tern run --help'.\n",
			settings.launch.nr_ranks ? "which program?" : "how many ranks? Say -n N");
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
