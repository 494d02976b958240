/* SPDX-License-Identifier: Apache-2.0 */
/* Number formats, one element at a time, without branches so that loops over them vectorise. All
 * round to nearest even. */
#ifndef TERN_EXCHANGE_CPU_KERNELS_CONVERT_H
#define TERN_EXCHANGE_CPU_KERNELS_CONVERT_H

#include <stdint.h>
#include <string.h>

static inline float bits_to_float(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static inline uint32_t float_to_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static inline float bf16_to_float(uint16_t h)
{
	return bits_to_float((uint32_t)h << 16);
}

static inline uint16_t float_to_bf16(float value)
{
	uint32_t bits = float_to_bits(value);
	uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
	uint32_t nan = bits >> 16 | 0x40;

	return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

/* Multiplying by 2^112 moves the exponent to fp32's bias and makes subnormals normal. */
static inline float fp16_to_float(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
	uint32_t finite = float_to_bits(bits_to_float(rest << 13) * 0x1p112f);
	uint32_t special = 0x7f800000 | rest << 13;

	return bits_to_float(sign | (rest >= 0x7c00 ? special : finite));
}

/* Subnormals: adding 2^-1 leaves a multiple of 2^-24 in the low mantissa bits, rounded by the
 * adder. */
static inline uint16_t float_to_fp16(float value)
{
	uint32_t bits = float_to_bits(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
	uint32_t normal = (rest - 0x38000000 + 0xfff + ((rest >> 13) & 1)) >> 13;
	uint32_t small = float_to_bits(bits_to_float(rest) + 0.5f) - 0x3f000000;
	uint32_t finite = rest < 0x38800000 ? small : rest >= 0x477ff000 ? 0x7c00 : normal;

	return (uint16_t)(sign | (rest > 0x7f800000 ? 0x7e00 : finite));
}

/* e4m3, saturating at 448; no infinity. Subnormals as above: 2^-9 is the last bit, so 2^14 is
 * added. For numbers and infinity. */
static inline uint8_t number_to_e4m3(float value)
{
	uint32_t bits = float_to_bits(value), sign = bits >> 24 & 0x80, rest = bits & 0x7fffffff;
	uint32_t within = rest < 0x43e00000 ? rest : 0x43e00000;
	uint32_t normal = (within - 0x3c000000 + 0x7ffff + ((within >> 20) & 1)) >> 20;
	uint32_t small = float_to_bits(bits_to_float(within) + 0x1p14f) - 0x46800000;

	return (uint8_t)(sign | (within < 0x3c800000 ? small : normal));
}

/* The same, and NaN stays NaN. */
static inline uint8_t float_to_e4m3(float value)
{
	uint32_t bits = float_to_bits(value);

	return (bits & 0x7fffffff) > 0x7f800000 ? (uint8_t)(bits >> 24 | 0x7f)
						: number_to_e4m3(value);
}

/* Subnormals are multiples of 2^-9. */
static inline float e4m3_to_float(uint8_t code)
{
	uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
	float value = exponent ? bits_to_float((exponent + 120) << 23 | mantissa << 20)
			       : (float)mantissa * 0x1p-9f;

	if ((code & 0x7f) == 0x7f)
		value = bits_to_float(0x7fc00000);
	return code & 0x80 ? -value : value;
}

#endif
