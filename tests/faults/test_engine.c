/* SPDX-License-Identifier: Apache-2.0 */
/* Engines of processes, one of which is killed or cut off: the others are told who and why, and go
 * on with each other. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "tern_engine.h"
#include "tests/faults/acts.h"
#include "tests/faults/wire.h"
#include "tests/late.h"

#define RANKS 4
#define VICTIM 2
#define WAIT 15000

static const char *transport, *odd_transport;
static int odd;         /* this rank has that one; -1: none */
static bool is_cut_off; /* the victim; else it is killed */

static int meet(tern_engine *engine, tern_peers *peers)
{
	struct tern_barrier barrier = {.size = sizeof(barrier), .immediate = 1, .peers = peers};
	tern_op op;
	int rc = tern_engine_barrier(engine, &barrier, &op);

	return rc ? rc : tern_op_wait(engine, op, WAIT);
}

/* The others are gone, to it. */
static void be_cut_off(struct rank *rank, tern_engine *engine, tern_peers *all)
{
	struct scene *s = rank->ctx;
	int rc;

	atomic_store(&s->at_place, true);
	while (!atomic_load(&s->fate_ns))
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	rc = meet(engine, all);
	if (rc != TERN_ERR_PEER_DEAD && rc != TERN_ERR_SYSTEM) /* a device that cannot send says so
								*/
		rank_fails(rank, "waiting behind a wire that is pulled: %d, %s", rc,
			tern_last_error());
}

/* Only the first has met the victim's end; who waits for all is told, who waits for the living is
 * not. */
static void after_death(struct rank *rank, tern_engine *engine, tern_peers *all)
{
	static const uint32_t living[] = {0, 1, 3};
	struct scene *s = rank->ctx;
	unsigned long long took_ns;
	tern_peers *peers;
	int rc = meet(engine, all);

	took_ns = passed_ns(s->fate_ns);
	if (rc != TERN_ERR_PEER_DEAD || !strstr(tern_last_error(), "rank 2"))
		rank_fails(rank, "waiting for the dead: %d, %s", rc, tern_last_error());
	if (took_ns > 8000000000u)
		rank_fails(rank, "told only after %llu ms", took_ns / 1000000);
	if (tern_engine_peer(engine, VICTIM) != TERN_ERR_PEER_DEAD)
		rank_fails(rank, "the dead peer is said to live");
	if (tern_peers_create(engine, living, NULL, 3, &peers)) {
		rank_fails(rank, "%s", tern_last_error());
		return;
	}
	for (int i = 0; i < 20; i++) {
		struct tern_barrier barrier = {
			.size = sizeof(barrier), .immediate = 2, .peers = peers};
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
	if (tern_engine_create(rank->group, &config, &engine) ||
		tern_peers_create(engine, ranks, NULL, RANKS, &peers) || meet(engine, peers)) {
		rank_fails(rank, "%s", tern_last_error());
		return;
	}
	if (rank->rank == VICTIM && !is_cut_off) {
		s->fate_ns = now_ns();
		kill(getpid(), SIGKILL);
	}
	if (rank->rank == VICTIM)
		be_cut_off(rank, engine, peers);
	else
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
	is_cut_off = false;
	s->victim = VICTIM;
	scene_play(s, body, SIGKILL);
}

static void over_shared_memory(void **state)
{
	(void)state;
	one_is_killed("shm", -1, NULL);
}

static void need(const char *name)
{
	if (transport_is_there(name))
		return;
	print_message("# SKIP %s\n", tern_last_error());
	skip();
}

static void over_libfabric(void **state)
{
	(void)state;
	need("ofi:tcp;ofi_rxm");
	one_is_killed("ofi:tcp;ofi_rxm", -1, NULL);
}

/* The victim is reached by all over libfabric, which does not see its death, while shared memory
 * between the others does. */
static void apart_from_all(void **state)
{
	(void)state;
	need("ofi:tcp;ofi_rxm");
	one_is_killed("shm+ofi", VICTIM, "ofi");
}

/* Some reach the victim over shared memory, and one over libfabric. */
static void apart_from_one(void **state)
{
	(void)state;
	need("ofi:tcp;ofi_rxm");
	one_is_killed("shm+ofi", 3, "ofi");
}

static void over_verbs(void **state)
{
	(void)state;
	need("verbs");
	one_is_killed("verbs", -1, NULL);
}

/* The living are on one end of a wire, which is pulled. */
static void over_verbs_wire(void **state)
{
	const char *wrong;
	struct scene *s;

	(void)state;
	if (!wire_is_there()) {
		print_message("# SKIP there is no rxe1 and rxe2: scripts/vm.sh has them\n");
		skip();
	}
	s = scene_open(RANKS, TERN_LOW_LATENCY);
	s->victim = VICTIM;
	transport = "verbs@rxe1";
	odd = VICTIM;
	odd_transport = "verbs@rxe2";
	is_cut_off = true;
	wrong = play_together(&s, 1, body, wire_pull);
	assert_int_equal(wire_mend(), 0);
	if (wrong)
		fail_msg("%s", wrong);
}

/* test_engine [PATTERN]: those of that name. */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(over_shared_memory),
		cmocka_unit_test(over_libfabric),
		cmocka_unit_test(apart_from_all),
		cmocka_unit_test(apart_from_one),
		cmocka_unit_test(over_verbs),
		cmocka_unit_test(over_verbs_wire),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
