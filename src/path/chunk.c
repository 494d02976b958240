/* SPDX-License-Identifier: Apache-2.0 */
#include "path/chunk.h"

#include <string.h>

static uint32_t aligned(uint32_t bytes)
{
	return (uint32_t)align_up(bytes, CHUNK_ALIGNMENT);
}

static uint32_t payload_bytes(const struct layout *l)
{
	return aligned(l->payload_bytes + l->scales_bytes);
}

static uint32_t header_bytes(const struct row_header *header)
{
	return (uint32_t)(sizeof(*header) + header->nr_routes * sizeof(header->routes[0]));
}

uint32_t chunk_row_bytes(const struct layout *l, uint32_t nr_places, uint32_t nr_routes)
{
	uint64_t heads = sizeof(struct chunk_row) +
			 nr_places * (sizeof(struct chunk_place) + sizeof(struct row_header)) +
			 nr_routes * sizeof(struct route);

	return aligned((uint32_t)heads) + payload_bytes(l);
}

/* ---- writing --------------------------------------------------------------------------------- */

void chunk_begin(struct chunk_writer *w, uint8_t *base)
{
	*w = (struct chunk_writer){.base = base, .at = sizeof(struct chunk_head)};
}

void chunk_row_begin(struct chunk_writer *w)
{
	w->row_at = w->at;
	w->at += sizeof(struct chunk_row);
	w->nr_places = 0;
}

void chunk_row_place(
	struct chunk_writer *w, uint32_t rank, uint32_t row, const struct row_header *header)
{
	struct chunk_place place = {rank, row};

	memcpy(w->base + w->at, &place, sizeof(place));
	memcpy(w->base + w->at + sizeof(place), header, header_bytes(header));
	w->at += (uint32_t)sizeof(place) + header_bytes(header);
	w->nr_places++;
}

uint8_t *chunk_row_end(struct chunk_writer *w, const struct layout *l)
{
	uint8_t *payload = w->base + aligned(w->at);
	struct chunk_row row = {.nr_places = w->nr_places};

	w->at = aligned(w->at) + payload_bytes(l);
	row.bytes = w->at - w->row_at;
	memcpy(w->base + w->row_at, &row, sizeof(row));
	w->nr_rows++;
	return payload;
}

void chunk_end(struct chunk_writer *w, uint32_t slot, uint32_t epoch, uint32_t nr_chunks)
{
	struct chunk_head head = {.slot = slot,
		.epoch = epoch,
		.bytes = w->at,
		.nr_rows = w->nr_rows,
		.nr_chunks = nr_chunks};

	memcpy(w->base, &head, sizeof(head));
}

/* ---- reading --------------------------------------------------------------------------------- */

bool chunk_read(const struct layout *l, const uint8_t *base, struct chunk_reader *r)
{
	memset(r, 0, sizeof(*r));
	r->base = base;
	memcpy(&r->head, base, sizeof(r->head));
	r->at = sizeof(r->head);
	r->rows_left = r->head.nr_rows;
	return r->head.slot < l->nr_slots && r->head.bytes >= sizeof(r->head) &&
	       r->head.bytes <= l->chunk_bytes;
}

bool chunk_next_row(const tern_moe *moe, struct chunk_reader *r)
{
	const struct layout *l = &moe->layout;
	uint32_t room = r->head.bytes - r->at, payload = payload_bytes(l);
	struct chunk_row row;

	if (room < sizeof(row) + payload)
		return false;
	memcpy(&row, r->base + r->at, sizeof(row));
	if (row.bytes > room || row.bytes < sizeof(row) + payload || row.bytes % CHUNK_ALIGNMENT ||
		row.nr_places < 1 || row.nr_places > l->topk)
		return false;
	r->end_of_places = r->at + row.bytes - payload;
	r->places_left = row.nr_places;
	r->source.payload = r->base + r->end_of_places;
	r->source.scales = r->source.payload + l->payload_bytes;
	r->at += sizeof(row);
	r->rows_left--;
	return true;
}

bool chunk_next_place(const tern_moe *moe, struct chunk_reader *r, struct chunk_place *place,
	union header_copy *header)
{
	uint32_t room = r->end_of_places - r->at;

	if (room < sizeof(*place))
		return false;
	memcpy(place, r->base + r->at, sizeof(*place));
	r->at += sizeof(*place);
	if (!header_take_within(moe, r->base + r->at, room - sizeof(*place), header))
		return false;
	r->at += header_bytes(&header->header);
	if (--r->places_left == 0)
		r->at = r->end_of_places + payload_bytes(&moe->layout);
	return true;
}
