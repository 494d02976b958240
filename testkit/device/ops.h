/* SPDX-License-Identifier: Apache-2.0 */
/* What benchmarks and tests ask of GPUs beside exchanges: a table of functions in a library of its
 * own (libtern_bench_cuda.so), like that of gpu/host/ops.h, whose rules are these too. */
#ifndef TERN_TESTKIT_DEVICE_OPS_H
#define TERN_TESTKIT_DEVICE_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "tern.h"

#define BENCH_DEVICE_OPS_VERSION 4

struct device_graph;
struct records_ops; /* bench/nccl/rows.h */

/* Weights of a layer's experts: testkit/layer_values.h, or random. */
struct layer_fill {
	void *to;      /* [nr_experts][nr_matrices][rows][k] of e4m3, or bf16 */
	float *scales; /* of e4m3; NULL: bf16 */
	uint32_t first_expert, nr_experts, nr_matrices; /* 2: gate and up; 1: down */
	uint32_t rows, k;
	bool exact;
	uint64_t seed;
};

/* Kernels behind gates (tern.h): one copies received rows, one makes y. */
enum gate_mistake {
	GATE_RIGHT,
	GATE_BLIND, /* rows are not waited for */
	GATE_HASTY, /* tiles of y are marked before they are stored */
	GATE_SILENT /* or not at all */
};

struct gate_consumer {
	struct tern_gate gate;
	uint8_t *x, *scales; /* as received; scales_bytes 0: none */
	uint8_t *seen_x, *seen_scales;
	uint64_t x_bytes, scales_bytes, y_bytes; /* of a row */
	const uint8_t *prepared;                 /* y, at the positions of rows */
	uint8_t *y;
	enum gate_mistake broken;
};

struct bench_device_ops {
	uint32_t version;
	const char *(*error_text)(void);

	/* Makes a device current, as device_ops' does for libtern_cuda.so: each library has a CUDA
	 * runtime. */
	int (*use)(int ordinal);
	/* Host memory is pinned; copies and fills are put on the stream. */
	int (*memory_create)(uint64_t bytes, void **memory);
	void (*memory_free)(void *memory);
	int (*host_create)(uint64_t bytes, void **memory);
	void (*host_free)(void *memory);
	int (*copy)(void *to, const void *from, uint64_t bytes, void *stream);
	int (*fill)(void *to, int byte, uint64_t bytes, void *stream);
	int (*stream_create)(void **stream, bool urgent); /* urgent: blocks of its kernels start
							     before those of other streams */
	void (*stream_destroy)(void *stream);
	int (*stream_wait)(void *stream);
	/* What is put on the stream from now on runs behind all that is on the other now. Where
	 * that is captured, the stream is too from now on. */
	int (*stream_follow)(void *stream, void *other);
	/* Stands for what a model computes: keeps all SMs busy for so many waves of blocks, of some
	 * two microseconds each, and reads from that memory. */
	int (*work)(void *memory, uint64_t bytes, uint32_t nr_waves, void *stream);
	int (*spin)(uint64_t ns, void *stream);
	int (*weights)(const struct layer_fill *fill, void *stream);
	/* Behind a dispatch, and before a combine with one mark a tile. */
	int (*consume)(const struct gate_consumer *consumer, void *stream);
	int (*flush)(const void *memory, uint64_t bytes, void *stream); /* caches, by reading */
	/* Waits on the stream until those of all ranks have come there, by a word in windows of an
	 * exchange that has no rounds. number: 1 for the first, and so on. */
	int (*barrier)(void *const *windows, uint32_t rank, uint32_t nr_ranks, uint32_t number,
		uint64_t wait_ns, void *stream);
	int (*capture_begin)(void *stream);
	int (*capture_end)(void *stream, struct device_graph **graph);
	int (*graph_launch)(struct device_graph *graph, void *stream);
	void (*graph_destroy)(struct device_graph *graph);
	/* Between a graph's begin and its end, by the device's clock; after stream_wait. */
	int (*graph_time)(struct device_graph *graph, double *us);
	const struct records_ops *records;
	/* Puts on the stream that the device's clock, in nanoseconds, is stored there: pinned
	 * memory. */
	int (*clock)(uint64_t *ns, void *stream);
	/* Whether all that was put on the stream has ended; and whether memory is a device's. */
	int (*stream_idle)(void *stream, bool *idle);
	int (*on_device)(const void *memory, bool *is);
};

/* Exported by libtern_bench_cuda.so. */
#define BENCH_DEVICE_OPS_SYMBOL "tern_bench_cuda_ops"

/* Loads it at the first call. NULL: it is not there, or libtern_cuda.so is not; the cause is in
 * tern_last_error(). */
const struct bench_device_ops *bench_device_ops_load(void);

#endif
