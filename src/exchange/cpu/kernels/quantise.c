/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/cpu/kernels/kernels.h"

#include <float.h>

#include "exchange/cpu/kernels/convert.h"

#define BLOCK 128
#define E4M3_MAX 448.0f

/* The exponent byte of the smallest power of two >= scale. */
static inline uint8_t ue8m0_above(float scale)
{
	uint32_t bits = float_to_bits(scale), exponent = (bits >> 23) + ((bits & 0x7fffff) != 0);

	return (uint8_t)(exponent < 1 ? 1 : exponent > 254 ? 254 : exponent);
}

/* Stores the scale of a block and returns what its elements are multiplied by. */
static inline float block_factor(float amax, enum tern_scale scale, uint32_t block, void *scales)
{
	if (scale == TERN_SCALE_FP32) {
		bool tiny = amax / E4M3_MAX < FLT_MIN; /* 448 / amax could be infinite, and make NaN
							  of the zeros beside it */

		((float *)scales)[block] = !(amax > 0) ? 1.0f : tiny ? FLT_MIN : amax / E4M3_MAX;
		return !(amax > 0) ? 1.0f : tiny ? 0x1p126f : E4M3_MAX / amax;
	}
	((uint8_t *)scales)[block] = amax > 0 ? ue8m0_above(amax / E4M3_MAX) : 127;
	return bits_to_float((254u - ((uint8_t *)scales)[block]) << 23);
}

static inline float element_bf16(const void *x, uint32_t i)
{
	return bf16_to_float(((const uint16_t *)x)[i]);
}

static inline float element_fp16(const void *x, uint32_t i)
{
	return fp16_to_float(((const uint16_t *)x)[i]);
}

static inline float element_fp32(const void *x, uint32_t i)
{
	return ((const float *)x)[i];
}

/* Blocks at a time: all their largest magnitudes first, so that the divisions of one block do not
 * hold up the next. */
#define BLOCKS 32
#define INFINITY_BITS 0x7f800000u

/* Magnitudes are compared as bits, where a NaN is above infinity. It does not count, and infinity
 * counts as FLT_MAX. */
static inline float magnitude(uint32_t most)
{
	return most == INFINITY_BITS ? FLT_MAX : bits_to_float(most);
}

#define MOST_NUMBER(TYPE)                                                                          \
	static uint32_t most_number_##TYPE(const void *x, uint32_t nr)                             \
	{                                                                                          \
		uint32_t max = 0;                                                                  \
                                                                                                   \
		for (uint32_t i = 0; i < nr; i++) {                                                \
			uint32_t bits = float_to_bits(element_##TYPE(x, i)) & 0x7fffffff;          \
                                                                                                   \
			max = bits > max && bits <= INFINITY_BITS ? bits : max;                    \
		}                                                                                  \
		return max;                                                                        \
	}

MOST_NUMBER(bf16)
MOST_NUMBER(fp16)
MOST_NUMBER(fp32)

/* As in reduce.c, the loops have to stand in the cloned function. Few blocks hold a NaN, and the
 * others do without looking for it. */
#define QUANTISE(TYPE)                                                                             \
	CPU_CLONES static void quantise_##TYPE(const void *x, uint32_t hidden,                     \
		enum tern_scale scale, uint32_t first_block, uint8_t *elements, void *scales)      \
	{                                                                                          \
		float factor[BLOCKS];                                                              \
		uint32_t most[BLOCKS];                                                             \
                                                                                                   \
		for (uint32_t b = 0; b * BLOCK < hidden; b++) {                                    \
			uint32_t nr = hidden - b * BLOCK < BLOCK ? hidden - b * BLOCK : BLOCK,     \
				 max = 0;                                                          \
			const void *in = (const uint8_t *)x + b * BLOCK * sizeof_##TYPE;           \
                                                                                                   \
			for (uint32_t i = 0; i < nr; i++) {                                        \
				uint32_t bits = float_to_bits(element_##TYPE(in, i)) & 0x7fffffff; \
                                                                                                   \
				max = bits > max ? bits : max;                                     \
			}                                                                          \
			most[b] = max;                                                             \
			if (max > INFINITY_BITS)                                                   \
				max = most_number_##TYPE(in, nr);                                  \
			factor[b] = block_factor(magnitude(max), scale, first_block + b, scales);  \
		}                                                                                  \
		for (uint32_t b = 0; b * BLOCK < hidden; b++) {                                    \
			uint32_t nr = hidden - b * BLOCK < BLOCK ? hidden - b * BLOCK : BLOCK;     \
			const void *in = (const uint8_t *)x + b * BLOCK * sizeof_##TYPE;           \
			uint8_t *out = elements + b * BLOCK;                                       \
                                                                                                   \
			if (most[b] > INFINITY_BITS)                                               \
				for (uint32_t i = 0; i < nr; i++)                                  \
					out[i] = float_to_e4m3(element_##TYPE(in, i) * factor[b]); \
			else                                                                       \
				for (uint32_t i = 0; i < nr; i++)                                  \
					out[i] =                                                   \
						number_to_e4m3(element_##TYPE(in, i) * factor[b]); \
		}                                                                                  \
	}

enum {
	sizeof_bf16 = 2,
	sizeof_fp16 = 2,
	sizeof_fp32 = 4
};

QUANTISE(bf16)
QUANTISE(fp16)
QUANTISE(fp32)

void quantise_row(const void *x, enum tern_dtype dtype, uint32_t hidden, enum tern_scale scale,
	uint8_t *elements, void *scales)
{
	for (uint32_t i = 0; i < hidden; i += BLOCKS * BLOCK) {
		uint32_t nr = hidden - i < BLOCKS * BLOCK ? hidden - i : BLOCKS * BLOCK;

		if (dtype == TERN_BF16)
			quantise_bf16((const uint16_t *)x + i, nr, scale, i / BLOCK, elements + i,
				scales);
		else if (dtype == TERN_FP16)
			quantise_fp16((const uint16_t *)x + i, nr, scale, i / BLOCK, elements + i,
				scales);
		else
			quantise_fp32(
				(const float *)x + i, nr, scale, i / BLOCK, elements + i, scales);
	}
}
