/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics as they should be: every route of every token, one after the other. */
#ifndef TERN_TESTS_EXCHANGE_EXPECTED_STATS_H
#define TERN_TESTS_EXCHANGE_EXPECTED_STATS_H

#include "tests/exchange/ranks.h"

#define TALLY_MOST_EXPERTS 256

struct expected_stats {
	struct tern_stats stats; /* without bytes, until expected_bytes */
	uint64_t results;        /* of routes, or summed, that leave for homes */
	uint64_t load[TALLY_MOST_EXPERTS];
};

/* The round that ref is set to, as `rank` counts it. released: nothing comes home. */
void expected_round(
	struct expected_stats *expected, const struct reference *ref, uint32_t rank, bool released);

/* What each of these weighs. */
void expected_bytes(struct expected_stats *expected, uint64_t row_bytes, uint64_t route_bytes,
	uint64_t result_bytes);

/* Whether the library says the same; -1: no, noted. */
int expected_compare(const struct expected_stats *want, struct rank *rank, const tern_moe *moe,
	uint32_t nr_experts);

#endif
