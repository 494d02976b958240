/* SPDX-License-Identifier: Apache-2.0 */
/* tern bench: starts ranks if there are none yet; every rank runs all cases, and rank 0 reports. */
#include "bench/command/args_values.h"
#include "bench/command/case.h"
#include "bench/command/layer.h"
#include "bench/command/start.h"
#include "cli/cmd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- one case on one rank -------------------------------------------------------------------- */

void tell_progress(struct bench *bench, const char *what, uint32_t done, uint32_t total)
{
	double now = now_us();

	if (!bench->progress || now - bench->last_progress_us < 1e6)
		return;
	bench->last_progress_us = now;
	fprintf(stderr, "%s: case %u of %u: %s, round %u of %u\n", bench->args->program,
		bench->report.nr_results + 1, bench->nr_cases, what, done, total);
}

static int verify_rounds(struct bench *bench, struct rounds *rounds, struct bench_result *result)
{
	uint32_t slots = result->bench_case.job.config.nr_slots;
	uint32_t round, total = bench->args->iters;
	int rc = 0;

	rounds->jitter_us = bench->args->jitter_us;
	for (round = 0; round < total && !rc; round += slots) {
		tell_progress(bench, "verifying", round, total);
		rc = rounds_verify(rounds, round);
	}
	result->nr_verified = round;
	return rc;
}

/* The proxies of a round that has just ended still look for more: they get a moment to fall asleep,
 * else the one that is timed next would share the cores with them. */
#define REST_US 1000

/* Round i of the exchange, and, if asked for, of raw writes; who goes first changes. */
static int time_round(struct timing *t, uint32_t i, bool split, bool counts)
{
	int rc = 0;

	for (uint32_t k = 0; k < 2 && !rc; k++) {
		bool raw = (i + k) % 2;

		if (raw && !t->raw.raw)
			continue;
		if (t->raw.raw)
			usleep(REST_US);
		if (raw)
			rc = rounds_time(
				&raw_method, &t->raw, counts ? &t->raw.times : NULL, i, split);
		else
			rc = rounds_time(
				&exchange_method, t->rounds, counts ? &t->times : NULL, i, split);
	}
	return rc;
}

static int time_rounds(struct bench *bench, struct timing *t)
{
	uint32_t i, split, total = bench->args->iters;
	int rc = rounds_prepare(t->rounds, bench->args->verify);

	if (!rc && is_against(bench->args, "libfabric"))
		rc = raw_rounds_open(&t->raw, t->rounds);
	for (i = 0; i < bench->args->warmup && !rc; i++)
		rc = time_round(t, i, i % 2, false);
	if (!rc)
		rc = tern_moe_stats_reset(t->rounds->moe);
	for (split = 0; split < 2; split++) {
		for (i = 0; i < total && !rc; i++) {
			tell_progress(bench, split ? "timing halves" : "timing pairs", i, total);
			rc = time_round(t, i, split, true);
		}
	}
	return rc ? rc : trace_rounds(bench->trace, t->rounds);
}

static int run_rounds(
	struct bench *bench, struct timing *t, struct bench_result *result, struct outcome *outcome)
{
	struct rounds *rounds = t->rounds;
	int rc = 0;

	outcome->memory.size = sizeof(outcome->memory);
	outcome->stats.size = sizeof(outcome->stats);
	if (bench->args->verify)
		rc = verify_rounds(bench, rounds, result);
	if (!rc && !bench->args->only_verify)
		rc = time_rounds(bench, t);
	if (!rc)
		rc = tern_moe_stats(rounds->moe, &outcome->stats);
	if (!rc)
		rc = tern_moe_memory(rounds->moe, &outcome->memory);
	if (!rc && bench->args->verify && !bench->args->only_verify)
		rc = rounds_check(rounds);
	if (!rc && t->raw.raw) {
		outcome->raw_bytes = raw_bytes(t->raw.raw);
		rc = raw_check(t->raw.raw, &outcome->nr_raw_wrong);
	}
	return rc;
}

