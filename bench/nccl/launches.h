/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of rows.h, as they are launched. */
#ifndef TERN_BENCH_NCCL_LAUNCHES_H
#define TERN_BENCH_NCCL_LAUNCHES_H

#include <cuda_runtime_api.h>

#include "bench/nccl/rows.h"

#ifdef __cplusplus
extern "C" {
#endif
cudaError_t records_count_launch(const struct records *r, cudaStream_t stream);
cudaError_t records_pack_launch(const struct records *r, cudaStream_t stream);
cudaError_t records_place_launch(const struct records *r, uint32_t nr_records, cudaStream_t stream);
cudaError_t records_results_launch(
	const struct records *r, uint32_t nr_records, cudaStream_t stream);
cudaError_t records_sum_launch(const struct records *r, cudaStream_t stream);
#ifdef __cplusplus
}
#endif

#endif
