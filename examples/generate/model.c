/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int load_vector(const struct checkpoint *checkpoint, const char *name, uint32_t rows,
	uint32_t columns, float **vector, struct fault *fault)
{
	*vector = malloc((size_t)rows * columns * sizeof(float));
	if (!*vector)
		return fault_say(fault, "no memory for %s", name);
	return checkpoint_rows(checkpoint, name, rows, columns, 0, rows, *vector, fault);
}

static int load_norms(const struct checkpoint *checkpoint, const struct model_config *config,
	uint32_t index, struct model_layer *layer, struct fault *fault)
{
	const struct {
		const char *name;
		uint32_t size;
		float **vector;
	} norms[] = {
		{"input_layernorm", config->hidden, &layer->input_norm},
		{"post_attention_layernorm", config->hidden, &layer->post_norm},
		{"self_attn.q_norm", config->head_dim, &layer->q_norm},
		{"self_attn.k_norm", config->head_dim, &layer->k_norm},
	};

	for (size_t i = 0; i < sizeof(norms) / sizeof(norms[0]); i++) {
		char name[128];

		snprintf(name, sizeof(name), "model.layers.%u.%s.weight", index, norms[i].name);
		if (load_vector(checkpoint, name, norms[i].size, 1, norms[i].vector, fault))
			return -1;
	}
	return 0;
}

static int load_layer(const struct checkpoint *checkpoint, const struct model_config *config,
	uint32_t index, struct model_layer *layer, struct fault *fault)
{
	uint32_t q_size = config->nr_heads * config->head_dim,
		 kv_size = config->nr_kv_heads * config->head_dim;
	const struct {
		const char *name;
		uint32_t nr_out, nr_in;
		struct matrix *matrix;
	} matrices[] = {
		{"self_attn.q_proj", q_size, config->hidden, &layer->q},
		{"self_attn.k_proj", kv_size, config->hidden, &layer->k},
		{"self_attn.v_proj", kv_size, config->hidden, &layer->v},
		{"self_attn.o_proj", config->hidden, q_size, &layer->o},
		{"mlp.gate", config->nr_experts, config->hidden, &layer->router},
	};

	for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++) {
		char name[128];

		snprintf(name, sizeof(name), "model.layers.%u.%s.weight", index, matrices[i].name);
		if (matrix_load(checkpoint, name, matrices[i].nr_out, matrices[i].nr_in,
			    matrices[i].matrix, fault))
			return -1;
	}
	return load_norms(checkpoint, config, index, layer, fault);
}

/* Angles in double, so that positions far out lose nothing before they are rounded. */
static int make_rotations(struct model *model, struct fault *fault)
{
	uint32_t half = model->config.head_dim / 2;
	size_t nr = (size_t)model->config.max_positions * half;

	model->cosines = malloc(nr * sizeof(float));
	model->sines = malloc(nr * sizeof(float));
	if (!model->cosines || !model->sines)
		return fault_say(fault, "no memory for %u positions", model->config.max_positions);
	for (size_t i = 0; i < nr; i++) {
		double angle = (double)(i / half) *
			       pow(model->config.rope_theta, -(double)(i % half) / half);

		model->cosines[i] = (float)cos(angle);
		model->sines[i] = (float)sin(angle);
	}
	return 0;
}

static int load(const struct checkpoint *checkpoint, struct model *model, struct fault *fault)
{
	const struct model_config *config = &model->config;
	const char *head = config->tied ? "model.embed_tokens.weight" : "lm_head.weight";

	model->layers = calloc(config->nr_layers, sizeof(*model->layers));
	if (!model->layers)
		return fault_say(fault, "no memory for %u layers", config->nr_layers);
	for (uint32_t i = 0; i < config->nr_layers; i++)
		if (load_layer(checkpoint, config, i, &model->layers[i], fault))
			return -1;
	if (load_vector(checkpoint, "model.embed_tokens.weight", config->vocab, config->hidden,
		    &model->embedding, fault) ||
		load_vector(checkpoint, "model.norm.weight", config->hidden, 1, &model->final_norm,
			fault) ||
		matrix_load(checkpoint, head, config->vocab, config->hidden, &model->head, fault))
		return -1;
	return make_rotations(model, fault);
}

int model_load(const struct checkpoint *checkpoint, const struct model_config *config,
	struct model *model, struct fault *fault)
{
	struct model loaded = {.config = *config};

	if (load(checkpoint, &loaded, fault)) {
		model_destroy(&loaded);
		return -1;
	}
	*model = loaded;
	return 0;
}

static void destroy_layer(struct model_layer *layer)
{
	free(layer->input_norm);
	free(layer->post_norm);
	free(layer->q_norm);
	free(layer->k_norm);
	matrix_destroy(&layer->q);
	matrix_destroy(&layer->k);
	matrix_destroy(&layer->v);
	matrix_destroy(&layer->o);
	matrix_destroy(&layer->router);
}

void model_destroy(struct model *model)
{
	for (uint32_t i = 0; model->layers && i < model->config.nr_layers; i++)
		destroy_layer(&model->layers[i]);
	free(model->layers);
	free(model->embedding);
	free(model->final_norm);
	matrix_destroy(&model->head);
	free(model->cosines);
	free(model->sines);
	*model = (struct model){0};
}

int cache_create(const struct model_config *config, uint32_t capacity, struct cache *cache)
{
	size_t bytes = (size_t)config->nr_layers * config->nr_kv_heads * capacity *
		       config->head_dim * sizeof(float);

	*cache = (struct cache){
		.capacity = capacity, .keys = malloc(bytes), .values = malloc(bytes)};
	if (cache->keys && cache->values)
		return 0;
	cache_destroy(cache);
	return -1;
}

void cache_destroy(struct cache *cache)
{
	free(cache->keys);
	free(cache->values);
	*cache = (struct cache){0};
}
