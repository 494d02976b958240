/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics as they should be: every route of every token, one after the other. */
#ifndef TERN_TEST_TALLY_H
#define TERN_TEST_TALLY_H

#include "tests/exchange/ranks.h"

#define TALLY_MOST_EXPERTS 256

struct tally {
	struct tern_stats stats; /* without bytes, until tally_bytes */
	uint64_t results;	 /* of routes, or summed, that leave for homes */
	uint64_t load[TALLY_MOST_EXPERTS];
};

/* The round that ref is set to, as `rank` counts it. released: nothing comes home. */
void tally_round(struct tally *tally, const struct reference *ref, uint32_t rank, bool released);

/* What each of these weighs. */
void tally_bytes(struct tally *tally, uint64_t row_bytes, uint64_t route_bytes, uint64_t result_bytes);

/* Whether the library says the same; -1: no, noted. */
int tally_compare(const struct tally *want, struct rank *rank, const tern_moe *moe, uint32_t nr_experts);

#endif
