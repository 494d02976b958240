/* SPDX-License-Identifier: Apache-2.0 */
/* tern_balance.h: where experts should live, given what each was asked for.
 *
 * Pure: it needs no group and no exchange, sends nothing, and gives the same bits on every rank
 * that passes the same numbers. E experts, P physical experts (places), R ranks, as in tern.h. What
 * it plans is a struct tern_placement's table `logical`. A rank's load is the sum over its places
 * of the expert's load divided by the expert's replicas. */
#ifndef TERN_BALANCE_H
#define TERN_BALANCE_H

#include "tern.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_balance tern_balance;

struct tern_balance_config {
	size_t size TERN_SIZE_OF(tern_balance_config);
	uint32_t nr_experts;   /* E */
	uint32_t nr_physical;  /* P, at least E */
	uint32_t nr_ranks;     /* R */
	const int32_t *rank;   /* [P]; NULL: contiguous blocks, as in tern_placement */
	const int32_t *domain; /* [R]: ranks of one number fail together, such as a node's; NULL:
				  each by itself */
};

/* All memory that plans need is taken here; the tables are copied. TERN_ERR_INVALID names what is
 * wrong. */
TERN_API int tern_balance_create(const struct tern_balance_config *config, tern_balance **balance);
TERN_API int tern_balance_destroy(tern_balance *balance); /* NULL is fine */

/* The weights of an expert go from one place to another, on another rank. */
struct tern_copy {
	int32_t expert;
	int32_t from; /* a place that holds it in `now`, on a rank that lives; -1: there is none */
	int32_t to;
};

struct tern_balance_input {
	size_t size TERN_SIZE_OF(tern_balance_input);
	const double *load;   /* [E], finite, not negative: routes, or whatever takes time */
	const int32_t *now;   /* [P]: the expert that lies in each place; -1: none. NULL: none does,
				 and nothing is copied */
	const uint8_t *alive; /* [R]: 0: its places are not used; NULL: all live */
	uint32_t max_copies;  /* at most so many places change; UINT32_MAX: the best placement,
				 whatever it moves. Experts that no living rank holds are placed in
				 any case, and count */
	uint32_t spread;      /* each expert in so many domains, as places allow, busy experts
				 first; no more than live. 0 and 1: in one */
};

struct tern_balance_result {
	size_t size TERN_SIZE_OF(tern_balance_result);
	double before, after; /* the busiest rank's load over the mean of living ranks; before: of
				 `now`, 0 where some expert is nowhere */
	uint32_t nr_copies;   /* in copies */
	uint32_t nr_spread;   /* experts in as many domains as that */
};

/* next[P]: the expert of each place, -1 where nothing lies, as in places of the dead. copies[P], or
 * NULL: what has to move; a place is in it at most once. Takes no memory. Not from two threads at
 * once with one balance. TERN_ERR_INVALID: a load is negative, not finite, an entry of `now`
 * unknown, or living ranks have fewer places than there are experts; nothing was written. */
TERN_API int tern_balance_plan(tern_balance *balance, const struct tern_balance_input *input,
	int32_t *next, struct tern_copy *copies, struct tern_balance_result *result);

#ifdef __cplusplus
}
#endif
#endif
