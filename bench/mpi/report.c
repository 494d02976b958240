/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/mpi/report.h"

#include <errno.h>
#include <string.h>

static const struct {
	const char *name; /* in JSON */
	const char *title;
} names[NR_METHODS] = {
	[METHOD_TERN] = {"tern", "tern"},
	[METHOD_MPI_RANK] = {"mpi_per_rank", "mpi, a row per rank"},
	[METHOD_MPI_ROUTE] = {"mpi_per_route", "mpi, a row per route"},
	[METHOD_WIRE] = {"memcpy_wire", "memcpy: rows sent"},
	[METHOD_JOB] = {"memcpy_job", "memcpy: and results"},
	[METHOD_RAW] = {"raw_libfabric", "raw libfabric writes"},
};

int report_open(struct report *report)
{
	const char *path = report->args->json;

	report->json = !path || !report->speaks ? NULL
		       : strcmp(path, "-")      ? fopen(path, "w")
						: stdout;
	if (!path || !report->speaks || report->json)
		return 0;
	fprintf(stderr, "tern-against-mpi: %s: %s\n", path, strerror(errno));
	return -1;
}

void report_close(struct report *report)
{
	if (report->json && report->json != stdout)
		fclose(report->json);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_spread(FILE *file, const char *name, const struct spread *s)
{
	fprintf(file,
		", \"%s_us\": {\"p50\": %.1f, \"p99\": %.1f, \"min\": %.1f, \"max\": %.1f, "
		"\"mean\": %.1f}",
		name, s->p50, s->p99, s->min, s->max, s->mean);
}

static void put_method(const struct report *r, enum method_id m)
{
	const struct job *job = &r->bench_case->job;
	const struct tern_moe_config *c = &job->config;
	FILE *file = r->json;

	fprintf(file,
		"{\"against\": \"mpi\", \"method\": \"%s\", \"preset\": \"%s\", \"ranks\": %d, "
		"\"hidden\": %u, "
		"\"experts\": %u, \"topk\": %u",
		names[m].name, r->bench_case->shape->name, r->nr_ranks, c->hidden, c->nr_experts,
		c->topk);
	fprintf(file,
		", \"tokens\": %u, \"mode\": \"%s\", \"dtype\": \"%s\", \"scale\": \"%s\", "
		"\"combine_dtype\": \"%s\", "
		"\"reduce\": \"%s\"",
		job->nr_tokens, mode_name(c->mode), dtype_name(c->dispatch_dtype),
		scale_name(c->scale), dtype_name(c->combine_dtype), reduce_name(c->reduce));
	fprintf(file,
		", \"seed\": %llu, \"iters\": %u, \"wrong\": %llu, \"wire_bytes\": %llu, "
		"\"job_bytes\": %llu",
		(unsigned long long)job->seed, r->args->iters, (unsigned long long)r->nr_wrong,
		(unsigned long long)r->wire_bytes, (unsigned long long)r->job_bytes);
	put_spread(file, "dispatch", &r->spreads[m][MEASURE_DISPATCH]);
	put_spread(file, "combine", &r->spreads[m][MEASURE_COMBINE]);
	put_spread(file, "pair", &r->spreads[m][MEASURE_PAIR]);
	fprintf(file, "}\n");
}

/* ---- the table ------------------------------------------------------------------------------- */

static void print_title(const struct report *r)
{
	const struct job *job = &r->bench_case->job;
	const struct tern_moe_config *c = &job->config;

	printf("%s: %d ranks, %u tokens each, hidden %u, %u experts, top-%u, %s rows, %s back, "
	       "mode %s, reduce %s\n",
		r->bench_case->shape->name, r->nr_ranks, job->nr_tokens, c->hidden, c->nr_experts,
		c->topk, dtype_name(c->dispatch_dtype), dtype_name(c->combine_dtype),
		mode_name(c->mode), reduce_name(c->reduce));
}

static void print_method(const struct report *r, enum method_id m)
{
	const struct spread *s = r->spreads[m];

	printf("  %-23s", names[m].title);
	for (int i = 0; i < NR_MEASURES; i++)
		printf(" %10.0f %10.0f", s[i].p50, s[i].p99);
	printf("\n");
}

static void print_ratio(
	const struct report *r, const char *title, enum method_id over, enum method_id under)
{
	printf("  %-23s", title);
	for (int i = 0; i < NR_MEASURES; i++)
		printf(" %10.2f %10.2f", r->spreads[over][i].p50 / r->spreads[under][i].p50,
			r->spreads[over][i].p99 / r->spreads[under][i].p99);
	printf("\n");
}

static enum method_id better_mpi(const struct report *r)
{
	const struct spread *a = &r->spreads[METHOD_MPI_RANK][MEASURE_PAIR],
			    *b = &r->spreads[METHOD_MPI_ROUTE][MEASURE_PAIR];

	return a->p50 <= b->p50 ? METHOD_MPI_RANK : METHOD_MPI_ROUTE;
}

static void print_table(const struct report *r)
{
	enum method_id mpi = better_mpi(r);

	print_title(r);
	printf("  %-23s %10s %10s %10s %10s %10s %10s\n", "us, first to last rank", "dispatch",
		"p99", "combine", "p99", "pair", "p99");
	for (int m = 0; m < r->nr_methods; m++)
		print_method(r, (enum method_id)m);
	print_ratio(r, mpi == METHOD_MPI_RANK ? "mpi (per rank) / tern" : "mpi (per route) / tern",
		mpi, METHOD_TERN);
	print_ratio(r, "tern / memcpy sent", METHOD_TERN, METHOD_WIRE);
	print_ratio(r, "tern / memcpy all", METHOD_TERN, METHOD_JOB);
	if (r->nr_methods > METHOD_RAW)
		print_ratio(r, "tern / raw libfabric", METHOD_TERN, METHOD_RAW);
	printf("  a rank stores %.2f MB to send, %.2f MB with results; results are equal\n\n",
		(double)r->wire_bytes / 1e6, (double)r->job_bytes / 1e6);
}

void report_case(struct report *report)
{
	if (!report->speaks)
		return;
	if (report->nr_wrong) {
		print_title(report);
		printf("  NOT MEASURED: %llu differences between Tern and MPI\n\n",
			(unsigned long long)report->nr_wrong);
	} else if (!report->args->quiet) {
		print_table(report);
	}
	for (int m = 0; report->json && m < report->nr_methods; m++)
		put_method(report, (enum method_id)m);
	fflush(stdout);
}

void report_skipped(struct report *report, const char *why)
{
	if (report->speaks)
		printf("a case is left out: %s can be compared with MPI\n", why);
}
