/* SPDX-License-Identifier: Apache-2.0 */
/* What is done to rows on a CPU. The compiler vectorises these for several instruction sets, and
 * the loader picks one; results are the same bits on all, because every operation is elementwise
 * and only what says so is fused. */
#ifndef TERN_EXCHANGE_CPU_KERNELS_KERNELS_H
#define TERN_EXCHANGE_CPU_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "tern.h"

/* Needs loader support (ifunc); sanitizers run before the loader's choice is made, so they get the
 * plain version. Tests set it to nothing, to see each instruction set by itself. */
#ifndef CPU_CLONES
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__gnu_linux__) &&   \
	!defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define CPU_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define CPU_CLONES
#endif
#endif

/* Copies a row of a multiple of 16 bytes past the caches, to a place aligned to 16: for more rows
 * than the caches hold. Such stores are ordered by nothing but stream_fence, which has to come
 * before the arrival word. */
void stream_row(void *to, const void *from, uint64_t bytes);
void stream_fence(void);

static inline void copy_row(void *to, const void *from, uint64_t bytes, bool stream)
{
	if (stream)
		stream_row(to, from, bytes);
	else
		memcpy(to, from, bytes);
}

/* x[hidden] of BF16, FP16 or FP32 to e4m3 elements and one scale for each block of 128: tern.h,
 * enum tern_scale. */
void quantise_row(const void *x, enum tern_dtype dtype, uint32_t hidden, enum tern_scale scale,
	uint8_t *elements, void *scales);

/* out[i] = sum over r of weights[r] * rows[r][i], in fp32 and in the order of r, starting from 0,
 * by fused multiply-adds, each rounded once; then rounded to dtype. weights NULL: all 1. nr_rows 0:
 * zeros. */
void reduce_rows(enum tern_dtype dtype, const void *const *rows, const float *weights,
	uint32_t nr_rows, uint32_t hidden, void *out);

#endif
