/* SPDX-License-Identifier: Apache-2.0 */
/* tern bench signal: what it costs to send a signal behind a put, by policy. */
#include "cli/cmd.h"
#include "bench/command/start.h"
#include "bench/signal/signal.h"
#include "testkit/options.h"
#include "tern.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "tern bench signal"

struct arguments {
	struct signal_job job;
	bool policies[NR_SIGNAL_POLICIES];
	uint32_t nr_nodes;
	const char *transport;
	const char *json;
	bool bare; /* without the engine */
	bool help;
};

/* ---- arguments ------------------------------------------------------------------------------- */

static int parse_whole(const char *text, uint64_t most, uint64_t *value)
{
	unsigned long long number;
	int shift = 0;
	char *end;

	errno = 0;
	number = strtoull(text, &end, 10);
	if (*end == 'K' || *end == 'M')
		shift = *end++ == 'K' ? 10 : 20;
	if (errno || *end || end == text || *text == '-' || number > most >> shift) {
		fprintf(stderr, NAME ": \"%.40s\" is not a number from 0 to %llu\n", text,
			(unsigned long long)most);
		return -1;
	}
	*value = number << shift;
	return 0;
}

static int set_number(void *args, const struct option_row *row, const char *text)
{
	uint64_t value;
	int rc = parse_whole(text, row->most, &value);

	if (!rc)
		option_store(args, row, value);
	return rc;
}

static int set_zipf(void *ctx, const struct option_row *row, const char *text)
{
	double *value = &((struct arguments *)ctx)->job.zipf;
	char *end;

	(void)row;
	*value = strtod(text, &end);
	if (end != text && !*end && *value >= 0 && *value <= 4)
		return 0;
	fprintf(stderr, NAME ": --zipf is \"%.40s\", not a number from 0 to 4\n", text);
	return -1;
}

static int parse_policy(struct arguments *args, const char *name, size_t length)
{
	unsigned int i;
	bool all = length == 3 && !strncmp(name, "all", 3), known = all;

	for (i = 0; i < NR_SIGNAL_POLICIES; i++) {
		const char *policy = signal_policy_name((enum signal_policy)i);

		if (!all && (strlen(policy) != length || strncmp(policy, name, length)))
			continue;
		args->policies[i] = known = true;
	}
	if (!known)
		fprintf(stderr, NAME ": there is no policy \"%.*s\"\n",
			(int)(length < 40 ? length : 40), name);
	return known ? 0 : -1;
}

static int set_policies(void *ctx, const struct option_row *row, const char *text)
{
	struct arguments *args = ctx;

	(void)row;
	memset(args->policies, 0, sizeof(args->policies));
	for (;;) {
		size_t length = strcspn(text, ",");

		if (parse_policy(args, text, length))
			return -1;
		if (!text[length])
			return 0;
		text += length + 1;
	}
}

static int set_spread(void *ctx, const struct option_row *row, const char *text)
{
	struct arguments *args = ctx;

	(void)row;
	args->job.spread_all = !strcmp(text, "all");
	if (args->job.spread_all || !strcmp(text, "remote"))
		return 0;
	fprintf(stderr, NAME ": --spread is \"%.40s\", not all or remote\n", text);
	return -1;
}

#define FIELD(field) OPTION_FIELD(struct arguments, field)
#define NUMBER(field, to) .set = set_number, FIELD(field), .most = to
#define COUNT(field) NUMBER(field, 1u << 20)
#define NS(field) .argument = "NS", NUMBER(field, 1000000000)

