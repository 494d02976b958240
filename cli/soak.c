/* SPDX-License-Identifier: Apache-2.0 */
/* tern soak: exchanges on the simulated network, each drawn from a seed and judged. */
#include "testkit/presets.h"
#include "cli/cmd.h"
#include "soak/soak.h"
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

enum flag {
	FLAG_SEED = 256,
	FLAG_ROUNDS,
	FLAG_SCENARIOS,
	FLAG_SECONDS,
	FLAG_RANKS,
	FLAG_MOST_RANKS,
	FLAG_RANKS_PER_NODE,
	FLAG_MODE,
	FLAG_FAULT,
	FLAG_PHASE,
	FLAG_WRONG,
	FLAG_PRESET,
	FLAG_TOKENS,
	FLAG_DTYPE,
	FLAG_LENGTH,
	FLAG_JSON,
	FLAG_QUIET,
	FLAG_HELP
};

static const struct option options[] = {
	{"seed", required_argument, NULL, FLAG_SEED},
	{"rounds", required_argument, NULL, FLAG_ROUNDS},
	{"scenarios", required_argument, NULL, FLAG_SCENARIOS},
	{"seconds", required_argument, NULL, FLAG_SECONDS},
	{"ranks", required_argument, NULL, FLAG_RANKS},
	{"most-ranks", required_argument, NULL, FLAG_MOST_RANKS},
	{"ranks-per-node", required_argument, NULL, FLAG_RANKS_PER_NODE},
	{"mode", required_argument, NULL, FLAG_MODE},
	{"fault", required_argument, NULL, FLAG_FAULT},
	{"phase", required_argument, NULL, FLAG_PHASE},
	{"wrong", required_argument, NULL, FLAG_WRONG},
	{"preset", required_argument, NULL, FLAG_PRESET},
	{"tokens", required_argument, NULL, FLAG_TOKENS},
	{"dtype", required_argument, NULL, FLAG_DTYPE},
	{"length", required_argument, NULL, FLAG_LENGTH},
	{"json", required_argument, NULL, FLAG_JSON},
	{"quiet", no_argument, NULL, FLAG_QUIET},
	{"help", no_argument, NULL, FLAG_HELP},
	{NULL, 0, NULL, 0},
};

static void usage(void)
{
	printf("Usage: tern soak [options]\n\n"
	       "Dispatch and combine of many ranks in one thread, on a simulated network in "
	       "virtual time.\n"
	       "Shape, network and faults of a scenario are drawn from its seed, and every result "
	       "is compared\n"
	       "with the reference. The first failure ends it and prints the command that repeats "
	       "it.\n\n"
	       "  --seed N                the first scenario's; alone: only this one (1)\n"
	       "  --rounds N --scenarios N --seconds S   when to stop (1000 rounds)\n"
	       "  --most-ranks N          draw up to so many ranks (8)     --ranks N   exactly so "
	       "many\n"
	       "  --ranks-per-node N      ranks of a node are mapped; 1: none (drawn)\n"
	       "  --mode ll|ht            (drawn)\n"
	       "  --fault none|kill|cut|drawn            a rank dies, or a link swallows "
	       "everything (drawn)\n"
	       "  --phase dispatch_send|dispatch_recv|combine_send|combine_recv|any|drawn   when "
	       "(drawn)\n"
	       "  --length N              rounds of one scenario (drawn)\n"
	       "  --preset NAME --tokens N --dtype bf16|fp8   a model's shape, on a fair network\n"
	       "  --wrong network|blame|row|deaf         break something on purpose: a failure is "
	       "what should come\n"
	       "  --json FILE             - is standard output     --quiet   no progress\n");
}

/* ---- arguments ------------------------------------------------------------------------------- */

static int complain(const char *what, const char *text)
{
	fprintf(stderr, NAME ": %s \"%.40s\" is not known.\nTry 'tern soak --help'.\n", what, text);
	return -1;
}

static int parse_number(const char *text, uint64_t most, uint64_t *value)
{
	unsigned long long number;
	char *end;

	errno = 0;
	number = strtoull(text, &end, 10);
	if (errno || *end || end == text || *text == '-' || number > most) {
		fprintf(stderr, NAME ": \"%.40s\" is not a number from 0 to %llu\n", text,
			(unsigned long long)most);
		return -1;
	}
	*value = number;
	return 0;
}

