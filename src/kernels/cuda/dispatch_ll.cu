/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency dispatch: which kernel, and its launch. */
#include "dispatch_ll.cuh"
#include "launch_ll.cuh"

typedef ll_kernel<struct ll_dispatch> dispatch_kernel;

/* Variants that measurements chose (docs/benchmarks.md); the kinds of x that few callers have come in one size. */
static dispatch_kernel choose_lines(enum ll_x kind, uint32_t nr_vectors)
{
	switch (kind) {
	case LL_X_COPY:
		return nr_vectors == 1   ? dispatch_ll<LL_LINES, LL_X_COPY, 1>
		       : nr_vectors == 2 ? dispatch_ll<LL_LINES, LL_X_COPY, 2>
		       : nr_vectors == 4 ? dispatch_ll<LL_LINES, LL_X_COPY, 4>
					 : NULL;
	case LL_X_BF16:
		return nr_vectors == 1   ? dispatch_ll<LL_LINES, LL_X_BF16, 1>
		       : nr_vectors == 2 ? dispatch_ll<LL_LINES, LL_X_BF16, 2>
		       : nr_vectors == 4 ? dispatch_ll<LL_LINES, LL_X_BF16, 4>
					 : NULL;
	case LL_X_GIVEN:
		return nr_vectors == 2 ? dispatch_ll<LL_LINES, LL_X_GIVEN, 2> : NULL;
	case LL_X_FP16:
		return nr_vectors == 2 ? dispatch_ll<LL_LINES, LL_X_FP16, 2> : NULL;
	case LL_X_FP32:
		return nr_vectors == 2 ? dispatch_ll<LL_LINES, LL_X_FP32, 2> : NULL;
	}
	return NULL;
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

static dispatch_kernel choose(const struct ll_dispatch *d)
{
	return d->exchange.format == LL_LINES ? choose_lines(d->kind, d->exchange.row.nr_vectors)
					      : choose_cells(d->kind, d->exchange.row.nr_vectors);
}

cudaError_t ll_dispatch_launch(const struct ll_dispatch *args, const struct ll_launch *launch, cudaStream_t stream)
{
	return launch_half(choose(args), args, launch, dispatch_shared_bytes(args), stream);
}

cudaError_t ll_dispatch_most_blocks(const struct ll_dispatch *args, const struct ll_launch *launch, uint32_t *nr_blocks)
{
	return most_blocks(choose(args), launch, dispatch_shared_bytes(args), nr_blocks);
}
