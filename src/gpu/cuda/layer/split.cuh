/* SPDX-License-Identifier: Apache-2.0 */
/* How a tile's splits meet: each block leaves its sums in memory, and the one that comes last adds
 * them up, in the order of k, whichever it is. Nobody waits. */
#ifndef TERN_GPU_CUDA_LAYER_SPLIT_CUH
#define TERN_GPU_CUDA_LAYER_SPLIT_CUH

#include "gpu/cuda/layer/ring.cuh"

#define SUMS_AT_ONCE 8 /* loads of 16 bytes that a thread has under way */

/* By one thread, of what its block's threads have stored ahead of a barrier: whether the sums of
 * all of the tile's splits are there. Releases its block's, and acquires those of blocks that came
 * earlier (tests/models/split.pml). */
static __device__ bool all_splits_left(const struct layer_args *args, const struct tile *tile)
{
	uint32_t came;

	asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
		     : "=r"(came)
		     : "l"(args->split.arrived + tile->nr_split)
		     : "memory");
	if (came != tile->splits - 1)
		return false;
	args->split.arrived[tile->nr_split] = 0; /* for the next launch */
	return true;
}

/* acc: a thread's N sums. True: now the whole tile's, which this block has to store. */
template <int N>
static __device__ bool gather_splits(const struct layer_args *args, struct shared_memory *mine,
	const struct tile *tile, const struct seat *seat, float *acc)
{
	const int pieces = N / 4, at_once = pieces < SUMS_AT_ONCE ? pieces : SUMS_AT_ONCE;
	const uint32_t splits_at_once = SUMS_AT_ONCE / at_once;
	uint32_t thread = seat->warp * 32 + seat->lane, pitch = mine->list.split_floats / 4;
	float4 *sums = (float4 *)args->split.sums +
		       (uint64_t)tile->nr_split * tile->splits * pitch + thread;
	float4 *of_mine = sums + tile->split * pitch;

#pragma unroll
	for (int i = 0; i < pieces; i++)
		__stcg(of_mine + i * CONSUMERS,
			make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]));
	sync_threads(1, CONSUMERS);
	if (thread == 0)
		mine->came_last = all_splits_left(args, tile);
	sync_threads(1, CONSUMERS);
	if (!mine->came_last)
		return false;
#pragma unroll
	for (int begin = 0; begin < pieces; begin += at_once) {
		const float4 *from = sums + begin * CONSUMERS;

#pragma unroll
		for (int i = 0; i < 4 * at_once; i++)
			acc[4 * begin + i] = 0;
#pragma unroll 1
		for (uint32_t left = tile->splits; left; left -= min(left, splits_at_once)) {
			float4 v[splits_at_once][at_once];

#pragma unroll
			for (int j = 0; j < splits_at_once; j++, from += pitch)
#pragma unroll
				for (int i = 0; i < at_once; i++)
					v[j][i] = j < left ? __ldcg(from + i * CONSUMERS)
							   : make_float4(0, 0, 0, 0);
#pragma unroll
			for (int j = 0; j < splits_at_once; j++)
#pragma unroll
				for (int i = 0; i < at_once; i++) {
					float *sum = acc + 4 * (begin + i);

					sum[0] += v[j][i].x;
					sum[1] += v[j][i].y;
					sum[2] += v[j][i].z;
					sum[3] += v[j][i].w;
				}
		}
	}
	return true;
}

#endif
