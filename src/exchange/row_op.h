/* SPDX-License-Identifier: Apache-2.0 */
/* All that is done to the bytes of a row on a CPU: from one or several rows one is made, which goes
 * to one or several places. Halves say what is to be done, and go on; who does it, and when, is
 * row_work.h's. */
#ifndef TERN_EXCHANGE_ROW_OP_H
#define TERN_EXCHANGE_ROW_OP_H

#include <stdbool.h>
#include <stdint.h>

#include "tern.h"

enum row_change {
	ROW_KEPT,
	ROW_QUANTISED, /* as config.x_dtype, dispatch_dtype and scale say */
	ROW_SUMMED     /* of combine_dtype */
};

/* A row of BY_SOURCE, or of one route: its payload, and its scales if rows have any. */
struct row_place {
	uint8_t *payload, *scales;
	bool stream; /* past the caches */
};

/* What is read keeps, and what is written belongs to the op, until the work is finished. */
struct row_op {
	enum row_change change;
	uint32_t nr_from, nr_to;
	uint32_t bytes, scales_bytes; /* of a row as it is stored */
	bool weighted;
	const void *from[TERN_MAX_TOPK]; /* [nr_from], one unless ROW_SUMMED */
	const uint8_t *scales;           /* of from[0] */
	float weights[TERN_MAX_TOPK];
	struct row_place to[TERN_MAX_TOPK];
};

static inline void row_op_begin(
	struct row_op *op, enum row_change change, uint32_t bytes, uint32_t scales_bytes)
{
	op->change = change;
	op->nr_from = op->nr_to = 0;
	op->bytes = bytes;
	op->scales_bytes = scales_bytes;
	op->weighted = false;
	op->scales = NULL;
}

static inline void row_op_from(struct row_op *op, const void *row, const uint8_t *scales)
{
	op->from[op->nr_from++] = row;
	op->scales = scales;
}

static inline void row_op_to(struct row_op *op, uint8_t *payload, uint8_t *scales, bool stream)
{
	op->to[op->nr_to++] = (struct row_place){payload, scales, stream};
}

/* scratch: a row and its scales, for one that is changed and goes to several places, or past the
 * caches; NULL where none is. */
void row_op_run(const struct tern_moe_config *config, const struct row_op *op,
	const struct row_place *scratch);

#endif
