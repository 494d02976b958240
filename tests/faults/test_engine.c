/* SPDX-License-Identifier: Apache-2.0 */
/* Engines of processes, one of which is killed: the others are told who and why, and go on with each other. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "tern_engine.h"
#include "tests/faults/processes.h"

#define RANKS 4
#define VICTIM 2
#define WAIT 15000

static const char *transport, *odd_transport;
static int odd; /* this rank has that one; -1: none */

static int meet(tern_engine *engine, tern_peers *peers)
{
	struct tern_barrier barrier = {.size = sizeof(barrier), .immediate = 1, .peers = peers};
	tern_op op;
	int rc = tern_engine_barrier(engine, &barrier, &op);

	return rc ? rc : tern_op_wait(engine, op, WAIT);
}

/* Only the first has met the victim's end; who waits for all is told, who waits for the living is not. */
static void after_death(struct rank *rank, tern_engine *engine, tern_peers *all)
{
	static const uint32_t living[] = {0, 1, 3};
	struct scene *s = rank->ctx;
	unsigned long long told_ns;
	tern_peers *peers;
	int rc = meet(engine, all);

	told_ns = now_ns();
	if (rc != TERN_ERR_PEER_DEAD || !strstr(tern_last_error(), "rank 2"))
		rank_fails(rank, "waiting for the dead: %d, %s", rc, tern_last_error());
	if (told_ns - s->fate_ns > 8000000000u)
		rank_fails(rank, "told only after %llu ms", (told_ns - s->fate_ns) / 1000000);
	if (tern_engine_peer(engine, VICTIM) != TERN_ERR_PEER_DEAD)
		rank_fails(rank, "the dead peer is said to live");
	if (tern_peers_create(engine, living, NULL, 3, &peers)) {
		rank_fails(rank, "%s", tern_last_error());
		return;
	}
	for (int i = 0; i < 20; i++) {
		struct tern_barrier barrier = {.size = sizeof(barrier), .immediate = 2, .peers = peers};
		tern_op op;

		if (tern_engine_barrier(engine, &barrier, &op) || tern_op_wait(engine, op, WAIT))
			rank_fails(rank, "the living, %d: %s", i, tern_last_error());
	}
}

static void body(struct rank *rank)
{
	static const uint32_t ranks[] = {0, 1, 2, 3};
	struct scene *s = rank->ctx;
	struct tern_engine_config config;
	tern_engine *engine = NULL;
	tern_peers *peers;

	if (join(rank, &s->first, rank->rank))
		return;
	tern_engine_config_init(&config);
	config.transport = rank->rank == odd ? odd_transport : transport;
	config.timeout_ms = 5000;
	if (tern_engine_create(rank->group, &config, &engine) || tern_peers_create(engine, ranks, NULL, RANKS, &peers) || meet(engine, peers)) {
		rank_fails(rank, "%s", tern_last_error());
		return;
	}
	if (rank->rank == VICTIM) {
		s->fate_ns = now_ns();
		kill(getpid(), SIGKILL);
	}
	after_death(rank, engine, peers);
	if (tern_engine_destroy(engine) || tern_group_destroy(rank->group))
		rank_fails(rank, "%s", tern_last_error());
}

static void one_is_killed(const char *name, int odd_rank, const char *odd_name)
{
	struct scene *s = scene_open(RANKS, TERN_LOW_LATENCY);

	transport = name;
	odd = odd_rank;
	odd_transport = odd_name;
	s->victim = VICTIM;
	scene_play(s, body, SIGKILL);
}

static void over_shared_memory(void **state)
{
	(void)state;
	one_is_killed("shm", -1, NULL);
}

static void need_libfabric(void)
{
	if (transport_is_there("ofi:tcp;ofi_rxm"))
		return;
	print_message("# SKIP %s\n", tern_last_error());
	skip();
}

static void over_libfabric(void **state)
{
	(void)state;
	need_libfabric();
	one_is_killed("ofi:tcp;ofi_rxm", -1, NULL);
}

/* The victim is reached by all over libfabric, which does not see its death, while shared memory between the others does. */
static void apart_from_all(void **state)
{
	(void)state;
	need_libfabric();
	one_is_killed("shm+ofi", VICTIM, "ofi");
}

/* Some reach the victim over shared memory, and one over libfabric. */
static void apart_from_one(void **state)
{
	(void)state;
	need_libfabric();
	one_is_killed("shm+ofi", 3, "ofi");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(over_shared_memory),
		cmocka_unit_test(over_libfabric),
		cmocka_unit_test(apart_from_all),
		cmocka_unit_test(apart_from_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
