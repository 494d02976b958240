/* SPDX-License-Identifier: Apache-2.0 */
/* One view becomes the next: deaths are looked for and records heard, agreement.c says who is to be
 * left out, those are fenced, and what the group has besides follows. */
#include <stdio.h>

#include "base/error.h"
#include "engine/engine.h"
#include "group/join.h"
#include "group/line.h"
#include "group/members_inside.h"

/* A process of this machine that has ended is known to have. Elsewhere a rank is only silent: its
 * own machine's ranks know. */
static void look_for_deaths(tern_group *group)
{
	struct members *m = group->members;

	for (uint32_t r = 0; r < (uint32_t)group->nr_ranks; r++) {
		if (r == (uint32_t)group->rank || !members_have(group, r))
			continue;
		if (is_told(m, r) && line_look(group, r) == LINE_LEFT_OUT)
			m->expelled = true;
		if (group_has_died(group, r))
			agreement_leave_out(&m->agreement, r, true);
		else if (is_told(m, r) && members_lost(group, r))
			agreement_leave_out(&m->agreement, r, false);
	}
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

/* Its keys have gone before its connection, which it may make again. */
static void shut_out(tern_group *group, uint32_t rank)
{
	engine_let_go(group->engine, rank, "it is left out of the group");
	line_leave_out(group, rank);
}

/* Who has to be, and is not harmless, is killed, once, where this rank can; that it has ended is
 * seen as any death is. What a rank elsewhere has sent may come when it has long ended. True:
 * somebody is fenced now who was not. */
static bool fence(tern_group *group)
{
	struct members *m = group->members;
	bool any = false;

	for (uint32_t r = 0; r < (uint32_t)group->nr_ranks; r++) {
		bool here = group->peers[r].lifeline >= 0 || !is_told(m, r);

		if (!set_has(&m->agreement.to_fence, r))
			continue;
		if (here && !is_harmless(group, r)) {
			if (!set_has(&m->killed, r))
				group_kill(group, r);
			set_add(&m->killed, r);
			continue;
		}
		for (struct member_client *c = m->clients; c && !m->not_fenced; c = c->next)
			m->not_fenced = c->fence ? c->fence(c->ctx, r) : 0;
		if (m->not_fenced)
			return false;
		if (is_told(m, r))
			shut_out(group, r);
		agreement_fence(&m->agreement, r);
		any = true;
	}
	return any;
}

/* What is under way to those that are to be left out is not waited for. */
static bool has_stopped(tern_group *group)
{
	struct members *m = group->members;
	bool all = true;

	for (uint32_t r = 0; m->copies && r < (uint32_t)group->nr_ranks; r++) {
		if (!is_told(m, r) || set_has(&m->let_go, r) ||
			!set_has(&m->agreement.mine.gone, r))
			continue;
		set_add(&m->let_go, r);
		engine_let_go(group->engine, r, "it is to be left out of the group");
	}
	for (struct member_client *c = m->clients; c; c = c->next)
		all = (!c->has_stopped || c->has_stopped(c->ctx)) && all;
	return all;
}

/* Where all members are in the middle of a call, whose gatherings are not the caller's, nobody can
 * come in. */
static void prepare_for_newcomer(tern_group *group)
{
	struct members *m = group->members;
	uint64_t nonce = 0;
	int newcomer = m->in_parts ? -1 : door_prepare(group, &nonce);

	agreement_prepare(&m->agreement, newcomer, nonce, m->gatherings.number);
}

/* Nothing of before is told after this. */
static void stop_when_possible(tern_group *group)
{
	struct members *m = group->members;

	if (m->agreement.mine.stopped || !has_stopped(group))
		return;
	tell_rounds(group);
	prepare_for_newcomer(group);
	agreement_stop(&m->agreement);
	tell_record(group);
}

/* This rank is in the view that its agreement has. */
static void enter_view(tern_group *group)
{
	group->view = group->members->agreement.mine.view.number;
	group->shape++;
	for (struct member_client *c = group->members->clients; c; c = c->next)
		if (c->changed)
			c->changed(c->ctx);
	tell_record(group);
	gather_forward(group);
}

static void act(tern_group *group)
{
	struct members *m = group->members;
	uint64_t noticed_ns = atomic_load(&m->board->noticed_ns);
	struct rank_set before = m->agreement.mine.view.alive, gone, joined;
	const struct view *now = &m->agreement.mine.view;

	agreement_act(&m->agreement);
	gone = set_without(before, &now->alive);
	joined = set_without(now->alive, &before);
	for (int i = 0; i < 4; i++)
		atomic_fetch_or(&m->ever_gone[i], gone.words[i]);
	m->gone_since = set_either(m->gone_since, &gone);
	m->joined_since = set_either(m->joined_since, &joined);
	door_acted(group, now);
	m->change_ns = noticed_ns ? scheduler_now(group->scheduler) - noticed_ns : 0;
	m->remade = false;
	enter_view(group);
	m->learns = m->copies;
}

void members_replace(tern_group *group, uint32_t rank, struct window *board, uint64_t gathering)
{
	struct members *m = group->members;
	struct window **old = &m->windows[rank];
	bool keep = gathering != m->first_gathering[rank]; /* else it has never given a part */

	if (is_told(m, rank)) {
		tell_replace(group, rank, gathering, keep);
	} else {
		window_drop(keep ? m->before[rank] : *old);
		m->before[rank] = keep ? *old : m->before[rank];
		*old = board;
		m->first_gathering[rank] = gathering;
	}
	set_remove(&m->killed, rank);
	set_remove(&m->let_go, rank);
	gatherings_jump(&m->gatherings, gathering);
}

void members_begin(tern_group *group)
{
	struct members *m = group->members;
	uint64_t gathering = m->agreement.mine.view.gathering;

	m->first_gathering[group->rank] = gathering;
	gatherings_come(&m->gatherings, gathering);
	set_add(&m->joined_since, (uint32_t)group->rank);
	m->open = true;
	enter_view(group);
}

/* What a member has completed it has told before it said that it had stopped; it completes nothing
 * more before this rank takes part. */
static bool knows_rounds(const tern_group *group)
{
	const struct members *m = group->members;

	for (uint32_t r = 0; r < (uint32_t)group->nr_ranks; r++) {
		const struct agreement_record *theirs = &m->agreement.heard[r];

		if (r + 1 == m->agreement.mine.view.newcomer)
			continue; /* it has completed nothing */
		if (members_have(group, r) && is_told(m, r) && theirs->view.number < group->view &&
			!(theirs->view.number + 1 == group->view && theirs->stopped))
			return false;
	}
	return true;
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
	if (m->expelled)
		return m->leaves ? 1 : members_fail_expelled(group);
	if (m->learns && (knows_rounds(group) || agreement_wanted(&m->agreement))) {
		m->learns = false;
		return 1;
	}
	if (m->learns)
		return 0;
	stop_when_possible(group);
	do {
		news = agreement_step(&m->agreement);
		fenced = fence(group);
		if (m->agreement.mine.version != m->told_version)
			tell_record(group); /* also deaths that were noticed before the step */
		if (m->not_fenced)
			return m->not_fenced;
	} while (news == AGREEMENT_CHANGED || (!news && fenced));
	if (news & AGREEMENT_EXPELLED) {
		m->expelled = true;
		return m->leaves ? 1 : members_fail_expelled(group);
	}
	if (!(news & AGREEMENT_DECIDED))
		return 0;
	act(group);
	return !m->learns;
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

	if (!m->learns)
		members_want_change(group);
	rc = wait_until(
		&m->wait_policy, (uint64_t)group->wait_ms * 1000000, look_for_change, group);
	return rc < 0 ? rc : rc ? 0 : change_expired(group);
}

/* Who dies in here is left out by the next change: it has passed all that it was to pass, maybe,
 * and others wait for one that has begun that change. */
static int remake(tern_group *group)
{
	struct members *m = group->members;
	int rc = 0;

	for (struct member_client *c = m->clients; c && !rc; c = c->next)
		rc = c->remake ? c->remake(c->ctx) : 0;
	m->remade = !rc;
	return rc == TERN_ERR_MEMBERS ? 0 : rc;
}

/* Another change may be due when one is made: somebody has died meanwhile. */
int members_change(tern_group *group)
{
	struct members *m = group->members;
	int rc = 0;

	look_for_deaths(group);
	while (!rc && !m->expelled) {
		if (m->learns || members_are_to_change(group) || agreement_wanted(&m->agreement))
			rc = change_once(group);
		else if (!m->remade)
			rc = remake(group);
		else
			break;
	}
	return rc;
}
