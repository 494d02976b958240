/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as threads of a test, so that ThreadSanitizer sees every byte that passes between them. */
#ifndef TERN_TESTS_EXCHANGE_RANKS_H
#define TERN_TESTS_EXCHANGE_RANKS_H

#include "testkit/verify.h"
#include "tern.h"

struct rank {
	tern_group *group;
	int rank, nr_ranks;
	void *ctx;
	char failure[600]; /* "" when all went well */
};

typedef void (*rank_main)(struct rank *rank);

/* Runs body on nr_ranks ranks, each with a group of its own. Returns the first failure's text, or
 * NULL. */
const char *run_ranks(int nr_ranks, rank_main body, void *ctx);

/* The node of a rank, NULL: that of this machine. TERN_TEST_NODES: the ranks on virtual nodes, with
 * the engine between them. "3": in blocks on so many nodes. "aab": each rank by its letter, over
 * again when there are more. */
const char *test_node(int rank, int nr_ranks, char *text, size_t bytes);

/* What a rank offers, NULL: what is offered without a test. TERN_TEST_TRANSPORTS: "shm+ofi shm+ofi
 * ofi", each rank's in its place, over again when there are more ranks. */
const char *test_transport(int rank, char *text, size_t bytes);

/* Notes a failure of this rank unless it has one; printf-like. Returns -1. */
int rank_fails(struct rank *rank, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* One rank's buffers for a job, with room for rows_apart bytes between rows. */
struct buffers {
	void *x, *scales, *y, *out, *into, *into_scales;
	int32_t *ids;
	int64_t *wide_ids;
	float *weights, *combine_weights;
	float *floats, *out_floats; /* where combines take them along */
	int64_t *wide_received;     /* what is wanted beside received rows */
	uint32_t *expert_counts;
	uint64_t *waited_ns;
	uint64_t *expert_totals, *totals; /* the latter as they should be */
	uint32_t *into_counts;
	uint64_t *into_offsets;
	void *gemm_scales;
	size_t y_bytes, floats_bytes, rows_apart;
};
int buffers_open(struct buffers *buffers, const struct job *job, size_t rows_apart);
void buffers_close(struct buffers *buffers);

/* How a round passes its arguments; all zero is the plain way. */
struct manner {
	uint32_t rows_apart; /* bytes between rows, a multiple of 16 */
	bool wide_ids;       /* int64 ids */
	bool into;           /* received into the caller's buffers; low latency only */
	bool joined;         /* tern_dispatch and tern_combine instead of the halves */
	bool stream;         /* rows stored past the caches, as large rounds are */
	bool release;        /* tern_release instead of combine */
};

/* One verified round on a slot: dispatch and combine, or release. Calls that time out are repeated
 * while TERN_ERR_TIMEOUT is what wait_ms = 0 is expected to give (`polls`). Each returns 0 or notes
 * the failure. */
struct round {
	struct rank *rank;
	const struct job *job;
	tern_moe *moe;
	struct reference *reference;
	struct buffers *buffers;
	struct manner manner;
	bool polls;
	bool shared; /* moe belongs to another round */
	uint64_t number;
	uint64_t plan; /* 0: none; else routes are those of round `routes`, and x and y of
			  `number` */
	uint64_t routes;
	bool replays; /* the plan is combined, without a dispatch */
	enum weighting weighting;
	uint32_t slot;
	int rc; /* what the last call that failed returned */
	struct tern_received received;
};

/* Everything a round needs, for one exchange; opens the exchange. round_close also after a failure.
 */
int round_open(
	struct round *round, struct rank *rank, const struct job *job, const struct manner *manner);
void round_close(struct round *round);
/* A round of the same exchange, for another slot, with buffers of its own. */
int round_open_beside(struct round *round, const struct round *owner, uint32_t slot);

int round_place(struct round *round);    /* experts go where the round wants them */
int round_try_send(struct round *round); /* what tern_dispatch_send returned; notes nothing */
int round_dispatch_send(struct round *round);
int round_dispatch_recv(struct round *round);
int round_combine_send(struct round *round);
int round_combine_recv(struct round *round);
int round_release(struct round *round);
/* Both halves in one call. */
int round_dispatch(struct round *round);
int round_combine(struct round *round);

/* Fills the round's buffers and sets the arguments, without a call: for tests that change
 * something. */
void round_arguments(struct round *round, struct tern_dispatch *args);
/* Likewise for the results of the received rows. */
int round_results(struct round *round, struct tern_combine *args);
/* Whether received is what the round should bring. */
int round_check_received(struct round *round);
int round_check_combined(struct round *round);

/* All halves, as the manner says. */
int run_round(struct round *round, uint64_t number);

/* Opens an exchange for the job and runs `rounds` verified rounds, over all slots in turn. */
int run_rounds(struct rank *rank, const struct job *job, int rounds);
int run_rounds_with(
	struct rank *rank, const struct job *job, int rounds, const struct manner *manner);

/* Rounds in flight on all slots at once, in an order drawn from a seed: the same on all ranks, as
 * the contract asks. Some rounds are released; with a capacity, those that must fail with
 * TERN_ERR_CAPACITY are known from the reference, and do. */
struct flow {
	const struct job *job;
	struct manner manner; /* `joined` and `release` are ignored */
	int rounds;
	uint64_t seed;
	uint32_t release_in; /* one round in so many is released; 0: none */
	int sleeper;         /* this rank sleeps a little now and then; -1: none */
	int nr_over;         /* out: rounds over capacity, on rank 0 */
};
int run_flow(struct rank *rank, struct flow *flow);

/* Waits for all ranks of the group. */
int ranks_meet(struct rank *rank);

/* full, divided by TERN_TEST_DIVISOR of the environment (sanitizers are slow), at least 1. */
int scaled(int full);

#endif
