/* SPDX-License-Identifier: Apache-2.0 */
/* tern bench --layer: dispatch, both products of the experts and combine in one graph, beside the
 * least time that memory, tensor cores and links allow. */
#ifndef TERN_BENCH_COMMAND_LAYER_H
#define TERN_BENCH_COMMAND_LAYER_H

#include "bench/command/args.h"
#include "testkit/device/inside.h"
#include "testkit/device/layer_weights.h"
#include "testkit/layer.h"
#include "testkit/measure.h"
#include "tern_layer.h"

enum layer_part {
	LAYER_PART_WHOLE, /* one graph */
	LAYER_PART_DISPATCH,
	LAYER_PART_EXPERTS,
	LAYER_PART_COMBINE,
	NR_LAYER_PARTS
};

/* Bandwidth and arithmetic alone, us. */
struct layer_floor {
	double weights, flops, network;
	double experts, whole; /* the most of those that count */
};

/* What a rank's experts get in one round. */
struct layer_rows {
	uint64_t rows, away; /* away: rows of tokens that go to other ranks */
	uint32_t hit, most;
};

struct layer_result {
	struct bench_case bench_case;
	struct layer_rows rows; /* of the rank with the most */
	struct layer_floor floor;
	struct spread spreads[NR_LAYER_PARTS];
	uint32_t nr_verified, nr_compared; /* rounds; tokens of all ranks */
	uint64_t nr_wrong;
	char wrong[200], error[640];
	int code;
};

struct layer_bench {
	const struct bench_args *args;
	tern_group *group;
	struct trace_file *trace; /* NULL: none */
	int rank, nr_ranks;
	const struct bench_device_ops *ops;
	char device[64];
	double memory_bytes_us;       /* that this device reads, at best */
	struct layer_weights weights; /* of the last case */
};

/* Of one case on this rank. */
struct layer_run {
	struct device_rounds rounds;
	tern_layer *linear, *swiglu;
	void *flushed;
	struct device_graph *verified, *timed[NR_LAYER_PARTS];
};

/* Everybody's experts get their rows in that round. */
struct layer_rows layer_rows_of(const struct job *job, uint64_t round, uint32_t rank);
struct layer_floor layer_floor_of(
	const struct layer_bench *b, const struct job *job, const struct layer_rows *rows);

/* layer_report.c */
void layer_report_head(const struct layer_bench *b);
void layer_report_row(const struct layer_bench *b, const struct layer_result *result);
int layer_report_json(const struct layer_bench *b, const struct layer_result *results, uint32_t nr);

/* All cases on this rank of the group; the exit code. */
int run_layers(const struct bench_args *args, tern_group *group, struct trace_file *trace);

#endif
