/* SPDX-License-Identifier: Apache-2.0 */
/* Where newcomers knock. A thread that sleeps until somebody does: what it is told it keeps beside
 * what is in use, and the caller's thread takes it over when a view says so. Strangers are shown
 * out, and hold up nobody but each other. */
#include "group/join.h"

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
#include "group/join_wire.h"
#include "group/members_inside.h"

#define CALLERS_MOST 64 /* that have said nothing yet: the oldest makes room for the next */
#define NOBODY (-1)

struct kept_window {
	uint64_t number;
	struct window *window;
	struct kept_window *next;
};

/* Who has entered, and is no member yet. */
struct guest {
	int socket; /* -1: it has hung up, and is kept all the same */
	uint64_t nonce;
	int lifeline;
	struct window *board;
	struct fd_passing_address address;
	struct kept_window *windows;
	bool ready;
};

struct door {
	tern_group *group;
	pthread_t thread;
	pthread_mutex_t lock; /* of all that follows, and of the group's offers and lifelines */
	int listener, stop;
	struct join_card card;
	struct introduction me;
	struct guest **guests; /* [R] by the place that they want; NULL: nobody */
	int kept;              /* the place of the one that is kept for the view to come; NOBODY */
	struct view view;      /* that the group acts on */
	bool shut;
	int callers[CALLERS_MOST]; /* the thread's own from here on; -1 */
	unsigned int nr_called;
	struct pollfd *polls; /* [2 + CALLERS_MOST + R] */
};

/* ---- guests: with the lock held -------------------------------------------------------------- */

static void guest_free(struct guest *g)
{
	if (g->socket >= 0)
		close(g->socket);
	if (g->lifeline >= 0)
		close(g->lifeline);
	window_drop(g->board);
	while (g->windows) {
		struct kept_window *w = g->windows;

		g->windows = w->next;
		window_drop(w->window);
		free(w);
	}
	free(g);
}

static void see_out(struct door *d, int place)
{
	struct guest *g = d->guests[place];

	if (!g)
		return;
	if (place == d->kept) {
		if (g->socket >= 0)
			close(g->socket);
		g->socket = -1;
		return;
	}
	guest_free(g);
	d->guests[place] = NULL;
}

static struct kept_window *window_of(const struct guest *g, uint64_t number)
{
	struct kept_window *w = g->windows;

	while (w && w->number != number)
		w = w->next;
	return w;
}

static bool has_all_windows(const tern_group *group, const struct guest *g)
{
	for (const struct join_offer *o = group->offers; o; o = o->next)
		if (!window_of(g, o->number))
			return false;
	return true;
}

/* ---- answers --------------------------------------------------------------------------------- */

static int refuse(struct join_message *m, int rc)
{
	char text[JOIN_TEXT];

	snprintf(text, sizeof(text), "%s", tern_last_error());
	memcpy(m->text, text, sizeof(text));
	return rc;
}

/* A member that has died, and nobody has noticed: a change is due. */
static bool is_leaving(struct door *d, uint32_t place)
{
	if (!group_has_died(d->group, place))
		return false;
	board_want(d->group->members->board, d->view.number + 1);
	return true;
}

static int check_place(struct door *d, const struct introduction *who)
{
	uint32_t place = (uint32_t)who->rank;
	int rc;

	if (who->nr_ranks != d->me.nr_ranks || who->rank < 0 || who->rank >= d->me.nr_ranks)
		return fail(TERN_ERR_MISMATCH, "it says it is rank %d of %d; the group has %d",
			who->rank, who->nr_ranks, d->me.nr_ranks);
	rc = introduce_check(&d->me, who, who->rank);
	if (rc)
		return rc;
	if (d->shut)
		return fail(TERN_ERR_EXPELLED, "it is no member any more itself");
	if (set_has(&d->view.alive, place) && is_leaving(d, place))
		return JOIN_LATER;
	if (set_has(&d->view.alive, place))
		return fail(TERN_ERR_STATE,
			"rank %u is a member of view %llu and lives: its place is not vacant",
			place, (unsigned long long)d->view.number);
	if (strncmp(who->node, d->me.node, NODE_TEXT))
		return fail(TERN_ERR_UNSUPPORTED,
			"rank %u comes from another node; newcomers have to be on the members'",
			place);
	if (!memcmp(who->process, d->me.process, sizeof(d->me.process)) && who->pid == d->me.pid)
		return fail(TERN_ERR_UNSUPPORTED,
			"rank %u comes as a thread of a member's process; it has to be another "
			"process",
			place);
	return 0;
}

