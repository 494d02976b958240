/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"
#include "gpu/cuda/backend.h"
#include "gpu/cuda/beside/kernels.h"
#include "gpu/cuda/check.h"

#define MOST_COLUMNS 12288 /* 48 KiB of a block's shared memory */

static int put_zeros(uint32_t *to, uint64_t nr, cudaStream_t stream)
{
	return cuda_check(
		cudaMemsetAsync(to, 0, nr * sizeof(*to), stream), "cudaMemsetAsync of counts");
}

/* What lies one behind the other takes one call. */
static int clear(const struct tern_routes *r)
{
	bool whole = r->expert_routes == r->rank_tokens + r->nr_ranks,
	     behind = r->told && r->finished == r->expert_routes + r->nr_experts;
	uint64_t experts = r->nr_experts + (uint64_t)behind;
	int rc = put_zeros(r->rank_tokens, r->nr_ranks + (whole ? experts : 0), r->stream);

	if (!rc && !whole)
		rc = put_zeros(r->expert_routes, experts, r->stream);
	return rc || behind || !r->told ? rc : put_zeros(r->finished, 1, r->stream);
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
		.in_rank = r->in_rank,
		.told = r->told,
		.told_as = r->told_as,
		.finished = r->finished};
	int rc;

	if (r->nr_ranks + r->nr_experts > MOST_COLUMNS)
		return fail(TERN_ERR_UNSUPPORTED,
			"tern_count_routes: %u ranks and %u experts; a device counts %u in all",
			r->nr_ranks, r->nr_experts, MOST_COLUMNS);
	rc = clear(r);
	return rc || (!r->nr_tokens && !r->told)
		       ? rc
		       : cuda_check(count_routes_launch(&routes, r->stream),
				 "the kernel that counts routes");
}
