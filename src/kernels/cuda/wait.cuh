/* SPDX-License-Identifier: Apache-2.0 */
/* Bounded waiting. A wait that expires stores a report and gives up; the kernel then returns, and those after it return at once. */
#ifndef TERN_CUDA_WAIT_CUH
#define TERN_CUDA_WAIT_CUH

#include "kernels.h"
#include "memory.cuh"

#define POLLS_PER_LOOK 256 /* at the clock */

struct patience {
	uint32_t polls;
	uint64_t start_ns;
};

/* False when the wait has lasted too long. */
__device__ __forceinline__ bool may_wait(struct patience *p, uint64_t limit_ns)
{
	if (++p->polls % POLLS_PER_LOOK)
		return true;
	if (!p->start_ns)
		p->start_ns = now_ns();
	return now_ns() - p->start_ns < limit_ns;
}

/* The first report counts: NULL for others. What it is about is told before its reason, by close_report. */
__device__ __forceinline__ struct ll_report *open_report(const struct ll_exchange *e, uint32_t peer, uint32_t token)
{
	struct ll_report *r = e->report;

	if (atomicExch(&e->state->failed, 1u))
		return NULL;
	r->rank = e->rank;
	r->peer = peer;
	r->token = token;
	return r;
}

__device__ __forceinline__ void close_report(struct ll_report *r, uint32_t reason)
{
	__threadfence_system();
	*(volatile uint32_t *)&r->reason = reason;
}

/* Called by one lane. */
static __device__ __noinline__ void report_wait(const struct ll_exchange *e, uint32_t reason, uint32_t peer, uint32_t token, uint32_t expected,
	uint32_t seen, uint64_t start_ns)
{
	struct ll_report *r = open_report(e, peer, token);

	if (!r)
		return;
	r->epoch_expected = expected;
	r->epoch_seen = seen;
	r->waited_ns = now_ns() - start_ns;
	close_report(r, reason);
}

/* Called by one lane or by several. */
static __device__ __noinline__ void report_broken(const struct ll_exchange *e, enum ll_wait reason, uint32_t peer, uint32_t token, uint32_t value, uint32_t most,
	uint32_t epoch)
{
	struct ll_report *r = open_report(e, peer, token);

	if (!r)
		return;
	r->value = value;
	r->most = most;
	r->epoch_expected = r->epoch_seen = epoch;
	close_report(r, reason);
}

/* Called by one lane. The first complaint stays until the host has read it. */
static __device__ __noinline__ void complain(const struct ll_exchange *e, enum ll_bad_id reason, uint32_t token, uint32_t k, int64_t id, uint32_t epoch)
{
	struct ll_complaint *c = e->complaint;

	if (atomicExch(&e->state->complaining, 1u))
		return;
	if (!*(volatile uint32_t *)&c->reason) {
		c->token = token;
		c->k = k;
		c->id = id;
		c->epoch = epoch;
		__threadfence_system();
		*(volatile uint32_t *)&c->reason = reason;
	}
	__threadfence();
	atomicExch(&e->state->complaining, 0u);
}

/* When each block comes to a place, for the lab. By a warp. */
__device__ __forceinline__ void stamp(const struct ll_exchange *e, uint32_t which)
{
	if (e->trace && threadIdx.x % LANES == 0)
		e->trace[blockIdx.x * LL_TRACE + which] = now_ns();
}

#endif
