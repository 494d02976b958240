/* SPDX-License-Identifier: Apache-2.0 */
/* The agreement on the next view, as it is: every order of what three or four ranks can hear, do
 * and suffer until all have come to an end. In each, ranks that live never act on different views,
 * and nobody is stuck who should not be. Each thing made wrong has to be found. */
#include "group/agreement.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "testkit/random.h"
#include "tests/exchange/ranks.h"

#define MOST 4

struct world {
	struct agreement ranks[MOST];
	struct agreement_record heard[MOST][MOST];
	bool dead[MOST], expelled[MOST], acted[MOST];
	bool ready[MOST];              /* has everything prepared for the newcomer, the last rank */
	uint32_t nr_deaths, nr_doubts; /* that may still come */
};

struct search {
	uint32_t nr_ranks, broken;
	bool joins;     /* the last rank is no member, and wants to be */
	uint64_t *seen; /* hashes */
	size_t room, nr_states, nr_ends, nr_let_in;
	char wrong[256];
};

/* What two worlds differ in; pointers into a world are no part of it. */
static uint64_t hash_of(const struct world *w)
{
	struct world copy = *w;
	uint64_t hash = 1, word;

	for (int r = 0; r < MOST; r++)
		copy.ranks[r].heard = NULL;
	for (size_t i = 0; i + sizeof(word) <= sizeof(copy); i += sizeof(word)) {
		memcpy(&word, (const char *)&copy + i, sizeof(word));
		hash = (hash ^ word) * 0x9fb21c651e98df25u;
		hash ^= hash >> 29;
	}
	return mix64(hash) | 1;
}

static bool is_new(struct search *s, const struct world *w)
{
	uint64_t hash = hash_of(w);
	size_t at = hash & (s->room - 1);

	for (; s->seen[at]; at = (at + 1) & (s->room - 1))
		if (s->seen[at] == hash)
			return false;
	s->seen[at] = hash;
	s->nr_states++;
	return true;
}

static bool is_newcomer(const struct search *s, uint32_t r)
{
	return s->joins && r == s->nr_ranks - 1;
}

/* Who acts on a view with the newcomer has a place for it. */
static void judge_entry(struct search *s, const struct world *w)
{
	for (uint32_t r = 0; r < s->nr_ranks - 1; r++)
		if (w->acted[r] && w->ranks[r].mine.view.newcomer && !w->ready[r])
			snprintf(s->wrong, sizeof(s->wrong),
				"rank %u acts with a newcomer for which it is not ready", r);
}

static void judge(struct search *s, const struct world *w)
{
	if (s->joins)
		judge_entry(s, w);
	for (uint32_t a = 0; a < s->nr_ranks; a++)
		for (uint32_t b = 0; b < a; b++)
			if (w->acted[a] && w->acted[b] && !w->dead[a] && !w->dead[b] &&
				memcmp(&w->ranks[a].mine.view, &w->ranks[b].mine.view,
					sizeof(struct view)))
				snprintf(s->wrong, sizeof(s->wrong),
					"ranks %u and %u act on different views", a, b);
}

/* As far as the rank goes by itself; who has to be fenced is. Acting comes apart. */
static bool settle(struct world *w, uint32_t r)
{
	struct agreement *a = &w->ranks[r];
	int news;

	do {
		news = agreement_step(a);
		for (uint32_t f = 0; f < MOST; f++)
			if (set_has(&a->to_fence, f))
				agreement_fence(a, f);
	} while (news == AGREEMENT_CHANGED || (!news && !set_is_empty(&a->to_fence)));
	w->expelled[r] = w->expelled[r] || (news & AGREEMENT_EXPELLED);
	return news & AGREEMENT_DECIDED;
}

static void explore(struct search *s, const struct world *w);

static void point(struct world *w)
{
	for (int r = 0; r < MOST; r++)
		w->ranks[r].heard = w->heard[r];
}

/* What a newcomer shows its members look at when they act with it; before, it lies nowhere. Members
 * know by themselves that it has come to its end. */
static bool can_hear(const struct search *s, const struct world *w, uint32_t r, uint32_t other)
{
	if (w->acted[r] && !is_newcomer(s, other))
		return false;
	if (is_newcomer(s, other) && !(w->acted[r] && w->acted[other]))
		return false;
	return w->heard[r][other].version < w->ranks[other].mine.version;
}

