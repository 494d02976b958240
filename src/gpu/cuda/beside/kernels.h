/* SPDX-License-Identifier: Apache-2.0 */
/* What is made of received rows behind a dispatch's kernels, and what a combine takes along ahead
 * of its own: by kernels beside them, which are what they were without. Launchers, like those of
 * common/kernels.h.
 *
 *   dispatch_beside   what a caller wants of received rows beside them: ids in 64 bits, counts,
 *                     scales column by column
 *   dispatch_waits    how long each source is waited for
 *   combine_weights   weights that are given at the combine, where sums are made at home -> in place
 *                     of those of the dispatch
 *   count_routes      of ids, before there is a dispatch
 *   combine_floats    a float of each route here -> its home; floats of all ranks -> the caller's
 */
#ifndef TERN_GPU_CUDA_BESIDE_KERNELS_H
#define TERN_GPU_CUDA_BESIDE_KERNELS_H

#include "gpu/cuda/ht/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpu_beside {
	uint32_t low, by_source;
	const float *weights; /* [n][K] */
	uint32_t roles;       /* enum gpu_roles: floats */
	uint32_t no_floats;   /* nobody has any in this round */
	const float *floats;  /* [positions]; by_source: [positions][K]; NULL: zeros */
	float *out_floats;    /* [n][K], or NULL */
	uint64_t cells; /* in a slot's window: [T][K] pieces; the first half is a float and the
			   epoch */
	const int32_t *local_ids; /* by_source: [positions][K], -1: not here */
};

cudaError_t combine_weights_launch(const struct gpu_combine *combine, const struct ht_exchange *ht,
	const struct gpu_beside *beside, uint32_t nr_blocks, cudaStream_t stream);
/* Blocks wait for other ranks: all have to fit on the device at once. */
cudaError_t combine_floats_launch(const struct gpu_combine *combine, const struct ht_exchange *ht,
	const struct gpu_beside *beside, uint32_t nr_blocks, cudaStream_t stream);

/* As in struct tern_received. */
struct gpu_wanted {
	int64_t *wide_ids;
	uint32_t *expert_counts;
	uint64_t *expert_totals;
	uint32_t *gemm_scales;
	uint64_t stride, columns; /* of scales: rows of a column; columns */
	uint64_t positions;
	uint32_t alignment;
};

cudaError_t dispatch_beside_launch(const struct gpu_dispatch *dispatch,
	const struct gpu_wanted *wanted, const struct gpu_launch *launch, cudaStream_t stream);

/* Behind the kernel that sends, and before the one that receives: low latency alone. */
cudaError_t dispatch_waits_launch(
	const struct gpu_dispatch *dispatch, uint64_t *waited_ns, cudaStream_t stream);

/* As in struct tern_routes; lists hold zeros. */
struct gpu_routes {
	const void *ids;
	uint32_t ids_64, nr_tokens, topk, nr_ranks, nr_experts;
	struct gpu_divisor by_rank; /* experts of a rank */
	uint32_t *rank_tokens, *expert_routes;
	uint8_t *in_rank;
	uint32_t *told, told_as; /* NULL: nobody is told */
	uint32_t *finished;      /* blocks, from 0 */
};

cudaError_t count_routes_launch(const struct gpu_routes *routes, cudaStream_t stream);

/* Loads them all. */
cudaError_t beside_prepare(void);

#ifdef __cplusplus
}
#endif
#endif
