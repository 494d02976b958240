/* SPDX-License-Identifier: Apache-2.0 */
/* tern soak: exchanges on the simulated network, each drawn from a seed and judged. */
#include "testkit/presets.h"
#include "cli/cmd.h"
#include "soak/soak.h"
#include "testkit/options.h"
#include "tern.h"

#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "base/clock.h"

#define NAME "tern soak"

struct arguments {
	struct soak_wishes wishes;
	uint64_t seed, rounds, scenarios;
	double seconds;
	const char *json;
	bool seed_given, quiet, help;
	int nr_words;
	char **words; /* as they were given */
};

struct totals {
	uint64_t scenarios, rounds, halves, struck, events, writes;
	uint64_t slowest_error_ns, digest;
	double virtual_s, wall_s;
};

/* ---- arguments ------------------------------------------------------------------------------- */

static int complain(const char *what, const char *text)
{
	fprintf(stderr, NAME ": %s \"%.40s\" is not known.\nTry 'tern soak --help'.\n", what, text);
	return -1;
}

static int set_seed(void *ctx, const struct option_row *row, const char *text)
{
	struct arguments *a = ctx;

	a->seed_given = true;
	return option_whole(a, row, text);
}

static int set_seconds(void *ctx, const struct option_row *row, const char *text)
{
	struct arguments *a = ctx;
	uint64_t number;
	int rc = option_number(NAME, text, row->most, &number);

	if (!rc)
		a->seconds = (double)number;
	return rc;
}

/* The place of a word in a list: the value of an enum. */
static int set_word(void *args, const struct option_row *row, const char *text)
{
	const char *const *words = row->values;

	for (uint64_t i = 0; i <= row->most; i++) {
		if (strcmp(words[i], text))
			continue;
		option_store(args, row, i);
		return 0;
	}
	return complain(row->name, text);
}

static int set_preset(void *ctx, const struct option_row *row, const char *text)
{
	struct soak_wishes *wishes = &((struct arguments *)ctx)->wishes;
	const struct preset *preset = preset_find(text);

	if (!preset)
		return complain(row->name, text);
	wishes->hidden = preset->hidden;
	wishes->nr_experts = preset->nr_experts;
	wishes->topk = preset->topk;
	return 0;
}

static int set_dtype(void *ctx, const struct option_row *row, const char *text)
{
	struct soak_wishes *wishes = &((struct arguments *)ctx)->wishes;

	if (strcmp(text, "bf16") && strcmp(text, "fp8"))
		return complain(row->name, text);
	wishes->dtype = strcmp(text, "fp8") ? TERN_BF16 : TERN_FP8_E4M3;
	return 0;
}

static const char *const modes[] = {"drawn", "ll", "ht"}, *const wrongs[] = {"nothing", "network",
								  "blame", "row", "deaf", "stale",
								  "liar"};

#define FIELD(field) OPTION_FIELD(struct arguments, field)
#define NUMBER(field, to) .set = option_whole, .values = NAME, FIELD(field), .most = to
#define WORD(field, last, words) .set = set_word, FIELD(field), .most = last, .values = words

