/* SPDX-License-Identifier: Apache-2.0 */
/* Which experts each token goes to: a pure function of (seed, round, home), so that every rank
 * knows all ranks' routing. A home is a rank, or a group of tensor-parallel replicas, which pass
 * the same tokens. */
#ifndef TERN_TESTKIT_ROUTING_H
#define TERN_TESTKIT_ROUTING_H

#include "testkit/reason.h"

#include <stdbool.h>
#include <stdint.h>

enum routing_kind {
	ROUTING_UNIFORM = 0, /* topk different experts, all equally likely */
	ROUTING_ZIPF = 1,    /* the i-th most popular expert is drawn with weight 1 / i^exponent */
	ROUTING_GROUPED = 2, /* DeepSeek's group limit: experts of 4 out of 8 groups */
	ROUTING_ONE = 3,     /* all tokens to the first experts, which are those of rank 0 */
	ROUTING_TRACE = 4,   /* from a file */
	ROUTING_SHARE = 5 /* what one of `share` equal ranks sees of uniform routing: the tokens of
			     all that have routes to its experts, and these alone */
};

enum routing_weights {
	WEIGHTS_SOFTMAX = 0, /* positive, a row's sum is about 1 */
	WEIGHTS_EXACT = 1,   /* 0.5, 1 and 2 */
	WEIGHTS_SPECIAL = 2  /* softmax, with NaN, infinity, 0 and negative numbers among them */
};

#define ROUTING_GROUPS 8
#define ROUTING_TOP_GROUPS 4

struct routing {
	/* Set by routing_parse or by hand: */
	enum routing_kind kind;
	double exponent;            /* of ROUTING_ZIPF */
	uint32_t share, share_topk; /* of ROUTING_SHARE; top-k of all experts: routing_share_tokens
				     */
	char path[256];             /* of ROUTING_TRACE */
	double drop;                /* share of routes without an expert: -1 */
	bool uneven;                /* token counts from 0 to the most, by home and round */
	/* Set by the caller of routing_open: */
	uint64_t seed;
	uint32_t nr_experts;
	uint32_t topk;
	uint32_t nr_homes;
	uint32_t nr_tokens; /* of a home, when not uneven */
	uint32_t nr_first;  /* experts of rank 0, for ROUTING_ONE */
	enum routing_weights weights;
	/* Set by routing_open: */
	uint32_t *threshold;  /* ROUTING_ZIPF: [nr_experts] upper bounds in 2^32 of the popularity
				 ranks */
	int32_t *expert;      /* ROUTING_ZIPF: [nr_experts] expert of each popularity rank */
	int32_t *trace_ids;   /* ROUTING_TRACE: [trace_tokens][topk] */
	float *trace_weights; /* likewise, or NULL */
	uint64_t trace_tokens;
};

/* "uniform", "zipf:1.2", "grouped", "one", "ids.npy" or "ids.npy,weights.npy" into kind, exponent
 * and path. */
int routing_parse(struct routing *routing, const char *text, struct reason *why);

/* Checks the settings, reads the trace. routing_close frees what it made, also after a failure. */
int routing_open(struct routing *routing, struct reason *why);
void routing_close(struct routing *routing);

/* ROUTING_SHARE: of so many tokens of all ranks together, those that have a route here; topk
 * experts of nr_experts are here or elsewhere. */
uint32_t routing_share_tokens(uint64_t tokens, uint32_t share, uint32_t nr_experts, uint32_t topk);

/* How many tokens that home passes in that round, 0 to nr_tokens. */
uint32_t routing_nr_tokens(const struct routing *routing, uint64_t round, uint32_t home);

/* One token's ids[topk] and weights[topk]. Ids are different from each other, or -1. Weights where
 * the id is -1 are rubbish. */
void routing_token(const struct routing *routing, uint64_t round, uint32_t home, uint32_t token,
	int32_t *ids, float *weights);

#endif
