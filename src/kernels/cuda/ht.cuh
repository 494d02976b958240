/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the kernels of high-throughput mode. */
#ifndef TERN_CUDA_HT_CUH
#define TERN_CUDA_HT_CUH

#include "kernels_ht.h"
#include "memory.cuh"
#include "wait.cuh"

/* Not 0, since fresh windows hold zeros; and even after odd, since counts have a place for each parity. */
__device__ __forceinline__ uint32_t ht_epoch_after(uint32_t epoch)
{
	return epoch == UINT32_MAX ? 2 : epoch + 1;
}

/* A source's counts in a window. */
__device__ __forceinline__ uint64_t counts_at(const struct ll_exchange *e, const struct ht_exchange *h, uint32_t epoch, uint32_t source)
{
	return h->window.counts + ((epoch & 1) * (uint64_t)e->nr_ranks + source) * h->window.counts_bytes;
}

__device__ __forceinline__ uint64_t count_word_at(const struct ll_exchange *e, const struct ht_exchange *h, uint32_t epoch, uint32_t source)
{
	return h->window.count_words + ((epoch & 1) * (uint64_t)e->nr_ranks + source) * LL_LINE_BYTES;
}

/* This lane's part of a token's head. */
__device__ __forceinline__ uint64_t head_at(const struct ll_exchange *e, const struct ht_exchange *h, uint32_t source, uint32_t token)
{
	return h->window.heads + (((uint64_t)source * e->max_tokens + token) * e->topk + threadIdx.x % 32) * 16;
}

/* What a head says of this rank, before it is followed; by the warp. extent: ll_state's. */
__device__ __forceinline__ bool check_head(const struct ll_exchange *e, uint32_t extent, uint32_t epoch, uint32_t source, uint32_t token, uint4 head)
{
	bool far = head.x != UINT32_MAX && head.x >= extent, none = head.z != UINT32_MAX && head.z >= e->nr_local;
	uint32_t bad = __ballot_sync(ALL_LANES, far || none);

	if (bad && threadIdx.x % LANES == __ffs(bad) - 1)
		report_broken(e, far ? LL_BROKEN_POSITION : LL_BROKEN_LOCAL, source, token, far ? head.x : head.z, far ? extent - 1 : e->nr_local - 1, epoch);
	return !bad;
}

/* Host: what these kernels need before their first launch; and how many blocks of so many warps an SM holds. */
extern "C" cudaError_t ht_plan_prepare(const struct ht_exchange *h);
extern "C" cudaError_t ht_dispatch_blocks(const struct ll_dispatch *d, uint32_t nr_warps, int *per_sm);

#endif
