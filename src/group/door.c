/* SPDX-License-Identifier: Apache-2.0 */
/* Where newcomers knock. A thread that sleeps until somebody does: what it is told it keeps beside
 * what is in use, and the caller's thread takes it over when a view says so. Strangers are shown
 * out, and hold up nobody but each other. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "group/door_inside.h"

/* ---- the thread ------------------------------------------------------------------------------ */

static void drop_caller(struct caller *caller)
{
	if (caller->socket >= 0)
		close(caller->socket);
	free(caller->coming);
	*caller = (struct caller){.socket = -1};
}

/* True: the caller is done with, or somebody's. */
static bool hear_caller(struct door *d, struct caller *caller)
{
	struct join_message m;
	struct local_message came;
	bool is_kept = false;

	if (!join_receive(caller->socket, caller->coming, &m, &came))
		return false;
	if (came.bytes == sizeof(m) && came.whole && m.magic == JOIN_MAGIC &&
		!memcmp(m.secret, d->card.address.secret, sizeof(m.secret))) {
		pthread_mutex_lock(&d->lock);
		is_kept = door_hear_first(d, caller, &m, came.fds);
		pthread_mutex_unlock(&d->lock);
	}
	if (is_kept) {
		*caller = (struct caller){.socket = -1};
		return true;
	}
	local_close_fds(came.fds);
	drop_caller(caller);
	return true;
}

static void hear_guest(struct door *d, int place)
{
	struct guest *g = d->guests[place];
	struct join_message m;
	struct local_message came;
	bool stays = false;

	if (!g || g->socket < 0 || !join_receive(g->socket, g->coming, &m, &came))
		return;
	if (came.bytes == sizeof(m) && came.whole && m.magic == JOIN_MAGIC)
		stays = door_serve(d, place, &m, came.fds[0]);
	local_close_fds(came.fds);
	if (!stays)
		door_see_out(d, place);
}

static void take_callers(struct door *d, int listener)
{
	bool is_far = listener == d->far_listener;

	for (int i = 0; i < CALLERS_MOST; i++) {
		int s = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		struct caller *place, caller = {.socket = s};

		if (s < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
			poll(NULL, 0, 20); /* it would be ready again at once */
		if (s < 0)
			return;
		if (is_far)
			caller.coming = calloc(1, sizeof(*caller.coming));
		if (is_far ? !caller.coming : !local_same_user(s)) {
			close(s);
			continue;
		}
		if (hear_caller(d, &caller))
			continue;
		place = &d->callers[d->nr_called++ % CALLERS_MOST];
		drop_caller(place);
		*place = caller;
	}
}

static int fill_polls(struct door *d)
{
	int nr = 0;

	d->polls[nr++] = (struct pollfd){.fd = d->stop, .events = POLLIN};
	d->polls[nr++] = (struct pollfd){.fd = d->listener, .events = POLLIN};
	d->polls[nr++] = (struct pollfd){.fd = d->far_listener, .events = POLLIN};
	for (int i = 0; i < CALLERS_MOST; i++)
		d->polls[nr++] = (struct pollfd){.fd = d->callers[i].socket, .events = POLLIN};
	pthread_mutex_lock(&d->lock);
	for (int r = 0; r < d->me.nr_ranks; r++)
		d->polls[nr++] = (struct pollfd){
			.fd = d->guests[r] ? d->guests[r]->socket : -1, .events = POLLIN};
	pthread_mutex_unlock(&d->lock);
	return nr;
}

static void *keep_door(void *arg)
{
	struct door *d = arg;

	prctl(PR_SET_NAME, "tern-door");
	for (;;) {
		int nr = fill_polls(d);

		if (poll(d->polls, (nfds_t)nr, -1) < 0 && errno != EINTR)
			return NULL; /* no memory: nobody can join */
		if (d->polls[0].revents)
			return NULL;
		for (int i = 0; i < CALLERS_MOST; i++)
			if (d->callers[i].socket >= 0 && d->polls[3 + i].revents)
				hear_caller(d, &d->callers[i]);
		pthread_mutex_lock(&d->lock);
		for (int r = 0; r < d->me.nr_ranks; r++)
			if (d->polls[3 + CALLERS_MOST + r].revents)
				hear_guest(d, r);
		pthread_mutex_unlock(&d->lock);
		if (d->polls[1].revents)
			take_callers(d, d->listener);
		if (d->polls[2].revents)
			take_callers(d, d->far_listener);
	}
}

/* ---- the caller's thread --------------------------------------------------------------------- */

void join_offer_add(tern_group *group, struct join_offer *offer)
{
	struct door *d = group->door;
	struct join_offer **at = &group->offers;

	if (d)
		pthread_mutex_lock(&d->lock);
	while (*at)
		at = &(*at)->next;
	*at = offer;
	if (d)
		pthread_mutex_unlock(&d->lock);
}

void join_offer_remove(tern_group *group, struct join_offer *offer)
{
	struct door *d = group->door;
	struct join_offer **at = &group->offers;

	if (d)
		pthread_mutex_lock(&d->lock);
	while (*at && *at != offer)
		at = &(*at)->next;
	if (*at)
		*at = offer->next;
	if (d)
		pthread_mutex_unlock(&d->lock);
}

int door_prepare(tern_group *group, uint64_t *nonce)
{
	struct door *d = group->door;

	*nonce = 0;
	if (!d)
		return NOBODY;
	pthread_mutex_lock(&d->lock);
	for (int r = 0; r < group->nr_ranks && d->kept == NOBODY; r++) {
		const struct guest *g = d->guests[r];

		if (g && g->ready && !guest_has_hung_up(g) && guest_has_all(group, g) &&
			!set_has(&d->view.alive, (uint32_t)r) && !group->members->makes &&
			!(group->engine && engine_peer_down(group->engine, (uint32_t)r, NULL)))
			d->kept = r;
	}
	if (d->kept != NOBODY)
		*nonce = d->guests[d->kept]->nonce;
	pthread_mutex_unlock(&d->lock);
	return d->kept;
}

void door_acted(tern_group *group, const struct view *view)
{
	struct door *d = group->door;
	int place;

	if (!d)
		return;
	pthread_mutex_lock(&d->lock);
	place = d->kept;
	d->kept = NOBODY;
	d->view = *view;
	if (view->newcomer)
		d->let_in[view->newcomer - 1] = view->nonce;
	if (view->newcomer && (int)view->newcomer - 1 == place)
		guest_take_over(d, (uint32_t)place, view->gathering);
	else if (place != NOBODY && d->guests[place]->socket < 0)
		door_see_out(d, place);
	pthread_mutex_unlock(&d->lock);
}

void door_turn_away(tern_group *group, bool for_good)
{
	struct door *d = group->door;

	if (!d)
		return;
	pthread_mutex_lock(&d->lock);
	d->shut = d->shut || for_good;
	d->kept = NOBODY;
	for (int r = 0; r < group->nr_ranks; r++)
		door_see_out(d, r);
	pthread_mutex_unlock(&d->lock);
}

/* ---- opening and closing --------------------------------------------------------------------- */

static int publish(tern_group *group, const struct join_card *card)
{
	char key[32];
	int rc;

	snprintf(key, sizeof(key), JOIN_KEY, group->rank);
	fail(0, "%s", "");
	rc = group->rendezvous.set(group->rendezvous.ctx, key, card, sizeof(*card), group->wait_ms);
	if (!rc)
		return 0;
	return fail(TERN_ERR_BOOTSTRAP, "rendezvous.set(\"%s\") returned %d on rank %d%s%.200s",
		key, rc, group->rank, *tern_last_error() ? ": " : "", tern_last_error());
}

/* Signals are the caller's threads' affair. */
static int start(struct door *d)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&d->thread, NULL, keep_door, d);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	errno = rc;
	return rc ? fail_errno("a thread for newcomers") : 0;
}

