/* SPDX-License-Identifier: Apache-2.0 */
/* Prefixes of immediates: the lowest that is free everywhere, and never one of which an immediate
 * is still on its way. */
#include "engine/inside.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "group/group.h"
#include "tests/exchange/ranks.h"

#define NR_RANKS 3
#define SENT 20 /* more than are looked at together */

static void agree(struct rank *rank, const char *when, int wanted_rc, uint8_t wanted)
{
	uint8_t prefix = 0xff;
	int rc = engine_agree_prefix(rank->group, rank->group->engine, &prefix);

	if (rc != wanted_rc || (!rc && prefix != wanted))
		rank_fails(rank, "%s: got %d, prefix %u, not %u (%s)", when, rc, prefix, wanted,
			tern_last_error());
}

static void note(void *ctx, uint32_t peer, uint32_t immediate)
{
	(void)peer;
	(void)immediate;
	atomic_fetch_add((_Atomic uint32_t *)ctx, 1);
}

struct change {
	uint32_t first, nr;
	int by;
};

/* As if so many immediates under each of these prefixes were sent, or came. */
static int change(tern_engine *engine, void *ctx)
{
	const struct change *c = ctx;

	for (uint32_t p = c->first; p < c->first + c->nr; p++)
		engine->on_their_way[p] += (uint32_t)c->by;
	return 0;
}

static int copy_first(tern_engine *engine, void *ctx)
{
	*(uint32_t *)ctx = engine->on_their_way[0];
	return 0;
}

/* Each rank has claimed others, of which one is the same. */
static void lowest_on_all_body(struct rank *rank)
{
	static const uint8_t claimed[NR_RANKS][2] = {{0, 1}, {0, 3}, {0, 4}};
	struct engine_claim claim = {.immediate = note};
	tern_engine *engine = rank->group->engine;

	agree(rank, "fresh", 0, 0);
	for (int i = 0; i < 2; i++)
		engine_claim(engine, claimed[rank->rank][i], &claim);
	agree(rank, "some are claimed", 0, 2);
	if (rank->rank != 2)
		engine_unclaim(engine, 0);
	agree(rank, "one rank still has it", 0, 2);
	if (rank->rank == 2)
		engine_unclaim(engine, 0);
	agree(rank, "all have given it up", 0, 0);
}

static void on_their_way_body(struct rank *rank)
{
	struct change sent = {0, 1, 1}, came = {0, 1, -1}, all_sent = {0, NR_PREFIXES, 2};
	tern_engine *engine = rank->group->engine;

	if (rank->rank == 0)
		engine_call(engine, change, &sent);
	agree(rank, "one was sent", 0, 1);
	if (rank->rank == 2)
		engine_call(engine, change, &came);
	agree(rank, "it came", 0, 0);
	rank->group->wait_ms = 50;
	engine_call(engine, change, &all_sent);
	agree(rank, "none ever comes", TERN_ERR_TIMEOUT, 0);
}

static _Atomic uint32_t nr_came; /* on all ranks */

/* What is sent and what comes is counted. */
static void counted_body(struct rank *rank)
{
	struct engine_claim claim = {.immediate = note, .ctx = &nr_came};
	struct engine_counter counter = {0};
	struct engine_counters counters = {.first = &counter, .nr = 1};
	tern_engine *engine = rank->group->engine;
	struct engine_write write = {
		.peer = (uint32_t)(rank->rank + 1) % NR_RANKS, .flags = TERN_IMMEDIATE};
	uint32_t left = 1;

	if (engine_counters_open(engine, &counters) || engine_claim(engine, 0, &claim) ||
		ranks_meet(rank))
		rank_fails(rank, "open: %s", tern_last_error());
	write.counter = counters.id;
	for (uint32_t i = 0; i < SENT; i++)
		if (engine_write(engine, &write))
			rank_fails(rank, "write: %s", tern_last_error());
	while (!*rank->failure &&
		(engine_counter_ended(&counter) < SENT || atomic_load(&nr_came) < NR_RANKS * SENT))
		sched_yield();
	engine_unclaim(engine, 0);
	engine_counters_close(engine, &counters);
	agree(rank, "all have come", 0, 0);
	engine_call(engine, copy_first, &left);
	if (left)
		rank_fails(rank, "it has sent as many as it got, and counts %d", (int)left);
}

static void play(rank_main body)
{
	const char *failure = run_ranks(NR_RANKS, body, NULL);

	if (failure)
		fail_msg("%s", failure);
}

static void lowest_on_all(void **state)
{
	(void)state;
	play(lowest_on_all_body);
}

static void on_their_way(void **state)
{
	(void)state;
	play(on_their_way_body);
}

static void counted(void **state)
{
	(void)state;
	play(counted_body);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lowest_on_all),
		cmocka_unit_test(on_their_way),
		cmocka_unit_test(counted),
	};

	setenv("TERN_FORCE_ENGINE", "1", 1);
	setenv("TERN_TRANSPORT", "shm", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
