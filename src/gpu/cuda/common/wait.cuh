/* SPDX-License-Identifier: Apache-2.0 */
/* Bounded waiting. A wait that expires, or is in vain, stores a report and gives up; the kernel
 * then returns, and those after it return at once. */
#ifndef TERN_GPU_CUDA_COMMON_WAIT_CUH
#define TERN_GPU_CUDA_COMMON_WAIT_CUH

#include "gpu/cuda/common/kernels.h"
#include "gpu/cuda/common/warp.cuh"

#define POLLS_PER_LOOK 256 /* at the clock, and at who has left */
/* In start_ns: */
#define HAD_LEFT 1ull /* at the last look the peer had left */
#define GIVES_UP 2ull
#define NO_TIME (HAD_LEFT | GIVES_UP)

struct patience {
	uint32_t polls;
	uint64_t start_ns; /* 0 before the first look */
};

/* Has that rank, of this node, left the exchange or given it up? Acquire: pairs with
 * leave_status_publish, so that what it had stored before is there for who sees it gone. Over PCIe.
 */
__device__ __forceinline__ bool has_left(const struct gpu_exchange *e, uint32_t peer)
{
	return e->leave_statuses && word_acquire(e->leave_statuses + peer * 8 + 4);
}

/* Whether this look goes over PCIe. All of a kernel's warps begin to look at about the same time,
 * and 2000 trips take 0.4 ms, for which what has come meanwhile is not seen: then the peers wait so
 * long in the next half, and look around, too. So about TRIPS_PER_LOOK do, whose turn the clock
 * says; one that finds a peer gone tells all others by `failed`. */
#define TRIPS_PER_LOOK 32

static __device__ __forceinline__ bool is_far_look(uint64_t now)
{
	uint32_t nr_warps = gridDim.x * blockDim.x / LANES,
		 warp = (blockIdx.x * blockDim.x + threadIdx.x) / LANES;

	/* Scattered, as the clock's steps may be as long as many of its units. */
	uint32_t turn = ((uint32_t)(now >> 5) * 2654435761u >> 16) + warp;

	return nr_warps <= TRIPS_PER_LOOK || turn % (nr_warps / TRIPS_PER_LOOK) == 0;
}

/* A wait's look at all but what it waits for, out of the way of those who wait for nothing. It
 * gives up when it has lasted too long, or is in vain, as another warp has given up, or the peer
 * had left at this look and at the one before that went so far: between them what it waits for was
 * looked at once more, since a peer may leave when it has sent all that it owes. */
static __device__ __noinline__ uint64_t look_around(
	uint64_t start_ns, const struct gpu_exchange *e, uint32_t peer, uint64_t limit_ns, bool far)
{
	uint64_t now = now_ns(), had_left = start_ns & HAD_LEFT;
	bool in_vain = false;

	start_ns &= ~HAD_LEFT;
	if (!start_ns)
		start_ns = now & ~NO_TIME;
	if (far || is_far_look(now)) {
		bool left = has_left(e, peer);

		in_vain = left && had_left;
		had_left = left ? HAD_LEFT : 0;
	}
	if (in_vain || word_load(&e->state->failed) || now - start_ns >= limit_ns)
		return start_ns | GIVES_UP;
	return start_ns | had_left;
}

/* By one lane. far: few wait here, so each of their looks may go so far; else one by itself might
 * learn of a death some 20 ms late. */
__device__ __forceinline__ bool may_wait(struct patience *p, const struct gpu_exchange *e,
	uint32_t peer, uint64_t limit_ns, bool far = false)
{
	if (++p->polls % POLLS_PER_LOOK)
		return true;
	p->start_ns = look_around(p->start_ns, e, peer, limit_ns, far);
	return !(p->start_ns & GIVES_UP);
}

/* One bound for all that a lane waits for, one after the other. That one peer has left says nothing
 * of the next. */
__device__ __forceinline__ void wait_for_another(struct patience *p)
{
	p->start_ns &= ~HAD_LEFT;
}

/* By a warp, whose lanes may wait for several peers: all of it goes on, or none. A lane that waits
 * for nobody names this rank. */
