/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of an elastic group:
 *   members.c      who they are, and who is gone
 *   view_change.c  one view becomes the next
 *   tell.c         what ranks whose memory is not mapped are told, and tell
 *   gather.c       tern_group_allgather
 */
#ifndef TERN_GROUP_MEMBERS_INSIDE_H
#define TERN_GROUP_MEMBERS_INSIDE_H

#include "base/wait.h"
#include "group/board.h"
#include "group/gatherings.h"
#include "group/members.h"
#include "group/window.h"

struct members {
	struct window **windows; /* [R] of boards; NULL: of a rank that is told by messages */
	struct board **copies;   /* [R] of their boards, as they tell them; NULL: there are none */
	struct board **coming;   /* [R] likewise, of who is about to come in a rank's place */
	struct board *board;     /* this rank's */
	struct agreement agreement;
	uint64_t told_version; /* of its own record, as others have it */
	struct wait_policy wait_policy;
	struct rank_set killed;       /* by this rank */
	struct rank_set let_go;       /* nothing is sent to them any more */
	struct rank_set gone, joined; /* with the last change that the caller was told of */
	struct rank_set gone_since, joined_since; /* that one: to be told with the next */
	uint64_t change_ns;
	_Atomic uint64_t ever_gone[4]; /* who was a member once and went, also where another has
					  come: any thread */
	_Atomic uint64_t wanted;       /* the highest view that others were told is wanted */
	_Atomic uint64_t *forwarded; /* [R] the view in which it has told what it has of ranks that
					are gone: gather.c */
	struct member_client *clients;
	struct gatherings gatherings;
	size_t gathered_bytes; /* of each rank's, in parts before that */
	bool gathers;          /* one is under way */
	bool gives;            /* and this rank has not given its part yet: this one */
	const uint8_t *part;
	uint32_t part_bytes;
	/* Of newcomers, each NULL or 0 for who has been here from the start: */
	struct window **before; /* [R] the board of who had its place, for gatherings before */
	struct board **copies_before; /* [R] likewise, of ranks that are told */
	uint64_t *first_gathering;    /* [R] its first one; until that is over it does not serve */
	_Atomic bool makes;           /* it is in a call that is collective, and makes something */
	bool in_parts;                /* likewise: in a gathering of several parts */
	bool expelled, leaves;
	bool remade;       /* what the view takes besides has been made */
	int not_fenced;    /* 0, or why somebody could not be */
	bool learns;       /* acts on a view, and does not know yet what others have completed */
	bool open;         /* members are met here, and not by the bootstrap */
	bool torn;         /* a call that all were in has failed here, and they may go on with it */
	bool untold;       /* the view has changed within such a call */
	struct view known; /* as the caller was last told */
};

static inline bool is_told(const struct members *m, uint32_t rank)
{
	return !m->windows[rank];
}

static inline struct board *board_of(const struct members *m, uint32_t rank)
{
	return is_told(m, rank) ? m->copies[rank] : (struct board *)m->windows[rank]->base;
}

/* Of who had its place before; NULL: nobody. */
static inline struct board *board_before(const struct members *m, uint32_t rank)
{
	if (is_told(m, rank))
		return m->copies ? m->copies_before[rank] : NULL;
	return m->before[rank] ? (struct board *)m->before[rank]->base : NULL;
}

/* Where its part of the gathering under way lies; NULL: it cannot have one. */
static inline struct board *gathering_board(const struct members *m, uint32_t rank)
{
	if (m->gatherings.number >= m->first_gathering[rank])
		return board_of(m, rank);
	return board_before(m, rank);
}

/* ---- members.c ------------------------------------------------------------------------------- */

/* TERN_ERR_EXPELLED: this rank has left, or was left out. */
int members_fail_expelled(const tern_group *group);

/* ---- view_change.c --------------------------------------------------------------------------- */

/* tern_group_view_change, but for what the caller is told. */
int members_change(tern_group *group);

/* ---- tell.c ---------------------------------------------------------------------------------- */

/* Collective, when the boards are there. */
int tell_open(tern_group *group);
void tell_close(tern_group *group);

/* On the own board, and to those that do not see it. */
void tell_record(tern_group *group);
/* Once for each view. */
void tell_wanted(tern_group *group, uint64_t view);
/* What this rank has completed: before the record that says that it has stopped. */
void tell_rounds(tern_group *group);
/* To a newcomer: before this rank's part of its first gathering. */
void tell_rounds_to(tern_group *group, uint32_t to);
/* A part of a gathering, of rank `origin`. */
void tell_part(tern_group *group, uint32_t to, uint32_t origin, const struct gathered *part);
void tell_forwarded(tern_group *group, uint32_t to);

/* What this rank tells from now on is another's, who is about to come in its place; he does not
 * come after all; he has, and his first gathering is this one. keep: the one before may have given
 * parts of gatherings. */
int tell_expect(tern_group *group, uint32_t rank);
void tell_forget(tern_group *group, uint32_t rank);
void tell_replace(tern_group *group, uint32_t rank, uint64_t gathering, bool keep);

/* ---- gather.c -------------------------------------------------------------------------------- */

/* When a view is acted on: what this rank has of those that are gone, to all members. */
void gather_forward(tern_group *group);

#endif
