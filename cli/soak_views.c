/* SPDX-License-Identifier: Apache-2.0 */
/* tern soak --views: ranks that die, are cut off and are stopped, and how the others go on. */
#include "cli/cmd.h"
#include "base/clock.h"
#include "group/agreement.h"
#include "soak/views.h"
#include "testkit/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "tern soak --views"

struct arguments {
	struct views_wishes wishes;
	uint64_t seed, scenarios, rounds;
	const char *wrong;
	bool seed_given, help;
};

static const struct {
	const char *name;
	uint32_t broken;
} wrongs[] = {
	{"no-promise", AGREEMENT_BREAK_NO_PROMISE},
	{"forget", AGREEMENT_BREAK_FORGET},
	{"act-alone", AGREEMENT_BREAK_ACT_ALONE},
	{"no-quorum", AGREEMENT_BREAK_NO_QUORUM},
	{"no-fence", AGREEMENT_BREAK_NO_FENCE},
	{"old-epochs", VIEWS_BREAK_OLD_EPOCHS},
	{"no-service", VIEWS_BREAK_NO_SERVICE},
	{"keep-links", VIEWS_BREAK_KEEP_LINKS},
	{"go-on", VIEWS_BREAK_GO_ON},
	{"late-stores", VIEWS_BREAK_LATE_STORES},
	{"old-places", VIEWS_BREAK_OLD_PLACES},
	{"hide-loss", VIEWS_BREAK_HIDE_LOSS},
	{"count-twice", VIEWS_BREAK_COUNT_TWICE},
	{"dawdle", VIEWS_BREAK_DAWDLE},
	{"unready", AGREEMENT_BREAK_UNREADY},
	{"old-record", AGREEMENT_BREAK_OLD_RECORD},
	{"serve-early", VIEWS_BREAK_SERVE_EARLY},
	{"keep-parts", VIEWS_BREAK_KEEP_PARTS},
	{"name-early", VIEWS_BREAK_NAME_EARLY},
	{"overwrite", VIEWS_BREAK_OVERWRITE},
	{"no-sums", VIEWS_BREAK_NO_SUMS},
	{"stale", VIEWS_BREAK_STALE},
	{"come-again", VIEWS_BREAK_COME_AGAIN},
};

static int set_seed(void *ctx, const struct option_row *row, const char *text)
{
	((struct arguments *)ctx)->seed_given = true;
	return option_whole(ctx, row, text);
}

static int set_wrong(void *ctx, const struct option_row *row, const char *text)
{
	struct arguments *a = ctx;

	for (size_t i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++) {
		if (strcmp(text, wrongs[i].name))
			continue;
		a->wishes.broken = wrongs[i].broken;
		a->wrong = text;
		return 0;
	}
	fprintf(stderr, NAME ": %s \"%.40s\" is not known\n", row->name, text);
	return -1;
}

#define FIELD(field) OPTION_FIELD(struct arguments, field)
#define NUMBER(field, to) .set = option_whole, .values = NAME, FIELD(field), .most = to

static const struct option_row options[] = {
	{.help = "When to stop (default: after 20000 rounds of ranks)"},
	{.name = "rounds",
		.argument = "N",
		NUMBER(rounds, UINT64_MAX),
		.help = "when ranks have completed so many"},
	{.name = "scenarios",
		.argument = "N",
		NUMBER(scenarios, UINT64_MAX),
		.help = "after so many scenarios"},
	{.help = "Scenarios"},
	{.name = "seed",
		.argument = "N",
		.set = set_seed,
		.values = NAME,
		FIELD(seed),
		.most = UINT64_MAX,
		.help = "the first scenario's; alone: only this one (#)"},
	{.name = "ranks",
		.argument = "N",
		NUMBER(wishes.nr_ranks, VIEW_MOST_RANKS),
		.help = "exactly so many, at least 2 (drawn)"},
	{.name = "most-ranks",
		.argument = "N",
		NUMBER(wishes.most_ranks, VIEW_MOST_RANKS),
		.help = "draw up to so many (16)"},
	{.name = "length",
		.argument = "N",
		NUMBER(wishes.nr_rounds, 1 << 20),
		.help = "rounds of each rank (drawn)"},
	{.name = "wrong",
		.argument = "WHAT",
		.set = set_wrong,
		.help = "break something on purpose: no-promise, forget, act-alone, no-quorum, "
			"no-fence, old-epochs, no-service, keep-links, go-on, late-stores, "
			"old-places, hide-loss, count-twice, dawdle, unready, old-record, "
			"serve-early, keep-parts, name-early, overwrite, no-sums, stale or "
			"come-again"},
	{.name = "help", .set = option_flag, FIELD(help), .help = "this text"},
	{0},
};

