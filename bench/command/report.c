/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/command/report.h"
#include "testkit/json.h"
#include "cli/cmd.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

/* ---- the table ------------------------------------------------------------------------------- */

static double total_bytes(const struct bench_result *result)
{
	return result->dispatch_bytes + result->combine_bytes;
}

static double gigabytes_per_second(const struct bench_result *result)
{
	double us = result->spreads[MEASURE_PAIR].p50;

	return us > 0 ? total_bytes(result) / us * 1e-3 : 0;
}

static double total_megabytes(const struct tern_memory *memory)
{
	return (double)(memory->window_bytes + memory->output_bytes + memory->private_bytes) * 1e-6;
}

static const char *routing_text(const struct routing *routing, char *text, size_t size)
{
	switch (routing->kind) {
	case ROUTING_UNIFORM:
		return "uniform";
	case ROUTING_ZIPF:
		snprintf(text, size, "zipf:%g", routing->exponent);
		return text;
	case ROUTING_GROUPED:
		return "grouped";
	case ROUTING_ONE:
		return "one";
	case ROUTING_SHARE:
		snprintf(text, size, "share of %u", routing->share);
		return text;
	case ROUTING_TRACE:
		break;
	}
	return routing->path;
}

void report_head(const struct report *report)
{
	const struct bench_args *args = report->args;
	char text[32];

	if (args->quiet)
		return;
	printf("# tern %s, %d rank%s on %d node%s, routing %s, seed %llu, %u rounds after %u%s\n",
		tern_version(), report->nr_ranks, report->nr_ranks == 1 ? "" : "s",
		report->nr_nodes, report->nr_nodes == 1 ? "" : "s",
		routing_text(&args->job.routing, text, sizeof(text)),
		(unsigned long long)args->job.seed, args->iters, args->warmup,
		args->verify ? ", verified" : "");
	printf("# from rank 0: %s\n", report->paths);
	if (args->overlap.nr)
		printf("# below a case: times of other graphs, p50 and p99, in the same columns, "
		       "three to a row as it says\n");
	printf("#\n# %65s %19s %19s\n", "dispatch us", "combine us", "pair us");
	printf("# %-15s %-4s %-5s %-10s %-6s %6s %9s %9s %9s %9s %9s %9s %11s %7s %9s %6s\n",
		"preset", "mode", "dtype", "layout", "reduce", "tokens", "p50", "p99", "p50", "p99",
		"p50", "p99", "bytes/rank", "GB/s", "MB/rank", "#wrong");
	fflush(stdout);
}

static void print_times(const struct bench_result *result)
{
	unsigned int i;

	for (i = 0; i < NR_MEASURES; i++) {
		if (result->nr_timed)
			printf(" %9.1f %9.1f", result->spreads[i].p50, result->spreads[i].p99);
		else
			printf(" %9s %9s", "-", "-");
	}
}

/* Tern's time over that of another way. */
static double over(const struct bench_result *result, const struct spread *spreads, enum measure i)
{
	return spreads[i].p50 > 0 ? result->spreads[i].p50 / spreads[i].p50 : 0;
}

static void print_other_times(const char *what, const struct spread *spreads)
{
	unsigned int i;

	printf("    %-49s", what);
	for (i = 0; i < NR_MEASURES; i++)
		printf(" %9.1f %9.1f", spreads[i].p50, spreads[i].p99);
}

static void print_over(
	const char *what, const struct bench_result *result, const struct spread *spreads)
{
	unsigned int i;

	printf("    %-49s", what);
	for (i = 0; i < NR_MEASURES; i++)
		printf(" %8.2fx %9s", over(result, spreads, (enum measure)i), "");
	printf("\n");
}

static void print_raw(const struct bench_result *result)
{
	print_other_times("raw libfabric writes of the same bytes", result->raw_spreads);
	printf(" %11.0f %7s %9s %6llu\n", result->raw_bytes, "", "",
		(unsigned long long)result->nr_raw_wrong);
	print_over("over raw", result, result->raw_spreads);
}

