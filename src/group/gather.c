/* SPDX-License-Identifier: Apache-2.0 */
/* Gathering in an elastic group. All members get the same of a rank that is gone: what it gave, or
 * zeros. Where its board is mapped it is there to see. Else some may have been told its part, and
 * others not: with each view every member tells all others what it has of those that are gone, and
 * waits until all have told. Who has it is heard by all that go on, or has gone itself. */
#include <string.h>

#include "base/error.h"
#include "group/join.h"
#include "group/members_inside.h"

/* Each part of a gathering has a number, and every other one the same place: who has the part n of
 * all has seen that they have n - 1 of all, and n - 2 is read by nobody. */
static struct gathered *part_of(const struct members *m, uint32_t rank)
{
	struct board *board = gathering_board(m, rank);

	return board ? &board->gathered[m->gatherings.number & 1] : NULL;
}

static bool has_given(const struct members *m, uint32_t rank)
{
	const struct gathered *part = part_of(m, rank);

	return part && record_observe(&part->number) == m->gatherings.number;
}

/* A member, and it is to give a part of this one. */
static bool takes_part(const tern_group *group, uint32_t rank)
{
	const struct members *m = group->members;

	return members_have(group, rank) && m->gatherings.number >= m->first_gathering[rank];
}

/* What may still come of a rank that is no member. */
static bool is_known(const tern_group *group, uint32_t rank)
{
	const struct members *m = group->members;

	if (has_given(m, rank) || !is_told(m, rank))
		return true;
	for (uint32_t r = 0; r < (uint32_t)group->nr_ranks; r++)
		if (members_have(group, r) && r != (uint32_t)group->rank &&
			record_observe(&m->forwarded[r]) < group->view)
			return false;
	return true;
}

/* Who comes to a gathering for the first time learns in it where the others are, before anybody
 * can begin a round with it: so it gives its part when it has theirs. */
static bool may_give(const tern_group *group)
{
	const struct members *m = group->members;

	if (!m->copies || m->gatherings.number != m->first_gathering[group->rank])
		return true;
	for (uint32_t r = 0; r < (uint32_t)group->nr_ranks; r++)
		if (r != (uint32_t)group->rank && members_have(group, r) &&
			m->gatherings.number > m->first_gathering[r] && !has_given(m, r))
			return false;
	return true;
}

/* Between nodes: no round is under way, and none begins with it before this rank has given its
 * part. */
static void meet_newcomers(tern_group *group)
{
	const struct members *m = group->members;
	uint64_t number = m->gatherings.number;
	bool is_first = number == m->first_gathering[group->rank];

	for (uint32_t r = 0; m->copies && r < (uint32_t)group->nr_ranks; r++) {
		if (!is_told(m, r) || !members_have(group, r) ||
			(!is_first && number != m->first_gathering[r]))
			continue;
		for (struct join_offer *o = group->offers; o; o = o->next)
			o->meet(o->ctx, r);
		if (!is_first)
			tell_rounds_to(group, r);
	}
}

static void give_part(tern_group *group)
{
	struct members *m = group->members;
	struct gathered *part = &m->board->gathered[m->gatherings.number & 1];

	meet_newcomers(group);
	memcpy(part->bytes, m->part, m->part_bytes);
	part->nr = m->part_bytes;
	record_publish(&part->number, m->gatherings.number);
	m->gives = false;
	for (uint32_t r = 0; m->copies && r < (uint32_t)group->nr_ranks; r++)
		if (is_told(m, r) && members_have(group, r))
			tell_part(group, r, (uint32_t)group->rank, part);
}

static bool is_here(const tern_group *group, uint32_t rank)
{
	return takes_part(group, rank) ? has_given(group->members, rank) : is_known(group, rank);
}

/* Without having given its part: a rank may end as soon as it has all, so what it has given is
 * looked for once more when it is seen to be gone. */
static bool is_lost(const tern_group *group, uint32_t rank)
{
	return members_have(group, rank) && members_lost(group, rank) && !is_here(group, rank);
}

static int look_for_part(void *ctx)
{
	tern_group *group = ctx;
	bool all = true, lost = false;
	bool to_change = members_are_to_change(group); /* maybe by who has all parts: before these
							  looks */

	if (group->members->gives && may_give(group))
		give_part(group);
	for (uint32_t r = 0; r < (uint32_t)group->nr_ranks; r++) {
		if (is_here(group, r))
			continue;
		all = false;
		lost = lost || is_lost(group, r);
	}
	if (all)
		return 1;
	if (lost)
		members_want_change(group);
	return lost || to_change ? members_fail(group) : 0;
}

/* Of those in whose places others are: as far as a member may still be in that gathering. */
static void forward_before(tern_group *group, uint32_t to)
{
	const struct members *m = group->members;

	for (uint32_t r = 0; r < (uint32_t)group->nr_ranks; r++) {
		const struct board *before = board_before(m, r);

		for (int i = 0; before && i < 2; i++)
			if (record_observe(&before->gathered[i].number) &&
				record_observe(&before->gathered[i].number) >=
					m->gatherings.complete)
				tell_part(group, to, r, &before->gathered[i]);
	}
}

/* The member that was told nothing of this part by the rank itself. */
void gather_forward(tern_group *group)
{
	const struct members *m = group->members;
	uint32_t nr = (uint32_t)group->nr_ranks;

	for (uint32_t to = 0; m->copies && to < nr; to++) {
		if (!members_have(group, to) || to == (uint32_t)group->rank)
			continue;
		for (uint32_t gone = 0; gone < nr; gone++)
			for (int i = 0; i < 2 && !members_have(group, gone); i++)
				if (record_observe(&board_of(m, gone)->gathered[i].number))
					tell_part(group, to, gone, &board_of(m, gone)->gathered[i]);
		forward_before(group, to);
		tell_forwarded(group, to);
	}
}

