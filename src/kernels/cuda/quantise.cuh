/* SPDX-License-Identifier: Apache-2.0 */
/* BF16 to FP8 with a scale for each block of 128, the same bits as src/kernels/cpu/quantise.c. Eight neighbouring lanes hold a block. */
#ifndef TERN_CUDA_QUANTISE_CUH
#define TERN_CUDA_QUANTISE_CUH

#include "memory.cuh"

#include <float.h>

#define INFINITY_BITS 0x7f800000u

/* e4m3, saturating at 448, NaN with its sign; as in src/kernels/cpu/convert.h. */
__device__ __forceinline__ uint32_t float_to_e4m3(float value)
{
	uint32_t bits = __float_as_uint(value), sign = bits >> 24 & 0x80, rest = bits & 0x7fffffff;
	uint32_t within = rest < 0x43e00000 ? rest : 0x43e00000;
	uint32_t normal = (within - 0x3c000000 + 0x7ffff + ((within >> 20) & 1)) >> 20;
	uint32_t small = __float_as_uint(__fadd_rn(__uint_as_float(within), 0x1p14f)) - 0x46800000;

	return sign | (rest > INFINITY_BITS ? 0x7f : within < 0x3c800000 ? small : normal);
}

/* An element that may be NaN, times factor: a GPU's product of a NaN has lost its sign. */
__device__ __forceinline__ uint32_t special_to_e4m3(float value, float factor)
{
	uint32_t bits = __float_as_uint(value);

	return (bits & 0x7fffffff) > INFINITY_BITS ? (bits >> 24 & 0x80) | 0x7f : float_to_e4m3(__fmul_rn(value, factor));
}

/* Two numbers, or infinities; the instruction loses a NaN's sign. */
#if __CUDA_ARCH__ >= 890
__device__ __forceinline__ uint32_t pair_to_e4m3(float low, float high)
{
	uint16_t pair;

	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
	return pair;
}
#else
__device__ __forceinline__ uint32_t pair_to_e4m3(float low, float high)
{
	return float_to_e4m3(low) | float_to_e4m3(high) << 8;
}
#endif

__device__ __forceinline__ float bf16_low(uint32_t pair)
{
	return __uint_as_float(pair << 16);
}

__device__ __forceinline__ float bf16_high(uint32_t pair)
{
	return __uint_as_float(pair & 0xffff0000u);
}

/* Of the eight lanes that hold a block. */
__device__ __forceinline__ uint32_t most_of_block(uint32_t most)
{
	most = max(most, __shfl_xor_sync(ALL_LANES, most, 1));
	most = max(most, __shfl_xor_sync(ALL_LANES, most, 2));
	return max(most, __shfl_xor_sync(ALL_LANES, most, 4));
}

/* The largest magnitude of a block, as bits. */
__device__ __forceinline__ uint32_t block_most(const uint32_t x[8])
{
	uint32_t low = 0, high = 0;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		low = max(low, x[i] << 16 & 0x7fffffff);
		high = max(high, x[i] & 0x7fff0000);
	}
	return most_of_block(max(low, high));
}

/* The same where there are NaNs, which do not count. Rare, and kept out of the way of the others. */
static __device__ __noinline__ uint32_t most_number(uint4 first, uint4 second)
{
	const uint32_t x[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
	uint32_t most = 0;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		uint32_t low = x[i] << 16 & 0x7fffffff, high = x[i] & 0x7fff0000;

		most = max(most, low > INFINITY_BITS ? 0 : low);
		most = max(most, high > INFINITY_BITS ? 0 : high);
	}
	return most_of_block(most);
}

static __device__ __noinline__ uint4 specials_to_e4m3(uint4 first, uint4 second, float factor)
{
	const uint32_t x[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
	uint32_t out[4] = {};

#pragma unroll
	for (int i = 0; i < 8; i++)
		out[i / 2] |= (special_to_e4m3(bf16_low(x[i]), factor) | special_to_e4m3(bf16_high(x[i]), factor) << 8) << i % 2 * 16;
	return make_uint4(out[0], out[1], out[2], out[3]);
}

/* This lane's 16 elements of the block, in two halves, to 16 bytes. All lanes of a warp take part. */
__device__ __forceinline__ uint4 quantise_block(uint4 first, uint4 second, float *scale)
{
	uint32_t x[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w}, out[4];
	uint32_t most = block_most(x);
	bool special = __any_sync(ALL_LANES, most > INFINITY_BITS);

	if (special)
		most = most_number(first, second);
	float amax = most == INFINITY_BITS ? FLT_MAX : __uint_as_float(most);
	bool none = !(amax > 0), tiny = __fdiv_rn(amax, 448.0f) < FLT_MIN; /* 448 / amax could be infinite */
	float factor = none ? 1.0f : tiny ? 0x1p126f : __fdiv_rn(448.0f, amax);

	*scale = none ? 1.0f : tiny ? FLT_MIN : __fdiv_rn(amax, 448.0f);
	if (special)
		return specials_to_e4m3(first, second, factor);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		float a = __fmul_rn(bf16_low(x[2 * i]), factor), b = __fmul_rn(bf16_high(x[2 * i]), factor);
		float c = __fmul_rn(bf16_low(x[2 * i + 1]), factor), d = __fmul_rn(bf16_high(x[2 * i + 1]), factor);

		out[i] = pair_to_e4m3(a, b) | pair_to_e4m3(c, d) << 16;
	}
	return make_uint4(out[0], out[1], out[2], out[3]);
}

#endif
