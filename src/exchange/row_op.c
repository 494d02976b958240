/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/row_op.h"

#include <string.h>

#include "exchange/cpu/kernels/kernels.h"

static void change(
	const struct tern_moe_config *c, const struct row_op *op, const struct row_place *place)
{
	if (op->change == ROW_QUANTISED)
		quantise_row(op->from[0], c->x_dtype, c->hidden, c->scale, place->payload,
			place->scales);
	else
		reduce_rows(c->combine_dtype, op->from, op->weighted ? op->weights : NULL,
			op->nr_from, c->hidden, place->payload);
}

void row_op_run(
	const struct tern_moe_config *c, const struct row_op *op, const struct row_place *scratch)
{
	bool straight = op->change != ROW_KEPT && op->nr_to == 1 && !op->to[0].stream;
	const uint8_t *payload = op->from[0], *scales = op->scales;

	if (straight) {
		change(c, op, &op->to[0]);
		return;
	}
	if (op->change != ROW_KEPT) {
		change(c, op, scratch);
		payload = scratch->payload;
		scales = scratch->scales;
	}
	for (uint32_t i = 0; i < op->nr_to; i++) {
		copy_row(op->to[i].payload, payload, op->bytes, op->to[i].stream);
		if (op->scales_bytes)
			memcpy(op->to[i].scales, scales, op->scales_bytes);
	}
}
