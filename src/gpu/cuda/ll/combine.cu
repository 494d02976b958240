/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency combine: which kernel, and its launch. */
#include "gpu/cuda/ll/combine_own.cuh"
#include "gpu/cuda/ll/launch.cuh"

typedef ll_kernel<struct gpu_combine> combine_kernel;

template <int FORMAT, int Y, int ND> static combine_kernel kernel(const struct gpu_combine *c)
{
	return c->exchange.view ? tern::combine_ll<FORMAT, Y, ND, false, false, false, true>
				: tern::combine_ll<FORMAT, Y, ND>;
}

static combine_kernel choose_lines(const struct gpu_combine *c)
{
	uint32_t nr_vectors = c->exchange.result.nr_vectors;

	if (c->kind != GPU_Y_BF16 && nr_vectors != 2)
		return NULL;
	if (c->kind == GPU_Y_FP16)
		return kernel<GPU_FLAG128, GPU_Y_FP16, 2>(c);
	if (c->kind == GPU_Y_FP32)
		return kernel<GPU_FLAG128, GPU_Y_FP32, 2>(c);
	return nr_vectors == 1   ? kernel<GPU_FLAG128, GPU_Y_BF16, 1>(c)
	       : nr_vectors == 2 ? kernel<GPU_FLAG128, GPU_Y_BF16, 2>(c)
	       : nr_vectors == 4 ? kernel<GPU_FLAG128, GPU_Y_BF16, 4>(c)
				 : NULL;
}

int ll_combine_whole(const struct gpu_combine *c)
{
	const struct gpu_exchange *e = &c->exchange;

	return c->roles == (GPU_SEND | GPU_RECEIVE) && !c->release && !e->at_home &&
	       !e->internode && e->format == GPU_FLAG128 && e->by_replicas.d == 1 && !c->gate.marks;
}

/* Where ll_combine_whole; NULL: of that there is none. */
template <bool DRAWN> static combine_kernel choose_own(const struct gpu_combine *c)
{
	uint32_t nr_vectors = c->exchange.result.nr_vectors;

	if (c->late)
		return nr_vectors == 1   ? tern::combine_ll_own<GPU_Y_BF16, 1, DRAWN, true>
		       : nr_vectors == 2 ? tern::combine_ll_own<GPU_Y_BF16, 2, DRAWN, true>
					 : NULL;
	if (c->kind == GPU_Y_BF16 && nr_vectors == 1)
		return tern::combine_ll_own<GPU_Y_BF16, 1, DRAWN>;
	if (nr_vectors != 2)
		return NULL;
	return c->kind == GPU_Y_BF16   ? tern::combine_ll_own<GPU_Y_BF16, 2, DRAWN>
	       : c->kind == GPU_Y_FP16 ? tern::combine_ll_own<GPU_Y_FP16, 2, DRAWN>
				       : tern::combine_ll_own<GPU_Y_FP32, 2, DRAWN>;
}

static combine_kernel choose_late(const struct gpu_combine *c)
{
	uint32_t nr_vectors = c->exchange.result.nr_vectors;

	if (c->exchange.format != GPU_FLAG128 || c->kind != GPU_Y_BF16)
		return NULL;
	return nr_vectors == 1   ? tern::combine_ll<GPU_FLAG128, GPU_Y_BF16, 1, false, false, true>
	       : nr_vectors == 2 ? tern::combine_ll<GPU_FLAG128, GPU_Y_BF16, 2, false, false, true>
	       : nr_vectors == 4 ? tern::combine_ll<GPU_FLAG128, GPU_Y_BF16, 4, false, false, true>
				 : NULL;
}

static combine_kernel choose_gated(const struct gpu_combine *c)
{
	uint32_t nr_vectors = c->exchange.result.nr_vectors;

	if (c->exchange.format != GPU_FLAG128 || c->kind != GPU_Y_BF16)
		return NULL;
	return nr_vectors == 1   ? tern::combine_ll<GPU_FLAG128, GPU_Y_BF16, 1, false, true>
	       : nr_vectors == 2 ? tern::combine_ll<GPU_FLAG128, GPU_Y_BF16, 2, false, true>
	       : nr_vectors == 4 ? tern::combine_ll<GPU_FLAG128, GPU_Y_BF16, 4, false, true>
				 : NULL;
}

static combine_kernel choose(const struct gpu_combine *c)
{
	if (c->exchange.internode)
		return internode_combine_kernel(c);
	if (c->gate.marks)
		return choose_gated(c);
	if (c->late)
		return choose_late(c);
	if (c->exchange.format == GPU_FLAG128)
		return choose_lines(c);
	if (c->exchange.result.nr_vectors != 3)
		return NULL;
	return c->kind == GPU_Y_BF16   ? kernel<GPU_FLAG16, GPU_Y_BF16, 3>(c)
	       : c->kind == GPU_Y_FP16 ? kernel<GPU_FLAG16, GPU_Y_FP16, 3>(c)
				       : kernel<GPU_FLAG16, GPU_Y_FP32, 3>(c);
}

cudaError_t ll_combine_launch(
	const struct gpu_combine *args, const struct gpu_launch *launch, cudaStream_t stream)
{
	bool all = launch->send_warps == launch->nr_warps;
	combine_kernel own = !ll_combine_whole(args) ? NULL
			     : all                   ? choose_own<false>(args)
			     : launch->own           ? choose_own<true>(args)
						     : NULL;

	return launch_half(
		own ? own : choose(args), args, launch, own != NULL, LL_DEAL_BYTES, stream);
}

cudaError_t ll_combine_most_blocks(
	const struct gpu_combine *args, const struct gpu_launch *launch, uint32_t *nr_blocks)
{
	const combine_kernel own[2] = {choose_own<false>(args), choose_own<true>(args)};
	uint32_t nr = UINT32_MAX;
	cudaError_t rc = most_blocks(choose(args), launch, LL_DEAL_BYTES, nr_blocks);

	*nr_blocks = rc ? 0 : *nr_blocks;
	for (int i = 0; i < 2 && !rc && ll_combine_whole(args) && own[i]; i++) {
		rc = most_blocks(own[i], launch, LL_DEAL_BYTES, &nr);
		*nr_blocks = rc ? 0 : min(*nr_blocks, nr);
	}
	return rc;
}