/* Who is no member may have given it before it went: that was so for all. */
static void take_part(const tern_group *group, uint8_t *all, size_t each, size_t bytes)
{
	const struct members *m = group->members;

	for (int r = 0; r < group->nr_ranks; r++) {
		uint8_t *to = all + (size_t)r * each + m->gathered_bytes;

		if (has_given(m, (uint32_t)r) && part_of(m, (uint32_t)r)->nr == bytes)
			memcpy(to, part_of(m, (uint32_t)r)->bytes, bytes);
		else
			memset(to, 0, bytes);
	}
}

/* A newcomer came to another place of the members' program than it thinks: its part counts as zeros
 * there, and it learns of it here. */
static int check_size(const tern_group *group, size_t bytes)
{
	const struct members *m = group->members;
	uint32_t me = (uint32_t)group->rank;

	for (uint32_t r = 0; r < (uint32_t)group->nr_ranks; r++)
		if (r != me && m->gatherings.number == m->first_gathering[me] && has_given(m, r) &&
			part_of(m, r)->nr != bytes)
			return fail(TERN_ERR_MISMATCH,
				"rank %d has joined and gathers %zu bytes, where rank %u gathers "
				"%u: the others are at another place of their program",
				group->rank, bytes, r, part_of(m, r)->nr);
	return 0;
}

/* At a newcomer's first gathering all ranks are at the same place of their programs: that is to be
 * one without rounds under way. */
static int check_rounds(const tern_group *group)
{
	const struct members *m = group->members;

	if (m->gathers || m->gathered_bytes || !gatherings_entry_is_next(&m->gatherings))
		return 0;
	for (const struct join_offer *o = group->offers; o; o = o->next)
		if (o->is_busy(o->ctx))
			return fail(TERN_ERR_STATE,
				"a rank has joined (view %llu), and serves from this gathering on: "
				"no slot may have a round under way at it",
				(unsigned long long)group->view);
	return 0;
}

/* All parts of their first gathering are here, so all members are in it, or past it, and owe each
 * other no round. */
static void let_newcomers_serve(tern_group *group)
{
	struct members *m = group->members;
	uint64_t before = m->gatherings.complete;

	m->gatherings.complete = m->gatherings.number;
	if (before >= m->gatherings.entry || m->gatherings.complete < m->gatherings.entry)
		return;
	group->shape++;
	if (m->first_gathering[group->rank] == m->gatherings.entry)
		for (struct join_offer *o = group->offers; o; o = o->next)
			o->begin(o->ctx);
}

static int gather(tern_group *group, const uint8_t *mine, uint8_t *all, size_t bytes)
{
	struct members *m = group->members;
	int rc = check_rounds(group);

	if (rc)
		return rc;
	m->in_parts = bytes > BOARD_GATHER_BYTES;
	while (m->gathered_bytes < bytes || m->gathers) {
		size_t part = bytes - m->gathered_bytes;

		part = part < BOARD_GATHER_BYTES ? part : BOARD_GATHER_BYTES;
		if (!m->gathers)
			gatherings_next(&m->gatherings);
		m->gives = m->gives || !m->gathers;
		m->gathers = true;
		m->part = mine + m->gathered_bytes;
		m->part_bytes = (uint32_t)part;
		rc = wait_until(
			&m->wait_policy, (uint64_t)group->wait_ms * 1000000, look_for_part, group);
		if (rc < 0)
			return rc;
		if (!rc)
			return fail(TERN_ERR_TIMEOUT,
				"rank %d waited %d ms for all members to gather", group->rank,
				group->wait_ms);
		rc = check_size(group, part);
		if (rc)
			return rc;
		take_part(group, all, bytes, part);
		m->gathered_bytes += part;
		m->gathers = false;
	}
	m->gathered_bytes = 0;
	m->in_parts = false;
	let_newcomers_serve(group);
	return 0;
}

static int check_whole(const tern_group *group)
{
	if (!group->members->torn)
		return 0;
	return fail(TERN_ERR_STATE,
		"rank %d: a call that all members were in failed here in its middle: no others can "
		"be made",
		group->rank);
}

int members_allgather(tern_group *group, const void *mine, void *all, size_t bytes)
{
	int rc = members_check(group);

	rc = rc ? rc : check_whole(group);
	for (struct member_client *c = group->members->clients; c && !rc; c = c->next)
		if (c->rest)
			c->rest(c->ctx);
	return rc ? rc : gather(group, mine, all, bytes);
}

int members_meet(tern_group *group)
{
	uint8_t here = 1, all[VIEW_MOST_RANKS];

	if (group->newcomer)
		return 0;
	group->members->makes = true;
	return members_allgather(group, &here, all, sizeof(here));
}

/* Who has entered before lacks what was made. */
void members_made(tern_group *group)
{
	if (!group->members || group->newcomer)
		return;
	door_turn_away(group, false);
	group->members->makes = false;
}

bool members_gather_here(const tern_group *group)
{
	return group->members && group->members->open;
}

/* Others are in this call too, and wait here for whoever is told of a change by another one. */
int members_gather(tern_group *group, const void *mine, void *all, size_t bytes)
{
	struct members *m = group->members;
	int rc = check_whole(group);

	if (rc)
		return rc;
	while ((rc = gather(group, mine, all, bytes)) == TERN_ERR_MEMBERS) {
		rc = members_change(group);
		rc = !rc && m->expelled ? members_check(group) : rc;
		if (rc)
			break;
		m->untold = true;
	}
	m->torn = m->torn || rc;
	return rc;
}
