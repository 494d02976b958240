/* SPDX-License-Identifier: Apache-2.0 */
/* What config.json of a Qwen3-MoE checkpoint says, as far as inference needs it. */
#ifndef TERN_EXAMPLES_GENERATE_CONFIG_H
#define TERN_EXAMPLES_GENERATE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"

#define CONFIG_MAX_TOPK 32

struct model_config {
	uint32_t vocab;
	uint32_t hidden;
	uint32_t nr_layers;
	uint32_t nr_heads;
	uint32_t nr_kv_heads;
	uint32_t head_dim;
	uint32_t nr_experts;
	uint32_t topk;
	uint32_t intermediate; /* of one expert */
	uint32_t max_positions;
	float rope_theta;
	float norm_eps;
	bool norm_topk; /* gate weights of the chosen experts are divided by their sum */
	bool tied;      /* the embedding is the output matrix too */
};

/* Refuses architectures and settings that this program does not compute. */
int config_parse(
	const char *text, size_t text_bytes, struct model_config *config, struct fault *fault);

/* From folder/config.json. */
int config_read(const char *folder, struct model_config *config, struct fault *fault);

#endif