static int parse(struct arguments *a, int argc, char **argv)
{
	*a = (struct arguments){.seed = 1};
	if (options_parse(options, a, argc, argv, false))
		return -1;
	if (a->wishes.nr_ranks == 1 || a->wishes.most_ranks == 1) {
		fprintf(stderr, NAME ": it takes two ranks\n");
		return -1;
	}
	if (!a->rounds && !a->scenarios && a->seed_given)
		a->scenarios = 1;
	else if (!a->rounds && !a->scenarios)
		a->rounds = 20000;
	return 0;
}

static void print_failure(
	const struct arguments *a, uint64_t seed, const struct views_outcome *outcome)
{
	printf("seed %llu failed:\n  %s\n  %s\nrepeat: " NAME, (unsigned long long)seed,
		outcome->text, outcome->shape);
	if (a->wishes.nr_ranks)
		printf(" --ranks %u", a->wishes.nr_ranks);
	if (a->wishes.most_ranks)
		printf(" --most-ranks %u", a->wishes.most_ranks);
	if (a->wishes.nr_rounds)
		printf(" --length %u", a->wishes.nr_rounds);
	if (a->wrong)
		printf(" --wrong %s", a->wrong);
	printf(" --seed %llu\n", (unsigned long long)seed);
}

static void add(struct views_outcome *total, const struct views_outcome *one)
{
	total->rounds += one->rounds;
	total->changes += one->changes;
	total->served += one->served;
	total->joined += one->joined;
	total->moved += one->moved;
	total->placed += one->placed;
	total->events += one->events;
	total->nr_died += one->nr_died;
	total->nr_expelled += one->nr_expelled;
	total->nr_stuck += one->nr_stuck;
	total->nr_lost += one->nr_lost;
	total->digest = (total->digest ^ one->digest) * 0x9fb21c651e98df25u;
	if (one->slowest_us > total->slowest_us)
		total->slowest_us = one->slowest_us;
}

static void print_totals(const struct views_outcome *t, uint64_t scenarios, double seconds)
{
	printf("scenarios                 %llu\n", (unsigned long long)scenarios);
	printf("rounds                    %llu of ranks, and %llu made for others\n",
		(unsigned long long)t->rounds, (unsigned long long)t->served);
	printf("views acted on            %llu\n", (unsigned long long)t->changes);
	printf("ranks                     %u died, %u were left out, %u lacked a quorum, %u "
	       "experts\n",
		t->nr_died, t->nr_expelled, t->nr_stuck, t->nr_lost);
	printf("newcomers                 %llu let in\n", (unsigned long long)t->joined);
	printf("experts                   %llu moved, %llu placements\n",
		(unsigned long long)t->moved, (unsigned long long)t->placed);
	printf("slowest change            %llu us of virtual time, where ranks only died\n",
		(unsigned long long)t->slowest_us);
	printf("time                      %.2f s, %llu events\n", seconds,
		(unsigned long long)t->events);
	printf("digest                    %016llx\n", (unsigned long long)t->digest);
}

static bool is_done(const struct arguments *a, uint64_t scenarios, uint64_t rounds)
{
	return (a->scenarios && scenarios >= a->scenarios) || (a->rounds && rounds >= a->rounds);
}

int cmd_soak_views(int argc, char **argv)
{
	struct views_outcome total = {0}, one = {.good = true};
	uint64_t scenarios = 0, start = clock_ns();
	struct arguments a;

	if (parse(&a, argc, argv))
		return EXIT_USAGE;
	if (a.help) {
		puts("Usage: " NAME " [options]\n"
		     "Ranks make rounds in virtual time while some die, leave, are cut off or are "
		     "stopped, others take\ntheir places, and experts move. How they agree on who "
		     "is there is the library's own code, and so are\nplacements. The first "
		     "failure "
		     "ends it and prints the command that repeats it.");
		options_print(options, &a, stdout);
		return 0;
	}
	for (; one.good && !is_done(&a, scenarios, total.rounds); scenarios++) {
		if (views_run(a.seed + scenarios, &a.wishes, &one)) {
			fprintf(stderr, NAME ": no memory\n");
			return 1;
		}
		add(&total, &one);
		if (!one.good)
			print_failure(&a, a.seed + scenarios, &one);
	}
	print_totals(&total, scenarios, (double)(clock_ns() - start) / 1e9);
	return one.good ? 0 : 1;
}
