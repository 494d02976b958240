/* SPDX-License-Identifier: Apache-2.0 */
/* Which prefix the immediates of a new exchange have: the lowest that no living exchange has, on
 * any rank, and of which no immediate is on its way.
 *
 * Ranks destroy exchanges in any order, and networks may report an immediate long after its write
 * has ended. So each rank tells which prefixes are claimed there, and of the first free ones how
 * many more immediates it has sent than it got. Nobody sends under a prefix that nobody claims:
 * when these numbers of all ranks add up to nothing, all that was sent has come, and what comes
 * from now on is new. What a peer that is lost has sent and got nobody tells: a prefix that was
 * claimed before is not claimed again. */
#include "engine/inside.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "group/group.h"

#define CANDIDATES 16
#define NAP_NS 1000000u

struct claimed {
	uint64_t bits[NR_PREFIXES / 64];
};

struct on_their_way {
	uint32_t nr[CANDIDATES]; /* sent less received, modulo 2^32 */
	bool expired;
};

static int copy_claimed(tern_engine *engine, void *ctx)
{
	struct claimed *claimed = ctx;

	for (uint32_t p = 0; p < NR_PREFIXES; p++)
		claimed->bits[p / 64] |= (uint64_t)(engine->claims[p].immediate || engine->spent[p])
					 << p % 64;
	return 0;
}

static int copy_on_their_way(tern_engine *engine, void *ctx)
{
	memcpy(ctx, engine->on_their_way, sizeof(engine->on_their_way));
	return 0;
}

/* The first few that are free on all ranks. */
static int find_free_on_all(
	tern_group *group, tern_engine *engine, uint8_t *free_ones, uint32_t *nr)
{
	struct claimed mine = {{0}}, *all = calloc((size_t)group->nr_ranks, sizeof(*all));
	int rc = all ? engine_call(engine, copy_claimed, &mine)
		     : fail(TERN_ERR_NOMEM, "no memory for %d ranks", group->nr_ranks);

	*nr = 0;
	rc = group_agree_status(group, rc, "tern_moe_create");
	rc = rc ? rc : group_allgather(group, &mine, all, sizeof(mine));
	for (int r = 0; r < group->nr_ranks && !rc; r++)
		for (uint32_t i = 0; i < NR_PREFIXES / 64; i++)
			mine.bits[i] |= all[r].bits[i];
	for (uint32_t p = 0; p < NR_PREFIXES && *nr < CANDIDATES && !rc; p++)
		if (!(mine.bits[p / 64] >> p % 64 & 1))
			free_ones[(*nr)++] = (uint8_t)p;
	free(all);
	return rc;
}

static int count_on_their_way(tern_group *group, tern_engine *engine, const uint8_t *free_ones,
	uint32_t nr, bool expired, struct on_their_way *sum)
{
	struct on_their_way *all = calloc((size_t)group->nr_ranks, sizeof(*all));
	struct on_their_way mine = {.expired = expired};
	uint32_t each[NR_PREFIXES];
	int rc = all ? engine_call(engine, copy_on_their_way, each)
		     : fail(TERN_ERR_NOMEM, "no memory for %d ranks", group->nr_ranks);

	for (uint32_t i = 0; i < nr && !rc; i++)
		mine.nr[i] = each[free_ones[i]];
	rc = group_agree_status(group, rc, "tern_moe_create");
	rc = rc ? rc : group_allgather(group, &mine, all, sizeof(mine));
	*sum = (struct on_their_way){.expired = false};
	for (int r = 0; r < group->nr_ranks && !rc; r++) {
		sum->expired |= all[r].expired;
		for (uint32_t i = 0; i < nr; i++)
			sum->nr[i] += all[r].nr[i];
	}
	free(all);
	return rc;
}

int engine_agree_prefix(tern_group *group, tern_engine *engine, uint8_t *prefix)
{
	uint64_t end_ns = scheduler_now(group->scheduler) + (uint64_t)group->wait_ms * 1000000;
	uint8_t free_ones[CANDIDATES];
	struct on_their_way sum;
	uint32_t nr;
	int rc = find_free_on_all(group, engine, free_ones, &nr);

	if (!rc && !nr)
		return fail(TERN_ERR_NOMEM,
			"%d exchanges of this group are alive, or were when a rank was lost: the "
			"most over an engine",
			NR_PREFIXES);
	while (!rc) {
		bool expired = scheduler_now(group->scheduler) >= end_ns;

		rc = count_on_their_way(group, engine, free_ones, nr, expired, &sum);
		for (uint32_t i = 0; i < nr && !rc; i++) {
			*prefix = free_ones[i];
			if (!sum.nr[i])
				return 0;
		}
		if (!rc && sum.expired)
			rc = fail(TERN_ERR_TIMEOUT,
				"what exchanges that are gone have sent did not come within %d ms",
				group->wait_ms);
		scheduler_yield(group->scheduler, scheduler_now(group->scheduler) + NAP_NS);
	}
	return rc;
}
