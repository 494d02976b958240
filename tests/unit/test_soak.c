/* SPDX-License-Identifier: Apache-2.0 */
/* That a scenario is the same every time, and that the harness sees what is wrong: a judge that
 * never convicts proves nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "soak/soak.h"
#include "tests/exchange/ranks.h"

static const struct soak_wishes peaceful = {.fault = SOAK_NO_FAULT, .phase = SOAK_PHASE_DRAWN};

static void run_seed(uint64_t seed, const struct soak_wishes *wishes, struct soak_outcome *outcome)
{
	struct scenario scenario;
	struct reason why;

	if (scenario_open(&scenario, seed, wishes, &why))
		fail_msg("seed %llu: %s", (unsigned long long)seed, why.text);
	assert_int_equal(soak_run(&scenario, outcome), 0);
	scenario_close(&scenario);
}

static void must_be_good(
	uint64_t seed, const struct soak_wishes *wishes, struct soak_outcome *outcome)
{
	run_seed(seed, wishes, outcome);
	if (!outcome->good)
		fail_msg("seed %llu, fault %s, phase %s:\n%s", (unsigned long long)seed,
			soak_fault_names[wishes->fault], soak_phase_names[wishes->phase],
			outcome->text);
}

static void same_seed_same_run(void **state)
{
	const struct soak_wishes drawn = {.fault = SOAK_DRAWN, .phase = SOAK_PHASE_DRAWN};
	struct soak_outcome a, b;
	uint64_t last = 0;

	(void)state;
	for (uint64_t seed = 100; seed < 100 + (uint64_t)scaled(40); seed++) {
		must_be_good(seed, &drawn, &a);
		must_be_good(seed, &drawn, &b);
		assert_true(a.digest == b.digest && a.virtual_ns == b.virtual_ns &&
			    a.halves == b.halves);
		assert_true(a.digest != last);
		last = a.digest;
	}
}

/* Of so many seeds with something wrong, how many were found out. */
static int nr_found(
	enum soak_wrong wrong, const struct soak_wishes *wishes, int nr, const char *sign)
{
	struct soak_wishes spoiled = *wishes;
	struct soak_outcome outcome;
	int found = 0;

	spoiled.wrong = wrong;
	for (int seed = 1; seed <= nr; seed++) {
		run_seed((uint64_t)seed, &spoiled, &outcome);
		found += !outcome.good && strstr(outcome.text, sign);
	}
	return found;
}

static void wrongs_are_found(void **state)
{
	const struct soak_wishes deadly = {.fault = SOAK_KILL, .phase = SOAK_DISPATCH_SEND};
	int nr = scaled(24);

	(void)state;
	assert_true(nr_found(SOAK_LYING_NETWORK, &peaceful, nr, "rank ") > 0);
	assert_true(nr_found(SOAK_SPOILED_ROW, &peaceful, nr, "wrong after dispatch") > nr / 2);
	assert_true(nr_found(SOAK_DEAF_RANK, &peaceful, nr, "nothing had happened") > nr / 3);
	assert_true(nr_found(SOAK_STALE_RANK, &peaceful, nr, "by version") > nr / 2);
	assert_true(nr_found(SOAK_LIAR, &peaceful, nr, "wrong after dispatch") > nr / 3);
	assert_int_equal(nr_found(SOAK_WRONG_BLAME, &deadly, nr, "blames somebody else"), nr);
}

/* The fault came in every scenario, and everybody has told of it: else the outcome is not good. */
static void faults_in_every_phase(void **state)
{
	struct soak_outcome outcome;

	(void)state;
	for (int fault = SOAK_KILL; fault <= SOAK_CUT; fault++)
		for (int phase = SOAK_DISPATCH_SEND; phase <= SOAK_ANY_TIME; phase++)
			for (int mode = TERN_LOW_LATENCY; mode <= TERN_HIGH_THROUGHPUT; mode++)
				for (int seed = 1; seed <= scaled(8); seed++) {
					const struct soak_wishes wishes = {
						.fault = (enum soak_fault)fault,
						.phase = (enum soak_phase)phase,
						.mode = (enum tern_mode)mode};

					must_be_good((uint64_t)seed, &wishes, &outcome);
					assert_true(outcome.struck);
				}
}

static void shapes_of_models(void **state)
{
	const struct soak_wishes wishes = {.fault = SOAK_NO_FAULT,
		.nr_ranks = 16,
		.hidden = 7168,
		.nr_experts = 256,
		.topk = 8,
		.nr_tokens = 4};
	struct soak_outcome outcome;

	(void)state;
	must_be_good(1, &wishes, &outcome);
	assert_int_equal(outcome.rounds, 1);
	assert_int_equal(outcome.halves, 4 * 16);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(same_seed_same_run),
		cmocka_unit_test(wrongs_are_found),
		cmocka_unit_test(faults_in_every_phase),
		cmocka_unit_test(shapes_of_models),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
