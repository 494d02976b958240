/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges on GPUs are closed, or made, while a member dies: the thread that hears of it looks
 * into none that is gone. AddressSanitizer and ThreadSanitizer see what would go unnoticed else.
 * Skipped where there is no GPU. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/device/devices.h"
#include "tests/faults/processes.h"
#include "tests/faults/tokens.h"
#include "testkit/random.h"

#define RANKS 3
#define EXCHANGES 5
#define MOST_GAP_NS 400000

static uint64_t seed;

static void rest(uint64_t ns)
{
	nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

static int make_exchange(struct scene *s, tern_group *group, bool elastic, tern_moe **moe)
{
	int32_t logical[EXPERTS * 2], rank_of[EXPERTS * 2];
	struct tern_moe_config config;

	tokens_config(&config, s->job.config.mode);
	config.device = TERN_DEVICE_CUDA;
	config.elastic = elastic;
	if (elastic)
		config.placement = tokens_placement(logical, rank_of, 2, RANKS);
	return tern_moe_create(group, &config, moe);
}

/* The victim waits for its end where all have begun: after its own exchanges are made, or while. */
static void await_all(struct scene *s, int rank)
{
	atomic_fetch_add(&s->nr_past, 1);
	while (atomic_load(&s->nr_past) < RANKS || (rank == s->victim && !s->halves))
		rest(20000);
}

static void close_all(struct rank *rank, tern_moe **moe, uint64_t *random)
{
	int rc = 0;

	for (uint64_t i = 0; i < EXCHANGES && !rc; i++) {
		rest(random_below(random, MOST_GAP_NS));
		rc = tern_moe_destroy(moe[(i + seed % EXCHANGES) % EXCHANGES]);
	}
	rc = rc ? rc : tern_group_destroy(rank->group);
	if (rc)
		rank_fails(rank, "closing: %s", tern_last_error());
}

static void rank_body(struct rank *rank)
{
	struct scene *s = rank->ctx;
	tern_moe *moe[EXCHANGES] = {NULL};
	uint64_t random = seed * RANKS + (uint64_t)rank->rank;
	bool while_made = s->halves;
	int nr, rc = 0;

	if (join(rank, &s->first, rank->rank))
		return;
	if (!devices_open(&nr)) {
		rank_fails(rank, "no GPU");
		return;
	}
	if (while_made)
		await_all(s, rank->rank);
	for (int i = 0; i < EXCHANGES && !rc; i++)
		rc = make_exchange(s, rank->group, i != 2, &moe[i]);
	if (rc && !while_made)
		rank_fails(rank, "tern_moe_create: %s", tern_last_error());
	if (!while_made && !rc)
		await_all(s, rank->rank);
	while (while_made && rank->rank == s->victim)
		rest(20000);
	close_all(rank, moe, &random);
}

static void play(bool while_made)
{
	uint64_t nr = devices_setting("TERN_TEST_KILLS", 6);
	uint64_t random = devices_setting("TERN_TEST_SEED", 3);

	for (uint64_t i = 0; i < nr; i++) {
		struct scene *s =
			scene_open(RANKS, i % 2 ? TERN_HIGH_THROUGHPUT : TERN_LOW_LATENCY);
		unsigned long long limit = now_ns() + SCENE_LIMIT_NS;
		pid_t pids[MAX_PROCESSES];

		seed = random_next(&random);
		s->elastic = true;
		s->halves = while_made;
		s->victim = (int)(i % RANKS);
		scene_start(s, rank_body, pids);
		while (atomic_load(&s->nr_past) < RANKS && now_ns() < limit)
			rest(20000);
		rest(random_below(&random, EXCHANGES * MOST_GAP_NS));
		kill(pids[s->victim], SIGKILL);
		scene_finish(s, pids, SIGKILL);
		scene_close(s);
	}
}

static void one_dies_while_they_are_closed(void **state)
{
	(void)state;
	play(false);
}

/* Some of them are not made then. */
static void one_dies_while_they_are_made(void **state)
{
	(void)state;
	play(true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(one_dies_while_they_are_closed),
		cmocka_unit_test(one_dies_while_they_are_made)};

	if (!devices_count_apart())
		return 77;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
