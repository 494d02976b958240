/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as threads of a test, so that ThreadSanitizer sees every byte that passes between them. */
#ifndef TERN_TEST_RANKS_H
#define TERN_TEST_RANKS_H

#include "bench/verify.h"
#include "tern.h"

struct rank {
	tern_group *group;
	int rank, nr_ranks;
	void *ctx;
	char failure[600]; /* "" when all went well */
};

typedef void (*rank_main)(struct rank *rank);

/* Runs body on nr_ranks ranks, each with a group of its own. Returns the first failure's text, or NULL. */
const char *run_ranks(int nr_ranks, rank_main body, void *ctx);

/* Notes a failure of this rank unless it has one; printf-like. Returns -1. */
int rank_fails(struct rank *rank, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* One rank's buffers for a job, with room for rows_apart bytes between rows. */
struct buffers {
	void *x, *scales, *y, *out, *into, *into_scales;
	int32_t *ids;
	int64_t *wide_ids;
	float *weights;
	size_t y_bytes, rows_apart;
};
int buffers_open(struct buffers *buffers, const struct job *job, size_t rows_apart);
void buffers_close(struct buffers *buffers);

/* How a round passes its arguments; all zero is the plain way. */
struct manner {
	uint32_t rows_apart; /* bytes between rows, a multiple of 16 */
	bool wide_ids;	     /* int64 ids */
	bool into;	     /* received into the caller's buffers; low latency only */
	bool joined;	     /* tern_dispatch and tern_combine instead of the halves */
	bool release;	     /* tern_release instead of combine */
};

/* One verified round on a slot: dispatch and combine, or release. Calls that time out are repeated while TERN_ERR_TIMEOUT is what
 * wait_ms = 0 is expected to give (`polls`). Each returns 0 or notes the failure. */
struct round {
	struct rank *rank;
	const struct job *job;
	tern_moe *moe;
	struct reference *reference;
	struct buffers *buffers;
	struct manner manner;
	bool polls;
	uint64_t number;
	uint32_t slot;
	struct tern_received received;
};

/* Everything a round needs, for one exchange; opens the exchange. round_close also after a failure. */
int round_open(struct round *round, struct rank *rank, const struct job *job, const struct manner *manner);
void round_close(struct round *round);

int round_dispatch_send(struct round *round);
int round_dispatch_recv(struct round *round);
int round_combine_send(struct round *round);
int round_combine_recv(struct round *round);
int round_release(struct round *round);

/* Fills the round's buffers and sets the arguments, without a call: for tests that change something. */
void round_arguments(struct round *round, struct tern_dispatch *args);
/* Whether received is what the round should bring. */
int round_check_received(struct round *round);

/* All halves, as the manner says. */
int run_round(struct round *round, uint64_t number);

/* Opens an exchange for the job and runs `rounds` verified rounds, over all slots in turn. */
int run_rounds(struct rank *rank, const struct job *job, int rounds);
int run_rounds_with(struct rank *rank, const struct job *job, int rounds, const struct manner *manner);

/* full, divided by TERN_TEST_DIVISOR of the environment (sanitizers are slow), at least 1. */
int scaled(int full);

#endif
