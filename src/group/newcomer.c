/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that joins: it asks each member's door (join.h), and stays outside of all that is
 * collective until a view has it. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "group/introduce.h"
#include "group/join.h"
#include "group/join_wire.h"
#include "group/members_inside.h"
#include "group/select_network.h"

#define NAP_NS 500000
#define END_MS 1000          /* of a process, once its sockets are closed */
#define GO_AGAIN_NS 20000000 /* some member was in a call that lets nobody in */
#define GONE                                                                                       \
	2 /* of an answer that did not come: the member's process has ended, or shown us out       \
	   */

struct newcomer {
	uint64_t nonce, deadline_ns;
	int *sockets; /* [R] to members that have let it enter; -1 */
	bool *ready;  /* [R] and have all that they need */
	bool known;   /* the view */
	uint32_t round;
	uint64_t numbers[JOIN_MOST_EXCHANGES]; /* of the exchanges that are there to be made */
	uint32_t nr_numbers, next;
	struct join_message message; /* one at a time: asked, and answered */
};

static bool is_late(const struct newcomer *n)
{
	return clock_ns() > n->deadline_ns;
}

static void set_deadline(tern_group *group)
{
	group->newcomer->deadline_ns = clock_ns() + (uint64_t)group->wait_ms * 1000000;
}

static int nap_ms(const struct newcomer *n)
{
	uint64_t now = clock_ns();

	return now >= n->deadline_ns ? 0 : (int)((n->deadline_ns - now) / 1000000) + 1;
}

static bool has_entered(const struct newcomer *n, int rank)
{
	return n->sockets[rank] >= 0;
}

static void leave_door(struct newcomer *n, int rank)
{
	if (n->sockets[rank] >= 0)
		close(n->sockets[rank]);
	n->sockets[rank] = -1;
	n->ready[rank] = false;
}

/* ---- asking ---------------------------------------------------------------------------------- */

static struct join_message *new_message(struct newcomer *n, enum join_kind kind)
{
	memset(&n->message, 0, sizeof(n->message));
	n->message.magic = JOIN_MAGIC;
	n->message.kind = kind;
	n->message.nonce = n->nonce;
	return &n->message;
}

/* n->message is sent, and then the answer. 0, JOIN_LATER, GONE, or an error. */
static int ask(struct newcomer *n, int socket, int rank, const int *fds, int nr_fds, int *answered)
{
	struct join_message *m = &n->message;
	struct pollfd p = {.fd = socket, .events = POLLIN};
	struct local_message came;
	uint32_t kind = m->kind;
	int rc;

	answered[0] = answered[1] = -1;
	if (!local_send(socket, m, sizeof(*m), fds, nr_fds))
		return GONE;
	do {
		rc = poll(&p, 1, nap_ms(n));
		if (rc < 0 && errno != EINTR)
			return fail_errno("waiting for rank %d's answer", rank);
		if (rc == 0)
			return fail(TERN_ERR_TIMEOUT,
				"rank %d has let this one enter, and does not answer", rank);
	} while (!local_receive(socket, m, sizeof(*m), &came));
	memcpy(answered, came.fds, sizeof(came.fds));
	if (came.bytes == 0)
		return GONE;
	if (m->rc < 0)
		m->text[JOIN_TEXT - 1] = 0;
	if (came.bytes != sizeof(*m) || !came.whole || m->magic != JOIN_MAGIC || m->kind != kind)
		return fail(TERN_ERR_PROTOCOL, "rank %d answers what is no answer", rank);
	return m->rc < 0 ? fail(m->rc, "rank %d: %s", rank, m->text) : m->rc;
}

/* ---- entering -------------------------------------------------------------------------------- */

static int find_card(tern_group *group, int rank, struct join_card *card)
{
	const struct tern_rendezvous *r = &group->rendezvous;
	size_t bytes = sizeof(*card);
	char key[32];
	int rc;

	snprintf(key, sizeof(key), JOIN_KEY, rank);
	fail(0, "%s", "");
	rc = r->get(r->ctx, key, card, &bytes, nap_ms(group->newcomer));
	if (rc == 1)
		return GONE;
	if (rc)
		return fail(TERN_ERR_BOOTSTRAP, "rendezvous.get(\"%s\") returned %d%s%.200s", key,
			rc, *tern_last_error() ? ": " : "", tern_last_error());
	if (bytes != sizeof(*card) || card->abi != group->me->abi)
		return fail(TERN_ERR_MISMATCH,
			"\"%s\" of the rendezvous is not of this version of Tern", key);
	return 0;
}

