/* SPDX-License-Identifier: Apache-2.0 */
/* Engines with their proxies: many operations from many threads, and engines made over a group.
 * ThreadSanitizer sees every byte that passes. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "testkit/random.h"
#include "tests/engine/shared.h"
#include "tests/engine/world.h"
#include "tests/exchange/ranks.h"

#define RANKS 3
#define CALLERS 2
#define SLOT 256
#define WAIT 20000

struct caller {
	struct world *world;
	int rank, number, nr;
	_Atomic int told;
	char failure[300];
};

static void tell(void *ctx, int error, const char *text)
{
	(void)text;
	atomic_fetch_add((_Atomic int *)ctx, error ? 1000000 : 1);
}

/* Operation i goes to a place of its caller's own at the peer; handles are waited for, polled,
 * forgotten or not taken. */
static int one_operation(struct caller *c, int i, uint64_t *random)
{
	tern_engine *engine = c->world->engines[c->rank];
	uint32_t to = (uint32_t)i % RANKS, how = random_below(random, 5);
	uint64_t place = (uint64_t)(c->rank * CALLERS + c->number) * 64 * SLOT +
			 (uint64_t)(i / RANKS % 64) * SLOT;
	struct tern_write w = {.size = sizeof(w),
		.peer = to,
		.flags = TERN_IMMEDIATE,
		.immediate = to,
		.local = c->world->regions[c->rank],
		.remote = c->world->remotes[c->rank][to],
		.local_offset = 500000 + place,
		.remote_offset = place,
		.bytes = random_below(random, SLOT)};
	tern_op op;
	int rc;

	if (how == 0) {
		w.done = tell;
		w.ctx = &c->told;
		return tern_engine_write(engine, &w, NULL);
	}
	if (how == 1)
		return tern_engine_write(engine, &w, NULL) ? -1
							   : (atomic_fetch_add(&c->told, 1), 0);
	rc = tern_engine_write(engine, &w, &op);
	if (rc)
		return rc;
	atomic_fetch_add(&c->told, 1);
	if (how == 2)
		return tern_op_forget(engine, op);
	if (how == 3)
		return tern_op_wait(engine, op, WAIT);
	while ((rc = tern_op_poll(engine, op)) == TERN_ERR_TIMEOUT)
		sched_yield();
	return rc;
}

static void *call(void *arg)
{
	struct caller *c = arg;
	uint64_t random = hash2((uint64_t)c->rank, (uint64_t)c->number);

	for (int i = 0; i < c->nr && !*c->failure; i++)
		if (one_operation(c, i, &random))
			snprintf(c->failure, sizeof(c->failure), "operation %d: %s", i,
				tern_last_error());
	return NULL;
}

static void expect_all(struct world *world, int total)
{
	for (int r = 0; r < RANKS; r++) {
		struct tern_expect expect = {
			.size = sizeof(expect), .immediate = (uint32_t)r, .count = (uint64_t)total};
		tern_op op;

		assert_int_equal(tern_engine_expect(world->engines[r], &expect, &op), 0);
		if (tern_op_wait(world->engines[r], op, WAIT))
			fail_msg("rank %d: %s", r, tern_last_error());
	}
}

static void many_operations(uint32_t caps, uint32_t again, bool mixed)
{
	struct world *world = malloc(sizeof(*world));
	struct tern_engine_config config;
	struct loop_settings settings;
	struct caller callers[RANKS * CALLERS];
	pthread_t threads[RANKS * CALLERS];
	int nr = scaled(51000 / (RANKS * CALLERS)) / RANKS * RANKS;

	world_settings(&settings, &config);
	settings.caps = caps;
	settings.again_first = again;
	config.wait_ms = WAIT;
	config.timeout_ms = WAIT;
	config.nr_operations = 100;
	if (mixed) {
		settings.caps = TRANSPORT_FENCE;
		world_open_mixed(world, RANKS, &settings,
			&(struct loop_settings){
				.caps = caps, .depth = 16, .write_bytes = 100, .slowest = 5},
			2, 2, &config, false);
	} else {
		world_open(world, RANKS, &settings, &config, false);
	}
	for (int i = 0; i < RANKS * CALLERS; i++) {
		callers[i] = (struct caller){
			.world = world, .rank = i / CALLERS, .number = i % CALLERS, .nr = nr};
		assert_int_equal(pthread_create(&threads[i], NULL, call, &callers[i]), 0);
	}
	for (int i = 0; i < RANKS * CALLERS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < RANKS * CALLERS; i++)
		if (*callers[i].failure)
			fail_msg("%s", callers[i].failure);
	expect_all(world, nr / RANKS * RANKS * CALLERS);
	assert_int_equal(world->net.nr_changed + world->other.nr_changed, 0);
	world_close(world);
	for (int i = 0; i < RANKS * CALLERS; i++)
		assert_int_equal(atomic_load(&callers[i].told), nr);
	free(world);
}

