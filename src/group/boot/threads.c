/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as threads of one process. A gathering is one turn of a barrier: who comes last hands out
 * all payloads, while the others still wait inside their calls, so that their buffers are known to
 * be alive. The first failure poisons the object: a rank that has given up cannot be waited for by
 * anyone else. */
#include "group/boot/boot.h"
#include "base/error.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct visitor { /* a rank inside its call; guarded by the lock */
	const void *mine;
	void *all;
	size_t bytes;
	bool present;
};

struct seat { /* what the ctx of a rank's boots points to */
	struct boot_seat base;
	struct tern_threads *threads;
};

struct tern_threads {
	pthread_mutex_t lock;
	pthread_cond_t turned; /* `turn` or `poison` has changed */
	int nr_ranks;
	int wait_ms;
	int nr_users; /* the creator and the boots not yet closed */
	int nr_present;
	uint64_t turn;    /* gatherings completed */
	char poison[512]; /* why nothing works any more; "" while it does */
	struct seat *seats;
	struct visitor visitors[];
};

static int poisoned(struct tern_threads *t)
{
	return fail(TERN_ERR_BOOTSTRAP, "%s", t->poison);
}

static int poison_mismatch(struct tern_threads *t, int a, int b)
{
	snprintf(t->poison, sizeof(t->poison),
		"gathering %llu: rank %d passes %zu bytes, rank %d passes %zu",
		(unsigned long long)t->turn + 1, a, t->visitors[a].bytes, b, t->visitors[b].bytes);
	pthread_cond_broadcast(&t->turned);
	return poisoned(t);
}

/* Another rank's turn would never come, as one thread is here in its place. */
static int poison_twice(struct tern_threads *t, int rank)
{
	snprintf(t->poison, sizeof(t->poison),
		"gathering %llu: rank %d has come twice, from two threads; %d of %d ranks had come",
		(unsigned long long)t->turn + 1, rank, t->nr_present, t->nr_ranks);
	pthread_cond_broadcast(&t->turned);
	return poisoned(t);
}

static int poison_timeout(struct tern_threads *t, int rank)
{
	int missing = 0;

	while (t->visitors[missing].present)
		missing++;
	snprintf(t->poison, sizeof(t->poison),
		"gathering %llu: rank %d waited %d ms; %d of %d ranks had not come, the first of "
		"them rank %d",
		(unsigned long long)t->turn + 1, rank, t->wait_ms, t->nr_ranks - t->nr_present,
		t->nr_ranks, missing);
	pthread_cond_broadcast(&t->turned);
	return poisoned(t);
}

static void hand_out(struct tern_threads *t)
{
	for (int to = 0; to < t->nr_ranks; to++)
		for (int from = 0; from < t->nr_ranks && t->visitors[from].bytes; from++)
			memcpy((char *)t->visitors[to].all + (size_t)from * t->visitors[from].bytes,
				t->visitors[from].mine, t->visitors[from].bytes);
}

static int complete_turn(struct tern_threads *t)
{
	for (int r = 1; r < t->nr_ranks; r++)
		if (t->visitors[r].bytes != t->visitors[0].bytes)
			return poison_mismatch(t, 0, r);
	hand_out(t);
	for (int r = 0; r < t->nr_ranks; r++)
		t->visitors[r].present = false;
	t->nr_present = 0;
	t->turn++;
	pthread_cond_broadcast(&t->turned);
	return 0;
}

static struct timespec deadline_of(int wait_ms)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	at.tv_sec += wait_ms / 1000;
	at.tv_nsec += wait_ms % 1000 * 1000000L;
	if (at.tv_nsec >= 1000000000L) {
		at.tv_sec++;
		at.tv_nsec -= 1000000000L;
	}
	return at;
}

static int wait_turn(struct tern_threads *t, int rank)
{
	struct timespec deadline = deadline_of(t->wait_ms);
	uint64_t turn = t->turn;
	int late = 0;

	while (t->turn == turn && !t->poison[0] && !late)
		late = pthread_cond_timedwait(&t->turned, &t->lock, &deadline);
	if (t->turn != turn)
		return 0;
	return t->poison[0] ? poisoned(t) : poison_timeout(t, rank);
}