/* The first one says who the members are, and what exchanges there are. */
static int take_in(tern_group *group, int rank, const int *fds)
{
	struct newcomer *n = group->newcomer;
	struct members *m = group->members;
	const struct join_message *told = &n->message;
	struct window *board = NULL;
	int rc = introduce_check(group->me, &told->enter.who, rank);

	if (!rc && (fds[0] < 0 || fds[1] < 0))
		rc = fail(TERN_ERR_NOMEM, "no place for rank %d's descriptors", rank);
	rc = rc ? rc : window_map(rank, fds[1], sizeof(struct board), &board);
	if (rc) {
		window_drop(board);
		return rc;
	}
	window_drop(m->windows[rank]);
	m->windows[rank] = board;
	if (group->peers[rank].lifeline >= 0)
		close(group->peers[rank].lifeline);
	group->peers[rank].lifeline = fds[0];
	group->guests[rank].address = told->enter.who.address;
	close(fds[1]);
	if (!n->known) {
		agreement_come(&m->agreement, &told->enter.view, n->nonce);
		memcpy(n->numbers, told->enter.numbers, sizeof(n->numbers));
		n->nr_numbers = told->nr;
		n->known = true;
	}
	return 0;
}

/* 0: it has; GONE: nobody is there; JOIN_LATER; or an error. */
static int enter(tern_group *group, int rank)
{
	struct newcomer *n = group->newcomer;
	const int own[] = {group->own_lifeline, group->members->windows[group->rank]->fd};
	struct join_card card;
	struct join_message *m;
	int rc = find_card(group, rank, &card), s, fds[LOCAL_FDS];

	if (rc)
		return rc;
	s = local_connect(&card.address);
	if (s < 0)
		return errno == ECONNREFUSED ? GONE
		       : errno == EAGAIN
			       ? JOIN_LATER
			       : fail_errno("connecting to rank %d on this machine", rank);
	m = new_message(n, JOIN_ENTER);
	memcpy(m->secret, card.address.secret, sizeof(m->secret));
	m->enter.who = *group->me;
	m->enter.silence_ms = (uint64_t)group->silence_ms;
	rc = ask(n, s, rank, own, 2, fds);
	if (rc == TERN_ERR_TIMEOUT)
		rc = JOIN_LATER; /* enter_all says how late it is */
	rc = rc ? rc : take_in(group, rank, fds);
	if (rc) {
		local_close_fds(fds);
		close(s);
		return rc;
	}
	n->sockets[rank] = s;
	return 0;
}

/* What members show by now: the view may have changed meanwhile. */
static int look_around(tern_group *group)
{
	struct members *m = group->members;
	struct agreement_record record;

	for (int r = 0; r < group->nr_ranks; r++)
		if (has_entered(group->newcomer, r) &&
			board_look(board_of(m, (uint32_t)r), &record))
			agreement_hear(&m->agreement, (uint32_t)r, &record);
	return agreement_step(&m->agreement);
}

static bool is_wanted(const tern_group *group, int rank)
{
	return rank != group->rank &&
	       (!group->newcomer->known || members_have(group, (uint32_t)rank));
}

/* -1: all members have let it enter. */
static int find_missing(const tern_group *group)
{
	for (int r = 0; r < group->nr_ranks; r++)
		if (is_wanted(group, r) && !has_entered(group->newcomer, r))
			return r;
	return -1;
}

/* In the order of their ranks: who waits for a place waits at the first. */
static int enter_once(tern_group *group)
{
	for (int r = 0; r < group->nr_ranks; r++) {
		int rc;

		if (!is_wanted(group, r) || has_entered(group->newcomer, r))
			continue;
		rc = enter(group, r);
		if (rc < 0 || rc == JOIN_LATER)
			return rc < 0 ? rc : 0;
	}
	return 0;
}

