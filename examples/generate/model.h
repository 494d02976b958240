/* SPDX-License-Identifier: Apache-2.0 */
/* A Qwen3-MoE decoder without its experts, which are reached through a moe_exchange:
 *
 *	embedding
 *	each layer:  RMS norm, attention (grouped queries, norm of q and k, rotary positions,
 *key-value cache), add
 *	             RMS norm, router (softmax over all experts, top-k), exchange, add
 *	RMS norm, output matrix
 *
 * Attention is data-parallel: every rank has these weights, and serves its own sequences.
 */
#ifndef TERN_EXAMPLES_GENERATE_MODEL_H
#define TERN_EXAMPLES_GENERATE_MODEL_H

#include "checkpoint.h"
#include "config.h"
#include "maths.h"
#include "moe.h"

struct model_layer {
	float *input_norm, *post_norm; /* [hidden] */
	float *q_norm, *k_norm;        /* [head_dim] */
	struct matrix q, k, v, o;
	struct matrix router;
};

struct model {
	struct model_config config;
	float *embedding;   /* [vocab][hidden] */
	struct matrix head; /* the output matrix */
	float *final_norm;  /* [hidden] */
	struct model_layer *layers;
	float *cosines, *sines; /* [max_positions][head_dim / 2] */
};

/* *model is set only on success. */
int model_load(const struct checkpoint *checkpoint, const struct model_config *config,
	struct model *model, struct fault *fault);
void model_destroy(struct model *model);

/* Keys and values of one sequence: [layer][kv head][capacity][head_dim]. */
struct cache {
	uint32_t capacity; /* positions */
	float *keys, *values;
};

int cache_create(
	const struct model_config *config, uint32_t capacity, struct cache *cache); /* -1:
										       no
										       memory
										     */
void cache_destroy(struct cache *cache);

/* One token of a batch. Tokens of one sequence stand in ascending positions, and those before them
 * are in its cache. */
struct batch_token {
	int32_t id;
	uint32_t position;
	struct cache *cache; /* of its sequence; it must have room for the position */
	float *logits;       /* [vocab], out; NULL: not wanted */
};

/* Room for the intermediate results of a batch. */
struct workspace;
struct workspace *workspace_create(
	const struct model_config *config, uint32_t max_tokens); /* NULL:
								    no
								    memory
								  */
void workspace_destroy(struct workspace *workspace);

/* Runs a batch of up to max_tokens through all layers; with 0 tokens it only takes part in the
 * exchanges. */
int model_forward(const struct model *model, struct workspace *workspace,
	const struct batch_token *tokens, uint32_t nr_tokens, const struct moe_exchange *exchange,
	struct fault *fault);

#endif
