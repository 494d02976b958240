/* SPDX-License-Identifier: Apache-2.0 */
/* What test_hostile's peer writes, and what is to come of it: the table. */
#ifndef TERN_TESTS_DEVICE_HOSTILE_ATTACKS_H
#define TERN_TESTS_DEVICE_HOSTILE_ATTACKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tern.h"

/* Of the exchange, between two ranks. */
#define NR_TOKENS 4
#define TOPK 2
#define NR_EXPERTS 8
#define NR_LOCAL (NR_EXPERTS / 2)

/* When rank 0 writes into rank 1's window. Before half 0, 1 or 2. */
enum moment {
	INSTEAD,  /* of its dispatch */
	SENT,     /* both have sent their rows, and none has received */
	RECEIVED, /* and before any result is sent */
	WHOLE     /* likewise, before a combine that is one call */
};

enum words {
	PLAN_TOKENS,
	PLAN_ID,    /* of token 0, k 0 */
	PLAN_OTHER, /* of a token that the other replica sends */
	COUNT,      /* index: the column */
	COUNTS,     /* of all experts of rank 1 */
	POSITION,
	LOCAL,
	NUMBER,       /* of token 0's row, index 0, or of its result, 1: from another node */
	WAY,          /* two hops: of row 0, index 1, or how many there are, 0 */
	WAY_TO,       /* likewise: which ranks of the node row 0 goes to */
	WAY_POSITION, /* likewise: the first position on the first of them */
	WAY_GROUP,    /* with gates: how many rows lie up to group `index` */
	OWN_POSITION, /* of rank 1's own head */
	OWN_EPOCH,
	ARRIVAL, /* of a dispatch from another node: the word that the proxy makes of a head's epoch
		  */
	ANYTHING /* index: the seed */
};

struct attack {
	const char *name;
	enum tern_mode mode;
	enum moment moment;
	enum words word;
	uint32_t value;
	int rc; /* what rank 1 is told */
	const char *text;
	uint32_t index;
	bool spread, by_source, replicas, only_internode, only_near;
	bool two_hops; /* which nodes of one rank take when they are told to, or with gates */
	bool gated;
};

extern const struct attack attacks[];
extern const size_t nr_attacks;

#endif
