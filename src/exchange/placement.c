/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/placement.h"

#include <stdlib.h>
#include <string.h>

#include "base/blocks.h"
#include "base/error.h"

static int placement_alloc(struct placement *p)
{
	p->rank = calloc(p->nr_physical, sizeof(*p->rank));
	p->local = calloc(p->nr_physical, sizeof(*p->local));
	p->logical = calloc(p->nr_physical, sizeof(*p->logical));
	p->replicas = calloc(p->nr_physical, sizeof(*p->replicas));
	p->nr_local = calloc(p->nr_ranks, sizeof(*p->nr_local));
	p->first_replica = calloc((size_t)p->nr_experts + 2, sizeof(*p->first_replica));
	if (!p->rank || !p->local || !p->logical || !p->replicas || !p->nr_local ||
		!p->first_replica)
		return fail(
			TERN_ERR_NOMEM, "no memory for a placement of %u experts", p->nr_physical);
	return 0;
}

static int placement_fill(struct placement *p, const struct tern_placement *tables)
{
	for (uint32_t i = 0; i < p->nr_physical; i++) {
		int64_t logical = tables->logical ? tables->logical[i] : (int64_t)i;
		int64_t rank = tables->rank ? tables->rank[i]
					    : (int64_t)block_of(i, p->nr_physical, p->nr_ranks);

		if (logical < 0 || logical >= p->nr_experts)
			return fail(TERN_ERR_INVALID,
				"placement.logical[%u] is %lld; experts are 0 to %u", i,
				(long long)logical, p->nr_experts - 1);
		if (rank < 0 || rank >= p->nr_ranks)
			return fail(TERN_ERR_INVALID,
				"placement.rank[%u] is %lld; ranks are 0 to %u", i, (long long)rank,
				p->nr_ranks - 1);
		p->logical[i] = (uint32_t)logical;
		p->rank[i] = (uint32_t)rank;
		p->local[i] = p->nr_local[rank]++;
		if (p->nr_local[rank] > p->max_local)
			p->max_local = p->nr_local[rank];
		p->first_replica[logical + 2]++;
	}
	return 0;
}

static int placement_index(struct placement *p)
{
	for (uint32_t e = 0; e < p->nr_experts; e++) {
		if (!p->first_replica[e + 2])
			return fail(TERN_ERR_INVALID, "placement: expert %u is on no rank", e);
		p->first_replica[e + 2] += p->first_replica[e + 1];
	}
	for (uint32_t i = 0; i < p->nr_physical; i++) /* the counts were two places up, so this
							 leaves starts */
		p->replicas[p->first_replica[p->logical[i] + 1]++] = i;
	return 0;
}

int placement_init(struct placement *p, const struct tern_placement *tables, uint32_t nr_experts,
	uint32_t nr_ranks)
{
	int rc;

	memset(p, 0, sizeof(*p));
	p->nr_experts = nr_experts;
	p->nr_ranks = nr_ranks;
	p->nr_physical = tables->nr_physical ? tables->nr_physical : nr_experts;
	if (p->nr_physical != nr_experts && !tables->logical)
		return fail(TERN_ERR_INVALID,
			"placement has %u physical experts for %u experts and no table `logical`",
			p->nr_physical, nr_experts);
	rc = placement_alloc(p);
	if (!rc)
		rc = placement_fill(p, tables);
	if (!rc)
		rc = placement_index(p);
	if (!rc && p->max_local > UINT16_MAX)
		rc = fail(TERN_ERR_INVALID, "placement puts %u experts on one rank; at most %u",
			p->max_local, UINT16_MAX);
	return rc;
}

/* The physical experts keep their numbers. From all of them anew: ranks come back. */
void placement_leave_out(struct placement *p, const uint8_t *alive)
{
	p->nr_lost = 0;
	memset(p->first_replica, 0, ((size_t)p->nr_experts + 2) * sizeof(*p->first_replica));
	for (uint32_t i = 0; i < p->nr_physical; i++)
		p->first_replica[p->logical[i] + 2] += alive[p->rank[i]] != 0;
	for (uint32_t e = 0; e < p->nr_experts; e++) {
		p->nr_lost += !p->first_replica[e + 2];
		p->first_replica[e + 2] += p->first_replica[e + 1];
	}
	for (uint32_t i = 0; i < p->nr_physical; i++)
		if (alive[p->rank[i]])
			p->replicas[p->first_replica[p->logical[i] + 1]++] = i;
}

void placement_free(struct placement *p)
{
	free(p->rank);
	free(p->local);
	free(p->logical);
	free(p->replicas);
	free(p->nr_local);
	free(p->first_replica);
	memset(p, 0, sizeof(*p));
}

uint32_t placement_choose(
	const struct placement *p, uint32_t logical, uint32_t source, uint32_t token)
{
	uint32_t first = p->first_replica[logical], nr = p->first_replica[logical + 1] - first;

	if (nr == 1)
		return p->replicas[first];
	if (!nr)
		return PLACEMENT_NOBODY;
	for (uint32_t i = 0; i < nr; i++)
		if (p->rank[p->replicas[first + i]] == source)
			return p->replicas[first + i];
	return p->replicas[first + (source + token) % nr];
}

uint64_t placement_hash(const struct placement *p)
{
	uint64_t hash = 14695981039346656037ull; /* FNV-1a */

	for (uint32_t i = 0; i < p->nr_physical; i++) {
		hash = (hash ^ p->logical[i]) * 1099511628211ull;
		hash = (hash ^ p->rank[i]) * 1099511628211ull;
	}
	return hash;
}
