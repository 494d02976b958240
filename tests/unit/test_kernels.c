/* SPDX-License-Identifier: Apache-2.0 */
/* The library's number formats and sums against the reference's, which are written element by
 * element and share nothing with them. The loader picks a version of the kernels for the processor;
 * this program is also linked with each version by itself. */
#include "exchange/cpu/kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "testkit/convert.h"
#include "testkit/random.h"
#include "tests/exchange/scale_edges.h"

static float from_bits(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static bool is_nan_code(enum tern_dtype dtype, uint32_t code)
{
	return dtype == TERN_FP16   ? (code & 0x7fff) > 0x7c00
	       : dtype == TERN_BF16 ? (code & 0x7fff) > 0x7f80
				    : (code & 0x7fffffff) > 0x7f800000;
}

/* ---- sums ------------------------------------------------------------------------------------ */

static uint32_t code_at(enum tern_dtype dtype, const void *row, uint32_t i)
{
	return dtype == TERN_FP32 ? ((const uint32_t *)row)[i] : ((const uint16_t *)row)[i];
}

static void compare_rows(
	enum tern_dtype dtype, const void *got, const void *want, uint32_t hidden, const char *what)
{
	for (uint32_t i = 0; i < hidden; i++) {
		uint32_t g = code_at(dtype, got, i), w = code_at(dtype, want, i);

		if (g != w && !(is_nan_code(dtype, g) && is_nan_code(dtype, w)))
			fail_msg("%s: dtype %d, element %u of %u is 0x%x, should be 0x%x", what,
				(int)dtype, i, hidden, g, w);
	}
}

/* Every code goes in, and its float comes out again: conversion both ways. */
static void all_codes_pass(void **state)
{
	static uint16_t in[65536], out[65536], want[65536];
	static float values[65536];
	const void *rows[1] = {in};

	(void)state;
	for (uint32_t i = 0; i < 65536; i++)
		in[i] = (uint16_t)i;
	for (enum tern_dtype dtype = TERN_BF16; dtype <= TERN_FP16; dtype++) {
		decode_row(dtype, in, values, 65536);
		for (uint32_t i = 0; i < 65536; i++)
			values[i] = 0.0f + 1.0f * values[i]; /* a sum starts from 0: -0 becomes 0 */
		encode_row(dtype, values, want, 65536);
		reduce_rows(dtype, rows, NULL, 1, 65536, out);
		compare_rows(dtype, out, want, 65536, "one row");
	}
}

static uint32_t draw_bits(uint64_t *random)
{
	static const uint32_t special[] = {0, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000,
		0x7f800001, 1, 0x807fffff, 0x7f7fffff, 0x00800000};

	return random_below(random, 12) ? (uint32_t)(random_next(random) >> 32)
					: special[random_below(random, 10)];
}

/* Values near each other in size, so that sums round, and now and then anything. */
static float draw_float(uint64_t *random)
{
	if (random_below(random, 6) == 0)
		return from_bits(draw_bits(random));
	return ((float)(int32_t)(random_next(random) >> 32)) * 0x1p-28f;
}

static void fill_row(uint64_t *random, enum tern_dtype dtype, void *row, uint32_t hidden)
{
	for (uint32_t i = 0; i < hidden; i++) {
		float value = draw_float(random);

		encode_row(dtype, &value, (char *)row + i * element_bytes(dtype), 1);
	}
}

static void sum_by_hand(enum tern_dtype dtype, const void *const *rows, const float *weights,
	uint32_t nr, uint32_t hidden, void *out)
{
	for (uint32_t i = 0; i < hidden; i++) {
		float sum = 0;

		for (uint32_t r = 0; r < nr; r++) {
			float value;

			decode_row(
				dtype, (const char *)rows[r] + i * element_bytes(dtype), &value, 1);
			sum = fmaf(weights ? weights[r] : 1, value, sum);
		}
		encode_row(dtype, &sum, (char *)out + i * element_bytes(dtype), 1);
	}
}

static void random_sums(void **state)
{
	static const uint32_t hidden[] = {1, 4, 7, 8, 16, 31, 127, 128, 129, 256, 640, 1000};
	static float data[TERN_MAX_TOPK][1024], out[1024], want[1024];
	uint64_t random = 1;

	(void)state;
	for (int i = 0; i < 600; i++) {
		enum tern_dtype dtype = (enum tern_dtype)(1 + i % 3);
		uint32_t nr = random_below(&random, TERN_MAX_TOPK + 1),
			 n = hidden[random_below(&random, 12)];
		const void *rows[TERN_MAX_TOPK];
		float weights[TERN_MAX_TOPK];

		for (uint32_t r = 0; r < nr; r++) {
			fill_row(&random, dtype, data[r], n);
			rows[r] = data[r];
			weights[r] = draw_float(&random);
		}
		memset(out, 0x5a, sizeof(out));
		reduce_rows(dtype, rows, i & 1 ? weights : NULL, nr, n, out);
		sum_by_hand(dtype, rows, i & 1 ? weights : NULL, nr, n, want);
		compare_rows(dtype, out, want, n, i & 1 ? "weighted sum" : "sum");
		for (size_t b = n * element_bytes(dtype); b < sizeof(out); b++)
			assert_int_equal(((unsigned char *)out)[b], 0x5a);
	}
}

/* Halfway cases, subnormals, overflow: every exponent, with the mantissas that decide. */
static void roundings(void **state)
{
	static const uint32_t mantissas[] = {0, 1, 0x1000, 0x0fff, 0x1001, 0x2000, 0x3000, 0x7fff,
		0x8000, 0x8001, 0x17fff, 0x18000, 0x18001, 0x7fe000, 0x7fefff, 0x7ff000, 0x7f7fff,
		0x7f8000, 0x7fffff};

	(void)state;
	for (uint32_t sign = 0; sign < 2; sign++)
		for (uint32_t exponent = 0; exponent < 256; exponent++)
			for (size_t m = 0; m < sizeof(mantissas) / sizeof(mantissas[0]); m++)
				for (enum tern_dtype dtype = TERN_BF16; dtype <= TERN_FP16;
					dtype++) {
					float value = from_bits(
						sign << 31 | exponent << 23 | mantissas[m]);
					float one = 1.0f, weights[1] = {value}, sum = 0.0f + value;
					uint16_t row, got, want;
					const void *rows[1] = {&row};

					encode_row(dtype, &one, &row, 1); /* 1 * weight: any float
									     gets in */
					reduce_rows(dtype, rows, weights, 1, 1, &got);
					encode_row(dtype, &sum, &want, 1);
					compare_rows(dtype, &got, &want, 1, "rounding");
				}
}

/* ---- quantising ------------------------------------------------------------------------------ */

static void compare_quantised(
	enum tern_dtype dtype, enum tern_scale scale, const void *row, uint32_t hidden)
{
	static uint8_t elements[65536], want_elements[65536], scales[65536], want_scales[65536];
	static float values[65536];
	uint32_t blocks = (hidden + 127) / 128;

	decode_row(dtype, row, values, hidden);
	quantise_row(row, dtype, hidden, scale, elements, scales);
	reference_quantise(scale, values, hidden, want_elements, want_scales);
	for (uint32_t i = 0; i < blocks * one_scale_bytes(scale); i++)
		if (scales[i] != want_scales[i])
			fail_msg(
				"dtype %d, scale %d: byte %u of scales is 0x%02x, should be 0x%02x",
				(int)dtype, (int)scale, i, scales[i], want_scales[i]);
	for (uint32_t i = 0; i < hidden; i++)
		if (elements[i] != want_elements[i])
			fail_msg("dtype %d, scale %d: element %u (%a) is 0x%02x, should be 0x%02x",
				(int)dtype, (int)scale, i, (double)values[i], elements[i],
				want_elements[i]);
}

static void all_codes_quantised(void **state)
{
	static uint16_t row[65536];

	(void)state;
	for (enum tern_scale scale = TERN_SCALE_FP32; scale <= TERN_SCALE_UE8M0; scale++)
		for (enum tern_dtype dtype = TERN_BF16; dtype <= TERN_FP16; dtype++) {
			for (uint32_t i = 0; i < 65536; i++) /* neighbours share a block */
				row[i] = (uint16_t)i;
			compare_quantised(dtype, scale, row, 65536);
			for (uint32_t i = 0; i < 65536; i++) /* all sizes in one block */
				row[i] = (uint16_t)(i * 40503);
			compare_quantised(dtype, scale, row, 65536);
		}
}

static void random_rows_quantised(void **state)
{
	static float row[1024];
	uint64_t random = 4;

	(void)state;
	for (int i = 0; i < 600; i++) {
		enum tern_dtype dtype = (enum tern_dtype)(1 + i % 3);
		uint32_t hidden = 1 + random_below(&random, 1000);

		fill_row(&random, dtype, row, hidden);
		compare_quantised(dtype, (enum tern_scale)(1 + i / 3 % 2), row, hidden);
	}
}

/* A block with one value of each exponent: scales of all sizes. */
static void block_maxima(void **state)
{
	float row[128];

	(void)state;
	for (uint32_t exponent = 0; exponent < 256; exponent++)
		for (uint32_t mantissa = 0; mantissa < 4; mantissa++)
			for (enum tern_scale scale = TERN_SCALE_FP32; scale <= TERN_SCALE_UE8M0;
				scale++) {
				float most = from_bits(exponent << 23 | mantissa * 0x1fffff);

				for (uint32_t i = 0; i < 128; i++)
					row[i] = i == 77 ? -most
						 : most != most || isinf(most)
							 ? (float)i
							 : most * (float)i / 130.0f;
				compare_quantised(TERN_FP32, scale, row, 128);
			}
}

static void scales_at_edges(void **state)
{
	float row[SCALE_EDGES * 128], scales[SCALE_EDGES];
	uint8_t elements[SCALE_EDGES * 128];

	(void)state;
	for (enum tern_dtype dtype = TERN_BF16; dtype <= TERN_FP32; dtype++)
		for (enum tern_scale scale = TERN_SCALE_FP32; scale <= TERN_SCALE_UE8M0; scale++) {
			const char *wrong;

			scale_edges_fill(dtype, row);
			quantise_row(row, dtype, SCALE_EDGES * 128, scale, elements, scales);
			wrong = scale_edges_wrong(dtype, scale, elements, scales);
			if (wrong)
				fail_msg("dtype %d, scale %d: a wrong %s", (int)dtype, (int)scale,
					wrong);
		}
}

/* ---- this version ---------------------------------------------------------------------------- */

static bool can_run(const char *program)
{
#if defined(__x86_64__)
	if (strstr(program, "-v4"))
		return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
		       __builtin_cpu_supports("avx512cd");
	if (strstr(program, "-v3"))
		return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
		       __builtin_cpu_supports("bmi2");
#endif
	(void)program;
	return true;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_codes_pass),
		cmocka_unit_test(random_sums),
		cmocka_unit_test(roundings),
		cmocka_unit_test(all_codes_quantised),
		cmocka_unit_test(random_rows_quantised),
		cmocka_unit_test(block_maxima),
		cmocka_unit_test(scales_at_edges),
	};

	if (argc > 0 && !can_run(argv[0])) {
		puts("this processor lacks the instructions");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
