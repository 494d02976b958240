/* SPDX-License-Identifier: Apache-2.0 */
/* Views over shared memory: records lie on boards (board.h), the agreement is agreement.c's. What
 * is done here is what it leaves open: noticing who has died, fencing, waiting, and saying it. */
#include "group/members.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "base/wait.h"
#include "group/board.h"
#include "group/window.h"

struct members {
	struct window **windows; /* [R] of boards */
	struct board *board;     /* this rank's */
	struct agreement agreement;
	struct wait_policy wait_policy;
	struct rank_set killed; /* by this rank */
	struct rank_set gone;   /* with the last change */
	uint64_t change_ns;
	uint64_t gathering;    /* number of the allgather under way, or of the last one */
	size_t gathered_bytes; /* of each rank's, in parts before that */
	bool gathers;          /* one is under way */
	bool expelled, leaves;
};

static struct board *board_of(const struct members *m, uint32_t rank)
{
	return (struct board *)m->windows[rank]->base;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int check_paths(const tern_group *group)
{
	if (group->nr_ranks > VIEW_MOST_RANKS)
		return fail(TERN_ERR_UNSUPPORTED, "an elastic group of %d ranks; at most %d",
			group->nr_ranks, VIEW_MOST_RANKS);
	for (int r = 0; r < group->nr_ranks; r++)
		if (group->peers[r].path != TERN_PATH_SELF &&
			group->peers[r].path != TERN_PATH_MAPPED)
			return fail(TERN_ERR_UNSUPPORTED,
				"an elastic group has all ranks on one node; rank %d is on node %d "
				"and rank %d on node %d",
				group->rank, group->peers[group->rank].node, r,
				group->peers[r].node);
	return 0;
}

static int members_alloc(tern_group *group)
{
	struct members *m = calloc(1, sizeof(*m));
	struct agreement_record *heard = calloc((size_t)group->nr_ranks, sizeof(*heard));

	if (m)
		m->windows = calloc((size_t)group->nr_ranks, sizeof(struct window *));
	if (!m || !m->windows || !heard) {
		if (m)
			free(m->windows);
		free(m);
		free(heard);
		return fail(TERN_ERR_NOMEM, "no memory for %d members", group->nr_ranks);
	}
	agreement_init(&m->agreement, (uint32_t)group->rank, (uint32_t)group->nr_ranks, heard);
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
	if (!rc)
		group->members->board = board_of(group->members, (uint32_t)group->rank);
	return rc;
}

void members_close(tern_group *group)
{
	struct members *m = group->members;

	if (!m)
		return;
	windows_destroy(group, m->windows);
	free(m->windows);
	free(m->agreement.heard);
	free(m);
	group->members = NULL;
}

/* ---- noticing -------------------------------------------------------------------------------- */

bool members_have(const tern_group *group, uint32_t rank)
{
	return set_has(&group->members->agreement.mine.view.alive, rank);
}

bool members_are_to_change(const tern_group *group)
{
	return group->members && atomic_load_explicit(&group->members->board->wanted,
					 memory_order_relaxed) > group->view;
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
	for (int r = 0; r < group->nr_ranks; r++) {
		if (!members_have(group, (uint32_t)r))
			continue;
		board_want(board_of(m, (uint32_t)r), group->view + 1);
		scheduler_wake(group->scheduler, (uint32_t)r);
	}
}

/* "rank 2 died"; "ranks 1, 2 died" */
static void name_the_dead(const tern_group *group, char *text, size_t bytes)
{
	char list[128] = "";
	size_t at = 0;
	int nr = 0;

	for (int r = 0; r < group->nr_ranks; r++)
		if (members_have(group, (uint32_t)r) && r != group->rank &&
			group_has_died(group, (uint32_t)r) && at < sizeof(list) - 16)
			at += (size_t)snprintf(
				list + at, sizeof(list) - at, "%s%d", nr++ ? ", " : "", r);
	snprintf(text, bytes, nr ? "rank%s %s died" : "a change of members is wanted",
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

static int fail_expelled(const tern_group *group)
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
		return fail_expelled(group);
	return m->agreement.mine.stopped ? members_fail((tern_group *)(uintptr_t)group) : 0;
}

int tern_group_pending(const tern_group *group)
{
	if (!group || !group->members)
		return fail(
			TERN_ERR_INVALID, "tern_group_pending: the group is NULL or not elastic");
	return members_are_to_change(group);
}

/* ---- the change ------------------------------------------------------------------------------ */

static void look_for_deaths(tern_group *group)
{
	for (int r = 0; r < group->nr_ranks; r++)
		if (r != group->rank && members_have(group, (uint32_t)r) &&
			group_has_died(group, (uint32_t)r))
			agreement_leave_out(&group->members->agreement, (uint32_t)r, true);
}

/* A process that has ended stores nothing; nor does a rank that leaves, by its own word. */
static bool is_harmless(const tern_group *group, uint32_t rank)
{
	const struct agreement_record *theirs = &group->members->agreement.heard[rank];

	return group_has_died(group, rank) || (theirs->stopped && set_has(&theirs->gone, rank));
}

static void hear_all(tern_group *group)
{
	struct members *m = group->members;
	struct agreement_record record;

	for (int r = 0; r < group->nr_ranks; r++)
		if (r != group->rank && board_look(board_of(m, (uint32_t)r), &record))
			agreement_hear(&m->agreement, (uint32_t)r, &record);
}

/* Who has to be, and is not harmless, is killed, once; that it has ended is seen as any death is.
 * True: somebody is fenced now who was not. */
static bool fence(tern_group *group)
{
	struct members *m = group->members;
	bool any = false;

	for (uint32_t r = 0; r < (uint32_t)group->nr_ranks; r++) {
		if (!set_has(&m->agreement.to_fence, r))
			continue;
		if (is_harmless(group, r)) {
			agreement_fence(&m->agreement, r);
			any = true;
		} else if (!set_has(&m->killed, r)) {
			set_add(&m->killed, r);
			group_kill(group, r);
		}
	}
	return any;
}

static void act(tern_group *group)
{
	struct members *m = group->members;
	struct rank_set before = m->agreement.mine.view.alive;
	uint64_t noticed_ns = atomic_load(&m->board->noticed_ns);

	agreement_act(&m->agreement);
	m->gone = set_without(before, &m->agreement.mine.view.alive);
	m->change_ns = noticed_ns ? scheduler_now(group->scheduler) - noticed_ns : 0;
	group->view = m->agreement.mine.view.number;
	board_show(m->board, &m->agreement.mine);
}

/* 1: done; 0: not yet; negative: never. */
static int look_for_change(void *ctx)
{
	tern_group *group = ctx;
	struct members *m = group->members;
	bool fenced;
	int news;

	look_for_deaths(group);
	hear_all(group);
	do {
		news = agreement_step(&m->agreement);
		fenced = fence(group);
		if (news & AGREEMENT_CHANGED)
			board_show(m->board, &m->agreement.mine);
	} while (news == AGREEMENT_CHANGED || (!news && fenced));
	if (news & AGREEMENT_EXPELLED) {
		m->expelled = true;
		return m->leaves ? 1 : fail_expelled(group);
	}
	if (!(news & AGREEMENT_DECIDED))
		return 0;
	act(group);
	return 1;
}

static int change_expired(tern_group *group)
{
	struct members *m = group->members;
	const struct agreement *a = &m->agreement;
	char list[128] = "";
	size_t at = 0;

	for (int r = 0; r < group->nr_ranks; r++)
		if (members_have(group, (uint32_t)r) && r != group->rank &&
			!set_has(&a->mine.gone, (uint32_t)r) &&
			!(a->heard[r].stopped && a->heard[r].view.number == group->view) &&
			at < sizeof(list) - 16)
			at += (size_t)snprintf(
				list + at, sizeof(list) - at, "%s%d", at ? ", " : "", r);
	if (agreement_lacks_quorum(a))
		return fail(TERN_ERR_QUORUM,
			"rank %d waited %d ms to change view %llu: of its %u members %u are heard "
			"from, and not all others are known to have ended",
			group->rank, group->wait_ms, (unsigned long long)group->view,
			set_count(&a->mine.view.alive),
			set_count(&a->mine.view.alive) - set_count(&a->mine.gone));
	return fail(TERN_ERR_TIMEOUT,
		"rank %d waited %d ms to change view %llu; these have not called "
		"tern_group_view_change: rank %s",
		group->rank, group->wait_ms, (unsigned long long)group->view,
		*list ? list : "none");
}

static int change_once(tern_group *group)
{
	struct members *m = group->members;
	int rc;

	members_want_change(group);
	if (!m->agreement.mine.stopped) {
		agreement_stop(&m->agreement);
		board_show(m->board, &m->agreement.mine);
	}
	rc = wait_until(
		&m->wait_policy, (uint64_t)group->wait_ms * 1000000, look_for_change, group);
	return rc < 0 ? rc : rc ? 0 : change_expired(group);
}

int tern_group_propose(tern_group *group, int change, int rank)
{
	struct members *m = group ? group->members : NULL;

	if (!m)
		return fail(
			TERN_ERR_INVALID, "tern_group_propose: the group is NULL or not elastic");
	if (m->expelled)
		return fail_expelled(group);
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
	board_show(m->board, &m->agreement.mine);
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
		.change_ns = m->change_ns};
	memcpy(view->alive, mine->alive.words, sizeof(view->alive));
	memcpy(view->gone, m->gone.words, sizeof(view->gone));
}

/* Another change may be due when one is made: somebody has died meanwhile. */
static int change_while_wanted(tern_group *group)
{
	struct members *m = group->members;
	struct rank_set before = m->agreement.mine.view.alive;
	int rc = 0;

	while (!rc && !m->expelled &&
		(members_are_to_change(group) || agreement_wanted(&m->agreement)))
		rc = change_once(group);
	if (!rc && group->view)
		m->gone = set_without(before, &m->agreement.mine.view.alive);
	return rc;
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
		return fail_expelled(group);
	look_for_deaths(group);
	if (agreement_wanted(&m->agreement))
		members_want_change(group);
	if (members_are_to_change(group)) {
		rc = change_while_wanted(group);
		if (rc)
			return rc;
		atomic_store(&m->board->noticed_ns, 0);
	}
	describe_view(group, &view);
	if (m->expelled) /* it has left: what it knows of last, without itself */
		view.alive[group->rank / 64] &= ~(1ull << group->rank % 64);
	view.nr_alive -= m->expelled;
	return struct_out(&kind_view, theirs, &view);
}

/* ---- allgather ------------------------------------------------------------------------------- */

/* Each part of a gathering has a number, and every other one the same place: who has the part n of
 * all has seen that they have n - 1 of all, and n - 2 is read by nobody. */
static struct gathered *part_of(const struct members *m, uint32_t rank)
{
	return &board_of(m, rank)->gathered[m->gathering & 1];
}

static bool has_given(const struct members *m, uint32_t rank)
{
	return record_observe(&part_of(m, rank)->number) == m->gathering;
}

static int look_for_part(void *ctx)
{
	tern_group *group = ctx;
	bool all = true, died = false;

	for (int r = 0; r < group->nr_ranks; r++) {
		if (!members_have(group, (uint32_t)r) || has_given(group->members, (uint32_t)r))
			continue;
		all = false;
		died = died || group_has_died(group, (uint32_t)r);
	}
	if (all)
		return 1;
	if (died)
		members_want_change(group);
	return members_are_to_change(group) ? members_fail(group) : 0;
}

static void give_part(struct members *m, const uint8_t *mine, size_t bytes)
{
	struct gathered *part = &m->board->gathered[++m->gathering & 1];

	memcpy(part->bytes, mine, bytes);
	record_publish(&part->number, m->gathering);
	m->gathers = true;
}

/* Who is no member may have given it before it went: that was so for all, as its memory stays and
 * nothing is stored there any more. */
static void take_part(const tern_group *group, uint8_t *all, size_t each, size_t bytes)
{
	const struct members *m = group->members;

	for (int r = 0; r < group->nr_ranks; r++) {
		uint8_t *to = all + (size_t)r * each + m->gathered_bytes;

		if (has_given(m, (uint32_t)r))
			memcpy(to, part_of(m, (uint32_t)r)->bytes, bytes);
		else
			memset(to, 0, bytes);
	}
}

int members_allgather(tern_group *group, const void *mine, void *all, size_t bytes)
{
	struct members *m = group->members;
	int rc = members_check(group);

	while (!rc && (m->gathered_bytes < bytes || m->gathers)) {
		size_t part = bytes - m->gathered_bytes;

		part = part < BOARD_GATHER_BYTES ? part : BOARD_GATHER_BYTES;
		if (!m->gathers)
			give_part(m, (const uint8_t *)mine + m->gathered_bytes, part);
		rc = wait_until(
			&m->wait_policy, (uint64_t)group->wait_ms * 1000000, look_for_part, group);
		if (rc < 0)
			return rc;
		if (!rc)
			return fail(TERN_ERR_TIMEOUT,
				"rank %d waited %d ms for all members to gather", group->rank,
				group->wait_ms);
		take_part(group, all, bytes, part);
		m->gathered_bytes += part;
		m->gathers = false;
		rc = 0;
	}
	if (!rc)
		m->gathered_bytes = 0;
	return rc;
}
