/* SPDX-License-Identifier: Apache-2.0 */
/* The members of an elastic group: who they are, noticing that one is gone, and agreeing with the
 * others on the next view. */
#ifndef TERN_GROUP_MEMBERS_H
#define TERN_GROUP_MEMBERS_H

#include <stdatomic.h>

#include "group/group.h"

struct members;

/* What a rank has completed of a slot's rounds. */
struct member_round {
	uint64_t done, tag;
};

/* An exchange that writes to ranks whose memory is not mapped, or whose kernels do. What is NULL is
 * not asked. */
struct member_client {
	/* A change is wanted: on all members what waits, and cannot look for itself, ends its wait.
	 */
	void (*wanted)(void *ctx);
	/* What this rank has sent has landed, or cannot any more; and what others send is passed on
	 * to nobody before the view has changed. */
	bool (*has_stopped)(void *ctx);
	/* The group acts on the next view. */
	void (*changed)(void *ctx);
	/* Nothing that this rank writes, or has written, arrives from here on. It has ended, or is
	 * on another node. */
	int (*fence)(void *ctx, uint32_t rank);
	/* Collective of the members, before any of them goes on in the view: what it takes besides.
	 * TERN_ERR_MEMBERS: one has died meanwhile, and the view is changed once more. */
	int (*remake)(void *ctx);
	/* The caller gathers, so this rank has time. Waits for nothing. */
	void (*rest)(void *ctx);
	/* Before others hear that this rank has stopped; and what others have told, on the proxy.
	 */
	void (*look)(void *ctx, uint32_t slot, struct member_round *round);
	void (*hear)(void *ctx, uint32_t rank, uint32_t slot, const struct member_round *round);
	void *ctx;
	uint32_t nr_slots;
	uint32_t number; /* the same on all ranks, and no other's */
	struct member_client *next;
};

/* Collective, when all paths are known. */
int members_open(tern_group *group);
/* Before the engine ends; and behind it, so that others have what was sent before they see an end.
 */
void members_hear_no_more(tern_group *group);
void members_close(tern_group *group);

bool members_have(const tern_group *group, uint32_t rank);
/* It does its part in exchanges: all of these, but newcomers before their first gathering. */
bool members_serve(const tern_group *group, uint32_t rank);

struct window;
struct view;
/* All but the boards. */
int members_alloc(tern_group *group);
/* A newcomer's board, in the place of the rank's last one. NULL: of one that is told. */
void members_replace(tern_group *group, uint32_t rank, struct window *board, uint64_t gathering);
/* This rank is a member from the view on that its agreement has just acted on. */
void members_begin(tern_group *group);

/* It has ended, as far as this rank sees, or cannot be reached any more: what it sent before is
 * here now, so the caller looks for that once more. */
bool members_lost(const tern_group *group, uint32_t rank);

/* Any thread: a member is gone. */
void members_want_change(tern_group *group);
/* Any thread, in waits: one load. */
bool members_are_to_change(const tern_group *group);
/* 0, or why no half may begin: this rank has told others that it stores nothing. */
int members_check(const tern_group *group);

/* TERN_ERR_MEMBERS, with who is known to be gone. */
int members_fail(tern_group *group);

/* In the same order on all ranks; before any of them may make a round, by
 * a collective agreement. */
int members_add_client(tern_group *group, struct member_client *client);
void members_remove_client(tern_group *group, struct member_client *client);

/* tern_group_allgather of an elastic group. */
int members_allgather(tern_group *group, const void *mine, void *all, size_t bytes);

/* A call begins that is collective, and makes something: TERN_ERR_MEMBERS and TERN_ERR_TIMEOUT as
 * of an allgather, and nothing has been done. When it returns 0 all members are in that call, and
 * owe each other no round. */
int members_meet(tern_group *group);
/* That call has ended. */
void members_made(tern_group *group);

/* Gatherings go over the members, and not over the bootstrap: the group is elastic, and made. */
bool members_gather_here(const tern_group *group);
/* Within such a call: as members_allgather, but for the view, which is changed here. The caller is
 * told by members_check. After any failure there are no gatherings any more. */
int members_gather(tern_group *group, const void *mine, void *all, size_t bytes);
/* Within such a call, where another was waited for that has died: TERN_ERR_MEMBERS, with this
 * thread's text. */
int members_lack(tern_group *group);
/* Whether it takes part in what is collective. */
bool group_has(const tern_group *group, uint32_t rank);

#endif
