/* SPDX-License-Identifier: Apache-2.0 */
/* How kernels of a layer run beside the dispatch: which rows they wait for, and who takes which
 * tile.
 *
 * Beside it a kernel's last blocks find no SM before the dispatch's end. With tiles dealt by number
 * their share would be left until then, so tiles are drawn: a block takes the one of its own number
 * and then whichever is next. Each product zeroes what the other one draws from:
 *
 *           zeroed by     when nobody draws from it
 *   gate    down          behind the end of gate and up; the next one starts behind down's end
 *   down    gate and up   when it begins: what was ahead of it, the last down too, has ended; and
 *                         before down may start
 */
#ifndef TERN_GPU_CUDA_LAYER_DEAL_CUH
#define TERN_GPU_CUDA_LAYER_DEAL_CUH

#include "gpu/cuda/layer/gemm.h"
#include "tern_device.cuh"

template <bool BESIDE>
static __device__ __forceinline__ uint32_t tile_after(
	const struct layer_args *args, enum layer_which which, uint32_t nr)
{
	return BESIDE ? gridDim.x + atomicAdd(&args->drawn[which], 1u) : nr + gridDim.x;
}

/* By one thread. Whose kernel this lets start behind it sees it. */
static __device__ __forceinline__ void put_back(
	const struct layer_args *args, enum layer_which which)
{
	atomicExch(&args->drawn[which], 0u);
	__threadfence();
}

/* Do this kernel's rows come while it runs? */
static __device__ __forceinline__ bool is_beside(const struct layer_args *args)
{
	return args->gate.words != NULL;
}

/* Of rows that come, by one thread: whether the counts of this round are there. */
static __device__ __forceinline__ bool counts_came(const struct layer_args *args, uint32_t round)
{
	uint64_t first;
	uint32_t rows;

	return tern_counts(&args->gate, round, 0, &first, &rows);
}

/* Likewise, rows `begin` to `begin + nr - 1` of an expert's. */
static __device__ __forceinline__ bool rows_came(
	const struct layer_args *args, uint32_t round, uint32_t expert, uint32_t begin, uint32_t nr)
{
	uint32_t bits = __ffs(args->gate.tile_rows) - 1; /* of 64 or 128 */

	for (uint32_t tile = begin >> bits; tile <= (begin + nr - 1) >> bits; tile++)
		if (!tern_wait_rows(&args->gate, round, expert, tile))
			return false;
	return true;
}

#endif
