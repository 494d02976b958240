/* SPDX-License-Identifier: Apache-2.0 */
/* In the build with marks: rank 0 writes what all ranks' threads did as JSON of Chrome's trace
 * event format, on its own clock. */
#include "bench/command/trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/clock.h"
#include "group/group.h"
#include "testkit/json.h"
#include "testkit/trace/clocks.h"
#include "testkit/trace/trace.h"

#define MOST_EVENTS (1u << 18) /* a rank and case */
#define PIECE 1024             /* events that travel at a time */
#define MESSAGES 64
#define CASES_THREAD 100000 /* a line above the ranks' threads, for names of cases */

struct trace_rank {
	char boot[40]; /* who have the same read the same clock */
	char host[64];
	struct clock_bounds bounds;
	uint32_t nr_events, nr_threads;
	uint64_t nr_lost;
};

struct trace_file {
	tern_group *group;
	const char *path, *program;
	FILE *out; /* rank 0's */
	struct json json;
	uint32_t rank, nr_ranks;
	int64_t *offsets; /* [R] of clocks, after rank 0's */
	struct trace_rank *ranks;
	struct trace_event *events; /* [R][PIECE] */
	uint32_t *nr_named;         /* [R] threads */
	uint64_t start_ns, nr_writes, nr_lost;
	uint64_t first_ns, last_ns; /* of a case */
};

int trace_command(const struct bench_args *args, int argc, char **argv)
{
	(void)args;
	(void)argc;
	(void)argv;
	return 0;
}

/* ---- clocks ---------------------------------------------------------------------------------- */

static void read_boot(char *boot, size_t size)
{
	FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");

	if (!file || !fgets(boot, (int)size, file))
		*boot = 0;
	if (file)
		fclose(file);
}

static int bound_clocks(struct trace_file *file, struct trace_rank *mine)
{
	uint64_t sent[file->nr_ranks];
	struct clock_bounds *b = &mine->bounds;
	int64_t to_first[file->nr_ranks], all[file->nr_ranks * file->nr_ranks];
	int rc = 0;

	for (uint32_t r = 0; r < file->nr_ranks; r++)
		to_first[r] = INT64_MAX;
	for (int i = 0; i < MESSAGES && !rc; i++) {
		uint64_t now = clock_ns();

		rc = tern_group_allgather(file->group, &now, sent, sizeof(now));
		now = clock_ns();
		for (uint32_t r = 0; r < file->nr_ranks; r++) {
			int64_t took = (int64_t)(now - sent[r]);

			to_first[r] = took < to_first[r] ? took : to_first[r];
		}
	}
	b->there = to_first[0];
	/* Only rank 0's own differences bound the way back. */
	rc = rc ? rc : tern_group_allgather(file->group, to_first, all, sizeof(to_first));
	b->back = all[file->rank];
	return rc;
}

static int compare_clocks(struct trace_file *file)
{
	struct trace_rank mine = {.boot = ""};
	struct utsname host;
	int rc = bound_clocks(file, &mine);

	uname(&host);
	snprintf(mine.host, sizeof(mine.host), "%.60s", host.nodename);
	read_boot(mine.boot, sizeof(mine.boot));
	rc = rc ? rc : tern_group_allgather(file->group, &mine, file->ranks, sizeof(mine));
	for (uint32_t r = 0; r < file->nr_ranks && !rc; r++) {
		const struct trace_rank *rank = &file->ranks[r];
		uint64_t within_ns;

		file->offsets[r] = *rank->boot && !strcmp(rank->boot, file->ranks[0].boot)
					   ? 0
					   : clock_offset(rank->bounds, &within_ns);
		if (file->offsets[r] && file->out)
			fprintf(stderr, "%s: the clock of rank %u is known within %.1f us\n",
				file->program, r, (double)within_ns * 1e-3);
	}
	return rc;
}

/* ---- the file -------------------------------------------------------------------------------- */

static void event_begin(struct trace_file *file, const char *shape, uint32_t rank, uint32_t thread)
{
	fputs(file->json.first ? "{" : ",{", file->out);
	file->json.first = true;
	json_text(&file->json, "ph", shape);
	json_number(&file->json, "pid", rank);
	json_number(&file->json, "tid", thread);
}

static void event_end(struct trace_file *file)
{
	json_end(&file->json, '}');
	fputs("\n", file->out);
}

static double us_of(const struct trace_file *file, uint32_t rank, uint64_t ns)
{
	return (double)((int64_t)(ns - file->start_ns) - file->offsets[rank]) * 1e-3;
}

static void name_it(
	struct trace_file *file, const char *what, uint32_t rank, uint32_t thread, const char *name)
{
	event_begin(file, "M", rank, thread);
	json_text(&file->json, "name", what);
	json_begin(&file->json, "args", '{');
	json_text(&file->json, "name", name);
	json_end(&file->json, '}');
	event_end(file);
}