static void print_nccl(const struct bench_result *result)
{
	static const char *const names[NR_NCCL_WAYS][2] = {
		[NCCL_PER_ROUTE] = {"NCCL, a row for each route, all home",
			"over NCCL, a row for each route"},
		[NCCL_PER_RANK] = {"NCCL, a row for each rank", "over NCCL, a row for each rank"}};
	int way;

	if (result->nr_nccl_wrong)
		printf("    NCCL: %llu wrong values\n", (unsigned long long)result->nr_nccl_wrong);
	for (way = 0; way < NR_NCCL_WAYS && result->nr_timed; way++) {
		print_other_times(names[way][0], result->nccl_spreads[way]);
		printf("\n");
		print_over(names[way][1], result, result->nccl_spreads[way]);
	}
}

/* A row's three times under the three columns. */
static void print_overlap(const struct bench_result *result)
{
	char what[64];

	for (uint32_t i = 0; i < result->nr_overlap && result->nr_timed; i++) {
		const struct overlap_row *row = &result->overlap[i];

		switch (row->kind) {
		case OVERLAP_DISPATCH:
		case OVERLAP_COMBINE:
			snprintf(what, sizeof(what), "%s: send, receive, both",
				row->kind == OVERLAP_DISPATCH ? "dispatch" : "combine");
			break;
		default:
			snprintf(what, sizeof(what), "%u x %u us work, with %s, exposed",
				overlap_plans[row->kind].nr_works, row->work_us,
				row->kind == OVERLAP_HALVES ? "halves between"
							    : "2 batches beside");
		}
		print_other_times(what, result->overlap_spreads[i]);
		printf("\n");
	}
}

void report_row(const struct report *report, const struct bench_result *result)
{
	const struct tern_moe_config *config = &result->bench_case.job.config;

	if (result->nr_wrong || result->nr_nccl_wrong)
		fprintf(stderr, "%s: wrong: %s\n", report->args->program, result->wrong);
	if (result->error[0])
		fprintf(stderr, "%s: %s\n", report->args->program, result->error);
	if (report->args->quiet)
		return;
	printf("  %-15s %-4s %-5s %-10s %-6s %6u", result->bench_case.shape->name,
		mode_name(config->mode), dtype_name(config->dispatch_dtype),
		layout_name(config->layout), reduce_name(config->reduce),
		result->bench_case.job.nr_tokens);
	if (result->error[0]) {
		printf("  failed\n");
		fflush(stdout);
		return;
	}
	print_times(result);
	if (result->nr_timed)
		printf(" %11.0f %7.3f", total_bytes(result), gigabytes_per_second(result));
	else
		printf(" %11s %7s", "-", "-");
	printf(" %9.1f", total_megabytes(&result->memory));
	if (result->verified)
		printf(" %6llu\n", (unsigned long long)result->nr_wrong);
	else
		printf(" %6s\n", "N/A");
	if (result->against_raw)
		print_raw(result);
	if (result->against_nccl)
		print_nccl(result);
	print_overlap(result);
	fflush(stdout);
}

/* ---- a sweep --------------------------------------------------------------------------------- */

static bool differ_in_mode_alone(const struct bench_case *a, const struct bench_case *b)
{
	const struct tern_moe_config *c = &a->job.config, *d = &b->job.config;

	return a->shape == b->shape && a->job.nr_tokens == b->job.nr_tokens &&
	       c->dispatch_dtype == d->dispatch_dtype && c->layout == d->layout &&
	       c->reduce == d->reduce && c->weights == d->weights && c->mode != d->mode;
}

static const struct bench_result *in_the_other_mode(
	const struct report *report, const struct bench_result *result)
{
	for (unsigned int i = 0; i < report->nr_results; i++)
		if (differ_in_mode_alone(&report->results[i].bench_case, &result->bench_case))
			return &report->results[i];
	return NULL;
}

static double pair_us(const struct bench_result *result)
{
	return result->error[0] || !result->nr_timed ? 0 : result->spreads[MEASURE_PAIR].p50;
}

static void print_us(double us)
{
	if (us > 0)
		printf(" %9.1f", us);
	else
		printf(" %9s", "-");
}

