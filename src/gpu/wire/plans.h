/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan (tern.h) keeps of a round on a GPU: what the kernels of its dispatch left for those
 * of its combine, and what its dispatch began with. Of a size that the host knows: for as many rows
 * as there can be. */
#ifndef TERN_GPU_WIRE_PLANS_H
#define TERN_GPU_WIRE_PLANS_H

#include "gpu/wire/state.h"

/* Where a number of tokens is told: the rank combines a plan again, and sends no rows. No dispatch
 * takes it for a number. */
#define GPU_REPLAYED 0x80000000u

struct gpu_kept_state {
	uint32_t nr_tokens, abandoned, nr_rows, nr_arrived, extent;
	uint32_t nr_from[GPU_MAX_RANKS];
};

/* Offsets. */
struct gpu_kept_layout {
	uint64_t state;                              /* struct gpu_kept_state */
	uint64_t ids, weights, home_routes, numbers; /* [tokens][K]; numbers: internode_table's */
	uint64_t row_tokens, row_routes, own_positions; /* low latency: as in struct gpu_exchange */
	uint64_t heads; /* high throughput: [R][T][K], in place of the epoch 0: none; else 1 + the
			   number of an internode source's result */
	uint64_t bytes;
};

HOST_DEVICE uint64_t gpu_kept_take(uint64_t *end, uint64_t bytes)
{
	uint64_t offset = *end;

	*end = (offset + bytes + 255) / 256 * 256;
	return offset;
}

/* nr_tokens: the most that the plan's dispatch may have had. */
HOST_DEVICE struct gpu_kept_layout gpu_kept_layout_of(
	uint32_t nr_ranks, uint32_t max_tokens, uint32_t topk, uint32_t nr_tokens, int low)
{
	uint64_t routes = (uint64_t)nr_tokens * topk, rows = (uint64_t)nr_ranks * max_tokens;
	struct gpu_kept_layout k;

	k.bytes = 0;
	k.state = gpu_kept_take(&k.bytes, sizeof(struct gpu_kept_state));
	k.ids = gpu_kept_take(&k.bytes, routes * 4);
	k.weights = gpu_kept_take(&k.bytes, routes * 4);
	k.home_routes = gpu_kept_take(&k.bytes, routes * 8);
	k.numbers = gpu_kept_take(&k.bytes, routes * 4);
	k.row_tokens = gpu_kept_take(&k.bytes, low ? rows * 4 : 0);
	k.row_routes = gpu_kept_take(&k.bytes, low ? rows * topk * 8 : 0);
	k.own_positions = gpu_kept_take(&k.bytes, low ? routes * 4 : 0);
	k.heads = gpu_kept_take(&k.bytes, low ? 0 : rows * topk * 16);
	return k;
}

#endif
