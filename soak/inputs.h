/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank passes to one dispatch, in memory of its own, so that reading it too late shows. */
#ifndef TERN_SOAK_INPUTS_H
#define TERN_SOAK_INPUTS_H

#include "soak/scenario.h"

struct inputs {
	void *x, *scales; /* scales: NULL unless x is FP8 */
	int32_t *ids;
	int64_t *wide_ids;
	float *weights;
	uint32_t nr_tokens;
	size_t x_stride, scales_stride;
};

/* -1: no memory. inputs_free also then. */
int inputs_make(
	const struct scenario *scenario, uint32_t rank, uint64_t round, struct inputs *inputs);
void inputs_free(struct inputs *inputs);

#endif
