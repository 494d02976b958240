/* SPDX-License-Identifier: Apache-2.0 */
/* How fast this machine copies just the bytes of a job: all ranks at once, from memory to memory of
 * their own, with memcpy a row at a time. Nothing is found out, nobody is waited for. */
#ifndef TERN_BENCH_MPI_FLOOR_H
#define TERN_BENCH_MPI_FLOOR_H

#include "bench/mpi/exchange.h"

struct floor {
	const struct job *job;
	const struct buffers *buffers;
	const uint32_t *nr_copies; /* [n] ranks that each token goes to */
	uint32_t nr_tokens;
	bool whole;           /* the received layout and the rows of out are written, too */
	size_t row_bytes;     /* with scales */
	uint64_t nr_sent;     /* rows, one for each (token, rank) */
	uint64_t nr_received; /* routes that arrive here: rows of the layout */
	uint64_t nr_home;     /* rows of y that this rank stores for others' sums */
};

void floor_dispatch(struct floor *f);
void floor_combine(struct floor *f);

/* What both halves write. */
uint64_t floor_bytes(const struct floor *f);

#endif
