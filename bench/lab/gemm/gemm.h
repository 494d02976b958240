/* SPDX-License-Identifier: Apache-2.0 */
/* tern-lab-gemm: the two products of an MoE layer's experts by themselves. */
#ifndef TERN_BENCH_LAB_GEMM_H
#define TERN_BENCH_LAB_GEMM_H

#include "gpu/cuda/layer/gemm.h"

/* Both products and what they read and write, on the device. */
struct lab_experts {
	struct layer_shape shape;
	uint32_t element_bytes;
	uint32_t *counts;
	uint64_t *offsets;
	struct layer_words *words;
	uint8_t *x, *h, *y, *gate_up, *down;
	float *x_scales, *h_scales, *gate_up_scales, *down_scales;
	struct layer_args args[2]; /* of enum layer_which */
};

struct lab_tensor_sizes { /* bytes */
	size_t x, h, y, gate_up, down, x_scales, h_scales, gate_up_scales, down_scales;
};

struct lab_tensor_sizes lab_sizes(const struct lab_experts *experts);
/* Ends the program where memory or the shape does not do. */
void lab_experts_create(const struct layer_shape *shape, struct lab_experts *experts);
void lab_experts_destroy(struct lab_experts *experts);

enum lab_numbers {
	LAB_FP8,
	LAB_BF16,
	LAB_FLOATS /* not negative */
};
void lab_fill(void *to, enum lab_numbers kind, uint64_t bytes, float scale, uint64_t seed);
void lab_flush(const void *from, uint64_t bytes, cudaStream_t stream);
/* The SMs' clock now. */
double lab_megahertz(cudaStream_t stream);
void lab_nothing(cudaStream_t stream);

int gemm_verify(int argc, char **argv);
int gemm_time(int argc, char **argv);

#endif
