/* SPDX-License-Identifier: Apache-2.0 */
/* What newcomers bring is kept beside what is in use, until a view has them; or they go. All of it
 * is done with the door's lock held. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "group/door_inside.h"
#include "group/line.h"

static void close_one(int fd)
{
	if (fd >= 0)
		close(fd);
}

/* ---- coming and going ------------------------------------------------------------------------ */

static void kept_window_free(struct kept_window *w)
{
	window_drop(w->window);
	tern_remote_forget(w->remote, 0);
	tern_region_deregister(w->key, 0);
	free(w);
}

/* The engine first: nothing of it arrives under its keys any more, and nobody looks at its
 * lifeline. */
static void guest_free(const struct door *d, int place, struct guest *g)
{
	if (g->admitted)
		engine_let_go(d->group->engine, (uint32_t)place, "it did not join after all");
	if (g->admitted && g->coming)
		tell_forget(d->group, (uint32_t)place);
	close_one(g->socket);
	close_one(g->lifeline);
	close_one(g->line);
	window_drop(g->board);
	while (g->windows) {
		struct kept_window *w = g->windows;

		g->windows = w->next;
		kept_window_free(w);
	}
	free(g->coming);
	free(g);
}

void door_see_out(struct door *d, int place)
{
	struct guest *g = d->guests[place];

	if (!g)
		return;
	if (place == d->kept) {
		close_one(g->socket);
		g->socket = -1;
		return;
	}
	guest_free(d, place, g);
	d->guests[place] = NULL;
}

bool guest_has_hung_up(const struct guest *g)
{
	struct pollfd p = {.fd = g->socket, .events = POLLIN | POLLRDHUP};

	return g->socket < 0 ||
	       (poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLRDHUP | POLLERR)));
}

static struct kept_window *window_of(const struct guest *g, uint64_t number)
{
	struct kept_window *w = g->windows;

	while (w && w->number != number)
		w = w->next;
	return w;
}

bool guest_has_all(const tern_group *group, const struct guest *g)
{
	for (const struct join_offer *o = group->offers; o; o = o->next)
		if (!window_of(g, o->number))
			return false;
	return true;
}

void guest_take_over(struct door *d, uint32_t place, uint64_t gathering)
{
	tern_group *group = d->group;
	struct guest *g = d->guests[place];
	struct peer *peer = &group->peers[place];

	close_one(peer->lifeline);
	close_one(peer->line);
	*peer = (struct peer){.path = g->coming ? TERN_PATH_ENGINE : TERN_PATH_MAPPED,
		.node = peer->node,
		.lifeline = g->lifeline,
		.line = g->line};
	group->guests[place].address = g->address;
	members_replace(group, place, g->board, gathering);
	for (struct join_offer *o = group->offers; o; o = o->next) {
		struct kept_window *w = window_of(g, o->number);

		if (g->coming)
			o->replace_far(o->ctx, place, w->key, w->remote);
		else
			o->replace(o->ctx, place, w->window);
		w->window = NULL;
		w->key = NULL;
		w->remote = NULL;
	}
	g->lifeline = g->line = -1;
	g->board = NULL;
	g->admitted = false; /* as a guest: it is a peer as any other */
	guest_free(d, (int)place, g);
	d->guests[place] = NULL;
}

/* ---- entering -------------------------------------------------------------------------------- */

/* A member that may have died, and nobody has noticed. Where it is known to have a change is due;
 * of another node the newcomer has asked the one that has the place itself. */
static bool is_leaving(struct door *d, uint32_t place)
{
	const tern_group *group = d->group;
	bool is_far = group->peers[place].node != group->peers[group->rank].node;
	bool lost = is_far ? line_look(group, place) == LINE_ENDED ||
				     engine_peer_down(group->engine, place, NULL)
			   : group_has_died(group, place);

	if (lost)
		board_want(group->members->board, d->view.number + 1);
	return lost || is_far;
}

/* Where a place is cannot change: exchanges have their layouts. */
static int check_node(const struct door *d, const struct introduction *who, bool is_far)
{
	const tern_group *group = d->group;
	bool here = group->peers[who->rank].node == group->peers[group->rank].node;

	if (!strncmp(who->node, d->me.node, NODE_TEXT) == here && is_far != here)
		return 0;
	return fail(TERN_ERR_UNSUPPORTED,
		"rank %d comes from %s, and its place is on %s: newcomers come to the node of "
		"those "
		"that live there, or to one where nobody lives",
		who->rank, here ? "another node" : "this node", here ? "this node" : "another");
}

static int check_place(struct door *d, const struct introduction *who, bool is_far)
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
	if (!memcmp(who->process, d->me.process, sizeof(d->me.process)) && who->pid == d->me.pid)
		return fail(TERN_ERR_UNSUPPORTED,
			"rank %u comes as a thread of a member's process; it has to be another "
			"process",
			place);
	return check_node(d, who, is_far);
}

