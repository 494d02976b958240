/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of prepared values that a job's rows are windows into. */
#ifndef TERN_TESTKIT_POOL_H
#define TERN_TESTKIT_POOL_H

#include "testkit/job.h"

/* places where a row can start; a pool is that many elements longer than a row */
#define POOL_STARTS (1u << 17)

enum pool_use {
	POOL_X = 1,
	POOL_Y = 2
};

/* Elements of dtype, and fp8 rows' scales. NULL: out of memory. The caller frees. */
unsigned char *pool_elements(enum pool_use use, enum tern_dtype dtype, enum job_input input,
	uint64_t seed, uint32_t row);
unsigned char *pool_scales(enum tern_scale scale, uint64_t seed, uint32_t row);

#endif
