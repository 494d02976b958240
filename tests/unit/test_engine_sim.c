/* SPDX-License-Identifier: Apache-2.0 */
/* Engines of many ranks over the simulated network, in one thread and in virtual time: the same
 * code as behind a proxy, and the same run from the same seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/engine.h"
#include "tests/exchange/ranks.h"
#include "testkit/sim/sim.h"

#define MOST 256
#define SLICE 512u
#define SIGNALS (MOST * SLICE)
#define BYTES (2 * MOST * SLICE)
#define STEP_NS 200

struct fleet {
	struct sim_network *network;
	uint32_t nr;
	struct scheduler scheduler;
	tern_engine *engines[MOST];
	uint8_t *memory[MOST];
	tern_region *regions[MOST];
	tern_remote **remotes[MOST]; /* [at][of] */
	tern_peers *peers[MOST];
};

/* Engines that have something to poll are stepped after each stretch of time, all of them now and
 * then. */
static void go_on(void *ctx, uint64_t until_ns)
{
	struct fleet *f = ctx;

	(void)until_ns;
	sim_run_until(f->network, sim_now(f->network) + STEP_NS);
	for (uint32_t r = 0; r < f->nr; r++)
		engine_step(f->engines[r], sim_now(f->network));
}

static uint64_t fleet_now(void *ctx)
{
	return sim_now(((struct fleet *)ctx)->network);
}

static void *must(void *pointer)
{
	assert_non_null(pointer);
	return pointer;
}

static void join_network(struct fleet *f, uint32_t r, const struct tern_engine_config *config)
{
	struct engine_setup setup = {.self = r,
		.nr_peers = f->nr,
		.nr_networks = 1,
		.networks = {{.ops = &transport_sim,
			.simulated = f->network,
			.nr_nics = config->nr_nics}},
		.scheduler = &f->scheduler};

	if (engine_open(config, &setup, &f->engines[r]))
		fail_msg("rank %u: %s", r, tern_last_error());
	f->memory[r] = must(calloc(1, BYTES));
	f->remotes[r] = must(calloc(f->nr, sizeof(*f->remotes[r])));
}

static void share_all(struct fleet *f)
{
	uint32_t ranks[MOST];

	for (uint32_t r = 0; r < f->nr; r++) {
		struct tern_descriptor descriptor;

		ranks[r] = r;
		assert_int_equal(
			tern_engine_register(f->engines[r], f->memory[r], BYTES, &f->regions[r]),
			0);
		assert_int_equal(tern_region_descriptor(f->regions[r], &descriptor), 0);
		for (uint32_t at = 0; at < f->nr; at++)
			assert_int_equal(
				tern_engine_import(f->engines[at], &descriptor, &f->remotes[at][r]),
				0);
	}
	for (uint32_t r = 0; r < f->nr; r++)
		assert_int_equal(
			tern_peers_create(f->engines[r], ranks, f->remotes[r], f->nr, &f->peers[r]),
			0);
}

static struct fleet *fleet_open(uint32_t nr, const struct sim_settings *settings)
{
	struct fleet *f = must(calloc(1, sizeof(*f)));
	struct engine_address *all = must(calloc(nr, sizeof(*all)));
	struct tern_engine_config config;

	f->nr = nr;
	f->scheduler = (struct scheduler){.ctx = f, .now = fleet_now, .idle = go_on};
	assert_int_equal(sim_network_create(settings, &f->network), 0);
	tern_engine_config_init(&config);
	config.timeout_ms = 20;
	config.heartbeat_ms = 5;
	config.message_credits = 2;
	for (uint32_t r = 0; r < nr; r++) {
		join_network(f, r, &config);
		assert_int_equal(engine_address(f->engines[r], &all[r]), 0);
	}
	for (uint32_t r = 0; r < nr; r++)
		assert_int_equal(engine_connect(f->engines[r], all), 0);
	free(all);
	share_all(f);
	return f;
}

static uint64_t fleet_close(struct fleet *f)
{
	uint64_t hash = sim_trace_hash(f->network);
	struct sim_stats stats;

	sim_stats(f->network, &stats);
	assert_int_equal(stats.changed_retries, 0);
	assert_int_equal(stats.bad_keys, 0);
	for (uint32_t r = 0; r < f->nr; r++) {
		assert_int_equal(tern_engine_destroy(f->engines[r]), 0);
		free(f->memory[r]);
		free(f->remotes[r]);
	}
	sim_network_destroy(f->network);
	free(f);
	return hash;
}

