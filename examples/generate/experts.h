/* SPDX-License-Identifier: Apache-2.0 */
/* The experts that this rank holds, the same in every layer. */
#ifndef TERN_EXAMPLES_GENERATE_EXPERTS_H
#define TERN_EXAMPLES_GENERATE_EXPERTS_H

#include "checkpoint.h"
#include "config.h"
#include "maths.h"

struct expert {
	struct matrix gate, up, down;
};

struct experts {
	uint32_t nr;
	uint32_t nr_layers, hidden, intermediate;
	struct expert *all; /* [layer][local] */
	float *gate, *up;   /* scratch for some rows */
};

/* Those with ids[nr], by which they are numbered from then on; NULL: the first nr. *experts is set
 * only on success. */
int experts_load(const struct checkpoint *checkpoint, const struct model_config *config,
	const int32_t *ids, uint32_t nr, struct experts *experts, struct fault *fault);
void experts_destroy(struct experts *experts);

/* y = down(silu(gate(x)) * up(x)), row by row; x and y are [nr_rows][hidden]. */
void experts_run(struct experts *experts, uint32_t layer, uint32_t local, const float *x,
	uint32_t nr_rows, float *y);

/* A matrix of the checkpoint, in panels. */
int matrix_load(const struct checkpoint *checkpoint, const char *name, uint32_t nr_out,
	uint32_t nr_in, struct matrix *matrix, struct fault *fault);

#endif
