/* SPDX-License-Identifier: Apache-2.0 */
/* A received row in its place: written by the sender in high-throughput mode, by the receiver in
 * low-latency mode. */
#ifndef TERN_EXCHANGE_ROWS_H
#define TERN_EXCHANGE_ROWS_H

#include "exchange/row_op.h"
#include "exchange/state.h"

struct row_source {
	const uint8_t *payload, *scales;
};

/* A header outside of shared memory: a peer cannot change it between the look at a number and its
 * use. */
union header_copy {
	struct row_header header;
	uint8_t bytes[sizeof(struct row_header) + TERN_MAX_TOPK * sizeof(struct route)];
};

/* Copies a header as a peer left it in this rank's window. False: no correct peer writes such a
 * one. Positions and local experts are the caller's to check. */
bool header_take(const tern_moe *moe, const struct row_header *shared, union header_copy *copy);

/* The same from a place with `room` bytes. */
bool header_take_within(
	const tern_moe *moe, const void *shared, uint64_t room, union header_copy *copy);

/* A header's positions have lain in shared memory since they were written there: they are checked
 * before they are followed. */
bool positions_fit(const struct slot *s, const struct row_header *header);

/* An op on rows as they travel to experts; and one on results. */
static inline void row_op_of_dispatch(
	const tern_moe *moe, struct row_op *op, enum row_change change)
{
	row_op_begin(op, change, moe->layout.payload_bytes, moe->layout.scales_bytes);
}

static inline void row_op_of_combine(const tern_moe *moe, struct row_op *op, enum row_change change)
{
	row_op_begin(op, change, moe->layout.combine_row_bytes, 0);
}

/* One position more that the row goes to. */
static inline void row_to_position(const tern_moe *moe, struct row_op *op, bool stream, uint8_t *x,
	uint8_t *scales, uint64_t position)
{
	row_op_to(op, x + position * moe->layout.payload_bytes,
		scales ? scales + position * moe->layout.scales_bytes : NULL, stream);
}

/* What the receiver learns of the row at `position` of the output at `output`; all its routes in
 * TERN_BY_SOURCE, else one. */
void row_describe(const tern_moe *moe, uint8_t *output, uint64_t position, uint32_t source,
	const struct row_header *header, const struct route *route);

/* A header's positions in the output at `output` are described, and are places that the op's row
 * goes to. */
void rows_place(const tern_moe *moe, struct row_op *op, bool stream, uint8_t *output,
	uint32_t source, const struct row_header *header);

#endif
