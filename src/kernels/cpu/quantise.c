/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels.h"

#include <float.h>

#include "convert.h"

#define BLOCK 128
#define E4M3_MAX 448.0f

/* The block's elements as fp32, zeros beyond nr. */
CPU_CLONES static void load_bf16(const uint16_t *x, uint32_t nr, float *out)
{
	for (uint32_t i = 0; i < nr; i++)
		out[i] = bf16_to_float(x[i]);
}

CPU_CLONES static void load_fp16(const uint16_t *x, uint32_t nr, float *out)
{
	for (uint32_t i = 0; i < nr; i++)
		out[i] = fp16_to_float(x[i]);
}

/* Largest magnitude, NaN left out: compared as integers, where a NaN is above infinity. Infinity counts as FLT_MAX. */
CPU_CLONES static float block_amax(const float *v, uint32_t nr)
{
	uint32_t most = 0;

	for (uint32_t i = 0; i < nr; i++) {
		uint32_t bits = float_to_bits(v[i]) & 0x7fffffff;

		bits = bits > 0x7f800000 ? 0 : bits;
		most = bits > most ? bits : most;
	}
	return most >= 0x7f800000 ? FLT_MAX : bits_to_float(most);
}

CPU_CLONES static void block_encode(const float *v, uint32_t nr, float factor, uint8_t *out)
{
	for (uint32_t i = 0; i < nr; i++)
		out[i] = float_to_e4m3(v[i] * factor);
}

/* The exponent byte of the smallest power of two >= scale. */
static uint8_t ue8m0_above(float scale)
{
	uint32_t bits = float_to_bits(scale), exponent = (bits >> 23) + ((bits & 0x7fffff) != 0);

	return (uint8_t)(exponent < 1 ? 1 : exponent > 254 ? 254 : exponent);
}

static float block_factor(float amax, enum tern_scale scale, uint32_t block, void *scales)
{
	if (scale == TERN_SCALE_FP32) {
		float quotient = amax > 0 ? amax / E4M3_MAX : 1.0f;

		/* Below, the inverse would be infinite, and make NaN of the block's zeros. */
		((float *)scales)[block] = quotient < FLT_MIN ? FLT_MIN : quotient;
		return quotient < FLT_MIN ? 1.0f / FLT_MIN : amax > 0 ? E4M3_MAX / amax : 1.0f;
	}
	((uint8_t *)scales)[block] = amax > 0 ? ue8m0_above(amax / E4M3_MAX) : 127;
	return bits_to_float((254u - ((uint8_t *)scales)[block]) << 23);
}

void quantise_row(const void *x, enum tern_dtype dtype, uint32_t hidden, enum tern_scale scale, uint8_t *elements, void *scales)
{
	float values[BLOCK];

	for (uint32_t block = 0, i = 0; i < hidden; block++, i += BLOCK) {
		uint32_t nr = hidden - i < BLOCK ? hidden - i : BLOCK;
		const float *v = values;

		if (dtype == TERN_BF16)
			load_bf16((const uint16_t *)x + i, nr, values);
		else if (dtype == TERN_FP16)
			load_fp16((const uint16_t *)x + i, nr, values);
		else
			v = (const float *)x + i;
		block_encode(v, nr, block_factor(block_amax(v, nr), scale, block, scales), elements + i);
	}
}
