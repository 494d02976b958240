/* SPDX-License-Identifier: Apache-2.0 */
#include "experts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCRATCH_ROWS 64

static int load_rows(const struct checkpoint *checkpoint, const char *name, struct matrix *matrix,
	struct fault *fault)
{
	uint32_t nr_out = matrix->nr_out, nr_in = matrix->nr_in;
	float *row = malloc(nr_in * sizeof(*row));
	int rc = row ? 0 : fault_say(fault, "no memory for %s", name);

	for (uint32_t out = 0; !rc && out < nr_out; out++) {
		rc = checkpoint_rows(checkpoint, name, nr_out, nr_in, out, 1, row, fault);
		if (!rc)
			matrix_set_row(matrix, out, row);
	}
	free(row);
	return rc;
}

int matrix_load(const struct checkpoint *checkpoint, const char *name, uint32_t nr_out,
	uint32_t nr_in, struct matrix *matrix, struct fault *fault)
{
	if (matrix_create(matrix, nr_out, nr_in))
		return fault_say(fault, "no memory for %s", name);
	if (!load_rows(checkpoint, name, matrix, fault))
		return 0;
	matrix_destroy(matrix);
	return -1;
}

int expert_load(const struct checkpoint *checkpoint, uint32_t layer, uint32_t id,
	struct expert *expert, struct fault *fault)
{
	const struct {
		const char *name;
		struct matrix *matrix;
	} parts[] = {
		{"gate_proj", &expert->gate},
		{"up_proj", &expert->up},
		{"down_proj", &expert->down},
	};

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		char name[128];

		snprintf(name, sizeof(name), "model.layers.%u.mlp.experts.%u.%s.weight", layer, id,
			parts[i].name);
		if (load_rows(checkpoint, name, parts[i].matrix, fault))
			return -1;
	}
	return 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static uint64_t expert_floats(const struct experts *experts)
{
	return 2 * matrix_floats(experts->intermediate, experts->hidden) +
	       matrix_floats(experts->hidden, experts->intermediate);
}

uint64_t experts_bytes(const struct experts *experts)
{
	return expert_floats(experts) * sizeof(float);
}

struct expert *experts_at(const struct experts *experts, uint32_t layer, uint32_t local)
{
	return &experts->all[(size_t)layer * experts->nr + local];
}

void *experts_base(const struct experts *experts, uint32_t layer)
{
	return experts->memory + layer * experts->nr * expert_floats(experts);
}

static void lay(const struct experts *experts, float *memory, struct expert *expert)
{
	uint32_t hidden = experts->hidden, intermediate = experts->intermediate;
	uint64_t floats = matrix_floats(intermediate, hidden);

	matrix_lay(&expert->gate, intermediate, hidden, memory);
	matrix_lay(&expert->up, intermediate, hidden, memory + floats);
	matrix_lay(&expert->down, hidden, intermediate, memory + 2 * floats);
}

/* Zeros, as outputs up to a full panel have to be. */
static float *take_memory(const struct experts *experts, uint64_t nr)
{
	uint64_t bytes = (nr + 1) * experts_bytes(experts);
	float *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);

	return memory ? memset(memory, 0, bytes) : NULL;
}

int expert_create(const struct experts *experts, struct expert *expert)
{
	float *memory = take_memory(experts, 1);

	if (!memory)
		return -1;
	lay(experts, memory, expert);
	return 0;
}

void expert_destroy(struct expert *expert)
{
	free(expert->gate.panels);
	*expert = (struct expert){0};
}

static int load_all(const struct checkpoint *checkpoint, const int32_t *ids, uint32_t nr,
	struct experts *experts, struct fault *fault)
{
	for (uint32_t layer = 0; layer < experts->nr_layers; layer++) {
		float *memory = experts_base(experts, layer);

		for (uint32_t local = 0; local < experts->nr; local++)
			lay(experts, memory + local * expert_floats(experts),
				experts_at(experts, layer, local));
		for (uint32_t local = 0; local < nr; local++)
			if (expert_load(checkpoint, layer, ids ? (uint32_t)ids[local] : local,
				    experts_at(experts, layer, local), fault))
				return -1;
	}
	return 0;
}

int experts_load(const struct checkpoint *checkpoint, const struct model_config *config,
	const int32_t *ids, uint32_t nr, uint32_t nr_places, struct experts *experts,
	struct fault *fault)
{
	struct experts loaded = {
		.nr = nr_places,
		.nr_layers = config->nr_layers,
		.hidden = config->hidden,
		.intermediate = config->intermediate,
		.all = calloc((size_t)config->nr_layers * nr_places + 1, sizeof(struct expert)),
		.gate = malloc(sizeof(float) * SCRATCH_ROWS * config->intermediate),
		.up = malloc(sizeof(float) * SCRATCH_ROWS * config->intermediate),
	};
	int rc;

	loaded.memory = take_memory(&loaded, (uint64_t)config->nr_layers * nr_places);
	rc = loaded.all && loaded.gate && loaded.up && loaded.memory
		     ? 0
		     : fault_say(fault, "no memory for %u experts", nr_places);
	rc = rc ? rc : load_all(checkpoint, ids, nr, &loaded, fault);
	if (rc) {
		experts_destroy(&loaded);
		return rc;
	}
	*experts = loaded;
	return 0;
}

void experts_destroy(struct experts *experts)
{
	free(experts->all);
	free(experts->memory);
	free(experts->gate);
	free(experts->up);
	*experts = (struct experts){0};
}

void experts_run(struct experts *experts, uint32_t layer, uint32_t local, const float *x,
	uint32_t nr_rows, float *y)
{
	const struct expert *expert = experts_at(experts, layer, local);

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