static const struct option_row options[] = {
	{.help = "What is sent"},
	{.name = "policy",
		.argument = "LIST",
		.set = set_policies,
		.help = "put-only, coupled, coupled-all-peers, decoupled, nic-fence, perseus, imm, "
			"or all (all)"},
	{.name = "transport",
		.argument = "NAME",
		.set = option_text,
		FIELD(transport),
		.help = "sim: virtual time; shm, ofi or ofi:PROVIDER: real time, rank 0 sends to "
			"--peers threads (sim)"},
	{.name = "bare",
		.set = option_flag,
		FIELD(bare),
		.help = "policies written out over the bare transport, without the engine"},
	{.name = "nodes", .argument = "N", COUNT(nr_nodes), .help = "how many (#)"},
	{.name = "ranks-per-node",
		.argument = "N",
		COUNT(job.ranks_per_node),
		.help = "how many on each (#)"},
	{.name = "concurrency",
		.argument = "N",
		COUNT(job.concurrency),
		.help = "transfers of each rank (#)"},
	{.name = "bytes",
		.argument = "N",
		NUMBER(job.bytes, 1u << 30),
		.help = "of a transfer; K and M are understood (#)"},
	{.name = "spread",
		.argument = "all|remote",
		.set = set_spread,
		.help = "deal them to all ranks and send those for other nodes, or to remote ranks "
			"alone (all)"},
	{.name = "peers",
		.argument = "N",
		COUNT(job.nr_peers),
		.help = "deal them to so many remote ranks; 0: all (#)"},
	{.name = "group",
		.argument = "N",
		COUNT(job.group),
		.help = "peers that share one drain, under decoupled and perseus; 0: all (#)"},
	{.name = "zipf",
		.argument = "X",
		.set = set_zipf,
		.help = "skew of the peers' popularity (0)"},
	{.name = "drained",
		.argument = "N",
		COUNT(job.nr_drained),
		.help = "ranks that each drain looks at; 0: one, or all others under "
			"coupled-all-peers (#)"},
	{.name = "one-sender",
		.set = option_flag,
		FIELD(job.one_sender),
		.help = "rank 0 sends alone"},
	{.name = "compute-ns",
		NS(job.compute_ns),
		.help = "what a rank computes of what comes, tile by tile, as signals say that it "
			"is "
			"there (#)"},
	{.name = "seed",
		.argument = "N",
		NUMBER(job.seed, UINT64_MAX),
		.help = "of all that is drawn (#)"},
	{.name = "iters", .argument = "N", COUNT(job.iters), .help = "measured iterations (#)"},
	{.help = "The model, explained in docs/signals.md"},
	{.name = "post-ns", NS(job.network.nic.post_ns), .help = "the proxy, for a put (#)"},
	{.name = "signal-post-ns", NS(job.network.nic.inline_post_ns), .help = "for a signal (#)"},
	{.name = "drain-ns", NS(job.drain_ns), .help = "for each look of a drain (#)"},
	{.name = "latency-ns", NS(job.network.far.latency_ns), .help = "one way (#)"},
	{.name = "jitter-ns",
		NS(job.network.far.jitter_ns),
		.help = "up to this much more, drawn for each write (#)"},
	{.name = "completion-ns",
		NS(job.network.nic.completion_ns),
		.help = "until the sender's NIC reports what was acknowledged (#)"},
	{.name = "bytes-per-second",
		.argument = "N",
		NUMBER(job.network.nic.bytes_per_second, 1000000000000),
		.help = "out of a NIC, and into it (#)"},
	{.name = "request-ns",
		NS(job.network.nic.request_ns),
		.help = "a NIC's least time between two writes (#)"},
	{.name = "queue-pairs",
		.argument = "N",
		COUNT(job.network.nic.nr_queue_pairs),
		.help = "peers are pinned to so many queue pairs; 0: one each (#)"},
	{.help = "Output"},
	{.name = "json",
		.argument = "FILE",
		.set = option_text,
		FIELD(json),
		.help = "- is standard output"},
	{.name = "help", .set = option_flag, FIELD(help), .help = "this text"},
	{0},
};

static bool is_real(const struct arguments *args)
{
	return strcmp(args->transport, "sim") != 0;
}

/* Each rank is a node of its own, and as few of them as there are peers: they share this machine's
 * cores. */
static void make_real(struct arguments *args)
{
	args->job.nr_peers = args->job.nr_peers ? args->job.nr_peers : 2;
	args->nr_nodes = args->job.nr_peers + 1;
	args->job.ranks_per_node = 1;
	args->job.one_sender = true;
	args->job.spread_all = false;
}

