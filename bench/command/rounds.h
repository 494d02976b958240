/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the rounds of one case on this rank: verified ones, with fresh inputs each, and timed ones.
 */
#ifndef TERN_BENCH_COMMAND_ROUNDS_H
#define TERN_BENCH_COMMAND_ROUNDS_H

#include "testkit/measure.h"
#include "testkit/verify.h"

#define MOST_SLOTS 16
#define MOST_SETS 4

/* Inputs and outputs of a timed round; a few sets of them take turns. */
struct round_set {
	uint64_t round;
	uint32_t nr_tokens;
	int32_t *ids;
	float *weights;
	void *y;
	void *out;
	int32_t *logical; /* where its experts are */
	bool timed;       /* out holds results */
};

struct rounds {
	tern_group *group;
	tern_moe *moe;
	tern_moe *barrier; /* a small exchange without tokens: a round of it is a barrier */
	struct reference *reference;
	const struct job *job;
	uint32_t rank;
	uint32_t version; /* of the placement */
	uint32_t nr_sets;
	/* Buffers for the worst case; the kernel gives memory only for what is touched. */
	uint64_t positions; /* most row positions received */
	char *x, *scales, *y, *out, *into_x, *into_scales;
	void *ids;
	float *weights;
	struct round_set sets[MOST_SETS];
	struct tern_received received[MOST_SLOTS];
	uint32_t jitter_us;           /* longest sleep before each half of a verified round */
	struct difference difference; /* adds up over all rounds */
};

/* Collective. job is open; a mode of TERN_AUTO becomes what was chosen. 0, a negative enum
 * tern_error with tern_last_error, or -ENOMEM's stand-in TERN_ERR_NOMEM. */
int rounds_open(struct rounds *rounds, tern_group *group, struct job *job);
void rounds_close(struct rounds *rounds);

/* nr_slots rounds, interleaved, from number `round` on; differences go to rounds->difference. */
int rounds_verify(struct rounds *rounds, uint64_t round);

/* Makes the sets; then rounds may run: number i takes set i % nr_sets. */
int rounds_prepare(struct rounds *rounds, bool verify);
int rounds_dispatch(struct rounds *rounds, uint32_t i);
int rounds_combine(struct rounds *rounds, uint32_t i);

/* What is timed: begin and barrier are not. */
struct timed_method {
	int (*begin)(void *ctx, uint32_t i); /* a barrier, too */
	int (*barrier)(void *ctx);
	int (*dispatch)(void *ctx, uint32_t i);
	int (*combine)(void *ctx, uint32_t i);
};

/* Tern's own, with the rounds as context. */
extern const struct timed_method exchange_method;

/* One round. times->us[...][i] receives its times; split: dispatch and combine apart, else the
 * pair. */
int rounds_time(
	const struct timed_method *method, void *ctx, struct times *times, uint32_t i, bool split);

/* Compares what the last timed rounds of each set brought home, after the clock has stopped. */
int rounds_check(struct rounds *rounds);

#endif
