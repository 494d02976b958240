/* SPDX-License-Identifier: Apache-2.0 */
/* The experts that this rank holds, the same in every layer. A layer's lie in one piece of memory,
 * one after the other, so that they can be sent. */
#ifndef TERN_EXAMPLES_GENERATE_EXPERTS_H
#define TERN_EXAMPLES_GENERATE_EXPERTS_H

#include "checkpoint.h"
#include "config.h"
#include "maths.h"

struct expert {
	struct matrix gate, up, down; /* in this order, in memory that begins with gate's */
};

struct experts {
	uint32_t nr;
	uint32_t nr_layers, hidden, intermediate;
	struct expert *all; /* [layer][local] */
	float *memory;
	float *gate, *up; /* scratch for some rows */
};

/* Those with ids[nr], by which they are numbered from then on; NULL: the first nr. There is room
 * for nr_places, which is nr or more. *experts is set only on success. */
int experts_load(const struct checkpoint *checkpoint, const struct model_config *config,
	const int32_t *ids, uint32_t nr, uint32_t nr_places, struct experts *experts,
	struct fault *fault);
void experts_destroy(struct experts *experts);

/* One more beside them, that nothing has been loaded into. -1: no memory. */
int expert_create(const struct experts *experts, struct expert *expert);
void expert_destroy(struct expert *expert);
/* Into memory that is there. */
int expert_load(const struct checkpoint *checkpoint, uint32_t layer, uint32_t id,
	struct expert *expert, struct fault *fault);

struct expert *experts_at(const struct experts *experts, uint32_t layer, uint32_t local);
void *experts_base(const struct experts *experts, uint32_t layer);
uint64_t experts_bytes(const struct experts *experts); /* of one */

/* y = down(silu(gate(x)) * up(x)), row by row; x and y are [nr_rows][hidden]. */
void experts_run(struct experts *experts, uint32_t layer, uint32_t local, const float *x,
	uint32_t nr_rows, float *y);

/* A matrix of the checkpoint, in panels. */
int matrix_load(const struct checkpoint *checkpoint, const char *name, uint32_t nr_out,
	uint32_t nr_in, struct matrix *matrix, struct fault *fault);

#endif
