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
	p->named = calloc(p->nr_experts, sizeof(*p->named));
	if (!p->rank || !p->local || !p->logical || !p->replicas || !p->nr_local ||
		!p->first_replica || !p->named)
		return fail(
			TERN_ERR_NOMEM, "no memory for a placement of %u experts", p->nr_physical);
	return 0;
}

/* Each of them has a place. */
static int check_logical(struct placement *p, const int32_t *logical)
{
	memset(p->named, 0, p->nr_experts * sizeof(*p->named));
	for (uint32_t i = 0; i < p->nr_physical; i++) {
		int64_t expert = logical ? logical[i] : (int64_t)i;

		if (expert < 0 || expert >= p->nr_experts)
			return fail(TERN_ERR_INVALID,
				"placement.logical[%u] is %lld; experts are 0 to %u", i,
				(long long)expert, p->nr_experts - 1);
		p->named[expert] = 1;
	}
	for (uint32_t e = 0; e < p->nr_experts; e++)
		if (!p->named[e])
			return fail(TERN_ERR_INVALID, "placement: expert %u is on no rank", e);
	return 0;
}

static int take_ranks(struct placement *p, const struct tern_placement *tables)
{
	for (uint32_t i = 0; i < p->nr_physical; i++) {
		int64_t rank = tables->rank ? tables->rank[i]
					    : (int64_t)block_of(i, p->nr_physical, p->nr_ranks);

		if (rank < 0 || rank >= p->nr_ranks)
			return fail(TERN_ERR_INVALID,
				"placement.rank[%u] is %lld; ranks are 0 to %u", i, (long long)rank,
				p->nr_ranks - 1);
		p->rank[i] = (uint32_t)rank;
		p->local[i] = p->nr_local[rank]++;
		if (p->nr_local[rank] > p->max_local)
			p->max_local = p->nr_local[rank];
	}
	return 0;
}

/* Whose replicas live; NULL: all do. */
static void index_replicas(struct placement *p, const uint8_t *alive)
{
	p->nr_lost = 0;
	memset(p->first_replica, 0, ((size_t)p->nr_experts + 2) * sizeof(*p->first_replica));
	for (uint32_t i = 0; i < p->nr_physical; i++)
		p->first_replica[p->logical[i] + 2] += !alive || alive[p->rank[i]];
	for (uint32_t e = 0; e < p->nr_experts; e++) {
		p->nr_lost += !p->first_replica[e + 2];
		p->first_replica[e + 2] += p->first_replica[e + 1];
	}
	for (uint32_t i = 0; i < p->nr_physical; i++) /* the counts were two places up, so this
							 leaves starts */
		if (!alive || alive[p->rank[i]])
			p->replicas[p->first_replica[p->logical[i] + 1]++] = i;
}

/* They have been checked. */
static void take_logical(struct placement *p, const int32_t *logical)
{
	for (uint32_t i = 0; i < p->nr_physical; i++)
		p->logical[i] = logical ? (uint32_t)logical[i] : i;
	index_replicas(p, NULL);
}

static void name_tables(struct placement *p, uint32_t version)
{
	uint64_t hash = placement_hash(p);

	p->placed = (struct placed){version, (uint32_t)(hash ^ hash >> 32) | 1};
}

int placement_init(struct placement *p, const struct tern_placement *tables, uint32_t nr_experts,
	uint32_t nr_ranks)
{
	int rc;

	memset(p, 0, sizeof(*p));
	p->nr_experts = nr_experts;
	p->nr_ranks = nr_ranks;
	p->nr_physical = tables->nr_physical ? tables->nr_physical : nr_experts;
	p->movable = tables->logical != NULL;
	if (p->nr_physical != nr_experts && !tables->logical)
		return fail(TERN_ERR_INVALID,
			"placement has %u physical experts for %u experts and no table `logical`",
			p->nr_physical, nr_experts);
	rc = placement_alloc(p);
	rc = rc ? rc : take_ranks(p, tables);
	rc = rc ? rc : check_logical(p, tables->logical);
	if (!rc && p->max_local > UINT16_MAX)
		rc = fail(TERN_ERR_INVALID, "placement puts %u experts on one rank; at most %u",
			p->max_local, UINT16_MAX);
	if (rc)
		return rc;
	take_logical(p, tables->logical);
	name_tables(p, 0);
	return 0;
}

int placement_replace(
	struct placement *p, uint32_t version, const int32_t *logical, uint32_t nr_physical)
{
	int rc;

	if (!logical || nr_physical != p->nr_physical)
		return fail(TERN_ERR_INVALID,
			"tern_moe_place: a table of %u places%s; the exchange has %u", nr_physical,
			logical ? "" : " that is NULL", p->nr_physical);
	rc = check_logical(p, logical);
	if (rc)
		return rc;
	take_logical(p, logical);
	name_tables(p, version);
	return 0;
}

/* The physical experts keep their numbers. From all of them anew: ranks come back. */
void placement_leave_out(struct placement *p, const uint8_t *alive)
{
	index_replicas(p, alive);
}

void placement_free(struct placement *p)
{
	free(p->rank);
	free(p->local);
	free(p->logical);
	free(p->replicas);
	free(p->nr_local);
	free(p->first_replica);
	free(p->named);
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

uint32_t placement_choose_least(const struct placement *p, uint32_t logical, uint32_t source,
	uint32_t token, const uint32_t *load)
{
	uint32_t first = p->first_replica[logical], nr = placement_nr_replicas(p, logical);
	uint32_t least = placement_choose(p, logical, source, token);

	for (uint32_t i = 0; nr > 1 && i < nr; i++) {
		uint32_t other = p->replicas[first + (source + token + i) % nr];

		if (load[p->rank[other]] < load[p->rank[least]])
			least = other;
	}
	return least;
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
