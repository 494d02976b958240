/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that joins: it asks each member's door (join.h), and stays outside of all that is
 * collective until a view has it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "group/introduce.h"
#include "group/newcomer_inside.h"
#include "group/select_network.h"

#define NAP_NS 50000
#define GO_AGAIN_NS 20000000 /* some member was in a call that lets nobody in */
#define ASK_AGAIN_NS 1000000 /* some member has not heard it over the network yet */

/* ---- exchanges ------------------------------------------------------------------------------- */

int newcomer_gather(tern_group *group, const void *mine, void *all, size_t bytes)
{
	memset(all, 0, (size_t)group->nr_ranks * bytes);
	memcpy((uint8_t *)all + (size_t)group->rank * bytes, mine, bytes);
	return 0;
}

/* Who has died by now is not asked: it is no member of the view that this rank comes into. */
static int ask_all(tern_group *group, int (*one)(tern_group *group, int rank, void *ctx), void *ctx)
{
	struct newcomer *n = group->newcomer;

	for (int r = 0; r < group->nr_ranks; r++) {
		int rc = has_entered(n, r) ? one(group, r, ctx) : 0;

		if (rc == GONE && newcomer_has_died(group, r))
			newcomer_leave_door(group, r);
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
	struct join_message *m = newcomer_message(n, JOIN_SETTINGS);
	int fds[LOCAL_FDS], rc;

	m->number = c->number;
	m->nr = (uint32_t)c->nr;
	for (int i = 0; i < c->nr; i++)
		m->settings[i] = c->settings[i].value;
	rc = newcomer_ask(group, rank, NULL, 0, fds);
	local_close_fds(fds);
	n->prefix = m->prefix;
	return rc;
}

uint8_t newcomer_prefix(const tern_group *group)
{
	return (uint8_t)group->newcomer->prefix;
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
	newcomer_set_deadline(group);
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
	struct join_message *m = newcomer_message(n, JOIN_WINDOW);
	int fds[LOCAL_FDS], rc;

	m->number = number;
	rc = newcomer_ask(group, rank, &fd, 1, fds);
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

	if (is_elsewhere(group, rank))
		return 0;
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
	newcomer_set_deadline(group);
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

/* Where each may write at the other. */
static int swap_keys_with(tern_group *group, int rank, uint64_t number, struct window *window,
	tern_region **key, tern_remote **remote)
{
	struct newcomer *n = group->newcomer;
	struct tern_descriptor mine;
	int none[LOCAL_FDS], rc = 0;

	if (!*key)
		rc = tern_engine_register(group->engine, window->base, window->bytes, key);
	rc = rc ? rc : tern_region_descriptor(*key, &mine);
	if (rc)
		return rc;
	newcomer_message(n, JOIN_KEYS)->number = number;
	n->message.window = mine;
	rc = newcomer_ask(group, rank, NULL, 0, none);
	if (!rc && n->message.window.rank != (uint32_t)rank)
		rc = fail(TERN_ERR_PROTOCOL, "rank %d tells of rank %u's window", rank,
			n->message.window.rank);
	return rc ? rc : tern_engine_import(group->engine, &n->message.window, remote);
}

struct swapped {
	struct window *window;
	tern_region **keys;    /* [R] */
	tern_remote **remotes; /* [R] */
};

static int swap_with(tern_group *group, int rank, void *ctx)
{
	struct swapped *s = ctx;

	if (!is_elsewhere(group, rank))
		return 0;
	return swap_keys_with(
		group, rank, group->round, s->window, &s->keys[rank], &s->remotes[rank]);
}

int newcomer_swap_keys(
	tern_group *group, struct window *window, tern_region **keys, tern_remote **remotes)
{
	struct swapped s = {window, keys, remotes};

	newcomer_set_deadline(group);
	return ask_all(group, swap_with, &s);
}

/* ---- the way in ------------------------------------------------------------------------------ */

static int catch_up_here(tern_group *group, int rank, const struct join_offer *o)
{
	struct window *window = NULL;
	int fd, rc = swap_windows(group, rank, o->number, o->window->fd, &fd);

	if (!rc) {
		rc = window_map(rank, fd, o->window->bytes, &window);
		close(fd);
	}
	if (rc)
		window_drop(window);
	else
		o->replace(o->ctx, (uint32_t)rank, window);
	return rc;
}

static int catch_up_elsewhere(tern_group *group, int rank, const struct join_offer *o)
{
	tern_region *key = NULL;
	tern_remote *remote = NULL;
	int rc = swap_keys_with(group, rank, o->number, o->window, &key, &remote);

	if (rc)
		tern_region_deregister(key, 0);
	else
		o->replace_far(o->ctx, (uint32_t)rank, key, remote);
	return rc;
}

/* One that has become a member since: it gets what the others have. */
static int catch_up_with(tern_group *group, int rank)
{
	int rc = 0;

	for (struct join_offer *o = group->offers; o && !rc; o = o->next)
		rc = (is_elsewhere(group, rank) ? catch_up_elsewhere : catch_up_here)(
			group, rank, o);
	return rc;
}

static int get_ready_with(tern_group *group, int rank, void *ctx)
{
	struct newcomer *n = group->newcomer;
	int fds[LOCAL_FDS], rc;

	(void)ctx;
	if (n->ready[rank])
		return 0;
	if (group->engine && !engine_has_met(group->engine, (uint32_t)rank))
		return JOIN_LATER;
	newcomer_message(n, JOIN_READY);
	rc = newcomer_ask(group, rank, NULL, 0, fds);
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
		newcomer_message(n, JOIN_GO);
		if (has_entered(n, r))
			join_send(n->sockets[r], is_elsewhere(group, r), &n->message, NULL, 0);
	}
}

/* 0, or what keeps it out. */
static int get_ready(tern_group *group)
{
	struct newcomer *n = group->newcomer;
	int missing = newcomer_find_missing(group), rc = 0;

	while (missing >= 0 && !rc) {
		rc = newcomer_enter_one(group, missing);
		rc = rc ? rc : catch_up_with(group, missing);
		missing = newcomer_find_missing(group);
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
		if (r != group->rank && members_have(group, (uint32_t)r) &&
			!group->newcomer->ready[r] && at < sizeof(list) - 16)
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

		news = newcomer_look_around(group);
		if (news & AGREEMENT_DECIDED)
			return 0;
		if (news & AGREEMENT_EXPELLED)
			return fail(TERN_ERR_STATE, "another one has taken the place of rank %d",
				group->rank);
		if (newcomer_is_late(n))
			return fail_entering(group);
		if (clock_ns() >= go_ns) {
			rc = get_ready(group);
			if (!rc)
				say_go(group);
			go_ns = clock_ns() + (rc == JOIN_LATER ? ASK_AGAIN_NS : GO_AGAIN_NS);
		}
		/* A door that has closed may mean that it is open: the next look tells. */
		if (rc < 0 && !(newcomer_look_around(group) & AGREEMENT_DECIDED))
			return rc;
		nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
	}
}

static void newcomer_free(tern_group *group)
{
	struct newcomer *n = group->newcomer;

	for (int r = 0; n->sockets && r < group->nr_ranks; r++)
		if (n->sockets[r] >= 0)
			close(n->sockets[r]);
	free(n->sockets);
	free(n->ready);
	free(n);
	group->newcomer = NULL;
}

int newcomer_enter(tern_group *group)
{
	struct newcomer *n = group->newcomer;
	int rc;

	newcomer_set_deadline(group);
	rc = wait_for_entry(group);
	if (rc)
		return rc;
	agreement_act(&group->members->agreement);
	group->round = n->round;
	members_begin(group);
	newcomer_free(group);
	return door_open(group);
}

void newcomer_close(tern_group *group)
{
	struct newcomer *n = group->newcomer;

	if (!n)
		return;
	for (int r = 0; n->sockets && n->ready && r < group->nr_ranks; r++)
		if (has_entered(n, r))
			newcomer_leave_door(group, r);
	newcomer_free(group);
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

/* Where the others are the first member tells. */
static int make_self(tern_group *group)
{
	struct members *m = group->members;
	struct peer *self = &group->peers[group->rank];
	int rc = introduce_guests(group);

	self->same_process = self->beside = true;
	rc = rc ? rc : window_make(sizeof(struct board), &m->windows[group->rank]);
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
	return config->force_engine
		       ? fail(TERN_ERR_UNSUPPORTED, "force_engine, and a group that is joined")
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
	rc = rc ? rc : make_self(group);
	rc = rc ? rc : newcomer_open(group);
	if (rc)
		return rc;
	newcomer_set_deadline(group);
	rc = newcomer_enter_all(group);
	if (rc)
		return rc;
	group->view = group->members->agreement.mine.view.number;
	describe_paths(group, NULL, group->description, sizeof(group->description));
	return 0;
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
