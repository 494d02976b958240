/* SPDX-License-Identifier: Apache-2.0 */
/* A scenario run, and judged:
 *
 *   - every bit that a rank received or got back is that of the reference, or the rank got an
 * error;
 *   - without a fault nobody gets an error; with one, every rank that lives gets one that names the
 * culprit, in time;
 *   - nothing is delivered twice, no wait outlives its bound, no buffer is used again early (all of
 * them are poisoned).
 */
#ifndef TERN_SOAK_SOAK_H
#define TERN_SOAK_SOAK_H

#include "soak/scenario.h"

struct soak_outcome {
	bool good;
	char text[6144]; /* what went wrong */
	uint64_t rounds; /* verified, on the rank that completed most */
	uint64_t halves; /* of all ranks, that returned 0 */
	uint64_t digest; /* of all that happened: equal for equal scenarios */
	uint64_t virtual_ns;
	bool struck;               /* the fault came */
	uint64_t slowest_error_ns; /* from the fault until the last rank had its error */
	struct sim_stats stats;
};

/* 0; -1: no memory for it, told in text. */
int soak_run(const struct scenario *scenario, struct soak_outcome *outcome);

#endif
