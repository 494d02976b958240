/* SPDX-License-Identifier: Apache-2.0 */
/* Work beside rounds on a device: how much of an exchange is exposed where a model computes
 * meanwhile. */
#ifndef TERN_BENCH_COMMAND_DEVICE_OVERLAP_H
#define TERN_BENCH_COMMAND_DEVICE_OVERLAP_H

#include "bench/command/args.h"
#include "testkit/device/inside.h"

/* What a row of results times: two graphs, and what the two make together. */
enum overlap_kind {
	OVERLAP_DISPATCH, /* send; receive, when all has arrived; both */
	OVERLAP_COMBINE,  /* likewise */
	OVERLAP_HALVES,   /* two works alone; a round whose halves are split around them, on one
			     stream; the difference */
	OVERLAP_BATCHES,  /* four works alone; the rounds of two micro-batches, on a stream beside
			     them; the difference */
	NR_OVERLAP_KINDS
};

struct overlap_row {
	enum overlap_kind kind;
	uint32_t work_us; /* of each work, about */
};

#define OVERLAP_MOST_ROWS (2 + 2 * ARGS_MAX_OVERLAP)

/* Of the kinds: what is around or beside so many works, of which slots, and whether the third time
 * is the difference of the two; else their sum. */
struct overlap_plan {
	const char *name; /* in JSON */
	uint32_t nr_works, nr_slots;
	bool difference;
};
extern const struct overlap_plan overlap_plans[NR_OVERLAP_KINDS];

/* The rows that the flags ask for, and their number. */
uint32_t overlap_rows(const struct bench_args *args, struct overlap_row rows[OVERLAP_MOST_ROWS]);

struct device_overlap {
	struct device_rounds *rounds; /* NULL: not open */
	struct device_works works;
	void *urgent;            /* the exchange's stream where works are beside */
	double work_us, wave_us; /* what a work takes: by itself, and more for each wave */
	uint32_t nr_rows;
	struct overlap_row rows[OVERLAP_MOST_ROWS];
	struct device_graph *timed[OVERLAP_MOST_ROWS][2];
	struct device_graph *verified[NR_OVERLAP_KINDS];
};

/* Collective, like the others. */
int device_overlap_open(
	struct device_overlap *o, struct device_rounds *rounds, const struct bench_args *args);
void device_overlap_close(struct device_overlap *o);

/* Rounds of the graphs of each kind, from number `round` on: rows where works would read them, and
 * results. Returns how many, or a negative error. */
int device_overlap_verify(struct device_overlap *o, uint64_t round);

/* After device_rounds_prepare, whose inputs it takes; then times[row].us[...][i] receives a row's
 * three times. */
int device_overlap_prepare(struct device_overlap *o);
int device_overlap_time(struct device_overlap *o, struct times *times, uint32_t i);

#endif
