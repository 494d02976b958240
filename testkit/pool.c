/* SPDX-License-Identifier: Apache-2.0 */
#include "testkit/pool.h"
#include "testkit/convert.h"
#include "testkit/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Runs of this many elements are long enough to fill a block of 128 wherever a row starts. */
#define RUN 256

/* In fp8 integers up to 16 are exact, and with a 448 in each block its scale is 1. */
static float exact_value(enum pool_use use, uint64_t index, uint64_t *state)
{
	if (use == POOL_Y)
		return (float)random_below(state, 5) - 2;
	if (index % SCALE_BLOCK == 0)
		return random_below(state, 2) ? 448 : -448;
	return (float)random_below(state, 33) - 16;
}

/* -126 to 127. */
static float power_of_two(int exponent)
{
	uint32_t bits = (uint32_t)(127 + exponent) << 23;
	float power;

	memcpy(&power, &bits, sizeof(power));
	return power;
}

/* Mostly around 1, now and then far from it. Sums of TERN_MAX_TOPK of them stay below FP16's 65504.
 */
static float random_value(enum tern_dtype dtype, uint64_t *state)
{
	uint64_t number = random_next(state);
	int exponent = (int)(number & 7) + (int)(number >> 3 & 7) - 7;
	float value = 1.0f + (float)(number >> 40) * 0x1p-24f;

	if ((number >> 8 & 0xff) == 0)
		exponent = dtype == TERN_FP16 ? -(int)random_below(state, 25)
					      : 30 - (int)random_below(state, 61);
	return (number >> 6 & 1 ? -value : value) * power_of_two(exponent);
}

static float special_value(enum tern_dtype dtype, uint64_t *state)
{
	static const float values[] = {NAN, -NAN, INFINITY, -INFINITY, 0, -0.0f, 0x1p-24f,
		-0x1p-25f, 0x1p-133f, -0x1p-140f, 65504, -65504, 3e38f, -3e38f, 448, 464};

	return random_below(state, 32) ? random_value(dtype, state)
				       : values[random_below(state, 16)];
}

static float pool_value(enum pool_use use, enum tern_dtype dtype, enum job_input input,
	uint64_t index, uint64_t *state)
{
	uint64_t run = index / RUN % 64;

	if (input == INPUT_EXACT)
		return exact_value(use, index, state);
	if (run == 13) /* blocks of zeros */
		return random_below(state, 2) ? -0.0f : 0;
	if (input == INPUT_RANDOM)
		return random_value(dtype, state);
	if (run == 21) /* blocks of next to nothing */
		return (float)random_below(state, 3) * 0x1p-130f;
	if (run == 34)
		return NAN;
	return special_value(dtype, state);
}

static uint8_t random_e4m3(uint64_t *state)
{
	uint8_t code = (uint8_t)(random_next(state) >> 32);

	return (code & 0x7f) == 0x7f ? code & 0xfe : code; /* not NaN */
}

unsigned char *pool_elements(
	enum pool_use use, enum tern_dtype dtype, enum job_input input, uint64_t seed, uint32_t row)
{
	uint32_t bytes = element_bytes(dtype) ? element_bytes(dtype) : 1;
	uint64_t i, nr = POOL_STARTS + (uint64_t)row;
	uint64_t state = hash2(seed, use);
	unsigned char *pool = malloc(nr * bytes);

	for (i = 0; pool && i < nr; i++) {
		float value;

		if (dtype == TERN_BYTES) {
			pool[i] = (unsigned char)(random_next(&state) >> 32);
		} else if (dtype == TERN_FP8_E4M3) {
			pool[i] = input == INPUT_EXACT ? e4m3_encode(exact_value(use, i, &state))
						       : random_e4m3(&state);
		} else {
			value = pool_value(use, dtype, input, i, &state);
			encode_row(dtype, &value, pool + i * bytes, 1);
		}
	}
	return pool;
}

unsigned char *pool_scales(enum tern_scale scale, uint64_t seed, uint32_t row)
{
	uint64_t i, nr = POOL_STARTS + (uint64_t)row;
	uint64_t state = hash2(seed, 0);
	unsigned char *pool = malloc(nr * one_scale_bytes(scale));
	float *floats = (float *)(void *)pool;

	for (i = 0; pool && i < nr; i++) {
		if (scale == TERN_SCALE_FP32)
			floats[i] = fabsf(random_value(TERN_FP32, &state));
		else
			pool[i] = (unsigned char)(1 + random_below(&state, 254));
	}
	return pool;
}
