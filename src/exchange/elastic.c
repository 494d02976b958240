/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/elastic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/engine.h"

static struct slot_progress *progress_of(const tern_moe *moe, uint32_t rank, uint32_t slot)
{
	if (!moe->windows || !moe->windows[rank])
		return &moe->told[rank * moe->config.nr_slots + slot];
	return (struct slot_progress *)(moe->windows[rank]->base +
					layout_progress(&moe->layout, slot));
}

static uint64_t done_by(const tern_moe *moe, uint32_t rank, uint32_t slot)
{
	return atomic_load_explicit(&progress_of(moe, rank, slot)->done, memory_order_relaxed);
}

/* Relaxed: those of others come before the records by which views are agreed upon. */
void elastic_look_at_rounds(const tern_moe *moe, uint32_t slot, struct member_round *round)
{
	const struct slot_progress *mine = progress_of(moe, moe->rank, slot);

	round->done = done_by(moe, moe->rank, slot);
	round->tag = atomic_load_explicit(&mine->tag, memory_order_relaxed);
}

void elastic_hear_rounds(
	tern_moe *moe, uint32_t rank, uint32_t slot, const struct member_round *round)
{
	struct slot_progress *theirs = progress_of(moe, rank, slot);

	atomic_store_explicit(&theirs->tag, round->tag, memory_order_relaxed);
	atomic_store_explicit(&theirs->done, round->done, memory_order_relaxed);
}

/* A newcomer that has not said yet where it begins is at the round that is to be made: this one. */
static bool is_counted(const tern_moe *moe, uint32_t rank, uint32_t slot)
{
	return moe->alive[rank] && done_by(moe, rank, slot) != ELASTIC_UNKNOWN;
}

/* The round that has to be made next is the first that some member lacks. Members are at most one
 * round apart, since none ends a round that another has not begun; and none ends the next one
 * before this rank takes part in it, so all find the same. */
static void find_round(tern_moe *moe, uint32_t slot)
{
	struct slot *s = &moe->slots[slot];
	uint32_t behind = moe->rank;

	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		if (is_counted(moe, r, slot) && done_by(moe, r, slot) < done_by(moe, behind, slot))
			behind = r;
	s->round = done_by(moe, behind, slot);
	s->owed = behind != moe->rank;
	s->served = false;
	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		s->served =
			s->served || (is_counted(moe, r, slot) && done_by(moe, r, slot) > s->round);
	s->plan = 0;
	s->replays = false;
	s->replayed = NULL;
	s->tag = atomic_load_explicit(&progress_of(moe, behind, slot)->tag, memory_order_relaxed);
	s->epoch = elastic_epoch(moe->config.first_epoch, s->round, moe->view);
	s->state = SLOT_IDLE;
}

void elastic_begin(tern_moe *moe)
{
	moe->view = moe->group->view;
	moe->shape = moe->group->shape;
	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		moe->alive[r] = members_serve(moe->group, r);
	placement_leave_out(&moe->placement, moe->alive);
}

/* Where it is the same view, a newcomer serves from here on, and no round is under way. */
void elastic_take_over(tern_moe *moe)
{
	bool is_same = moe->view == moe->group->view;

	elastic_begin(moe);
	for (uint32_t slot = 0; slot < moe->config.nr_slots && !is_same; slot++)
		find_round(moe, slot);
}

int elastic_check(tern_moe *moe)
{
	int rc = members_check(moe->group);

	if (!rc && !members_serve(moe->group, moe->rank))
		return fail(TERN_ERR_STATE,
			"rank %u has joined in view %llu, and serves from the first "
			"tern_group_allgather on that all members begin after it",
			moe->rank, (unsigned long long)moe->group->view);
	if (!rc && moe->shape != moe->group->shape)
		elastic_take_over(moe);
	return rc;
}

/* ---- what newcomers make, too ---------------------------------------------------------------- */

static bool is_busy(void *ctx)
{
	const tern_moe *moe = ctx;

	for (uint32_t slot = 0; slot < moe->config.nr_slots; slot++)
		if (moe->slots[slot].state != SLOT_IDLE)
			return true;
	return false;
}

struct replacing {
	tern_moe *moe;
	uint32_t rank;
	struct window *window;
};

static int swap(tern_engine *engine, void *ctx)
{
	struct replacing *r = ctx;
	struct window *old = r->moe->windows[r->rank];

	(void)engine;
	r->moe->windows[r->rank] = r->window;
	r->window = old;
	return 0;
}

/* The proxy, where there is one, stores into windows of its node. */
static void replace(void *ctx, uint32_t rank, struct window *window)
{
	tern_moe *moe = ctx;
	struct replacing r = {moe, rank, window};

	if (moe->engine)
		engine_call(moe->group->engine, swap, &r);
	else
		swap(NULL, &r);
	window_drop(r.window);
}

