/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds of one case on a device, through the public calls: verified ones, with fresh inputs each,
 * by graph replay and without; and timed ones. */
#ifndef TERN_TESTKIT_DEVICE_ROUNDS_H
#define TERN_TESTKIT_DEVICE_ROUNDS_H

#include "testkit/measure.h"
#include "testkit/verify.h"
#include "testkit/device/ops.h"

#define DEVICE_ROUNDS_SLOTS 16

/* One slot's stream, buffers on the device, and graphs. */
struct device_lane {
	void *stream;
	uint8_t *x, *scales, *ids, *weights, *nr_tokens, *y, *out, *into_x, *into_scales;
	uint8_t *combine_weights, *floats, *out_floats; /* that combines take along */
	uint8_t *wide_received, *expert_counts, *expert_totals, *gemm_scales, *waited; /* beside
											  rows */
	uint8_t *into_counts, *into_offsets; /* for calls, where rounds want such things */
	uint64_t totals[256];                /* what expert_totals should be */
	struct tern_received received;       /* of the round under way, on the device */
	struct tern_received captured;       /* of rounds by graph */
	struct tern_received kept;           /* copies of these, made by a graph */
	uint8_t *kept_memory;
	struct device_graph *dispatch, *combine, *pair;
	uint64_t plan; /* 0: none; else routes are those of round `routes` */
	uint64_t routes;
	bool replays; /* the plan is combined, without a dispatch */
};

struct device_rounds {
	const struct bench_device_ops *ops;
	tern_group *group;
	tern_moe *moe, *barrier;
	const struct job *job;
	struct reference *reference;
	uint32_t rank, nr_barriers;
	bool cold; /* caches are flushed before each timed round, as what runs between two layers
		      does; set before device_rounds_prepare */
	void *flushed;
	uint64_t rest_ns;      /* between all ranks' coming and each timed round */
	uint32_t graph_tokens; /* timed graphs are captured for so many, and how many are sent
				  stands on the device; 0: captured for those that are sent */
	uint64_t positions;
	uint8_t *memory, *host; /* host: pinned, for one slot's inputs or results */
	uint64_t host_bytes, host_used;
	struct device_lane lanes[DEVICE_ROUNDS_SLOTS];
	struct difference difference;
};

/* Makes the device of that number current for this thread, in both libraries: rank r gets device r
 * % devices. */
int device_choose(const struct bench_device_ops *ops, uint32_t rank);

/* Collective; job->config.device is TERN_DEVICE_CUDA. 0 or a negative enum tern_error with
 * tern_last_error. */
int device_rounds_open(struct device_rounds *rounds, tern_group *group, const struct job *job,
	const struct bench_device_ops *ops);
void device_rounds_close(struct device_rounds *rounds);

/* nr_slots rounds in flight at once, from number `round` on, fresh inputs, poisoned buffers, every
 * element compared: differences go to rounds->difference. How calls are made (graphs, halves apart,
 * strides, whose buffers) changes from round to round. */
int device_rounds_verify(struct device_rounds *rounds, uint64_t round);

/* The same in steps: what a step waits for, all ranks' steps before it have put on their streams.
 * So one thread can do each step for all ranks in turn. */
#define DEVICE_ROUNDS_STEPS 3
int device_rounds_step(struct device_rounds *rounds, uint32_t step, uint64_t round);

/* Whether that round is released: nothing comes home. The same on all ranks. And whether this rank
 * replays graphs in it. */
bool device_rounds_release(const struct device_rounds *rounds, uint64_t round);
bool device_rounds_replay(const struct device_rounds *rounds, uint64_t round);

/* Captures graphs on slot 0, with the inputs of one round; then times[...][i] receives each
 * measure's time of one replay by the device's clock. All ranks' devices start together. */
int device_rounds_prepare(struct device_rounds *rounds);
int device_rounds_time(struct device_rounds *rounds, struct times *times, uint32_t i);

/* For who is compared with: */
#define DEVICE_TIMED_ROUND (UINT64_C(1) << 40) /* whose inputs are timed */
/* That round's inputs, rows without gaps and ids of 32 bits, into a slot's lane. */
int device_rounds_upload(struct device_rounds *rounds, uint32_t slot, uint64_t round);
/* On lane 0's stream: time for the hosts to queue what follows, and then a barrier of all devices.
 */
int device_rounds_start(struct device_rounds *rounds);
/* Collective: 0, or this rank's failure, or that of another. */
int device_rounds_agree(const struct device_rounds *rounds, int rc);

#endif
