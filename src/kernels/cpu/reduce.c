/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels.h"

#include "convert.h"

/* Elements summed at a time: few enough that the sums stay in registers or the first-level cache. */
#define TILE 128

CPU_CLONES static void add_bf16(float *acc, const uint16_t *row, float weight, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++)
		acc[i] += weight * bf16_to_float(row[i]);
}

CPU_CLONES static void add_fp16(float *acc, const uint16_t *row, float weight, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++)
		acc[i] += weight * fp16_to_float(row[i]);
}

CPU_CLONES static void add_fp32(float *acc, const float *row, float weight, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++)
		acc[i] += weight * row[i];
}

CPU_CLONES static void store_bf16(const float *acc, uint16_t *out, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++)
		out[i] = float_to_bf16(acc[i]);
}

CPU_CLONES static void store_fp16(const float *acc, uint16_t *out, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++)
		out[i] = float_to_fp16(acc[i]);
}

static void add_row(enum tern_dtype dtype, float *acc, const void *row, float weight, uint32_t at, uint32_t nr)
{
	if (dtype == TERN_BF16)
		add_bf16(acc, (const uint16_t *)row + at, weight, nr);
	else if (dtype == TERN_FP16)
		add_fp16(acc, (const uint16_t *)row + at, weight, nr);
	else
		add_fp32(acc, (const float *)row + at, weight, nr);
}

static void store_row(enum tern_dtype dtype, const float *acc, void *out, uint32_t at, uint32_t nr)
{
	if (dtype == TERN_BF16)
		store_bf16(acc, (uint16_t *)out + at, nr);
	else if (dtype == TERN_FP16)
		store_fp16(acc, (uint16_t *)out + at, nr);
	else
		memcpy((float *)out + at, acc, nr * sizeof(*acc));
}

/* A weight of 1 leaves every product as it is, so one loop serves both kinds of sum. */
void reduce_rows(enum tern_dtype dtype, const void *const *rows, const float *weights, uint32_t nr_rows, uint32_t hidden, void *out)
{
	for (uint32_t at = 0; at < hidden; at += TILE) {
		uint32_t nr = hidden - at < TILE ? hidden - at : TILE;
		float acc[TILE] = {0};

		for (uint32_t r = 0; r < nr_rows; r++)
			add_row(dtype, acc, rows[r], weights ? weights[r] : 1.0f, at, nr);
		store_row(dtype, acc, out, at, nr);
	}
}
