/* SPDX-License-Identifier: Apache-2.0 */
#include "layers.h"

#include <stdio.h>
#include <stdlib.h>

#include "wire.h"

/* One of the model's. */
struct layer {
	struct buffer gate_up, down; /* [nr][2 I][H], [nr][H][I] */
	tern_layer *of[2];           /* over the exchange of prompts, and of decoding */
};

struct layers {
	struct gpu *gpu;
	uint32_t nr;
	struct layer *all;
};

/* Rows of one expert's matrix, as bf16. */
static int load_matrix(const struct layers_config *config, const char *name, uint32_t nr_out,
	uint32_t nr_in, float *room, uint16_t *to, struct fault *fault)
{
	int rc = checkpoint_rows(config->checkpoint, name, nr_out, nr_in, 0, nr_out, room, fault);

	if (!rc)
		row_to_bf16(room, nr_out * nr_in, to);
	return rc;
}

static int load_expert(const struct layers_config *config, uint32_t layer, uint32_t local,
	float *room, struct layer *l, struct fault *fault)
{
	uint32_t hidden = config->model->hidden, inner = config->model->intermediate;
	size_t matrix = (size_t)hidden * inner;
	const struct {
		const char *name;
		uint32_t nr_out, nr_in;
		uint16_t *to;
	} parts[] = {{"gate_proj", inner, hidden, (uint16_t *)l->gate_up.here + 2 * local * matrix},
		{"up_proj", inner, hidden, (uint16_t *)l->gate_up.here + (2 * local + 1) * matrix},
		{"down_proj", hidden, inner, (uint16_t *)l->down.here + local * matrix}};

	for (int i = 0; i < 3; i++) {
		char name[128];

		snprintf(name, sizeof(name), "model.layers.%u.mlp.experts.%d.%s.weight", layer,
			config->ids[local], parts[i].name);
		if (load_matrix(config, name, parts[i].nr_out, parts[i].nr_in, room, parts[i].to,
			    fault))
			return -1;
	}
	return 0;
}

static int load_weights(const struct layers_config *config, uint32_t layer, float *room,
	struct layer *l, struct fault *fault)
{
	size_t bytes = (size_t)config->nr * config->model->hidden * config->model->intermediate *
		       sizeof(uint16_t);

	if (buffer_grow(config->gpu, &l->gate_up, 2 * bytes + 16, fault) ||
		buffer_grow(config->gpu, &l->down, bytes + 16, fault))
		return -1;
	for (uint32_t local = 0; local < config->nr; local++)
		if (load_expert(config, layer, local, room, l, fault))
			return -1;
	if (buffer_send(config->gpu, &l->gate_up, 2 * bytes, fault) ||
		buffer_send(config->gpu, &l->down, bytes, fault))
		return -1;
	return gpu_wait(config->gpu, fault);
}

static int create(const struct layers_config *config, struct layer *l, struct fault *fault)
{
	tern_moe *const exchanges[] = {config->prefill, config->decode};
	struct tern_layer_config layer;
	int rc = 0;

	tern_layer_config_init(&layer);
	layer.inner = config->model->intermediate;
	layer.gate_up = l->gate_up.there;
	layer.down = l->down.there;
	for (int i = 0; i < 2 && !rc; i++)
		rc = tern_layer_create(exchanges[i], &layer, &l->of[i]);
	return rc ? fault_say(fault, "--layer: %s (%s)", tern_last_error(), tern_strerror(rc)) : 0;
}

int layers_create(const struct layers_config *config, struct layers **layers, struct fault *fault)
{
	struct layers *made = calloc(1, sizeof(*made));
	float *room =
		malloc((size_t)config->model->hidden * config->model->intermediate * sizeof(*room));
	int rc = 0;

	if (made)
		made->all = calloc(config->model->nr_layers, sizeof(*made->all));
	if (!made || !made->all || !room)
		rc = fault_say(
			fault, "no memory for the experts of %u layers", config->model->nr_layers);
	for (uint32_t i = 0; !rc && i < config->model->nr_layers; i++) {
		made->nr = i + 1;
		made->gpu = config->gpu;
		rc = load_weights(config, i, room, &made->all[i], fault);
		rc = rc ? rc : create(config, &made->all[i], fault);
	}
	free(room);
	if (rc)
		layers_destroy(made);
	else
		*layers = made;
	return rc;
}

void layers_destroy(struct layers *layers)
{
	if (!layers)
		return;
	for (uint32_t i = 0; i < layers->nr; i++) {
		tern_layer_destroy(layers->all[i].of[0]);
		tern_layer_destroy(layers->all[i].of[1]);
		buffer_free(layers->gpu, &layers->all[i].gate_up);
		buffer_free(layers->gpu, &layers->all[i].down);
	}
	free(layers->all);
	free(layers);
}

tern_layer *layers_at(const struct layers *layers, bool decode, uint32_t layer)
{
	return layers->all[layer].of[decode];
}