/* Socket and coming, and the messages' descriptors, lifeline and board, become the guest's. */
static int keep_guest(struct door *d, const struct caller *caller, uint64_t nonce,
	const struct introduction *who, const int *fds)
{
	int place = who->rank, rc;
	struct guest *g = d->guests[place];

	if (nonce == d->let_in[place])
		return JOIN_LATER; /* it will hear of that; or was left out again, and will of that
				    */
	if (g && (place == d->kept || !guest_has_hung_up(g)))
		return JOIN_LATER;
	door_see_out(d, place);
	g = calloc(1, sizeof(*g));
	if (!g)
		return fail(TERN_ERR_NOMEM, "no memory for a newcomer");
	g->socket = g->lifeline = g->line = -1;
	rc = caller->coming ? 0 : window_map(place, fds[1], sizeof(struct board), &g->board);
	if (rc) {
		guest_free(d, place, g);
		return rc;
	}
	if (!caller->coming)
		close(fds[1]);
	g->lifeline = fds[0];
	g->socket = caller->socket;
	g->coming = caller->coming;
	g->nonce = nonce;
	g->address = who->address;
	d->guests[place] = g;
	return 0;
}

static int describe_group(const struct door *d, uint32_t place, struct join_message *m)
{
	const tern_group *group = d->group;

	m->enter.who = d->me;
	m->enter.view = d->view;
	m->nr = 0;
	for (const struct join_offer *o = group->offers; o; o = o->next) {
		if (m->nr == JOIN_MOST_EXCHANGES)
			return fail(TERN_ERR_UNSUPPORTED,
				"the group has more than %d exchanges; nobody can join it then",
				JOIN_MOST_EXCHANGES);
		m->enter.numbers[m->nr++] = o->number;
	}
	for (int r = 0; r < group->nr_ranks; r++)
		m->enter.node_of[r] = (uint16_t)group->peers[r].node;
	m->enter.has_engine = group->engine != NULL;
	if (!group->engine)
		return 0;
	m->enter.network = engine_network_of(group->engine, place);
	engine_networks(group->engine, &m->enter.networks);
	return 0;
}

/* 0 or JOIN_LATER or an error; with 0 socket and descriptors are the guest's. */
static int enter(
	struct door *d, const struct caller *caller, struct join_message *m, const int *fds)
{
	struct introduction who = m->enter.who;
	int rc = check_place(d, &who, caller->coming);

	if (!rc && m->enter.silence_ms != (uint64_t)d->group->silence_ms)
		rc = fail(TERN_ERR_MISMATCH, "silence_ms is %llu; the members have %d",
			(unsigned long long)m->enter.silence_ms, d->group->silence_ms);
	if (!rc && !caller->coming && (fds[0] < 0 || fds[1] < 0))
		rc = fail(TERN_ERR_NOMEM, "no place for a newcomer's descriptors in this process");
	rc = rc ? rc : describe_group(d, (uint32_t)who.rank, m);
	return rc ? rc : keep_guest(d, caller, m->nonce, &who, fds);
}

/* ---- answers --------------------------------------------------------------------------------- */

static int refuse(struct join_message *m, int rc)
{
	char text[JOIN_TEXT];

	snprintf(text, sizeof(text), "%s", tern_last_error());
	memcpy(m->text, text, sizeof(text));
	return rc;
}

static bool answer(
	int socket, bool is_far, struct join_message *m, int rc, const int *fds, int nr_fds)
{
	m->rc = rc < 0 ? refuse(m, rc) : rc;
	return join_send(socket, is_far, m, fds, rc || is_far ? 0 : nr_fds);
}

static bool hear_enter(
	struct door *d, struct caller *caller, struct join_message *m, const int *fds)
{
	struct window *board = d->group->members->windows[d->group->rank];
	int own[LOCAL_FDS] = {d->group->own_lifeline, board->fd}, place = m->enter.who.rank;
	int rc = enter(d, caller, m, fds);

	if (!answer(caller->socket, caller->coming, m, rc, own, 2) && !rc)
		door_see_out(d, place);
	return !rc;
}

/* On which nothing is said any more, once it is answered. */
static bool hear_line(struct door *d, struct caller *caller, struct join_message *m)
{
	int place = m->rank;
	struct guest *g = place >= 0 && place < d->me.nr_ranks ? d->guests[place] : NULL;

	if (!g || !g->coming || !caller->coming || g->nonce != m->nonce || g->line >= 0 ||
		!answer(caller->socket, true, m, 0, NULL, 0))
		return false;
	g->line = caller->socket;
	free(caller->coming);
	return true;
}

bool door_hear_first(struct door *d, struct caller *caller, struct join_message *m, const int *fds)
{
	if (m->kind == JOIN_ENTER)
		return hear_enter(d, caller, m, fds);
	return m->kind == JOIN_LINE && hear_line(d, caller, m);
}

/* ---- what guests bring ----------------------------------------------------------------------- */

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