static int enter_all(tern_group *group)
{
	struct newcomer *n = group->newcomer;
	int rc, missing;

	for (;;) {
		rc = enter_once(group);
		if (rc)
			return rc;
		if (n->known && (look_around(group) & AGREEMENT_EXPELLED))
			return fail(TERN_ERR_STATE, "another one has taken the place of rank %d",
				group->rank);
		missing = find_missing(group);
		if (missing < 0)
			return 0;
		if (is_late(n))
			break;
		nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
	}
	if (!n->known)
		return fail(TERN_ERR_BOOTSTRAP,
			"rank %d waited %d ms for a member of the group to let it enter; none of "
			"%d has",
			group->rank, group->wait_ms, group->nr_ranks - 1);
	return fail(TERN_ERR_TIMEOUT,
		"rank %d waited %d ms to enter: rank %d does not let it in yet, as another one is "
		"about to take the place, or it has died and is a member still",
		group->rank, group->wait_ms, missing);
}

/* ---- exchanges ------------------------------------------------------------------------------- */

int newcomer_gather(tern_group *group, const void *mine, void *all, size_t bytes)
{
	memset(all, 0, (size_t)group->nr_ranks * bytes);
	memcpy((uint8_t *)all + (size_t)group->rank * bytes, mine, bytes);
	return 0;
}

/* A process that is being ended closes its sockets before others hear of its end. */
static bool has_died(const tern_group *group, int rank)
{
	struct pollfd p = {.fd = group->peers[rank].lifeline, .events = POLLIN};
	int wait_ms = nap_ms(group->newcomer);

	poll(&p, 1, wait_ms < END_MS ? wait_ms : END_MS);
	return group_has_died(group, (uint32_t)rank);
}

/* Who has died by now is not asked: it is no member of the view that this rank comes into. */
static int ask_all(tern_group *group, int (*one)(tern_group *group, int rank, void *ctx), void *ctx)
{
	struct newcomer *n = group->newcomer;

	for (int r = 0; r < group->nr_ranks; r++) {
		int rc = has_entered(n, r) ? one(group, r, ctx) : 0;

		if (rc == GONE && has_died(group, r))
			leave_door(n, r);
		else if (rc == GONE)
			return fail(TERN_ERR_STATE,
				"rank %d has shown this one out: members have made exchanges "
				"meanwhile, or it has left. Join again",
				r);
		else if (rc)
			return rc;
	}
	return 0;
}

struct compared {
	const struct setting *settings;
	int nr;
	uint64_t number;
};

static int compare_with(tern_group *group, int rank, void *ctx)
{
	const struct compared *c = ctx;
	struct newcomer *n = group->newcomer;
	struct join_message *m = new_message(n, JOIN_SETTINGS);
	int fds[LOCAL_FDS], rc;

	m->number = c->number;
	m->nr = (uint32_t)c->nr;
	for (int i = 0; i < c->nr; i++)
		m->settings[i] = c->settings[i].value;
	rc = ask(n, n->sockets[rank], rank, NULL, 0, fds);
	local_close_fds(fds);
	return rc;
}

int newcomer_compare(tern_group *group, const struct setting *settings, int nr_settings)
{
	struct newcomer *n = group->newcomer;
	struct compared c = {settings, nr_settings, n->numbers[n->next % JOIN_MOST_EXCHANGES]};
	int rc;

	if (n->next == n->nr_numbers)
		return fail(TERN_ERR_STATE,
			"rank %d joins a group whose members have %u elastic exchanges: this would "
			"be one more",
			group->rank, n->nr_numbers);
	if (nr_settings > JOIN_MOST_SETTINGS)
		return fail(TERN_ERR_UNSUPPORTED, "%d settings", nr_settings);
	set_deadline(group);
	rc = ask_all(group, compare_with, &c);
	group->round = (uint32_t)c.number - 1; /* windows_create counts on from there */
	return rc;
}

struct passed {
	int fd, *into; /* [R] */
	uint64_t number;
};

/* This rank's window of that exchange to the member, and *got from it. */
static int swap_windows(tern_group *group, int rank, uint64_t number, int fd, int *got)
{
	struct newcomer *n = group->newcomer;
	struct join_message *m = new_message(n, JOIN_WINDOW);
	int fds[LOCAL_FDS], rc;

	m->number = number;
	rc = ask(n, n->sockets[rank], rank, &fd, 1, fds);
	if (!rc && fds[0] < 0)
		rc = fail(TERN_ERR_NOMEM, "no place for rank %d's descriptor", rank);
	if (rc)
		local_close_fds(fds);
	else
		*got = fds[0];
	return rc;
}

static int pass_to(tern_group *group, int rank, void *ctx)
{
	struct passed *p = ctx;

	return swap_windows(group, rank, p->number, p->fd, &p->into[rank]);
}