/* All scatter to all and expect from all, then meet. */
static void all_to_all(struct fleet *f, uint32_t round)
{
	struct tern_slice *slices = must(calloc(f->nr, sizeof(*slices)));
	tern_op *arrived = must(calloc(f->nr, sizeof(*arrived))),
		*met = must(calloc(f->nr, sizeof(*met)));

	for (uint32_t p = 0; p < f->nr; p++)
		for (uint32_t r = 0; r < f->nr; r++)
			memset(f->memory[p] + r * SLICE, (int)(p * 5 + r + round), SLICE / 2);
	for (uint32_t p = 0; p < f->nr; p++) {
		struct tern_scatter scatter = {.size = sizeof(scatter),
			.flags = TERN_IMMEDIATE,
			.peers = f->peers[p],
			.local = f->regions[p],
			.slices = slices};
		struct tern_expect expect = {
			.size = sizeof(expect), .immediate = round, .count = f->nr};
		tern_op sent;

		for (uint32_t r = 0; r < f->nr; r++)
			slices[r] = (struct tern_slice){.local_offset = r * SLICE,
				.remote_offset = SIGNALS + p * SLICE,
				.bytes = (p + r) % 3 ? SLICE / 2 : 0,
				.immediate = round};
		assert_int_equal(tern_engine_expect(f->engines[p], &expect, &arrived[p]), 0);
		assert_int_equal(tern_engine_scatter(f->engines[p], &scatter, &sent), 0);
		if (tern_op_wait(f->engines[p], sent, 1000)) /* slices are on the stack of all */
			fail_msg("rank %u: %s", p, tern_last_error());
	}
	for (uint32_t r = 0; r < f->nr; r++) {
		if (tern_op_wait(f->engines[r], arrived[r], 1000))
			fail_msg("rank %u: %s", r, tern_last_error());
		for (uint32_t p = 0; p < f->nr; p++)
			if ((p + r) % 3 && f->memory[r][SIGNALS + p * SLICE + SLICE / 2 - 1] !=
						   (uint8_t)(p * 5 + r + round))
				fail_msg("rank %u has a wrong byte of rank %u", r, p);
	}
	for (uint32_t r = 0; r < f->nr; r++) {
		struct tern_barrier barrier = {
			.size = sizeof(barrier), .immediate = 0xffffff00u, .peers = f->peers[r]};

		assert_int_equal(tern_engine_barrier(f->engines[r], &barrier, &met[r]), 0);
	}
	for (uint32_t r = 0; r < f->nr; r++)
		assert_int_equal(tern_op_wait(f->engines[r], met[r], 1000), 0);
	free(slices);
	free(arrived);
	free(met);
}

static void trouble(struct sim_settings *settings, uint64_t seed)
{
	sim_settings_init(settings);
	settings->seed = seed;
	settings->reorder_ns = 3000;
	settings->again_per_mille = 100;
	settings->duplicate_per_mille = 50;
	settings->completion_jitter_ns = 2000;
	settings->poison = true;
	settings->near = settings->far;
	settings->message_bytes = 512;
}

static void many_ranks(void **state)
{
	struct sim_settings settings;
	uint64_t hash[2];

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct fleet *f;

		trouble(&settings, 11);
		f = fleet_open(32, &settings);
		for (uint32_t round = 0; round < 3; round++)
			all_to_all(f, round);
		hash[i] = fleet_close(f);
	}
	assert_int_equal(hash[0], hash[1]);
}

static void ranks_256(void **state)
{
	struct sim_settings settings;
	struct fleet *f;

	(void)state;
	sim_settings_init(&settings);
	settings.message_bytes = 512;
	f = fleet_open((uint32_t)scaled(256), &settings);
	all_to_all(f, 1);
	fleet_close(f);
}

/* Whoever sees a signal sees its put, whatever the network does with what was posted. */
static void policies(void **state)
{
	(void)state;
	for (int policy = BASELINE_COUPLED; policy < TERN_SIGNAL_IMMEDIATE; policy++) {
		struct sim_settings settings;
		struct fleet *f;
		tern_op group;
		uint32_t left = 60;
		bool seen[60] = {false};

		trouble(&settings, (uint64_t)policy);
		settings.fence = true;
		f = fleet_open(4, &settings);
		assert_int_equal(engine_put_group(f->engines[0], (enum tern_signal_policy)policy,
					 60, NULL, NULL, &group),
			0);
		memset(f->memory[0], 0x5a, 60 * SLICE);
		for (uint32_t i = 0; i < 60; i++) {
			struct tern_put put = {.peer = 1 + i % 3,
				.local = f->regions[0],
				.remote = f->remotes[0][1 + i % 3],
				.local_offset = i * SLICE,
				.remote_offset = i * SLICE,
				.bytes = SLICE,
				.signal_remote = f->remotes[0][1 + i % 3],
				.signal_offset = SIGNALS + 8 * i,
				.signal = i + 1};

			assert_int_equal(tern_engine_put(f->engines[0], group, &put, 0), 0);
		}
		for (int rounds = 0; left && rounds < 100000; rounds++) {
			go_on(f, 0);
			for (uint32_t i = 0; i < 60; i++) {
				uint64_t word;

				memcpy(&word, f->memory[1 + i % 3] + SIGNALS + 8 * i, sizeof(word));
				if (seen[i] || word != i + 1)
					continue;
				for (uint32_t b = 0; b < SLICE; b++)
					if (f->memory[1 + i % 3][i * SLICE + b] != 0x5a)
						fail_msg("policy %d: signal %u came before its "
							 "bytes",
							policy, i);
				seen[i] = true;
				left--;
			}
		}
		assert_int_equal(left, 0);
		assert_int_equal(tern_op_wait(f->engines[0], group, 1000), 0);
		fleet_close(f);
	}
}

/* A rank dies and nobody says so: all others find out by themselves, about each other they keep no
 * doubt. */
static void silent_death(void **state)
{
	struct sim_settings settings;
	struct fleet *f;

	(void)state;
	trouble(&settings, 3);
	f = fleet_open(16, &settings);
	all_to_all(f, 1);
	sim_kill(f->network, 5);
	for (uint64_t until = sim_now(f->network) + 60000000; sim_now(f->network) < until;) {
		sim_run_until(f->network, sim_now(f->network) + 20000);
		for (uint32_t r = 0; r < f->nr; r++)
			if (r != 5)
				engine_step(f->engines[r], sim_now(f->network));
	}
	for (uint32_t r = 0; r < f->nr; r++)
		for (uint32_t p = 0; p < f->nr && r != 5; p++)
			if (tern_engine_peer(f->engines[r], p) != (p == 5 ? TERN_ERR_PEER_DEAD : 0))
				fail_msg("rank %u on rank %u: %s", r, p, tern_last_error());
	fleet_close(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(many_ranks),
		cmocka_unit_test(ranks_256),
		cmocka_unit_test(policies),
		cmocka_unit_test(silent_death),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
