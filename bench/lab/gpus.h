/* SPDX-License-Identifier: Apache-2.0 */
/* The lab's ranks: one thread and one GPU each, in one process, with peer access; and an exchange's
 * buffers on them. */
#ifndef TERN_BENCH_LAB_GPUS_H
#define TERN_BENCH_LAB_GPUS_H

#include <pthread.h>
#include <stdbool.h>

#include "testkit/job.h"
#include "bench/lab/floor.h"
#include "gpu/cuda/common/kernels.h"

/* How an exchange is run. */
struct lab_way {
	enum gpu_format format;
	uint32_t row_vectors, result_vectors;
	uint32_t share;
	struct gpu_launch dispatch, combine;
};

struct lab_reports {
	struct gpu_report report;
	struct gpu_input_error input_error;
};

struct lab_rank {
	uint32_t rank;
	cudaStream_t stream;
	uint8_t *arena, *next, *host; /* device memory, handed out for one case after the other;
					 pinned staging */
	size_t arena_bytes, host_bytes;
	uint32_t *gate_flags;
	uint32_t gate_number;
	/* Of the current case: */
	uint8_t *window;
	struct gpu_state *state;
	struct lab_reports *report; /* pinned */
	uint8_t *x, *y, *out, *ids, *out_x;
	float *weights;
	uint8_t *out_scales;
	int4 *out_rows;
	uint32_t *counts, *nr_tokens_at;
	uint64_t *offsets, *sums;
	uint64_t positions;
	struct gpu_dispatch dispatch;
	struct gpu_combine combine;
};

struct lab {
	uint32_t nr_ranks;
	struct lab_rank ranks[LAB_MAX_GPUS];
	pthread_barrier_t barrier;
	const struct job *job;
	struct lab_way way;
};

/* Ends the program with the place and CUDA's text: this is a lab. */
void lab_check(cudaError_t rc, const char *file, int line);
#define CHECK(call) lab_check((call), __FILE__, __LINE__)

void lab_open(struct lab *lab, uint32_t nr_ranks, size_t arena_bytes, size_t host_bytes);
void lab_close(struct lab *lab);

/* Runs body on every rank's thread, with its GPU current; returns the sum of what it returns. */
typedef uint64_t (*lab_body)(struct lab *lab, struct lab_rank *rank, void *ctx);
uint64_t lab_run(struct lab *lab, lab_body body, void *ctx);

/* Makes the buffers and arguments of job on all ranks, as way says. Called from no rank's thread.
 */
void lab_setup(struct lab *lab, const struct job *job, const struct lab_way *way);

/* Puts one round's inputs in place. */
void lab_inputs(struct lab *lab, struct lab_rank *rank, uint64_t round);

#define LAB_HOLD_NS 30000
void lab_gate(struct lab *lab, struct lab_rank *rank, uint64_t hold_ns);

/* What is replayed, and the events before and behind it. */
struct lab_graph {
	cudaGraphExec_t exec;
	cudaEvent_t begin, end;
};

/* From one to the other the rank's stream is captured. */
void lab_capture(struct lab_rank *rank);
struct lab_graph lab_captured(struct lab_rank *rank);
void lab_graph_close(struct lab_graph *graph);

/* Behind a gate of LAB_HOLD_NS, between its events. */
void lab_replay(struct lab *lab, struct lab_rank *rank, const struct lab_graph *graph);

/* Of its last replay, when the stream has been waited for. */
float lab_elapsed_us(const struct lab_graph *graph);

/* Of each round the slowest rank's time: the median, and the 99th percentile unless NULL. */
void lab_slowest(
	const struct lab *lab, float *const *of_rank, uint32_t rounds, double *p50, double *p99);

/* Memory of a rank's GPU, until the next setup. */
void *lab_take(struct lab_rank *rank, size_t bytes);

/* Prints the report of an expired wait, if there is one. */
bool lab_expired(const struct lab_rank *rank);

#endif
