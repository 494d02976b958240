/* SPDX-License-Identifier: Apache-2.0 */
/* tern balance: what tern_balance_plan would do with loads that were recorded. */
#include "cli/cmd.h"
#include "base/blocks.h"
#include "base/clock.h"
#include "tern_balance.h"
#include "testkit/npy.h"
#include "testkit/options.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "tern balance"
#define ALL_COPIES UINT32_MAX
#define BAR 40 /* columns of twice the mean */
#define MOST_BARS 64

struct arguments {
	const char *from, *judge, *out, *json;
	uint32_t nr_ranks, nr_places, nr_nodes, max_copies, spread;
	bool help;
};

/* A table of layers, as doubles; freed by its owner. */
struct table {
	uint64_t nr_layers, nr; /* of each */
	double *values;
};

struct layer {
	double blocks, before, after, judged; /* the busiest rank's load over the mean */
	uint32_t nr_copies;
};

struct job {
	const struct arguments *a;
	struct table loads, from, judge;
	tern_balance *balance;
	int32_t *now, *next; /* [P] */
	int32_t *all_next;   /* [layers][P] */
	struct layer *layers;
	uint64_t worst;   /* layer */
	double *drawn[2]; /* [R] its ranks' loads over the mean, before and after */
	double ms;
};

/* ---- arguments ------------------------------------------------------------------------------- */

#define FIELD(field) OPTION_FIELD(struct arguments, field)
#define NUMBER(field, to) .set = option_whole, .values = NAME, FIELD(field), .most = to

static const struct option_row options[] = {
	{.help = "Places"},
	{.name = "ranks",
		.letter = 'n',
		.argument = "N",
		NUMBER(nr_ranks, 1 << 16),
		.help = "how many ranks (#)"},
	{.name = "places",
		.argument = "N",
		NUMBER(nr_places, 1 << 20),
		.help = "physical experts (default: as many as experts, up to a multiple of "
			"ranks)"},
	{.name = "nodes",
		.argument = "N",
		NUMBER(nr_nodes, 1 << 16),
		.help = "ranks are on so many nodes, which fail as a whole (default: a node each)"},
	{.help = "The plan"},
	{.name = "from",
		.argument = "FILE",
		.set = option_text,
		FIELD(from),
		.help = "what lies where: .npy of [places] or [layers][places] (default: expert i "
			"in "
			"place i, and around again)"},
	{.name = "copies",
		.argument = "N",
		NUMBER(max_copies, ALL_COPIES - 1),
		.help = "move at most so many experts in each layer (default: what the best "
			"placement "
			"takes)"},
	{.name = "spread",
		.argument = "N",
		NUMBER(spread, 1 << 16),
		.help = "each expert on so many nodes, as places allow (#)"},
	{.name = "judge",
		.argument = "FILE",
		.set = option_text,
		FIELD(judge),
		.help = "say how even other loads would be under it: .npy like LOADS"},
	{.help = "Output"},
	{.name = "out",
		.letter = 'o',
		.argument = "FILE",
		.set = option_text,
		FIELD(out),
		.help = "write the placement, .npy of int32 [layers][places]"},
	{.name = "json",
		.argument = "FILE",
		.set = option_text,
		FIELD(json),
		.help = "write the figures"},
	{.name = "help", .letter = 'h', .set = option_flag, FIELD(help), .help = "this text"},
	{0},
};

/* ---- tables ---------------------------------------------------------------------------------- */

static double value_at(const struct npy *n, uint64_t i)
{
	const uint8_t *at = (const uint8_t *)n->data + i * npy_item_bytes(n->type);
	int32_t i32;
	int64_t i64;
	float f32;

	switch (n->type) {
	case NPY_INT32:
		return memcpy(&i32, at, sizeof(i32)), i32;
	case NPY_INT64:
		return memcpy(&i64, at, sizeof(i64)), (double)i64;
	default:
		return memcpy(&f32, at, sizeof(f32)), f32;
	}
}

static int read_table(const char *path, struct table *t)
{
	struct reason why;
	struct npy n;
	void *bytes = NULL;
	uint64_t nr;

	if (npy_read(path, &bytes, &n, &why)) {
		fprintf(stderr, NAME ": %s\n", why.text);
		free(bytes);
		return -1;
	}
	t->nr = n.shape[n.nr_dims - 1];
	t->nr_layers = n.nr_dims == 2 ? n.shape[0] : 1;
	nr = t->nr * t->nr_layers;
	t->values = nr ? malloc(nr * sizeof(*t->values)) : NULL;
	for (uint64_t i = 0; t->values && i < nr; i++)
		t->values[i] = value_at(&n, i);
	free(bytes);
	if (!t->values)
		fprintf(stderr, NAME ": %s: %s\n", path, nr ? "no memory" : "it is empty");
	return t->values ? 0 : -1;
}

