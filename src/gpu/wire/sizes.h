/* SPDX-License-Identifier: Apache-2.0 */
/* How much a low-latency exchange takes on a GPU: pure arithmetic, the same on the host and in
 * kernels. */
#ifndef TERN_GPU_WIRE_SIZES_H
#define TERN_GPU_WIRE_SIZES_H

#include "gpu/wire/ll.h"

/* Ids of a plan in shared memory: whole warps' pieces. */
HOST_DEVICE uint32_t positions_ids(enum gpu_format format, uint32_t nr_ids)
{
	uint32_t warp = 4 * 7 * ll_lane_ids(format);

	return gpu_ceil(nr_ids, warp) * warp;
}

/* Shared memory of a block that receives: struct positions. */
HOST_DEVICE uint64_t positions_bytes(enum gpu_format format, uint32_t nr_ranks, uint32_t nr_local,
	uint32_t max_tokens, uint32_t topk)
{
	uint64_t words = gpu_ceil(max_tokens, 32), local = nr_local ? nr_local : 1;

	return 4 * (nr_ranks * (nr_local * words + local) + nr_ranks * (words + 1) + nr_local + 2 +
			   2 * 16) +
	       2ull * nr_ranks * positions_ids(format, max_tokens * topk);
}

#endif
