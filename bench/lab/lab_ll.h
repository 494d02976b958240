/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_BENCH_LAB_LAB_LL_H
#define TERN_BENCH_LAB_LAB_LL_H

#include "bench/lab/gpus.h"

struct shape {
	const char *name;
	uint32_t hidden, experts, topk, tokens, max_tokens;
	bool fp8, at_home, padded, pass;
	enum job_input input;
	enum routing_kind routing;
	double drop;
	bool uneven, spread, early, ids_64;
	uint32_t redundant, alignment;
	uint32_t blocks, warps, send;
	uint32_t rounds;
};
void shape_job(const struct shape *s, uint32_t nr_ranks, struct job *job);

/* What is to be fast. */
struct target {
	const char *name;
	uint32_t hidden, experts, topk, tokens;
	bool fp8;
};
#define NR_TARGETS 22
extern const struct target targets[NR_TARGETS];
struct shape target_shape(const struct target *t);

/* Rounds with fresh routing and inputs, every element compared. Returns how many ranks found a
 * difference. */
uint64_t verify_case(struct lab *lab, struct job *job, const struct lab_way *way, uint64_t rounds);

/* Rounds back to back, without the host between them and with random delays. Returns the number of
 * wrong elements. */
uint64_t storm_case(struct lab *lab, struct job *job, const struct lab_way *way, uint64_t rounds);

/* Microseconds on the slowest GPU. */
struct lab_times {
	double dispatch, dispatch_p99, combine, combine_p99, pair, pair_p99;
	double chained; /* of a pair, in a graph of several */
};

/* Replays graphs. pairs: also both halves as one. */
void time_case(struct lab *lab, const struct lab_way *way, uint32_t rounds, bool pairs,
	struct lab_times *times);
/* The same for kernels that only start and end, and for those that only store the bytes. */
void time_floors(struct lab *lab, uint32_t rounds, struct lab_times *empty, struct lab_times *copy);

/* When blocks of a pair come where. */
void print_trace(struct lab *lab, const struct lab_way *way);

/* Of the targets whose bits are set: all kernels and launches side by side; without whole, what the
 * library launches alone. */
int sweep(uint32_t nr_ranks, uint32_t only, bool whole);

#endif
