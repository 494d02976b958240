/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/place.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "exchange/elastic.h"
#include "exchange/ops.h"

/* ---- what travels ---------------------------------------------------------------------------- */

/* Out of memory that peers may still write to. */
static struct placed placed_of(
	const tern_moe *moe, uint32_t rank, const uint8_t *placed, uint64_t stride)
{
	struct placed one = {0, 0};

	if (moe->alive[rank])
		memcpy(&one, placed + rank * stride, sizeof(one));
	return one;
}

/* "rank 1 by version 7, rank 3 by another version 6" */
static int differ(tern_moe *moe, uint32_t slot, const uint8_t *placed, uint64_t stride)
{
	const struct placed *mine = &moe->slots[slot].placed;
	uint32_t nr = 0, first = moe->rank;
	char text[320] = "";
	size_t at = 0;

	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		struct placed one = placed_of(moe, r, placed, stride);

		if (!one.hash || placed_is(&one, mine))
			continue;
		first = nr ? first : r;
		if (nr++ < 8)
			at += (size_t)snprintf(text + at, sizeof(text) - at,
				"%srank %u by %sversion %u", nr > 1 ? ", " : "", r,
				one.version == mine->version ? "another " : "", one.version);
	}
	fail(TERN_ERR_MISMATCH,
		"rank %u routes by version %u of the placement, and %s%s (slot %u, epoch %u): "
		"tern_moe_place is the same on all ranks before a round",
		moe->rank, mine->version, text, nr > 8 ? ", ..." : "", slot,
		moe->slots[slot].epoch);
	return exchange_fail(moe, TERN_ERR_MISMATCH, (int)first);
}

int placed_check(tern_moe *moe, uint32_t slot, const uint8_t *placed, uint64_t stride)
{
	struct placed *mine = &moe->slots[slot].placed;

	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		struct placed one = placed_of(moe, r, placed, stride);

		if (!mine->hash)
			*mine = one;
		if (one.hash && !placed_is(&one, mine))
			return differ(moe, slot, placed, stride);
	}
	return 0;
}

/* ---- the call -------------------------------------------------------------------------------- */

/* What was routed stays where it went, so a round may be under way. But one that is being sent
 * finds places as it goes on; and one of an elastic exchange may have to be made again, as it
 * was. */
static int check_slots(const tern_moe *moe)
{
	for (uint32_t i = 0; i < moe->config.nr_slots; i++) {
		enum slot_state state = moe->slots[i].state;

		if (moe->config.elastic
				? state != SLOT_IDLE
				: state == SLOT_COUNTED || state == SLOT_SENDING ||
					  state == SLOT_FINISHING || state == SLOT_REPLAYING)
			return slot_wrong_state(moe, i, "tern_moe_place");
	}
	return 0;
}

int tern_moe_place(tern_moe *moe, uint32_t version, const int32_t *logical, uint32_t nr_physical)
{
	int rc = slot_check(moe, 0, "tern_moe_place");

	if (!rc && moe->config.elastic)
		rc = elastic_check(moe);
	rc = rc ? rc : check_slots(moe);
	if (!rc && moe->ops->place_check)
		rc = moe->ops->place_check(moe);
	rc = rc ? rc : placement_replace(&moe->placement, version, logical, nr_physical);
	if (!rc && (moe->config.elastic || moe->config.masks))
		placement_leave_out(&moe->placement, moe->alive);
	if (!rc && moe->ops->place)
		rc = moe->ops->place(moe);
	return rc;
}