static void describe_error(struct outcome *outcome, int rank, const char *text)
{
	snprintf(outcome->error, sizeof(outcome->error), "rank %d: %s", rank, text);
}

void describe_failure(const struct bench *bench, struct outcome *outcome)
{
	char text[600];

	if (!outcome->rc)
		return;
	snprintf(text, sizeof(text), "%s: %.450s", tern_strerror((int)outcome->rc),
		tern_last_error());
	describe_error(outcome, bench->rank, text);
}

static void run_on_cpu(
	struct bench *bench, struct timing *t, struct bench_result *result, struct outcome *outcome)
{
	struct rounds rounds;

	outcome->rc = rounds_open(&rounds, bench->group, &result->bench_case.job);
	t->rounds = &rounds;
	if (!outcome->rc)
		outcome->rc = run_rounds(bench, t, result, outcome);
	describe_failure(bench, outcome);
	outcome->nr_wrong = rounds.difference.nr;
	memcpy(outcome->wrong, rounds.difference.first, sizeof(outcome->wrong));
	raw_rounds_close(&t->raw);
	rounds_close(&rounds);
	t->rounds = NULL;
}

/* Everything that this rank alone can do; the ranks compare notes afterwards. */
static void run_alone(
	struct bench *bench, struct timing *t, struct bench_result *result, struct outcome *outcome)
{
	struct job *job = &result->bench_case.job;
	struct reason why;

	if (job_open(job, &why)) {
		outcome->rc = TERN_ERR_INVALID;
		describe_error(outcome, bench->rank, why.text);
	} else if (job->config.device) {
		run_on_device(bench, t, result, outcome);
	} else {
		run_on_cpu(bench, t, result, outcome);
	}
	job_close(job);
}

/* ---- all ranks together ---------------------------------------------------------------------- */

static int gather(void *ctx, const void *mine, void *all, size_t bytes)
{
	return tern_group_allgather(ctx, mine, all, bytes);
}

static uint64_t memory_bytes(const struct tern_memory *memory)
{
	return memory->window_bytes + memory->output_bytes + memory->private_bytes;
}

/* Who only waited in vain for a rank that failed tells less than that rank. */
static bool tells_more(const struct outcome *a, const struct outcome *b)
{
	bool a_waited = a->rc == TERN_ERR_TIMEOUT || a->rc == TERN_ERR_PEER_LEFT;
	bool b_waited = b->rc == TERN_ERR_TIMEOUT || b->rc == TERN_ERR_PEER_LEFT;

	return a->rc && (!b->rc || (b_waited && !a_waited));
}

static void merge(const struct outcome *all, int nr_ranks, struct bench_result *result)
{
	const struct outcome *failed = &all[0];
	double rounds = 0;
	int r;

	for (r = 0; r < nr_ranks; r++) {
		if (tells_more(&all[r], failed))
			failed = &all[r];
		if ((all[r].nr_wrong || all[r].nr_nccl_wrong) && !result->wrong[0])
			memcpy(result->wrong, all[r].wrong, sizeof(result->wrong));
		result->nr_wrong += all[r].nr_wrong;
		result->dispatch_bytes += (double)all[r].stats.dispatch_bytes;
		result->combine_bytes += (double)all[r].stats.combine_bytes;
		result->rows_received += (double)all[r].stats.rows_received;
		result->raw_bytes += all[r].raw_bytes / nr_ranks;
		result->nr_raw_wrong += all[r].nr_raw_wrong;
		result->nr_nccl_wrong += all[r].nr_nccl_wrong;
		rounds += (double)all[r].stats.rounds;
		if (memory_bytes(&all[r].memory) >= memory_bytes(&result->memory))
			result->memory = all[r].memory;
	}
	memcpy(result->error, failed->error, sizeof(result->error));
	result->code = (int)failed->rc;
	if (rounds > 0) {
		result->dispatch_bytes /= rounds;
		result->combine_bytes /= rounds;
		result->rows_received /= rounds;
	}
}

