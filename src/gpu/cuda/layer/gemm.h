/* SPDX-License-Identifier: Apache-2.0 */
/* The two products of an MoE layer's experts, for sm_90a, over rows that lie by expert:
 *
 *   gate and up   h = act(x W_gate^T) * (x W_up^T), quantised in blocks of 128 if fp8
 *   down          y = h W_down^T, bf16
 *
 * How many rows each expert has is read on the device, so that a graph replays with other rows.
 * Nothing is padded: an expert's rows begin anywhere.
 */
#ifndef TERN_GPU_CUDA_LAYER_GEMM_H
#define TERN_GPU_CUDA_LAYER_GEMM_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "tern.h"

#define LAYER_EXPERTS_MAX 256u /* local ones */
#define LAYER_WIDTHS 6u        /* of tiles: 8, 16, 32, 64, 96, 128 rows */

/* Of a row's blocks of 128 elements scales are copied so many at a time, as a copy by a tensor map
 * is of at least 16 bytes: a row has a multiple of as many, used or not. */
#define SCALES_AT_ONCE 4u

enum layer_dtype {
	LAYER_BF16,
	LAYER_FP8 /* e4m3, one fp32 scale for 128 x 128 weights and for 128 elements of a row */
};

enum layer_activation {
	LAYER_SWIGLU, /* silu(gate) * up */
	LAYER_LINEAR  /* gate * up: what tests can compute exactly */
};

/* Both products' sizes: of the expert's own I, x and y are `hidden` wide. fp8 takes multiples of
 * 128, bf16 of 8. */
struct layer_shape {
	enum layer_dtype dtype;
	uint32_t experts, hidden, inner;
	uint64_t rows_max; /* that x, h and y have room for */
};

/* Of the device, all 16-byte aligned. */
struct layer_rows {
	const uint32_t *counts;  /* [experts] */
	const uint64_t *offsets; /* [experts] */
};

struct layer_product {
	const void *rows;            /* [rows_max][K] */
	const float *rows_scales;    /* [rows_max][layer_scales_of(K)]; NULL unless fp8 */
	const void *weights;         /* [experts][M][K]; gate and up: gate's I rows, then up's */
	const float *weights_scales; /* [experts][M / 128][K / 128]; NULL unless fp8 */
	void *out;                   /* [rows_max][I] of the dtype, or [rows_max][H] bf16 */
	float *out_scales; /* [rows_max][layer_scales_of(I)] of gate and up in fp8, or NULL */
};

/* Of a row of k elements, with what fills it up. */
static inline uint32_t layer_scales_of(uint32_t k)
{
	return (k / 128 + SCALES_AT_ONCE - 1) / SCALES_AT_ONCE * SCALES_AT_ONCE;
}

enum layer_which {
	LAYER_GATE_UP,
	LAYER_DOWN
};

/* A CUtensorMap, whose header not everybody needs. */
struct layer_map {
	uint64_t opaque[16];
} __attribute__((aligned(64)));

/* What blocks of both products tell each other, on the device: zeros before the first launch and
 * behind the end of down. */
struct layer_words {
	uint32_t drawn[2]; /* tiles of each product that blocks have taken beyond their first ones
			    */
	uint32_t h_rows[LAYER_EXPERTS_MAX]; /* of an expert's tiles of h that are in memory */
	uint32_t ended;                     /* blocks of down */
};

/* What a kernel takes, by value. Made once for each exchange's buffers. */
struct layer_args {
	struct layer_map weights;
	struct layer_map rows[LAYER_WIDTHS], scales[LAYER_WIDTHS];
	struct layer_rows by_expert;
	const float *weights_scales;
	void *out;
	float *out_scales;
	uint64_t out_stride; /* elements */
	uint64_t rows_max;
	uint32_t out_scales_pitch;
	uint32_t experts, m, k; /* m: rows of out, I or H */
	uint32_t m_tiles, k_blocks;
	enum layer_activation activation;
	struct tern_gate gate; /* words is NULL: rows are there when the kernel before has ended */
	struct layer_words *words;
#ifdef TERN_TRACE
	uint64_t *marks; /* NULL, or [blocks][LAYER_MARKS] */
#endif
};

struct layer_grid {
	uint32_t blocks;
	int early; /* may begin while the kernel before it in the stream runs still */
	int drawn; /* blocks draw tiles, where they take every so many; with a gate they have to */
	int clusters; /* of two blocks, whose tiles lie side by side: of an even number */
};

enum layer_mark {
	MARK_BEGIN, /* nanoseconds of the GPU */
	MARK_LISTED,
	MARK_END,
	MARK_COMPUTED, /* clocks: all of it, of which a warp waited for operands, ... */
	MARK_WAITED,
	MARK_ROOM, /* ... and whoever loads weights for room */
	MARK_TILES,
	LAYER_MARKS
};

#ifdef __cplusplus
extern "C" {
#endif

/* Whether the current device runs these kernels: 0, or cudaErrorNoKernelImageForDevice. */
cudaError_t layer_load(void);

/* NULL, or the cause as text. */
const char *layer_prepare(enum layer_which which, const struct layer_shape *shape,
	const struct layer_rows *by_expert, const struct layer_product *product,
	struct layer_args *args);
/* Whether so many blocks have room in clusters of two at once, on the current device. */
int layer_clusters_fit(uint32_t blocks);
cudaError_t layer_launch(enum layer_which which, enum layer_dtype dtype,
	const struct layer_args *args, const struct layer_grid *grid, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
