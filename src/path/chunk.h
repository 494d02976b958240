/* SPDX-License-Identifier: Apache-2.0 */
/* Rows into a chunk and out of it again: the format of wire.h. The reader trusts nothing: each
 * number is copied out of the window before it is checked and used. */
#ifndef TERN_PATH_CHUNK_H
#define TERN_PATH_CHUNK_H

#include "exchange/rows.h"

struct chunk_writer {
	uint8_t *base;
	uint32_t at;     /* bytes used */
	uint32_t row_at; /* where the row under way began */
	uint32_t nr_rows, nr_places;
};

/* Bytes that a row takes with so many places and routes in all of them. */
uint32_t chunk_row_bytes(const struct layout *layout, uint32_t nr_places, uint32_t nr_routes);

void chunk_begin(struct chunk_writer *w, uint8_t *base);
void chunk_row_begin(struct chunk_writer *w);
void chunk_row_place(
	struct chunk_writer *w, uint32_t rank, uint32_t row, const struct row_header *header);
/* Where the row's payload goes, and behind it its scales. */
uint8_t *chunk_row_end(struct chunk_writer *w, const struct layout *layout);
void chunk_end(struct chunk_writer *w, uint32_t slot, uint32_t epoch, uint32_t nr_chunks);

struct chunk_reader {
	const uint8_t *base;
	struct chunk_head head; /* a copy, checked */
	uint32_t at, rows_left;
	/* of the row under way */
	uint32_t end_of_places, places_left;
	struct row_source source;
};

/* False, as in all of these: no correct peer writes such a one. */
bool chunk_read(const struct layout *layout, const uint8_t *base, struct chunk_reader *r);
/* While rows_left is not 0. */
bool chunk_next_row(const tern_moe *moe, struct chunk_reader *r);
/* While places_left is not 0. The rank, and what the header says of its local experts, are the
 * caller's to check. */
bool chunk_next_place(const tern_moe *moe, struct chunk_reader *r, struct chunk_place *place,
	union header_copy *header);

#endif
