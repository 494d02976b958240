/* SPDX-License-Identifier: Apache-2.0 */
#include "maths.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16
#define ROWS 4 /* tokens that share one reading of the weights */

/* As every machine has them: with wider ones than it has, sums go through memory at each step, and
 * a product takes 14 times as long. */
#define QUAD 4
typedef float quad __attribute__((vector_size(QUAD * sizeof(float))));

/* The compiler makes one version for each instruction set and the loader picks; operations are lane
 * by lane, so results are the same bits on all. Sanitizers run before the loader's choice is made,
 * and get the plain version. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
	!defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define CLONES
#endif

/* ---- matrices -------------------------------------------------------------------------------- */

static uint32_t nr_panels(const struct matrix *matrix)
{
	return (matrix->nr_out + PANEL - 1) / PANEL;
}

uint64_t matrix_floats(uint32_t nr_out, uint32_t nr_in)
{
	return (uint64_t)((nr_out + PANEL - 1) / PANEL) * nr_in * PANEL;
}

void matrix_lay(struct matrix *matrix, uint32_t nr_out, uint32_t nr_in, float *panels)
{
	*matrix = (struct matrix){.nr_out = nr_out, .nr_in = nr_in, .panels = panels};
}

int matrix_create(struct matrix *matrix, uint32_t nr_out, uint32_t nr_in)
{
	size_t bytes = matrix_floats(nr_out, nr_in) * sizeof(float);

	matrix_lay(matrix, nr_out, nr_in, aligned_alloc(64, bytes));
	if (!matrix->panels)
		return -1;
	memset(matrix->panels, 0, bytes);
	return 0;
}

void matrix_destroy(struct matrix *matrix)
{
	free(matrix->panels);
	*matrix = (struct matrix){0};
}

void matrix_set_row(struct matrix *matrix, uint32_t out, const float *row)
{
	float *place = matrix->panels + (size_t)(out / PANEL) * matrix->nr_in * PANEL + out % PANEL;

	for (uint32_t i = 0; i < matrix->nr_in; i++)
		place[(size_t)i * PANEL] = row[i];
}

/* One panel times nr_rows tokens. nr_rows is a constant at each call, so that the sums stay in
 * registers. */
static inline __attribute__((always_inline)) void panel_multiply(const float *panel, uint32_t nr_in,
	const float *x, uint32_t nr_rows, float sums[ROWS][PANEL])
{
	quad acc[ROWS][PANEL / QUAD] = {0};

	for (uint32_t i = 0; i < nr_in; i++) {
		const quad *w = (const quad *)(panel + (size_t)i * PANEL);

		for (uint32_t t = 0; t < nr_rows; t++) {
			float value = x[(size_t)t * nr_in + i];

			for (uint32_t v = 0; v < PANEL / QUAD; v++)
				acc[t][v] += value * w[v];
		}
	}
	for (uint32_t t = 0; t < nr_rows; t++)
		memcpy(sums[t], acc[t], sizeof(acc[t]));
}

static void panel_times_4(
	const float *panel, uint32_t nr_in, const float *x, float sums[ROWS][PANEL])
{
	panel_multiply(panel, nr_in, x, 4, sums);
}

static void panel_times_1(
	const float *panel, uint32_t nr_in, const float *x, float sums[ROWS][PANEL])
{
	panel_multiply(panel, nr_in, x, 1, sums);
}

void matrix_multiply(const struct matrix *matrix, const float *x, uint32_t nr_rows, float *y)
{
	for (uint32_t p = 0; p < nr_panels(matrix); p++) {
		const float *panel = matrix->panels + (size_t)p * matrix->nr_in * PANEL;
		uint32_t first = p * PANEL,
			 nr = matrix->nr_out - first < PANEL ? matrix->nr_out - first : PANEL;

		for (uint32_t row = 0, step; row < nr_rows; row += step) {
			const float *rows = x + (size_t)row * matrix->nr_in;
			float sums[ROWS][PANEL];

			step = nr_rows - row >= ROWS ? ROWS : 1;
			(step == ROWS ? panel_times_4 : panel_times_1)(
				panel, matrix->nr_in, rows, sums);
			for (uint32_t t = 0; t < step; t++)
				memcpy(y + (size_t)(row + t) * matrix->nr_out + first, sums[t],
					nr * sizeof(float));
		}
	}
}

/* ---- vectors --------------------------------------------------------------------------------- */

static float sum_lanes(float *partial)
{
	for (uint32_t half = LANES / 2; half; half /= 2)
		for (uint32_t i = 0; i < half; i++)
			partial[i] += partial[i + half];
	return partial[0];
}

float dot(const float *a, const float *b, uint32_t nr)
{
	float partial[LANES] = {0};
	uint32_t whole = nr - nr % LANES;

	for (uint32_t i = 0; i < whole; i += LANES)
		for (uint32_t l = 0; l < LANES; l++)
			partial[l] += a[i + l] * b[i + l];
	for (uint32_t i = whole; i < nr; i++)
		partial[i - whole] += a[i] * b[i];
	return sum_lanes(partial);
}

void add_scaled(float *y, float factor, const float *x, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++)
		y[i] += factor * x[i];
}

void rms_norm(const float *x, const float *weight, uint32_t nr, float eps, float *y)
{
	float scale = 1.0f / sqrtf(dot(x, x, nr) / (float)nr + eps);

	for (uint32_t i = 0; i < nr; i++)
		y[i] = weight[i] * (x[i] * scale);
}

/* e^x = 2^n * e^r with |r| <= ln(2) / 2; ln(2) in two parts, so that n * ln(2) is exact in the
 * first. */
static inline float exp_inline(float x)
{
	const float half_sum = 0x1.8p23f; /* adding it leaves the nearest integer in the low
					     mantissa bits */
	float clamped = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
	float shifted = clamped * 0x1.715476p0f + half_sum, n = shifted - half_sum;
	float r = clamped - n * 0x1.62e4p-1f - n * 0x1.7f7d1cp-20f;
	float p = 1.0f / 720 + r * (1.0f / 5040);
	uint32_t bits;

	p = 1.0f / 120 + r * p;
	p = 1.0f / 24 + r * p;
	p = 1.0f / 6 + r * p;
	p = 0.5f + r * p;
	p = 1.0f + r + r * r * p;
	memcpy(&bits, &shifted, sizeof(bits));
	bits = (bits + 127) << 23; /* the low bits of shifted hold n */
	memcpy(&n, &bits, sizeof(n));
	return x < -87.0f ? 0.0f : p * n;
}

float exponential(float x)
{
	return exp_inline(x);
}

CLONES void silu_multiply(float *gate, const float *up, uint64_t nr)
{
	for (uint64_t i = 0; i < nr; i++)
		gate[i] = gate[i] / (1.0f + exp_inline(-gate[i])) * up[i];
}

void softmax(float *x, uint32_t nr)
{
	float most = x[0], sum = 0;

	for (uint32_t i = 1; i < nr; i++)
		most = x[i] > most ? x[i] : most;
	for (uint32_t i = 0; i < nr; i++) {
		x[i] = exp_inline(x[i] - most);
		sum += x[i];
	}
	for (uint32_t i = 0; i < nr; i++)
		x[i] /= sum;
}