void elastic_forget_rounds(tern_moe *moe, uint32_t rank)
{
	for (uint32_t slot = 0; slot < moe->config.nr_slots; slot++)
		atomic_store_explicit(
			&progress_of(moe, rank, slot)->done, ELASTIC_UNKNOWN, memory_order_relaxed);
}

uint64_t elastic_done_by_members(const tern_moe *moe, uint32_t slot)
{
	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		if (members_serve(moe->group, r) && done_by(moe, r, slot) != ELASTIC_UNKNOWN)
			return done_by(moe, r, slot);
	return 0;
}

/* All members have completed the same rounds, and make none before this rank takes part. */
static void begin(void *ctx)
{
	tern_moe *moe = ctx;

	for (uint32_t slot = 0; slot < moe->config.nr_slots; slot++)
		atomic_store_explicit(&progress_of(moe, moe->rank, slot)->done,
			elastic_done_by_members(moe, slot), memory_order_release);
}

int elastic_offer_open(tern_moe *moe)
{
	struct join_offer *o;

	if (!moe->config.elastic || !moe->group->rendezvous.get)
		return 0;
	moe->offer = o = calloc(1, sizeof(*o));
	if (!o)
		return fail(TERN_ERR_NOMEM, "no memory for what newcomers are told");
	o->is_busy = is_busy;
	o->replace = replace;
	o->begin = begin;
	o->ctx = moe;
	return 0;
}

void elastic_offer_keep(tern_moe *moe, const struct setting *settings, int nr_settings)
{
	struct join_offer *o = moe->offer;

	for (int i = 0; o && i < nr_settings && i < JOIN_MOST_SETTINGS; i++)
		o->settings[o->nr_settings++] = settings[i];
}

void elastic_offer_make(tern_moe *moe)
{
	if (!moe->offer)
		return;
	moe->offer->number = moe->group->round;
	moe->offer->window = moe->windows[moe->rank];
	for (uint32_t slot = 0; moe->group->newcomer && slot < moe->config.nr_slots; slot++)
		atomic_store_explicit(&progress_of(moe, moe->rank, slot)->done, ELASTIC_UNKNOWN,
			memory_order_relaxed);
	join_offer_add(moe->group, moe->offer);
}

void elastic_offer_drop(tern_moe *moe)
{
	if (!moe->offer)
		return;
	join_offer_remove(moe->group, moe->offer);
	free(moe->offer);
	moe->offer = NULL;
}

/* "expert 3, 11 of 32" */
int elastic_fail_lost(const tern_moe *moe)
{
	const struct placement *p = &moe->placement;
	char list[256] = "";
	size_t at = 0;

	for (uint32_t e = 0; e < p->nr_experts && at < sizeof(list) - 24; e++)
		if (p->first_replica[e] == p->first_replica[e + 1])
			at += (size_t)snprintf(
				list + at, sizeof(list) - at, "%s%u", at ? ", " : "", e);
	return fail(TERN_ERR_LOST_EXPERTS, "no member of view %llu holds these of %u experts: %s%s",
		(unsigned long long)moe->view, p->nr_experts, list,
		at < sizeof(list) - 24 ? "" : ", ...");
}

int elastic_begin_round(tern_moe *moe, uint32_t slot, bool has_tokens, uint64_t tag)
{
	if (moe->placement.nr_lost)
		return elastic_fail_lost(moe);
	if (moe->slots[slot].owed && has_tokens)
		return fail(TERN_ERR_STATE,
			"tokens, or a plan's results, on slot %u, where this rank owes others a "
			"round without tokens: tern_moe_owed",
			slot);
	if (!moe->slots[slot].owed)
		atomic_store_explicit(
			&progress_of(moe, moe->rank, slot)->tag, tag, memory_order_relaxed);
	return 0;
}

/* Release: what comes with the next view's records is seen by whoever sees this. */
void slot_end_round(tern_moe *moe, uint32_t slot)
{
	struct slot *s = &moe->slots[slot];

	s->epoch++;
	s->state = SLOT_IDLE;
	if (!moe->config.elastic)
		return;
	s->round++;
	if (!s->owed)
		atomic_store_explicit(
			&progress_of(moe, moe->rank, slot)->done, s->round, memory_order_release);
	s->owed = s->served = false;
}

int elastic_look(tern_moe *moe)
{
	return members_are_to_change(moe->group) ? members_fail(moe->group) : 0;
}

int elastic_lost(tern_moe *moe)
{
	members_want_change(moe->group);
	return members_fail(moe->group);
}
