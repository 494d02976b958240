/* SPDX-License-Identifier: Apache-2.0 */
/* In place of gemm.cu, where nothing is compiled for sm_90a. */
#include "gpu/cuda/layer/gemm.h"

cudaError_t layer_load(void)
{
	return cudaErrorNoKernelImageForDevice;
}

const char *layer_prepare(enum layer_which which, const struct layer_shape *shape,
	const struct layer_rows *by_expert, const struct layer_product *product,
	struct layer_args *args)
{
	(void)which, (void)shape, (void)by_expert, (void)product, (void)args;
	return "no kernels for sm_90a were built";
}

int layer_clusters_fit(uint32_t blocks)
{
	(void)blocks;
	return 0;
}

cudaError_t layer_launch(enum layer_which which, enum layer_dtype dtype,
	const struct layer_args *args, const struct layer_grid *grid, cudaStream_t stream)
{
	(void)which, (void)dtype, (void)args, (void)grid, (void)stream;
	return cudaErrorNoKernelImageForDevice;
}
