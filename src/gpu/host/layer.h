/* SPDX-License-Identifier: Apache-2.0 */
/* A layer's experts on a device: what exchange/ops.h says of them. */
#ifndef TERN_GPU_HOST_LAYER_H
#define TERN_GPU_HOST_LAYER_H

#include "layer/layer.h"

/* SMs that a dispatch takes with gate and up beside it; 0: they are better behind it. As measured
 * on 2 x H200 (docs/benchmarks.md#layers): weights, in bytes, that take hundreds of microseconds to
 * read hide the dispatch of so many tokens; with more, products take the time. */
static inline uint32_t layer_rule_beside(
	enum tern_mode mode, uint32_t nr_tokens, uint64_t weights, uint32_t nr_sms)
{
	if (weights < 1000000000 || nr_tokens < 256 || nr_tokens > 1024)
		return 0;
	return mode == TERN_LOW_LATENCY ? nr_sms * 5 / 6 : nr_sms / 2;
}

int device_layer_make(struct tern_layer *layer);
void device_layer_drop(struct tern_layer *layer);
int device_layer_room_open(tern_moe *moe, struct layer_room *room);
void device_layer_room_close(tern_moe *moe, struct layer_room *room);
void *device_layer_lend(struct tern_layer *layer, uint32_t slot);
int device_layer_experts(
	struct tern_layer *layer, uint32_t slot, const struct tern_received *received, void *y);
uint32_t device_layer_sms(const struct tern_layer *layer, uint32_t nr_tokens);
int device_layer_beside(
	struct tern_layer *layer, const struct tern_dispatch *dispatch, uint32_t nr_sms);

#endif
