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

/* One rank's buffers for a job. */
struct buffers {
	void *x, *scales, *y, *out;
	int32_t *ids;
	float *weights;
	size_t y_bytes;
};
int buffers_open(struct buffers *buffers, const struct job *job);
void buffers_close(struct buffers *buffers);

/* One verified round on a slot: dispatch and combine, or release. Returns 0 or notes the failure. */
struct round {
	struct rank *rank;
	const struct job *job;
	tern_moe *moe;
	struct reference *reference;
	struct buffers *buffers;
	uint64_t number;
	uint32_t slot;
	struct tern_received received;
};
int round_dispatch_send(struct round *round);
int round_dispatch_recv(struct round *round);
int round_combine_send(struct round *round);
int round_combine_recv(struct round *round);

/* Opens an exchange for the job and runs `rounds` verified rounds. */
int run_rounds(struct rank *rank, const struct job *job, int rounds);

#endif
