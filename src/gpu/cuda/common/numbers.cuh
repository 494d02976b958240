/* SPDX-License-Identifier: Apache-2.0 */
/* Number formats in registers: what a 16-byte vector of y, or of out, holds; sums are fp32, by
 * fused multiply-adds, each rounded once. */
#ifndef TERN_GPU_CUDA_COMMON_NUMBERS_CUH
#define TERN_GPU_CUDA_COMMON_NUMBERS_CUH

#include "gpu/cuda/common/kernels.h"
#include "gpu/cuda/common/warp.cuh"

#define INFINITY_BITS 0x7f800000u

__device__ __forceinline__ float bf16_low(uint32_t pair)
{
	return __uint_as_float(pair << 16);
}

__device__ __forceinline__ float bf16_high(uint32_t pair)
{
	return __uint_as_float(pair & 0xffff0000u);
}

/* An FP16 number as a float's bits; a NaN keeps its sign. Multiplying by 2^112 makes subnormals
 * normal. */
__device__ __forceinline__ uint32_t fp16_bits(uint32_t h)
{
	uint32_t rest = h & 0x7fff,
		 finite = __float_as_uint(__fmul_rn(__uint_as_float(rest << 13), 0x1p112f));

	return (h & 0x8000) << 16 | (rest >= 0x7c00 ? INFINITY_BITS | rest << 13 : finite);
}

template <int Y> struct y_kind {
	static constexpr int PER_VECTOR = Y == GPU_Y_FP32 ? 4 : 8;
};

template <int Y>
__device__ __forceinline__ void y_numbers(uint4 v, float (&x)[y_kind<Y>::PER_VECTOR])
{
	const uint32_t word[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
	for (int i = 0; i < 4; i++) {
		if constexpr (Y == GPU_Y_FP32) {
			x[i] = __uint_as_float(word[i]);
		} else {
			x[2 * i] =
				Y == GPU_Y_BF16 ? bf16_low(word[i]) : fp16_number(word[i] & 0xffff);
			x[2 * i + 1] =
				Y == GPU_Y_BF16 ? bf16_high(word[i]) : fp16_number(word[i] >> 16);
		}
	}
}

/* weight: 1 for rows that are summed as they are. */
template <int Y>
__device__ __forceinline__ void add_vector(
	float (&sum)[y_kind<Y>::PER_VECTOR], uint4 v, float weight)
{
	float x[y_kind<Y>::PER_VECTOR];

	y_numbers<Y>(v, x);
#pragma unroll
	for (int i = 0; i < y_kind<Y>::PER_VECTOR; i++)
		sum[i] = __fmaf_rn(weight, x[i], sum[i]);
}

template <int Y> __device__ __forceinline__ uint32_t round_pair(float low, float high)
{
	return Y == GPU_Y_BF16 ? bf16_pair(low, high) : fp16_pair(low, high);
}

template <int Y>
__device__ __forceinline__ uint4 round_vector(const float (&sum)[y_kind<Y>::PER_VECTOR])
{
	if constexpr (Y == GPU_Y_FP32)
		return make_uint4(__float_as_uint(sum[0]), __float_as_uint(sum[1]),
			__float_as_uint(sum[2]), __float_as_uint(sum[3]));
	else
		return make_uint4(round_pair<Y>(sum[0], sum[1]), round_pair<Y>(sum[2], sum[3]),
			round_pair<Y>(sum[4], sum[5]), round_pair<Y>(sum[6], sum[7]));
}

#endif