static void many_operations_unordered(void **state)
{
	(void)state;
	many_operations(0, 0, false);
}

static void many_operations_with_again(void **state)
{
	(void)state;
	many_operations(TRANSPORT_ORDERED, 1, false);
}

static void many_operations_mixed(void **state)
{
	(void)state;
	many_operations(TRANSPORT_ORDERED, 1, true);
}

/* Callers of one group of puts, each adding its share. */
struct putter {
	struct world *world;
	tern_op group;
	int number, nr, rc;
};

static void *put_share(void *arg)
{
	struct putter *p = arg;

	for (int i = p->number; i < p->nr && !p->rc; i += CALLERS) {
		struct tern_put put = {.peer = 1,
			.local = p->world->regions[0],
			.remote = p->world->remotes[0][1],
			.local_offset = (uint64_t)i * 50,
			.remote_offset = (uint64_t)i * 50,
			.bytes = 50,
			.signal_remote = p->world->remotes[0][1],
			.signal_offset = 900000 + 8 * (uint64_t)i,
			.signal = (uint64_t)i + 1};

		p->rc = tern_engine_put(p->world->engines[0], p->group, &put, 0);
	}
	return NULL;
}

static void puts_of_many_threads(void **state)
{
	static const enum tern_signal_policy policies[] = {BASELINE_COUPLED, TERN_SIGNAL_DECOUPLED,
		TERN_SIGNAL_NIC_FENCE, TERN_SIGNAL_PERSEUS};
	struct world *world = malloc(sizeof(*world));
	struct tern_engine_config config;
	struct loop_settings settings;

	(void)state;
	world_settings(&settings, &config);
	settings.caps = TRANSPORT_FENCE;
	config.wait_ms = config.timeout_ms = WAIT;
	world_open(world, 2, &settings, &config, false);
	for (int i = 0; i < 4; i++) {
		struct putter putters[CALLERS];
		pthread_t threads[CALLERS];
		tern_op group;

		assert_int_equal(
			engine_put_group(world->engines[0], policies[i], 100, NULL, NULL, &group),
			0);
		for (int t = 0; t < CALLERS; t++) {
			putters[t] = (struct putter){
				.world = world, .group = group, .number = t, .nr = 100};
			assert_int_equal(
				pthread_create(&threads[t], NULL, put_share, &putters[t]), 0);
		}
		for (int t = 0; t < CALLERS; t++) {
			pthread_join(threads[t], NULL);
			assert_int_equal(putters[t].rc, 0);
		}
		assert_int_equal(tern_op_wait(world->engines[0], group, WAIT), 0);
	}
	world_close(world);
	free(world);
}

/* ---- over a group ---------------------------------------------------------------------------- */

struct job_of_group {
	const char *transport, *of_last; /* of_last: that of the last rank; NULL: the same */
	uint32_t nr_nics;
	_Atomic int *unsupported; /* set where it is; NULL: it must not be */
};

