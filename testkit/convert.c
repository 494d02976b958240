/* SPDX-License-Identifier: Apache-2.0 */
#include "testkit/convert.h"

#include <float.h>
#include <string.h>

static uint32_t bits_of(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static float float_of(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

float bf16_decode(uint16_t code)
{
	return float_of((uint32_t)code << 16);
}

float fp16_decode(uint16_t code)
{
	uint32_t sign = (uint32_t)(code & 0x8000) << 16;
	uint32_t exponent = code >> 10 & 0x1f;
	uint32_t mantissa = code & 0x3ff;

	if (exponent == 0x1f)
		return float_of(sign | 0x7f800000 | mantissa << 13);
	if (exponent)
		return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
	return float_of(sign | bits_of((float)mantissa * 0x1p-24f));
}

float e4m3_decode(uint8_t code)
{
	uint32_t sign = (uint32_t)(code & 0x80) << 24;
	uint32_t exponent = code >> 3 & 0xf;
	uint32_t mantissa = code & 7;

	if ((code & 0x7f) == 0x7f)
		return float_of(sign | 0x7fc00000);
	if (exponent)
		return float_of(sign | (exponent + 120) << 23 | mantissa << 20);
	return float_of(sign | bits_of((float)mantissa * 0x1p-9f));
}

/* Drops the lowest `drop` bits of a magnitude, to nearest, ties to even. A carry runs into the
 * exponent, as it should. */
static inline uint32_t round_bits(uint32_t magnitude, int drop)
{
	uint32_t odd = magnitude >> drop & 1;

	return (magnitude + (1u << (drop - 1)) - 1 + odd) >> drop;
}

uint16_t bf16_encode(float value)
{
	uint32_t bits = bits_of(value);

	return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40
							   : round_bits(bits, 16));
}

uint16_t fp16_encode(float value)
{
	uint32_t magnitude = bits_of(value) & 0x7fffffff;
	uint32_t sign = bits_of(value) >> 16 & 0x8000;

	if (magnitude > 0x7f800000)
		return (uint16_t)(sign | 0x7e00);
	if (magnitude >= bits_of(65520.0f)) /* half-way from the largest number to 2^16, and that
					       tie goes to infinity */
		return (uint16_t)(sign | 0x7c00);
	if (magnitude < bits_of(0x1p-14f)) /* below 1.0, an fp32 sum has steps of 2^-24: the
					      subnormals' step */
		return (uint16_t)(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
	return (uint16_t)(sign | (round_bits(magnitude, 13) - (112 << 10)));
}

/* Without branches, because quantising is where the reference spends its time. */
uint8_t e4m3_encode(float value)
{
	uint32_t magnitude = bits_of(value) & 0x7fffffff;
	uint32_t sign = bits_of(value) >> 24 & 0x80;
	uint32_t nan = magnitude > 0x7f800000;
	uint32_t finite = magnitude < bits_of(448.0f) ? magnitude : bits_of(448.0f);
	uint32_t normal = round_bits(finite, 20) - (120 << 3);
	/* From 2^14 to 2^15, fp32 has steps of 2^-9: the subnormals' step. */
	uint32_t subnormal = bits_of(float_of(finite) + 0x1p14f) - bits_of(0x1p14f);
	uint32_t code = finite < bits_of(0x1p-6f) ? subnormal : normal;

	return (uint8_t)(sign | (nan ? 0x7f : code));
}

uint32_t element_bytes(enum tern_dtype dtype)
{
	switch (dtype) {
	case TERN_BF16:
	case TERN_FP16:
		return 2;
	case TERN_FP32:
		return 4;
	case TERN_FP8_E4M3:
		return 1;
	case TERN_BYTES:
		break;
	}
	return 0;
}

uint32_t one_scale_bytes(enum tern_scale scale)
{
	return scale == TERN_SCALE_FP32 ? 4 : scale == TERN_SCALE_UE8M0 ? 1 : 0;
}

void decode_row(enum tern_dtype dtype, const void *row, float *values, uint32_t n)
{
	const uint16_t *half = row;
	uint32_t i;

	if (dtype == TERN_FP32)
		memcpy(values, row, n * sizeof(*values));
	for (i = 0; dtype == TERN_BF16 && i < n; i++)
		values[i] = bf16_decode(half[i]);
	for (i = 0; dtype == TERN_FP16 && i < n; i++)
		values[i] = fp16_decode(half[i]);
}

void encode_row(enum tern_dtype dtype, const float *values, void *row, uint32_t n)
{
	uint16_t *half = row;
	uint32_t i;

	if (dtype == TERN_FP32)
		memcpy(row, values, n * sizeof(*values));
	for (i = 0; dtype == TERN_BF16 && i < n; i++)
		half[i] = bf16_encode(values[i]);
	for (i = 0; dtype == TERN_FP16 && i < n; i++)
		half[i] = fp16_encode(values[i]);
}

/* The largest magnitude of a block: NaN does not count, infinity counts as the largest number. */
static float block_amax(const float *values, uint32_t n)
{
	uint32_t amax = 0;
	uint32_t i;

	for (i = 0; i < n; i++) {
		uint32_t magnitude = bits_of(values[i]) & 0x7fffffff;

		if (magnitude <= 0x7f800000 && magnitude > amax)
			amax = magnitude;
	}
	return amax == 0x7f800000 ? FLT_MAX : float_of(amax);
}

/* The exponent byte of the smallest power of two >= amax / 448. */
static uint32_t ue8m0_exponent(float amax)
{
	uint32_t bits = bits_of(amax / 448.0f);
	uint32_t exponent = (bits >> 23) + ((bits & 0x7fffff) != 0);

	if (amax == 0)
		return 127;
	return exponent < 1 ? 1 : exponent > 254 ? 254 : exponent;
}

/* The smallest normal number at least: the inverse of less is infinite, and would make NaN of a
 * block's zeros. */
static float fp32_scale(float amax)
{
	float scale = amax / 448.0f;

	return amax == 0 ? 1.0f : scale < FLT_MIN ? FLT_MIN : scale;
}

/* What to multiply the elements of a block with. */
static float fp32_inverse(float amax)
{
	return amax == 0 ? 1.0f : amax / 448.0f < FLT_MIN ? 0x1p126f : 448.0f / amax;
}

void reference_quantise(enum tern_scale scale, const float *values, uint32_t hidden,
	uint8_t *elements, void *scales)
{
	float *scale_fp32 = scales;
	uint8_t *scale_ue8m0 = scales;
	uint32_t start, i;

	for (start = 0; start < hidden; start += SCALE_BLOCK) {
		uint32_t n = hidden - start < SCALE_BLOCK ? hidden - start : SCALE_BLOCK;
		float amax = block_amax(values + start, n);
		uint32_t exponent = ue8m0_exponent(amax);
		float inverse = scale == TERN_SCALE_FP32 ? fp32_inverse(amax)
							 : float_of((254 - exponent) << 23);

		if (scale == TERN_SCALE_FP32)
			scale_fp32[start / SCALE_BLOCK] = fp32_scale(amax);
		else
			scale_ue8m0[start / SCALE_BLOCK] = (uint8_t)exponent;
		for (i = start; i < start + n; i++)
			elements[i] = e4m3_encode(values[i] * inverse);
	}
}
