/* SPDX-License-Identifier: Apache-2.0 */
/* The launchers of high-throughput mode. Like those of kernels.h, whose structs they share.
 *
 *   plan_ht       topk_ids -> counts to all ranks, counts of all -> where each route's row goes; counts and offsets out.    Two kernels
 *   dispatch_ht   x -> rows in their final places in the ranks' windows, copies for further experts
 *                 there, descriptions
 *   combine_ht    y -> sums -> results at home -> out
 */
#ifndef TERN_GPU_CUDA_HT_KERNELS_H
#define TERN_GPU_CUDA_HT_KERNELS_H

#include "gpu/cuda/common/kernels.h"
#include "gpu/wire/ht.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ht_exchange {
	struct ht_window window;
	uint32_t nr_physical;
	uint32_t nr_columns;     /* of the tables below: P + R */
	const uint32_t *order;   /* [P] physical experts by rank, then local expert */
	const uint32_t *first;   /* [R + 1] a rank's first in order */
	const uint32_t *logical; /* [P] */
	uint32_t *chunks;     /* [chunks][P + R] rows of a chunk of tokens for each expert and rank;
				 then where they begin */
	uint32_t block_bytes; /* shared memory that a block may have */
	uint2 *routes; /* [T][K] physical expert (UINT32_MAX: none, or another rank sends it),
			  number in its chunk */
};

/* launch: the dispatch's, as it says how many tokens leave early. The combine looks only at the
 * number of blocks, and at early. */
cudaError_t ht_plan_launch(const struct gpu_dispatch *args, const struct ht_exchange *ht,
	const struct gpu_launch *launch, cudaStream_t stream);
cudaError_t ht_dispatch_launch(const struct gpu_dispatch *args, const struct ht_exchange *ht,
	const struct gpu_launch *launch, cudaStream_t stream);
cudaError_t ht_combine_launch(const struct gpu_combine *args, const struct ht_exchange *ht,
	const struct gpu_launch *launch, cudaStream_t stream);

/* Beside them where some ranks are on other nodes (internode_ht.cuh): role GPU_SEND before the
 * kernel that sends to the others; GPU_RECEIVE behind the dispatch's that receives, and before the
 * combine's that sums. */
cudaError_t internode_dispatch_launch(const struct gpu_dispatch *args, const struct ht_exchange *ht,
	const struct gpu_launch *launch, enum gpu_roles role, cudaStream_t stream);
cudaError_t internode_combine_launch(const struct gpu_combine *args, const struct ht_exchange *ht,
	const struct gpu_launch *launch, enum gpu_roles role, cudaStream_t stream);
cudaError_t internode_dispatch_prepare(const struct gpu_dispatch *args);
cudaError_t internode_combine_prepare(const struct gpu_combine *args);

/* Blocks that fit on the device at once, of the kernel that fits worst; loads all. */
cudaError_t ht_most_blocks(const struct gpu_dispatch *dispatch, const struct gpu_combine *combine,
	const struct ht_exchange *ht, uint32_t *nr_blocks);

#ifdef __cplusplus
}
#endif
#endif
