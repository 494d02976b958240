/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of x to FP8 with a scale for each block of 128, the same bits as
 * src/exchange/cpu/kernels/quantise.c. Eight neighbouring lanes hold a block. */
#ifndef TERN_GPU_CUDA_COMMON_QUANTISE_CUH
#define TERN_GPU_CUDA_COMMON_QUANTISE_CUH

#include "gpu/cuda/common/kernels.h"
#include "gpu/cuda/common/numbers.cuh"

#include <float.h>

/* 16-byte loads that 16 bytes of a travelling row come from. */
template <int X> struct x_kind {
	static constexpr bool SCALED = X != GPU_X_COPY;
	static constexpr int LOADS = X == GPU_X_FP32                      ? 4
				     : X == GPU_X_BF16 || X == GPU_X_FP16 ? 2
									  : 1;
};

/* e4m3, saturating at 448, NaN with its sign; as in src/exchange/cpu/kernels/convert.h. */
__device__ __forceinline__ uint32_t float_to_e4m3(float value)
{
	uint32_t bits = __float_as_uint(value), sign = bits >> 24 & 0x80, rest = bits & 0x7fffffff;
	uint32_t within = rest < 0x43e00000 ? rest : 0x43e00000;
	uint32_t normal = (within - 0x3c000000 + 0x7ffff + ((within >> 20) & 1)) >> 20;
	uint32_t small = __float_as_uint(__fadd_rn(__uint_as_float(within), 0x1p14f)) - 0x46800000;

	return sign | (rest > INFINITY_BITS ? 0x7f : within < 0x3c800000 ? small : normal);
}

/* An element that may be NaN, times factor: a GPU's product of a NaN has lost its sign. */
__device__ __forceinline__ uint32_t special_to_e4m3(uint32_t bits, float factor)
{
	return (bits & 0x7fffffff) > INFINITY_BITS
		       ? (bits >> 24 & 0x80) | 0x7f
		       : float_to_e4m3(__fmul_rn(__uint_as_float(bits), factor));
}

/* Two numbers, or infinities; the instruction loses a NaN's sign. */
#if __CUDA_ARCH__ >= 890
__device__ __forceinline__ uint32_t pair_to_e4m3(float low, float high)
{
	return e4m3_pair(low, high);
}
#else
__device__ __forceinline__ uint32_t pair_to_e4m3(float low, float high)
{
	return float_to_e4m3(low) | float_to_e4m3(high) << 8;
}
#endif

/* 16 elements as floats' bits. */
template <int X>
__device__ __forceinline__ void widen(const uint4 (&raw)[x_kind<X>::LOADS], uint32_t (&x)[16])
{
	constexpr int PER_WORD = X == GPU_X_FP32 ? 1 : 2;

#pragma unroll
	for (int i = 0; i < 16 / PER_WORD; i++) {
		const uint4 v = raw[i / 4];
		uint32_t word = i % 4 == 0 ? v.x : i % 4 == 1 ? v.y : i % 4 == 2 ? v.z : v.w;

		if (X == GPU_X_FP32) {
			x[i] = word;
			continue;
		}
		x[PER_WORD * i] = X == GPU_X_BF16 ? word << 16 : fp16_bits(word & 0xffff);
		x[PER_WORD * i + PER_WORD - 1] =
			X == GPU_X_BF16 ? word & 0xffff0000u : fp16_bits(word >> 16);
	}
}

/* Of the eight lanes that hold a block. */
__device__ __forceinline__ uint32_t most_of_block(uint32_t most)
{
	most = max(most, __shfl_xor_sync(ALL_LANES, most, 1));
	most = max(most, __shfl_xor_sync(ALL_LANES, most, 2));
	return max(most, __shfl_xor_sync(ALL_LANES, most, 4));
}

/* The largest magnitude where there are NaNs, which do not count. Rare, and kept out of the way of
 * the others. */
template <int X>
static __device__ __noinline__ uint32_t most_number(uint4 a, uint4 b, uint4 c, uint4 d)
{
	const uint4 all[4] = {a, b, c, d};
	uint4 raw[x_kind<X>::LOADS];
	uint32_t x[16], most = 0;

#pragma unroll
	for (int i = 0; i < x_kind<X>::LOADS; i++)
		raw[i] = all[i];
	widen<X>(raw, x);
#pragma unroll
	for (int i = 0; i < 16; i++)
		most = max(most, (x[i] & 0x7fffffff) > INFINITY_BITS ? 0 : x[i] & 0x7fffffff);
	return most_of_block(most);
}

template <int X>
static __device__ __noinline__ uint4 specials_to_e4m3(
	uint4 a, uint4 b, uint4 c, uint4 d, float factor)
{
	const uint4 all[4] = {a, b, c, d};
	uint4 raw[x_kind<X>::LOADS];
	uint32_t x[16], out[4] = {};

#pragma unroll
	for (int i = 0; i < x_kind<X>::LOADS; i++)
		raw[i] = all[i];
	widen<X>(raw, x);
#pragma unroll
	for (int i = 0; i < 16; i++)
		out[i / 4] |= special_to_e4m3(x[i], factor) << i % 4 * 8;
	return make_uint4(out[0], out[1], out[2], out[3]);
}

