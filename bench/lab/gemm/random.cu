/* SPDX-License-Identifier: Apache-2.0 */
/* Random tensors, made where they are read; and a read of more than the L2 cache holds. */
#include "bench/lab/gemm/gemm.h"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "bench/lab/check.h"
#include "gpu/cuda/common/ptx.cuh"

#define THREADS 256
#define BLOCKS 1024

static __device__ uint64_t mix(uint64_t v)
{
	v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9ull;
	v = (v ^ v >> 27) * 0x94d049bb133111ebull;
	return v ^ v >> 31;
}

/* Nearly normal, of deviation 1: four uniform numbers. */
static __device__ float draw(uint64_t seed, uint64_t i)
{
	uint64_t bits = mix(seed + i * 0x9e3779b97f4a7c15ull);
	float sum = 0;

	for (int at = 0; at < 64; at += 16)
		sum += (float)(bits >> at & 0xffff) / 65536;
	return (sum - 2) * 1.732f;
}

static __device__ void put(__nv_fp8_e4m3 *to, float v)
{
	*to = __nv_fp8_e4m3(v);
}

static __device__ void put(__nv_bfloat16 *to, float v)
{
	*to = __float2bfloat16_rn(v);
}

static __device__ void put(float *to, float v)
{
	*to = fabsf(v) + 0.01f;
}

template <class T> static __global__ void fill(T *to, uint64_t n, float scale, uint64_t seed)
{
	for (uint64_t i = blockIdx.x * THREADS + threadIdx.x; i < n; i += BLOCKS * THREADS)
		put(to + i, draw(seed, i) * scale);
}

void lab_fill(void *to, enum lab_numbers kind, uint64_t bytes, float scale, uint64_t seed)
{
	if (kind == LAB_FP8)
		fill<<<BLOCKS, THREADS>>>((__nv_fp8_e4m3 *)to, bytes, scale, seed);
	else if (kind == LAB_BF16)
		fill<<<BLOCKS, THREADS>>>((__nv_bfloat16 *)to, bytes / 2, scale, seed);
	else
		fill<<<BLOCKS, THREADS>>>((float *)to, bytes / 4, scale, seed);
	CHECK(cudaGetLastError());
}

/* Reads, so that no line has to be written back while something is timed. */
static __global__ void flush(const uint4 *from, uint64_t n, uint32_t *never)
{
	uint32_t any = 0;

	for (uint64_t i = blockIdx.x * THREADS + threadIdx.x; i < n; i += BLOCKS * THREADS)
		any |= from[i].x;
	if (any == 0x12345678)
		*never = any;
}

void lab_flush(const void *from, uint64_t bytes, cudaStream_t stream)
{
	flush<<<BLOCKS, THREADS, 0, stream>>>((const uint4 *)from, bytes / 16, NULL);
	CHECK(cudaGetLastError());
}

static __global__ void nothing()
{
}

void lab_nothing(cudaStream_t stream)
{
	nothing<<<1, 32, 0, stream>>>();
	CHECK(cudaGetLastError());
}

static __global__ void count_clocks(uint64_t *to)
{
	uint64_t clocks = clock64(), begin = now_ns(), took;

	do
		took = now_ns() - begin;
	while (took < 20000);
	to[0] = clock64() - clocks;
	to[1] = took;
}

double lab_megahertz(cudaStream_t stream)
{
	uint64_t *there, here[2];

	CHECK(cudaMalloc(&there, sizeof(here)));
	count_clocks<<<1, 1, 0, stream>>>(there);
	CHECK(cudaMemcpyAsync(here, there, sizeof(here), cudaMemcpyDeviceToHost, stream));
	CHECK(cudaStreamSynchronize(stream));
	CHECK(cudaFree(there));
	return here[0] * 1e3 / here[1];
}