/* Each rank scatters a slice to all, then all meet; round after round. */
static void scatter_and_meet(struct rank *rank, tern_engine *engine, uint8_t *memory,
	tern_peers *peers, tern_region *region)
{
	struct tern_slice slices[8];
	uint64_t half = 8 * 4096;

	for (uint32_t round = 0; round < (uint32_t)scaled(50) && !*rank->failure; round++) {
		struct tern_scatter scatter = {.size = sizeof(scatter),
			.flags = TERN_IMMEDIATE,
			.peers = peers,
			.local = region,
			.slices = slices};
		struct tern_expect expect = {.size = sizeof(expect),
			.immediate = 1000 + round,
			.count = (uint64_t)rank->nr_ranks};
		struct tern_barrier barrier = {
			.size = sizeof(barrier), .immediate = 1, .peers = peers};
		tern_op sent, arrived, met;

		for (int r = 0; r < rank->nr_ranks; r++) {
			memset(memory + r * 4096, (int)round + r * 3 + rank->rank, 4096);
			slices[r] = (struct tern_slice){.local_offset = (uint64_t)r * 4096,
				.remote_offset = half + (uint64_t)rank->rank * 4096,
				.bytes = 4096,
				.immediate = 1000 + round};
		}
		if (tern_engine_expect(engine, &expect, &arrived) ||
			tern_engine_scatter(engine, &scatter, &sent) ||
			tern_op_wait(engine, arrived, WAIT) || tern_op_wait(engine, sent, WAIT))
			rank_fails(rank, "round %u: %s", round, tern_last_error());
		for (int r = 0; r < rank->nr_ranks; r++)
			if (memory[half + (uint64_t)r * 4096] !=
					(uint8_t)((int)round + rank->rank * 3 + r) ||
				memory[half + (uint64_t)r * 4096 + 4095] !=
					(uint8_t)((int)round + rank->rank * 3 + r))
				rank_fails(rank, "round %u: wrong bytes from rank %d", round, r);
		if (tern_engine_barrier(engine, &barrier, &met) || tern_op_wait(engine, met, WAIT))
			rank_fails(rank, "round %u, barrier: %s", round, tern_last_error());
	}
}

static void group_body(struct rank *rank)
{
	static const uint32_t ranks[] = {0, 1, 2, 3, 4, 5, 6, 7};
	const struct job_of_group *job = rank->ctx;
	struct tern_engine_config config;
	tern_remote *remotes[8];
	uint8_t *memory = calloc(16, 4096);
	tern_engine *engine = NULL;
	tern_region *region = NULL;
	tern_peers *peers = NULL;

	tern_engine_config_init(&config);
	config.transport =
		job->of_last && rank->rank + 1 == rank->nr_ranks ? job->of_last : job->transport;
	config.nr_nics = job->nr_nics;
	config.heartbeat_ms = job->of_last ? -1 : 50;
	if (job->unsupported &&
		tern_engine_create(rank->group, &config, &engine) == TERN_ERR_UNSUPPORTED) {
		atomic_store(job->unsupported, 1);
		free(memory);
		return;
	}
	if ((!engine && tern_engine_create(rank->group, &config, &engine)) ||
		share_memory(rank, engine, memory, 16 * 4096, &region, remotes) ||
		tern_peers_create(engine, ranks, remotes, (uint32_t)rank->nr_ranks, &peers))
		rank_fails(rank, "%s", tern_last_error());
	else
		scatter_and_meet(rank, engine, memory, peers, region);
	if (region && (tern_peers_destroy(peers, WAIT) || tern_remote_forget(remotes[0], WAIT) ||
			      tern_region_deregister(region, WAIT)))
		rank_fails(rank, "giving up: %s", tern_last_error());
	if (engine && tern_group_destroy(rank->group) != TERN_ERR_STATE)
		rank_fails(rank, "a group with an engine could be destroyed");
	if (tern_engine_destroy(engine))
		rank_fails(rank, "destroy: %s", tern_last_error());
	free(memory);
}

static void over_group(const char *transport, uint32_t nr_nics)
{
	struct job_of_group job = {transport, NULL, nr_nics, NULL};
	const char *failure = run_ranks(4, group_body, &job);

	if (failure)
		fail_msg("%s", failure);
}

static void over_shared_memory(void **state)
{
	(void)state;
	over_group("shm", 1);
	over_group("shm", 2);
}

static void if_there(const char *transport)
{
	_Atomic int unsupported = 0;
	struct job_of_group job = {transport, NULL, 1, &unsupported};
	const char *failure = run_ranks(3, group_body, &job);

	if (failure)
		fail_msg("%s", failure);
	if (unsupported)
		skip();
}

static void over_libfabric(void **state)
{
	(void)state;
	if_there("ofi:tcp;ofi_rxm");
}

static void over_verbs(void **state)
{
	(void)state;
	if_there("verbs");
}

/* Each on two devices. */
static void over_verbs_devices(void **state)
{
	(void)state;
	if_there("verbs@rxe1,rxe2");
}

