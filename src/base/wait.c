/* SPDX-License-Identifier: Apache-2.0 */
#include "base/wait.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- for what an event count tells ----------------------------------------------------------- */

/* A sleep is cut into slices, to look after peers that died: one that dies between its word and its
 * ring leaves the sleeper asleep. Between live ranks no wake-up depends on it. */
#define FIRST_SLICE_NS 2000000u
#define LONGEST_SLICE_NS 50000000u

void arrival_deliver(struct arrival *arrival, struct event_count *events, uint64_t word)
{
	arrival_publish(arrival, word);
	if (event_count_advance(events))
		syscall(SYS_futex, &events->count, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static bool wait_awake(const struct wait_policy *p, const struct awaited *a)
{
	if (p->scheduler)
		return a->is_complete(a->ctx); /* nobody runs while this rank does */
	for (int i = 0; i < p->spin_rounds; i++) {
		if (a->is_complete(a->ctx))
			return true;
		spin_pause();
	}
	for (int i = 0; i < p->yield_rounds; i++) {
		if (a->is_complete(a->ctx))
			return true;
		sched_yield();
	}
	return a->is_complete(a->ctx);
}

static void sleep_slice(const struct scheduler *scheduler, const struct awaited *a, uint64_t now_ns,
	uint64_t slice_ns)
{
	struct timespec timeout = {.tv_sec = (time_t)(slice_ns / 1000000000u),
		.tv_nsec = (long)(slice_ns % 1000000000u)};
	uint32_t count = event_count_listen(a->events, a->wake_at);

	if (scheduler)
		scheduler->idle(scheduler->ctx, now_ns + slice_ns);
	else if (!a->is_complete(a->ctx))
		syscall(SYS_futex, &a->events->count, FUTEX_WAIT, count, &timeout, NULL, 0);
	event_count_leave(a->events);
}

static int wait_asleep(const struct wait_policy *policy, const struct awaited *a)
{
	const struct scheduler *scheduler = policy->scheduler;
	uint64_t longest = policy->longest_slice_ns ? policy->longest_slice_ns : LONGEST_SLICE_NS,
		 slice = FIRST_SLICE_NS < longest ? FIRST_SLICE_NS : longest;

	while (!a->is_complete(a->ctx)) {
		uint64_t now = scheduler_now(scheduler), waited = now - a->start_ns;
		int said = a->look(a->ctx);

		if (said)
			return said;
		if (waited >= a->limit_ns)
			return a->is_complete(a->ctx) ? WAIT_COMPLETE : WAIT_EXPIRED;
		sleep_slice(scheduler, a, now,
			slice < a->limit_ns - waited ? slice : a->limit_ns - waited);
		slice = slice * 2 < longest ? slice * 2 : longest;
	}
	return WAIT_COMPLETE;
}

int wait_for_arrivals(const struct wait_policy *policy, const struct awaited *awaited)
{
	if (awaited->limit_ns && wait_awake(policy, awaited))
		return WAIT_COMPLETE;
	return wait_asleep(policy, awaited);
}

/* ---- for what none tells --------------------------------------------------------------------- */

#define FIRST_NAP_NS 20000u
#define LONGEST_NAP_NS 200000u

int wait_until(
	const struct wait_policy *policy, uint64_t limit_ns, int (*look)(void *ctx), void *ctx)
{
	const struct scheduler *scheduler = policy->scheduler;
	uint64_t start_ns = scheduler_now(scheduler), nap_ns = FIRST_NAP_NS;
	int said = look(ctx), rounds = 0;

	while (!said && scheduler_now(scheduler) - start_ns < limit_ns) {
		struct timespec nap = {.tv_nsec = (long)nap_ns};

		if (scheduler || rounds++ < policy->yield_rounds)
			scheduler_yield(scheduler, scheduler_now(scheduler) + nap_ns);
		else
			nanosleep(&nap, NULL);
		if (scheduler || rounds > policy->yield_rounds)
			nap_ns = nap_ns * 2 < LONGEST_NAP_NS ? nap_ns * 2 : LONGEST_NAP_NS;
		said = look(ctx);
	}
	return said;
}