/* What a block's elements are multiplied by; and its scale, as it is stored. */
__device__ __forceinline__ float block_factor(uint32_t most, bool ue8m0, uint32_t *scale)
{
	float amax = most == INFINITY_BITS ? FLT_MAX : __uint_as_float(most),
	      least = __fdiv_rn(amax, 448.0f);
	bool none = !(amax > 0), tiny = least < FLT_MIN; /* 448 / amax could be infinite */

	if (ue8m0) {
		uint32_t bits = __float_as_uint(least),
			 exponent = (bits >> 23) + ((bits & 0x7fffff) != 0);

		*scale = none ? 127 : exponent < 1 ? 1 : min(exponent, 254u);
		return __uint_as_float((254 - *scale) << 23);
	}
	*scale = __float_as_uint(none ? 1.0f : tiny ? FLT_MIN : least);
	return none ? 1.0f : tiny ? 0x1p126f : __fdiv_rn(448.0f, amax);
}

/* ---- what blocks usually are ----------------------------------------------------------------- */

/* Blocks whose largest magnitude is 0 or from 2^-100 to 2^100: no NaN, no infinity, and divisions
 * without special cases. */
__device__ __forceinline__ bool is_usual(uint32_t most)
{
	return most == 0 || most - 0x0d800000u <= 0x71800000u - 0x0d800000u;
}

/* The largest magnitude of 16 elements, as a float's bits (a NaN is larger than infinity). */
template <int X>
__device__ __forceinline__ uint32_t most_of_lane(const uint4 (&raw)[x_kind<X>::LOADS])
{
	uint32_t most = 0;

#pragma unroll
	for (int i = 0; i < x_kind<X>::LOADS; i++) {
		const uint32_t words[4] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w};

#pragma unroll
		for (int w = 0; w < 4; w++)
			most = X == GPU_X_FP32 ? max(most, words[w] & 0x7fffffff)
					       : max_of_halves(most, words[w] & 0x7fff7fff);
	}
	if (X == GPU_X_FP32)
		return most;
	most = max(most & 0xffff, most >> 16);
	return X == GPU_X_BF16 ? most << 16 : fp16_bits(most);
}

/* a / b, correctly rounded: near is 1 / b within 2 units in its last place, and nothing is near the
 * ends of the range. One step of Newton's and one correction by the remainder are enough for all
 * 2^23 mantissas of a in a / 448 and of b in 448 / b (tests/device/emulate/test_divide.cu). */
__device__ __forceinline__ float divide_usual(float a, float b, float near)
{
	float reciprocal = __fmaf_rn(near, __fmaf_rn(-b, near, 1.0f), near),
	      quotient = __fmul_rn(a, reciprocal);

	return __fmaf_rn(reciprocal, __fmaf_rn(-b, quotient, a), quotient);
}

/* block_factor, for usual blocks. */
__device__ __forceinline__ float usual_factor(uint32_t most, bool ue8m0, uint32_t *scale)
{
	float amax = __uint_as_float(most), least = divide_usual(amax, 448.0f, 1.0f / 448.0f);
	uint32_t bits = __float_as_uint(least), exponent = (bits >> 23) + ((bits & 0x7fffff) != 0);

	*scale = ue8m0 ? (most ? exponent : 127) : (most ? bits : 0x3f800000);
	return !most   ? 1.0f
	       : ue8m0 ? __uint_as_float((254 - exponent) << 23)
		       : divide_usual(448.0f, amax, reciprocal_near(amax));
}

template <int X>
__device__ __forceinline__ uint4 scaled_to_e4m3(const uint4 (&raw)[x_kind<X>::LOADS], float factor)
{
	uint32_t x[16], out[4];

	widen<X>(raw, x);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		float a = __fmul_rn(__uint_as_float(x[4 * i]), factor),
		      b = __fmul_rn(__uint_as_float(x[4 * i + 1]), factor);
		float c = __fmul_rn(__uint_as_float(x[4 * i + 2]), factor),
		      d = __fmul_rn(__uint_as_float(x[4 * i + 3]), factor);

		out[i] = pair_to_e4m3(a, b) | pair_to_e4m3(c, d) << 16;
	}
	return make_uint4(out[0], out[1], out[2], out[3]);
}

/* ---- all blocks ------------------------------------------------------------------------------ */

/* This lane's 16 elements of a block that may hold anything. Rare, and kept out of the way of the
 * others. */
struct quantised {
	uint4 v;
	uint32_t scale;
};

template <int X>
static __device__ __noinline__ struct quantised quantise_rare(
	uint4 a, uint4 b, uint4 c, uint4 d, bool ue8m0)
{
	struct quantised q;
	float factor = block_factor(most_number<X>(a, b, c, d), ue8m0, &q.scale);

	q.v = specials_to_e4m3<X>(a, b, c, d, factor);
	return q;
}

/* This lane's 16 elements of each of N blocks to 16 bytes, the blocks side by side so that none
 * waits for another. All lanes of a warp take part. */
template <int X, int N>
__device__ __forceinline__ void quantise_blocks(
	const uint4 (&raw)[N][x_kind<X>::LOADS], bool ue8m0, uint4 *out, uint32_t *scale)
{
	constexpr int LAST = x_kind<X>::LOADS - 1;
	uint32_t most[N];
	bool usual = true;

#pragma unroll
	for (int i = 0; i < N; i++) {
		most[i] = most_of_block(most_of_lane<X>(raw[i]));
		usual = usual && is_usual(most[i]);
	}
	if (!__all_sync(ALL_LANES, usual)) {
#pragma unroll
		for (int i = 0; i < N; i++) {
			struct quantised q =
				quantise_rare<X>(raw[i][0], raw[i][LAST < 1 ? LAST : 1],
					raw[i][LAST < 2 ? LAST : 2], raw[i][LAST], ue8m0);

			out[i] = q.v;
			scale[i] = q.scale;
		}
		return;
	}
#pragma unroll
	for (int i = 0; i < N; i++)
		out[i] = scaled_to_e4m3<X>(raw[i], usual_factor(most[i], ue8m0, &scale[i]));
}

#endif
