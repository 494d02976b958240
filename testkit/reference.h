/* SPDX-License-Identifier: Apache-2.0 */
/* The whole exchange in plain C: written from the contract in tern.h, one value after the other,
 * with nothing of the library in it. From the inputs of all ranks it says what one rank must
 * receive and what must come home. */
#ifndef TERN_TESTKIT_REFERENCE_H
#define TERN_TESTKIT_REFERENCE_H

#include "testkit/job.h"

/* By what a combine multiplies rows. */
enum weighting {
	WEIGHTED_AS_MADE = 0, /* as the exchange says: by those of the dispatch, or not at all */
	WEIGHTED_NOT,
	WEIGHTED_AT_COMBINE /* by job_combine_weight, at home */
};

struct reference {
	const struct job *job;
	uint64_t round;
	enum weighting weighting; /* of the next sums */
	/* Physical experts: */
	uint32_t nr_physical;
	int32_t *logical;        /* [nr_physical] */
	int32_t *rank;           /* [nr_physical] */
	int32_t *local;          /* [nr_physical] index among its rank's experts */
	uint32_t *replica_start; /* [E + 1] where an expert's replicas begin in replicas */
	int32_t *replicas;       /* [nr_physical] physical experts by logical expert, ascending */
	uint32_t *nr_local;      /* [R] */
	uint32_t *sent;          /* [R] routes of a home while its replicas are chosen */
	/* This round's routing, with max = config.max_tokens: */
	uint32_t *nr_tokens; /* [homes] */
	int32_t *ids;        /* [homes][max][K] logical */
	int32_t *physical;   /* [homes][max][K], -1: none */
	float *weights;      /* [homes][max][K] */
	/* Scratch: */
	float *values;     /* [H] */
	float *partial;    /* [H] */
	float *sum;        /* [H] */
	uint8_t *elements; /* [H] */
	void *scales;
	void *row;
};

/* NULL: out of memory. */
struct reference *reference_create(const struct job *job);
void reference_destroy(struct reference *reference);

/* Makes the routing of all ranks in that round. */
void reference_set_round(struct reference *reference, uint64_t round);

/* Where each route of a home's tokens goes, by its ids. */
void reference_route_home(struct reference *reference, uint32_t home);

/* Where a rank's received rows lie. nr_groups is L, in TERN_BY_SOURCE R. */
struct received_layout {
	uint32_t nr_groups;
	uint32_t *counts;
	uint64_t *offsets;
	uint64_t *next; /* the walk's place in each group */
	uint64_t nr_rows;
	uint64_t end; /* of the last row; PADDED: of the last expert's capacity */
};

int received_layout_create(const struct reference *reference, uint32_t rank,
	struct received_layout *layout); /* 0, or -1: out of memory */
void received_layout_destroy(struct received_layout *layout);

/* One row position of a rank's received rows. */
struct place {
	uint64_t position;
	uint32_t group;
	uint32_t source;
	uint32_t home;
	uint32_t token;
	int32_t k;       /* -1 in TERN_BY_SOURCE */
	uint32_t expert; /* logical; in TERN_BY_SOURCE E + rank: job_y_row's name for the rank's
			    experts together */
	float weight;    /* 0 in TERN_BY_SOURCE */
};

/* Calls visit for every row that rank receives, by source, token and k. first_of_token: the
 * previous call had another token. Stops at the first call that does not return 0, and returns
 * that. */
typedef int (*place_visitor)(void *ctx, const struct place *place, bool first_of_token);
int reference_walk(const struct reference *reference, uint32_t rank, struct received_layout *layout,
	place_visitor visit, void *ctx);

/* The bytes of a received row and of its scales (NULL without). Valid until the next call. */
void reference_received_row(struct reference *reference, uint32_t home, uint32_t token,
	const void **x, const void **scales);

/* TERN_BY_SOURCE: a row's local[K] experts on that rank (-1: not here). */
void reference_local_ids(const struct reference *reference, uint32_t rank, uint32_t home,
	uint32_t token, int32_t *local);

/* A token's routes: physical[K], and weights[K]. */
const int32_t *reference_physical(const struct reference *reference, uint32_t home, uint32_t token);
const float *reference_weights(const struct reference *reference, uint32_t home, uint32_t token);

/* What comes home for a token, in combine_dtype. Valid until the next call. */
const void *reference_combined_row(struct reference *reference, uint32_t home, uint32_t token);

#endif
