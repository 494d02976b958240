/* SPDX-License-Identifier: Apache-2.0 */
/* Views over shared memory: records lie on boards (board.h), the agreement is agreement.c's. What
 * is done here is who they are, noticing that one is gone, and saying it; view_change.c does the
 * rest of what the agreement leaves open. */
#include "group/members.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "engine/engine.h"
#include "group/join.h"
#include "group/line.h"
#include "group/members_inside.h"

#define POLLS_BEHIND 4 /* two, and what came may take the networks some more */

/* ---- opening --------------------------------------------------------------------------------- */

static int check_paths(const tern_group *group)
{
	if (group->nr_ranks > VIEW_MOST_RANKS)
		return fail(TERN_ERR_UNSUPPORTED, "an elastic group of %d ranks; at most %d",
			group->nr_ranks, VIEW_MOST_RANKS);
	for (int r = 0; r < group->nr_ranks; r++)
		if (group->peers[r].path == TERN_PATH_NONE)
			return fail(TERN_ERR_UNSUPPORTED,
				"an elastic group, and no path from rank %d to rank %d, on nodes "
				"%d "
				"and %d: %s",
				group->rank, r, group->peers[group->rank].node,
				group->peers[r].node, group->no_engine);
	for (int r = 0; r < group->nr_ranks; r++)
		if (group->peers[r].path == TERN_PATH_ENGINE && group->peers[r].lifeline < 0 &&
			!engine_shuts_out(group->engine))
			return fail(TERN_ERR_UNSUPPORTED,
				"an elastic group, and rank %d on node %d could not be shut out: "
				"no "
				"network that can is open (%s)",
				r, group->peers[r].node, engine_why(group->engine, (uint32_t)r));
	return 0;
}

static void members_free(tern_group *group, struct members *m)
{
	for (int r = 0; m->before && r < group->nr_ranks; r++)
		window_drop(m->before[r]);
	free(m->windows);
	free(m->before);
	free(m->first_gathering);
	free(m->agreement.heard);
	free(m);
}

int members_alloc(tern_group *group)
{
	struct members *m = calloc(1, sizeof(*m));
	struct agreement_record *heard = calloc((size_t)group->nr_ranks, sizeof(*heard));

	if (m) {
		m->windows = calloc((size_t)group->nr_ranks, sizeof(struct window *));
		m->before = calloc((size_t)group->nr_ranks, sizeof(struct window *));
		m->first_gathering = calloc((size_t)group->nr_ranks, sizeof(uint64_t));
		m->agreement.heard = heard;
	}
	if (!m || !m->windows || !m->before || !m->first_gathering || !heard) {
		if (m)
			members_free(group, m);
		else
			free(heard);
		return fail(TERN_ERR_NOMEM, "no memory for %d members", group->nr_ranks);
	}
	agreement_init(&m->agreement, (uint32_t)group->rank, (uint32_t)group->nr_ranks, heard);
	m->told_version = m->agreement.mine.version;
	m->wait_policy = (struct wait_policy){.scheduler = group->scheduler, .yield_rounds = 200};
	group->members = m;
	return 0;
}

int members_open(tern_group *group)
{
	int rc = check_paths(group);

	rc = rc ? rc : members_alloc(group);
	rc = group_agree_status(group, rc, "an elastic group");
	if (!rc)
		rc = windows_create(
			group, sizeof(struct board), ++group->round, group->members->windows);
	if (rc)
		return rc;
	group->members->board = board_of(group->members, (uint32_t)group->rank);
	rc = group->nr_nodes > 1 ? lines_open(group) : 0;
	rc = rc ? rc : tell_open(group);
	group->members->known = group->members->agreement.mine.view;
	group->members->remade = true;
	group->members->open = !rc;
	return rc;
}

void members_hear_no_more(tern_group *group)
{
	if (group->members)
		tell_close(group);
}

void members_close(tern_group *group)
{
	struct members *m = group->members;

	if (!m)
		return;
	lines_close(group);
	windows_destroy(group, m->windows);
	members_free(group, m);
	group->members = NULL;
}

