/* SPDX-License-Identifier: Apache-2.0 */
/* Times of rounds, over ranks and rounds. A round is as slow as its slowest rank; percentiles are
 * over rounds. */
#ifndef TERN_TESTKIT_MEASURE_H
#define TERN_TESTKIT_MEASURE_H

#include "tern.h"

enum measure {
	MEASURE_DISPATCH = 0,
	MEASURE_COMBINE = 1,
	MEASURE_PAIR = 2,
	NR_MEASURES = 3
};

struct times {
	uint32_t nr;             /* rounds */
	double *us[NR_MEASURES]; /* [nr] of this rank */
};

struct spread { /* us */
	double p50, p99, min, max, mean;
};

double now_us(void);

int times_create(struct times *times, uint32_t nr); /* 0, or -1: out of memory */
void times_destroy(struct times *times);

/* The value below which that share of the sorted values lies: the nearest one that was measured. */
double percentile(const double *sorted, uint32_t nr, double share);

/* Replaces each value by the slowest rank's, sorts, describes. all[nr_ranks * nr] are the ranks'
 * values, rank by rank. */
void spread_of_slowest(
	const double *all, uint32_t nr_ranks, uint32_t nr, double *scratch, struct spread *spread);

/* Collective over ranks: gathers and describes all measures. 0, or -1: out of memory, or the
 * gathering failed. */
int measure_gather(const struct times *times, int nr_ranks, tern_allgather_fn allgather, void *ctx,
	struct spread spreads[NR_MEASURES]);

#endif
