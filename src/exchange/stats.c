/* SPDX-License-Identifier: Apache-2.0 */
/* What a caller may ask an exchange: experts, memory, reports and statistics. */
#include <string.h>

#include "gpu/host/device.h"
#include "base/error.h"
#include "exchange/state.h"
#include "path/path.h"
#include "base/struct_size.h"

int tern_moe_nr_local(const tern_moe *moe)
{
	return moe ? (int)moe->nr_local : fail(TERN_ERR_INVALID, "moe is NULL");
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
	now = (struct tern_memory){.window_bytes = moe->layout.window_bytes,
		.output_bytes = moe->layout.output.bytes * moe->layout.nr_slots,
		.private_bytes = moe->private_bytes,
		.staging_bytes = moe->device ? 0 : path_staging_bytes(moe)};
	now.window_bytes -=
		(uint64_t)moe->layout.nr_channels * moe->layout.nr_chunks * moe->layout.chunk_bytes;
	if (moe->device)
		device_memory(moe, &now);
	else if (moe->config.mode == TERN_HIGH_THROUGHPUT)
		now.window_bytes -= now.output_bytes;
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
	now = moe->stats;
	rc = moe->device ? device_stats(moe, &now) : 0;
	return rc ? rc : struct_out(&kind_stats, stats, &now);
}

int tern_moe_expert_load(const tern_moe *moe, uint64_t *counts, uint32_t nr)
{
	if (!moe || !counts || nr != moe->config.nr_experts)
		return fail(TERN_ERR_INVALID, "moe or counts is NULL, or nr is %u for %u experts",
			nr, moe ? moe->config.nr_experts : 0);
	if (moe->device)
		return device_expert_load(moe, counts);
	memcpy(counts, moe->expert_load, nr * sizeof(*counts));
	return 0;
}

int tern_moe_stats_reset(tern_moe *moe)
{
	if (!moe)
		return fail(TERN_ERR_INVALID, "moe is NULL");
	if (moe->device)
		return device_stats_reset(moe);
	memset(&moe->stats, 0, sizeof(moe->stats));
	if (moe->expert_load)
		memset(moe->expert_load, 0, moe->config.nr_experts * sizeof(*moe->expert_load));
	return 0;
}
