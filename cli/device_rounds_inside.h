/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by device_rounds.c (memory, calls, graphs, timed rounds) and device_verify.c (verified rounds). */
#ifndef TERN_CLI_DEVICE_ROUNDS_INSIDE_H
#define TERN_CLI_DEVICE_ROUNDS_INSIDE_H

#include "cli/device_rounds.h"

/* Bytes of a lane's buffers, each with room to see what is written beyond it. */
struct device_sizes {
	uint64_t x, scales, ids, weights, nr_tokens, y, out, into_x, into_scales, all;
};

struct device_sizes device_lane_sizes(const struct device_rounds *r);

/* How a round is made. */
struct manner {
	bool graphs;	     /* replayed; else called */
	bool apart;	     /* halves as calls of their own */
	bool release;	     /* the same on all ranks */
	bool wide_ids, own_buffers;
	uint32_t x_gap, scales_gap, y_gap, out_gap;
};

struct manner device_manner(const struct device_rounds *r, uint64_t round);

/* The calls, on a slot's stream. */
int device_put_dispatch(struct device_rounds *r, uint32_t slot, const struct manner *m, uint32_t nr_tokens);
int device_put_combine(struct device_rounds *r, uint32_t slot, const struct manner *m);

/* An operation's outcome with the driver's cause. */
int device_passed_on(const struct device_rounds *r, int rc);

#endif
