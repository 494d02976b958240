/* SPDX-License-Identifier: Apache-2.0 */
/* Raw libfabric: what a round of an exchange sends over the network, sent again with fi_writedata
 * and nothing else. One write to each peer and half, as long as all that the exchange posted to it
 * in that half, bytes for bytes; then the completions of one's own writes and the immediates of the
 * others' are awaited. No engine, no proxy, no packing, no sums, no order of halves beyond that.
 * The endpoint, its provider and its device are opened like the engine's.
 *
 *   open ── mark ─┬─ (the exchange's half) ── learn ─┬── prepare ── begin ── half, half ── begin ... check ── close
 *                 └──────────────────────────────────┘
 *
 * All calls are collective, and return 0 or a negative code with tern_last_error. */
#ifndef TERN_BENCH_RAW_RAW_H
#define TERN_BENCH_RAW_RAW_H

#include "tern.h"

enum raw_half {
	RAW_DISPATCH,
	RAW_COMBINE,
	NR_RAW_HALVES
};

struct raw;

/* TERN_ERR_UNSUPPORTED where the group has no engine, or one that runs over anything but one
 * network of libfabric. */
int raw_open(struct raw **raw, tern_group *group, uint32_t nr_sets);
void raw_close(struct raw *raw);

/* Learning: all that the exchange posts between mark and learn is what this half of this set sends
 * from then on. */
int raw_mark(struct raw *raw);
int raw_learn(struct raw *raw, uint32_t set, enum raw_half half);

/* After the last half was learnt. */
int raw_prepare(struct raw *raw);

/* Before each round: looks at what the last one brought, marks what this one sends, and is a
 * barrier. */
int raw_begin(struct raw *raw, uint32_t set);
int raw_barrier(struct raw *raw);
int raw_run(struct raw *raw, enum raw_half half);

/* Sends every set once more into poisoned memory and compares every byte. *nr_wrong: writes that
 * did not arrive as they were sent, those that raw_begin has found among them. */
int raw_check(struct raw *raw, uint64_t *nr_wrong);

/* What this rank sends over the network in a round, on average over the sets. */
double raw_bytes(const struct raw *raw);

#endif
