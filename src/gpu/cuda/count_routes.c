/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"
#include "gpu/cuda/backend.h"
#include "gpu/cuda/beside/kernels.h"
#include "gpu/cuda/check.h"

#define MOST_COLUMNS 12288 /* 48 KiB of a block's shared memory */

/* Zeros: lists that lie one behind the other take one call. */
static int clear(const struct tern_routes *r)
{
	bool whole = r->expert_routes == r->rank_tokens + r->nr_ranks;
	uint32_t first = r->nr_ranks + (whole ? r->nr_experts : 0);
	int rc = cuda_check(cudaMemsetAsync(r->rank_tokens, 0, first * sizeof(uint32_t), r->stream),
		"cudaMemsetAsync of counts");

	return rc || whole ? rc
			   : cuda_check(cudaMemsetAsync(r->expert_routes, 0,
						r->nr_experts * sizeof(uint32_t), r->stream),
				     "cudaMemsetAsync of counts");
}

int device_routes_count(const struct tern_routes *r)
{
	struct gpu_routes routes = {.ids = r->topk_ids,
		.ids_64 = r->topk_ids_bits == 64,
		.nr_tokens = r->nr_tokens,
		.topk = r->topk,
		.nr_ranks = r->nr_ranks,
		.nr_experts = r->nr_experts,
		.by_rank = gpu_divisor_of(r->nr_experts / r->nr_ranks),
		.rank_tokens = r->rank_tokens,
		.expert_routes = r->expert_routes,
		.in_rank = r->in_rank};
	int rc;

	if (r->nr_ranks + r->nr_experts > MOST_COLUMNS)
		return fail(TERN_ERR_UNSUPPORTED,
			"tern_count_routes: %u ranks and %u experts; a device counts %u in all",
			r->nr_ranks, r->nr_experts, MOST_COLUMNS);
	rc = clear(r);
	return rc || !r->nr_tokens ? rc
				   : cuda_check(count_routes_launch(&routes, r->stream),
					     "the kernel that counts routes");
}