static int wrong(const char *what, uint64_t given, uint64_t wanted)
{
	fprintf(stderr, NAME ": %s: %" PRIu64 ", where %" PRIu64 " are wanted\n", what, given,
		wanted);
	return -1;
}

/* All but the loads. */
static int read_others(struct job *j)
{
	const struct arguments *a = j->a;

	if ((a->from && read_table(a->from, &j->from)) ||
		(a->judge && read_table(a->judge, &j->judge)))
		return -1;
	if (a->judge && j->judge.nr != j->loads.nr)
		return wrong("experts of --judge", j->judge.nr, j->loads.nr);
	if (a->judge && j->judge.nr_layers != j->loads.nr_layers)
		return wrong("layers of --judge", j->judge.nr_layers, j->loads.nr_layers);
	if (a->from && j->from.nr != a->nr_places)
		return wrong("places of --from", j->from.nr, a->nr_places);
	if (a->from && j->from.nr_layers != 1 && j->from.nr_layers != j->loads.nr_layers)
		return wrong("layers of --from", j->from.nr_layers, j->loads.nr_layers);
	return 0;
}

/* ---- how even it is -------------------------------------------------------------------------- */

/* Fills ranks[R], over the mean. Returns the most. */
static double look(const struct job *j, const double *load, const int32_t *at, uint32_t nr_places,
	double *ranks)
{
	uint32_t nr_ranks = j->a->nr_ranks;
	uint32_t *count = calloc(j->loads.nr, sizeof(*count));
	double all = 0, most = 0;

	memset(ranks, 0, nr_ranks * sizeof(*ranks));
	for (uint32_t p = 0; count && p < nr_places; p++)
		if (at[p] >= 0)
			count[at[p]]++;
	for (uint64_t e = 0; e < j->loads.nr; e++)
		all += load[e];
	for (uint32_t p = 0; count && p < nr_places; p++)
		if (at[p] >= 0 && all > 0)
			ranks[block_of(p, nr_places, nr_ranks)] +=
				load[at[p]] / count[at[p]] / all * nr_ranks;
	for (uint32_t r = 0; r < nr_ranks; r++)
		most = ranks[r] > most ? ranks[r] : most;
	free(count);
	return most;
}

/* What is no expert stays none, for the library to refuse. */
static int32_t given(const struct job *j, uint64_t layer, uint32_t place)
{
	const struct table *f = &j->from;
	double value = f->values[(f->nr_layers > 1 ? layer * f->nr : 0) + place];

	return value >= -1 && value < (double)j->loads.nr ? (int32_t)value : INT32_MAX;
}

static void take_now(struct job *j, uint64_t layer)
{
	for (uint32_t p = 0; p < j->a->nr_places; p++)
		j->now[p] = j->from.values ? given(j, layer, p) : (int32_t)(p % j->loads.nr);
}

/* ---- planning -------------------------------------------------------------------------------- */

static int plan_layer(struct job *j, uint64_t layer)
{
	const double *load = j->loads.values + layer * j->loads.nr;
	struct tern_balance_input in = {.size = sizeof(in),
		.load = load,
		.now = j->now,
		.max_copies = j->a->max_copies,
		.spread = j->a->spread};
	struct tern_balance_result result = {.size = sizeof(result)};
	struct layer *l = &j->layers[layer];
	uint64_t start;

	for (uint64_t e = 0; e < j->loads.nr; e++)
		j->next[e] = (int32_t)e;
	l->blocks = look(j, load, j->next, (uint32_t)j->loads.nr, j->drawn[0]);
	take_now(j, layer);
	start = clock_ns();
	if (tern_balance_plan(j->balance, &in, j->next, NULL, &result)) {
		fprintf(stderr, NAME ": layer %" PRIu64 ": %s\n", layer, tern_last_error());
		return -1;
	}
	j->ms += (double)(clock_ns() - start) / 1e6;
	l->before = result.before;
	l->after = result.after;
	l->nr_copies = result.nr_copies;
	if (j->judge.values)
		l->judged = look(j, j->judge.values + layer * j->judge.nr, j->next, j->a->nr_places,
			j->drawn[0]);
	memcpy(j->all_next + layer * j->a->nr_places, j->next, j->a->nr_places * sizeof(*j->next));
	if (l->before > j->layers[j->worst].before)
		j->worst = layer;
	return 0;
}