/* Pairs in both modes beside each other, and which is the faster one. */
static void print_sweep(const struct report *report)
{
	printf("#\n# %-15s %-5s %-10s %-6s %6s %9s %9s %6s %6s\n", "pair us, p50", "dtype",
		"layout", "reduce", "tokens", "ll", "ht", "ll/ht", "faster");
	for (unsigned int i = 0; i < report->nr_results; i++) {
		const struct bench_result *low = &report->results[i], *high;
		const struct tern_moe_config *config = &low->bench_case.job.config;
		double a, b;

		if (config->mode != TERN_LOW_LATENCY || !(high = in_the_other_mode(report, low)))
			continue;
		a = pair_us(low);
		b = pair_us(high);
		printf("# %-15s %-5s %-10s %-6s %6u", low->bench_case.shape->name,
			dtype_name(config->dispatch_dtype), layout_name(config->layout),
			reduce_name(config->reduce), low->bench_case.job.nr_tokens);
		print_us(a);
		print_us(b);
		if (a > 0 && b > 0)
			printf(" %6.2f %6s\n", a / b, a <= b ? "ll" : "ht");
		else
			printf(" %6s %6s\n", "-", a > 0 ? "ll" : b > 0 ? "ht" : "-");
	}
	printf("#\n");
}

/* What exchanges have added to the paths since the head was printed. */
static void print_rows_lie(const struct report *report)
{
	const char *rows = strstr(report->paths, "rows of GPUs");

	if (rows)
		printf("# from rank 0: %s\n", rows);
}