static int parse_count(const char *text, uint64_t most, uint32_t *value)
{
	uint64_t number;
	int rc = parse_number(text, most, &number);

	if (!rc)
		*value = (uint32_t)number;
	return rc;
}

/* The place of a word in a list, or -1. */
static int parse_word(const char *what, const char *text, const char *const *words, int nr)
{
	for (int i = 0; i < nr; i++)
		if (!strcmp(words[i], text))
			return i;
	return complain(what, text);
}

static int parse_preset(const char *text, struct soak_wishes *wishes)
{
	const struct preset *preset = preset_find(text);

	if (!preset)
		return complain("preset", text);
	wishes->hidden = preset->hidden;
	wishes->nr_experts = preset->nr_experts;
	wishes->topk = preset->topk;
	return 0;
}

static int parse_choice(struct soak_wishes *wishes, int flag, const char *text)
{
	static const char *const modes[] = {"drawn", "ll", "ht"},
				 *const wrongs[] = {"nothing", "network", "blame", "row", "deaf"},
				 *const dtypes[] = {"bf16", "fp8"};
	int value = -1;

	switch (flag) {
	case FLAG_MODE:
		value = parse_word("mode", text, modes, 3);
		wishes->mode = (enum tern_mode)value;
		break;
	case FLAG_FAULT:
		value = parse_word("fault", text, soak_fault_names, SOAK_DRAWN + 1);
		wishes->fault = (enum soak_fault)value;
		break;
	case FLAG_PHASE:
		value = parse_word("phase", text, soak_phase_names, SOAK_PHASE_DRAWN + 1);
		wishes->phase = (enum soak_phase)value;
		break;
	case FLAG_WRONG:
		value = parse_word("wrong", text, wrongs, 5);
		wishes->wrong = (enum soak_wrong)value;
		break;
	case FLAG_DTYPE:
		value = parse_word("dtype", text, dtypes, 2);
		wishes->dtype = value == 1 ? TERN_FP8_E4M3 : TERN_BF16;
		break;
	}
	return value < 0 ? -1 : 0;
}

static int parse_one(struct arguments *a, int flag, const char *text)
{
	uint64_t number;

	switch (flag) {
	case FLAG_SEED:
		a->seed_given = true;
		return parse_number(text, UINT64_MAX, &a->seed);
	case FLAG_ROUNDS:
		return parse_number(text, UINT64_MAX, &a->rounds);
	case FLAG_SCENARIOS:
		return parse_number(text, UINT64_MAX, &a->scenarios);
	case FLAG_SECONDS:
		if (parse_number(text, 1u << 30, &number))
			return -1;
		a->seconds = (double)number;
		return 0;
	case FLAG_RANKS:
		return parse_count(text, 1024, &a->wishes.nr_ranks);
	case FLAG_MOST_RANKS:
		return parse_count(text, 32, &a->wishes.most_ranks);
	case FLAG_RANKS_PER_NODE:
		return parse_count(text, 1024, &a->wishes.ranks_per_node);
	case FLAG_TOKENS:
		return parse_count(text, 1 << 16, &a->wishes.nr_tokens);
	case FLAG_LENGTH:
		return parse_count(text, 1 << 20, &a->wishes.rounds);
	case FLAG_PRESET:
		return parse_preset(text, &a->wishes);
	case FLAG_JSON:
		a->json = text;
		return 0;
	case FLAG_QUIET:
		a->quiet = true;
		return 0;
	case FLAG_HELP:
		a->help = true;
		return 0;
	case '?':
		return -1;
	}
	return parse_choice(&a->wishes, flag, text);
}

static int parse(struct arguments *a, int argc, char **argv)
{
	int flag;

	*a = (struct arguments){.seed = 1,
		.nr_words = argc,
		.words = argv,
		.wishes = {.fault = SOAK_DRAWN, .phase = SOAK_PHASE_DRAWN}};
	while ((flag = getopt_long(argc, argv, "", options, NULL)) != -1)
		if (parse_one(a, flag, optarg))
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
