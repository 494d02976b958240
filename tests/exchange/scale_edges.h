/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks whose scales are at an edge of what tern.h promises: around 448 * 2^-127 to 448 * 2^-125,
 * the smallest numbers, around 1, and zeros alone. */
#ifndef TERN_TESTS_EXCHANGE_SCALE_EDGES_H
#define TERN_TESTS_EXCHANGE_SCALE_EDGES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "testkit/convert.h"

#define SCALE_EDGES 17 /* blocks */

/* 448 * 2^power, and its neighbours among the dtype's numbers; as a code of the dtype. */
static inline uint32_t scale_edge_code(enum tern_dtype dtype, int power, int off)
{
	float value = ldexpf(448, power);
	uint32_t code = 0;

	encode_row(dtype, &value, &code, 1);
	return code + (uint32_t)off;
}

/* The largest magnitude of a block, as a code of the dtype. FP16 has no number as small as those of
 * the first nine. */
static inline uint32_t scale_edge(enum tern_dtype dtype, uint32_t block)
{
	static const int powers[] = {-127, -126, -125, -15, 0};

	if (block >= 15)
		return block - 15;
	return scale_edge_code(dtype, dtype == TERN_FP16 && block < 9 ? -14 : powers[block / 3],
		(int)(block % 3) - 1);
}

/* One row: block b's second element is that number, negative in every other block, and the others
 * are zeros but for one that is smaller. */
static inline void scale_edges_fill(enum tern_dtype dtype, void *row)
{
	uint32_t bytes = dtype == TERN_FP32 ? 4 : 2,
		 sign = dtype == TERN_FP32 ? 1u << 31 : 1u << 15;

	memset(row, 0, (size_t)SCALE_EDGES * 128 * bytes);
	for (uint32_t b = 0; b < SCALE_EDGES; b++) {
		uint32_t code = scale_edge(dtype, b), smaller = code / 2,
			 most = code | (b & 1 && code ? sign : 0);

		memcpy((uint8_t *)row + ((size_t)b * 128 + 1) * bytes, &most, bytes);
		memcpy((uint8_t *)row + ((size_t)b * 128 + 100) * bytes, &smaller, bytes);
	}
}

/* The exponent byte that tern.h promises for a block, by counting. */
static inline uint32_t scale_edge_exponent(float amax)
{
	uint32_t exponent = 1;

	while (ldexp(448, (int)exponent - 127) < (double)amax)
		exponent++;
	return amax > 0 ? exponent : 127;
}

/* What is wrong with the scales and elements that the row of scale_edges_fill became, or NULL. */
static inline const char *scale_edges_wrong(
	enum tern_dtype dtype, enum tern_scale scale, const uint8_t *elements, const void *scales)
{
	static const char *const names[] = {"scale", "element"};
	uint8_t want[SCALE_EDGES * 128];
	float row[SCALE_EDGES * 128] = {0}, values[SCALE_EDGES * 128], unused[SCALE_EDGES];

	scale_edges_fill(dtype, row);
	decode_row(dtype, row, values, SCALE_EDGES * 128);
	for (uint32_t b = 0; b < SCALE_EDGES; b++) {
		float amax = fabsf(values[b * 128 + 1]),
		      fp32 = amax > 0 ? fmaxf(amax / 448, 0x1p-126f) : 1;

		if (scale == TERN_SCALE_UE8M0 &&
			((const uint8_t *)scales)[b] != scale_edge_exponent(amax))
			return names[0];
		if (scale == TERN_SCALE_FP32 && ((const float *)scales)[b] != fp32)
			return names[0];
	}
	reference_quantise(scale, values, SCALE_EDGES * 128, want, unused);
	return memcmp(want, elements, sizeof(want)) ? names[1] : NULL;
}

#endif
