/* SPDX-License-Identifier: Apache-2.0 */
#include "experts.h"

#include <stdio.h>
#include <stdlib.h>

#define SCRATCH_ROWS 64

int matrix_load(const struct checkpoint *checkpoint, const char *name, uint32_t nr_out,
	uint32_t nr_in, struct matrix *matrix, struct fault *fault)
{
	float *row = malloc(nr_in * sizeof(*row));
	int rc = 0;

	if (!row || matrix_create(matrix, nr_out, nr_in)) {
		free(row);
		return fault_say(fault, "no memory for %s", name);
	}
	for (uint32_t out = 0; !rc && out < nr_out; out++) {
		rc = checkpoint_rows(checkpoint, name, nr_out, nr_in, out, 1, row, fault);
		if (!rc)
			matrix_set_row(matrix, out, row);
	}
	free(row);
	if (rc)
		matrix_destroy(matrix);
	return rc;
}

static int load_expert(const struct checkpoint *checkpoint, uint32_t layer, uint32_t id,
	uint32_t hidden, uint32_t intermediate, struct expert *expert, struct fault *fault)
{
	const struct {
		const char *name;
		uint32_t nr_out, nr_in;
		struct matrix *matrix;
	} parts[] = {
		{"gate_proj", intermediate, hidden, &expert->gate},
		{"up_proj", intermediate, hidden, &expert->up},
		{"down_proj", hidden, intermediate, &expert->down},
	};

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		char name[128];

		snprintf(name, sizeof(name), "model.layers.%u.mlp.experts.%u.%s.weight", layer, id,
			parts[i].name);
		if (matrix_load(checkpoint, name, parts[i].nr_out, parts[i].nr_in, parts[i].matrix,
			    fault))
			return -1;
	}
	return 0;
}

static int load_all(const struct checkpoint *checkpoint, const int32_t *ids,
	struct experts *experts, struct fault *fault)
{
	for (uint32_t layer = 0; layer < experts->nr_layers; layer++)
		for (uint32_t local = 0; local < experts->nr; local++)
			if (load_expert(checkpoint, layer, ids ? (uint32_t)ids[local] : local,
				    experts->hidden, experts->intermediate,
				    &experts->all[(size_t)layer * experts->nr + local], fault))
				return -1;
	return 0;
}

int experts_load(const struct checkpoint *checkpoint, const struct model_config *config,
	const int32_t *ids, uint32_t nr, struct experts *experts, struct fault *fault)
{
	struct experts loaded = {
		.nr = nr,
		.nr_layers = config->nr_layers,
		.hidden = config->hidden,
		.intermediate = config->intermediate,
		.all = calloc((size_t)config->nr_layers * nr + 1, sizeof(struct expert)),
		.gate = malloc(sizeof(float) * SCRATCH_ROWS * config->intermediate),
		.up = malloc(sizeof(float) * SCRATCH_ROWS * config->intermediate),
	};
	int rc = loaded.all && loaded.gate && loaded.up
			 ? 0
			 : fault_say(fault, "no memory for %u experts", nr);

	rc = rc ? rc : load_all(checkpoint, ids, &loaded, fault);
	if (rc) {
		experts_destroy(&loaded);
		return rc;
	}
	*experts = loaded;
	return 0;
}

void experts_destroy(struct experts *experts)
{
	for (size_t i = 0; experts->all && i < (size_t)experts->nr_layers * experts->nr; i++) {
		matrix_destroy(&experts->all[i].gate);
		matrix_destroy(&experts->all[i].up);
		matrix_destroy(&experts->all[i].down);
	}
	free(experts->all);
	free(experts->gate);
	free(experts->up);
	*experts = (struct experts){0};
}

void experts_run(struct experts *experts, uint32_t layer, uint32_t local, const float *x,
	uint32_t nr_rows, float *y)
{
	const struct expert *expert = &experts->all[(size_t)layer * experts->nr + local];

	for (uint32_t row = 0, nr; row < nr_rows; row += nr) {
		nr = nr_rows - row < SCRATCH_ROWS ? nr_rows - row : SCRATCH_ROWS;
		matrix_multiply(
			&expert->gate, x + (size_t)row * experts->hidden, nr, experts->gate);
		matrix_multiply(&expert->up, x + (size_t)row * experts->hidden, nr, experts->up);
		silu_multiply(experts->gate, experts->up, (uint64_t)nr * experts->intermediate);
		matrix_multiply(
			&expert->down, experts->gate, nr, y + (size_t)row * experts->hidden);
	}
}
