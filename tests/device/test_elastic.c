/* SPDX-License-Identifier: Apache-2.0 */
/* Elastic exchanges on GPUs: ranks are processes that share the GPUs there are, one is killed or
 * stopped at any moment, and the others go on: rounds by calls, and by a graph that was captured
 * before. No sum is ever wrong. Skipped where there is no GPU. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "tests/device/devices.h"
#include "tests/device/elastic_rank.h"
#include "tests/faults/acts.h"
#include "testkit/random.h"

/* Also behind a test that has failed. */
static int as_usual(void **state)
{
	(void)state;
	way.nr_copies = 2;
	way.change = 0;
	way.comes_back = way.one_more = false;
	return 0;
}

static struct scene *begin(int victim, int halves)
{
	struct scene *s = scene_open(way.nr_ranks, way.mode);

	s->elastic = true;
	s->victim = victim;
	s->halves = halves;
	return s;
}

static void end(struct scene *s, const pid_t *pids, int *nr_owed)
{
	scene_finish(s, pids, way.change == TERN_CHANGE_LEAVE ? 0 : SIGKILL);
	assert_int_equal(atomic_load(&s->nr_told), way.nr_ranks - 1); /* changes, one on each */
	*nr_owed += atomic_load(&s->nr_rounds);
	scene_close(s);
}

/* Before each of its halves, and with graphs. */
static void dies_in_each_half(void **state)
{
	int nr_owed = 0;

	(void)state;
	way.nr_rounds = 16;
	for (int i = 0; i < (int)devices_setting("TERN_TEST_SCENES", 5); i++) {
		struct scene *s = begin(i % way.nr_ranks, i % 4);
		pid_t pids[MAX_PROCESSES];

		way.by_graph = i % 5 == 4;
		scene_start(s, elastic_rank, pids);
		end(s, pids, &nr_owed);
	}
}

/* Some before the kill, which comes when all have made three, and four behind it. */
static uint64_t rounds_of_a_scene(void)
{
	uint64_t nr = devices_setting("TERN_TEST_ROUNDS", 30);

	return nr < 8 ? 8 : nr;
}

/* At no moment in particular. */
static void dies_at_any_moment(void **state)
{
	uint64_t random = devices_setting("TERN_TEST_SEED", 7);
	uint64_t nr = devices_setting("TERN_TEST_KILLS", 6);
	uint64_t most_ns = devices_setting("TERN_TEST_KILL_US", 200000) * 1000;
	int nr_owed = 0;

	(void)state;
	way.nr_rounds = rounds_of_a_scene();
	for (uint64_t i = 0; i < nr; i++) {
		struct scene *s = begin((int)(i % way.nr_ranks), -1);

		way.by_graph = i % 2 == 0;
		nr_owed += kill_victims(s, elastic_rank, random_below(&random, most_ns), 0);
	}
	print_message("# %d rounds were made for others\n", nr_owed);
}

/* At once, or the second while the others change their view. */
static void two_die(void **state)
{
	uint64_t random = devices_setting("TERN_TEST_SEED", 7);
	uint64_t nr = devices_setting("TERN_TEST_KILLS", 6);
	uint64_t most_ns = devices_setting("TERN_TEST_KILL_US", 200000) * 1000;

	(void)state;
	if (way.nr_ranks < 4)
		skip();
	way.nr_copies = 3;
	way.nr_rounds = rounds_of_a_scene();
	for (uint64_t i = 0; i < nr; i++) {
		struct scene *s = begin((int)(i % 4), -1);
		uint64_t first_ns = random_below(&random, most_ns / 4),
			 between_ns = i % 3 ? random_below(&random, most_ns) : 0;

		way.by_graph = i % 2 == 0;
		s->other_victim = (s->victim + 1 + (int)(i / 4 % 3)) % 4;
		(void)kill_victims(s, elastic_rank, first_ns, between_ns);
	}
}

