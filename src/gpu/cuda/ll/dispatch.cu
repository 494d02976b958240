/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency dispatch: which kernel, and its launch. */
#include "gpu/cuda/ll/dispatch_sliced.cuh"
#include "gpu/cuda/ll/launch.cuh"

typedef ll_kernel<struct gpu_dispatch> dispatch_kernel;

static int case_of(const struct gpu_dispatch *d)
{
	const struct gpu_exchange *e = &d->exchange;

	if (e->view)
		return GPU_ELASTIC;
	if (!e->placement.per_rank || e->placement.serving || e->by_replicas.d != 1 ||
		e->nr_ranks > LANES)
		return GPU_ANY;
	return d->ids_64 || d->by_source || d->padded || d->by_alignment.d != 1 ? GPU_PLACED
										: GPU_PLAIN;
}

template <int FORMAT, int X, int ND, int CASE = GPU_ANY> static dispatch_kernel kernel(bool sliced)
{
	return sliced ? tern::dispatch_ll_sliced<FORMAT, X, ND, CASE>
		      : tern::dispatch_ll<FORMAT, X, ND, CASE>;
}

template <int FORMAT, int X, int ND> static dispatch_kernel choose_any(int which, bool sliced)
{
	return which == GPU_ELASTIC ? kernel<FORMAT, X, ND, GPU_ELASTIC>(sliced)
				    : kernel<FORMAT, X, ND>(sliced);
}

/* With slices a round takes longer than what GPU_PLAIN spares. */
template <int X, int ND> static dispatch_kernel choose_case(int which, bool sliced)
{
	if (which == GPU_PLAIN && !sliced)
		return tern::dispatch_ll<GPU_FLAG128, X, ND, GPU_PLAIN>;
	return which <= GPU_ANY ? choose_any<GPU_FLAG128, X, ND>(which, sliced)
				: kernel<GPU_FLAG128, X, ND, GPU_PLACED>(sliced);
}

/* Variants that measurements chose (docs/notebook/gpu-low-latency.md); the kinds of x that few
 * callers have come for all arguments alone. */
static dispatch_kernel choose_lines(enum gpu_x kind, int which, uint32_t nr_vectors, bool sliced)
{
	if (kind == GPU_X_COPY && nr_vectors == 4)
		return choose_case<GPU_X_COPY, 4>(which, sliced);
	/* For the lab alone. */
	if (kind == GPU_X_BF16 && nr_vectors == 4 && !sliced && which != GPU_ELASTIC)
		return which == GPU_PLAIN ? tern::dispatch_ll<GPU_FLAG128, GPU_X_BF16, 4, GPU_PLAIN>
					  : tern::dispatch_ll<GPU_FLAG128, GPU_X_BF16, 4>;
	if (nr_vectors != 2)
		return NULL;
	switch (kind) {
	case GPU_X_COPY:
		return choose_case<GPU_X_COPY, 2>(which, sliced);
	case GPU_X_GIVEN:
		return choose_case<GPU_X_GIVEN, 2>(which, sliced);
	case GPU_X_BF16:
		return choose_case<GPU_X_BF16, 2>(which, sliced);
	case GPU_X_FP16:
		return choose_any<GPU_FLAG128, GPU_X_FP16, 2>(which, sliced);
	case GPU_X_FP32:
		return choose_any<GPU_FLAG128, GPU_X_FP32, 2>(which, sliced);
	}
	return NULL;
}

static dispatch_kernel choose_cells(enum gpu_x kind, int which, uint32_t nr_vectors, bool sliced)
{
	if (nr_vectors != (kind == GPU_X_COPY ? 3 : 2))
		return NULL;
	switch (kind) {
	case GPU_X_COPY:
		return choose_any<GPU_FLAG16, GPU_X_COPY, 3>(which, sliced);
	case GPU_X_GIVEN:
		return choose_any<GPU_FLAG16, GPU_X_GIVEN, 2>(which, sliced);
	case GPU_X_BF16:
		return choose_any<GPU_FLAG16, GPU_X_BF16, 2>(which, sliced);
	case GPU_X_FP16:
		return choose_any<GPU_FLAG16, GPU_X_FP16, 2>(which, sliced);
	case GPU_X_FP32:
		return choose_any<GPU_FLAG16, GPU_X_FP32, 2>(which, sliced);
	}
	return NULL;
}

