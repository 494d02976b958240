/* SPDX-License-Identifier: Apache-2.0 */
/* A job: the settings of one exchange and the inputs of all ranks, all of it a pure function of the
 * seed. Rows of x, of scales and of y are windows into pools of prepared values, at a place drawn
 * from what the row stands for: so a row costs a hash, and a reference can look at any row of any
 * rank. */
#ifndef TERN_TESTKIT_JOB_H
#define TERN_TESTKIT_JOB_H

#include "tern.h"
#include "testkit/reason.h"
#include "testkit/routing.h"

#include <stdbool.h>

enum job_input {
	INPUT_EXACT = 0,  /* small integers, weights 0.5, 1 and 2: every sum is exact in any order,
			     and fits in BF16 and FP16 */
	INPUT_RANDOM = 1, /* all magnitudes, no NaN or infinity: results depend on the order of
			     sums, as the contract fixes it */
	INPUT_SPECIAL = 2 /* random, with NaN, infinity, -0 and subnormals in rows and weights */
};

struct job {
	/* Set by job_init, then by the caller: */
	struct tern_moe_config config; /* all but placement, which job_open makes */
	uint32_t nr_ranks;
	uint32_t nr_tokens; /* a rank passes in each round, at most config.max_tokens; the most of
			       them when routing.uneven */
	uint64_t seed;
	enum job_input input;
	struct routing routing; /* kind, exponent, path, drop and uneven; job_open sets the rest */
	uint32_t nr_redundant;  /* physical experts above nr_experts, replicas of others */
	bool spread;            /* physical expert p on rank p % R instead of contiguous blocks */
	uint32_t place_in;      /* experts move every so many rounds; 0: never */
	bool wants;             /* rounds ask for all that there is beside received rows */
	bool no_weights;        /* topk_weights is NULL, which stands for all 1 */
	/* Set by job_open: */
	int32_t *logical; /* of each physical expert; config.placement points here */
	int32_t *rank;
	unsigned char *x_pool;
	unsigned char *scale_pool; /* when x_dtype is FP8 */
	unsigned char *y_pool;
};

void job_init(struct job *job);

/* A mode of TERN_AUTO becomes what was chosen. */
void job_take_mode(struct job *job, const tern_moe *moe);

/* Checks what the generators need (the library checks the rest) and makes the pools. job_close
 * frees them, also after a failure. */
int job_open(struct job *job, struct reason *why);
void job_close(struct job *job);

/* Tensor-parallel replicas pass the same tokens: inputs belong to a home, a group of replica_ranks
 * ranks. */
uint32_t job_home(const struct job *job, uint32_t rank);
uint32_t job_nr_homes(const struct job *job);
/* The rank of a home that sends a token. */
uint32_t job_sender(const struct job *job, uint32_t home, uint32_t token);

uint32_t job_nr_blocks(const struct job *job);    /* scales of a row */
size_t job_x_bytes(const struct job *job);        /* a row of x, as passed */
size_t job_x_scales_bytes(const struct job *job); /* a row of scales, as passed: 0 unless x_dtype is
						     FP8 */
size_t job_received_bytes(const struct job *job); /* a row of x, as received */
size_t job_received_scales_bytes(const struct job *job);
size_t job_y_bytes(const struct job *job); /* a row of y and of out */

/* How many tokens rank passes in that round, and their ids[n][K] and weights[n][K]. */
uint32_t job_nr_tokens(const struct job *job, uint64_t round, uint32_t rank);
void job_routes(const struct job *job, uint64_t round, uint32_t rank, int32_t *ids, float *weights);

/* The version of the placement that rounds from there on are of, and where its experts are:
 * logical[nr], physical experts that there are. */
uint32_t job_version(const struct job *job, uint64_t round);
uint32_t job_nr_physical(const struct job *job);
void job_place(const struct job *job, uint32_t version, int32_t *logical);

/* Rows, not aligned, in the job's memory. */
const void *job_x_row(const struct job *job, uint64_t round, uint32_t home, uint32_t token);
const void *job_scales_row(const struct job *job, uint64_t round, uint32_t home, uint32_t token);

/* What an expert makes of a token. In TERN_BY_SOURCE, where the caller has reduced a rank's
 * experts, expert is E + that rank. */
const void *job_y_row(
	const struct job *job, uint64_t round, uint32_t expert, uint32_t home, uint32_t token);

/* What goes with a route's combine: its weight, where that is given there, and its float, which may
 * have any bits. */
float job_combine_weight(
	const struct job *job, uint64_t round, uint32_t home, uint32_t token, uint32_t k);
float job_float(const struct job *job, uint64_t round, uint32_t home, uint32_t token, uint32_t k);

/* Copies all of a rank's rows, strides in bytes. scales may be NULL. */
void job_x(const struct job *job, uint64_t round, uint32_t rank, void *x, size_t stride,
	void *scales, size_t scales_stride);

#endif