static const struct option_row options[] = {
	{.help = "When to stop (default: after 1000 rounds)"},
	{.name = "rounds",
		.argument = "N",
		NUMBER(rounds, UINT64_MAX),
		.help = "after so many rounds"},
	{.name = "scenarios",
		.argument = "N",
		NUMBER(scenarios, UINT64_MAX),
		.help = "after so many scenarios"},
	{.name = "seconds",
		.argument = "S",
		.set = set_seconds,
		.most = 1u << 30,
		.help = "after so long"},
	{.help = "Scenarios"},
	{.name = "seed",
		.argument = "N",
		.set = set_seed,
		.values = NAME,
		FIELD(seed),
		.most = UINT64_MAX,
		.help = "the first scenario's; alone: only this one (#)"},
	{.name = "most-ranks",
		.argument = "N",
		NUMBER(wishes.most_ranks, 32),
		.help = "draw up to so many ranks (8)"},
	{.name = "ranks",
		.argument = "N",
		NUMBER(wishes.nr_ranks, 1024),
		.help = "exactly so many"},
	{.name = "ranks-per-node",
		.argument = "N",
		NUMBER(wishes.ranks_per_node, 1024),
		.help = "ranks of a node are mapped; 1: none (drawn)"},
	{.name = "mode",
		.argument = "ll|ht",
		WORD(wishes.mode, 2, modes),
		.help = "low latency, high throughput (drawn)"},
	{.name = "fault",
		.argument = "none|kill|cut|drawn",
		WORD(wishes.fault, SOAK_DRAWN, soak_fault_names),
		.help = "a rank dies, or a link swallows everything (drawn)"},
	{.name = "phase",
		.argument = "PHASE",
		WORD(wishes.phase, SOAK_PHASE_DRAWN, soak_phase_names),
		.help = "when: dispatch_send, dispatch_recv, combine_send, combine_recv, any or "
			"drawn (drawn)"},
	{.name = "length",
		.argument = "N",
		NUMBER(wishes.rounds, 1 << 20),
		.help = "rounds of one scenario (drawn)"},
	{.name = "wrong",
		.argument = "WHAT",
		WORD(wishes.wrong, 6, wrongs),
		.help = "break something on purpose, so that a failure is what should come: "
			"network, blame, row, deaf, stale or liar"},
	{.help = "A model's shape, on a fair network"},
	{.name = "preset",
		.argument = "NAME",
		.set = set_preset,
		.help = "as tern bench --help lists them"},
	{.name = "tokens",
		.argument = "N",
		NUMBER(wishes.nr_tokens, 1 << 16),
		.help = "of each rank (16)"},
	{.name = "dtype",
		.argument = "bf16|fp8",
		.set = set_dtype,
		.help = "of dispatched rows (bf16)"},
	{.help = "Output"},
	{.name = "json",
		.argument = "FILE",
		.set = option_text,
		FIELD(json),
		.help = "- is standard output"},
	{.name = "quiet", .set = option_flag, FIELD(quiet), .help = "no progress"},
	{.name = "help", .set = option_flag, FIELD(help), .help = "this text"},
	{0},
};

static void set_defaults(struct arguments *a)
{
	*a = (struct arguments){
		.seed = 1, .wishes = {.fault = SOAK_DRAWN, .phase = SOAK_PHASE_DRAWN}};
}

static void usage(void)
{
	struct arguments defaults;

	set_defaults(&defaults);
	fputs("Usage: tern soak [options]\n"
	      "Dispatch and combine of many ranks in one thread, on a simulated network in virtual "
	      "time. Shape,\n"
	      "network and faults of a scenario are drawn from its seed, and every result is "
	      "compared with the\n"
	      "reference. The first failure ends it and prints the command that repeats it.\n"
	      "tern soak --views [options]: ranks that die while the others go on; it has a help "
	      "of "
	      "its own.\n",
		stdout);
	options_print(options, &defaults, stdout);
}

static int parse(struct arguments *a, int argc, char **argv)
{
	set_defaults(a);
	a->nr_words = argc;
	a->words = argv;
	if (options_parse(options, a, argc, argv, false))
		return -1;
	if (optind < argc) {
		fprintf(stderr, NAME ": \"%.40s\" is no option\n", argv[optind]);
		return -1;
	}
	if (a->wishes.hidden && !a->wishes.nr_tokens)
		a->wishes.nr_tokens = 16;
	if (a->wishes.hidden)
		a->wishes.fault = SOAK_NO_FAULT;
	if (!a->rounds && !a->scenarios && a->seconds == 0) {
		if (a->seed_given || a->wishes.hidden)
			a->scenarios = 1;
		else
			a->rounds = 1000;
	}
	return 0;
}

/* ---- running --------------------------------------------------------------------------------- */

/* The flags that say what a scenario is are repeated; how many and how it is told are not. */
static bool is_repeated(const char *flag)
{
	static const char *const others[] = {
		"--seed", "--rounds", "--scenarios", "--seconds", "--json", "--quiet"};

	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		if (!strncmp(flag, others[i], strlen(others[i])))
			return false;
	return true;
}

static void print_failure(
	const struct arguments *a, const struct scenario *s, const struct soak_outcome *o)
{
	char shape[1024];
	bool repeated = true;

	scenario_describe(s, shape, sizeof(shape));
	printf("seed %llu failed:\n%s  %s\nrepeat: tern soak", (unsigned long long)s->seed, o->text,
		shape);
	for (int i = 1; i < a->nr_words; i++) {
		if (!strncmp(a->words[i], "--", 2))
			repeated = is_repeated(a->words[i]);
		if (repeated)
			printf(" %s", a->words[i]);
	}
	printf(" --seed %llu\n", (unsigned long long)s->seed);
}

