/* SPDX-License-Identifier: Apache-2.0 */
#include "hows.h"

#include "kernels/cuda/combine_ll.cuh"
#include "kernels/cuda/dispatch_ll.cuh"
#include "kernels/cuda/launch_ll.cuh"

typedef ll_kernel<struct ll_dispatch> dispatch_kernel;
typedef ll_kernel<struct ll_combine> combine_kernel;

/* LL_QUIET costs a trip, which few rows cannot make good: not with one vector. */
template <int X, int ND> static dispatch_kernel choose_of(uint32_t how)
{
	switch (how) {
	case LL_PLAIN:
		return dispatch_ll<LL_LINES, X, ND, LL_PLAIN>;
	case LL_PLAIN | LL_ONCE:
		return dispatch_ll<LL_LINES, X, ND, LL_PLAIN | LL_ONCE>;
	case LL_PLAIN | LL_ONCE | LL_QUIET:
		return ND > 1 ? dispatch_ll<LL_LINES, X, (ND > 1 ? ND : 2), LL_PLAIN | LL_ONCE | LL_QUIET> : NULL;
	case LL_PLAIN | LL_VOTES:
		return ND == 1 ? dispatch_ll<LL_LINES, X, 1, LL_PLAIN | LL_VOTES> : NULL;
	}
	return NULL;
}

template <int X> static dispatch_kernel choose_size(uint32_t how, uint32_t nr_vectors)
{
	return nr_vectors == 1 ? choose_of<X, 1>(how) : nr_vectors == 2 ? choose_of<X, 2>(how) : nr_vectors == 4 ? choose_of<X, 4>(how) : NULL;
}

static bool is_plain(const struct ll_dispatch *d)
{
	const struct ll_exchange *e = &d->exchange;

	return !d->ids_64 && !d->by_source && !d->padded && d->by_alignment.d == 1 && e->placement.per_rank && !e->placement.replica_start &&
	       e->by_replicas.d == 1;
}

static bool are_few(const struct ll_exchange *e)
{
	return e->topk > 1 && !(e->topk & (e->topk - 1)) && ll_plan_lines(LL_LINES, e->max_tokens * e->topk) <= 4;
}

static dispatch_kernel choose(uint32_t how, const struct ll_dispatch *d)
{
	const struct ll_exchange *e = &d->exchange;

	if (e->format != LL_LINES || (how & LL_PLAIN && !is_plain(d)) || (how & LL_VOTES && !are_few(e)))
		return NULL;
	return d->kind == LL_X_BF16   ? choose_size<LL_X_BF16>(how, e->row.nr_vectors)
	       : d->kind == LL_X_COPY ? choose_size<LL_X_COPY>(how, e->row.nr_vectors)
				      : NULL;
}

template <int ND> static combine_kernel choose_of(uint32_t how)
{
	constexpr int QUIET_ND = ND > 1 ? ND : 2;

	if (how == LL_AHEAD)
		return combine_ll<LL_LINES, LL_Y_BF16, ND, LL_AHEAD>;
	return ND == 1			      ? NULL
	       : how == LL_QUIET	      ? combine_ll<LL_LINES, LL_Y_BF16, QUIET_ND, LL_QUIET>
	       : how == (LL_QUIET | LL_AHEAD) ? combine_ll<LL_LINES, LL_Y_BF16, QUIET_ND, LL_QUIET | LL_AHEAD>
					      : NULL;
}

static combine_kernel choose(uint32_t how, const struct ll_combine *c)
{
	const struct ll_exchange *e = &c->exchange;
	uint32_t nr_vectors = e->result.nr_vectors;

	if (e->format != LL_LINES || c->kind != LL_Y_BF16)
		return NULL;
	return nr_vectors == 1 ? choose_of<1>(how) : nr_vectors == 2 ? choose_of<2>(how) : nr_vectors == 4 ? choose_of<4>(how) : NULL;
}

bool lab_dispatch_fits(uint32_t how, const struct ll_dispatch *args)
{
	return !how || choose(how, args);
}

bool lab_combine_fits(uint32_t how, const struct ll_combine *args)
{
	return !how || choose(how, args);
}

cudaError_t lab_dispatch_launch(uint32_t how, const struct ll_dispatch *args, const struct ll_launch *launch, cudaStream_t stream)
{
	return how ? launch_half(choose(how, args), args, launch, dispatch_shared_bytes(args), stream) : ll_dispatch_launch(args, launch, stream);
}

cudaError_t lab_combine_launch(uint32_t how, const struct ll_combine *args, const struct ll_launch *launch, cudaStream_t stream)
{
	return how ? launch_half(choose(how, args), args, launch, 0, stream) : ll_combine_launch(args, launch, stream);
}
