/* SPDX-License-Identifier: Apache-2.0 */
/* Waits that are bounded and leave the processor to those that are waited for. They know nothing of
 * who these are. */
#ifndef TERN_BASE_WAIT_H
#define TERN_BASE_WAIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/ordering.h"
#include "base/scheduler.h"

struct wait_policy {
	const struct scheduler *scheduler; /* NULL: the kernel */
	int spin_rounds, yield_rounds;     /* before a wait sleeps */
	uint64_t longest_slice_ns;         /* of a sleep between two looks; 0: the usual */
};

/* Stores an arrival word and wakes the owner of the event count, if that completes what it sleeps
 * for. */
void arrival_deliver(struct arrival *arrival, struct event_count *events, uint64_t word);

/* What an event count tells of. */
struct awaited {
	struct event_count *events;
	uint32_t wake_at; /* the count of arrivals that completes it */
	bool (*is_complete)(void *ctx);
	/* Asked before each sleep, for what no arrival tells: not 0 ends the wait. */
	int (*look)(void *ctx);
	void *ctx;
	uint64_t start_ns, limit_ns; /* limit 0: neither spins nor sleeps */
};

enum {
	WAIT_EXPIRED = 0,
	WAIT_COMPLETE = 1
};

/* First by spinning, then asleep on the event count. Or what look said. */
int wait_for_arrivals(const struct wait_policy *policy, const struct awaited *awaited);

/* Asks look(ctx) until it is not 0, for what no event count tells: yields first, then naps. Returns
 * what it said; 0: limit_ns is over. */
int wait_until(
	const struct wait_policy *policy, uint64_t limit_ns, int (*look)(void *ctx), void *ctx);

#endif
