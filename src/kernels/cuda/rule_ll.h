/* SPDX-License-Identifier: Apache-2.0 */
/* How a low-latency exchange is cut and launched, as measured on 4 x H200 (docs/benchmarks.md): pure arithmetic, for the library and for the lab. */
#ifndef TERN_CUDA_RULE_LL_H
#define TERN_CUDA_RULE_LL_H

#include <stdint.h>

/* Warps of 16 that send. */
#define LL_DISPATCH_SENDERS 4
#define LL_COMBINE_SENDERS 8

/* Vectors of 16 bytes a lane and segment: with few rows, less in a row for one warp; with many, fewer bytes beside the rows. */
static inline uint32_t ll_rule_vectors(uint32_t max_tokens)
{
	return max_tokens <= 16 ? 1 : max_tokens <= 64 ? 2 : 4;
}

/* With few rows, few blocks, which start and end sooner. */
static inline uint32_t ll_rule_dispatch_blocks(uint32_t nr_tokens)
{
	return nr_tokens <= 2 ? 48 : nr_tokens <= 8 ? 64 : nr_tokens <= 16 ? 96 : 132;
}

static inline uint32_t ll_rule_combine_blocks(uint32_t nr_tokens)
{
	return ll_rule_dispatch_blocks(nr_tokens > 2 && nr_tokens <= 8 ? 16 : nr_tokens);
}

/* How many warps share the destinations of one segment. */
static inline uint32_t ll_rule_share(uint32_t nr_vectors, uint32_t nr_ranks)
{
	return nr_vectors == 1 ? 1 : nr_vectors == 4 && nr_ranks > 2 ? 2 : nr_ranks;
}

#endif
