/* SPDX-License-Identifier: Apache-2.0 */
/* A process that takes the place of a rank that has gone.
 *
 *   newcomer                          each member
 *   asks the rendezvous for the member's door: a socket of local_socket.h, from another node TCP
 *   ENTER: who, board, lifeline  -->  door.c, on a thread of its own: keeps what came
 *      <-- who, board, lifeline, view, exchanges, nodes, networks
 *   LINE                         -->  another connection, on which nothing is said: line.h
 *   CONNECT: where its engine is -->  admits it   <-- where its own is
 *   SETTINGS of an exchange      -->  compares    <-- its immediates' prefix
 *   WINDOW                       -->  maps it beside what is there  <-- its own
 *   READY                        -->  from now on it would let it in
 *   GO                           -->  wants a change of members
 *
 * Board, lifeline and windows go between ranks of one node. Between nodes there are the line and,
 * in the place of WINDOW, KEYS: where each may write at the other. CONNECT is where the group has
 * an engine, to all, as all tell each other by it.
 *
 * No member's calls wait for any of this. When its caller makes the change, it says in its record
 * that it is ready (door_prepare), and from then on nothing that came is given up. A view that has
 * the newcomer puts all of it into its places (door_acted). Members are asked in the order of their
 * ranks, so that of two for one place one waits for the other. */
#ifndef TERN_GROUP_JOIN_H
#define TERN_GROUP_JOIN_H

#include "group/agreement.h"
#include "group/group.h"
#include "group/window.h"
#include "tern_engine.h"

#define JOIN_MOST_SETTINGS 64

/* An exchange that a newcomer makes, too. The fields are the exchange's. */
struct join_offer {
	uint64_t number;                             /* the same on all ranks, and rises */
	struct setting settings[JOIN_MOST_SETTINGS]; /* as they were compared when it was made */
	int nr_settings;
	uint32_t prefix;       /* of its immediates, where the group has an engine */
	struct window *window; /* this rank's */
	/* A slot has a round under way. */
	bool (*is_busy)(void *ctx);
	/* Takes the window over, in the place of the rank's last one. */
	void (*replace)(void *ctx, uint32_t rank, struct window *window);
	/* Likewise of a rank on another node: the key by which it writes here, and its window. */
	void (*replace_far)(void *ctx, uint32_t rank, tern_region *key, tern_remote *remote);
	/* Between nodes, of a newcomer, or on one: the first words of this rank come after this. */
	void (*meet)(void *ctx, uint32_t rank);
	/* This rank, which has joined, serves from here on. */
	void (*begin)(void *ctx);
	void *ctx;
	struct join_offer *next;
};

/* In the order in which they were made. */
void join_offer_add(tern_group *group, struct join_offer *offer);
void join_offer_remove(tern_group *group, struct join_offer *offer);

/* ---- door.c: members ------------------------------------------------------------------------- */

/* Local: from now on newcomers are heard. */
int door_open(tern_group *group);
void door_close(tern_group *group);

/* The caller's thread stops: a newcomer that is ready (-1: none) is kept until door_acted. */
int door_prepare(tern_group *group, uint64_t *nonce);
/* The group acts on a view, which has whom door_prepare named, or has not. */
void door_acted(tern_group *group, const struct view *view);
/* Who has entered has to enter again: the exchanges are others now. For good: this rank is out. */
void door_turn_away(tern_group *group, bool for_good);

/* ---- newcomer.c ------------------------------------------------------------------------------ */

/* While it is one: what is collective among members, it does with each of them. */
int newcomer_gather(tern_group *group, const void *mine, void *all, size_t bytes);
int newcomer_compare(tern_group *group, const struct setting *settings, int nr_settings);
int newcomer_pass_fd(tern_group *group, int fd);
/* Of the exchange that was compared last. */
uint8_t newcomer_prefix(const tern_group *group);
/* With members of other nodes: keys [R], by which each may write into this rank's window, which are
 * made where there is none; and remotes [R], by which it writes into theirs. */
int newcomer_swap_keys(
	tern_group *group, struct window *window, tern_region **keys, tern_remote **remotes);

/* tern_group_view_change: in the end it is a member. */
int newcomer_enter(tern_group *group);
void newcomer_close(tern_group *group);

#endif
