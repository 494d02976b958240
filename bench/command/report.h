/* SPDX-License-Identifier: Apache-2.0 */
/* What a benchmark found, as a table for people and as JSON for programs. */
#ifndef TERN_BENCH_COMMAND_REPORT_H
#define TERN_BENCH_COMMAND_REPORT_H

#include "bench/command/args.h"
#include "testkit/json.h"
#include "testkit/measure.h"
#include "bench/command/device_overlap.h"
#include "bench/command/nccl_rounds.h"

struct bench_result {
	struct bench_case bench_case;
	struct spread spreads[NR_MEASURES];
	bool against_raw; /* beside raw libfabric writes of the same bytes, raw_bytes a rank and
			     round */
	struct spread raw_spreads[NR_MEASURES];
	double raw_bytes;
	bool against_nccl;
	struct spread nccl_spreads[NR_NCCL_WAYS][NR_MEASURES];
	uint64_t nr_nccl_wrong; /* of all ranks */
	uint32_t nr_overlap;
	struct overlap_row overlap[OVERLAP_MOST_ROWS];
	struct spread overlap_spreads[OVERLAP_MOST_ROWS][NR_MEASURES]; /* a row's three times */
	uint64_t nr_raw_wrong;                                         /* writes of all ranks */
	uint32_t nr_timed;                                             /* rounds, of each measure */
	uint64_t nr_verified; /* rounds with fresh inputs */
	bool verified;
	uint64_t nr_wrong;         /* of all ranks */
	char wrong[384];           /* the first difference */
	char error[640];           /* why the case could not be run; "" */
	int code;                  /* enum tern_error of that */
	struct tern_memory memory; /* of the rank with the most */
	double dispatch_bytes;     /* a rank and round, on average */
	double combine_bytes;
	double rows_received;
};

struct report {
	const struct bench_args *args;
	int nr_ranks;
	int nr_nodes;
	const char *paths; /* of rank 0, in words */
	unsigned int nr_results;
	struct bench_result *results;
};

void report_head(const struct report *report);
void report_row(const struct report *report, const struct bench_result *result);
/* Returns the exit code: EXIT_USAGE where flags were refused and nothing else was wrong, 1 where
 * something was. */
int report_end(const struct report *report);

/* 0, or -1 with a message on stderr. */
int report_json(const struct report *report);

/* A file of results: its head, with the machine; behind an array "results" its end; and the
 * beginning of each object of that. Both of the first: 0, or -1 with a message on stderr. */
int report_json_open(const struct bench_args *args, struct json *json);
int report_json_close(const struct bench_args *args, struct json *json);
void report_json_next(struct json *json, bool first);
void json_spread(struct json *json, const char *key, const struct spread *spread);

#endif
