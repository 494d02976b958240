/* SPDX-License-Identifier: Apache-2.0 */
/* Who moves time. Without a scheduler (NULL) that is the kernel: waits spin, yield and sleep on the
 * real clock, and an engine has a thread. A scheduler runs many ranks in one thread and in a time
 * that it counts; waits call it in place of sleeping, and it steps the engines. Nothing else of the
 * library knows which of the two it is. */
#ifndef TERN_BASE_SCHEDULER_H
#define TERN_BASE_SCHEDULER_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

struct transport_ops;
struct tern_engine;
struct tern_engine_config;

/* Of one rank. */
struct scheduler {
	void *ctx;
	uint64_t (*now)(void *ctx);
	/* A wait has found nothing. Lets the others go on; returns when there may be news, at
	 * until_ns at the latest.
	 */
	void (*idle)(void *ctx, uint64_t until_ns);

	/* For groups, whose ranks run inside idle: group_create_scheduled refuses a scheduler that
	 * lacks one of the first three. NULL where a scheduler has engines alone, and steps them.
	 */
	void (*wake)(void *ctx, uint32_t rank); /* something was stored for a rank that is mapped */
	bool (*has_died)(void *ctx, uint32_t rank); /* of a rank that is mapped: in place of its
						       process's end */
	void (*engine)(void *ctx, struct tern_engine *engine, bool runs); /* step it from now on, or
									     no more */
	void (*configure)(void *ctx, struct tern_engine_config *config);  /* the group's engine; may
									     be NULL */
	const struct transport_ops *transport;                            /* of all engines */
	void *network; /* transport_options.network */
};

static inline uint64_t scheduler_now(const struct scheduler *scheduler)
{
	return scheduler ? scheduler->now(scheduler->ctx) : clock_ns();
}

/* Between two looks of a wait that does not sleep. */
static inline void scheduler_yield(const struct scheduler *scheduler, uint64_t until_ns)
{
	if (scheduler)
		scheduler->idle(scheduler->ctx, until_ns);
	else
		sched_yield();
}

static inline void scheduler_wake(const struct scheduler *scheduler, uint32_t rank)
{
	if (scheduler)
		scheduler->wake(scheduler->ctx, rank);
}

#endif
