/* SPDX-License-Identifier: Apache-2.0 */
/* What a caller may ask an exchange: experts, memory, reports and statistics. */
#include "base/error.h"
#include "base/struct_size.h"
#include "exchange/ops.h"

int tern_moe_nr_local(const tern_moe *moe)
{
	return moe ? (int)moe->nr_local : fail(TERN_ERR_INVALID, "moe is NULL");
}

int tern_moe_mode(const tern_moe *moe)
{
	return moe ? (int)moe->config.mode : fail(TERN_ERR_INVALID, "moe is NULL");
}

int tern_moe_local_expert(const tern_moe *moe, uint32_t local)
{
	if (!moe || local >= moe->nr_local)
		return fail(TERN_ERR_INVALID, "moe is NULL or local expert %u is none of its %u",
			local, moe ? moe->nr_local : 0);
	for (uint32_t p = 0; p < moe->placement.nr_physical; p++)
		if (moe->placement.rank[p] == moe->rank && moe->placement.local[p] == local)
			return (int)moe->placement.logical[p];
	return fail(TERN_ERR_INVALID, "local expert %u is in no table", local);
}

int tern_moe_memory(const tern_moe *moe, struct tern_memory *memory)
{
	struct tern_memory now;

	if (!moe || !memory)
		return fail(TERN_ERR_INVALID, "moe or memory is NULL");
	moe->ops->memory(moe, &now);
	return struct_out(&kind_memory, memory, &now);
}

int tern_moe_wait_report(const tern_moe *moe, struct tern_wait_report *report)
{
	if (!moe || !report)
		return fail(TERN_ERR_INVALID, "moe or report is NULL");
	exchange_look(moe); /* what it says is what is asked for */
	return struct_out(&kind_wait_report, report, &moe->report);
}

int tern_moe_stats(const tern_moe *moe, struct tern_stats *stats)
{
	struct tern_stats now;
	int rc;

	if (!moe || !stats)
		return fail(TERN_ERR_INVALID, "moe or stats is NULL");
	rc = moe->ops->stats(moe, &now);
	return rc ? rc : struct_out(&kind_stats, stats, &now);
}

int tern_moe_expert_load(const tern_moe *moe, uint64_t *counts, uint32_t nr)
{
	if (!moe || !counts || nr != moe->config.nr_experts)
		return fail(TERN_ERR_INVALID, "moe or counts is NULL, or nr is %u for %u experts",
			nr, moe ? moe->config.nr_experts : 0);
	return moe->ops->expert_load(moe, counts);
}

int tern_moe_stats_reset(tern_moe *moe)
{
	if (!moe)
		return fail(TERN_ERR_INVALID, "moe is NULL");
	return moe->ops->stats_reset(moe);
}