static int create_times(struct timing *t, uint32_t nr, uint32_t nr_overlap)
{
	int rc = times_create(&t->times, nr) || times_create(&t->raw.times, nr);

	for (int way = 0; way < NR_NCCL_WAYS && !rc; way++)
		rc = times_create(&t->nccl[way], nr);
	for (uint32_t row = 0; row < nr_overlap && !rc; row++)
		rc = times_create(&t->overlap[row], nr);
	return rc ? TERN_ERR_NOMEM : 0;
}

static void destroy_times(struct timing *t)
{
	times_destroy(&t->times);
	times_destroy(&t->raw.times);
	for (int way = 0; way < NR_NCCL_WAYS; way++)
		times_destroy(&t->nccl[way]);
	for (uint32_t row = 0; row < OVERLAP_MOST_ROWS; row++)
		times_destroy(&t->overlap[row]);
}

static int gather_times(
	const struct bench *bench, const struct timing *t, struct bench_result *result)
{
	int rc, nr_ranks = bench->report.nr_ranks;

	result->nr_timed = t->times.nr;
	result->against_raw = is_against(bench->args, "libfabric");
	rc = measure_gather(&t->times, nr_ranks, gather, bench->group, result->spreads);
	if (!rc && result->against_raw)
		rc = measure_gather(
			&t->raw.times, nr_ranks, gather, bench->group, result->raw_spreads);
	for (uint32_t row = 0; row < result->nr_overlap && !rc; row++)
		rc = measure_gather(&t->overlap[row], nr_ranks, gather, bench->group,
			result->overlap_spreads[row]);
	for (int way = 0; way < NR_NCCL_WAYS && result->against_nccl && !rc; way++)
		rc = measure_gather(
			&t->nccl[way], nr_ranks, gather, bench->group, result->nccl_spreads[way]);
	return rc;
}

/* 0, or a negative code when the ranks can no longer work together. */
static int run_case(struct bench *bench, struct bench_result *result)
{
	int rc, nr_ranks = bench->report.nr_ranks;
	struct outcome *outcomes = calloc((size_t)nr_ranks + 1, sizeof(*outcomes));
	struct outcome *mine = outcomes ? &outcomes[nr_ranks] : NULL;
	struct timing t = {0};

	result->nr_overlap = overlap_rows(bench->args, result->overlap);
	if (!outcomes || create_times(&t, bench->args->iters, result->nr_overlap)) {
		free(outcomes);
		destroy_times(&t);
		return TERN_ERR_NOMEM;
	}
	result->verified = bench->args->verify;
	result->against_nccl = is_against(bench->args, "nccl");
	run_alone(bench, &t, result, mine);
	rc = tern_group_allgather(bench->group, mine, outcomes, sizeof(*mine));
	if (rc && mine->rc)
		fprintf(stderr, "%s: %s\n", bench->args->program, mine->error);
	if (!rc)
		merge(outcomes, nr_ranks, result);
	if (!rc && !result->error[0] && !bench->args->only_verify)
		rc = gather_times(bench, &t, result);
	rc = rc ? rc : trace_file_add(bench->trace, &result->bench_case);
	destroy_times(&t);
	free(outcomes);
	return rc;
}

static int run_cases(struct bench *bench)
{
	struct report *report = &bench->report;
	unsigned int i;
	int rc = 0;

	for (i = 0; i < bench->nr_cases && !rc; i++) {
		struct bench_result *result = &report->results[report->nr_results];

		if (args_case(bench->args, i, (uint32_t)report->nr_ranks, &result->bench_case))
			continue;
		rc = run_case(bench, result);
		if (rc)
			break;
		report->nr_results++;
		if (bench->rank == 0)
			report_row(report, result);
	}
	return rc;
}