int newcomer_pass_fd(tern_group *group, int fd)
{
	struct newcomer *n = group->newcomer;
	int *into = malloc((size_t)group->nr_ranks * sizeof(*into)), rc;
	struct passed p = {fd, into, group->round};

	if (!into)
		return fail(TERN_ERR_NOMEM, "no memory for %d descriptors", group->nr_ranks);
	memset(into, -1, (size_t)group->nr_ranks * sizeof(*into));
	set_deadline(group);
	rc = ask_all(group, pass_to, &p);
	n->next += !rc;
	for (int r = 0; r < group->nr_ranks; r++) {
		group->guests[r].fd = rc ? -1 : into[r];
		if (rc && into[r] >= 0)
			close(into[r]);
	}
	free(into);
	return rc;
}

/* ---- the way in ------------------------------------------------------------------------------ */

/* One that has become a member since: it gets what the others have. */
static int catch_up_with(tern_group *group, int rank)
{
	for (struct join_offer *o = group->offers; o; o = o->next) {
		struct window *window = NULL;
		int fd, rc = swap_windows(group, rank, o->number, o->window->fd, &fd);

		if (!rc) {
			rc = window_map(rank, fd, o->window->bytes, &window);
			close(fd);
		}
		if (rc) {
			window_drop(window);
			return rc;
		}
		o->replace(o->ctx, (uint32_t)rank, window);
	}
	return 0;
}

static int get_ready_with(tern_group *group, int rank, void *ctx)
{
	struct newcomer *n = group->newcomer;
	int fds[LOCAL_FDS], rc;

	(void)ctx;
	if (n->ready[rank])
		return 0;
	new_message(n, JOIN_READY);
	rc = ask(n, n->sockets[rank], rank, NULL, 0, fds);
	local_close_fds(fds);
	n->ready[rank] = !rc;
	if (!rc)
		n->round = (uint32_t)n->message.number;
	return rc;
}

/* To all, so that each hears it at its next wait. */
static void say_go(tern_group *group)
{
	struct newcomer *n = group->newcomer;

	for (int r = 0; r < group->nr_ranks; r++) {
		new_message(n, JOIN_GO);
		if (has_entered(n, r))
			local_send(n->sockets[r], &n->message, sizeof(n->message), NULL, 0);
	}
}

/* 0, or what keeps it out. */
static int get_ready(tern_group *group)
{
	struct newcomer *n = group->newcomer;
	int missing = find_missing(group), rc = 0;

	while (missing >= 0 && !rc) {
		rc = enter(group, missing);
		rc = rc ? rc : catch_up_with(group, missing);
		missing = find_missing(group);
	}
	if (!rc && n->next != n->nr_numbers)
		return fail(TERN_ERR_STATE,
			"rank %d has made %u of the %u elastic exchanges that the members have",
			group->rank, n->next, n->nr_numbers);
	return rc ? rc : ask_all(group, get_ready_with, NULL);
}

static int fail_entering(const tern_group *group)
{
	char list[128] = "";
	size_t at = 0;

	for (int r = 0; r < group->nr_ranks; r++)
		if (is_wanted(group, r) && !group->newcomer->ready[r] && at < sizeof(list) - 16)
			at += (size_t)snprintf(
				list + at, sizeof(list) - at, "%s%d", at ? ", " : "", r);
	return fail(TERN_ERR_TIMEOUT,
		"rank %d waited %d ms for the members of view %llu to let it in%s%s", group->rank,
		group->wait_ms, (unsigned long long)group->members->agreement.mine.view.number,
		at ? "; not ready: rank "
		   : "; all are ready, and not all have called "
		     "tern_group_view_change",
		list);
}

static int wait_for_entry(tern_group *group)
{
	struct newcomer *n = group->newcomer;
	uint64_t go_ns = 0;
	int news;

	for (;;) {
		int rc = 0;

		news = look_around(group);
		if (news & AGREEMENT_DECIDED)
			return 0;
		if (news & AGREEMENT_EXPELLED)
			return fail(TERN_ERR_STATE, "another one has taken the place of rank %d",
				group->rank);
		if (is_late(n))
			return fail_entering(group);
		if (clock_ns() >= go_ns) {
			rc = get_ready(group);
			if (!rc)
				say_go(group);
			go_ns = clock_ns() + GO_AGAIN_NS;
		}
		/* A door that has closed may mean that it is open: the next look tells. */
		if (rc < 0 && !(look_around(group) & AGREEMENT_DECIDED))
			return rc;
		nanosleep(&(struct timespec){.tv_nsec = NAP_NS / 10}, NULL);
	}
}

