/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_LAB_LL_H
#define TERN_LAB_LL_H

#include "gpus.h"

/* Rounds with fresh routing and inputs, every element compared. Returns how many ranks found a difference. */
uint64_t verify_case(struct lab *lab, struct job *job, const struct lab_way *way, uint64_t rounds);

/* Rounds back to back, without the host between them and with random delays. Returns the number of wrong elements. */
uint64_t storm_case(struct lab *lab, struct job *job, const struct lab_way *way, uint64_t rounds);

/* Microseconds on the slowest GPU. */
struct lab_times {
	double dispatch, dispatch_p99, combine, combine_p99, pair, pair_p99;
	double chained; /* of a pair, in a graph of several */
	long long clocks[LL_TRACE];
};

/* Replays graphs. pairs: also both halves as one. */
void time_case(struct lab *lab, const struct lab_way *way, uint32_t rounds, bool pairs, struct lab_times *times);
/* The same for kernels that only start and end, and for those that only store the bytes. */
void time_floors(struct lab *lab, uint32_t rounds, struct lab_times *empty, struct lab_times *copy);

#endif