__device__ __forceinline__ bool warp_may_wait(
	struct patience *p, const struct gpu_exchange *e, uint32_t peer, uint64_t limit_ns)
{
	if (++p->polls % POLLS_PER_LOOK)
		return true;
	p->start_ns = look_around(p->start_ns, e, peer, limit_ns, false);
	return !__any_sync(ALL_LANES, p->start_ns & GIVES_UP);
}

/* By a warp that has given up: true for one of the lanes that miss something, whose peer has left
 * if any has. */
static __device__ __noinline__ bool is_to_report(
	const struct gpu_exchange *e, bool missing, uint32_t peer)
{
	uint32_t all = __ballot_sync(ALL_LANES, missing);
	uint32_t in_vain = __ballot_sync(ALL_LANES, missing && has_left(e, peer));

	return lane_id() == __ffs(in_vain ? in_vain : all) - 1;
}

/* state: as a kernel of a dispatch has read it. What it fails by itself does not stop it from
 * sending what its peers need to find the same, whichever of its blocks begins when. */
static __device__ __forceinline__ bool has_failed_before(
	const struct gpu_exchange *e, uint32_t failed, uint32_t epoch)
{
	if (!failed)
		return false;
	__threadfence(); /* of open_report's */
	return word_load(&e->state->failed_in) != epoch;
}

/* The first report counts: NULL for others. What it is about is told before its reason, by
 * close_report. */
__device__ __forceinline__ struct gpu_report *open_report(
	const struct gpu_exchange *e, uint32_t peer, uint32_t token)
{
	struct gpu_report *r = e->report;

	if (word_load(&e->state->failed))
		return NULL;
	word_store(&e->state->failed_in, word_load(&e->state->epoch_dispatch));
	__threadfence(); /* for has_failed_before */
	if (atomicExch(&e->state->failed, 1u))
		return NULL;
	r->rank = e->rank;
	r->peer = peer;
	r->token = token;
	return r;
}

__device__ __forceinline__ void close_report(struct gpu_report *r, uint32_t reason)
{
	word_release(&r->reason, reason);
}

/* Called by one lane. */
static __device__ __noinline__ void report_wait(const struct gpu_exchange *e, uint32_t reason,
	uint32_t peer, uint32_t token, uint32_t expected, uint32_t seen, uint64_t start_ns)
{
	struct gpu_report *r = open_report(e, peer, token);

	if (!r)
		return;
	r->epoch_expected = expected;
	r->epoch_seen = seen;
	r->waited_ns = now_ns() - (start_ns & ~NO_TIME);
	close_report(r, reason);
}

/* Called by one lane or by several. */
static __device__ __noinline__ void report_broken(const struct gpu_exchange *e,
	enum gpu_wait reason, uint32_t peer, uint32_t token, uint32_t value, uint32_t most,
	uint32_t epoch)
{
	struct gpu_report *r = open_report(e, peer, token);

	if (!r)
		return;
	r->value = value;
	r->most = most;
	r->epoch_expected = r->epoch_seen = epoch;
	close_report(r, reason);
}

/* Called by one lane. The first input_error stays until the host has read it. */
static __device__ __noinline__ void complain(const struct gpu_exchange *e, enum gpu_bad_id reason,
	uint32_t token, uint32_t k, int64_t id, uint32_t epoch)
{
	struct gpu_input_error *c = e->input_error;

	if (atomicExch(&e->state->complaining, 1u))
		return;
	__threadfence();
	if (!word_load(&c->reason)) {
		c->token = token;
		c->k = k;
		c->id = id;
		c->epoch = epoch;
		word_release(&c->reason, reason);
	}
	__threadfence();
	atomicExch(&e->state->complaining, 0u);
}

/* When each block comes to a place: in tern-lab-trace alone. By a warp. */
__device__ __forceinline__ void trace_mark(const struct gpu_exchange *e, uint32_t which)
{
#ifdef TERN_TRACE
	if (e->trace && threadIdx.x % LANES == 0 && blockIdx.x < GPU_TRACE_BLOCKS)
		e->trace[blockIdx.x * GPU_TRACE_MARKS + which] = now_ns();
#endif
}

#endif