int newcomer_enter(tern_group *group)
{
	struct newcomer *n = group->newcomer;
	int rc;

	set_deadline(group);
	rc = wait_for_entry(group);
	if (rc)
		return rc;
	agreement_act(&group->members->agreement);
	group->round = n->round;
	members_begin(group);
	newcomer_close(group);
	return door_open(group);
}

void newcomer_close(tern_group *group)
{
	struct newcomer *n = group->newcomer;

	if (!n)
		return;
	for (int r = 0; n->sockets && r < group->nr_ranks; r++)
		leave_door(n, r);
	free(n->sockets);
	free(n->ready);
	free(n);
	group->newcomer = NULL;
}

/* ---- joining --------------------------------------------------------------------------------- */

static int newcomer_open(tern_group *group)
{
	size_t nr = (size_t)group->nr_ranks;
	struct newcomer *n = calloc(1, sizeof(*n));

	group->newcomer = n;
	if (n) {
		n->sockets = malloc(nr * sizeof(*n->sockets));
		n->ready = calloc(nr, sizeof(*n->ready));
	}
	if (!n || !n->sockets || !n->ready)
		return fail(TERN_ERR_NOMEM, "no memory to join %d ranks", group->nr_ranks);
	memset(n->sockets, -1, nr * sizeof(*n->sockets));
	if (getrandom(&n->nonce, sizeof(n->nonce), 0) != sizeof(n->nonce))
		return fail_errno("getrandom");
	n->nonce |= 1;
	return 0;
}

/* All are on this node, and mapped. */
static int make_peers(tern_group *group)
{
	struct members *m = group->members;
	int rc = introduce_guests(group);

	group->nr_nodes = 1;
	for (int r = 0; r < group->nr_ranks && !rc; r++) {
		group->peers[r].path = r == group->rank ? TERN_PATH_SELF : TERN_PATH_MAPPED;
		rc = window_make(sizeof(struct board), &m->windows[r]);
		if (!rc && r != group->rank) {
			close(m->windows[r]->fd); /* of who is no member: nobody looks there */
			m->windows[r]->fd = -1;
		}
	}
	group->peers[group->rank].same_process = group->peers[group->rank].beside = true;
	if (!rc)
		m->board = board_of(m, (uint32_t)group->rank);
	return rc;
}

static int check_join(const struct tern_group_config *config)
{
	if (!config->rendezvous.get)
		return fail(TERN_ERR_INVALID, "tern_group_join: there is no rendezvous");
	if (config->boot.nr_ranks > VIEW_MOST_RANKS)
		return fail(TERN_ERR_UNSUPPORTED, "an elastic group of %d ranks; at most %d",
			config->boot.nr_ranks, VIEW_MOST_RANKS);
	return config->force_engine ? fail(TERN_ERR_UNSUPPORTED,
					      "force_engine, and a group that is joined: its ranks "
					      "are on one node")
				    : 0;
}

static int join(tern_group *group, const struct tern_group_config *config)
{
	struct introduction me;
	int rc = introduce_self(group, config, &me);

	if (!rc && group->engine_forced)
		rc = fail(TERN_ERR_UNSUPPORTED, "TERN_FORCE_ENGINE, and a group that is joined");
	rc = rc ? rc : introduce_lifeline(group);
	rc = rc ? rc : members_alloc(group);
	rc = rc ? rc : make_peers(group);
	rc = rc ? rc : newcomer_open(group);
	if (rc)
		return rc;
	set_deadline(group);
	rc = enter_all(group);
	group->view = group->members->agreement.mine.view.number;
	describe_paths(group, NULL, group->description, sizeof(group->description));
	return rc;
}

int tern_group_join(const struct tern_group_config *theirs, tern_group **out)
{
	struct tern_group_config config;
	tern_group *group = NULL;
	int rc = group_read_config(theirs, NULL, out, &config);

	if (rc)
		return rc;
	rc = check_join(&config);
	if (rc) {
		if (config.boot.close)
			config.boot.close(config.boot.ctx);
		return rc;
	}
	rc = group_new(&config, NULL, &group);
	rc = rc ? rc : join(group, &config);
	if (rc && group)
		group_free(group);
	if (!rc)
		*out = group;
	return rc;
}
