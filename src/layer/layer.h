/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a tern_layer. Who runs its experts is chosen with the exchange: exchange/ops.h. */
#ifndef TERN_LAYER_LAYER_H
#define TERN_LAYER_LAYER_H

#include "exchange/state.h"
#include "tern_layer.h"

/* What layers of one I share, as the calls of a slot come one after the other. */
struct layer_room {
	struct layer_room *next;
	uint32_t inner, nr_layers;
	uint64_t slot_bytes;
	uint8_t *slots[16]; /* each of slot_bytes, where the exchange runs */
};

struct tern_layer {
	tern_moe *moe;
	struct tern_layer_config config;
	struct layer_room *room;
	void *inside;      /* its kind's */
	bool combines[16]; /* tern_layer_run has come to its combine, which had to wait too long */
};

#endif
