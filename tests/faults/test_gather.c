/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of an elastic group may end as soon as they have what all have given: one that is kept from
 * its processor between its look for a part and its look at the process gets all parts as well. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/faults/processes.h"

#define RANKS 3
#define LATE (RANKS - 1)

static _Thread_local struct scene *looks_late; /* NULL: each call is as libc's */

/* In place of libc's. The look comes when the other process has ended. */
int poll(struct pollfd *fds, nfds_t nr, int timeout)
{
	if (looks_late && nr == 1 && timeout == 0) {
		atomic_store(&looks_late->nr_ready, 1);
		looks_late = NULL;
		timeout = (int)(SCENE_LIMIT_NS / 1000000);
	}
	return (int)syscall(SYS_poll, fds, nr, timeout);
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
	gather(rank, 200);
	if (looks_late)
		rank_fails(rank, "has looked at no process");
	tern_group_destroy(rank->group);
}

static void others_end_when_all_have_given(void **state)
{
	struct scene *s = scene_open(RANKS, TERN_LOW_LATENCY);

	(void)state;
	s->elastic = true;
	s->victim = -1;
	scene_play(s, body, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(others_end_when_all_have_given)};

	if (getenv("TERN_TEST_NODES")) {
		printf("between nodes this rank's part would not leave while it looks\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
