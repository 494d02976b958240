/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency combine where some ranks are on other nodes: results come in one size. */
#include "gpu/cuda/ll/combine.cuh"
#include "gpu/cuda/ll/launch.cuh"

template <int FORMAT, int ND> static ll_kernel<struct ll_combine> choose(enum ll_y kind)
{
	return kind == LL_Y_BF16   ? combine_ll<FORMAT, LL_Y_BF16, ND, true>
	       : kind == LL_Y_FP16 ? combine_ll<FORMAT, LL_Y_FP16, ND, true>
				   : combine_ll<FORMAT, LL_Y_FP32, ND, true>;
}

ll_kernel<struct ll_combine> far_combine_kernel(const struct ll_combine *c)
{
	bool lines = c->exchange.format == LL_LINES;

	if (c->exchange.result.nr_vectors != (lines ? 2 : 3))
		return NULL;
	return lines ? choose<LL_LINES, 2>(c->kind) : choose<LL_CELLS, 3>(c->kind);
}