/* It is stopped, and what it has put before its GPU stores on, when it has been expelled, too. */
static void stopped_peer_spoils_nothing(void **state)
{
	int nr_owed = 0;

	(void)state;
	if (way.nr_ranks < 3) /* one of two is no majority */
		skip();
	way.change = TERN_CHANGE_EXPEL;
	way.nr_rounds = 20;
	/* In low latency another_dies_then has the first. */
	for (int i = way.mode == TERN_LOW_LATENCY; i < 2; i++) {
		struct scene *s = begin((1 + i) % way.nr_ranks, i % 2 ? 2 : 0);
		pid_t pids[MAX_PROCESSES];

		way.by_graph = i % 2 == 0;
		s->job.config.wait_ms = (int)devices_setting("TERN_TEST_WAIT_MS", 500);
		scene_start(s, elastic_rank, pids);
		end(s, pids, &nr_owed);
	}
}

/* Its stores go on when another dies: into memory that nobody has any more, though the others are
 * back at its addresses. */
static void another_dies_then(void **state)
{
	(void)state;
	if (way.nr_ranks < 4 || way.mode != TERN_LOW_LATENCY)
		skip();
	way.change = TERN_CHANGE_EXPEL;
	way.one_more = true;
	way.nr_copies = 3;
	way.nr_rounds = 20;
	for (int i = 0; i < (int)devices_setting("TERN_TEST_KILLS", 6); i++) {
		struct scene *s = begin((1 + i) % way.nr_ranks, i % 2 ? 2 : 0);
		pid_t pids[MAX_PROCESSES];

		way.by_graph = i % 2 == 0;
		s->other_victim = (s->victim + 1 + i % 3) % way.nr_ranks;
		s->job.config.wait_ms = 4 * (int)devices_setting("TERN_TEST_WAIT_MS", 500);
		scene_start(s, elastic_rank, pids);
		scene_finish(s, pids, SIGKILL);
		assert_int_equal(atomic_load(&s->nr_told), 4); /* two changes on two ranks */
		scene_close(s);
	}
}

static void one_leaves(void **state)
{
	int nr_owed = 0;

	(void)state;
	way.change = TERN_CHANGE_LEAVE;
	way.nr_rounds = 16;
	for (int i = 0; i < 2; i++) {
		struct scene *s = begin((3 - i) % way.nr_ranks, -1);
		pid_t pids[MAX_PROCESSES];

		way.by_graph = i % 2;
		scene_start(s, elastic_rank, pids);
		end(s, pids, &nr_owed);
	}
}

static void experts_are_lost(void **state)
{
	int nr_owed = 0;

	(void)state;
	way.nr_copies = 1;
	way.nr_rounds = 16;
	for (int i = 0; i < 2; i++) {
		struct scene *s = begin(i, 0);
		pid_t pids[MAX_PROCESSES];

		way.by_graph = i % 2;
		scene_start(s, elastic_rank, pids);
		end(s, pids, &nr_owed);
	}
}

/* Both replicas of some experts were on the victim. */
static void lost_experts_come_back(void **state)
{
	int nr_owed = 0;

	(void)state;
	way.comes_back = true;
	way.nr_rounds = 20;
	for (int i = 0; i < 2; i++) {
		struct scene *s = begin(2 - i, i * 2);
		pid_t pids[MAX_PROCESSES];

		way.by_graph = i == 0;
		scene_start(s, elastic_rank, pids);
		end(s, pids, &nr_owed);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test_setup(dies_in_each_half, as_usual),
		cmocka_unit_test_setup(dies_at_any_moment, as_usual),
		cmocka_unit_test_setup(two_die, as_usual),
		cmocka_unit_test_setup(one_leaves, as_usual),
		cmocka_unit_test_setup(experts_are_lost, as_usual),
		cmocka_unit_test_setup(lost_experts_come_back, as_usual),
		cmocka_unit_test_setup(stopped_peer_spoils_nothing, as_usual),
		cmocka_unit_test_setup(another_dies_then, as_usual)};
	int nr_failed = 0;

	if (!devices_count_apart())
		return 77;
	way.nr_ranks = (int)devices_setting("TERN_TEST_RANKS", MOST_RANKS);
	cmocka_set_test_filter(getenv("TERN_TEST_ONLY"));
	for (way.mode = TERN_LOW_LATENCY; way.mode <= TERN_HIGH_THROUGHPUT; way.mode++)
		if (devices_setting("TERN_TEST_MODE", way.mode) == way.mode)
			nr_failed += cmocka_run_group_tests_name(
				way.mode == TERN_LOW_LATENCY ? "low latency" : "high throughput",
				tests, NULL, NULL);
	return nr_failed;
}