static int check(struct arguments *args)
{
	struct reason why;

	if (is_real(args) && transport_check(args->transport)) {
		fprintf(stderr, NAME ": --transport: %s\n", tern_last_error());
		return -1;
	}
	if (args->job.compute_ns && (is_real(args) || args->bare)) {
		fprintf(stderr,
			NAME ": --compute-ns is for the engine in virtual time, not for "
			     "--transport %s%s\n",
			args->transport, args->bare ? " --bare" : "");
		return -1;
	}
	if (is_real(args))
		make_real(args);
	if (!args->job.iters || args->nr_nodes < 2 || args->nr_nodes > 256 ||
		args->job.ranks_per_node > 256) {
		fprintf(stderr, NAME ": at least 1 iteration, 2 to 256 nodes and at most 256 ranks "
				     "on each are needed\n");
		return -1;
	}
	args->job.nr_ranks = args->nr_nodes * args->job.ranks_per_node;
	if (is_real(args) && args->job.nr_ranks > 64) {
		fprintf(stderr, NAME ": at most 63 peers on real networks, as all ranks are "
				     "threads of this process\n");
		return -1;
	}
	if (!signal_job_check(&args->job, &why))
		return 0;
	fprintf(stderr, NAME ": %s\n", why.text);
	return -1;
}

static void set_defaults(struct arguments *args)
{
	memset(args, 0, sizeof(*args));
	signal_job_init(&args->job);
	args->transport = "sim";
	args->nr_nodes = 8;
	set_policies(args, NULL, "all");
}

static void usage(void)
{
	struct arguments defaults;

	set_defaults(&defaults);
	fputs("Usage: tern bench signal [options]\n"
	      "Every rank sends transfers to ranks of other nodes, each a put and the word that "
	      "says "
	      "it has\n"
	      "landed.\n",
		stdout);
	options_print(options, &defaults, stdout);
}

static int parse(struct arguments *args, int argc, char **argv)
{
	set_defaults(args);
	argv[0] = (char *)NAME; /* for getopt's messages */
	if (options_parse(options, args, argc, argv, false))
		return -1;
	if (optind < argc) {
		fprintf(stderr, NAME ": \"%.40s\" is not an option\n", argv[optind]);
		return -1;
	}
	return args->help ? 0 : check(args);
}

/* ---- results --------------------------------------------------------------------------------- */

static void print_head(const struct arguments *args)
{
	const struct signal_job *job = &args->job;

	printf("# tern %s, %s: %u nodes of %u ranks, %u transfers of %llu bytes a rank%s, group "
	       "%u, zipf %g, seed %llu, %u iterations\n",
		tern_version(), is_real(args) ? args->transport : "simulated", args->nr_nodes,
		job->ranks_per_node, job->concurrency, (unsigned long long)job->bytes,
		job->spread_all && !job->nr_peers ? " dealt to all ranks" : "", job->group,
		job->zipf, (unsigned long long)job->seed, job->iters);
	printf("# %-18s %9s %11s %11s %11s %11s %11s %8s %8s %7s\n", "policy", "transfers",
		"time us", "min", "max", "layer us", "fences us", "drains", "held", "#wrong");
}

static void print_result(enum signal_policy policy, const struct signal_result *result)
{
	char layer[24] = "-";

	if (result->layer_us > 0)
		snprintf(layer, sizeof(layer), "%.1f", result->layer_us);
	printf("  %-18s %9.1f %11.1f %11.1f %11.1f %11s %11.1f %8.1f %8.1f %7llu\n",
		signal_policy_name(policy), result->transfers, result->time_us, result->min_us,
		result->max_us, layer, result->fence_us, result->drains, result->fences_waited,
		(unsigned long long)(result->nr_wrong + result->early));
	fflush(stdout);
}