static void door_free(struct door *d)
{
	for (int i = 0; i < CALLERS_MOST; i++)
		drop_caller(&d->callers[i]);
	d->kept = NOBODY;
	for (int r = 0; d->guests && r < d->me.nr_ranks; r++)
		door_see_out(d, r);
	if (d->listener >= 0)
		close(d->listener);
	if (d->far_listener >= 0)
		close(d->far_listener);
	if (d->stop >= 0)
		close(d->stop);
	pthread_mutex_destroy(&d->lock);
	free(d->guests);
	free(d->let_in);
	free(d->polls);
	free(d);
}

static int prepare(tern_group *group, struct door *d)
{
	size_t nr = (size_t)group->nr_ranks;
	int rc;

	d->group = group;
	d->me = *group->me;
	d->view = group->members->agreement.mine.view;
	d->card.abi = group->me->abi;
	memcpy(d->card.node, group->me->node, sizeof(d->card.node));
	d->guests = calloc(nr, sizeof(struct guest *));
	d->let_in = calloc(nr, sizeof(*d->let_in));
	d->polls = calloc(3 + CALLERS_MOST + nr, sizeof(*d->polls));
	if (!d->guests || !d->let_in || !d->polls)
		return fail(TERN_ERR_NOMEM, "no memory for newcomers to %d ranks", group->nr_ranks);
	rc = local_listen(&d->card.address, &d->listener);
	if (rc)
		return rc;
	if (group->nr_nodes > 1)
		d->far_listener = far_listen(&d->card.far);
	if (group->nr_nodes > 1 && d->far_listener < 0)
		return fail_errno("listening for newcomers from other nodes");
	d->stop = eventfd(0, EFD_CLOEXEC);
	return d->stop < 0 ? fail_errno("eventfd") : 0;
}

int door_open(tern_group *group)
{
	struct door *d;
	int rc;

	if (group->engine_forced)
		return fail(TERN_ERR_UNSUPPORTED, "a rendezvous, and force_engine: newcomers join "
						  "on the nodes that there are");
	d = calloc(1, sizeof(*d));
	if (!d)
		return fail(TERN_ERR_NOMEM, "no memory for newcomers");
	pthread_mutex_init(&d->lock, NULL);
	d->listener = d->far_listener = d->stop = d->kept = NOBODY;
	for (int i = 0; i < CALLERS_MOST; i++)
		d->callers[i].socket = -1;
	rc = prepare(group, d);
	rc = rc ? rc : start(d);
	if (rc) {
		door_free(d);
		return rc;
	}
	group->door = d;
	return publish(group, &d->card);
}

void door_close(tern_group *group)
{
	struct door *d = group->door;
	uint64_t one = 1;

	if (!d)
		return;
	while (write(d->stop, &one, sizeof(one)) < 0 && errno == EINTR)
		;
	pthread_join(d->thread, NULL);
	door_free(d);
	group->door = NULL;
}
