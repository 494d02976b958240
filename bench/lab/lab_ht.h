/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_BENCH_LAB_LAB_HT_H
#define TERN_BENCH_LAB_LAB_HT_H

#include "bench/lab/floor_ht.h"
#include "bench/lab/gpus.h"

#define TOKENS 4096
#define NR(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))

struct ht_shape {
	const char *name;
	uint32_t hidden, experts, topk;
	bool fp8, by_source;
};

/* How it is launched. */
struct ht_way {
	bool early;
	uint32_t blocks, combine_blocks;
	uint32_t dispatch_warps, dispatch_send; /* warps of a block, and how many of them send */
};

/* A rank of the current shape, beside what gpus.h has. */
struct ht_rank {
	struct ht_exchange ht;
	uint8_t *window, *expected_x, *expected_scales, *expected_rows, *expected_out, *sink;
	uint64_t positions, x_bytes, scales_bytes;
	unsigned long long *different; /* pinned */
	uint64_t extent;
	uint64_t *sums;
};

extern struct ht_rank more[LAB_MAX_GPUS];
extern const struct ht_shape *shape;
extern const struct ht_way *way_now;
extern uint64_t remote_rows[LAB_MAX_GPUS][LAB_MAX_GPUS]; /* of tokens that go from one rank to
							    another */

void put_plan(struct lab_rank *rank, const struct ht_way *w);
void put_dispatch(struct lab_rank *rank, const struct ht_way *w);
void put_combine(struct lab_rank *rank, const struct ht_way *w);

enum ht_timed {
	TIME_PLAN, /* before the dispatch: what it leaves in this epoch, the dispatch leaves too */
	TIME_DISPATCH,
	TIME_COMBINE,
	TIME_PAIR,
	NR_TIMED
};

/* Medians of the slowest rank, of way_now. Returns how many waits expired. */
uint64_t time_way(struct lab *lab, double us[NR_TIMED]);

/* The same bytes by the copy engine: [all or 24 SMs][dispatch, combine]. */
void time_bytes(struct lab *lab, double us[2][2]);
void print_floors(struct lab *lab);

#endif