static int compare(const struct door *d, struct join_message *m)
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
	if ((int)m->nr != o->nr_settings)
		return fail(TERN_ERR_MISMATCH, "%u settings and not %d", m->nr, o->nr_settings);
	m->prefix = o->prefix;
	return 0;
}

/* A place for what it brings of this exchange; with 0 it is the guest's. */
static int new_window(
	const struct door *d, const struct guest *g, uint64_t number, struct kept_window **out)
{
	if (!offer_of(d->group, number))
		return TERN_ERR_STATE;
	if (window_of(g, number))
		return fail(TERN_ERR_PROTOCOL, "a window that comes twice");
	*out = calloc(1, sizeof(**out));
	if (!*out)
		return fail(TERN_ERR_NOMEM, "no memory for a newcomer");
	(*out)->number = number;
	return 0;
}

static int keep_window(struct guest *g, struct kept_window *w, int rc)
{
	if (rc) {
		kept_window_free(w);
		return rc;
	}
	w->next = g->windows;
	g->windows = w;
	return 0;
}

static int take_window(
	const struct door *d, struct guest *g, int place, const struct join_message *m, int fd)
{
	struct kept_window *w;
	int rc = new_window(d, g, m->number, &w);

	if (rc)
		return rc;
	if (fd < 0 || g->coming)
		rc = fail(TERN_ERR_PROTOCOL, "a window that is none");
	rc = rc ? rc
		: window_map(place, fd, offer_of(d->group, m->number)->window->bytes, &w->window);
	return keep_window(g, w, rc);
}

static int take_keys(const struct door *d, struct guest *g, int place, struct join_message *m)
{
	const struct window *own;
	struct kept_window *w;
	int rc = new_window(d, g, m->number, &w);

	if (rc)
		return rc;
	own = offer_of(d->group, m->number)->window;
	if (!g->admitted || !g->coming || m->window.rank != (uint32_t)place)
		rc = fail(TERN_ERR_PROTOCOL, "keys of one that is not connected, or another's");
	rc = rc ? rc : tern_engine_import(d->group->engine, &m->window, &w->remote);
	if (!rc && m->window.bytes != own->bytes)
		rc = fail(TERN_ERR_MISMATCH, "a window of %llu bytes in place of %llu",
			(unsigned long long)m->window.bytes, (unsigned long long)own->bytes);
	rc = rc ? rc : tern_engine_register(d->group->engine, own->base, own->bytes, &w->key);
	rc = rc ? rc : tern_region_descriptor(w->key, &m->window);
	return keep_window(g, w, rc);
}

static int connect_guest(const struct door *d, struct guest *g, int place, struct join_message *m)
{
	tern_engine *engine = d->group->engine;
	uint32_t peer = (uint32_t)place;
	int rc = 0;

	if (!engine || g->admitted || (g->coming && g->line < 0))
		return fail(TERN_ERR_PROTOCOL, "it connects where it cannot");
	if (g->coming)
		rc = tell_expect(d->group, peer);
	if (!rc) {
		rc = engine_admit(
			engine, peer, engine_network_of(engine, peer), &m->engine, g->lifeline);
		g->admitted = !rc;
		if (rc && g->coming)
			tell_forget(d->group, peer);
	}
	return rc ? rc : engine_own_address(engine, &m->engine);
}

static int get_ready(const struct door *d, struct guest *g, int place, struct join_message *m)
{
	const tern_group *group = d->group;

	if (!guest_has_all(group, g))
		return fail(TERN_ERR_STATE,
			"the newcomer has not made all exchanges that the members have, or they "
			"have made one meanwhile");
	if (group->engine && (!g->admitted || !engine_has_met(group->engine, (uint32_t)place)))
		return JOIN_LATER;
	g->ready = true;
	m->number = group->round;
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

bool door_serve(struct door *d, int place, struct join_message *m, int fd)
{
	struct guest *g = d->guests[place];
	const struct join_offer *o;
	int rc;

	switch (m->kind) {
	case JOIN_CONNECT:
		rc = connect_guest(d, g, place, m);
		break;
	case JOIN_SETTINGS:
		rc = compare(d, m);
		break;
	case JOIN_WINDOW:
		rc = take_window(d, g, place, m, fd);
		o = rc ? NULL : offer_of(d->group, m->number);
		return answer(g->socket, g->coming, m, rc, o ? &o->window->fd : NULL, o ? 1 : 0);
	case JOIN_KEYS:
		rc = take_keys(d, g, place, m);
		break;
	case JOIN_READY:
		rc = get_ready(d, g, place, m);
		break;
	case JOIN_LOOK:
		m->view = d->view;
		rc = 0;
		break;
	case JOIN_GO:
		if (g->ready && !d->group->members->makes)
			want_change(d);
		return true;
	default:
		return false;
	}
	return answer(g->socket, g->coming, m, rc, NULL, 0);
}