static int open_job(struct job *j)
{
	const struct arguments *a = j->a;
	int32_t *domain = calloc(a->nr_ranks, sizeof(*domain));
	struct tern_balance_config c = {.size = sizeof(c),
		.nr_experts = (uint32_t)j->loads.nr,
		.nr_physical = a->nr_places,
		.nr_ranks = a->nr_ranks,
		.domain = domain};

	for (uint32_t r = 0; domain && r < a->nr_ranks; r++)
		domain[r] = (int32_t)block_of(r, a->nr_ranks, a->nr_nodes);
	j->now = calloc(a->nr_places, sizeof(*j->now));
	j->next = calloc(a->nr_places, sizeof(*j->next));
	j->all_next = calloc(j->loads.nr_layers * a->nr_places, sizeof(*j->all_next));
	j->layers = calloc(j->loads.nr_layers, sizeof(*j->layers));
	j->drawn[0] = calloc(a->nr_ranks, sizeof(*j->drawn[0]));
	j->drawn[1] = calloc(a->nr_ranks, sizeof(*j->drawn[1]));
	if (!domain || !j->now || !j->next || !j->all_next || !j->layers || !j->drawn[0] ||
		!j->drawn[1]) {
		fprintf(stderr, NAME ": no memory\n");
		free(domain);
		return -1;
	}
	if (tern_balance_create(&c, &j->balance))
		fprintf(stderr, NAME ": %s\n", tern_last_error());
	free(domain);
	return j->balance ? 0 : -1;
}

static void close_job(struct job *j)
{
	tern_balance_destroy(j->balance);
	free(j->loads.values);
	free(j->from.values);
	free(j->judge.values);
	free(j->now);
	free(j->next);
	free(j->all_next);
	free(j->layers);
	free(j->drawn[0]);
	free(j->drawn[1]);
}

/* ---- telling --------------------------------------------------------------------------------- */

static void print_row(const char *name, const struct layer *l, bool judged)
{
	printf("%-10s %9.3f %9.3f %9.4f %9u", name, l->blocks, l->before, l->after, l->nr_copies);
	printf(judged ? " %9.4f\n" : "\n", l->judged);
}

static void bar(const char *what, double load)
{
	int columns = (int)(load * BAR / 2 + 0.5);

	printf("  %-6s %7.3f  ", what, load);
	for (int i = 0; i < columns && i < BAR * 2; i++)
		fputs(i == BAR / 2 ? "|" : "=", stdout);
	puts(columns > BAR * 2 ? ">" : "");
}

/* Ranks of the layer that is least even now: | is the mean. */
static void draw(struct job *j)
{
	const double *load = j->loads.values + j->worst * j->loads.nr;
	char name[16];

	take_now(j, j->worst);
	look(j, load, j->now, j->a->nr_places, j->drawn[0]);
	look(j, load, j->all_next + j->worst * j->a->nr_places, j->a->nr_places, j->drawn[1]);
	printf("\nlayer %" PRIu64 ", each rank's load over the mean, before and after\n", j->worst);
	for (uint32_t r = 0; r < j->a->nr_ranks && r < MOST_BARS; r++) {
		snprintf(name, sizeof(name), "%u", r);
		bar(name, j->drawn[0][r]);
		bar("", j->drawn[1][r]);
	}
	if (j->a->nr_ranks > MOST_BARS)
		printf("  and %u ranks more\n", j->a->nr_ranks - MOST_BARS);
}

static struct layer mean(const struct job *j)
{
	struct layer m = {0};
	double copies = 0;

	for (uint64_t i = 0; i < j->loads.nr_layers; i++) {
		m.blocks += j->layers[i].blocks / (double)j->loads.nr_layers;
		m.before += j->layers[i].before / (double)j->loads.nr_layers;
		m.after += j->layers[i].after / (double)j->loads.nr_layers;
		m.judged += j->layers[i].judged / (double)j->loads.nr_layers;
		copies += j->layers[i].nr_copies;
	}
	m.nr_copies = (uint32_t)(copies / (double)j->loads.nr_layers + 0.5);
	return m;
}

