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

template <int FORMAT, int X, int ND, int CASE = GPU_ANY>
static dispatch_kernel kernel(enum ll_notes notes)
{
	return notes ? tern::dispatch_ll_sliced<FORMAT, X, ND, CASE>
		     : tern::dispatch_ll<FORMAT, X, ND, CASE>;
}

template <int FORMAT, int X, int ND>
static dispatch_kernel choose_any(int which, enum ll_notes notes)
{
	return which == GPU_ELASTIC ? kernel<FORMAT, X, ND, GPU_ELASTIC>(notes)
				    : kernel<FORMAT, X, ND>(notes);
}

template <int X, int ND, int CASE> static dispatch_kernel either()
{
	return tern::dispatch_ll_sliced<GPU_FLAG128, X, ND, CASE, false, true>;
}

/* With slices a round takes longer than what GPU_PLAIN spares. Of LL_EITHER there is what engines
 * have; elsewhere slices serve, which take longer for few tokens. */
template <int X, int ND> static dispatch_kernel choose_case(int which, enum ll_notes notes)
{
	if (which == GPU_PLAIN && notes == LL_ALL_PLANS)
		return tern::dispatch_ll<GPU_FLAG128, X, ND, GPU_PLAIN>;
	if (notes == LL_EITHER && which >= GPU_ANY)
		return which == GPU_ANY      ? either<X, ND, GPU_ANY>()
		       : which == GPU_PLACED ? either<X, ND, GPU_PLACED>()
					     : either<X, ND, GPU_PLAIN>();
	return which <= GPU_ANY ? choose_any<GPU_FLAG128, X, ND>(which, notes)
				: kernel<GPU_FLAG128, X, ND, GPU_PLACED>(notes);
}

/* Variants that measurements chose (docs/notebook/gpu-low-latency.md); the kinds of x that few
 * callers have come for all arguments alone. */
static dispatch_kernel choose_lines(
	enum gpu_x kind, int which, uint32_t nr_vectors, enum ll_notes notes)
{
	if (kind == GPU_X_COPY && nr_vectors == 4)
		return choose_case<GPU_X_COPY, 4>(which, notes);
	/* For the lab alone. */
	if (kind == GPU_X_BF16 && nr_vectors == 4 && notes == LL_ALL_PLANS && which != GPU_ELASTIC)
		return which == GPU_PLAIN ? tern::dispatch_ll<GPU_FLAG128, GPU_X_BF16, 4, GPU_PLAIN>
					  : tern::dispatch_ll<GPU_FLAG128, GPU_X_BF16, 4>;
	if (nr_vectors != 2)
		return NULL;
	switch (kind) {
	case GPU_X_COPY:
		return choose_case<GPU_X_COPY, 2>(which, notes);
	case GPU_X_GIVEN:
		return choose_case<GPU_X_GIVEN, 2>(which, notes);
	case GPU_X_BF16:
		return choose_case<GPU_X_BF16, 2>(which, notes);
	case GPU_X_FP16:
		return choose_any<GPU_FLAG128, GPU_X_FP16, 2>(which, notes);
	case GPU_X_FP32:
		return choose_any<GPU_FLAG128, GPU_X_FP32, 2>(which, notes);
	}
	return NULL;
}

static dispatch_kernel choose_cells(
	enum gpu_x kind, int which, uint32_t nr_vectors, enum ll_notes notes)
{
	if (nr_vectors != (kind == GPU_X_COPY ? 3 : 2))
		return NULL;
	switch (kind) {
	case GPU_X_COPY:
		return choose_any<GPU_FLAG16, GPU_X_COPY, 3>(which, notes);
	case GPU_X_GIVEN:
		return choose_any<GPU_FLAG16, GPU_X_GIVEN, 2>(which, notes);
	case GPU_X_BF16:
		return choose_any<GPU_FLAG16, GPU_X_BF16, 2>(which, notes);
	case GPU_X_FP16:
		return choose_any<GPU_FLAG16, GPU_X_FP16, 2>(which, notes);
	case GPU_X_FP32:
		return choose_any<GPU_FLAG16, GPU_X_FP32, 2>(which, notes);
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
static dispatch_kernel choose(const struct gpu_dispatch *d, int which, enum ll_notes notes)
{
	const struct gpu_exchange *e = &d->exchange;

	if (e->internode)
		return internode_dispatch_kernel(d, notes);
	if (d->gate.row_bits)
		return notes ? NULL : choose_gated(d, which);
	return e->format == GPU_FLAG128 ? choose_lines(d->kind, which, e->row.nr_vectors, notes)
					: choose_cells(d->kind, which, e->row.nr_vectors, notes);
}

cudaError_t ll_dispatch_launch(
	const struct gpu_dispatch *args, const struct gpu_launch *launch, cudaStream_t stream)
{
	struct gpu_dispatch d = *args;
	uint32_t nr_ranks = d.exchange.nr_ranks;
	bool in_turns = d.nr_tokens && launch->notes != LL_EITHER;

	d.slice_tokens =
		in_turns ? tokens_of_slice(d.nr_tokens * nr_ranks, nr_ranks, launch->nr_blocks)
			 : d.nr_tokens;
	d.helps = launch->helps;
	d.keeps = launch->keeps && d.roles == (GPU_SEND | GPU_RECEIVE);
	d.by_slices = gpu_divisor_of(in_turns ? gpu_ceil(d.nr_tokens, d.slice_tokens) : 1);
	return launch_half(choose(args, case_of(args), launch->notes), &d, launch, false,
		dispatch_shared_bytes(args, launch->notes), stream);
}

/* Of all kernels: which one it will be is known when there are ids. */
cudaError_t ll_dispatch_most_blocks(
	const struct gpu_dispatch *args, const struct gpu_launch *launch, uint32_t *nr_blocks)
{
	uint32_t most_notes = args->gate.row_bits ? launch->notes : launch->notes + 1; /* gates are
							where all plans are noted */
	int first = args->exchange.view ? GPU_ELASTIC : GPU_ANY,
	    last = args->exchange.view ? GPU_ELASTIC : GPU_PLAIN;
	cudaError_t rc = cudaSuccess;

	*nr_blocks = UINT32_MAX;
	for (uint32_t notes = launch->notes; notes <= most_notes; notes++)
		for (int which = first; which <= last && !rc; which++) {
			uint32_t nr = 0;

			rc = most_blocks(choose(args, which, (enum ll_notes)notes), launch,
				dispatch_shared_bytes(args, (enum ll_notes)notes), &nr);
			*nr_blocks = rc ? 0 : min(*nr_blocks, nr);
		}
	return rc;
}
