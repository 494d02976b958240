/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency dispatch where some ranks are on other nodes: a network's time is longer than what
 * the size of segments changes, so rows come in one size. */
#include "gpu/cuda/ll/dispatch_sliced.cuh"
#include "gpu/cuda/ll/launch.cuh"

template <int FORMAT, int X, int ND>
static ll_kernel<struct gpu_dispatch> kernel(enum ll_notes notes)
{
	return notes ? tern::dispatch_ll_sliced<FORMAT, X, ND, GPU_ANY, true>
		     : tern::dispatch_ll<FORMAT, X, ND, GPU_ANY, true>;
}

template <int FORMAT, int COPIED>
static ll_kernel<struct gpu_dispatch> choose(enum gpu_x kind, enum ll_notes notes)
{
	switch (kind) {
	case GPU_X_COPY:
		return kernel<FORMAT, GPU_X_COPY, COPIED>(notes);
	case GPU_X_GIVEN:
		return kernel<FORMAT, GPU_X_GIVEN, 2>(notes);
	case GPU_X_BF16:
		return kernel<FORMAT, GPU_X_BF16, 2>(notes);
	case GPU_X_FP16:
		return kernel<FORMAT, GPU_X_FP16, 2>(notes);
	case GPU_X_FP32:
		return kernel<FORMAT, GPU_X_FP32, 2>(notes);
	}
	return NULL;
}

template <int X> static ll_kernel<struct gpu_dispatch> gated()
{
	return tern::dispatch_ll<GPU_FLAG128, X, 2, GPU_ANY, true, true>;
}

static ll_kernel<struct gpu_dispatch> choose_gated(const struct gpu_dispatch *d)
{
	if (d->exchange.format != GPU_FLAG128 || d->exchange.row.nr_vectors != 2 || d->by_source)
		return NULL;
	return d->kind == GPU_X_COPY    ? gated<GPU_X_COPY>()
	       : d->kind == GPU_X_GIVEN ? gated<GPU_X_GIVEN>()
	       : d->kind == GPU_X_BF16  ? gated<GPU_X_BF16>()
					: NULL;
}

ll_kernel<struct gpu_dispatch> internode_dispatch_kernel(
	const struct gpu_dispatch *d, enum ll_notes notes)
{
	uint32_t nr_vectors = d->exchange.row.nr_vectors;
	bool lines = d->exchange.format == GPU_FLAG128;

	if (d->gate.row_bits)
		return notes ? NULL : choose_gated(d);
	if (nr_vectors != (lines || d->kind != GPU_X_COPY ? 2 : 3))
		return NULL;
	return lines ? choose<GPU_FLAG128, 2>(d->kind, notes)
		     : choose<GPU_FLAG16, 3>(d->kind, notes);
}
