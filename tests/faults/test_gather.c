/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of an elastic group may end, or want to leave it, as soon as they have what all have given:
 * one that is kept from its processor between its look for a part and its look at the process gets
 * all parts as well; and so does one that learns of an end elsewhere sooner than of what was sent
 * before it. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <cmocka.h>

#include "engine/offers.h"
#include "tests/faults/processes.h"
#include "transport/transport.h"

#define RANKS 3
#define LATE (RANKS - 1)
#define LEAVES 0
#define LOOKS 200

static _Thread_local struct scene *looks_late; /* NULL: each call is as libc's */

static void await(_Atomic int *number, int least)
{
	unsigned long long end = now_ns() + SCENE_LIMIT_NS;

	while (atomic_load(number) < least && now_ns() < end)
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

/* ---- between nodes --------------------------------------------------------------------------- */

/* Shared memory as a network that for a while brings nothing; or takes nothing, until another rank
 * has seen that this one's line is open. */
static _Atomic bool deaf, mute;
static struct scene *slow_scene;

static int poll_or_not(struct transport *transport, struct transport_event *events, int max)
{
	return atomic_load(&deaf) ? 0 : transport_shm.poll(transport, events, max);
}

static int send_or_not(struct transport *transport, uint32_t peer, const void *data, uint32_t bytes)
{
	if (atomic_load(&mute) && atomic_load(&slow_scene->nr_rounds) < LOOKS)
		return TRANSPORT_AGAIN;
	return transport_shm.send(transport, peer, data, bytes);
}

static struct transport_ops slow;

static int open_slow(const struct transport_options *options, struct transport **transport,
	struct transport_info *info)
{
	int rc = transport_shm.open(options, transport, info);

	if (rc)
		return rc;
	(*transport)->ops = &slow;
	info->caps |= TRANSPORT_SHUTS_OUT; /* elastic groups want it; here nobody is */
	return 0;
}

static _Thread_local struct scene *looks_at_lines; /* NULL: each call is as libc's */

static bool is_open(int fd)
{
	char said;

	return recvfrom(fd, &said, 1, MSG_PEEK | MSG_DONTWAIT, NULL, NULL) < 0 && errno == EAGAIN;
}

/* In place of libc's. Who is deaf looks when the line has ended; of another one's looks those at a
 * line that is open are counted. */
ssize_t recv(int fd, void *to, size_t bytes, int flags)
{
	struct scene *s = flags & MSG_PEEK ? looks_at_lines : NULL;
	struct pollfd line = {.fd = fd, .events = POLLIN};

	if (s && atomic_load(&deaf)) {
		atomic_store(&s->nr_ready, 1);
		poll(&line, 1, (int)(SCENE_LIMIT_NS / 1000000));
		atomic_store(&deaf, false);
	} else if (s && atomic_load(&s->nr_told) && is_open(fd)) {
		atomic_fetch_add(&s->nr_rounds, 1);
	}
	return recvfrom(fd, to, bytes, flags, NULL, NULL);
}

/* ---- on one node ----------------------------------------------------------------------------- */

/* In place of libc's. The look comes when the other process has ended, or somebody has said that a
 * change is wanted. */
int poll(struct pollfd *fds, nfds_t nr, int timeout)
{
	struct scene *s = nr == 1 && timeout == 0 ? looks_late : NULL;
	struct timespec time;

	if (s) {
		looks_late = NULL;
		atomic_store(&s->nr_ready, 1);
		timeout = s->victim == LEAVES ? 0 : (int)(SCENE_LIMIT_NS / 1000000);
	}
	if (s && s->victim == LEAVES)
		await(&s->nr_told, 1);
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

	if (join(rank, &s->first, rank->rank) || gather(rank, 100))
		return;
	if (rank->rank == LATE)
		looks_late = s;
	else
		await(&s->nr_ready, 1);
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

/* Until all are through, so that no process ends before. */
static void end(struct rank *rank)
{
	struct scene *s = rank->ctx;

	tern_group_destroy(rank->group);
	atomic_fetch_add(&s->nr_past, 1);
	await(&s->nr_past, RANKS);
}

/* Rank 0 takes its leave before anything of its part has left. */
static void leaves_before_it_has_sent(struct rank *rank)
{
	struct scene *s = rank->ctx;

	if (join(rank, &s->first, rank->rank) || gather(rank, 100))
		return;
	looks_at_lines = rank->rank == LATE ? s : NULL;
	atomic_fetch_add(&s->nr_ready, 1);
	if (rank->rank == 0)
		await(&s->nr_ready, RANKS);
	atomic_store(&mute, rank->rank == 0);
	if (!gather(rank, 200) && rank->rank == 0)
		atomic_store(&s->nr_told, 1);
	end(rank);
}

static void takes_nothing_until_others_have_ended(struct rank *rank)
{
	struct scene *s = rank->ctx;

	if (join(rank, &s->first, rank->rank) || gather(rank, 100))
		return;
	looks_at_lines = rank->rank == LATE ? s : NULL;
	atomic_store(&deaf, rank->rank == LATE);
	if (rank->rank != LATE)
		await(&s->nr_ready, 1);
	gather(rank, 200);
	end(rank);
}

static void play_between_nodes(rank_main body_of)
{
	struct scene *s = scene_open(RANKS, TERN_LOW_LATENCY);

	slow_scene = s;
	slow = transport_shm;
	slow.name = "slow";
	slow.open = open_slow;
	slow.poll = poll_or_not;
	slow.send = send_or_not;
	network_list_extra = &slow;
	setenv("TERN_TRANSPORT", "slow", 1);
	setenv("TERN_TEST_NODES", "abc", 1);
	s->elastic = true;
	s->victim = -1;
	scene_play(s, body_of, 0);
	unsetenv("TERN_TEST_NODES");
	unsetenv("TERN_TRANSPORT");
}

static void one_ends_before_its_part_has_left(void **state)
{
	(void)state;
	play_between_nodes(leaves_before_it_has_sent);
}

static void others_end_while_one_takes_nothing(void **state)
{
	(void)state;
	play_between_nodes(takes_nothing_until_others_have_ended);
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
		cmocka_unit_test(one_leaves_when_all_have_given),
		cmocka_unit_test(one_ends_before_its_part_has_left),
		cmocka_unit_test(others_end_while_one_takes_nothing)};

	if (getenv("TERN_TEST_NODES")) {
		printf("nodes are these tests' own affair\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
