/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency combine where some ranks are on other nodes: results come in one size. */
#include "gpu/cuda/ll/combine.cuh"
#include "gpu/cuda/ll/launch.cuh"

template <int FORMAT, int ND> static ll_kernel<struct gpu_combine> choose(enum gpu_y kind)
{
	return kind == GPU_Y_BF16   ? tern::combine_ll<FORMAT, GPU_Y_BF16, ND, true>
	       : kind == GPU_Y_FP16 ? tern::combine_ll<FORMAT, GPU_Y_FP16, ND, true>
				    : tern::combine_ll<FORMAT, GPU_Y_FP32, ND, true>;
}

ll_kernel<struct gpu_combine> internode_combine_kernel(const struct gpu_combine *c)
{
	bool lines = c->exchange.format == GPU_FLAG128;

	if (c->exchange.result.nr_vectors != (lines ? 2 : 3))
		return NULL;
	if (c->gate.marks)
		return lines && c->kind == GPU_Y_BF16
			       ? tern::combine_ll<GPU_FLAG128, GPU_Y_BF16, 2, true, true>
			       : NULL;
	return lines ? choose<GPU_FLAG128, 2>(c->kind) : choose<GPU_FLAG16, 3>(c->kind);
}