static void write_name(struct trace_file *file, const struct trace_event *event)
{
	static const char *const texts[] = {
#define X(name, text) text,
		TRACE_KINDS(X)
#undef X
	};
	char name[64];

	snprintf(name, sizeof(name), "%s", texts[event->kind]);
	if (event->peer != TRACE_NOBODY)
		snprintf(name + strlen(name), sizeof(name) - strlen(name), " %u", event->peer);
	json_text(&file->json, "name", name);
	json_text(&file->json, "cat", event->shape == TRACE_IS_WRITE ? "network" : "exchange");
}

static void write_moment(struct trace_file *file, uint32_t rank, const struct trace_event *event,
	const char *shape, uint64_t ns)
{
	event_begin(file, shape, rank, event->thread);
	write_name(file, event);
	json_number(&file->json, "ts", us_of(file, rank, ns));
	if (event->shape == TRACE_IS_WRITE)
		json_number(&file->json, "id", (double)file->nr_writes);
	else
		json_text(&file->json, "s", "t");
	event_end(file);
}

static void write_event(struct trace_file *file, uint32_t rank, const struct trace_event *event)
{
	uint64_t began_ns = event->began_ns - (uint64_t)file->offsets[rank],
		 ended_ns = event->ended_ns - (uint64_t)file->offsets[rank];

	file->first_ns = began_ns < file->first_ns ? began_ns : file->first_ns;
	file->last_ns = ended_ns > file->last_ns ? ended_ns : file->last_ns;
	if (event->shape == TRACE_IS_WRITE) {
		file->nr_writes++;
		write_moment(file, rank, event, "b", event->began_ns);
		write_moment(file, rank, event, "e", event->ended_ns);
	} else if (event->shape == TRACE_IS_MOMENT) {
		write_moment(file, rank, event, "i", event->began_ns);
	} else {
		event_begin(file, "X", rank, event->thread);
		write_name(file, event);
		json_number(&file->json, "ts", us_of(file, rank, event->began_ns));
		json_number(&file->json, "dur", (double)(event->ended_ns - event->began_ns) * 1e-3);
		event_end(file);
	}
}

static void write_head(struct trace_file *file)
{
	char name[100];

	file->json = (struct json){.file = file->out, .first = true};
	fputs("{", file->out);
	json_text(&file->json, "displayTimeUnit", "ns");
	json_begin(&file->json, "traceEvents", '[');
	for (uint32_t r = 0; r < file->nr_ranks; r++) {
		snprintf(name, sizeof(name), "rank %u on %s", r, file->ranks[r].host);
		name_it(file, "process_name", r, 0, name);
		event_begin(file, "M", r, 0);
		json_text(&file->json, "name", "process_sort_index");
		json_begin(&file->json, "args", '{');
		json_number(&file->json, "sort_index", r);
		json_end(&file->json, '}');
		event_end(file);
	}
	name_it(file, "thread_name", 0, CASES_THREAD, "cases");
}

static int open_alone(struct trace_file *file)
{
	file->offsets = calloc(file->nr_ranks, sizeof(*file->offsets));
	file->ranks = calloc(file->nr_ranks, sizeof(*file->ranks));
	file->events = calloc((size_t)file->nr_ranks * PIECE, sizeof(*file->events));
	file->nr_named = calloc(file->nr_ranks, sizeof(*file->nr_named));
	if (!file->offsets || !file->ranks || !file->events || !file->nr_named ||
		trace_open(MOST_EVENTS)) {
		fprintf(stderr, "%s: --trace: no memory\n", file->program);
		return TERN_ERR_NOMEM;
	}
	if (file->rank)
		return 0;
	file->out = fopen(file->path, "w");
	if (file->out)
		return 0;
	fprintf(stderr, "%s: --trace: %s: %s\n", file->program, file->path, strerror(errno));
	return TERN_ERR_SYSTEM;
}

static void free_file(struct trace_file *file)
{
	trace_close();
	if (file->out)
		fclose(file->out);
	free(file->offsets);
	free(file->ranks);
	free(file->events);
	free(file->nr_named);
	free(file);
}

