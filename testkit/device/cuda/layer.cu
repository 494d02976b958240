/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of a layer's experts, random ones to be timed and sparse ones whose sums are exact; and a
 * read of more than a GPU caches. */
#include "gpu/cuda/common/launch.cuh"
#include "testkit/device/cuda/layer.h"
#include "testkit/layer_values.h"

#define THREADS 256
#define BLOCKS 1024

static __device__ __forceinline__ uint64_t first_of(uint32_t index)
{
	return index * (uint64_t)THREADS;
}

/* e4m3 of a number below 448 that has few bits, as all here have: rounded towards 0. */
static __device__ __forceinline__ uint8_t e4m3_bits(float v)
{
	uint32_t bits = __float_as_uint(v), sign = bits >> 24 & 0x80, rest = bits & 0x7fffffff;

	if (rest < 0x3c800000) /* below 2^-6 */
		return (uint8_t)sign;
	return (uint8_t)(sign | (rest - 0x3c000000) >> 20);
}

static __device__ __forceinline__ uint16_t bf16_bits(float v)
{
	return (uint16_t)(__float_as_uint(v) >> 16);
}

/* Nearly normal, of deviation 1: four uniform numbers. */
static __device__ __forceinline__ float draw(uint64_t seed, uint64_t i)
{
	uint64_t bits = layer_mix(seed, i);
	float sum = 0;

	for (int at = 0; at < 64; at += 16)
		sum += (float)(uint32_t)(bits >> at & 0xffff) / 65536;
	return (sum - 2) * 1.732f;
}

static __device__ __forceinline__ uint64_t nr_elements(const struct layer_fill *f)
{
	return (uint64_t)f->nr_experts * f->nr_matrices * f->rows * f->k;
}

static __global__ void __launch_bounds__(THREADS)
	fill_random(const __grid_constant__ struct layer_fill f)
{
	uint64_t n = nr_elements(&f), seed = f.seed ^ f.nr_matrices;

	for (uint64_t i = first_of(blockIdx.x) + threadIdx.x; i < n; i += first_of(gridDim.x))
		if (f.scales)
			((uint8_t *)f.to)[i] = e4m3_bits(draw(seed, i));
		else
			((uint16_t *)f.to)[i] = bf16_bits(draw(seed, i) * 0.02f);
}

/* A thread has a row's term; the rest is 0 already. */
static __global__ void __launch_bounds__(THREADS)
	fill_exact(const __grid_constant__ struct layer_fill f)
{
	uint64_t n = (uint64_t)f.nr_experts * f.nr_matrices * f.rows * LAYER_TERMS;

	for (uint64_t i = first_of(blockIdx.x) + threadIdx.x; i < n; i += first_of(gridDim.x)) {
		uint64_t all = i / LAYER_TERMS, matrices = all / f.rows;
		uint32_t term = (uint32_t)(i % LAYER_TERMS), row = (uint32_t)(all % f.rows);
		uint32_t expert = f.first_expert + (uint32_t)(matrices / f.nr_matrices);
		enum layer_matrix matrix = f.nr_matrices == 1 ? LAYER_OUT
					   : matrices % 2     ? LAYER_UP
							      : LAYER_GATE;
		struct layer_term t;

		if (term >= layer_nr_terms(matrix, row, f.k))
			continue;
		t = layer_term_of(matrix, expert, row, f.k, term);
		if (f.scales)
			((uint8_t *)f.to)[all * f.k + t.at] = e4m3_bits(t.value);
		else
			((uint16_t *)f.to)[all * f.k + t.at] = bf16_bits(t.value);
	}
}

static __global__ void __launch_bounds__(THREADS)
	fill_scales(const __grid_constant__ struct layer_fill f)
{
	uint32_t columns = (f.k + LAYER_BLOCK - 1) / LAYER_BLOCK,
		 lines = (f.rows + LAYER_BLOCK - 1) / LAYER_BLOCK;
	uint64_t n = (uint64_t)f.nr_experts * f.nr_matrices * lines * columns;

	for (uint64_t i = first_of(blockIdx.x) + threadIdx.x; i < n; i += first_of(gridDim.x)) {
		uint64_t matrices = i / columns / lines;
		uint32_t expert = f.first_expert + (uint32_t)(matrices / f.nr_matrices);
		enum layer_matrix matrix = f.nr_matrices == 1 ? LAYER_OUT
					   : matrices % 2     ? LAYER_UP
							      : LAYER_GATE;

		f.scales[i] =
			f.exact ? layer_scale_of(matrix, expert, (uint32_t)(i / columns % lines),
					  (uint32_t)(i % columns))
				: 0.01f + 0.01f * fabsf(draw(f.seed + 1, i));
	}
}

cudaError_t weights_launch(const struct layer_fill *f, cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(BLOCKS, THREADS, 0, stream);
	uint64_t bytes =
		(uint64_t)f->nr_experts * f->nr_matrices * f->rows * f->k * (f->scales ? 1 : 2);
	cudaError_t rc = f->exact ? cudaMemsetAsync(f->to, 0, bytes, stream) : cudaSuccess;

	if (rc)
		return rc;
	rc = cudaLaunchKernelEx(&config, f->exact ? fill_exact : fill_random, *f);
	return rc || !f->scales ? rc : cudaLaunchKernelEx(&config, fill_scales, *f);
}

static __global__ void __launch_bounds__(THREADS)
	flush(const uint4 *from, uint64_t n, uint32_t *never)
{
	uint32_t any = 0;

	for (uint64_t i = first_of(blockIdx.x) + threadIdx.x; i < n; i += first_of(gridDim.x))
		any |= from[i].x;
	if (any == 0x12345678)
		*never = any;
}

cudaError_t flush_launch(const void *memory, uint64_t bytes, cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(BLOCKS, THREADS, 0, stream);

	return cudaLaunchKernelEx(
		&config, flush, (const uint4 *)memory, bytes / 16, (uint32_t *)NULL);
}
