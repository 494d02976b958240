/* SPDX-License-Identifier: Apache-2.0 */
/* The same exchange over MPI_Alltoallv, written as well as that call allows: the library's own
 * kernels quantise and sum, header, scales and row travel as one record in one call, and what was
 * learnt in dispatch is kept for combine. */
#ifndef TERN_BENCH_MPI_EXCHANGE_H
#define TERN_BENCH_MPI_EXCHANGE_H

#include "testkit/job.h"

#include <mpi.h>

#define AGAINST_MAX_RANKS 1024

enum records {
	RECORD_PER_RANK = 0, /* a token once to each rank that holds one of its experts, where it is
				copied out */
	RECORD_PER_ROUTE = 1 /* a token once for each of its experts; all rows come home */
};

/* Large, and used by one method at a time. Sized for the worst case: pages are taken when they are
 * first written. */
struct buffers {
	char *send;
	char *recv;
	char *x;      /* rows received, by expert */
	char *scales; /* theirs */
	char *y;      /* what the experts return, in the same order */
	char *out;
	struct tern_row *rows;
};

/* One rank's inputs of the round that is repeated. */
struct input {
	uint32_t nr_tokens;
	int32_t *ids;
	float *weights;
	char *x;
	char *scales; /* NULL unless x is FP8 */
};

struct experts { /* where they live */
	const int32_t *rank;
	const int32_t *local;
	uint32_t nr_local;
};

struct exchange {
	const struct job *job;
	const struct input *input;
	const struct experts *experts;
	const struct buffers *buffers;
	enum records records;
	bool reduce_home; /* rows come home one for each route */
	MPI_Comm comm;
	MPI_Datatype record_type;
	MPI_Datatype y_type;
	uint32_t nr_ranks;
	uint32_t topk;
	size_t scales_at, row_at, record_bytes; /* of a record: header, scales, row */
	size_t row_bytes, scales_bytes, y_bytes;
	/* Records, and rows of y: how many to and from each rank, and where they start. [nr_ranks]
	 */
	int *nr_sent, *sent_at, *nr_received, *received_at;
	int *nr_home, *home_at, *nr_away, *away_at; /* y: comes home to us; goes away from here */
	uint32_t *home_row; /* [n][K] which row of those that come home is this route's; reduce_home
			     */
	int32_t *partial_row; /* [n][R] which is this rank's partial sum, -1: none; not reduce_home
			       */
	/* Received routes, in the order of the records and within them of k: */
	uint64_t *position;
	float *weight;
	uint32_t *nr_routes; /* of each record */
	uint32_t *counts;    /* [nr_local] */
	uint64_t *offsets;
};

/* 0, or -1: out of memory. exchange_close is called in both cases. */
int exchange_open(struct exchange *e, const struct job *job, enum records records,
	const struct experts *experts, const struct input *input, const struct buffers *buffers,
	MPI_Comm comm);
void exchange_close(struct exchange *e);

void exchange_dispatch(struct exchange *e);
void exchange_combine(struct exchange *e);

/* Of the largest record. */
size_t exchange_record_bytes(const struct job *job, enum records records);

#endif
