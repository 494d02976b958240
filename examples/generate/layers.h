/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's experts as layers of Tern (tern_layer.h), where rows are: in a GPU's memory, or the
 * CPU's. Weights and rows in bf16. */
#ifndef TERN_EXAMPLES_GENERATE_LAYERS_H
#define TERN_EXAMPLES_GENERATE_LAYERS_H

#include "checkpoint.h"
#include "config.h"
#include "gpu.h"
#include "tern.h"
#include "tern_layer.h"

struct layers_config {
	struct gpu *gpu; /* NULL: the CPU */
	const struct checkpoint *checkpoint;
	const struct model_config *model;
	const int32_t *ids; /* [nr] of this rank's experts */
	uint32_t nr;
	tern_moe *prefill, *decode;
};

struct layers;

/* *layers is set only on success. To be destroyed before the exchanges. */
int layers_create(const struct layers_config *config, struct layers **layers, struct fault *fault);
void layers_destroy(struct layers *layers);

/* A model's layer over one of the two exchanges. */
tern_layer *layers_at(const struct layers *layers, bool decode, uint32_t layer);

#endif
