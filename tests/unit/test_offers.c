/* SPDX-License-Identifier: Apache-2.0 */
/* Which network leads from each rank to each other: settings, the choice of a pair, and plans of
 * all ranks over random lists. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "testkit/random.h"
#include "engine/offers.h"
#include "base/rank_list.h"
#include "tests/exchange/ranks.h"

#define MOST_RANKS 9

/* ---- settings -------------------------------------------------------------------------------- */

static struct network_list parse(const char *transport, int expected)
{
	struct tern_engine_config config;
	struct network_list list;

	tern_engine_config_init(&config);
	config.transport = transport;
	config.nr_nics = 2;
	config.devices[0] = "eth7";
	assert_int_equal(network_list_parse(&config, &list), expected);
	return list;
}

static void lists_are_read(void **state)
{
	struct network_list list =
		parse("verbs@mlx5_0,mlx5_1,mlx5_2+ofi:tcp;ofi_rxm+shm+ofi:efa@rdmap0", 0);

	(void)state;
	assert_int_equal(list.nr, 4);
	assert_ptr_equal(list.each[0].ops, &transport_verbs);
	assert_int_equal(list.each[0].nr_nics, 3);
	assert_string_equal(list.each[0].devices[2], "mlx5_2");
	assert_ptr_equal(list.each[1].ops, &transport_ofi);
	assert_string_equal(list.each[1].provider, "tcp;ofi_rxm");
	assert_int_equal(list.each[1].nr_nics, 2); /* no devices of its own, so the config's */
	assert_string_equal(list.each[1].devices[0], "eth7");
	assert_string_equal(list.name[2], "shm");
	assert_string_equal(list.name[3], "ofi:efa");
	assert_string_equal(list.each[3].devices[0], "rdmap0");
	free(list.texts);
}

/* A device of verbs is no part of the name, a provider of libfabric is. */
static void names_are_the_same(void **state)
{
	struct network_list one = parse("verbs:mlx5_0+ofi", 0),
			    other = parse("verbs:mlx5_3+ofi:tcp;ofi_rxm", 0);

	(void)state;
	assert_string_equal(one.name[0], other.name[0]);
	assert_string_equal(one.name[1], other.name[1]);
	assert_string_equal(other.each[0].provider, "mlx5_3");
	free(one.texts);
	free(other.texts);
}

static void bad_lists(void **state)
{
	static const char *const bad[] = {NULL, "", "+", "shm+", "+shm", "shm++ofi", "pigeon",
		"shm+pigeon", "sim", "shm@", "shm+ofi@a,", "shm+ofi+shm", "verbs:a+verbs:b",
		"ofi+ofi:tcp;ofi_rxm", "ofi:a+ofi:b+ofi:c+ofi:d+ofi:e", "ofi@a,b,c,d,e",
		"shm@a+ofi@b",
		"ofi:provider-with-a-name-that-is-longer-than-any-provider's-name-ever-was"};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_null(parse(bad[i], TERN_ERR_INVALID).texts);
}

/* Any text is read or refused; what was read opens nothing that nobody has named. */
static void any_settings(void **state)
{
	static const char *const words[] = {"shm", "ofi", "verbs", "sim", "tcp;ofi_rxm", "efa",
		"eth0", "+", "+", ":", "@", ",", ";", "", " ", "\xff", "shm+ofi", "@a,b"};
	uint64_t random = 5;
	int nr_read = 0;

	(void)state;
	for (int i = 0; i < scaled(100000); i++) {
		struct tern_engine_config config;
		struct network_list list;
		char text[128] = "";

		for (uint32_t w = 1 + random_below(&random, 8); w; w--)
			strncat(text,
				words[random_below(&random, sizeof(words) / sizeof(words[0]))],
				sizeof(text) - strlen(text) - 1);
		tern_engine_config_init(&config);
		config.transport = text;
		if (network_list_parse(&config, &list)) {
			assert_null(list.texts);
			continue;
		}
		nr_read++;
		assert_in_range(list.nr, 1, TERN_MAX_NICS);
		for (uint32_t n = 0; n < list.nr; n++) {
			assert_in_range(list.each[n].nr_nics, 1, TERN_MAX_NICS);
			assert_true(list.each[n].ops && strstr(text, list.each[n].ops->name) &&
				    strlen(list.name[n]) < OFFER_NAME);
			for (uint32_t m = 0; m < n; m++)
				assert_string_not_equal(list.name[n], list.name[m]);
		}
		free(list.texts);
	}
	assert_true(nr_read > scaled(1000));
}

/* ---- pairs ----------------------------------------------------------------------------------- */

