/* SPDX-License-Identifier: Apache-2.0 */
/* tern_layer.h: the experts of an MoE layer, between an exchange's dispatch and its combine.
 *
 *     h = act(x W_gate^T) * (x W_up^T)      rounded as received rows are: to the dispatch dtype,
 *                                           FP8 with a scale for each block of 128
 *     y = h W_down^T                        rounded to the combine dtype
 *
 * of each local expert's rows. Letters are those of tern.h; I is the width inside an expert.
 *
 *     tern_layer_create(moe, &config, &layer);       once for each layer of a model
 *     tern_layer_run(layer, &dispatch, out, 0);      dispatch, experts, combine
 *
 * or, where something is to happen in between:
 *
 *     tern_dispatch(moe, &dispatch, &received);
 *     tern_layer_experts(layer, slot, &received, y);
 *     tern_combine(moe, &combine, out, 0);
 *
 * On a device (tern_moe_config.device) all of it is put on the slot's stream, may be captured in a
 * graph, and how many rows there are is read there: the host waits for nothing. The kernels are for
 * compute capability 9.0, H a multiple of 512 and I of 128 in FP8, both of 8 in BF16, at most 256
 * local experts. On the CPU it is plain loops for any H and I, and every dtype but TERN_BYTES: for
 * tests, and to see what is right.
 */
#ifndef TERN_LAYER_H
#define TERN_LAYER_H

#include "tern.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_layer tern_layer;

enum tern_activation {
	TERN_SWIGLU = 1,      /* silu(gate) * up */
	TERN_LINEAR_GATED = 2 /* gate * up: for tests, whose sums it leaves exact */
};

/* Weights are the dispatch dtype's elements, row after row without gaps, expert after expert in the
 * order of local experts (tern_moe_local_expert). In FP8 a block of 128 x 128 has one scale, blocks
 * at the edges may be smaller. All belong to the caller, are read whenever the layer runs, and lie
 * where the exchange runs: on its device, or in the host's memory. 16-byte aligned. */
struct tern_layer_config {
	size_t size;         /* set by tern_layer_config_init */
	uint32_t inner;      /* I, 1 to 2^24 */
	uint32_t activation; /* enum tern_activation; default TERN_SWIGLU */
	const void *gate_up; /* [L][2I][H]: of each expert I rows of gate, then I rows of up */
	const void *down;    /* [L][H][I] */
	const float *gate_up_scales; /* FP8: [L][2][ceil(I/128)][ceil(H/128)]; else NULL */
	const float *down_scales;    /* FP8: [L][ceil(H/128)][ceil(I/128)]; else NULL */
	uint32_t beside_sms; /* tern_layer_run, of an exchange with gate_rows: the dispatch takes at
				most so many SMs, and gate and up begin on the others with rows that
				have come. 0: where that pays, by nr_tokens and the weights' bytes
				(docs/layer.md). TERN_BESIDE_NEVER: they begin when all have. The
				same bits either way */
};

#define TERN_BESIDE_NEVER UINT32_MAX

TERN_API void tern_layer_config_init_sized(struct tern_layer_config *config, size_t size);
static inline void tern_layer_config_init(struct tern_layer_config *config)
{
	tern_layer_config_init_sized(config, sizeof(*config));
}

/* Local. The exchange has TERN_WEIGHTS_COMBINE, TERN_PADDED or TERN_CONTIGUOUS rows, and FP8 has
 * TERN_SCALE_FP32: TERN_ERR_INVALID otherwise, as where weights are missing, misaligned, or not of
 * the exchange's device. What the device's kernels cannot do is TERN_ERR_UNSUPPORTED, with figures.
 * Memory for h and y of as many row positions as the exchange may receive is taken here, for each
 * slot, and shared by all layers of an exchange that have the same I. */
TERN_API int tern_layer_create(
	tern_moe *moe, const struct tern_layer_config *config, tern_layer **layer);

/* Local, before the exchange is destroyed: that returns TERN_ERR_STATE while it has layers. On a
 * device wait for the slots' streams first. NULL is fine. */
TERN_API int tern_layer_destroy(tern_layer *layer);

/* Between the slot's dispatch and its combine: y [positions][H] of the combine dtype, dense,
 * 16-byte aligned, receives a row for each received one, at its position; what lies at others is
 * left as it was. */
TERN_API int tern_layer_experts(
	tern_layer *layer, uint32_t slot, const struct tern_received *received, void *y);

/* tern_dispatch, the experts, and tern_combine into out, with the layer's own memory for rows of y.
 * On the CPU it goes on after TERN_ERR_TIMEOUT where it was when called again with the same
 * arguments; plans and elastic exchanges take the three calls. */
TERN_API int tern_layer_run(
	tern_layer *layer, const struct tern_dispatch *dispatch, void *out, size_t out_stride);

/* Bytes that all layers of its exchange with this I share. 0: layer is NULL. */
TERN_API uint64_t tern_layer_memory(const tern_layer *layer);

#ifdef __cplusplus
}
#endif
#endif