static int run_and_report(struct bench *bench)
{
	struct report *report = &bench->report;
	int rc;

	report->results = calloc(bench->nr_cases, sizeof(*report->results));
	if (!report->results)
		return fail_with(bench->args, "results", TERN_ERR_NOMEM);
	if (bench->rank == 0)
		report_head(report);
	rc = run_cases(bench);
	if (rc)
		rc = fail_with(bench->args, "the ranks lost each other", rc);
	else if (!report->nr_results && bench->rank == 0)
		fprintf(stderr,
			"%s: layout source needs --reduce expert and --weights pass: there is "
			"nothing to do\n",
			bench->args->program);
	if (!rc && !report->nr_results)
		rc = EXIT_USAGE;
	else if (bench->rank == 0)
		rc = rc ? rc : report_end(report);
	if (bench->rank == 0 && bench->args->json && report_json(report))
		rc = 1;
	free(report->results);
	return rc;
}

static int run_rank(const struct bench_args *args)
{
	struct bench bench = {.args = args, .report.args = args};
	struct tern_group_config config;
	int rc;

	tern_group_config_init(&config);
	config.wait_ms = args->job.config.wait_ms;
	rc = tern_boot_env(&config.boot);
	if (rc)
		return fail_with(args, "cannot find the other ranks", rc);
	if (args->nr_ranks && args->nr_ranks != (uint32_t)config.boot.nr_ranks) {
		if (config.boot.rank == 0)
			fprintf(stderr, "%s: --ranks is %u, but the launcher has started %d\n",
				args->program, args->nr_ranks, config.boot.nr_ranks);
		if (config.boot.close)
			config.boot.close(config.boot.ctx);
		return EXIT_USAGE;
	}
	rc = tern_group_create(&config, &bench.group);
	if (rc)
		return fail_with(args, "cannot form a group", rc);
	bench.rank = tern_group_rank(bench.group);
	bench.report.nr_ranks = tern_group_nr_ranks(bench.group);
	bench.report.nr_nodes = tern_group_nr_nodes(bench.group);
	bench.report.paths = tern_group_describe(bench.group);
	bench.nr_cases = args_nr_cases(args);
	bench.progress =
		bench.rank == 0 && !args->quiet && (args->progress || isatty(STDERR_FILENO));
	rc = trace_file_open(args, bench.group, &bench.trace) ? 1 : 0;
	if (!rc)
		rc = args->layer ? run_layers(args, bench.group, bench.trace)
				 : run_and_report(&bench);
	if (trace_file_close(bench.trace))
		rc = 1;
	tern_group_destroy(bench.group);
	return rc;
}

static bool has_launcher(void)
{
	return getenv("TERN_RANK") || getenv("PMIX_RANK");
}

int cmd_bench(int argc, char **argv)
{
	struct bench_args args;
	char **copy;
	int rc;

	if (argc > 1 && !strcmp(argv[1], "signal"))
		return cmd_bench_signal(argc - 1, argv + 1);
	copy = calloc((size_t)argc + 1, sizeof(*copy)); /* getopt reorders */
	if (!copy)
		return 1;
	memcpy(copy, argv, (size_t)argc * sizeof(*copy));
	rc = args_parse(&args, "tern bench", argc, copy) ? EXIT_USAGE : 0;
	if (!rc && args.transport && transport_check(args.transport)) {
		args_wrong(&args, "--transport: %s", tern_last_error());
		rc = EXIT_USAGE;
	}
	if (!rc && args.json && !strcmp(args.json, "-"))
		args.quiet = true;
	if (!rc && !args.help)
		rc = trace_command(&args, argc, argv);
	if (!rc && args.help)
		args_usage(&args);
	else if (!rc)
		rc = has_launcher() ? run_rank(&args) : bench_start(&args, argc, argv);
	free(copy);
	return rc;
}
