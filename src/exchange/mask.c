/* SPDX-License-Identifier: Apache-2.0 */
/* Masks: ranks that this one neither sends to nor waits for, by its own wish alone. Nobody agrees
 * on them, so sums may differ between ranks; and nobody is fenced. What a masked rank still stores
 * lands where nobody else does: its region, its words, and, with tern_moe_config.masks, places for
 * results that are its own (place_results). */
#include "base/error.h"
#include "exchange/state.h"

/* Of a round under way: its routes there bring nothing home, and its rows get nothing. */
static void leave_round(const tern_moe *moe, struct slot *s, uint32_t rank)
{
	size_t nr = (size_t)s->nr_tokens * moe->config.topk;

	if (s->state == SLOT_IDLE || s->state == SLOT_RELEASED)
		return;
	for (size_t i = 0; i < nr; i++)
		if (s->physical[i] >= 0 && moe->placement.rank[s->physical[i]] == rank)
			s->physical[i] = -1;
	s->rows_home[rank] = 0;
	if (s->state != SLOT_DISPATCHED)
		s->rows_from[rank] = 0;
}

int tern_moe_mask(tern_moe *moe, int rank)
{
	if (!moe || rank < 0 || (uint32_t)rank >= moe->nr_ranks || (uint32_t)rank == moe->rank)
		return fail(TERN_ERR_INVALID,
			"tern_moe_mask: moe is NULL, or rank %d is none of the others", rank);
	if (!moe->config.masks)
		return fail(TERN_ERR_INVALID,
			"tern_moe_mask: the exchange was made without tern_moe_config.masks");
	if (moe->failed)
		return fail(moe->failed, "%s", moe->failed_text);
	if (!moe->alive[rank])
		return 0;
	moe->alive[rank] = 0;
	placement_leave_out(&moe->placement, moe->alive);
	for (uint32_t i = 0; i < moe->config.nr_slots; i++)
		leave_round(moe, &moe->slots[i], (uint32_t)rank);
	return 0;
}
