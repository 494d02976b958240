/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/mpi/floor.h"

#include <string.h>

void floor_dispatch(struct floor *f)
{
	const struct buffers *b = f->buffers;
	char *to = b->recv;

	for (uint32_t t = 0; t < f->nr_tokens; t++)
		for (uint32_t i = 0; i < f->nr_copies[t]; i++, to += f->row_bytes)
			memcpy(to, b->send + (size_t)t * f->row_bytes, f->row_bytes);
	/* A row goes to several experts one after the other, so most of these reads are of a row
	 * just read, as in the real thing. */
	for (uint64_t i = 0; f->whole && i < f->nr_received && f->nr_sent; i++)
		memcpy(b->x + i * f->row_bytes,
			b->recv + i * f->nr_sent / f->nr_received * f->row_bytes, f->row_bytes);
}

void floor_combine(struct floor *f)
{
	const struct buffers *b = f->buffers;
	size_t y_bytes = job_y_bytes(f->job);

	for (uint64_t i = 0; i < f->nr_home; i++)
		memcpy(b->recv + i * y_bytes, b->y + i * y_bytes, y_bytes);
	for (uint32_t t = 0; f->whole && t < f->nr_tokens && f->nr_home; t++)
		memcpy(b->out + (size_t)t * y_bytes,
			b->recv + t * f->nr_home / f->nr_tokens * y_bytes, y_bytes);
}

uint64_t floor_bytes(const struct floor *f)
{
	uint64_t dispatch = f->nr_sent + (f->whole ? f->nr_received : 0);
	uint64_t combine = f->nr_home + (f->whole ? f->nr_tokens : 0);

	return dispatch * f->row_bytes + combine * job_y_bytes(f->job);
}
