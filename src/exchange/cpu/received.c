/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/cpu/received.h"

#include <string.h>

#include "exchange/arguments.h"

static void widen_ids(const tern_moe *moe, const struct tern_received *r)
{
	uint64_t topk = moe->config.topk, nr = r->nr_rows * topk,
		 all = moe->layout.positions * topk;

	for (uint64_t i = 0; i < nr; i++)
		r->wide_ids[i] = r->topk_ids[i];
	memset(r->wide_ids + nr, 0xff, (all - nr) * sizeof(*r->wide_ids));
}

/* Routes to a local expert. */
static uint32_t routes_to(const tern_moe *moe, const struct tern_received *r, uint32_t local)
{
	uint64_t all = r->nr_rows * moe->config.topk;
	uint32_t nr = 0;

	if (moe->config.layout != TERN_BY_SOURCE)
		return r->counts[local];
	for (uint64_t i = 0; i < all; i++)
		nr += r->topk_ids[i] == (int32_t)local;
	return nr;
}

static void count_experts(const tern_moe *moe, const struct tern_received *r)
{
	uint32_t alignment = r->counts_alignment ? r->counts_alignment : 1;

	for (uint32_t local = 0; local < moe->nr_local; local++) {
		uint32_t nr = routes_to(moe, r, local);

		if (r->expert_counts)
			r->expert_counts[local] = (nr + alignment - 1) / alignment * alignment;
		if (r->expert_totals)
			r->expert_totals[local] += nr;
	}
}

/* Of the row position `from`, in the columns of `to`. */
static void turn_scales(const tern_moe *moe, const struct tern_received *r, uint64_t from,
	uint32_t *to, uint64_t stride)
{
	uint32_t nr = (moe->config.hidden + SCALE_BLOCK - 1) / SCALE_BLOCK;
	const float *scales = (const float *)r->scales + from * nr;
	const uint8_t *exponents = (const uint8_t *)r->scales + from * nr;

	if (moe->config.scale == TERN_SCALE_FP32) {
		for (uint32_t i = 0; i < nr; i++)
			memcpy(to + i * stride, scales + i, sizeof(*to));
		return;
	}
	for (uint32_t i = 0; i < nr; i += 4) {
		uint32_t four = 0;

		for (uint32_t j = i; j < nr && j < i + 4; j++)
			four |= (uint32_t)exponents[j] << (j - i) * 8;
		to[i / 4 * stride] = four;
	}
}

static void turn_all_scales(const tern_moe *moe, const struct tern_received *r)
{
	uint64_t stride = gemm_scales_stride(moe, r),
		 blocks = (moe->config.hidden + SCALE_BLOCK - 1) / SCALE_BLOCK,
		 columns = moe->config.scale == TERN_SCALE_FP32 ? blocks : (blocks + 3) / 4;
	bool padded = moe->config.layout == TERN_PADDED;
	uint32_t nr_groups = moe->config.layout == TERN_BY_SOURCE ? moe->nr_ranks : moe->nr_local;

	for (uint32_t g = 0; g < nr_groups; g++) {
		uint32_t *to = (uint32_t *)r->gemm_scales +
			       (padded ? g * columns * stride : r->offsets[g]);

		for (uint32_t i = 0; i < r->counts[g]; i++)
			turn_scales(moe, r, r->offsets[g] + i, to + i, stride);
	}
}

void received_beside(const tern_moe *moe, const struct tern_received *r)
{
	if (r->wide_ids)
		widen_ids(moe, r);
	if (r->expert_counts || r->expert_totals)
		count_experts(moe, r);
	if (r->gemm_scales)
		turn_all_scales(moe, r);
}
