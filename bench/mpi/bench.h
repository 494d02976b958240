/* SPDX-License-Identifier: Apache-2.0 */
/* One case of tern-against-mpi on one rank, and what its files share. */
#ifndef TERN_BENCH_MPI_BENCH_H
#define TERN_BENCH_MPI_BENCH_H

#include "bench/mpi/exchange.h"
#include "bench/mpi/floor.h"
#include "bench/mpi/report.h"
#include "bench/command/args.h"
#include "bench/raw/raw.h"
#include "testkit/reference.h"

struct bench {
	const struct bench_args *args;
	struct bench_case bench_case;
	struct job *job; /* the case's */
	struct reference *reference;
	struct input input;
	struct buffers buffers;
	size_t buffer_bytes[7];
	struct experts experts;
	struct exchange per_rank, per_route;
	struct floor wire, whole;
	uint32_t *nr_copies;
	tern_group *group;
	tern_moe *moe;
	struct raw *raw; /* NULL: Tern does not go over libfabric */
	struct tern_received received;
	char *tern_out;
	int rank, nr_ranks;
};

_Noreturn __attribute__((format(printf, 1, 2))) void die(const char *format, ...);
void check(int rc, const char *what);

/* The methods that are compared. */
void tern_method_dispatch(struct bench *b);
void tern_method_combine(struct bench *b);
void per_rank_dispatch(struct bench *b);
void per_rank_combine(struct bench *b);
void per_route_dispatch(struct bench *b);
void per_route_combine(struct bench *b);
void raw_dispatch(struct bench *b);
void raw_combine(struct bench *b);

/* compare.c: differences, on all ranks together; and the first touch of all memory. */
uint64_t compare(struct bench *b);

/* raw.c: after a compared round, learns what Tern sends over libfabric, if it does. Closing tells
 * how many raw writes did not arrive as they were sent, on all ranks together. */
void open_raw(struct bench *b);
uint64_t close_raw(struct bench *b);

#endif
