/* SPDX-License-Identifier: Apache-2.0 */
/* tern bench signal: what it costs to send a signal behind a put, by policy. */
#include "cli/cmd.h"
#include "bench/command/start.h"
#include "bench/signal/signal.h"
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

enum flag {
	FLAG_POLICY = 256,
	FLAG_TRANSPORT,
	FLAG_BARE,
	FLAG_NODES,
	FLAG_RANKS_PER_NODE,
	FLAG_PEERS,
	FLAG_SPREAD,
	FLAG_CONCURRENCY,
	FLAG_BYTES,
	FLAG_GROUP,
	FLAG_ZIPF,
	FLAG_SEED,
	FLAG_ITERS,
	FLAG_ONE_SENDER,
	FLAG_DRAINED,
	FLAG_DRAIN_NS,
	FLAG_POST_NS,
	FLAG_SIGNAL_POST_NS,
	FLAG_REQUEST_NS,
	FLAG_LATENCY_NS,
	FLAG_JITTER_NS,
	FLAG_COMPLETION_NS,
	FLAG_BYTES_PER_SECOND,
	FLAG_QUEUE_PAIRS,
	FLAG_JSON,
	FLAG_HELP
};

static const struct option options[] = {
	{"policy", required_argument, NULL, FLAG_POLICY},
	{"transport", required_argument, NULL, FLAG_TRANSPORT},
	{"bare", no_argument, NULL, FLAG_BARE},
	{"nodes", required_argument, NULL, FLAG_NODES},
	{"ranks-per-node", required_argument, NULL, FLAG_RANKS_PER_NODE},
	{"peers", required_argument, NULL, FLAG_PEERS},
	{"spread", required_argument, NULL, FLAG_SPREAD},
	{"concurrency", required_argument, NULL, FLAG_CONCURRENCY},
	{"bytes", required_argument, NULL, FLAG_BYTES},
	{"group", required_argument, NULL, FLAG_GROUP},
	{"zipf", required_argument, NULL, FLAG_ZIPF},
	{"seed", required_argument, NULL, FLAG_SEED},
	{"iters", required_argument, NULL, FLAG_ITERS},
	{"one-sender", no_argument, NULL, FLAG_ONE_SENDER},
	{"drained", required_argument, NULL, FLAG_DRAINED},
	{"drain-ns", required_argument, NULL, FLAG_DRAIN_NS},
	{"post-ns", required_argument, NULL, FLAG_POST_NS},
	{"signal-post-ns", required_argument, NULL, FLAG_SIGNAL_POST_NS},
	{"request-ns", required_argument, NULL, FLAG_REQUEST_NS},
	{"latency-ns", required_argument, NULL, FLAG_LATENCY_NS},
	{"jitter-ns", required_argument, NULL, FLAG_JITTER_NS},
	{"completion-ns", required_argument, NULL, FLAG_COMPLETION_NS},
	{"bytes-per-second", required_argument, NULL, FLAG_BYTES_PER_SECOND},
	{"queue-pairs", required_argument, NULL, FLAG_QUEUE_PAIRS},
	{"json", required_argument, NULL, FLAG_JSON},
	{"help", no_argument, NULL, FLAG_HELP},
	{NULL, 0, NULL, 0},
};

static void usage(void)
{
	struct signal_job job;

	signal_job_init(&job);
	printf("Usage: tern bench signal [options]\n\n"
	       "Every rank sends transfers to ranks of other nodes, each a put and the word that "
	       "says it has landed.\n\n"
	       "  --policy LIST          put-only, coupled, coupled-all-peers, decoupled, "
	       "nic-fence, perseus, imm, or all (all)\n"
	       "  --transport NAME       sim: virtual time; shm, ofi or ofi:PROVIDER: real time, "
	       "rank 0 sends to --peers threads (sim)\n"
	       "  --bare                 policies written out over the bare transport, without the "
	       "engine\n"
	       "  --nodes N              (8)   --ranks-per-node N (%u)\n"
	       "  --concurrency N        transfers of each rank (%u)\n"
	       "  --bytes N              of a transfer; K and M are understood (%llu)\n"
	       "  --spread all|remote    deal them to all ranks and send those for other nodes, or "
	       "to remote ranks alone (all)\n"
	       "  --peers N              deal them to so many remote ranks; 0: all (0)\n"
	       "  --group N              peers that share one drain, under decoupled and perseus; "
	       "0: all (0)\n"
	       "  --zipf X               skew of the peers' popularity (0)\n"
	       "  --drained N            ranks that each drain looks at; 0: one, or all others "
	       "under coupled-all-peers (0)\n"
	       "  --one-sender           rank 0 sends alone\n"
	       "  --seed N --iters N     (1, %u)\n"
	       "  --json FILE            - is standard output\n\n"
	       "The model, explained in docs/signals.md:\n"
	       "  --post-ns %llu --signal-post-ns %llu --drain-ns %llu   the proxy, for a put, a "
	       "signal, and each look of a drain\n"
	       "  --latency-ns %llu --jitter-ns %llu --completion-ns %llu --bytes-per-second %llu "
	       "--request-ns %llu\n"
	       "  --queue-pairs %u        peers are pinned to so many queue pairs; 0: one each\n",
		job.ranks_per_node, job.concurrency, (unsigned long long)job.bytes, job.iters,
		(unsigned long long)job.network.nic.post_ns,
		(unsigned long long)job.network.nic.inline_post_ns,
		(unsigned long long)job.drain_ns, (unsigned long long)job.network.far.latency_ns,
		(unsigned long long)job.network.far.jitter_ns,
		(unsigned long long)job.network.nic.completion_ns,
		(unsigned long long)job.network.nic.bytes_per_second,
		(unsigned long long)job.network.nic.request_ns, job.network.nic.nr_queue_pairs);
}

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

