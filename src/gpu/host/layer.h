/* SPDX-License-Identifier: Apache-2.0 */
/* A layer's experts on a device: what exchange/ops.h says of them. */
#ifndef TERN_GPU_HOST_LAYER_H
#define TERN_GPU_HOST_LAYER_H

#include "layer/layer.h"

int device_layer_make(struct tern_layer *layer);
void device_layer_drop(struct tern_layer *layer);
int device_layer_room_open(tern_moe *moe, struct layer_room *room);
void device_layer_room_close(tern_moe *moe, struct layer_room *room);
void *device_layer_lend(struct tern_layer *layer, uint32_t slot);
int device_layer_experts(
	struct tern_layer *layer, uint32_t slot, const struct tern_received *received, void *y);
int device_layer_beside(struct tern_layer *layer, const struct tern_dispatch *dispatch);

#endif