/* "verbs/Ethernet ofi !shm": with what it reaches; ! cannot be used. */
static struct offers offers_of(const char *text)
{
	struct offers offers = {0};
	char copy[256], *rest = copy, *word;

	snprintf(copy, sizeof(copy), "%s", text);
	while ((word = strsep(&rest, " "))) {
		struct offer *o = &offers.each[offers.nr++];
		char *reaches = strchr(word, '/');

		o->nr_nics = 1;
		if (reaches) {
			*reaches = 0;
			snprintf(o->reaches, sizeof(o->reaches), "%s", reaches + 1);
		}
		if (*word == '!')
			snprintf(o->cause, sizeof(o->cause), "no port on %s", word + 1);
		snprintf(o->name, sizeof(o->name), "%s", word + (*word == '!'));
	}
	return offers;
}

static const struct {
	const char *lower, *higher, *chosen, *why_lower, *why_higher;
} pairs[] = {
	{"verbs/Ethernet ofi", "verbs/Ethernet ofi", "verbs", "which both offer",
		"which both offer"},
	{"verbs/Ethernet ofi", "verbs/InfiniBand ofi", "ofi",
		"as verbs reaches Ethernet here and InfiniBand there",
		"as verbs reaches InfiniBand here and Ethernet there"},
	{"verbs/Ethernet ofi", "!verbs ofi", "ofi",
		"as verbs cannot be used there: no port on verbs",
		"as verbs cannot be used here: no port on verbs"},
	{"!verbs ofi", "!verbs ofi", "ofi", "as verbs cannot be used here: no port on verbs",
		"as verbs cannot be used here: no port on verbs"},
	{"verbs/Ethernet ofi", "ofi", "ofi", "as verbs is not offered there",
		"as verbs is not offered here"},
	{"ofi", "verbs/Ethernet ofi", "ofi", "as verbs is not offered here",
		"as verbs is not offered there"},
	{"shm/a ofi", "ofi shm/a", "shm", "which the lower rank prefers",
		"which the lower rank prefers"},
	{"ofi shm/a", "shm/a ofi", "ofi", "which the lower rank prefers",
		"which the lower rank prefers"},
	{"shm/a", "shm/b", NULL, NULL, NULL},
	{"shm/a", "ofi", NULL, NULL, NULL},
	{"!ofi", "ofi", NULL, NULL, NULL},
};

static void pairs_choose(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
		struct offers all[2] = {offers_of(pairs[i].lower), offers_of(pairs[i].higher)};
		const struct offer *chosen = offers_choose(&all[0], &all[1]);
		char text[OFFER_WHY];

		if (!pairs[i].chosen) {
			assert_null(chosen);
			continue;
		}
		assert_string_equal(chosen->name, pairs[i].chosen);
		offers_why(all, 0, 1, text);
		assert_string_equal(text, pairs[i].why_lower);
		offers_why(all, 1, 0, text);
		assert_string_equal(text, pairs[i].why_higher);
	}
}

static int plan_of(const struct offers *all, uint32_t nr, uint32_t self, struct network_plan *plan,
	uint8_t *network_of)
{
	*plan = (struct network_plan){.network_of = network_of};
	return offers_plan(all, nr, self, plan);
}

static void nothing_connects(void **state)
{
	struct offers all[3] = {
		offers_of("shm/a ofi"), offers_of("ofi"), offers_of("!verbs shm/b")};
	uint8_t network_of[3];
	struct network_plan plan;

	(void)state;
	for (uint32_t self = 0; self < 3; self++) {
		assert_int_equal(plan_of(all, 3, self, &plan, network_of), TERN_ERR_UNSUPPORTED);
		assert_string_equal(tern_last_error(),
			"nothing connects ranks 0 and 2: rank 0 offers shm (reaches a), ofi; rank "
			"2 offers verbs (cannot be used: no port on verbs), shm (reaches b)");
	}
	assert_int_equal(plan_of(all + 2, 1, 0, &plan, network_of), 0); /* alone, it has itself */
	all[2].nr = 1;
	assert_int_equal(plan_of(all + 2, 1, 0, &plan, network_of), TERN_ERR_UNSUPPORTED);
	assert_non_null(strstr(tern_last_error(), "rank 0 with itself"));
}