/* ---- noticing -------------------------------------------------------------------------------- */

bool members_have(const tern_group *group, uint32_t rank)
{
	return set_has(&group->members->agreement.mine.view.alive, rank);
}

bool group_has_lost(const tern_group *group, uint32_t rank)
{
	return group->members &&
	       atomic_load(&group->members->ever_gone[rank / 64]) >> rank % 64 & 1;
}

bool members_serve(const tern_group *group, uint32_t rank)
{
	const struct members *m = group->members;

	return !group->newcomer && members_have(group, rank) &&
	       m->gatherings.complete >= m->first_gathering[rank];
}

bool group_has(const tern_group *group, uint32_t rank)
{
	return !members_gather_here(group) || members_have(group, rank);
}

bool members_are_to_change(const tern_group *group)
{
	return group->members && want_observe(&group->members->board->wanted) > group->view;
}

static void note_time(const tern_group *group)
{
	uint64_t none = 0;

	atomic_compare_exchange_strong(
		&group->members->board->noticed_ns, &none, scheduler_now(group->scheduler));
}

void members_want_change(tern_group *group)
{
	struct members *m = group->members;

	note_time(group);
	for (uint32_t r = 0; r < (uint32_t)group->nr_ranks; r++) {
		if (!members_have(group, r) || is_told(m, r))
			continue;
		board_want(board_of(m, r), group->view + 1);
		scheduler_wake(group->scheduler, r);
	}
	if (m->copies)
		tell_wanted(group, group->view + 1);
	for (struct member_client *c = m->clients; c; c = c->next)
		if (c->wanted)
			c->wanted(c->ctx);
}

int members_lack(tern_group *group)
{
	members_want_change(group);
	return TERN_ERR_MEMBERS;
}

/* Of a rank whose line has ended: what it sent before comes by another connection. */
static bool has_all_that_came(const tern_group *group, uint32_t rank)
{
	uint64_t seen = 0, polls = engine_polls(group->engine);

	return !atomic_compare_exchange_strong(&group->peers[rank].line_ended, &seen, polls + 1) &&
	       polls + 1 >= seen + POLLS_BEHIND;
}

bool members_lost(const tern_group *group, uint32_t rank)
{
	enum line_state line;

	if (group_has_died(group, rank))
		return true;
	if (!is_told(group->members, rank))
		return false;
	line = line_look(group, rank);
	return line == LINE_LEFT_OUT || engine_peer_down(group->engine, rank, NULL) ||
	       (line == LINE_ENDED && has_all_that_came(group, rank));
}

/* "rank 2 died"; "ranks 1, 2 died" */
static void name_the_dead(const tern_group *group, char *text, size_t bytes)
{
	char list[128] = "";
	size_t at = 0;
	int nr = 0;

	for (int r = 0; r < group->nr_ranks; r++)
		if (members_have(group, (uint32_t)r) && r != group->rank &&
			members_lost(group, (uint32_t)r) && at < sizeof(list) - 16)
			at += (size_t)snprintf(
				list + at, sizeof(list) - at, "%s%d", nr++ ? ", " : "", r);
	snprintf(text, bytes,
		nr                       ? "rank%s %s died"
		: group->members->untold ? "members have changed while something was made"
					 : "a change of members is wanted",
		nr > 1 ? "s" : "", list);
}

int members_fail(tern_group *group)
{
	char text[192];

	name_the_dead(group, text, sizeof(text));
	return fail(TERN_ERR_MEMBERS,
		"%s: call tern_group_view_change, then make this round again (view %llu, rank %d)",
		text, (unsigned long long)group->view, group->rank);
}

int members_fail_expelled(const tern_group *group)
{
	if (group->members->leaves)
		return fail(TERN_ERR_EXPELLED, "rank %d has left the group after view %llu",
			group->rank, (unsigned long long)group->view);
	return fail(TERN_ERR_EXPELLED,
		"the other members have left rank %d out after view %llu, and gone on", group->rank,
		(unsigned long long)group->view);
}

