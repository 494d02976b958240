/* SPDX-License-Identifier: Apache-2.0 */
/* One case on one rank: between bench.c (on the CPU, and all ranks together) and device.c. */
#ifndef TERN_BENCH_COMMAND_CASE_H
#define TERN_BENCH_COMMAND_CASE_H

#include "bench/command/raw.h"
#include "bench/command/report.h"
#include "bench/command/rounds.h"
#include "bench/command/trace.h"

struct bench {
	const struct bench_args *args;
	tern_group *group;
	int rank;
	bool progress; /* this rank tells it */
	double last_progress_us;
	unsigned int nr_cases;
	struct trace_file *trace; /* NULL: none */
	struct report report;
};

/* What the ranks tell each other about a case. */
struct outcome {
	int64_t rc;
	uint64_t nr_wrong;
	struct tern_stats stats;
	struct tern_memory memory;
	double raw_bytes;
	uint64_t nr_raw_wrong, nr_nccl_wrong;
	char wrong[384];
	char error[640];
};

/* What a case times. */
struct timing {
	struct rounds *rounds;
	struct times times;
	struct raw_rounds raw;
	struct times nccl[NR_NCCL_WAYS];
	struct times overlap[OVERLAP_MOST_ROWS]; /* as many as the result says */
};

void tell_progress(struct bench *bench, const char *what, uint32_t done, uint32_t total);

/* Before anything is closed, which could change the text. */
void describe_failure(const struct bench *bench, struct outcome *outcome);

/* All that this rank does for a case on a device. */
void run_on_device(struct bench *bench, struct timing *t, struct bench_result *result,
	struct outcome *outcome);

#endif
