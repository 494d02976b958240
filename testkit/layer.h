/* SPDX-License-Identifier: Apache-2.0 */
/* A whole layer in plain C on inputs whose sums are exact (layer_values.h), from a token's x to its
 * row of out: with nothing of the library in it. */
#ifndef TERN_TESTKIT_LAYER_H
#define TERN_TESTKIT_LAYER_H

#include "testkit/verify.h"

/* A rank's x in that round, [n][H] of bf16. */
void layer_exact_x(const struct job *job, uint64_t round, uint32_t rank, uint16_t *x);

/* What should have come home, out [n][H] of bf16: every element of some of the tokens. The layer
 * has layer_values.h's weights and TERN_LINEAR_GATED; the job's weights are exact. Returns how many
 * tokens were compared, or a negative error. */
int layer_compare(const struct job *job, uint32_t inner, uint64_t round, uint32_t rank,
	const uint16_t *out, struct difference *difference);

/* The same with TERN_SWIGLU, which is not exact, but knows gate from up: the sums of squares of
 * differences, and of what should have come, are added to far[2]. */
int layer_distance(const struct job *job, uint32_t inner, uint64_t round, uint32_t rank,
	const uint16_t *out, double far[2]);

#endif
