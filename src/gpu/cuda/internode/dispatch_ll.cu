/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency dispatch where some ranks are on other nodes: a network's time is longer than what the size of segments changes, so rows come in one size. */
#include "gpu/cuda/ll/dispatch.cuh"
#include "gpu/cuda/ll/launch.cuh"

template <int FORMAT, int COPIED> static ll_kernel<struct ll_dispatch> choose(enum ll_x kind)
{
	switch (kind) {
	case LL_X_COPY:
		return dispatch_ll<FORMAT, LL_X_COPY, COPIED, LL_ANY, true>;
	case LL_X_GIVEN:
		return dispatch_ll<FORMAT, LL_X_GIVEN, 2, LL_ANY, true>;
	case LL_X_BF16:
		return dispatch_ll<FORMAT, LL_X_BF16, 2, LL_ANY, true>;
	case LL_X_FP16:
		return dispatch_ll<FORMAT, LL_X_FP16, 2, LL_ANY, true>;
	case LL_X_FP32:
		return dispatch_ll<FORMAT, LL_X_FP32, 2, LL_ANY, true>;
	}
	return NULL;
}

ll_kernel<struct ll_dispatch> far_dispatch_kernel(const struct ll_dispatch *d)
{
	uint32_t nr_vectors = d->exchange.row.nr_vectors;
	bool lines = d->exchange.format == LL_LINES;

	if (nr_vectors != (lines || d->kind != LL_X_COPY ? 2 : 3))
		return NULL;
	return lines ? choose<LL_LINES, 2>(d->kind) : choose<LL_CELLS, 3>(d->kind);
}
