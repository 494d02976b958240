/* SPDX-License-Identifier: Apache-2.0 */
/* Put with signal: whoever sees a signal sees all of its put, by every policy, on all networks of
 * tests/engine/networks.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#include "tests/engine/networks.h"

#define PUTS 24
#define SIGNALS 900000 /* where the words lie */

struct puts {
	uint64_t bytes[PUTS];
	int nr_seen;
	bool seen[PUTS];
};

/* After each round: whoever sees a signal sees all of its put. */
static void watch_signals(struct world *world)
{
	struct puts *puts = world->watch_ctx;

	for (int i = 0; i < PUTS; i++) {
		int to = 1 + i % 2;
		uint64_t word;

		memcpy(&word, world->memory[to] + SIGNALS + 8 * i, sizeof(word));
		if (word != 1000u + (uint64_t)i)
			continue;
		if (!puts->seen[i])
			expect_bytes(world, to, 10000u * (uint64_t)i, 0, 300u * (uint64_t)i,
				puts->bytes[i]);
		puts->nr_seen += !puts->seen[i];
		puts->seen[i] = true;
	}
}

static void put_all(
	struct world *world, enum tern_signal_policy policy, const struct puts *puts, tern_op group)
{
	for (int i = 0; i < PUTS; i++) {
		int to = 1 + i % 2;
		struct tern_put put = {.peer = (uint32_t)to,
			.local = world->regions[0],
			.remote = world->remotes[0][to],
			.local_offset = 300u * (uint64_t)i,
			.remote_offset = 10000u * (uint64_t)i,
			.bytes = puts->bytes[i],
			.signal_remote = world->remotes[0][to],
			.signal_offset = SIGNALS + 8u * (uint64_t)i,
			.signal = policy == TERN_SIGNAL_IMMEDIATE ? 42 : 1000u + (uint64_t)i};

		assert_int_equal(tern_engine_put(world->engines[0], group, &put, 0), 0);
	}
}

/* Baselines are refused to who is not the library's own. */
static int begin_group(struct world *world, enum tern_signal_policy policy, tern_op *group)
{
	int rc = tern_engine_put_group(world->engines[0], policy, PUTS, NULL, NULL, group);

	if (policy > BASELINE_COUPLED_ALL_PEERS)
		return rc;
	assert_int_equal(rc, TERN_ERR_INVALID);
	return engine_put_group(world->engines[0], policy, PUTS, NULL, NULL, group);
}

static void put_with_policy(struct world *world, size_t which, enum tern_signal_policy policy)
{
	struct puts puts = {.nr_seen = 0};
	bool fenced = policy == TERN_SIGNAL_NIC_FENCE || policy == TERN_SIGNAL_PERSEUS,
	     refused = false;
	uint64_t nr_fences = 0;
	struct tern_put extra = {.peer = 1, .signal_remote = world->remotes[0][1]};
	struct tern_engine_stats stats = {.size = sizeof(stats)};
	tern_op group;

	for (int i = 0; i < PUTS; i++) {
		puts.bytes[i] = i % 5 ? (uint64_t)i * 400 : 0; /* empty ones signal all the same */
		memset(world->memory[1 + i % 2] + 10000u * (uint64_t)i, 0, 10000);
	}
	memset(world->memory[1] + SIGNALS, 0, 8 * PUTS);
	memset(world->memory[2] + SIGNALS, 0, 8 * PUTS);
	world->watch = watch_signals;
	world->watch_ctx = &puts;
	for (int to = 1; to <= 2; to++) {
		uint32_t caps = networks[network_to(which, to)].caps;

		refused = refused || !(caps & (TRANSPORT_FENCE | TRANSPORT_ORDERED));
		nr_fences += !(caps & TRANSPORT_ORDERED);
	}
	if (fenced && refused) {
		assert_int_equal(begin_group(world, policy, &group), TERN_ERR_UNSUPPORTED);
		return;
	}
	world->net.nr_fenced = world->other.nr_fenced = 0;
	assert_int_equal(begin_group(world, policy, &group), 0);
	put_all(world, policy, &puts, group);
	assert_int_equal(tern_engine_put(world->engines[0], group, &extra, 0), TERN_ERR_STATE);
	assert_int_equal(tern_op_wait(world->engines[0], group, WAIT), 0);
	watch_signals(world);
	assert_int_equal(puts.nr_seen,
		policy == BASELINE_PUT_ONLY || policy == TERN_SIGNAL_IMMEDIATE ? 0 : PUTS);
	for (int i = 0; i < PUTS; i++)
		expect_bytes(world, 1 + i % 2, 10000u * (uint64_t)i, 0, 300u * (uint64_t)i,
			puts.bytes[i]);
	if (policy == TERN_SIGNAL_IMMEDIATE)
		assert_int_equal(tern_op_wait(world->engines[1],
					 expect_immediates(world, 1, 42, PUTS / 2), WAIT),
			0);
	if (policy == TERN_SIGNAL_PERSEUS) /* one fence for each peer */
		assert_int_equal(world->net.nr_fenced + world->other.nr_fenced, nr_fences);
	assert_int_equal(tern_engine_stats(world->engines[0], &stats), 0);
	if (policy == BASELINE_COUPLED || policy == BASELINE_COUPLED_ALL_PEERS)
		assert_true(stats.drains >= PUTS);
	world->watch = NULL;
}

static void signals(struct world *world, size_t which)
{
	for (int policy = BASELINE_PUT_ONLY; policy <= TERN_SIGNAL_IMMEDIATE; policy++)
		put_with_policy(world, which, (enum tern_signal_policy)policy);
}

/* Two groups at once, their puts mixed. */
static void mixed_groups(struct world *world, size_t which)
{
	tern_op groups[2];

	(void)which;
	for (int g = 0; g < 2; g++)
		assert_int_equal(tern_engine_put_group(world->engines[0], TERN_SIGNAL_DECOUPLED, 10,
					 NULL, NULL, &groups[g]),
			0);
	for (uint64_t i = 0; i < 20; i++) {
		struct tern_put put = {.peer = 1,
			.local = world->regions[0],
			.remote = world->remotes[0][1],
			.local_offset = i,
			.remote_offset = i * 100,
			.bytes = 100,
			.signal_remote = world->remotes[0][1],
			.signal_offset = SIGNALS + 8 * i,
			.signal = i};

		assert_int_equal(tern_engine_put(world->engines[0], groups[i % 2], &put, 0), 0);
	}
	assert_int_equal(tern_op_wait(world->engines[0], groups[1], WAIT), 0);
	assert_int_equal(tern_op_wait(world->engines[0], groups[0], WAIT), 0);
	for (uint64_t i = 0; i < 20; i++)
		assert_memory_equal(world->memory[1] + SIGNALS + 8 * i, &i, 8);
}

ON_ALL(signals)
ON_ALL(mixed_groups)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(signals_on_all),
		cmocka_unit_test(mixed_groups_on_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
