/* SPDX-License-Identifier: Apache-2.0 */
/* A received row in its place: written by the sender in high-throughput mode, by the receiver in
 * low-latency mode. */
#ifndef TERN_EXCHANGE_ROWS_H
#define TERN_EXCHANGE_ROWS_H

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

/* A row into one position. */
void row_store(const tern_moe *moe, bool stream, uint8_t *x, uint8_t *scales, uint64_t position,
	const struct row_source *row);

/* What the receiver learns of the row at `position` of the output at `output`; all its routes in
 * TERN_BY_SOURCE, else one. */
void row_describe(const tern_moe *moe, uint8_t *output, uint64_t position, uint32_t source,
	const struct row_header *header, const struct route *route);

/* A row with its header's positions into all its places of the output at `output`. */
void rows_place(const tern_moe *moe, bool stream, uint8_t *output, uint32_t source,
	const struct row_header *header, const struct row_source *row);

#endif
