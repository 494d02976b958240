/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by rounds.c (memory, timed rounds), graphs.c (calls and graphs), verify.c (verified
 * rounds) and device_overlap.c (work beside rounds). */
#ifndef TERN_TESTKIT_DEVICE_INSIDE_H
#define TERN_TESTKIT_DEVICE_INSIDE_H

#include "testkit/device/rounds.h"

/* Bytes of a lane's buffers, each with room to see what is written beyond it. */
struct device_sizes {
	uint64_t x, scales, ids, weights, nr_tokens, y, out, into_x, into_scales, combine_weights,
		floats, out_floats, wide_received, expert_counts, expert_totals, gemm_scales,
		into_counts, into_offsets, waited, all;
};

/* Of counts and offsets: of local experts, or of sources. */
uint32_t device_nr_lists(const struct device_rounds *r);

/* Of scales that are wanted column by column. */
uint64_t device_gemm_stride(const struct device_rounds *r);

/* That go with results of so many row positions. */
uint64_t device_nr_floats(const struct device_rounds *r, uint64_t rows);

struct device_sizes device_lane_sizes(const struct device_rounds *r);

/* How a round is made. */
struct device_manner {
	bool graphs;  /* replayed; else called */
	bool apart;   /* halves as calls of their own */
	bool release; /* the same on all ranks */
	bool wide_ids, own_buffers;
	bool no_floats;     /* the same on all ranks, none of which replays */
	bool columns_alone; /* scales go into gemm_scales, and nowhere else */
	uint32_t x_gap, scales_gap, y_gap, out_gap;
	enum weighting weighting; /* the same on all ranks */
};

/* Of its combine. */
enum weighting device_weighting(const struct device_rounds *r, const struct device_manner *m);

struct device_manner device_manner(const struct device_rounds *r, uint64_t round);

/* The round in which the routes of one were made. */
uint64_t device_routes_of(const struct device_lane *lane, uint64_t round);

/* A round in steps, called or by graphs as the manner says: rows are put on the stream; verified,
 * and results put; results verified. A plan that is combined again begins with the second, and
 * extent is of its rows. */
/* Before the round is put. */
int device_place_experts(struct device_rounds *r, uint64_t round);
int device_put_rows(
	struct device_rounds *r, uint32_t slot, uint64_t round, const struct device_manner *m);
int device_verify_rows(struct device_rounds *r, uint32_t slot, uint64_t round, uint64_t *extent);
int device_put_y(struct device_rounds *r, uint32_t slot, uint64_t round, uint64_t extent,
	const struct device_manner *m);
int device_verify_results(
	struct device_rounds *r, uint32_t slot, uint64_t round, const struct device_manner *m);

/* The calls, on a slot's stream. */
int device_put_dispatch(
	struct device_rounds *r, uint32_t slot, const struct device_manner *m, uint32_t nr_tokens);
int device_put_combine(struct device_rounds *r, uint32_t slot, const struct device_manner *m);

/* Graphs hold steps, one after the other: a part of a slot's round, and work. */
enum piece {
	PIECE_NONE,
	PIECE_DISPATCH,
	PIECE_DISPATCH_SEND,
	PIECE_DISPATCH_RECEIVE,
	PIECE_COMBINE,
	PIECE_COMBINE_SEND,
	PIECE_COMBINE_RECEIVE
};

enum work_place {
	WORK_NONE,
	WORK_BEHIND, /* the piece, on the same stream */
	WORK_BESIDE  /* the piece; the next step waits for both */
};

struct step {
	enum piece piece;
	uint32_t slot;
	enum work_place work;
};

/* What steps with work need. */
struct device_works {
	void *stream; /* for work beside pieces */
	void *memory; /* that it reads */
	uint64_t bytes;
	uint32_t nr_waves; /* of each work */
	bool keep; /* received rows are copied, to lane->kept, where a model would begin to read
		      them */
};

/* The graph is for as many tokens as there can be; kernels read how many there are. works: NULL
 * where no step has any. */
int device_capture(struct device_rounds *r, const struct step *steps, uint32_t nr_steps,
	const struct device_works *works, uint32_t nr_tokens, struct device_graph **graph);

/* Before a capture that keeps rows: takes the memory. */
int device_keep_open(struct device_rounds *r, uint32_t slot);

/* A round's inputs; what others write is poisoned, and lane->y holds what the experts make. */
int device_put_inputs(struct device_rounds *r, uint32_t slot, uint64_t round);

/* Rounds with the graph, fresh inputs for each of the first nr_slots slots; what was kept and what
 * came home is compared. */
int device_verify_graph(
	struct device_rounds *r, struct device_graph *graph, uint32_t nr_slots, uint64_t round);

/* An operation's outcome with the scheduler's cause. */
int device_passed_on(const struct device_rounds *r, int rc);

#endif