int trace_file_open(const struct bench_args *args, tern_group *group, struct trace_file **file)
{
	struct trace_file *f;
	int rc;

	*file = NULL;
	if (!args->trace)
		return 0;
	f = calloc(1, sizeof(*f));
	if (!f)
		return TERN_ERR_NOMEM;
	f->group = group;
	f->path = args->trace;
	f->program = args->program;
	f->rank = (uint32_t)tern_group_rank(group);
	f->nr_ranks = (uint32_t)tern_group_nr_ranks(group);
	rc = group_agree_status(group, open_alone(f), "tern bench --trace");
	rc = rc ? rc : compare_clocks(f);
	if (rc) {
		free_file(f);
		return rc;
	}
	f->start_ns = clock_ns();
	if (f->out)
		write_head(f);
	*file = f;
	return 0;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static int trace_round(struct rounds *rounds, uint32_t i)
{
	TRACE(TRACE_ROUND, TRACE_NOBODY);
	int rc = rounds_dispatch(rounds, i);

	return rc ? rc : rounds_combine(rounds, i);
}

int trace_rounds(struct trace_file *file, struct rounds *rounds)
{
	int rc = 0;

	for (uint32_t i = 0; file && i < TRACED_ROUNDS && !rc; i++) {
		rc = exchange_method.begin(rounds, i);
		trace_start();
		rc = rc ? rc : trace_round(rounds, i);
		trace_stop();
	}
	return rc;
}

static void write_threads(struct trace_file *file, uint32_t first, char (*names)[TRACE_NAME_BYTES])
{
	for (uint32_t r = 0; r < file->nr_ranks; r++) {
		uint32_t nr = file->ranks[r].nr_threads;

		for (uint32_t t = 0; t < PIECE && first + t < nr; t++)
			if (first + t >= file->nr_named[r])
				name_it(file, "thread_name", r, first + t, names[r * PIECE + t]);
	}
}

static int gather_threads(struct trace_file *file, uint32_t most)
{
	char(*mine)[TRACE_NAME_BYTES] = calloc((size_t)PIECE * (file->nr_ranks + 1), sizeof(*mine));
	int rc = group_agree_status(file->group, mine ? 0 : TERN_ERR_NOMEM, "tern bench --trace");

	for (uint32_t first = 0; first < most && !rc; first += PIECE) {
		for (uint32_t t = 0; t < PIECE && trace_thread_name(first + t); t++)
			memcpy(mine[t], trace_thread_name(first + t), sizeof(mine[t]));
		rc = tern_group_allgather(file->group, mine, mine + PIECE, PIECE * sizeof(*mine));
		if (!rc && file->out)
			write_threads(file, first, mine + PIECE);
	}
	for (uint32_t r = 0; r < file->nr_ranks; r++)
		file->nr_named[r] = file->ranks[r].nr_threads;
	free(mine);
	return rc;
}

static int gather_events(struct trace_file *file, const struct trace_event *mine, uint32_t most)
{
	struct trace_event piece[PIECE];
	uint32_t nr = file->ranks[file->rank].nr_events;
	int rc = 0;

	memset(piece, 0, sizeof(piece));
	for (uint32_t first = 0; first < most && !rc; first += PIECE) {
		for (uint32_t i = 0; i < PIECE && first + i < nr; i++)
			piece[i] = mine[first + i];
		rc = tern_group_allgather(file->group, piece, file->events, sizeof(piece));
		for (uint32_t r = 0; r < file->nr_ranks && !rc && file->out; r++)
			for (uint32_t i = 0; i < PIECE && first + i < file->ranks[r].nr_events; i++)
				write_event(file, r, &file->events[(size_t)r * PIECE + i]);
	}
	return rc;
}

static void write_case(struct trace_file *file, const struct bench_case *bench_case)
{
	const struct tern_moe_config *config = &bench_case->job.config;
	char name[120];

	snprintf(name, sizeof(name), "%s, %s, %s, %u tokens", bench_case->shape->name,
		mode_name(config->mode), dtype_name(config->dispatch_dtype), bench_case->tokens);
	event_begin(file, "X", 0, CASES_THREAD);
	json_text(&file->json, "name", name);
	json_number(&file->json, "ts", us_of(file, 0, file->first_ns));
	json_number(&file->json, "dur", (double)(file->last_ns - file->first_ns) * 1e-3);
	event_end(file);
}

int trace_file_add(struct trace_file *file, const struct bench_case *bench_case)
{
	struct trace_rank mine;
	const struct trace_event *events;
	uint32_t most_events = 0, most_threads = 0;
	int rc;

	if (!file)
		return 0;
	mine = file->ranks[file->rank];
	mine.nr_threads = 0;
	events = trace_events(&mine.nr_events, &mine.nr_lost);
	while (trace_thread_name(mine.nr_threads))
		mine.nr_threads++;
	rc = tern_group_allgather(file->group, &mine, file->ranks, sizeof(mine));
	for (uint32_t r = 0; r < file->nr_ranks && !rc; r++) {
		const struct trace_rank *rank = &file->ranks[r];

		most_events = rank->nr_events > most_events ? rank->nr_events : most_events;
		most_threads = rank->nr_threads > most_threads ? rank->nr_threads : most_threads;
		file->nr_lost += rank->nr_lost;
	}
	file->first_ns = UINT64_MAX;
	file->last_ns = 0;
	rc = rc ? rc : gather_threads(file, most_threads);
	rc = rc ? rc : gather_events(file, events, most_events);
	if (!rc && file->out && most_events)
		write_case(file, bench_case);
	trace_clear();
	return rc;
}

int trace_file_close(struct trace_file *file)
{
	int rc = 0;

	if (!file)
		return 0;
	if (file->out) {
		json_end(&file->json, ']');
		json_end(&file->json, '}');
		fputs("\n", file->out);
		if (fclose(file->out)) {
			fprintf(stderr, "%s: --trace: %s: %s\n", file->program, file->path,
				strerror(errno));
			rc = TERN_ERR_SYSTEM;
		}
		file->out = NULL;
		if (file->nr_lost)
			fprintf(stderr,
				"%s: --trace: %llu marks are missing: a rank keeps %u a case\n",
				file->program, (unsigned long long)file->nr_lost, MOST_EVENTS);
	}
	free_file(file);
	return rc;
}
