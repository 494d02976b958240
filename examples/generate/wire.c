/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include <math.h>
#include <string.h>

#define E4M3_MAX 448.0f
#define SCALE_MIN 0x1p-126f    /* a smaller scale would have an infinite inverse */
#define E4M3_MIN_EXPONENT (-6) /* of normal numbers; 3 bits of fraction below it */

/* Round to nearest, ties to even: adds just less than half of the last kept bit, plus that bit. NaN
 * stays NaN. */
uint16_t bf16_from_float(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	if (isnan(value))
		return (uint16_t)(bits >> 16 | 0x40);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float float_from_bf16(uint16_t half)
{
	uint32_t bits = (uint32_t)half << 16;
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

float float_from_e4m3(uint8_t byte)
{
	int exponent = byte >> 3 & 15, fraction = byte & 7;
	float magnitude = exponent ? ldexpf((float)(8 + fraction), exponent - 10)
				   : ldexpf((float)fraction, -9);

	if ((byte & 0x7f) == 0x7f)
		magnitude = NAN;
	return byte & 0x80 ? -magnitude : magnitude;
}

/* The nearest number that e4m3 has, saturating. */
static float e4m3_round(float value)
{
	int exponent;
	float step;

	if (isnan(value) || value == 0)
		return value;
	frexpf(value, &exponent);
	exponent = exponent - 1 < E4M3_MIN_EXPONENT ? E4M3_MIN_EXPONENT : exponent - 1;
	step = ldexpf(1.0f, exponent - 3);
	value = rintf(value / step) * step;
	return fabsf(value) > E4M3_MAX ? copysignf(E4M3_MAX, value) : value;
}

static void block_round(float *block, uint32_t nr)
{
	float most = 0, scale, factor;

	for (uint32_t i = 0; i < nr; i++)
		most = fmaxf(most, fabsf(block[i]));
	if (most == 0)
		return;
	scale = fmaxf(most / E4M3_MAX, SCALE_MIN);
	factor = E4M3_MAX / fmaxf(most, E4M3_MAX * SCALE_MIN);
	for (uint32_t i = 0; i < nr; i++)
		block[i] = e4m3_round(block[i] * factor) * scale;
}

void row_to_bf16(const float *row, uint32_t nr, uint16_t *out)
{
	for (uint32_t i = 0; i < nr; i++)
		out[i] = bf16_from_float(row[i]);
}

void row_from_bf16(const uint16_t *row, uint32_t nr, float *out)
{
	for (uint32_t i = 0; i < nr; i++)
		out[i] = float_from_bf16(row[i]);
}

void row_from_e4m3(const uint8_t *row, const float *scales, uint32_t nr, float *out)
{
	for (uint32_t i = 0; i < nr; i++)
		out[i] = float_from_e4m3(row[i]) * scales[i / WIRE_BLOCK];
}

void row_round(enum wire_type type, float *row, uint32_t nr)
{
	if (type == WIRE_BF16)
		for (uint32_t i = 0; i < nr; i++)
			row[i] = float_from_bf16(bf16_from_float(row[i]));
	if (type == WIRE_FP8)
		for (uint32_t i = 0; i < nr; i += WIRE_BLOCK)
			block_round(row + i, nr - i < WIRE_BLOCK ? nr - i : WIRE_BLOCK);
}

const char *wire_name(enum wire_type type)
{
	static const char *const names[] = {"fp32", "bf16", "fp8"};

	return names[type];
}
