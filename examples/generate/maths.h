/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of the engine. A result never depends on what else is computed beside it: every
 * sum runs in an order that only its own length decides, so a token gets the same bits alone, in a
 * batch and on any number of ranks. Build with -ffp-contract=off, or compilers may fuse products
 * into sums on some machines and not on others. */
#ifndef TERN_EXAMPLES_GENERATE_MATHS_H
#define TERN_EXAMPLES_GENERATE_MATHS_H

#include <stdint.h>

#define PANEL 32 /* outputs that a matrix keeps side by side */

/* A weight matrix [nr_out][nr_in] of floats, stored as panels of PANEL outputs: [nr_out /
 * PANEL][nr_in][PANEL]. Vector units then work on neighbouring outputs, and each output is still
 * summed over its inputs one after the other. */
struct matrix {
	uint32_t nr_out, nr_in;
	float *panels;
};

/* 0, or -1 without memory. Outputs beyond nr_out, up to a full panel, are zero. */
int matrix_create(struct matrix *matrix, uint32_t nr_out, uint32_t nr_in);
void matrix_destroy(struct matrix *matrix);
/* The same in memory of the caller's, which holds zeros or what was set before: matrix_floats of
 * them. Not to be destroyed. */
void matrix_lay(struct matrix *matrix, uint32_t nr_out, uint32_t nr_in, float *panels);
uint64_t matrix_floats(uint32_t nr_out, uint32_t nr_in);
void matrix_set_row(struct matrix *matrix, uint32_t out, const float *row);

/* y[t][o] = sum over i of x[t][i] * w[o][i], rows dense. */
void matrix_multiply(const struct matrix *matrix, const float *x, uint32_t nr_rows, float *y);

/* Sixteen partial sums, then a tree. */
float dot(const float *a, const float *b, uint32_t nr);

/* y += factor * x */
void add_scaled(float *y, float factor, const float *x, uint32_t nr);

/* y = x / rms(x) * weight; y may be x. */
void rms_norm(const float *x, const float *weight, uint32_t nr, float eps, float *y);

/* Within 2 units in the last place of e^x; the same bits on every machine, which a C library's expf
 * does not promise. */
float exponential(float x);

/* gate = silu(gate) * up */
void silu_multiply(float *gate, const float *up, uint64_t nr);

/* In place; nr at least 1. */
void softmax(float *x, uint32_t nr);

#endif