/* One of the things that can happen to rank r next; false: that one cannot. `other`: of whom. */
static bool happen(
	const struct search *s, struct world *w, uint32_t what, uint32_t r, uint32_t other)
{
	struct agreement *a = &w->ranks[r];

	if ((w->acted[r] && what) || (is_newcomer(s, r) && (what == 1 || what == 2 || what == 3)))
		return false;
	switch (what) {
	case 0: /* hears another's record, as it is now */
		if (!can_hear(s, w, r, other))
			return false;
		agreement_hear(a, other, &w->ranks[other].mine);
		return true;
	case 1: /* takes another, which may live, for gone */
		if (!w->nr_doubts || set_has(&a->mine.gone, other) || w->dead[other] ||
			is_newcomer(s, other))
			return false;
		w->nr_doubts--;
		agreement_leave_out(a, other, false);
		return true;
	case 2: /* sees that another has ended */
		if (!w->dead[other] || set_has(&a->mine.dead, other) || is_newcomer(s, other))
			return false;
		agreement_leave_out(a, other, true);
		return true;
	case 3:
		if (other != (r + 1) % 2 || a->mine.stopped)
			return false;
		agreement_stop(a);
		return true;
	case 4: /* dies */
		if (other != (r + 1) % 2 || !w->nr_deaths)
			return false;
		w->nr_deaths--;
		w->dead[r] = true;
		return true;
	case 6: /* has all prepared for the newcomer */
		if (!s->joins || is_newcomer(s, r) || other != (r + 1) % 2 || a->mine.stopped ||
			w->ready[r])
			return false;
		agreement_prepare(a, (int)s->nr_ranks - 1, 1, r);
		w->ready[r] = true;
		return true;
	default: /* acts */
		if (other != (r + 1) % 2 || !settle(w, r))
			return false;
		agreement_act(a);
		w->acted[r] = true;
		return true;
	}
}

/* It knows when it was let in, and is heard from then on. */
static void judge_newcomer(struct search *s, const struct world *w)
{
	uint32_t n = s->nr_ranks - 1;

	for (uint32_t r = 0; r < n && !w->dead[n]; r++) {
		if (w->dead[r] || !w->acted[r] || !w->ranks[r].mine.view.newcomer)
			continue;
		s->nr_let_in += w->acted[n];
		if (!w->acted[n])
			snprintf(s->wrong, sizeof(s->wrong), "rank %u has let in who is stuck", r);
		else if (w->heard[r][n].version != w->ranks[n].mine.version)
			snprintf(s->wrong, sizeof(s->wrong), "rank %u hears no newcomer", r);
	}
}

/* Nothing can happen any more: each rank that lives has acted, or knows why not. */
static void judge_end(struct search *s, const struct world *w)
{
	s->nr_ends++;
	for (uint32_t r = 0; r < s->nr_ranks; r++)
		if (!w->dead[r] && !w->acted[r] && !w->expelled[r] &&
			!agreement_lacks_quorum(&w->ranks[r]) && !is_newcomer(s, r))
			snprintf(s->wrong, sizeof(s->wrong), "rank %u is stuck", r);
	if (s->joins)
		judge_newcomer(s, w);
}

static void explore(struct search *s, const struct world *w)
{
	bool is_end = true;

	for (uint32_t what = 0; what < 7; what++)
		for (uint32_t r = 0; r < s->nr_ranks; r++)
			for (uint32_t other = 0; other < s->nr_ranks && !*s->wrong; other++) {
				struct world next = *w;

				if (other == r || w->dead[r] || w->expelled[r] ||
					(w->acted[r] && !s->joins))
					continue;
				point(&next);
				if (!happen(s, &next, what, r, other))
					continue;
				is_end = false;
				if (what < 3 && !next.dead[r] && !next.acted[r])
					settle(&next, r);
				if (what == 3)
					settle(&next, r);
				if (s->nr_states > s->room / 2)
					return;
				judge(s, &next);
				if (is_new(s, &next))
					explore(s, &next);
			}
	if (is_end && !*s->wrong)
		judge_end(s, w);
}

/* The last rank's predecessor has died in an earlier view, and what it showed is known. */
static void vacate(struct world *w, uint32_t nr_ranks)
{
	uint32_t n = nr_ranks - 1;

	for (uint32_t r = 0; r < n; r++) {
		set_remove(&w->ranks[r].mine.view.alive, n);
		w->heard[r][n].version = 1000;
	}
	agreement_come(&w->ranks[n], &w->ranks[0].mine.view, 1);
}

