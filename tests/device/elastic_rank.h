/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank of test_elastic does: rounds by calls or by a graph, until it is struck, and whatever
 * the others' deaths ask of it. */
#ifndef TERN_TESTS_DEVICE_ELASTIC_RANK_H
#define TERN_TESTS_DEVICE_ELASTIC_RANK_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/faults/acts.h"

#define MOST_RANKS 4
#define COPIES 3    /* of each expert, on neighbours, at most */
#define STRUCK_AT 6 /* the round */

/* For ranks that are started next. */
struct elastic_way {
	int nr_ranks;
	enum tern_mode mode;
	bool by_graph;
	uint32_t nr_copies;
	uint64_t nr_rounds;      /* of each rank */
	enum tern_change change; /* at round STRUCK_AT: the victim leaves, or stands still */
	bool comes_back;         /* what is lost is placed elsewhere */
	bool one_more;           /* another dies when all have fresh memory for that */
};

extern struct elastic_way way;

void elastic_rank(struct rank *rank);

#endif