int report_end(const struct report *report)
{
	unsigned int i, nr_failed = 0, nr_refused = 0;
	unsigned long long nr_wrong = 0, nr_verified = 0;

	for (i = 0; i < report->nr_results; i++) {
		nr_failed += report->results[i].error[0] != 0;
		nr_refused += report->results[i].code == TERN_ERR_INVALID;
		nr_wrong += report->results[i].nr_wrong + report->results[i].nr_raw_wrong +
			    report->results[i].nr_nccl_wrong;
		nr_verified += report->results[i].nr_verified;
	}
	if (report->args->sweep && !report->args->quiet)
		print_sweep(report);
	if (!report->args->quiet) {
		print_rows_lie(report);
		printf("# %u case%s", report->nr_results, report->nr_results == 1 ? "" : "s");
		if (nr_failed)
			printf(", %u failed", nr_failed);
		if (report->args->verify)
			printf(", %llu rounds verified, %llu wrong values", nr_verified, nr_wrong);
		printf("\n");
	}
	if (nr_wrong || nr_failed > nr_refused)
		return 1;
	return nr_refused ? EXIT_USAGE : 0;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

void json_spread(struct json *json, const char *key, const struct spread *spread)
{
	json_begin(json, key, '{');
	json_number(json, "p50", spread->p50);
	json_number(json, "p99", spread->p99);
	json_number(json, "min", spread->min);
	json_number(json, "max", spread->max);
	json_number(json, "mean", spread->mean);
	json_end(json, '}');
}

static void put_case(struct json *json, const struct bench_case *bench_case)
{
	const struct tern_moe_config *config = &bench_case->job.config;

	json_text(json, "preset", bench_case->shape->name);
	json_number(json, "hidden", config->hidden);
	json_number(json, "experts", config->nr_experts);
	json_number(json, "topk", config->topk);
	json_number(json, "tokens", bench_case->job.nr_tokens);
	json_number(json, "max_tokens", config->max_tokens);
	json_text(json, "mode", mode_name(config->mode));
	json_text(json, "dtype", dtype_name(config->dispatch_dtype));
	json_text(json, "x_dtype", dtype_name(config->x_dtype));
	json_text(json, "scale", scale_name(config->scale));
	json_text(json, "combine_dtype", dtype_name(config->combine_dtype));
	json_number(json, "payload_bytes", config->payload_bytes);
	json_text(json, "layout", layout_name(config->layout));
	json_text(json, "reduce", reduce_name(config->reduce));
	json_text(json, "weights", weights_name(config->weights));
	json_number(json, "alignment", config->alignment);
	json_number(json, "capacity", (double)config->capacity);
}

static void put_raw(struct json *json, const struct bench_result *result)
{
	json_spread(json, "raw_dispatch_us", &result->raw_spreads[MEASURE_DISPATCH]);
	json_spread(json, "raw_combine_us", &result->raw_spreads[MEASURE_COMBINE]);
	json_spread(json, "raw_pair_us", &result->raw_spreads[MEASURE_PAIR]);
	json_number(json, "raw_bytes", result->raw_bytes);
	json_number(json, "raw_wrong", (double)result->nr_raw_wrong);
	json_number(json, "dispatch_over_raw", over(result, result->raw_spreads, MEASURE_DISPATCH));
	json_number(json, "combine_over_raw", over(result, result->raw_spreads, MEASURE_COMBINE));
	json_number(json, "pair_over_raw", over(result, result->raw_spreads, MEASURE_PAIR));
}

static void put_nccl(struct json *json, const struct bench_result *result)
{
	static const char *const names[NR_NCCL_WAYS] = {
		[NCCL_PER_ROUTE] = "per_route", [NCCL_PER_RANK] = "per_rank"};
	static const char *const measures[NR_MEASURES] = {"dispatch", "combine", "pair"};
	char key[64];

	json_number(json, "nccl_wrong", (double)result->nr_nccl_wrong);
	for (int way = 0; way < NR_NCCL_WAYS && result->nr_timed; way++)
		for (int m = 0; m < NR_MEASURES; m++) {
			snprintf(key, sizeof(key), "nccl_%s_%s_us", names[way], measures[m]);
			json_spread(json, key, &result->nccl_spreads[way][m]);
			snprintf(key, sizeof(key), "%s_over_nccl_%s", measures[m], names[way]);
			json_number(json, key,
				over(result, result->nccl_spreads[way], (enum measure)m));
		}
}

/* Under each kind's name its rows. */
static void put_overlap(struct json *json, const struct bench_result *result)
{
	static const char *const keys[2][NR_MEASURES] = {{"send_us", "receive_us", "both_us"},
		{"work_alone_us", "with_exchange_us", "exposed_us"}};

	for (uint32_t i = 0; i < result->nr_overlap && result->nr_timed; i++) {
		const struct overlap_plan *plan = &overlap_plans[result->overlap[i].kind];

		if (!i || result->overlap[i].kind != result->overlap[i - 1].kind)
			json_begin(json, plan->name, '[');
		fprintf(json->file, json->first ? "{" : ", {");
		json->first = true;
		if (plan->nr_works) {
			json_number(json, "works", plan->nr_works);
			json_number(json, "work_us", result->overlap[i].work_us);
		}
		for (int m = 0; m < NR_MEASURES; m++)
			json_spread(
				json, keys[plan->nr_works > 0][m], &result->overlap_spreads[i][m]);
		json_end(json, '}');
		if (i + 1 == result->nr_overlap ||
			result->overlap[i].kind != result->overlap[i + 1].kind)
			json_end(json, ']');
	}
}

static void put_result(struct json *json, const struct bench_result *result)
{
	put_case(json, &result->bench_case);
	if (result->error[0]) {
		json_text(json, "error", result->error);
		return;
	}
	if (result->nr_timed) {
		json_number(json, "rounds", result->nr_timed);
		json_spread(json, "dispatch_us", &result->spreads[MEASURE_DISPATCH]);
		json_spread(json, "combine_us", &result->spreads[MEASURE_COMBINE]);
		json_spread(json, "pair_us", &result->spreads[MEASURE_PAIR]);
		json_number(json, "dispatch_bytes", result->dispatch_bytes);
		json_number(json, "combine_bytes", result->combine_bytes);
		json_number(json, "rows_received", result->rows_received);
		json_number(json, "gigabytes_per_second", gigabytes_per_second(result));
	}
	if (result->against_raw)
		put_raw(json, result);
	if (result->against_nccl)
		put_nccl(json, result);
	put_overlap(json, result);
	json_number(json, "window_bytes", (double)result->memory.window_bytes);
	json_number(json, "output_bytes", (double)result->memory.output_bytes);
	json_number(json, "private_bytes", (double)result->memory.private_bytes);
	if (!result->verified)
		return;
	json_number(json, "rounds_verified", (double)result->nr_verified);
	json_number(json, "wrong", (double)result->nr_wrong);
	if (result->nr_wrong)
		json_text(json, "first_wrong", result->wrong);
}

static void put_settings(struct json *json, const struct report *report)
{
	const struct bench_args *args = report->args;
	const struct job *job = &args->job;
	char text[32];

	json_begin(json, "settings", '{');
	json_number(json, "ranks", report->nr_ranks);
	json_number(json, "nodes", report->nr_nodes);
	json_text(json, "paths_of_rank_0", report->paths);
	json_number(json, "iters", args->iters);
	json_number(json, "warmup", args->warmup);
	json_bool(json, "verify", args->verify);
	json_text(json, "routing", routing_text(&job->routing, text, sizeof(text)));
	json_number(json, "drop", job->routing.drop);
	json_bool(json, "uneven", job->routing.uneven);
	json_number(json, "seed", (double)job->seed);
	json_text(json, "input", input_name(job->input));
	json_number(json, "slots", job->config.nr_slots);
	json_bool(json, "sweep", args->sweep);
	json_number(json, "threads", job->config.nr_threads);
	json_number(json, "sms", job->config.nr_sms);
	json_bool(json, "warm", args->warm);
	json_number(json, "graph_tokens", args->graph_tokens);
	json_number(json, "gates", job->config.gate_rows);
	json_number(json, "replicas", job->nr_redundant);
	json_number(json, "replica_choice", job->config.replicas);
	json_number(json, "moves", job->place_in);
	json_number(json, "replica_ranks", job->config.replica_ranks);
	json_bool(json, "spread", job->spread);
	json_bool(json, "no_weights", job->no_weights);
	json_end(json, '}');
}

struct facts {
	char date[32], host[128], system[256], cpu[128];
	long nr_cores;
};

static void find_cpu(char *cpu, size_t size)
{
	FILE *file = fopen("/proc/cpuinfo", "r");
	char line[256];

	snprintf(cpu, size, "unknown");
	while (file && fgets(line, sizeof(line), file)) {
		if (strncmp(line, "model name", 10) || !strchr(line, ':'))
			continue;
		line[strcspn(line, "\n")] = 0;
		snprintf(cpu, size, "%.100s", strchr(line, ':') + 2);
		break;
	}
	if (file)
		fclose(file);
}

static void facts_find(struct facts *facts)
{
	struct utsname name;
	time_t now = time(NULL);
	struct tm utc;

	memset(facts, 0, sizeof(*facts));
	if (!uname(&name)) {
		snprintf(facts->host, sizeof(facts->host), "%s", name.nodename);
		snprintf(facts->system, sizeof(facts->system), "%s %s %s", name.sysname,
			name.release, name.machine);
	}
	find_cpu(facts->cpu, sizeof(facts->cpu));
	facts->nr_cores = sysconf(_SC_NPROCESSORS_ONLN);
	if (gmtime_r(&now, &utc))
		strftime(facts->date, sizeof(facts->date), "%Y-%m-%dT%H:%M:%SZ", &utc);
}

int report_json_open(const struct bench_args *args, struct json *json)
{
	struct facts facts;

	*json = (struct json){
		.file = strcmp(args->json, "-") ? fopen(args->json, "w") : stdout, .first = true};
	if (!json->file) {
		fprintf(stderr, "%s: --json %s: %s\n", args->program, args->json, strerror(errno));
		return -1;
	}
	facts_find(&facts);
	fputc('{', json->file);
	json_text(json, "tern", tern_version());
	json_text(json, "date", facts.date);
	json_begin(json, "machine", '{');
	json_text(json, "host", facts.host);
	json_text(json, "system", facts.system);
	json_text(json, "cpu", facts.cpu);
	json_number(json, "cores", facts.nr_cores);
	json_end(json, '}');
	return 0;
}

int report_json_close(const struct bench_args *args, struct json *json)
{
	bool bad;

	fputs("]}\n", json->file);
	bad = ferror(json->file) != 0;
	bad = (json->file == stdout ? fflush(stdout) : fclose(json->file)) || bad;
	if (bad)
		fprintf(stderr, "%s: --json %s: cannot be written\n", args->program, args->json);
	return bad ? -1 : 0;
}

void report_json_next(struct json *json, bool first)
{
	fprintf(json->file, "%s\n{", first ? "" : ",");
	json->first = true;
}

int report_json(const struct report *report)
{
	struct json json;

	if (report_json_open(report->args, &json))
		return -1;
	put_settings(&json, report);
	json_begin(&json, "results", '[');
	for (unsigned int i = 0; i < report->nr_results; i++) {
		report_json_next(&json, !i);
		put_result(&json, &report->results[i]);
		fputc('}', json.file);
	}
	return report_json_close(report->args, &json);
}
