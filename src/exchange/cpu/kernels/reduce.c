/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/cpu/kernels/kernels.h"

#include "exchange/cpu/kernels/convert.h"

#include <math.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Nothing here is called from elsewhere, so how vectors are passed does not matter. */
#pragma GCC diagnostic ignored "-Wpsabi"
#define INLINE static inline __attribute__((always_inline))

#define LANES 4
#define TARGET
#define NAME(x) x##_x4
#define FUSED(weight, x, sum) fused_by_lanes(weight, x, sum)
typedef float f32_x4 __attribute__((vector_size(16)));

#ifdef __FP_FAST_FMAF
INLINE f32_x4 fused_by_lanes(float weight, f32_x4 x, f32_x4 sum)
{
	for (int i = 0; i < 4; i++)
		sum[i] = fmaf(weight, x[i], sum[i]);
	return sum;
}
#else
typedef double f64_x2 __attribute__((vector_size(16)));
typedef int64_t s64_x2 __attribute__((vector_size(16)));

/* Exact sums of two, as doubles that a float is rounded from as from themselves: of the two beside
 * a sum the odd one, which says on which side of a float's halfway point that is. */
INLINE f64_x2 odd_sums(f64_x2 a, f64_x2 b)
{
	f64_x2 sum = a + b, added = sum - a, rest = (a - (sum - added)) + (b - added);
	s64_x2 bits = (s64_x2)sum, inexact = (rest > 0) | (rest < 0), away = (rest > 0) ^ (sum < 0),
	       even = (bits & 1) - 1;

	return (f64_x2)(bits + (inexact & even & ((away & 2) - 1)));
}

/* A processor without the instruction. A product is exact in a double. */
INLINE f32_x4 fused_by_lanes(float weight, f32_x4 x, f32_x4 sum)
{
	f64_x2 low = odd_sums(weight * (f64_x2){x[0], x[1]}, (f64_x2){sum[0], sum[1]}),
	       high = odd_sums(weight * (f64_x2){x[2], x[3]}, (f64_x2){sum[2], sum[3]});

	return (f32_x4){(float)low[0], (float)low[1], (float)high[0], (float)high[1]};
}
#endif
#include "exchange/cpu/kernels/reduce_lanes.h"

#if defined(__x86_64__)
#define LANES 8
#define TARGET __attribute__((target("avx2,fma")))
#define NAME(x) x##_x8
#define FUSED(weight, x, sum)                                                                      \
	((f32_x8)_mm256_fmadd_ps(_mm256_set1_ps(weight), (__m256)(x), (__m256)(sum)))
#include "exchange/cpu/kernels/reduce_lanes.h"

#define LANES 16
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define NAME(x) x##_x16
#define FUSED(weight, x, sum)                                                                      \
	((f32_x16)_mm512_fmadd_ps(_mm512_set1_ps(weight), (__m512)(x), (__m512)(sum)))
#include "exchange/cpu/kernels/reduce_lanes.h"
#endif

/* Tests set it to less, to see each instruction set by itself. */
#ifndef MOST_LANES
#define MOST_LANES 16
#endif

typedef void (*reduce_fn)(const uint8_t *const *rows, const float *weights, uint32_t nr_rows,
	uint32_t nr_bytes, uint8_t *out);

struct reducer {
	uint32_t step; /* bytes at a time */
	reduce_fn bf16, fp16, fp32;
};

static struct reducer choose_reducer(void)
{
#if defined(__x86_64__)
	if (MOST_LANES >= 16 && __builtin_cpu_supports("avx512bw") &&
		__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
		return (struct reducer){128, reduce_bf16_x16, reduce_fp16_x16, reduce_fp32_x16};
	if (MOST_LANES >= 8 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		return (struct reducer){64, reduce_bf16_x8, reduce_fp16_x8, reduce_fp32_x8};
#endif
	return (struct reducer){32, reduce_bf16_x4, reduce_fp16_x4, reduce_fp32_x4};
}

static reduce_fn reduce_of(const struct reducer *reducer, enum tern_dtype dtype)
{
	return dtype == TERN_BF16   ? reducer->bf16
	       : dtype == TERN_FP16 ? reducer->fp16
				    : reducer->fp32;
}

/* What is less than the vectors take at a time. */
static void reduce_rest(enum tern_dtype dtype, const void *const *rows, const float *weights,
	uint32_t nr_rows, uint32_t i, uint32_t hidden, void *out)
{
	for (; i < hidden; i++) {
		float sum = 0;

		for (uint32_t r = 0; r < nr_rows; r++) {
			float value =
				dtype == TERN_BF16   ? bf16_to_float(((const uint16_t *)rows[r])[i])
				: dtype == TERN_FP16 ? fp16_to_float(((const uint16_t *)rows[r])[i])
						     : ((const float *)rows[r])[i];

			sum = fmaf(weights ? weights[r] : 1.0f, value, sum);
		}
		if (dtype == TERN_FP32)
			((float *)out)[i] = sum;
		else
			((uint16_t *)out)[i] =
				dtype == TERN_BF16 ? float_to_bf16(sum) : float_to_fp16(sum);
	}
}

void reduce_rows(enum tern_dtype dtype, const void *const *rows, const float *weights,
	uint32_t nr_rows, uint32_t hidden, void *out)
{
	struct reducer reducer = choose_reducer();
	uint32_t element = dtype == TERN_FP32 ? 4 : 2,
		 whole = hidden * element / reducer.step * reducer.step;

	reduce_of(&reducer, dtype)((const uint8_t *const *)rows, weights, nr_rows, whole, out);
	reduce_rest(dtype, rows, weights, nr_rows, whole / element, hidden, out);
}
