/* SPDX-License-Identifier: Apache-2.0 */
/* The launchers of plans that outlive their round (tern.h). Like those of common/kernels.h.
 *
 *   dispatch_keep   what a dispatch has left for its combine, and its ids and weights -> the plan;
 *                   what a caller keeps beside it
 *   combine_begin   the plan -> where a combine looks for it; tells all ranks that this round has no
 *                   dispatch, and waits for all to say so. A combine like any other follows
 *
 * A round that is dispatched again is a dispatch of the plan's ids and weights.
 */
#ifndef TERN_GPU_CUDA_PLANS_KERNELS_H
#define TERN_GPU_CUDA_PLANS_KERNELS_H

#include "gpu/cuda/ht/kernels.h"
#include "gpu/wire/plans.h"

#ifdef __cplusplus
extern "C" {
#endif

/* gpu/wire/plans.h */
struct gpu_kept {
	struct gpu_kept_state *state;
	int32_t *ids;
	float *weights;
	uint2 *home_routes;
	uint32_t *numbers;
	uint32_t *row_tokens;
	uint2 *row_routes;
	uint32_t *own_positions;
	uint4 *heads;
	uint32_t low;       /* low latency */
	int32_t *local_ids; /* of low latency's by_source: the slot's [positions][K], by which a
			       combine knows which routes are here; else NULL */
};

/* As in struct tern_plan_beside. */
struct gpu_plan_beside {
	uint64_t nr_rows;
	int64_t *wide_ids;
	int32_t *tokens, *topk_ids;
};

/* dispatch: the slot's, as it was launched last. */
cudaError_t dispatch_keep_launch(const struct gpu_dispatch *dispatch, const struct ht_exchange *ht,
	const struct gpu_kept *kept, const struct gpu_plan_beside *beside, uint32_t nr_blocks,
	cudaStream_t stream);
cudaError_t combine_begin_launch(const struct gpu_combine *combine, const struct ht_exchange *ht,
	const struct gpu_kept *kept, uint32_t nr_blocks, cudaStream_t stream);

/* Loads them all. */
cudaError_t plans_prepare(void);

#ifdef __cplusplus
}
#endif
#endif
