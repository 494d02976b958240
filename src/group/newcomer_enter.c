/* SPDX-License-Identifier: Apache-2.0 */
/* Asking members' doors, and entering them: from then on each hears the other. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "group/line.h"
#include "group/newcomer_inside.h"

#define NAP_NS 500000
#define LOOK_NS 20000000 /* a door is asked so often which view there is */
#define CALL_MS 3000     /* of a door on another node: its host may be gone */

bool newcomer_is_late(const struct newcomer *n)
{
	return clock_ns() > n->deadline_ns;
}

void newcomer_set_deadline(tern_group *group)
{
	group->newcomer->deadline_ns = clock_ns() + (uint64_t)group->wait_ms * 1000000;
}

int newcomer_left_ms(const struct newcomer *n)
{
	uint64_t now = clock_ns();

	return now >= n->deadline_ns ? 0 : (int)((n->deadline_ns - now) / 1000000) + 1;
}

static int at_most(int a, int b)
{
	return a < b ? a : b;
}

static void close_one(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* ---- asking ---------------------------------------------------------------------------------- */

struct join_message *newcomer_message(struct newcomer *n, enum join_kind kind)
{
	memset(&n->message, 0, sizeof(n->message));
	n->message.magic = JOIN_MAGIC;
	n->message.kind = kind;
	n->message.nonce = n->nonce;
	return &n->message;
}

static int ask(tern_group *group, int socket, bool is_far, int rank, int wait_ms, const int *fds,
	int nr_fds, int *answered)
{
	struct newcomer *n = group->newcomer;
	struct join_message *m = &n->message;
	struct pollfd p = {.fd = socket, .events = POLLIN};
	uint64_t end_ns = clock_ns() + (uint64_t)wait_ms * 1000000, now;
	struct local_message came;
	uint32_t kind = m->kind;
	int rc;

	answered[0] = answered[1] = -1;
	n->coming.nr = 0;
	if (!join_send(socket, is_far, m, fds, nr_fds))
		return GONE;
	do {
		now = clock_ns();
		rc = poll(&p, 1, now < end_ns ? (int)((end_ns - now) / 1000000) + 1 : 0);
		if (rc < 0 && errno != EINTR)
			return fail_errno("waiting for rank %d's answer", rank);
		if (rc == 0)
			return fail(TERN_ERR_TIMEOUT,
				"rank %d has let this one enter, and does not answer", rank);
	} while (!join_receive(socket, is_far ? &n->coming : NULL, m, &came));
	memcpy(answered, came.fds, sizeof(came.fds));
	if (came.bytes == 0)
		return GONE;
	if (m->rc < 0)
		m->text[JOIN_TEXT - 1] = 0;
	if (came.bytes != sizeof(*m) || !came.whole || m->magic != JOIN_MAGIC || m->kind != kind)
		return fail(TERN_ERR_PROTOCOL, "rank %d answers what is no answer", rank);
	return m->rc < 0 ? fail(m->rc, "rank %d: %s", rank, m->text) : m->rc;
}

int newcomer_ask(tern_group *group, int rank, const int *fds, int nr_fds, int *answered)
{
	struct newcomer *n = group->newcomer;

	return ask(group, n->sockets[rank], is_elsewhere(group, rank), rank, newcomer_left_ms(n),
		fds, nr_fds, answered);
}

/* A process that is being ended closes its sockets before others hear of its end. */
bool newcomer_has_died(const tern_group *group, int rank)
{
	bool is_far = is_elsewhere(group, rank);
	const struct peer *peer = &group->peers[rank];
	struct pollfd p = {.fd = is_far ? peer->line : peer->lifeline, .events = POLLIN};

	poll(&p, 1, at_most(newcomer_left_ms(group->newcomer), END_MS));
	return is_far ? line_look(group, (uint32_t)rank) != LINE_OPEN
		      : group_has_died(group, (uint32_t)rank);
}

void newcomer_leave_door(tern_group *group, int rank)
{
	struct newcomer *n = group->newcomer;

	close_one(&n->sockets[rank]);
	n->ready[rank] = false;
	if (group->engine)
		engine_let_go(group->engine, (uint32_t)rank, "its door is closed");
	close_one(&group->peers[rank].line);
}

/* ---- what the first member tells of the group ------------------------------------------------ */

static int stand_ins(tern_group *group)
{
	struct members *m = group->members;
	int rc = 0;

	for (int r = 0; r < group->nr_ranks && !rc; r++) {
		if (group->peers[r].path != TERN_PATH_MAPPED)
			continue;
		rc = window_make(sizeof(struct board), &m->windows[r]);
		if (!rc) {
			close(m->windows[r]->fd); /* of who is no member: nobody looks there */
			m->windows[r]->fd = -1;
		}
	}
	return rc;
}

static int learn_nodes(tern_group *group, const struct join_message *told)
{
	const uint16_t *node_of = told->enter.node_of;
	int here = node_of[group->rank], nr = 0;

	for (int r = 0; r < group->nr_ranks; r++) {
		struct peer *peer = &group->peers[r];

		if (node_of[r] >= group->nr_ranks)
			return fail(TERN_ERR_PROTOCOL, "rank %d is on node %u of %d ranks", r,
				node_of[r], group->nr_ranks);
		nr = node_of[r] >= nr ? node_of[r] + 1 : nr;
		peer->node = node_of[r];
		peer->path = r == group->rank     ? TERN_PATH_SELF
			     : node_of[r] == here ? TERN_PATH_MAPPED
						  : TERN_PATH_ENGINE;
	}
	group->nr_nodes = nr;
	if (nr > 1 && !told->enter.has_engine)
		return fail(TERN_ERR_PROTOCOL, "a group of %d nodes without an engine", nr);
	return stand_ins(group);
}

static int learn_group(tern_group *group)
{
	struct newcomer *n = group->newcomer;
	struct members *m = group->members;
	const struct join_message *told = &n->message;
	struct engine_networks networks = told->enter.networks;
	int rc;

	agreement_come(&m->agreement, &told->enter.view, n->nonce);
	memcpy(n->numbers, told->enter.numbers, sizeof(n->numbers));
	n->nr_numbers = told->nr;
	rc = learn_nodes(group, told);
	if (!rc && told->enter.has_engine)
		rc = group_make_engine_alone(group, &networks);
	rc = rc ? rc : tell_open(group);
	n->known = !rc;
	return rc;
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
	rc = r->get(r->ctx, key, card, &bytes, newcomer_left_ms(group->newcomer));
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

/* 0, GONE, JOIN_LATER or an error. */
static int call(tern_group *group, const struct join_card *card, bool is_far, int rank, int *socket)
{
	if (is_far) {
		*socket = far_connect(
			&card->far, at_most(newcomer_left_ms(group->newcomer), CALL_MS));
		return *socket < 0 ? GONE : 0;
	}
	*socket = local_connect(&card->address);
	if (*socket >= 0)
		return 0;
	return errno == ECONNREFUSED ? GONE
	       : errno == EAGAIN     ? JOIN_LATER
				     : fail_errno("connecting to rank %d on this machine", rank);
}

static int map_board(tern_group *group, int rank, const int *fds)
{
	struct members *m = group->members;
	struct window *board = NULL;
	int rc = fds[0] < 0 || fds[1] < 0
			 ? fail(TERN_ERR_NOMEM, "no place for rank %d's descriptors", rank)
			 : window_map(rank, fds[1], sizeof(struct board), &board);

	if (rc) {
		window_drop(board);
		return rc;
	}
	window_drop(m->windows[rank]);
	m->windows[rank] = board;
	close_one(&group->peers[rank].lifeline);
	group->peers[rank].lifeline = fds[0];
	close(fds[1]);
	return 0;
}

/* A connection of its own, on which nothing is said once it is answered. */
static int make_line(tern_group *group, const struct join_card *card, int rank)
{
	struct join_message *m = newcomer_message(group->newcomer, JOIN_LINE);
	int s, none[LOCAL_FDS], rc = call(group, card, true, rank, &s);

	if (rc)
		return rc;
	m->rank = group->rank;
	memcpy(m->secret, card->address.secret, sizeof(m->secret));
	rc = ask(group, s, true, rank, newcomer_left_ms(group->newcomer), NULL, 0, none);
	if (rc)
		close(s);
	else
		group->peers[rank].line = s;
	return rc;
}

static int connect_engine(tern_group *group, int rank, uint32_t network)
{
	struct newcomer *n = group->newcomer;
	struct join_message *m = newcomer_message(n, JOIN_CONNECT);
	int none[LOCAL_FDS], rc = engine_own_address(group->engine, &m->engine);

	rc = rc ? rc : newcomer_ask(group, rank, NULL, 0, none);
	return rc ? rc
		  : engine_admit(group->engine, (uint32_t)rank, network, &m->engine,
			    group->peers[rank].lifeline);
}

static int take_in(tern_group *group, int rank, bool is_far, const int *fds)
{
	struct newcomer *n = group->newcomer;
	int rc = introduce_check(group->me, &n->message.enter.who, rank);

	if (!rc && !n->known)
		rc = learn_group(group);
	if (!rc && is_far != is_elsewhere(group, rank))
		rc = fail(TERN_ERR_PROTOCOL, "rank %d is on another node than it says", rank);
	group->guests[rank].address = n->message.enter.who.address;
	return rc || is_far ? rc : map_board(group, rank, fds);
}

static int knock(tern_group *group, const struct join_card *card, int rank, bool is_far, int socket,
	int wait_ms, int *fds)
{
	const int own[] = {group->own_lifeline, group->members->windows[group->rank]->fd};
	struct join_message *m = newcomer_message(group->newcomer, JOIN_ENTER);
	int rc;

	memcpy(m->secret, card->address.secret, sizeof(m->secret));
	m->enter.who = *group->me;
	m->enter.silence_ms = (uint64_t)group->silence_ms;
	rc = ask(group, socket, is_far, rank, wait_ms, own, is_far ? 0 : 2, fds);
	return rc == TERN_ERR_TIMEOUT ? JOIN_LATER : rc; /* newcomer_enter_all says how late it is
							  */
}

/* What is known of it by now is only what it has said of itself. */
static int enter_over(
	tern_group *group, const struct join_card *card, int rank, bool is_far, int socket)
{
	struct newcomer *n = group->newcomer;
	uint32_t network;
	int fds[LOCAL_FDS], rc = knock(group, card, rank, is_far, socket, newcomer_left_ms(n), fds);

	network = n->message.enter.network;
	rc = rc ? rc : take_in(group, rank, is_far, fds);
	if (rc) {
		local_close_fds(fds);
		return rc;
	}
	n->sockets[rank] = socket;
	rc = is_far ? make_line(group, card, rank) : 0;
	if (!rc && group->engine)
		rc = connect_engine(group, rank, network);
	return rc;
}

int newcomer_enter_one(tern_group *group, int rank)
{
	struct newcomer *n = group->newcomer;
	struct join_card card;
	int rc = find_card(group, rank, &card), socket;
	bool is_far;

	if (rc)
		return rc;
	is_far = strncmp(card.node, group->me->node, NODE_TEXT) != 0;
	rc = call(group, &card, is_far, rank, &socket);
	if (rc)
		return rc;
	rc = enter_over(group, &card, rank, is_far, socket);
	if (rc && has_entered(n, rank))
		newcomer_leave_door(group, rank);
	else if (rc)
		close(socket);
	return rc;
}

/* Members of other nodes may not know whether the one that has the place lives. If it opens its
 * door it does. Who has been left out has no say in it. */
static int check_place(tern_group *group)
{
	struct newcomer *n = group->newcomer;
	struct join_card card;
	int rc, socket, fds[LOCAL_FDS];
	bool is_far;

	if (n->known || clock_ns() - n->looked_ns < LOOK_NS)
		return 0;
	rc = find_card(group, group->rank, &card);
	is_far = !rc && strncmp(card.node, group->me->node, NODE_TEXT) != 0;
	rc = rc ? rc : call(group, &card, is_far, group->rank, &socket);
	n->looked_ns = clock_ns();
	if (rc)
		return rc < 0 ? rc : 0;
	rc = knock(group, &card, group->rank, is_far, socket, at_most(newcomer_left_ms(n), END_MS),
		fds);
	local_close_fds(fds);
	close(socket);
	return rc == TERN_ERR_STATE ? rc : 0;
}

/* ---- which view there is --------------------------------------------------------------------- */

/* Members of other nodes tell their records to members: so one of them is asked at times, where no
 * board can be looked at. */
static int look_at_doors(tern_group *group)
{
	struct newcomer *n = group->newcomer;
	int none[LOCAL_FDS], far = -1, rc;

	for (int r = 0; r < group->nr_ranks; r++) {
		if (!has_entered(n, r))
			continue;
		if (!is_elsewhere(group, r))
			return 0;
		if (line_look(group, (uint32_t)r) == LINE_LEFT_OUT)
			return AGREEMENT_EXPELLED; /* it was let in, and has not heard of it */
		far = far < 0 ? r : far;
	}
	if (far < 0 || clock_ns() - n->looked_ns < LOOK_NS)
		return 0;
	newcomer_message(n, JOIN_LOOK);
	rc = ask(group, n->sockets[far], true, far, at_most(newcomer_left_ms(n), END_MS), NULL, 0,
		none);
	n->looked_ns = clock_ns();
	if (!rc)
		return agreement_look(&group->members->agreement, &n->message.view);
	/* A door that is closed may mean that it is open: then there is a record to come. */
	if (rc != GONE || line_look(group, (uint32_t)far) != LINE_OPEN)
		newcomer_leave_door(group, far);
	return 0;
}

int newcomer_look_around(tern_group *group)
{
	struct members *m = group->members;
	struct agreement_record record;
	int news;

	for (int r = 0; r < group->nr_ranks; r++)
		if (has_entered(group->newcomer, r) &&
			board_look(board_of(m, (uint32_t)r), &record))
			agreement_hear(&m->agreement, (uint32_t)r, &record);
	news = agreement_step(&m->agreement);
	return news ? news : look_at_doors(group);
}

static bool is_wanted(const tern_group *group, int rank)
{
	return rank != group->rank &&
	       (!group->newcomer->known || members_have(group, (uint32_t)rank));
}

int newcomer_find_missing(const tern_group *group)
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
		rc = newcomer_enter_one(group, r);
		if (rc < 0 || rc == JOIN_LATER)
			return rc < 0 ? rc : 0;
	}
	return 0;
}

int newcomer_enter_all(tern_group *group)
{
	struct newcomer *n = group->newcomer;
	int rc, missing;

	for (;;) {
		rc = enter_once(group);
		rc = rc ? rc : check_place(group);
		if (rc)
			return rc;
		if (n->known && (newcomer_look_around(group) & AGREEMENT_EXPELLED))
			return fail(TERN_ERR_STATE, "another one has taken the place of rank %d",
				group->rank);
		missing = newcomer_find_missing(group);
		if (missing < 0)
			return 0;
		if (newcomer_is_late(n))
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
