/* SPDX-License-Identifier: Apache-2.0 */
/* How a low-latency exchange is cut and launched, as measured on 2 and 4 x H200 (docs/benchmarks.md): pure arithmetic, for the library and for the lab. */
#ifndef TERN_CUDA_RULE_LL_H
#define TERN_CUDA_RULE_LL_H

#include <stdint.h>

#include "kernels.h"

/* Vectors of 16 bytes a lane and segment: fewer, and a warp has less in a row; more, and fewer bytes travel beside the rows. */
static inline uint32_t ll_rule_row_vectors(int scaled, uint32_t max_tokens)
{
	return scaled || max_tokens <= 64 ? 2 : 4;
}

static inline uint32_t ll_rule_result_vectors(uint32_t max_tokens, uint32_t nr_ranks)
{
	return max_tokens <= 16 || (max_tokens <= 64 && nr_ranks > 2) ? 1 : 2;
}

/* With few rows, few blocks, which start and end sooner. With many, not all SMs: they would only wait for NVLink; but between two ranks own memory is as busy. */
static inline struct ll_launch ll_rule_dispatch(uint32_t nr_tokens, uint32_t nr_ranks)
{
	static const struct ll_launch one = {24, 8, 4, 0}, few = {96, 16, 8, 0}, many = {96, 16, 4, 0}, all = {132, 16, 6, 0};

	return nr_tokens <= 2 ? one : nr_tokens <= 16 ? few : nr_tokens > 64 && nr_ranks <= 2 ? all : many;
}

/* summed: a result is a sum of several rows here, each of row_bytes. whole: all warps can send, and then receive; with few tokens others receive meanwhile. */
static inline struct ll_launch ll_rule_combine(uint32_t nr_tokens, uint32_t nr_ranks, uint32_t row_bytes, int summed, int whole)
{
	static const struct ll_launch one = {64, 16, 4, 0}, few = {96, 16, 8, 0}, some = {132, 16, 8, 0}, many = {132, 16, 10, 0}, large = {132, 16, 12, 0};
	static const struct ll_launch all = {132, 16, 16, 0};

	if (whole && nr_tokens > 8 && nr_ranks <= 2)
		return all;
	if (nr_tokens <= 2)
		return one;
	if (nr_tokens <= 16 || (nr_tokens > 64 && nr_ranks > 2))
		return few;
	return nr_tokens <= 64 ? some : summed && row_bytes > 8192 ? large : many;
}

/* With fewer tokens, or rows that travel as they are, there are warps enough to send own rows too, and making them delays the warps that take plans. */
static inline int ll_rule_keeps_own(int scaled, uint32_t nr_tokens, uint32_t nr_ranks)
{
	return scaled && nr_tokens > 64 && nr_ranks <= 2;
}

/* How many warps share the destinations of one segment. Each quantises it, which rows that travel as they are need not. Between two ranks with own rows kept there is one. */
static inline uint32_t ll_rule_share(int scaled, uint32_t nr_tokens, uint32_t nr_ranks, int keeps_own)
{
	uint32_t most = nr_tokens <= 2 || (!scaled && nr_tokens > 32) ? 4 : nr_tokens <= 16 ? 1 : 2;

	if (nr_ranks <= 2 && nr_tokens > 2)
		most = nr_tokens > 64 && !keeps_own ? 2 : 1;
	return nr_ranks < most ? nr_ranks : most;
}

#endif