static struct search search_with(
	uint32_t nr_ranks, uint32_t nr_deaths, uint32_t nr_doubts, uint32_t broken, bool joins)
{
	struct search s = {
		.nr_ranks = nr_ranks, .broken = broken, .joins = joins, .room = 1u << 22};
	struct world *w = calloc(1, sizeof(*w));

	s.seen = calloc(s.room, sizeof(*s.seen));
	assert_true(w && s.seen);
	for (uint32_t r = 0; r < nr_ranks; r++) {
		agreement_init(&w->ranks[r], r, nr_ranks, w->heard[r]);
		w->ranks[r].broken = broken;
	}
	w->nr_deaths = nr_deaths;
	w->nr_doubts = nr_doubts;
	if (joins)
		vacate(w, nr_ranks);
	explore(&s, w);
	print_message("# %u ranks, %u deaths, %u doubts, broken %u%s: %zu states, %zu ends%s%s\n",
		nr_ranks, nr_deaths, nr_doubts, broken, joins ? ", one joins" : "", s.nr_states,
		s.nr_ends, *s.wrong ? ": " : "", s.wrong);
	free(s.seen);
	free(w);
	return s;
}

static struct search search(
	uint32_t nr_ranks, uint32_t nr_deaths, uint32_t nr_doubts, uint32_t broken)
{
	return search_with(nr_ranks, nr_deaths, nr_doubts, broken, false);
}

/* Sanitizers look at the same code; they are slow, and see all of it in smaller worlds. */
static bool is_sanitized(void)
{
	return scaled(2) < 2;
}

static void every_order(void **state)
{
	static const uint32_t shapes[][3] = {{2, 1, 0}, {2, 1, 1}, {3, 1, 0}, {3, 0, 1}};
	size_t nr = sizeof(shapes) / sizeof(shapes[0]) - is_sanitized();

	(void)state;
	for (size_t i = 0; i < nr; i++) {
		struct search s = search(shapes[i][0], shapes[i][1], shapes[i][2], 0);

		assert_string_equal(s.wrong, "");
		assert_true(s.nr_ends > 0);
		assert_true(s.nr_states < s.room / 2); /* all of them */
	}
}

/* Members, of whom one may die or be doubted, and a newcomer, which may die, too. */
static void every_order_of_a_join(void **state)
{
	static const uint32_t shapes[][3] = {{3, 0, 0}, {3, 1, 0}, {3, 0, 1}, {3, 1, 1}};
	size_t nr = sizeof(shapes) / sizeof(shapes[0]) - is_sanitized();

	(void)state;
	for (size_t i = 0; i < nr; i++) {
		struct search s = search_with(shapes[i][0], shapes[i][1], shapes[i][2], 0, true);

		assert_string_equal(s.wrong, "");
		assert_true(s.nr_let_in > 0);
		assert_true(s.nr_states < s.room / 2);
	}
}

static void mistakes_of_a_join_are_found(void **state)
{
	static const struct {
		uint32_t broken;
		const char *wrong;
	} mistakes[] = {{AGREEMENT_BREAK_UNREADY, "is not ready"},
		{AGREEMENT_BREAK_OLD_RECORD, "hears no newcomer"}};

	(void)state;
	for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
		struct search s = search_with(3, 1, 0, mistakes[i].broken, true);

		assert_non_null(strstr(s.wrong, mistakes[i].wrong));
	}
}

/* Each mistake is found, in the smallest world that shows it. */
static void mistakes_are_found(void **state)
{
	static const struct {
		uint32_t broken, nr_ranks, nr_deaths, nr_doubts;
		const char *wrong;
	} mistakes[] = {
		{AGREEMENT_BREAK_NO_PROMISE, 3, 0, 1, "different views"},
		{AGREEMENT_BREAK_FORGET, 3, 0, 1, "different views"},
		{AGREEMENT_BREAK_ACT_ALONE, 3, 0, 1, "different views"},
		{AGREEMENT_BREAK_NO_QUORUM, 2, 0, 1, "different views"},
	};

	(void)state;
	for (size_t i = is_sanitized() ? 2 : 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
		struct search s = search(mistakes[i].nr_ranks, mistakes[i].nr_deaths,
			mistakes[i].nr_doubts, mistakes[i].broken);

		assert_non_null(strstr(s.wrong, mistakes[i].wrong));
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_order),
		cmocka_unit_test(mistakes_are_found),
		cmocka_unit_test(every_order_of_a_join),
		cmocka_unit_test(mistakes_of_a_join_are_found),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
