/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank holds which expert: the table behind every routing decision. Pure; the same on all
 * ranks. */
#ifndef TERN_EXCHANGE_PLACEMENT_H
#define TERN_EXCHANGE_PLACEMENT_H

#include <stdbool.h>

#include "tern.h"

/* Which tables: the caller's number for them, and what they hash to, which is never 0. All 0: any,
 * as no token is sent. */
struct placed {
	uint32_t version, hash;
};

static inline bool placed_is(const struct placed *a, const struct placed *b)
{
	return a->version == b->version && a->hash == b->hash;
}

struct placement {
	uint32_t nr_experts, nr_physical, nr_ranks;
	struct placed placed;
	bool movable; /* the caller gave `logical`: kernels look into tables */
	uint32_t max_local;
	uint32_t *rank;          /* [P] */
	uint32_t *local;         /* [P] index among its rank's experts */
	uint32_t *logical;       /* [P] */
	uint32_t *nr_local;      /* [R] */
	uint32_t *first_replica; /* [E + 1] into replicas */
	uint32_t *replicas;      /* [P] physical experts by logical id, ascending */
	uint32_t nr_lost;        /* experts that no rank holds any more */
	uint8_t *named;          /* [E] while tables are checked */
};

/* Checks the caller's tables: TERN_ERR_INVALID names the entry. Freed by placement_free, also after
 * a failure. */
int placement_init(struct placement *placement, const struct tern_placement *tables,
	uint32_t nr_experts, uint32_t nr_ranks);
void placement_free(struct placement *placement);

/* Other experts in the same places, all of them on ranks that live again. TERN_ERR_INVALID names
 * what is wrong, and then nothing has changed. */
int placement_replace(struct placement *placement, uint32_t version, const int32_t *logical,
	uint32_t nr_physical);

/* From here on the experts of ranks with alive[rank] 0 serve nobody, and all others do. */
void placement_leave_out(struct placement *placement, const uint8_t *alive);

/* The physical expert that serves `logical` for a token of `source`: tern.h,
 * TERN_REPLICAS_IN_TURN; as a route, -1: those that held it are left out. */
#define PLACEMENT_NOBODY UINT32_MAX
uint32_t placement_choose(
	const struct placement *placement, uint32_t logical, uint32_t source, uint32_t token);

/* The same on the rank with the least load[rank], by the rule above among equals. */
uint32_t placement_choose_least(const struct placement *placement, uint32_t logical,
	uint32_t source, uint32_t token, const uint32_t *load);

static inline uint32_t placement_nr_replicas(const struct placement *placement, uint32_t logical)
{
	return placement->first_replica[logical + 1] - placement->first_replica[logical];
}

/* Differs (with all likelihood) where the tables differ: ranks compare it. */
uint64_t placement_hash(const struct placement *placement);

#endif