static void json_settings(FILE *file, const struct arguments *args)
{
	const struct signal_job *job = &args->job;
	const struct sim_nic *nic = &job->network.nic;

	fprintf(file,
		"{\"tern\": \"%s\", \"transport\": \"%s\", \"virtual_time\": %s, \"engine\": %s, "
		"\"settings\": {\"nodes\": %u, \"ranks_per_node\": %u, "
		"\"concurrency\": %u, \"bytes\": %llu, \"spread\": \"%s\", \"peers\": %u, "
		"\"group\": %u, \"zipf\": %.6g, \"seed\": %llu, "
		"\"iters\": %u, \"one_sender\": %s, \"drained\": %u, \"compute_ns\": %llu}, ",
		tern_version(), args->transport, is_real(args) ? "false" : "true",
		args->bare ? "false" : "true", args->nr_nodes, job->ranks_per_node,
		job->concurrency, (unsigned long long)job->bytes,
		job->spread_all ? "all" : "remote", job->nr_peers, job->group, job->zipf,
		(unsigned long long)job->seed, job->iters, job->one_sender ? "true" : "false",
		job->nr_drained, (unsigned long long)job->compute_ns);
	fprintf(file,
		"\"model\": {\"post_ns\": %llu, \"signal_post_ns\": %llu, \"drain_ns\": %llu, "
		"\"latency_ns\": %llu, \"jitter_ns\": %llu, "
		"\"completion_ns\": %llu, \"bytes_per_second\": %llu, \"request_ns\": %llu, "
		"\"queue_pairs\": %u}, \"results\": [",
		(unsigned long long)nic->post_ns, (unsigned long long)nic->inline_post_ns,
		(unsigned long long)job->drain_ns, (unsigned long long)job->network.far.latency_ns,
		(unsigned long long)job->network.far.jitter_ns,
		(unsigned long long)nic->completion_ns, (unsigned long long)nic->bytes_per_second,
		(unsigned long long)nic->request_ns, nic->nr_queue_pairs);
}

static void json_result(
	FILE *file, enum signal_policy policy, const struct signal_result *result, bool first)
{
	fprintf(file,
		"%s\n{\"policy\": \"%s\", \"transfers\": %.6g, \"time_us\": %.9g, \"min_us\": "
		"%.9g, \"max_us\": %.9g, \"layer_us\": %.9g, "
		"\"fence_us\": %.9g, \"drains\": %.6g, \"fences_held\": %.6g, \"writes\": %.6g, "
		"\"wrong\": %llu, \"trace\": \"%016llx\"}",
		first ? "" : ",", signal_policy_name(policy), result->transfers, result->time_us,
		result->min_us, result->max_us, result->layer_us, result->fence_us, result->drains,
		result->fences_waited, result->writes,
		(unsigned long long)(result->nr_wrong + result->early),
		(unsigned long long)result->trace);
}

static FILE *json_open(const struct arguments *args)
{
	FILE *file = !strcmp(args->json, "-") ? stdout : fopen(args->json, "w");

	if (!file)
		fprintf(stderr, NAME ": --json %s: %s\n", args->json, strerror(errno));
	return file;
}

static int json_close(FILE *file)
{
	bool bad;

	fputs("]}\n", file);
	bad = ferror(file) != 0;
	bad = (file == stdout ? fflush(file) : fclose(file)) || bad;
	if (bad)
		fprintf(stderr, NAME ": --json cannot be written\n");
	return bad;
}

static int run_policy(
	const struct arguments *args, struct signal_result *result, struct reason *why)
{
	if (is_real(args))
		return signal_measure(&args->job, args->transport, result, why);
	return (args->bare ? signal_simulate_steps : signal_simulate_engine)(
		&args->job, result, why);
}

static int run(struct arguments *args)
{
	FILE *json = args->json ? json_open(args) : NULL;
	bool first = true, quiet = json == stdout, bad = false;
	struct signal_result result;
	struct reason why;
	unsigned int i;

	if (args->json && !json)
		return 1;
	if (!quiet)
		print_head(args);
	if (json)
		json_settings(json, args);
	for (i = 0; i < NR_SIGNAL_POLICIES; i++) {
		if (!args->policies[i])
			continue;
		args->job.policy = (enum signal_policy)i;
		if (run_policy(args, &result, &why)) {
			fprintf(stderr, NAME ": %s: %s\n", signal_policy_name(args->job.policy),
				why.text);
			bad = true;
			continue;
		}
		bad |= result.nr_wrong || result.early;
		if (!quiet)
			print_result(args->job.policy, &result);
		if (json)
			json_result(json, args->job.policy, &result, first);
		first = false;
	}
	return (json && json_close(json)) || bad;
}

int cmd_bench_signal(int argc, char **argv)
{
	struct arguments args;

	if (parse(&args, argc, argv))
		return EXIT_USAGE;
	if (args.help) {
		usage();
		return 0;
	}
	return run(&args);
}
