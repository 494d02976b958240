/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "gpu/host/device.h"

static int check_routes(const struct tern_routes *r)
{
	if (!r->nr_ranks || !r->nr_experts || r->nr_experts % r->nr_ranks || !r->topk ||
		r->topk > TERN_MAX_TOPK)
		return fail(TERN_ERR_INVALID,
			"tern_count_routes: %u ranks, %u experts, top-%u; it takes experts in "
			"equal "
			"parts on ranks, and top-1 to %d",
			r->nr_ranks, r->nr_experts, r->topk, TERN_MAX_TOPK);
	if (r->topk_ids_bits && r->topk_ids_bits != 32 && r->topk_ids_bits != 64)
		return fail(TERN_ERR_INVALID,
			"tern_count_routes: topk_ids_bits is %u; 32 and 64 are possible",
			r->topk_ids_bits);
	if ((uintptr_t)r->told % 4 || (uintptr_t)r->finished % 4 ||
		(r->told && r->device && !r->finished))
		return fail(TERN_ERR_INVALID,
			"tern_count_routes: told at %p, finished at %p; on a device both are "
			"needed, aligned to 4 bytes",
			(void *)r->told, (void *)r->finished);
	if (r->rank_tokens && r->expert_routes && (!r->nr_tokens || (r->topk_ids && r->in_rank)) &&
		(uintptr_t)r->topk_ids % (r->topk_ids_bits == 64 ? 8 : 4) == 0 &&
		(uintptr_t)r->rank_tokens % 4 == 0 && (uintptr_t)r->expert_routes % 4 == 0)
		return 0;
	return fail(TERN_ERR_INVALID,
		"tern_count_routes: topk_ids at %p, rank_tokens at %p, expert_routes at %p, "
		"in_rank at "
		"%p; all are needed, aligned to their elements",
		r->topk_ids, (void *)r->rank_tokens, (void *)r->expert_routes, (void *)r->in_rank);
}

static int64_t id_of(const struct tern_routes *r, uint64_t route)
{
	return r->topk_ids_bits == 64 ? ((const int64_t *)r->topk_ids)[route]
				      : ((const int32_t *)r->topk_ids)[route];
}

static void count(const struct tern_routes *r)
{
	uint32_t of_rank = r->nr_experts / r->nr_ranks;

	memset(r->rank_tokens, 0, r->nr_ranks * sizeof(*r->rank_tokens));
	memset(r->expert_routes, 0, r->nr_experts * sizeof(*r->expert_routes));
	for (uint64_t t = 0; t < r->nr_tokens; t++) {
		uint8_t *there = r->in_rank + t * r->nr_ranks;

		memset(there, 0, r->nr_ranks);
		for (uint32_t k = 0; k < r->topk; k++) {
			int64_t id = id_of(r, t * r->topk + k);

			if (id < 0 || id >= r->nr_experts)
				continue;
			r->expert_routes[id]++;
			r->rank_tokens[id / of_rank] += !there[id / of_rank];
			there[id / of_rank] = 1;
		}
	}
}

static void tell(const struct tern_routes *r)
{
	memcpy(r->told + 1, r->rank_tokens, r->nr_ranks * sizeof(*r->told));
	memcpy(r->told + 1 + r->nr_ranks, r->expert_routes, r->nr_experts * sizeof(*r->told));
	__atomic_store_n(r->told, r->told_as, __ATOMIC_RELEASE);
}

int tern_count_routes(const struct tern_routes *theirs)
{
	struct tern_routes room;
	const struct tern_routes *r = struct_in(&kind_routes, theirs, &room);
	int rc;

	if (!r)
		return TERN_ERR_INVALID;
	rc = check_routes(r);
	if (rc)
		return rc;
	if (r->device)
		return device_count_routes(r);
	count(r);
	if (r->told)
		tell(r);
	return 0;
}
