/* SPDX-License-Identifier: Apache-2.0 */
/* Plans that outlive their round (tern.h, "plans"): what a slot knows of where rows went, copied
 * out of it, and the headers of the rows that came, copied out of the window. A round with a plan
 * begins with the copy put back. */
#ifndef TERN_EXCHANGE_CPU_PLANS_H
#define TERN_EXCHANGE_CPU_PLANS_H

#include "exchange/rows.h"

struct kept_plan {
	struct kept_plan *next;
	uint64_t id;        /* of no other plan of this process */
	uint32_t nr_tokens; /* of this rank */
	uint64_t nr_rows, extent;
	uint64_t *first;  /* [R] of each source's headers */
	uint8_t *headers; /* [rows][header_bytes] */
	uint8_t *copies;  /* of the slot's lists, one behind the other */
	int32_t *ids;     /* elastic: [n][K] the logical experts */
	uint64_t shape; /* elastic: in which the parts of all ranks fit together, + 1; 0: in none */
	struct placed placed; /* the tables by which it was routed */
	uint64_t bytes;
};

int cpu_plan_create(
	tern_moe *moe, uint32_t slot, const struct tern_plan_beside *beside, uint64_t *plan);
int cpu_plan_destroy(tern_moe *moe, uint64_t plan);
void plans_close(tern_moe *moe);

/* Elastic: a dispatch with it has brought its rows anew, in a view in which it was not whole, or
 * with experts in other places. */
int plan_renew(tern_moe *moe, uint32_t slot);
/* TERN_ERR_STATE: members have gone since, with rows of it. */
int plan_check_whole(const tern_moe *moe, const struct kept_plan *plan);
const float *plan_weights(const tern_moe *moe, const struct kept_plan *plan);

/* TERN_ERR_STATE where there is no such plan (any more). */
int plan_find(const tern_moe *moe, uint64_t id, struct kept_plan **plan);

/* The slot knows again what it knew. */
void plan_restore(const tern_moe *moe, struct slot *s, const struct kept_plan *plan);

static inline const struct row_header *plan_header(
	const tern_moe *moe, const struct kept_plan *plan, uint32_t source, uint32_t row)
{
	return (const struct row_header *)(plan->headers +
					   (plan->first[source] + row) * moe->layout.header_bytes);
}

#endif
