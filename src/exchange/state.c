/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/state.h"

#include <stdatomic.h>
#include <stdio.h>

#include "base/error.h"

int slot_check(tern_moe *moe, uint32_t slot, const char *call)
{
	if (!moe)
		return fail(TERN_ERR_INVALID, "%s: moe is NULL", call);
	if (moe->failed)
		return fail(moe->failed, "%s", moe->failed_text);
	if (slot >= moe->config.nr_slots)
		return fail(
			TERN_ERR_INVALID, "%s: slot is %u of %u", call, slot, moe->config.nr_slots);
	return 0;
}

int slot_wrong_state(const tern_moe *moe, uint32_t slot, const char *call)
{
	static const char *const next[] = {"dispatch_send",
		"dispatch_send again (it waits for counts)",
		"dispatch_send again (it waits for room)",
		"dispatch_send again (it waits for room)", "dispatch_recv",
		"combine_send or release", "combine_send again (it waits for room)", "combine_recv",
		"dispatch_send", "combine_send again, with its plan"};
	bool waits = moe->config.elastic && moe->slots[slot].state == SLOT_RELEASED;

	return fail(TERN_ERR_STATE, "%s on slot %u, whose next call is %s", call, slot,
		waits ? "release again (it waits for others')" : next[moe->slots[slot].state]);
}

int exchange_fail(tern_moe *moe, int code, int peer)
{
	moe->failed = code;
	snprintf(moe->failed_text, sizeof(moe->failed_text), "%s", tern_last_error());
	moe->untold = leave_status_make(code, peer);
	return code;
}

uint64_t plan_number(void)
{
	static _Atomic uint64_t nr;

	return atomic_fetch_add_explicit(&nr, 1, memory_order_relaxed) + 1;
}

int plan_unknown(uint64_t id)
{
	return fail(TERN_ERR_STATE, "this exchange has no plan %llu, or no more",
		(unsigned long long)id);
}

int plan_check_placed(const tern_moe *moe, uint64_t id, const struct placed *placed)
{
	const struct placed *now = &moe->placement.placed;

	if (placed_is(placed, now))
		return 0;
	return fail(TERN_ERR_STATE,
		"plan %llu was routed by version %u of the placement, and now it is %u%s: its rows "
		"are with other experts%s",
		(unsigned long long)id, placed->version, now->version,
		placed->version == now->version ? ", another table" : "",
		moe->config.elastic ? ". Dispatch with it first" : "");
}