static int parse_count(const char *text, uint32_t *value)
{
	uint64_t number;

	if (parse_whole(text, 1u << 20, &number))
		return -1;
	*value = (uint32_t)number;
	return 0;
}

static int parse_zipf(const char *text, double *value)
{
	char *end;

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

static int parse_policies(struct arguments *args, const char *text)
{
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

static int parse_spread(struct arguments *args, const char *text)
{
	args->job.spread_all = !strcmp(text, "all");
	if (args->job.spread_all || !strcmp(text, "remote"))
		return 0;
	fprintf(stderr, NAME ": --spread is \"%.40s\", not all or remote\n", text);
	return -1;
}

static int parse_model(struct signal_job *job, int flag, const char *text)
{
	struct sim_nic *nic = &job->network.nic;
	uint64_t most = UINT64_C(1000000000);

	switch (flag) {
	case FLAG_DRAIN_NS:
		return parse_whole(text, most, &job->drain_ns);
	case FLAG_POST_NS:
		return parse_whole(text, most, &nic->post_ns);
	case FLAG_SIGNAL_POST_NS:
		return parse_whole(text, most, &nic->inline_post_ns);
	case FLAG_REQUEST_NS:
		return parse_whole(text, most, &nic->request_ns);
	case FLAG_LATENCY_NS:
		return parse_whole(text, most, &job->network.far.latency_ns);
	case FLAG_JITTER_NS:
		return parse_whole(text, most, &job->network.far.jitter_ns);
	case FLAG_COMPLETION_NS:
		return parse_whole(text, most, &nic->completion_ns);
	case FLAG_BYTES_PER_SECOND:
		return parse_whole(text, UINT64_C(1000000000000), &nic->bytes_per_second);
	case FLAG_QUEUE_PAIRS:
		return parse_count(text, &nic->nr_queue_pairs);
	}
	return -1; /* getopt has said why */
}

static int parse_flag(struct arguments *args, int flag, const char *text)
{
	struct signal_job *job = &args->job;

	switch (flag) {
	case FLAG_POLICY:
		return parse_policies(args, text);
	case FLAG_TRANSPORT:
		args->transport = text;
		return 0;
	case FLAG_BARE:
		args->bare = true;
		return 0;
	case FLAG_NODES:
		return parse_count(text, &args->nr_nodes);
	case FLAG_RANKS_PER_NODE:
		return parse_count(text, &job->ranks_per_node);
	case FLAG_PEERS:
		return parse_count(text, &job->nr_peers);
	case FLAG_SPREAD:
		return parse_spread(args, text);
	case FLAG_CONCURRENCY:
		return parse_count(text, &job->concurrency);
	case FLAG_BYTES:
		return parse_whole(text, 1u << 30, &job->bytes);
	case FLAG_GROUP:
		return parse_count(text, &job->group);
	case FLAG_ZIPF:
		return parse_zipf(text, &job->zipf);
	case FLAG_SEED:
		return parse_whole(text, UINT64_MAX, &job->seed);
	case FLAG_ITERS:
		return parse_count(text, &job->iters);
	case FLAG_ONE_SENDER:
		job->one_sender = true;
		return 0;
	case FLAG_DRAINED:
		return parse_count(text, &job->nr_drained);
	case FLAG_JSON:
		args->json = text;
		return 0;
	case FLAG_HELP:
		args->help = true;
		return 0;
	}
	return parse_model(job, flag, text);
}

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

static int parse(struct arguments *args, int argc, char **argv)
{
	int flag;

	memset(args, 0, sizeof(*args));
	signal_job_init(&args->job);
	args->transport = "sim";
	args->nr_nodes = 8;
	parse_policies(args, "all");
	argv[0] = (char *)NAME; /* for getopt's messages */
	optind = 0;
	while ((flag = getopt_long(argc, argv, "", options, NULL)) != -1)
		if (parse_flag(args, flag, optarg))
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
	printf("# %-18s %9s %11s %11s %11s %11s %8s %8s %7s\n", "policy", "transfers", "time us",
		"min", "max", "fences us", "drains", "held", "#wrong");
}

static void print_result(enum signal_policy policy, const struct signal_result *result)
{
	printf("  %-18s %9.1f %11.1f %11.1f %11.1f %11.1f %8.1f %8.1f %7llu\n",
		signal_policy_name(policy), result->transfers, result->time_us, result->min_us,
		result->max_us, result->fence_us, result->drains, result->fences_waited,
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
		"\"iters\": %u, \"one_sender\": %s, \"drained\": %u}, ",
		tern_version(), args->transport, is_real(args) ? "false" : "true",
		args->bare ? "false" : "true", args->nr_nodes, job->ranks_per_node,
		job->concurrency, (unsigned long long)job->bytes,
		job->spread_all ? "all" : "remote", job->nr_peers, job->group, job->zipf,
		(unsigned long long)job->seed, job->iters, job->one_sender ? "true" : "false",
		job->nr_drained);
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
		"%.9g, \"max_us\": %.9g, "
		"\"fence_us\": %.9g, \"drains\": %.6g, \"fences_held\": %.6g, \"writes\": %.6g, "
		"\"wrong\": %llu, \"trace\": \"%016llx\"}",
		first ? "" : ",", signal_policy_name(policy), result->transfers, result->time_us,
		result->min_us, result->max_us, result->fence_us, result->drains,
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
