/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of an elastic group may end, or want to leave it, as soon as they have what all have given:
 * one that is kept from its processor between its look for a part and its look at the process gets
 * all parts as well. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>

#include "tests/faults/processes.h"

#define RANKS 3
#define LATE (RANKS - 1)
#define LEAVES 0

static _Thread_local struct scene *looks_late; /* NULL: each call is as libc's */

/* In place of libc's. The look comes when the other process has ended, or somebody has said that a
 * change is wanted. */
int poll(struct pollfd *fds, nfds_t nr, int timeout)
{
	struct scene *s = nr == 1 && timeout == 0 ? looks_late : NULL;
	unsigned long long end = now_ns() + SCENE_LIMIT_NS;
	struct timespec time;

	if (s) {
		looks_late = NULL;
		atomic_store(&s->nr_ready, 1);
		timeout = s->victim == LEAVES ? 0 : (int)(SCENE_LIMIT_NS / 1000000);
	}
	while (s && s->victim == LEAVES && !atomic_load(&s->nr_told) && now_ns() < end)
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
	time.tv_sec = timeout / 1000;
	time.tv_nsec = timeout % 1000 * 1000000;
	return ppoll(fds, nr, timeout < 0 ? NULL : &time, NULL);
}

static int gather(struct rank *rank, int number)
{
	int mine = number + rank->rank, all[RANKS];

	if (tern_group_allgather(rank->group, &mine, all, sizeof(mine)))
		return rank_fails(rank, "gathering %d: %s", number, tern_last_error());
	for (int r = 0; r < RANKS; r++)
		if (all[r] != number + r)
			return rank_fails(
				rank, "has %d of rank %d, and not %d", all[r], r, number + r);
	return 0;
}

/* Of one rank fewer. */
static void change(struct rank *rank)
{
	struct scene *s = rank->ctx;
	struct tern_view view = {.size = sizeof(view)};
	int rc = rank->rank == LEAVES ? tern_group_propose(rank->group, TERN_CHANGE_LEAVE, LEAVES)
				      : 0;

	if (rank->rank == LEAVES)
		atomic_store(&s->nr_told, 1);
	rc = rc ? rc : tern_group_view_change(rank->group, &view);
	if (rc)
		rank_fails(rank, "the change: %s", tern_last_error());
}

static void body(struct rank *rank)
{
	struct scene *s = rank->ctx;
	unsigned long long end = now_ns() + SCENE_LIMIT_NS;

	if (join(rank, &s->first, rank->rank) || gather(rank, 100))
		return;
	if (rank->rank == LATE)
		looks_late = s;
	while (rank->rank != LATE && !atomic_load(&s->nr_ready) && now_ns() < end)
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
	if (!gather(rank, 200) && s->victim == LEAVES)
		change(rank);
	if (looks_late)
		rank_fails(rank, "has looked at no process");
	tern_group_destroy(rank->group);
}

static void play(int victim)
{
	struct scene *s = scene_open(RANKS, TERN_LOW_LATENCY);

	s->elastic = true;
	s->victim = victim;
	scene_play(s, body, 0);
}

static void others_end_when_all_have_given(void **state)
{
	(void)state;
	play(-1);
}

static void one_leaves_when_all_have_given(void **state)
{
	(void)state;
	play(LEAVES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(others_end_when_all_have_given),
		cmocka_unit_test(one_leaves_when_all_have_given)};

	if (getenv("TERN_TEST_NODES")) {
		printf("between nodes this rank's part would not leave while it looks\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