/* The worst that a rank can say is still a text that ends. */
static void texts_are_bounded(void **state)
{
	struct offers all[2] = {{.nr = TERN_MAX_NICS}, {.nr = TERN_MAX_NICS}};
	uint8_t network_of[2];
	struct network_plan plan;
	char why[OFFER_WHY + 8];

	(void)state;
	for (uint32_t i = 0; i < 2 * TERN_MAX_NICS; i++) {
		struct offer *o = &all[i / TERN_MAX_NICS].each[i % TERN_MAX_NICS];

		memset(o->name, 'a' + (int)(i % TERN_MAX_NICS), sizeof(o->name) - 1);
		memset(o->reaches, 'r' + (int)(i / TERN_MAX_NICS), sizeof(o->reaches) - 1);
		memset(o->cause, 'c', sizeof(o->cause) - 1);
		o->nr_nics = 1;
	}
	assert_int_equal(plan_of(all, 2, 1, &plan, network_of), TERN_ERR_UNSUPPORTED);
	assert_true(strlen(tern_last_error()) < 1024);
	all[0].each[3].cause[0] = all[1].each[3].cause[0] = 0;
	memcpy(all[1].each[3].reaches, all[0].each[3].reaches, sizeof(all[0].each[3].reaches));
	for (int cause = 1; cause >= 0; cause--) {
		memset(why, 0x5a, sizeof(why));
		all[0].each[0].cause[cause ? 127 : 0] = all[1].each[0].cause[cause ? 127 : 0] = 0;
		offers_why(all, 0, 1, why);
		assert_true(strlen(why) < OFFER_WHY);
		assert_int_equal(why[OFFER_WHY], 0x5a);
	}
}

static void numbers_of_nics(void **state)
{
	struct offers all[4] = {
		offers_of("verbs ofi"), offers_of("verbs ofi"), offers_of("ofi"), offers_of("ofi")};
	uint8_t network_of[4];
	struct network_plan plan;

	(void)state;
	all[0].each[0].nr_nics = all[1].each[0].nr_nics = 3;
	assert_int_equal(plan_of(all, 4, 0, &plan, network_of), 0);
	assert_int_equal(plan.nr, 2);
	all[0].each[0].nr_nics = all[1].each[0].nr_nics = 4;
	for (uint32_t self = 0; self < 4; self++) {
		assert_int_equal(plan_of(all, 4, self, &plan, network_of), TERN_ERR_MISMATCH);
		assert_non_null(strstr(tern_last_error(), "have 5 NICs together; 4 are possible"));
	}
	all[2].each[0].nr_nics = 2;
	assert_int_equal(plan_of(all, 4, 3, &plan, network_of), TERN_ERR_MISMATCH);
	assert_non_null(strstr(
		tern_last_error(), "ranks disagree on nr_nics: 1 on rank 0; 2 on rank 2 (ofi)"));
}

/* ---- any lists ------------------------------------------------------------------------------- */

static struct offers draw_offers(uint64_t *random)
{
	static const char *const names[] = {"shm", "verbs", "ofi", "ofi:efa"}, *const reaches[] = {
										       "", "a",
										       "b"};
	struct offers offers = {.nr = 1 + random_below(random, 4)};
	uint32_t first = random_below(random, 4), step = 1 + 2 * random_below(random, 2);

	for (uint32_t i = 0; i < offers.nr; i++) {
		struct offer *o = &offers.each[i];
		uint32_t which = (first + i * step) % 4;

		o->nr_nics = 1;
		snprintf(o->name, sizeof(o->name), "%s", names[which]);
		snprintf(o->reaches, sizeof(o->reaches), "%s",
			which < 2 ? reaches[random_below(random, 8) ? 1 : 2] : "");
		if (!random_below(random, 8))
			snprintf(o->cause, sizeof(o->cause), "broken");
	}
	return offers;
}

/* The rule in the plainest words: the first in the lower rank's list that the other has too, both
 * can use and that reaches the same. */
static const char *expected_choice(const struct offers *lower, const struct offers *higher)
{
	for (uint32_t i = 0; i < lower->nr; i++)
		for (uint32_t j = 0; j < higher->nr; j++)
			if (!strcmp(lower->each[i].name, higher->each[j].name) &&
				!lower->each[i].cause[0] && !higher->each[j].cause[0] &&
				!strcmp(lower->each[i].reaches, higher->each[j].reaches))
				return lower->each[i].name;
	return NULL;
}

static bool all_are_connected(const struct offers *all, uint32_t nr)
{
	for (uint32_t a = 0; a < nr; a++)
		for (uint32_t b = nr == 1 ? 0 : a + 1; b < nr; b++)
			if (!expected_choice(&all[a], &all[b]))
				return false;
	return true;
}