static void print_job(struct job *j)
{
	struct layer m = mean(j);
	char name[32];

	printf("%" PRIu64 " layers of %" PRIu64
	       " experts; %u places on %u ranks, %u nodes. The busiest "
	       "rank's load\nover the mean: blocks without replicas, now, as planned\n\n",
		j->loads.nr_layers, j->loads.nr, j->a->nr_places, j->a->nr_ranks, j->a->nr_nodes);
	printf("%-10s %9s %9s %9s %9s%s\n", "layer", "blocks", "now", "planned", "copies",
		j->judge.values ? "    judged" : "");
	for (uint64_t i = 0; i < j->loads.nr_layers; i++) {
		snprintf(name, sizeof(name), "%" PRIu64, i);
		print_row(name, &j->layers[i], j->judge.values);
	}
	print_row("mean", &m, j->judge.values);
	printf("\nplanned in %.2f ms\n", j->ms);
	draw(j);
}

static int write_json(const struct job *j)
{
	FILE *file = fopen(j->a->json, "w");

	if (!file) {
		perror(j->a->json);
		return -1;
	}
	fprintf(file,
		"{\"experts\": %" PRIu64
		", \"places\": %u, \"ranks\": %u, \"nodes\": %u, \"ms\": %.3f, \"layers\": [",
		j->loads.nr, j->a->nr_places, j->a->nr_ranks, j->a->nr_nodes, j->ms);
	for (uint64_t i = 0; i < j->loads.nr_layers; i++) {
		const struct layer *l = &j->layers[i];

		fprintf(file,
			"%s\n{\"blocks\": %.6f, \"before\": %.6f, \"after\": %.6f, \"copies\": %u",
			i ? "," : "", l->blocks, l->before, l->after, l->nr_copies);
		if (j->judge.values)
			fprintf(file, ", \"judged\": %.6f", l->judged);
		fputs("}", file);
	}
	fputs("]}\n", file);
	return fclose(file) ? (perror(j->a->json), -1) : 0;
}

static int write_files(const struct job *j)
{
	const struct npy n = {.type = NPY_INT32,
		.nr_dims = 2,
		.shape = {j->loads.nr_layers, j->a->nr_places},
		.data = j->all_next,
		.data_bytes = j->loads.nr_layers * j->a->nr_places * sizeof(*j->all_next)};
	struct reason why;

	if (j->a->out && npy_write(j->a->out, &n, &why)) {
		fprintf(stderr, NAME ": %s\n", why.text);
		return -1;
	}
	return j->a->json ? write_json(j) : 0;
}

static int settle(struct arguments *a, uint64_t nr_experts)
{
	if (!a->nr_nodes)
		a->nr_nodes = a->nr_ranks;
	if (!a->nr_ranks || a->nr_nodes > a->nr_ranks || nr_experts > INT32_MAX) {
		fprintf(stderr, NAME ": %" PRIu64 " experts on %u ranks of %u nodes\n", nr_experts,
			a->nr_ranks, a->nr_nodes);
		return -1;
	}
	if (!a->nr_places)
		a->nr_places = (uint32_t)(nr_experts + a->nr_ranks - 1) / a->nr_ranks * a->nr_ranks;
	return 0;
}

static int balance(struct arguments *a, const char *path)
{
	struct job j = {.a = a};
	int rc = read_table(path, &j.loads);

	rc = rc ? rc : settle(a, j.loads.nr);
	rc = rc ? rc : read_others(&j);
	rc = rc ? rc : open_job(&j);
	for (uint64_t i = 0; i < j.loads.nr_layers && !rc; i++)
		rc = plan_layer(&j, i);
	rc = rc ? rc : write_files(&j);
	if (!rc)
		print_job(&j);
	close_job(&j);
	return rc ? 1 : 0;
}

int cmd_balance(int argc, char **argv)
{
	struct arguments a = {.nr_ranks = 8, .max_copies = ALL_COPIES, .spread = 1};
	const struct arguments defaults = a;

	if (options_parse(options, &a, argc, argv, false))
		return EXIT_USAGE;
	if (a.help) {
		puts("Usage: " NAME " LOADS.npy [options]\n"
		     "Where experts should live, for loads that were recorded: [experts] or "
		     "[layers][experts], of\nint32, int64 or float32, such as the routes that each "
		     "expert got.");
		options_print(options, &defaults, stdout);
		return 0;
	}
	if (optind != argc - 1) {
		fprintf(stderr, NAME ": it takes one file of loads\nTry '" NAME " --help'.\n");
		return EXIT_USAGE;
	}
	return balance(&a, argv[optind]);
}
