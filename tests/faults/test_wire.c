/* SPDX-License-Identifier: Apache-2.0 */
/* The wire to a rank is pulled in each phase of both modes, over verbs: the network answers with
 * errors, and every other rank learns who is gone, long before its time is over. */
#include "tests/faults/acts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/faults/wire.h"

#define RANKS 3
#define VICTIM 2 /* at the other end */
#define WAIT_MS                                                                                    \
	150000 /* a machine that is emulated is late when its host is busy, and does not know */

/* To the victim the others are gone, the first of them that it meets. */
static void victim(struct rank *rank, struct round *r, struct scene *s)
{
	int rc = meet_fate(r, s);

	if (*rank->failure)
		return;
	if (!atomic_load(&s->fate_ns) || rc != TERN_ERR_PEER_DEAD ||
		(!strstr(tern_last_error(), "rank 0 died") &&
			!strstr(tern_last_error(), "rank 1 died")))
		rank_fails(rank, "the victim returned %d, %s", rc, tern_last_error());
}

static void body(struct rank *rank)
{
	struct scene *s = rank->ctx;
	struct round r = {0};

	if (enter(rank, &r))
		return;
	if (rank->rank == s->victim)
		victim(rank, &r, s);
	else
		expect_death(rank, &r, s, rounds_from(&r, 0, 0));
	round_close(&r);
	if (tern_group_destroy(rank->group))
		rank_fails(rank, "leaving: %s", tern_last_error());
}

/* The four phases at the same time, as what takes time is the network's retries. */
static void pulled(enum tern_mode mode)
{
	const char *wrong;
	struct scene *scenes[4];

	if (!wire_is_there()) {
		print_message("# SKIP there is no rxe1 and rxe2: scripts/vm.sh has them\n");
		skip();
	}
	for (int i = 0; i < 4; i++) {
		scenes[i] = scene_open(RANKS, mode);
		scenes[i]->victim = VICTIM;
		scenes[i]->halves = i;
		scenes[i]->job.config.wait_ms = WAIT_MS;
	}
	wrong = play_together(scenes, 4, body, wire_pull);
	assert_int_equal(wire_mend(), 0);
	if (wrong)
		fail_msg("%s", wrong);
}

static void low_latency(void **state)
{
	(void)state;
	pulled(TERN_LOW_LATENCY);
}

static void high_throughput(void **state)
{
	(void)state;
	pulled(TERN_HIGH_THROUGHPUT);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(low_latency),
		cmocka_unit_test(high_throughput),
	};

	setenv("TERN_FORCE_ENGINE", "1", 1);
	setenv("TERN_TEST_TRANSPORTS", "verbs@rxe1 verbs@rxe1 verbs@rxe2", 1);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
