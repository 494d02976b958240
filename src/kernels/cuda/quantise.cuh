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

/* The largest magnitude of a block, as bits. NaN does not count when numbers is set, and infinity counts as the largest number. */
__device__ __forceinline__ uint32_t block_most(const uint32_t x[8], bool numbers)
{
	uint32_t most = 0;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		uint32_t low = x[i] << 16 & 0x7fffffff, high = x[i] & 0x7fff0000;

		most = max(most, numbers && low > INFINITY_BITS ? 0 : low);
		most = max(most, numbers && high > INFINITY_BITS ? 0 : high);
	}
	most = max(most, __shfl_xor_sync(ALL_LANES, most, 1));
	most = max(most, __shfl_xor_sync(ALL_LANES, most, 2));
	return max(most, __shfl_xor_sync(ALL_LANES, most, 4));
}

/* This lane's 16 elements of the block, in two halves, to 16 bytes. All lanes of a warp take part. */
__device__ __forceinline__ uint4 quantise_block(uint4 first, uint4 second, float *scale)
{
	uint32_t x[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w}, out[4];
	uint32_t most = block_most(x, false);
	bool special = __any_sync(ALL_LANES, most > INFINITY_BITS);

	if (special)
		most = block_most(x, true);
	float amax = most == INFINITY_BITS ? FLT_MAX : __uint_as_float(most);
	bool none = !(amax > 0), tiny = __fdiv_rn(amax, 448.0f) < FLT_MIN; /* 448 / amax could be infinite */
	float factor = none ? 1.0f : tiny ? 0x1p126f : __fdiv_rn(448.0f, amax);

	*scale = none ? 1.0f : tiny ? FLT_MIN : __fdiv_rn(amax, 448.0f);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		float a = bf16_low(x[2 * i]), b = bf16_high(x[2 * i]), c = bf16_low(x[2 * i + 1]), d = bf16_high(x[2 * i + 1]);

		out[i] = special ? special_to_e4m3(a, factor) | special_to_e4m3(b, factor) << 8 | special_to_e4m3(c, factor) << 16 |
				special_to_e4m3(d, factor) << 24
				 : pair_to_e4m3(__fmul_rn(a, factor), __fmul_rn(b, factor)) |
				pair_to_e4m3(__fmul_rn(c, factor), __fmul_rn(d, factor)) << 16;
	}
	return make_uint4(out[0], out[1], out[2], out[3]);
}

#endif
