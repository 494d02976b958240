/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency combine: which kernel, and its launch. */
#include "gpu/cuda/ll/combine_own.cuh"
#include "gpu/cuda/ll/launch.cuh"

typedef ll_kernel<struct ll_combine> combine_kernel;

static combine_kernel choose_lines(enum ll_y kind, uint32_t nr_vectors)
{
	if (kind != LL_Y_BF16 && nr_vectors != 2)
		return NULL;
	if (kind == LL_Y_FP16)
		return combine_ll<LL_LINES, LL_Y_FP16, 2>;
	if (kind == LL_Y_FP32)
		return combine_ll<LL_LINES, LL_Y_FP32, 2>;
	return nr_vectors == 1   ? combine_ll<LL_LINES, LL_Y_BF16, 1>
	       : nr_vectors == 2 ? combine_ll<LL_LINES, LL_Y_BF16, 2>
	       : nr_vectors == 4 ? combine_ll<LL_LINES, LL_Y_BF16, 4>
				 : NULL;
}

int ll_combine_whole(const struct ll_combine *c)
{
	const struct ll_exchange *e = &c->exchange;

	return c->roles == (LL_SEND | LL_RECEIVE) && !c->release && !e->at_home && !e->far && e->format == LL_LINES && e->by_replicas.d == 1;
}

/* Where ll_combine_whole. */
static combine_kernel choose_own(const struct ll_combine *c)
{
	uint32_t nr_vectors = c->exchange.result.nr_vectors;

	if (c->kind == LL_Y_BF16 && nr_vectors == 1)
		return combine_ll_own<LL_Y_BF16, 1>;
	if (nr_vectors != 2)
		return NULL;
	return c->kind == LL_Y_BF16 ? combine_ll_own<LL_Y_BF16, 2> : c->kind == LL_Y_FP16 ? combine_ll_own<LL_Y_FP16, 2> : combine_ll_own<LL_Y_FP32, 2>;
}

static combine_kernel choose(const struct ll_combine *c)
{
	if (c->exchange.far)
		return far_combine_kernel(c);
	if (c->exchange.format == LL_LINES)
		return choose_lines(c->kind, c->exchange.result.nr_vectors);
	if (c->exchange.result.nr_vectors != 3)
		return NULL;
	return c->kind == LL_Y_BF16   ? combine_ll<LL_CELLS, LL_Y_BF16, 3>
	       : c->kind == LL_Y_FP16 ? combine_ll<LL_CELLS, LL_Y_FP16, 3>
				      : combine_ll<LL_CELLS, LL_Y_FP32, 3>;
}

cudaError_t ll_combine_launch(const struct ll_combine *args, const struct ll_launch *launch, cudaStream_t stream)
{
	bool whole = launch->send_warps == launch->nr_warps && ll_combine_whole(args);

	return launch_half(whole ? choose_own(args) : choose(args), args, launch, whole, LL_DEAL_BYTES, stream);
}

cudaError_t ll_combine_most_blocks(const struct ll_combine *args, const struct ll_launch *launch, uint32_t *nr_blocks)
{
	uint32_t nr = UINT32_MAX;
	cudaError_t rc = most_blocks(choose(args), launch, LL_DEAL_BYTES, nr_blocks);

	if (!rc && ll_combine_whole(args))
		rc = most_blocks(choose_own(args), launch, LL_DEAL_BYTES, &nr);
	*nr_blocks = rc ? 0 : min(*nr_blocks, nr);
	return rc;
}
