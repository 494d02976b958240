/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels.h"

#include "convert.h"

/* Elements summed at a time: few enough that the sums stay in the first-level cache. */
#define TILE 256

static inline void store_tile_bf16(const float *acc, void *out, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++)
		((uint16_t *)out)[i] = float_to_bf16(acc[i]);
}

static inline void store_tile_fp16(const float *acc, void *out, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++)
		((uint16_t *)out)[i] = float_to_fp16(acc[i]);
}

static inline void store_tile_fp32(const float *acc, void *out, uint32_t nr)
{
	memcpy(out, acc, nr * sizeof(*acc));
}

static inline float load_bf16(const void *row, uint32_t i)
{
	return bf16_to_float(((const uint16_t *)row)[i]);
}

static inline float load_fp16(const void *row, uint32_t i)
{
	return fp16_to_float(((const uint16_t *)row)[i]);
}

static inline float load_fp32(const void *row, uint32_t i)
{
	return ((const float *)row)[i];
}

/* The loops have to be in the cloned function itself to be compiled for its instruction set, so the three differ by what is
 * inlined. A weight of 1 leaves every product as it is: one loop serves both kinds of sum. */
#define REDUCE(TYPE)                                                                                                             \
	CPU_CLONES static void reduce_##TYPE(const void *const *rows, const float *weights, uint32_t nr_rows, uint32_t hidden,  \
		uint32_t bytes, void *out)                                                                                      \
	{                                                                                                                        \
		float acc[TILE];                                                                                                 \
                                                                                                                                 \
		for (uint32_t at = 0; at < hidden; at += TILE) {                                                                 \
			uint32_t nr = hidden - at < TILE ? hidden - at : TILE;                                                   \
                                                                                                                                 \
			for (uint32_t i = 0; i < nr; i++)                                                                        \
				acc[i] = 0;                                                                                      \
			for (uint32_t r = 0; r < nr_rows; r++) {                                                                 \
				const uint8_t *row = (const uint8_t *)rows[r] + (uint64_t)at * bytes;                            \
				float weight = weights ? weights[r] : 1.0f;                                                      \
                                                                                                                                 \
				for (uint32_t i = 0; i < nr; i++)                                                                \
					acc[i] += weight * load_##TYPE(row, i);                                                  \
			}                                                                                                        \
			store_tile_##TYPE(acc, (uint8_t *)out + (uint64_t)at * bytes, nr);                                       \
		}                                                                                                                \
	}

REDUCE(bf16)
REDUCE(fp16)
REDUCE(fp32)

void reduce_rows(enum tern_dtype dtype, const void *const *rows, const float *weights, uint32_t nr_rows, uint32_t hidden, void *out)
{
	if (dtype == TERN_BF16)
		reduce_bf16(rows, weights, nr_rows, hidden, 2, out);
	else if (dtype == TERN_FP16)
		reduce_fp16(rows, weights, nr_rows, hidden, 2, out);
	else
		reduce_fp32(rows, weights, nr_rows, hidden, 4, out);
}