static int gather_locked(struct tern_threads *t, int rank, const struct visitor *visitor)
{
	if (t->poison[0])
		return poisoned(t);
	if (t->visitors[rank].present)
		return poison_twice(t, rank);
	t->visitors[rank] = *visitor;
	return ++t->nr_present == t->nr_ranks ? complete_turn(t) : wait_turn(t, rank);
}

int threads_allgather(void *ctx, const void *mine, void *all, size_t bytes)
{
	struct seat *seat = ctx;
	struct visitor visitor = {.mine = mine, .all = all, .bytes = bytes, .present = true};
	int rc;

	pthread_mutex_lock(&seat->threads->lock);
	rc = gather_locked(seat->threads, seat->base.rank, &visitor);
	pthread_mutex_unlock(&seat->threads->lock);
	return rc;
}

static void drop_user(struct tern_threads *t)
{
	bool last;

	pthread_mutex_lock(&t->lock);
	last = --t->nr_users == 0;
	pthread_mutex_unlock(&t->lock);
	if (!last)
		return;
	pthread_cond_destroy(&t->turned);
	pthread_mutex_destroy(&t->lock);
	free(t->seats);
	free(t);
}

static void threads_close(void *ctx)
{
	drop_user(((struct seat *)ctx)->threads);
}

static int init_sync(struct tern_threads *t)
{
	pthread_condattr_t attr;
	int rc;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC); /* a wait is not to end early or late
							      when the date is set */
	rc = pthread_cond_init(&t->turned, &attr);
	pthread_condattr_destroy(&attr);
	return rc ? rc : pthread_mutex_init(&t->lock, NULL);
}

static int check_arguments(int nr_ranks, int wait_ms, struct tern_threads **threads)
{
	if (!threads)
		return fail(TERN_ERR_INVALID, "tern_threads_create: threads is NULL");
	if (nr_ranks < 1 || nr_ranks > 4096)
		return fail(TERN_ERR_INVALID,
			"tern_threads_create: nr_ranks is %d, not within 1 to 4096", nr_ranks);
	if (wait_ms < 0)
		return fail(TERN_ERR_INVALID, "tern_threads_create: wait_ms is %d", wait_ms);
	return 0;
}

int tern_threads_create(int nr_ranks, int wait_ms, struct tern_threads **threads)
{
	struct tern_threads *t;
	int rc = check_arguments(nr_ranks, wait_ms, threads);

	if (rc)
		return rc;
	t = calloc(1, sizeof(*t) + (size_t)nr_ranks * sizeof(t->visitors[0]));
	if (!t)
		return fail(TERN_ERR_NOMEM, "no memory for %d ranks as threads", nr_ranks);
	t->seats = calloc((size_t)nr_ranks, sizeof(*t->seats));
	if (!t->seats || init_sync(t)) {
		free(t->seats);
		free(t);
		return fail(TERN_ERR_NOMEM, "no memory for %d ranks as threads", nr_ranks);
	}
	t->nr_ranks = nr_ranks;
	t->wait_ms = wait_ms;
	t->nr_users = 1;
	for (int r = 0; r < nr_ranks; r++)
		t->seats[r] = (struct seat){.base = {r, nr_ranks, 0}, .threads = t};
	*threads = t;
	return 0;
}

int tern_threads_boot(struct tern_threads *t, int rank, struct tern_boot *boot)
{
	if (!t || !boot)
		return fail(
			TERN_ERR_INVALID, "tern_threads_boot: %s is NULL", t ? "boot" : "threads");
	if (rank < 0 || rank >= t->nr_ranks)
		return fail(TERN_ERR_INVALID, "tern_threads_boot: rank is %d, of %d ranks", rank,
			t->nr_ranks);
	pthread_mutex_lock(&t->lock);
	t->nr_users++;
	pthread_mutex_unlock(&t->lock);
	atomic_fetch_add(&t->seats[rank].base.nr_free, 1);
	*boot = (struct tern_boot){
		.rank = rank,
		.nr_ranks = t->nr_ranks,
		.allgather = threads_allgather,
		.ctx = &t->seats[rank],
		.close = threads_close,
	};
	return 0;
}

void tern_threads_destroy(struct tern_threads *threads)
{
	if (threads)
		drop_user(threads);
}
