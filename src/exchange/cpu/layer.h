/* SPDX-License-Identifier: Apache-2.0 */
/* A layer's experts on the CPU: what exchange/ops.h says of them. */
#ifndef TERN_EXCHANGE_CPU_LAYER_H
#define TERN_EXCHANGE_CPU_LAYER_H

#include "layer/layer.h"

int cpu_layer_open(struct tern_layer *layer);
void cpu_layer_close(struct tern_layer *layer);
int cpu_layer_room_open(tern_moe *moe, struct layer_room *room);
void cpu_layer_room_close(tern_moe *moe, struct layer_room *room);
void *cpu_layer_lend(struct tern_layer *layer, uint32_t slot);
int cpu_layer_experts(
	struct tern_layer *layer, uint32_t slot, const struct tern_received *received, void *y);

#endif