int members_check(const tern_group *group)
{
	const struct members *m = group->members;

	if (m->expelled)
		return members_fail_expelled(group);
	if (group->newcomer)
		return fail(TERN_ERR_STATE,
			"rank %d is no member yet: tern_group_view_change makes it one",
			group->rank);
	return m->agreement.mine.stopped || m->learns || m->untold
		       ? members_fail((tern_group *)(uintptr_t)group)
		       : 0;
}

int tern_group_pending(const tern_group *group)
{
	if (!group || !group->members)
		return fail(
			TERN_ERR_INVALID, "tern_group_pending: the group is NULL or not elastic");
	return members_are_to_change(group);
}

/* ---- what the caller asks for, and is told -----------------------------------------------------
 */

int tern_group_propose(tern_group *group, int change, int rank)
{
	struct members *m = group ? group->members : NULL;

	if (!m)
		return fail(
			TERN_ERR_INVALID, "tern_group_propose: the group is NULL or not elastic");
	if (m->expelled)
		return members_fail_expelled(group);
	if (group->newcomer)
		return members_check(group);
	if (rank < 0 || rank >= group->nr_ranks || !members_have(group, (uint32_t)rank))
		return fail(TERN_ERR_INVALID, "tern_group_propose: rank %d is no member", rank);
	if (change != TERN_CHANGE_LEAVE && change != TERN_CHANGE_EXPEL)
		return fail(TERN_ERR_INVALID, "tern_group_propose: change is %d", change);
	if ((change == TERN_CHANGE_LEAVE) != (rank == group->rank))
		return fail(TERN_ERR_INVALID,
			"tern_group_propose: rank %d leaves by itself; others are expelled", rank);
	if (group->peers[rank].beside && rank != group->rank)
		return fail(TERN_ERR_UNSUPPORTED,
			"tern_group_propose: rank %d is a thread of this process, and cannot be "
			"ended",
			rank);
	agreement_expel(&m->agreement, (uint32_t)rank);
	m->leaves = m->leaves || change == TERN_CHANGE_LEAVE;
	tell_record(group);
	members_want_change(group);
	return 0;
}

static void describe_view(const tern_group *group, struct tern_view *view)
{
	const struct members *m = group->members;
	const struct view *mine = &m->agreement.mine.view;

	*view = (struct tern_view){.size = sizeof(*view),
		.number = mine->number,
		.nr_alive = set_count(&mine->alive),
		.nr_gone = set_count(&m->gone),
		.change_ns = m->change_ns,
		.nr_joined = set_count(&m->joined)};
	memcpy(view->alive, mine->alive.words, sizeof(view->alive));
	memcpy(view->gone, m->gone.words, sizeof(view->gone));
	memcpy(view->joined, m->joined.words, sizeof(view->joined));
}

/* What has changed since it was told last. */
static void tell_caller(struct members *m)
{
	const struct view *now = &m->agreement.mine.view;

	m->untold = false;
	if (now->number == m->known.number)
		return;
	m->gone = m->gone_since;
	m->joined = m->joined_since;
	m->gone_since = m->joined_since = (struct rank_set){{0}};
	m->known = *now;
	atomic_store(&m->board->noticed_ns, 0);
}

int tern_group_view_change(tern_group *group, struct tern_view *theirs)
{
	struct tern_view view;
	struct members *m;
	int rc = struct_check(&kind_view, theirs);

	if (rc)
		return rc;
	if (!group || !group->members)
		return fail(TERN_ERR_INVALID,
			"tern_group_view_change: the group is NULL or not elastic");
	m = group->members;
	if (m->expelled)
		return members_fail_expelled(group);
	rc = group->newcomer ? newcomer_enter(group) : members_change(group);
	if (m->expelled)
		door_turn_away(group, true);
	if (rc)
		return rc;
	tell_caller(m);
	describe_view(group, &view);
	if (m->expelled) /* it has left: what it knows of last, without itself */
		view.alive[group->rank / 64] &= ~(1ull << group->rank % 64);
	view.nr_alive -= m->expelled;
	return struct_out(&kind_view, theirs, &view);
}