static void check_plans(
	const struct offers *all, uint32_t nr, const struct network_plan *plans, uint64_t seed)
{
	for (uint32_t a = 0; a < nr; a++) {
		bool used[TERN_MAX_NICS] = {false};

		assert_int_equal(plans[a].nr, plans[0].nr);
		for (uint32_t n = 0; n < plans[0].nr; n++)
			assert_string_equal(
				plans[a].each[n].offer->name, plans[0].each[n].offer->name);
		for (uint32_t b = 0; b < nr; b++) {
			const char *name = plans[a].each[plans[a].network_of[b]].offer->name;

			used[plans[a].network_of[b]] = true;
			if (plans[a].network_of[b] != plans[b].network_of[a])
				fail_msg("seed %llu: ranks %u and %u chose differently",
					(unsigned long long)seed, a, b);
			if (a != b && strcmp(name, expected_choice(&all[a < b ? a : b],
							   &all[a < b ? b : a])))
				fail_msg("seed %llu: ranks %u and %u chose %s",
					(unsigned long long)seed, a, b, name);
		}
		for (uint32_t n = 0; n < plans[a].nr; n++)
			assert_int_equal(plans[a].each[n].here, used[n]);
	}
}

static void one_world(uint64_t seed, int *nr_connected)
{
	uint64_t random = seed;
	uint32_t nr = 1 + random_below(&random, MOST_RANKS);
	struct offers all[MOST_RANKS];
	struct network_plan plans[MOST_RANKS];
	uint8_t network_of[MOST_RANKS][MOST_RANKS];
	char first[1024] = "";
	int rc = 0;

	for (uint32_t r = 0; r < nr; r++)
		all[r] = random_below(&random, 3) && r ? all[r - 1] : draw_offers(&random);
	for (uint32_t r = 0; r < nr; r++) {
		int own = plan_of(all, nr, r, &plans[r], network_of[r]);

		if (!r) {
			rc = own;
			snprintf(first, sizeof(first), "%s", own ? tern_last_error() : "");
		}
		if (own != rc || (rc && strcmp(first, tern_last_error())))
			fail_msg("seed %llu: rank %u: %d, %s; rank 0: %d, %s",
				(unsigned long long)seed, r, own, tern_last_error(), rc, first);
	}
	if (all_are_connected(all, nr) != !rc)
		fail_msg("seed %llu: %d, %s", (unsigned long long)seed, rc, first);
	if (!rc)
		check_plans(all, nr, plans, seed);
	*nr_connected += !rc;
}

static void any_lists(void **state)
{
	int nr = scaled(20000), nr_connected = 0;

	(void)state;
	for (int seed = 1; seed <= nr; seed++)
		one_world((uint64_t)seed * 0x9e3779b97f4a7c15u, &nr_connected);
	print_message("# %d of %d worlds connected\n", nr_connected, nr);
	assert_in_range(nr_connected, nr / 20, nr - nr / 20);
}

/* ---- lists of ranks in words ----------------------------------------------------------------- */

static void ranks_in_words(void **state)
{
	static const uint8_t set_of[] = {1, 1, 2, 1, 3, 3, 3, 1, 1, 1};
	uint8_t alternating[1000];
	char text[200];

	(void)state;
	assert_int_equal(rank_list(text, sizeof(text), set_of, 10, 1), strlen("ranks 0-1, 3, 7-9"));
	assert_string_equal(text, "ranks 0-1, 3, 7-9");
	rank_list(text, sizeof(text), set_of, 10, 2);
	assert_string_equal(text, "rank 2");
	rank_list(text, sizeof(text), set_of, 10, 4);
	assert_string_equal(text, "ranks");
	for (uint32_t i = 0; i < sizeof(alternating); i++)
		alternating[i] = i % 2;
	for (size_t bytes = 0; bytes < sizeof(text); bytes++) {
		memset(text, 0x5a, sizeof(text));
		assert_true(rank_list(text, bytes, alternating, sizeof(alternating), 1) <
			    bytes + !bytes);
		for (size_t i = bytes; i < sizeof(text); i++)
			assert_int_equal(text[i], 0x5a);
		assert_true(!bytes || strlen(text) < bytes);
	}
	assert_non_null(strstr(text, ", ..."));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lists_are_read),
		cmocka_unit_test(names_are_the_same),
		cmocka_unit_test(bad_lists),
		cmocka_unit_test(any_settings),
		cmocka_unit_test(pairs_choose),
		cmocka_unit_test(nothing_connects),
		cmocka_unit_test(texts_are_bounded),
		cmocka_unit_test(numbers_of_nics),
		cmocka_unit_test(any_lists),
		cmocka_unit_test(ranks_in_words),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
