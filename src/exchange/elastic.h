/* SPDX-License-Identifier: Apache-2.0 */
/* An exchange that goes on when members of its group die. Of a slot's rounds each rank counts those
 * that it has completed, in its window, where the others read it. */
#ifndef TERN_EXCHANGE_ELASTIC_H
#define TERN_EXCHANGE_ELASTIC_H

#include "exchange/state.h"
#include "group/join.h"
#include "group/members.h"

/* Of one slot, in its owner's window, and written by it alone. */
struct slot_progress {
	_Atomic uint64_t done; /* rounds completed with this rank's tokens; ELASTIC_UNKNOWN: it has
				  joined, and not looked yet where the others are */
	_Atomic uint64_t tag;  /* of the round under way, or of the last one */
} __attribute__((aligned(CACHE_LINE)));

#define ELASTIC_UNKNOWN UINT64_MAX

/* The epoch of a slot's round n in a view. Two more with each view: a rank that is one round ahead
 * of the one that is made again has used one more than that, and no word of an older view has an
 * epoch of this one. */
static inline uint32_t elastic_epoch(uint32_t first_epoch, uint64_t round, uint64_t view)
{
	return first_epoch + (uint32_t)round + 2 * (uint32_t)view;
}

/* Of one that is being made: its first view. */
void elastic_begin(tern_moe *moe);

/* Where others may join later they make this exchange, too. Its settings are kept; when it is made,
 * it is known; then it goes. */
int elastic_offer_open(tern_moe *moe);
void elastic_offer_keep(tern_moe *moe, const struct setting *settings, int nr_settings);
void elastic_offer_make(tern_moe *moe);
void elastic_offer_drop(tern_moe *moe);

/* Where the rounds that each rank has completed are known: the group's view becomes the exchange's.
 */
void elastic_take_over(tern_moe *moe);
/* TERN_ERR_LOST_EXPERTS, with their numbers. */
int elastic_fail_lost(const tern_moe *moe);

/* Before a call on an elastic exchange goes on: a new view is taken over, or the call is refused.
 */
int elastic_check(tern_moe *moe);

/* A round begins: what of its arguments is for the others to know. */
int elastic_begin_round(tern_moe *moe, uint32_t slot, bool has_tokens, uint64_t tag);

/* The slot's round is over on this rank; also of an exchange that is not elastic. */
void slot_end_round(tern_moe *moe, uint32_t slot);

/* What this rank has completed of a slot's rounds, and what one whose window is not mapped has
 * told: elastic exchanges that have an engine. */
void elastic_look_at_rounds(const tern_moe *moe, uint32_t slot, struct member_round *round);
void elastic_hear_rounds(
	tern_moe *moe, uint32_t rank, uint32_t slot, const struct member_round *round);

/* Where no round is under way, and none is owed: what all members have completed. */
uint64_t elastic_done_by_members(const tern_moe *moe, uint32_t slot);
/* Another process has this rank's place, and has told nothing yet. */
void elastic_forget_rounds(tern_moe *moe, uint32_t rank);

/* 0, or TERN_ERR_MEMBERS where a change is wanted. */
int elastic_look(tern_moe *moe);
/* A member has died: TERN_ERR_MEMBERS. */
int elastic_lost(tern_moe *moe);

#endif