/* 0: good. */
static int run_one(const struct arguments *a, uint64_t seed, struct totals *t)
{
	struct scenario scenario;
	struct soak_outcome outcome;
	struct reason why;
	int rc = scenario_open(&scenario, seed, &a->wishes, &why);

	if (rc) {
		fprintf(stderr, NAME ": seed %llu: %s\n", (unsigned long long)seed, why.text);
		scenario_close(&scenario);
		return -1;
	}
	rc = soak_run(&scenario, &outcome);
	if (rc || !outcome.good) {
		print_failure(a, &scenario, &outcome);
		rc = -1;
	}
	scenario_close(&scenario);
	t->scenarios++;
	t->rounds += outcome.rounds;
	t->halves += outcome.halves;
	t->struck += outcome.struck;
	t->events += outcome.stats.events;
	t->writes += outcome.stats.writes;
	t->virtual_s += (double)outcome.virtual_ns / 1e9;
	t->digest = (t->digest ^ outcome.digest) * 0x9fb21c651e98df25u;
	if (outcome.slowest_error_ns > t->slowest_error_ns)
		t->slowest_error_ns = outcome.slowest_error_ns;
	return rc;
}

static bool is_done(const struct arguments *a, const struct totals *t)
{
	return (a->scenarios && t->scenarios >= a->scenarios) ||
	       (a->rounds && t->rounds >= a->rounds) || (a->seconds > 0 && t->wall_s >= a->seconds);
}

static long peak_kilobytes(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_maxrss;
}

static void print_totals(const struct totals *t)
{
	printf("scenarios                 %llu, %llu of them with a fault\n",
		(unsigned long long)t->scenarios, (unsigned long long)t->struck);
	printf("rounds                    %llu, %.0f a second; %llu halves of single ranks\n",
		(unsigned long long)t->rounds, (double)t->rounds / t->wall_s,
		(unsigned long long)t->halves);
	printf("writes, events            %llu, %llu\n", (unsigned long long)t->writes,
		(unsigned long long)t->events);
	printf("slowest error             %.3f ms after its fault, in virtual time\n",
		(double)t->slowest_error_ns / 1e6);
	printf("time                      %.2f s, for %.3f s of virtual time\n", t->wall_s,
		t->virtual_s);
	printf("peak memory               %.1f MiB\n", (double)peak_kilobytes() / 1024);
	printf("digest                    %016llx\n", (unsigned long long)t->digest);
}

static int write_json(const struct arguments *a, const struct totals *t, bool good)
{
	FILE *file = !strcmp(a->json, "-") ? stdout : fopen(a->json, "w");

	if (!file) {
		fprintf(stderr, NAME ": %s: %s\n", a->json, strerror(errno));
		return -1;
	}
	fprintf(file,
		"{\"good\": %s, \"first_seed\": %llu, \"scenarios\": %llu, \"faults\": %llu, "
		"\"rounds\": %llu, "
		"\"halves\": %llu, \"writes\": %llu, \"events\": %llu, \"slowest_error_ns\": %llu, "
		"\"wall_s\": %.3f, "
		"\"virtual_s\": %.6f, \"peak_kib\": %ld, \"digest\": \"%016llx\"}\n",
		good ? "true" : "false", (unsigned long long)a->seed,
		(unsigned long long)t->scenarios, (unsigned long long)t->struck,
		(unsigned long long)t->rounds, (unsigned long long)t->halves,
		(unsigned long long)t->writes, (unsigned long long)t->events,
		(unsigned long long)t->slowest_error_ns, t->wall_s, t->virtual_s, peak_kilobytes(),
		(unsigned long long)t->digest);
	return file == stdout || !fclose(file) ? 0 : -1;
}

static int run_all(const struct arguments *a, struct totals *t)
{
	uint64_t start = clock_ns(), told = start;
	int rc = 0;

	for (uint64_t seed = a->seed; !rc && !is_done(a, t); seed++) {
		rc = run_one(a, seed, t);
		t->wall_s = (double)(clock_ns() - start) / 1e9;
		if (a->quiet || clock_ns() - told < 5000000000u)
			continue;
		told = clock_ns();
		fprintf(stderr, "seed %llu: %llu rounds in %.0f s\n", (unsigned long long)seed,
			(unsigned long long)t->rounds, t->wall_s);
	}
	return rc;
}

int cmd_soak(int argc, char **argv)
{
	struct arguments a;
	struct totals t = {0};
	int rc;

	if (argc > 1 && !strcmp(argv[1], "--views"))
		return cmd_soak_views(argc - 1, argv + 1);
	if (parse(&a, argc, argv))
		return EXIT_USAGE;
	if (a.help) {
		usage();
		return 0;
	}
	/* Windows and staging of hundreds of ranks are touched here and there: with huge pages they
	 * would not fit. */
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	rc = run_all(&a, &t);
	if (!a.json || strcmp(a.json, "-"))
		print_totals(&t);
	if (a.json && write_json(&a, &t, !rc))
		rc = -1;
	return rc ? 1 : 0;
}
