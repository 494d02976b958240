/* SPDX-License-Identifier: Apache-2.0 */
/* What both modes do to a token on its way out. */
#ifndef TERN_EXCHANGE_CPU_OUTGOING_H
#define TERN_EXCHANGE_CPU_OUTGOING_H

#include "exchange/arguments.h"
#include "exchange/plan.h"
#include "exchange/rows.h"

/* The caller's token, as it is sent. */
static inline void dispatch_token(
	const tern_moe *moe, struct row_op *op, const struct tern_dispatch *args, uint32_t token)
{
	const struct tern_moe_config *c = &moe->config;
	const uint8_t *x = (const uint8_t *)args->x +
			   (size_t)token * (args->x_stride ? args->x_stride : x_row_bytes(moe));
	size_t stride = args->scales_stride ? args->scales_stride : moe->layout.scales_bytes;

	row_op_of_dispatch(moe, op, c->x_dtype != c->dispatch_dtype ? ROW_QUANTISED : ROW_KEPT);
	row_op_from(op, x,
		args->scales ? (const uint8_t *)args->scales + (size_t)token * stride : NULL);
}

/* The header of rows->rows[row]; positions are not in it yet. For each rank in the order of its
 * tokens: each call takes places at home. */
void dispatch_header(const tern_moe *moe, const struct slot *s, uint32_t token,
	const struct token_rows *rows, uint32_t row, struct row_header *header);

#endif