static bool has_hung_up(const struct guest *g)
{
	struct pollfd p = {.fd = g->socket, .events = POLLIN};

	return g->socket < 0 || (poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLERR)));
}

/* The messages' descriptors: lifeline and board, which become the guest's. */
static int keep_guest(struct door *d, int socket, const struct join_message *m, const int *fds)
{
	int place = m->enter.who.rank, rc;
	struct guest *g = d->guests[place];

	if (g && (place == d->kept || !has_hung_up(g)))
		return JOIN_LATER;
	see_out(d, place);
	g = calloc(1, sizeof(*g));
	if (!g)
		return fail(TERN_ERR_NOMEM, "no memory for a newcomer");
	g->socket = g->lifeline = -1;
	rc = window_map(place, fds[1], sizeof(struct board), &g->board);
	if (rc) {
		guest_free(g);
		return rc;
	}
	close(fds[1]);
	g->lifeline = fds[0];
	g->socket = socket;
	g->nonce = m->nonce;
	g->address = m->enter.who.address;
	d->guests[place] = g;
	return 0;
}

static int describe_group(const struct door *d, struct join_message *m)
{
	m->enter.who = d->me;
	m->enter.view = d->view;
	m->nr = 0;
	for (const struct join_offer *o = d->group->offers; o; o = o->next) {
		if (m->nr == JOIN_MOST_EXCHANGES)
			return fail(TERN_ERR_UNSUPPORTED,
				"the group has more than %d exchanges; nobody can join it then",
				JOIN_MOST_EXCHANGES);
		m->enter.numbers[m->nr++] = o->number;
	}
	return 0;
}

/* 0 or JOIN_LATER or an error; with 0 socket and descriptors are the guest's. */
static int enter(struct door *d, int socket, struct join_message *m, const int *fds)
{
	int rc = check_place(d, &m->enter.who);

	if (!rc && m->enter.silence_ms != (uint64_t)d->group->silence_ms)
		rc = fail(TERN_ERR_MISMATCH, "silence_ms is %llu; the members have %d",
			(unsigned long long)m->enter.silence_ms, d->group->silence_ms);
	if (!rc && (fds[0] < 0 || fds[1] < 0))
		rc = fail(TERN_ERR_NOMEM, "no place for a newcomer's descriptors in this process");
	rc = rc ? rc : keep_guest(d, socket, m, fds);
	return rc ? rc : describe_group(d, m);
}

static const struct join_offer *offer_of(const tern_group *group, uint64_t number)
{
	const struct join_offer *o = group->offers;

	while (o && o->number != number)
		o = o->next;
	if (!o)
		fail(TERN_ERR_STATE,
			"members have made or destroyed exchanges meanwhile: join again");
	return o;
}

static int compare(const struct door *d, const struct join_message *m)
{
	const struct join_offer *o = offer_of(d->group, m->number);

	if (!o)
		return TERN_ERR_STATE;
	for (int i = 0; i < o->nr_settings && i < (int)m->nr; i++)
		if (o->settings[i].value != m->settings[i])
			return fail(TERN_ERR_MISMATCH,
				"the newcomer has %s %llu; the members have %llu",
				o->settings[i].name, (unsigned long long)m->settings[i],
				(unsigned long long)o->settings[i].value);
	return (int)m->nr == o->nr_settings
		       ? 0
		       : fail(TERN_ERR_MISMATCH, "%u settings and not %d", m->nr, o->nr_settings);
}

