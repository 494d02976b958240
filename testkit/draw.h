/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs drawn from a seed, over all settings at once, for random tests. */
#ifndef TERN_TESTKIT_DRAW_H
#define TERN_TESTKIT_DRAW_H

#include "testkit/job.h"

/* What is drawn stays at or below these. */
struct draw_limits {
	uint32_t nr_ranks, hidden, nr_experts, nr_tokens;
};

/* Everything but wait_ms, which stays the default. The job still has to be opened. */
void draw_job(uint64_t *state, const struct draw_limits *limits, struct job *job);

#endif
