/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency dispatch: which kernel, and its launch. */
#include "dispatch_ll.cuh"
#include "launch_ll.cuh"

typedef ll_kernel<struct ll_dispatch> dispatch_kernel;

/* PLAIN, which tests for less and is faster: ids of 32 bits, experts in blocks of equal size, nothing replicated, rows
 * one behind the other. */
static bool is_plain(const struct ll_dispatch *d)
{
	const struct ll_exchange *e = &d->exchange;

	return !d->ids_64 && !d->by_source && !d->padded && d->by_alignment.d == 1 && e->placement.per_rank && !e->placement.replica_start &&
	       e->by_replicas.d == 1 && e->nr_ranks <= LANES;
}

template <int X> static dispatch_kernel choose_size(bool plain, uint32_t nr_vectors)
{
	if (nr_vectors == 2)
		return plain ? dispatch_ll<LL_LINES, X, 2, true> : dispatch_ll<LL_LINES, X, 2>;
	if (nr_vectors == 4)
		return plain ? dispatch_ll<LL_LINES, X, 4, true> : dispatch_ll<LL_LINES, X, 4>;
	return NULL;
}

/* Variants that measurements chose (docs/benchmarks.md); the kinds of x that few callers have come in one size, and for
 * all arguments. */
static dispatch_kernel choose_lines(enum ll_x kind, bool plain, uint32_t nr_vectors)
{
	if (kind == LL_X_COPY)
		return choose_size<LL_X_COPY>(plain, nr_vectors);
	if (kind == LL_X_BF16)
		return choose_size<LL_X_BF16>(plain, nr_vectors);
	if (nr_vectors != 2)
		return NULL;
	return kind == LL_X_GIVEN  ? dispatch_ll<LL_LINES, LL_X_GIVEN, 2> : kind == LL_X_FP16 ? dispatch_ll<LL_LINES, LL_X_FP16, 2> : dispatch_ll<LL_LINES, LL_X_FP32, 2>;
}

static dispatch_kernel choose_cells(enum ll_x kind, uint32_t nr_vectors)
{
	if (nr_vectors != (kind == LL_X_COPY ? 3 : 2))
		return NULL;
	switch (kind) {
	case LL_X_COPY:
		return dispatch_ll<LL_CELLS, LL_X_COPY, 3>;
	case LL_X_GIVEN:
		return dispatch_ll<LL_CELLS, LL_X_GIVEN, 2>;
	case LL_X_BF16:
		return dispatch_ll<LL_CELLS, LL_X_BF16, 2>;
	case LL_X_FP16:
		return dispatch_ll<LL_CELLS, LL_X_FP16, 2>;
	case LL_X_FP32:
		return dispatch_ll<LL_CELLS, LL_X_FP32, 2>;
	}
	return NULL;
}

/* NULL: there is none. */
static dispatch_kernel choose(const struct ll_dispatch *d, bool plain)
{
	const struct ll_exchange *e = &d->exchange;

	if (e->far)
		return far_dispatch_kernel(d);
	return e->format == LL_LINES ? choose_lines(d->kind, plain, e->row.nr_vectors) : choose_cells(d->kind, e->row.nr_vectors);
}

cudaError_t ll_dispatch_launch(const struct ll_dispatch *args, const struct ll_launch *launch, cudaStream_t stream)
{
	return launch_half(choose(args, is_plain(args)), args, launch, dispatch_shared_bytes(args), stream);
}

/* Of either kernel: which one it will be is known when there are ids. */
cudaError_t ll_dispatch_most_blocks(const struct ll_dispatch *args, const struct ll_launch *launch, uint32_t *nr_blocks)
{
	uint32_t nr = 0;
	cudaError_t rc = most_blocks(choose(args, false), launch, dispatch_shared_bytes(args), nr_blocks);

	rc = rc ? rc : most_blocks(choose(args, true), launch, dispatch_shared_bytes(args), &nr);
	*nr_blocks = rc ? 0 : min(*nr_blocks, nr);
	return rc;
}
