/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a rank that joins:
 *   newcomer.c        joining, making exchanges, the way in
 *   newcomer_enter.c  asking members' doors, and entering them
 */
#ifndef TERN_GROUP_NEWCOMER_INSIDE_H
#define TERN_GROUP_NEWCOMER_INSIDE_H

#include "group/join_wire.h"
#include "group/members_inside.h"

#define END_MS 1000 /* of a process, once its sockets are closed */
/* Of an answer that did not come: the member's process has ended, or shown us out. */
#define GONE 2

struct newcomer {
	uint64_t nonce, deadline_ns;
	int *sockets; /* [R] to members that have let it enter; -1 */
	bool *ready;  /* [R] and have all that they need */
	bool known;   /* the view */
	uint32_t round;
	uint64_t numbers[JOIN_MOST_EXCHANGES]; /* of the exchanges that are there to be made */
	uint32_t nr_numbers, next, prefix;
	uint64_t looked_ns;          /* when a door was asked which view there is, or that of its
					own place */
	struct join_message message; /* one at a time: asked, and answered */
	struct join_coming coming;
};

bool newcomer_is_late(const struct newcomer *n);
int newcomer_left_ms(const struct newcomer *n);
void newcomer_set_deadline(tern_group *group);

static inline bool has_entered(const struct newcomer *n, int rank)
{
	return n->sockets[rank] >= 0;
}

/* On another node, as far as is known. */
static inline bool is_elsewhere(const tern_group *group, int rank)
{
	return group->peers[rank].path == TERN_PATH_ENGINE;
}

/* n->message is sent, and then the answer. 0, JOIN_LATER, GONE, or an error. */
struct join_message *newcomer_message(struct newcomer *n, enum join_kind kind);
int newcomer_ask(tern_group *group, int rank, const int *fds, int nr_fds, int *answered);
bool newcomer_has_died(const tern_group *group, int rank);
/* It has not entered there any more. */
void newcomer_leave_door(tern_group *group, int rank);

/* What members show by now, as the view may have changed: enum agreement_news. */
int newcomer_look_around(tern_group *group);
/* -1: all members have let it enter. */
int newcomer_find_missing(const tern_group *group);
/* 0: it has; GONE: nobody is there; JOIN_LATER; or an error. */
int newcomer_enter_one(tern_group *group, int rank);
int newcomer_enter_all(tern_group *group);

#endif
