/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/cpu/kernels/kernels.h"

#include "exchange/cpu/kernels/convert.h"

/* Nothing here is called from elsewhere, so how vectors are passed does not matter. */
#pragma GCC diagnostic ignored "-Wpsabi"
#define INLINE static inline __attribute__((always_inline))

#define LANES 4
#define TARGET
#define NAME(x) x##_x4
#include "exchange/cpu/kernels/reduce_lanes.h"

#if defined(__x86_64__)
#define LANES 8
#define TARGET __attribute__((target("avx2")))
#define NAME(x) x##_x8
#include "exchange/cpu/kernels/reduce_lanes.h"

#define LANES 16
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define NAME(x) x##_x16
#include "exchange/cpu/kernels/reduce_lanes.h"
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
	if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
		__builtin_cpu_supports("avx512dq"))
		return (struct reducer){128, reduce_bf16_x16, reduce_fp16_x16, reduce_fp32_x16};
	if (__builtin_cpu_supports("avx2"))
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

			sum += (weights ? weights[r] : 1.0f) * value;
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
