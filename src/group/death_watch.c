/* SPDX-License-Identifier: Apache-2.0 */
#include "group/death_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/error.h"

/* Two descriptors a rank, and one that ends the thread. */
struct death_watch {
	pthread_t thread;
	pthread_mutex_t lock;       /* of watchers and dead */
	struct death_watcher *list; /* of all */
	_Atomic bool *dead;         /* [R] written under the lock */
	int nr_ranks, stop;
	bool runs;          /* the thread: there is somebody to watch */
	int own;            /* held open while this process lives */
	int *ends;          /* [R] of the peers' pipes; -1: none */
	struct pollfd *fds; /* [2 R + 1]: ends, lifelines, stop */
};

static void tell(struct death_watch *w, uint32_t rank)
{
	pthread_mutex_lock(&w->lock);
	w->dead[rank] = true;
	for (struct death_watcher *d = w->list; d; d = d->next)
		d->died(d->ctx, rank);
	pthread_mutex_unlock(&w->lock);
}

static void *watch(void *arg)
{
	struct death_watch *w = arg;
	int nr = 2 * w->nr_ranks;

	prctl(PR_SET_NAME, "tern-watch");
	for (;;) {
		if (poll(w->fds, (nfds_t)nr + 1, -1) < 0 && errno != EINTR)
			return NULL; /* no memory: lifelines are looked at when a wait has ended */
		if (w->fds[nr].revents)
			return NULL;
		for (int i = 0; i < nr; i++) {
			if (!(w->fds[i].revents & (POLLIN | POLLHUP)))
				continue;
			w->fds[i].fd = -1; /* poll passes it over */
			tell(w, (uint32_t)(i % w->nr_ranks));
		}
	}
}

static void watch_free(struct death_watch *w)
{
	if (!w)
		return;
	for (int r = 0; w->ends && r < w->nr_ranks; r++)
		if (w->ends[r] >= 0)
			close(w->ends[r]);
	if (w->stop >= 0)
		close(w->stop);
	if (w->own >= 0)
		close(w->own);
	pthread_mutex_destroy(&w->lock);
	free(w->dead);
	free(w->ends);
	free(w->fds);
	free(w);
}

static int watch_alloc(const tern_group *group, struct death_watch **watch, int *mine)
{
	struct death_watch *w = calloc(1, sizeof(*w));
	size_t nr = (size_t)group->nr_ranks;
	int ends[2];

	*mine = -1;
	*watch = w;
	if (!w)
		return fail(TERN_ERR_NOMEM, "no memory to watch %d ranks", group->nr_ranks);
	pthread_mutex_init(&w->lock, NULL);
	w->nr_ranks = group->nr_ranks;
	w->own = -1;
	w->stop = eventfd(0, EFD_CLOEXEC);
	w->dead = calloc(nr, sizeof(*w->dead));
	w->ends = calloc(nr, sizeof(*w->ends));
	w->fds = calloc(2 * nr + 1, sizeof(*w->fds));
	for (size_t r = 0; w->ends && r < nr; r++)
		w->ends[r] = -1;
	if (!w->dead || !w->ends || !w->fds)
		return fail(TERN_ERR_NOMEM, "no memory to watch %d ranks", group->nr_ranks);
	if (w->stop < 0 || pipe2(ends, O_CLOEXEC))
		return fail_errno("watching for the end of processes: eventfd and pipe");
	*mine = ends[0];
	w->own = ends[1];
	return 0;
}

/* Each peer of this machine gets the reading end of this process's pipe. */
static int pass_ends(tern_group *group, struct death_watch *w, int mine)
{
	int rc = group_pass_fd(group, ++group->round, mine);

	for (int r = 0; r < group->nr_ranks; r++)
		w->ends[r] = group->guests[r].fd;
	return rc;
}

/* Signals are the caller's threads' affair. */
static int start(const tern_group *group, struct death_watch *w)
{
	sigset_t all, before;
	int rc, nr = w->nr_ranks;

	for (int r = 0; r < nr; r++) {
		w->runs = w->runs || w->ends[r] >= 0;
		w->fds[r] = (struct pollfd){.fd = w->ends[r], .events = POLLIN};
		w->fds[nr + r] = (struct pollfd){.fd = group->peers[r].lifeline, .events = POLLIN};
	}
	w->fds[2 * nr] = (struct pollfd){.fd = w->stop, .events = POLLIN};
	if (!w->runs)
		return 0;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&w->thread, NULL, watch, w);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	w->runs = !rc;
	errno = rc;
	return rc ? fail_errno("watching for the end of processes: a thread") : 0;
}

int death_watch_open(tern_group *group)
{
	struct death_watch *w;
	int rc, mine;

	if (group->death_watch)
		return 0;
	rc = watch_alloc(group, &w, &mine);
	rc = group_agree_status(group, rc, "watching for deaths");
	rc = rc ? rc : pass_ends(group, w, mine);
	if (mine >= 0)
		close(mine);
	rc = rc ? rc : start(group, w);
	if (rc)
		watch_free(w);
	else
		group->death_watch = w;
	rc = group_agree_status(group, rc, "watching for deaths");
	if (rc)
		death_watch_close(group);
	return rc;
}

void death_watch_close(tern_group *group)
{
	struct death_watch *w = group->death_watch;
	uint64_t one = 1;

	if (!w)
		return;
	while (write(w->stop, &one, sizeof(one)) < 0 && errno == EINTR)
		;
	if (w->runs)
		pthread_join(w->thread, NULL);
	watch_free(w);
	group->death_watch = NULL;
}

bool death_watch_saw(const tern_group *group, uint32_t rank)
{
	return group->death_watch && atomic_load(&group->death_watch->dead[rank]);
}

void death_watch_add(tern_group *group, struct death_watcher *watcher)
{
	struct death_watch *w = group->death_watch;

	pthread_mutex_lock(&w->lock);
	watcher->next = w->list;
	w->list = watcher;
	for (int r = 0; r < w->nr_ranks; r++)
		if (w->dead[r])
			watcher->died(watcher->ctx, (uint32_t)r);
	pthread_mutex_unlock(&w->lock);
}

void death_watch_remove(tern_group *group, struct death_watcher *watcher)
{
	struct death_watch *w = group->death_watch;
	struct death_watcher **at;

	pthread_mutex_lock(&w->lock);
	for (at = &w->list; *at && *at != watcher; at = &(*at)->next)
		;
	if (*at)
		*at = watcher->next;
	pthread_mutex_unlock(&w->lock);
}
