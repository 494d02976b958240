/* SPDX-License-Identifier: Apache-2.0 */
/* What tern-against-mpi prints: a table for people, a JSON line for each method of each case. */
#ifndef TERN_BENCH_MPI_REPORT_H
#define TERN_BENCH_MPI_REPORT_H

#include "bench/command/args.h"
#include "testkit/measure.h"

#include <stdio.h>

enum method_id {
	METHOD_TERN = 0,
	METHOD_MPI_RANK = 1,
	METHOD_MPI_ROUTE = 2,
	METHOD_WIRE = 3,
	METHOD_JOB = 4,
	METHOD_RAW = 5, /* where Tern goes over libfabric */
	NR_METHODS = 6
};

struct report {
	const struct bench_args *args;
	int nr_ranks;
	bool speaks;    /* this rank is the one that prints */
	int nr_methods; /* that are measured: all, or all but the last */
	FILE *json;     /* NULL: none */
	/* Of the case: */
	const struct bench_case *bench_case;
	uint64_t nr_wrong;
	uint64_t wire_bytes, job_bytes; /* of rank 0 */
	struct spread spreads[NR_METHODS][NR_MEASURES];
};

int report_open(struct report *report); /* -1: the JSON file cannot be written; said */
void report_case(struct report *report);
void report_skipped(struct report *report, const char *why);
void report_close(struct report *report);

#endif