template <int X, int ND> static dispatch_kernel gated(int which)
{
	return which == GPU_PLAIN ? tern::dispatch_ll<GPU_FLAG128, X, ND, GPU_PLAIN, false, true>
				  : tern::dispatch_ll<GPU_FLAG128, X, ND, GPU_ANY, false, true>;
}

/* Of what layers' kernels read: GPU_FLAG128, two vectors (rows of bytes as they are: or four). */
static dispatch_kernel choose_gated(const struct gpu_dispatch *d, int which)
{
	if (d->exchange.format != GPU_FLAG128 || d->by_source)
		return NULL;
	if (d->kind == GPU_X_COPY && d->exchange.row.nr_vectors == 4)
		return gated<GPU_X_COPY, 4>(which);
	if (d->exchange.row.nr_vectors != 2)
		return NULL;
	return d->kind == GPU_X_COPY    ? gated<GPU_X_COPY, 2>(which)
	       : d->kind == GPU_X_GIVEN ? gated<GPU_X_GIVEN, 2>(which)
	       : d->kind == GPU_X_BF16  ? gated<GPU_X_BF16, 2>(which)
					: NULL;
}

/* NULL: there is none. */
static dispatch_kernel choose(const struct gpu_dispatch *d, int which, bool sliced)
{
	const struct gpu_exchange *e = &d->exchange;

	if (e->internode)
		return internode_dispatch_kernel(d, sliced);
	if (d->gate.row_bits)
		return sliced ? NULL : choose_gated(d, which);
	return e->format == GPU_FLAG128 ? choose_lines(d->kind, which, e->row.nr_vectors, sliced)
					: choose_cells(d->kind, which, e->row.nr_vectors, sliced);
}

cudaError_t ll_dispatch_launch(
	const struct gpu_dispatch *args, const struct gpu_launch *launch, cudaStream_t stream)
{
	struct gpu_dispatch d = *args;
	uint32_t nr_ranks = d.exchange.nr_ranks;

	d.slice_tokens = tokens_of_slice(d.nr_tokens * nr_ranks, nr_ranks, launch->nr_blocks);
	d.helps = launch->helps;
	d.by_slices = gpu_divisor_of(d.nr_tokens ? gpu_ceil(d.nr_tokens, d.slice_tokens) : 1);
	return launch_half(choose(args, case_of(args), launch->sliced), &d, launch, false,
		dispatch_shared_bytes(args, launch->sliced), stream);
}

/* Of all kernels: which one it will be is known when there are ids. */
cudaError_t ll_dispatch_most_blocks(
	const struct gpu_dispatch *args, const struct gpu_launch *launch, uint32_t *nr_blocks)
{
	uint32_t most_sliced = args->gate.row_bits ? 0 : 1; /* gates are where all plans are noted
							     */
	int first = args->exchange.view ? GPU_ELASTIC : GPU_ANY,
	    last = args->exchange.view ? GPU_ELASTIC : GPU_PLAIN;
	cudaError_t rc = cudaSuccess;

	*nr_blocks = UINT32_MAX;
	for (uint32_t sliced = launch->sliced; sliced <= most_sliced; sliced++)
		for (int which = first; which <= last && !rc; which++) {
			uint32_t nr = 0;

			rc = most_blocks(choose(args, which, sliced), launch,
				dispatch_shared_bytes(args, sliced), &nr);
			*nr_blocks = rc ? 0 : min(*nr_blocks, nr);
		}
	return rc;
}
