/* SPDX-License-Identifier: Apache-2.0 */
/* What a caller wants of received rows beside them, as engines' GEMMs and routers do. */
#include "gpu/cuda/beside/received.cuh"
#include "gpu/cuda/common/launch.cuh"
#include "gpu/cuda/common/warp.cuh"

#define BESIDE_THREADS 512

/* -1 behind the last row. */
static __device__ __forceinline__ void widen_ids(
	const struct gpu_dispatch *d, const struct gpu_wanted *w, uint64_t thread, uint64_t nr)
{
	uint64_t topk = d->exchange.topk, received = d->out_sums[0] * topk;

	for (uint64_t i = thread; i < w->positions * topk; i += nr)
		w->wide_ids[i] = i < received ? d->out_ids[i] : -1;
}

/* Routes to each local expert, by a block. */
static __device__ __forceinline__ void count_routes(const struct gpu_dispatch *d, uint32_t *counts)
{
	uint64_t all = d->out_sums[0] * d->exchange.topk;

	for (uint32_t l = threadIdx.x; l < d->exchange.nr_local; l += blockDim.x)
		counts[l] = 0;
	__syncthreads();
	for (uint64_t i = threadIdx.x; i < all; i += blockDim.x)
		if (d->out_ids[i] >= 0)
			atomicAdd(&counts[d->out_ids[i]], 1u);
	__syncthreads();
}

static __device__ __forceinline__ void tell_counts(
	const struct gpu_dispatch *d, const struct gpu_wanted *w, const uint32_t *counts)
{
	for (uint32_t l = threadIdx.x; l < d->exchange.nr_local; l += blockDim.x) {
		uint32_t nr = counts[l];

		if (w->expert_counts)
			w->expert_counts[l] = (nr + w->alignment - 1) / w->alignment * w->alignment;
		if (w->expert_totals)
			w->expert_totals[l] += nr;
	}
}

/* A column's element: a float's bits, or four exponents. */
static __device__ __forceinline__ uint32_t column_of_scales(
	const struct gpu_dispatch *d, uint64_t row, uint32_t column)
{
	uint32_t nr = d->exchange.row.nr_lines, four = 0;

	if (d->scale_bytes == 4)
		return ((const uint32_t *)d->out_scales)[row * nr + column];
	for (uint32_t i = 0; i < 4 && column * 4 + i < nr; i++)
		four |= (uint32_t)d->out_scales[row * nr + column * 4 + i] << i * 8;
	return four;
}

/* Neighbouring threads have neighbouring rows. */
static __device__ __forceinline__ void turn_scales(
	const struct gpu_dispatch *d, const struct gpu_wanted *w, uint64_t thread, uint64_t nr)
{
	uint32_t nr_groups = d->by_source ? d->exchange.nr_ranks : d->exchange.nr_local;

	for (uint32_t g = 0; g < nr_groups; g++) {
		uint64_t first = d->out_offsets[g], rows = d->out_counts[g],
			 to = d->padded ? g * w->columns * w->stride : first;

		for (uint64_t i = thread; i < rows * w->columns; i += nr) {
			uint64_t column = i / rows, row = i - column * rows;

			w->gemm_scales[to + column * w->stride + row] =
				column_of_scales(d, first + row, (uint32_t)column);
		}
	}
}

namespace tern
{
static __global__ void __launch_bounds__(BESIDE_THREADS) dispatch_beside(
	const __grid_constant__ struct gpu_dispatch d, const __grid_constant__ struct gpu_wanted w)
{
	BLOCK_MEMORY(counts);
	uint64_t thread = blockIdx.x * blockDim.x + threadIdx.x, nr = gridDim.x * blockDim.x;

	if (d.exchange.state->failed)
		return;
	if (blockIdx.x == 0 && (w.expert_counts || w.expert_totals)) {
		if (d.by_source)
			count_routes(&d, counts);
		tell_counts(&d, &w, d.by_source ? counts : d.out_counts);
	}
	if (w.wide_ids)
		widen_ids(&d, &w, thread, nr);
	if (w.gemm_scales)
		turn_scales(&d, &w, thread, nr);
}
} // namespace tern

cudaError_t dispatch_beside_launch(const struct gpu_dispatch *d, const struct gpu_wanted *w,
	uint32_t nr_blocks, cudaStream_t stream)
{
	uint32_t shared = d->by_source ? d->exchange.nr_local * sizeof(uint32_t) : 0;
	cudaLaunchConfig_t config = launch_config(nr_blocks, BESIDE_THREADS, shared, stream);
	cudaError_t rc = shared > 48 * 1024 ? allow_shared((const void *)tern::dispatch_beside)
					    : cudaSuccess;

	return rc ? rc : cudaLaunchKernelEx(&config, tern::dispatch_beside, *d, *w);
}

cudaError_t dispatch_beside_prepare(void)
{
	cudaFuncAttributes attributes;

	return cudaFuncGetAttributes(&attributes, (const void *)tern::dispatch_beside);
}