/* The last rank has libfabric alone, the others shared memory between them. */
static void over_both(void **state)
{
	_Atomic int unsupported = 0;
	struct job_of_group job = {"shm+ofi:tcp;ofi_rxm", "ofi", 1, &unsupported};
	const char *failure = run_ranks(4, group_body, &job);

	(void)state;
	job.nr_nics = 2; /* of each: 4 in all */
	failure = failure ? failure : run_ranks(4, group_body, &job);
	if (failure)
		fail_msg("%s", failure);
	if (unsupported)
		skip();
}

static void refused_body(struct rank *rank)
{
	struct tern_engine_config config;
	tern_engine *engine = NULL;

	tern_engine_config_init(&config);
#define REFUSED(code, text, ...)                                                                   \
	do {                                                                                       \
		tern_engine_config_init(&config);                                                  \
		__VA_ARGS__;                                                                       \
		if (tern_engine_create(rank->group, &config, &engine) != code ||                   \
			!strstr(tern_last_error(), text))                                          \
			rank_fails(rank, "\"%s\" does not say \"%s\"", tern_last_error(), text);   \
	} while (0)
	REFUSED(TERN_ERR_INVALID, "shm, ofi, ofi:PROVIDER and verbs", config.transport = "pigeon");
	REFUSED(TERN_ERR_INVALID, "shm, ofi, ofi:PROVIDER and verbs", config.transport = NULL);
	REFUSED(TERN_ERR_INVALID, "nr_nics is 5", config.nr_nics = 5);
	REFUSED(TERN_ERR_INVALID, "a device without a name", config.transport = "ofi@eth0,");
	REFUSED(TERN_ERR_INVALID, "a device without a name", config.transport = "ofi:tcp;ofi_rxm@");
	REFUSED(TERN_ERR_INVALID, "5 devices; 4 are possible", config.transport = "ofi@a,b,c,d,e");
	REFUSED(TERN_ERR_INVALID, "devices or nr_nics are set too", config.transport = "ofi@a";
		config.devices[0] = "b");
	REFUSED(TERN_ERR_MISMATCH, "ranks disagree on nr_nics: 1 on rank 0; 2 on rank 1",
		config.transport = rank->rank ? "ofi@a,b" : "ofi@a");
	REFUSED(TERN_ERR_INVALID, "devices or nr_nics are set too",
		config.transport = "shm@x+ofi@a";
		config.devices[0] = "b");
	REFUSED(TERN_ERR_INVALID, "transport is \"shm+pigeon\"",
		config.transport = rank->rank ? "shm+pigeon" : "shm");
	REFUSED(TERN_ERR_INVALID, "transport is \"ofi+ofi\": ofi:tcp;ofi_rxm twice",
		config.transport = rank->rank ? "ofi" : "ofi+ofi");
	REFUSED(TERN_ERR_UNSUPPORTED,
		"nothing connects ranks 0 and 1: rank 0 offers shm (reaches machine ",
		config.transport = rank->rank ? "ofi" : "shm");
	REFUSED(TERN_ERR_UNSUPPORTED, "; rank 1 offers ofi:no-such-provider (cannot be used: ",
		config.transport = rank->rank ? "ofi:no-such-provider+ofi" : "shm");
	REFUSED(TERN_ERR_INVALID, "ring_entries is 100", config.ring_entries = 100);
	REFUSED(TERN_ERR_INVALID, "nr_operations is 0", config.nr_operations = 0);
	REFUSED(TERN_ERR_INVALID, "core is 900", config.core = 900);
	REFUSED(TERN_ERR_INVALID, "depth is 0", config.depth = rank->rank == 1 ? 0 : 64);
	REFUSED(TERN_ERR_MISMATCH, "ranks disagree on nr_nics: 1 on rank 0; 2 on rank 1",
		config.nr_nics = (uint32_t)rank->rank + 1);
#undef REFUSED
}

static void refused(void **state)
{
	const char *failure = run_ranks(2, refused_body, NULL);

	(void)state;
	if (failure)
		fail_msg("%s", failure);
}

/* test_engine_threads [PATTERN]: those of that name. */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(many_operations_unordered),
		cmocka_unit_test(many_operations_with_again),
		cmocka_unit_test(many_operations_mixed),
		cmocka_unit_test(puts_of_many_threads),
		cmocka_unit_test(over_shared_memory),
		cmocka_unit_test(over_libfabric),
		cmocka_unit_test(over_both),
		cmocka_unit_test(over_verbs),
		cmocka_unit_test(over_verbs_devices),
		cmocka_unit_test(refused),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
