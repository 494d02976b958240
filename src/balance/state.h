/* SPDX-License-Identifier: Apache-2.0 */
/* A placement under way: which expert lies in each place, and what that makes of ranks' loads. */
#ifndef TERN_BALANCE_STATE_H
#define TERN_BALANCE_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "tern_balance.h"

#define BALANCE_NOBODY UINT32_MAX
#define GOOD_ENOUGH 1.0005 /* of the mean: more would gain less than loads are known by */

struct tern_balance {
	uint32_t nr_experts, nr_places, nr_ranks;
	uint32_t *rank_of;     /* [P] */
	uint32_t *first_place; /* [R + 1] into places */
	uint32_t *places;      /* [P] by rank */
	int32_t *domain;       /* [R] */
	/* of one plan: */
	uint32_t nr_alive, nr_usable, nr_domains, spread;
	uint8_t *alive;      /* [R] */
	double *load;        /* [E], sum 1 */
	int32_t *was;        /* [P] before it, -1: nothing that can be used */
	int32_t *at;         /* [P] */
	uint32_t *zone;      /* [R] its domain's number among those that live */
	bool even_domains;   /* which have as many places each, and could have as many experts */
	uint32_t nr_zones;   /* 1, or the domains, each by itself: of scratch.c, as the next */
	uint32_t *home;      /* [E] its zone */
	double *zone_load;   /* [R] */
	uint32_t *zone_left; /* [R] */
	int32_t *kept;       /* [P] another placement, of scratch.c */
	bool twice;          /* a rank may hold an expert more than once */
	uint32_t *count;     /* [E] places that have it */
	double *share;       /* [E] load / count */
	uint32_t *head;      /* [E] its first place, or BALANCE_NOBODY */
	uint32_t *following; /* [P] the next one of the same expert */
	double *rank_load;   /* [R] */
	double *holders_load, *share_ahead, *gain_ahead; /* [E] of copies.c */
	uint32_t *nr_free; /* [R] places of which nothing is known yet */
	uint32_t *order;   /* [P] */
	uint32_t *nr_from; /* [R] copies that it gives */
};

/* Begins anew with what lies in each place; -1: nothing. */
void balance_take(struct tern_balance *b, const int32_t *at);

/* place: holds nothing. */
void balance_put(struct tern_balance *b, uint32_t place, uint32_t expert);

/* place: holds something. */
void balance_drop(struct tern_balance *b, uint32_t place);

/* Does the rank hold it? */
bool balance_holds(const struct tern_balance *b, uint32_t rank, uint32_t expert);

/* Does another rank of that one's domain hold it, or itself? */
bool balance_domain_holds(const struct tern_balance *b, uint32_t rank, uint32_t expert);

/* May the expert leave that rank for the other? `twice`: also if that one has it. With `spread` it
 * must not come into a domain that has it. */
bool balance_may_move(
	const struct tern_balance *b, uint32_t expert, uint32_t from, uint32_t to, bool twice);

/* In how many domains is it, but for that place? BALANCE_NOBODY: all places count. */
uint32_t balance_nr_domains(const struct tern_balance *b, uint32_t expert, uint32_t but);

bool balance_is_whole(const struct tern_balance *b);
double balance_ratio(const struct tern_balance *b); /* the busiest over the mean */
uint32_t balance_busiest(const struct tern_balance *b);

void balance_from_scratch(struct tern_balance *b);

/* Changes that make the busiest rank less busy, whatever they cost, until the next one does not.
 * All places hold something. */
void balance_improve(struct tern_balance *b);

void balance_by_copies(struct tern_balance *b, uint32_t max_copies);

#endif