static int keep_window(
	const struct door *d, struct guest *g, int place, const struct join_message *m, int fd)
{
	const struct join_offer *o = offer_of(d->group, m->number);
	struct kept_window *w;
	int rc;

	if (!o)
		return TERN_ERR_STATE;
	if (fd < 0 || window_of(g, m->number))
		return fail(TERN_ERR_PROTOCOL, "a window that is none, or comes twice");
	w = calloc(1, sizeof(*w));
	if (!w)
		return fail(TERN_ERR_NOMEM, "no memory for a newcomer");
	rc = window_map(place, fd, o->window->bytes, &w->window);
	if (rc) {
		window_drop(w->window);
		free(w);
		return rc;
	}
	w->number = m->number;
	w->next = g->windows;
	g->windows = w;
	return 0;
}

static int get_ready(const struct door *d, struct guest *g, struct join_message *m)
{
	if (!has_all_windows(d->group, g))
		return fail(TERN_ERR_STATE,
			"the newcomer has not made all exchanges that the members have, or they "
			"have made one meanwhile");
	g->ready = true;
	m->number = d->group->round;
	return 0;
}

/* The caller's thread sees it at its next wait, and tells the others. */
static void want_change(const struct door *d)
{
	struct members *m = d->group->members;
	uint64_t none = 0;

	atomic_compare_exchange_strong(
		&m->board->noticed_ns, &none, scheduler_now(d->group->scheduler));
	board_want(m->board, d->view.number + 1);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static bool answer(int socket, struct join_message *m, int rc, const int *fds, int nr_fds)
{
	m->rc = rc < 0 ? refuse(m, rc) : rc;
	return local_send(socket, m, sizeof(*m), fds, rc ? 0 : nr_fds);
}

/* True: the caller is done with. */
static bool hear_caller(struct door *d, int socket)
{
	struct join_message m;
	struct local_message came;
	int rc, own[LOCAL_FDS];

	if (!local_receive(socket, &m, sizeof(m), &came))
		return false;
	if (came.bytes != sizeof(m) || !came.whole || m.magic != JOIN_MAGIC ||
		m.kind != JOIN_ENTER ||
		memcmp(m.secret, d->card.address.secret, sizeof(m.secret)) != 0) {
		local_close_fds(came.fds);
		close(socket);
		return true;
	}
	pthread_mutex_lock(&d->lock);
	rc = enter(d, socket, &m, came.fds);
	own[0] = d->group->own_lifeline;
	own[1] = d->group->members->windows[d->group->rank]->fd;
	if (!answer(socket, &m, rc, own, 2) && !rc)
		see_out(d, m.enter.who.rank);
	pthread_mutex_unlock(&d->lock);
	if (rc) {
		local_close_fds(came.fds);
		close(socket);
	}
	return true;
}

/* False: it is to go. */
static bool serve(struct door *d, struct guest *g, int place, struct join_message *m, int fd)
{
	const struct join_offer *o;
	int rc;

	switch (m->kind) {
	case JOIN_SETTINGS:
		return answer(g->socket, m, compare(d, m), NULL, 0);
	case JOIN_WINDOW:
		rc = keep_window(d, g, place, m, fd);
		o = rc ? NULL : offer_of(d->group, m->number);
		return answer(g->socket, m, rc, o ? &o->window->fd : NULL, o ? 1 : 0);
	case JOIN_READY:
		return answer(g->socket, m, get_ready(d, g, m), NULL, 0);
	case JOIN_GO:
		if (g->ready && !d->group->members->makes)
			want_change(d);
		return true;
	default:
		return false;
	}
}

static void hear_guest(struct door *d, int place)
{
	struct guest *g = d->guests[place];
	struct join_message m;
	struct local_message came;
	bool stays = false;

	if (!g || g->socket < 0 || !local_receive(g->socket, &m, sizeof(m), &came))
		return;
	if (came.bytes == sizeof(m) && came.whole && m.magic == JOIN_MAGIC)
		stays = serve(d, g, place, &m, came.fds[0]);
	local_close_fds(came.fds);
	if (!stays)
		see_out(d, place);
}

static void take_callers(struct door *d)
{
	for (int i = 0; i < CALLERS_MOST; i++) {
		int *place, s = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (s < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
			poll(NULL, 0, 20); /* it would be ready again at once */
		if (s < 0)
			return;
		if (!local_same_user(s)) {
			close(s);
			continue;
		}
		if (hear_caller(d, s))
			continue;
		place = &d->callers[d->nr_called++ % CALLERS_MOST];
		if (*place >= 0)
			close(*place);
		*place = s;
	}
}

static int fill_polls(struct door *d)
{
	int nr = 0;

	d->polls[nr++] = (struct pollfd){.fd = d->stop, .events = POLLIN};
	d->polls[nr++] = (struct pollfd){.fd = d->listener, .events = POLLIN};
	for (int i = 0; i < CALLERS_MOST; i++)
		d->polls[nr++] = (struct pollfd){.fd = d->callers[i], .events = POLLIN};
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
			if (d->callers[i] >= 0 && d->polls[2 + i].revents &&
				hear_caller(d, d->callers[i]))
				d->callers[i] = -1;
		pthread_mutex_lock(&d->lock);
		for (int r = 0; r < d->me.nr_ranks; r++)
			if (d->polls[2 + CALLERS_MOST + r].revents)
				hear_guest(d, r);
		pthread_mutex_unlock(&d->lock);
		if (d->polls[1].revents)
			take_callers(d);
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

		if (g && g->ready && !has_hung_up(g) && has_all_windows(group, g) &&
			!set_has(&d->view.alive, (uint32_t)r) && !group->members->makes)
			d->kept = r;
	}
	if (d->kept != NOBODY)
		*nonce = d->guests[d->kept]->nonce;
	pthread_mutex_unlock(&d->lock);
	return d->kept;
}

static void take_over(struct door *d, uint32_t place, uint64_t gathering)
{
	tern_group *group = d->group;
	struct guest *g = d->guests[place];
	struct peer *peer = &group->peers[place];

	if (peer->lifeline >= 0)
		close(peer->lifeline);
	*peer = (struct peer){
		.path = TERN_PATH_MAPPED, .node = peer->node, .lifeline = g->lifeline, .line = -1};
	group->guests[place].address = g->address;
	members_replace(group, place, g->board, gathering);
	g->lifeline = -1;
	g->board = NULL;
	for (struct join_offer *o = group->offers; o; o = o->next) {
		struct kept_window *w = window_of(g, o->number);

		o->replace(o->ctx, place, w->window);
		w->window = NULL;
	}
	guest_free(g);
	d->guests[place] = NULL;
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
	if (view->newcomer && (int)view->newcomer - 1 == place)
		take_over(d, (uint32_t)place, view->gathering);
	else if (place != NOBODY && d->guests[place]->socket < 0)
		see_out(d, place);
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
		see_out(d, r);
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
		if (d->callers[i] >= 0)
			close(d->callers[i]);
	d->kept = NOBODY;
	for (int r = 0; d->guests && r < d->me.nr_ranks; r++)
		see_out(d, r);
	if (d->listener >= 0)
		close(d->listener);
	if (d->stop >= 0)
		close(d->stop);
	pthread_mutex_destroy(&d->lock);
	free(d->guests);
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
	d->guests = calloc(nr, sizeof(struct guest *));
	d->polls = calloc(2 + CALLERS_MOST + nr, sizeof(*d->polls));
	if (!d->guests || !d->polls)
		return fail(TERN_ERR_NOMEM, "no memory for newcomers to %d ranks", group->nr_ranks);
	rc = local_listen(&d->card.address, &d->listener);
	if (rc)
		return rc;
	d->stop = eventfd(0, EFD_CLOEXEC);
	return d->stop < 0 ? fail_errno("eventfd") : 0;
}

int door_open(tern_group *group)
{
	struct door *d;
	int rc;

	if (group->engine)
		return fail(TERN_ERR_UNSUPPORTED,
			"a rendezvous, and the ranks are on %d nodes%s: newcomers can join on one "
			"node alone",
			group->nr_nodes, group->engine_forced ? " to the engine" : "");
	d = calloc(1, sizeof(*d));
	if (!d)
		return fail(TERN_ERR_NOMEM, "no memory for newcomers");
	pthread_mutex_init(&d->lock, NULL);
	d->listener = d->stop = d->kept = NOBODY;
	memset(d->callers, -1, sizeof(d->callers));
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
