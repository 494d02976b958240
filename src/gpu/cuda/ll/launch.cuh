/* SPDX-License-Identifier: Apache-2.0 */
/* How the low-latency kernels of both halves are launched: one argument struct and how many warps
 * send. */
#ifndef TERN_GPU_CUDA_LL_LAUNCH_CUH
#define TERN_GPU_CUDA_LL_LAUNCH_CUH

#include "gpu/cuda/common/kernels.h"
#include "gpu/cuda/common/launch.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/wire/sizes.h"

template <typename Args> using ll_kernel = void (*)(const Args, uint32_t);

/* Where some ranks are on other nodes. */
ll_kernel<struct gpu_dispatch> internode_dispatch_kernel(
	const struct gpu_dispatch *d, enum ll_notes notes);
ll_kernel<struct gpu_combine> internode_combine_kernel(const struct gpu_combine *c);

/* More than 48 KiB are given only to who asks. */
template <typename Args> static cudaError_t allow_half(ll_kernel<Args> kernel, uint32_t bytes)
{
	return bytes <= 48 * 1024 ? cudaSuccess : allow_shared((const void *)kernel);
}

static inline uint32_t send_warps(uint32_t roles, const struct gpu_launch *launch)
{
	return roles == GPU_SEND ? launch->nr_warps : roles == GPU_RECEIVE ? 0 : launch->send_warps;
}

static inline uint32_t dispatch_shared_bytes(const struct gpu_dispatch *d, enum ll_notes notes)
{
	const struct gpu_exchange *e = &d->exchange;
	uint64_t groups = e->internode && d->gate.row_bits
				  ? positions_groups_bytes(e->nr_ranks, e->max_tokens)
				  : 0;

	if (!(d->roles & GPU_RECEIVE))
		return 0;
	if (notes == LL_SLICES)
		return (uint32_t)slices_bytes(e->format, e->nr_ranks, e->nr_local, e->topk);
	if (notes == LL_EITHER)
		return (uint32_t)either_bytes(e->format, e->nr_ranks, e->nr_local, d->noted_tokens,
			e->max_tokens, e->topk);
	return (uint32_t)(positions_bytes(
				  e->format, e->nr_ranks, e->nr_local, e->max_tokens, e->topk) +
			  groups);
}

/* kernel: NULL is refused; most_blocks has been asked about others. whole: it is one whose warps
 * all send, and then receive. */
template <typename Args>
static cudaError_t launch_half(ll_kernel<Args> kernel, const Args *args,
	const struct gpu_launch *launch, bool whole, uint32_t shared_bytes, cudaStream_t stream)
{
	cudaLaunchAttribute early = {};
	cudaLaunchConfig_t config =
		launch_config(launch->nr_blocks, launch->nr_warps * LANES, shared_bytes, stream);

	if (!kernel || launch->nr_warps < 1 || launch->nr_warps > GPU_MAX_WARPS ||
		(args->roles == (GPU_SEND | GPU_RECEIVE) && !whole &&
			launch->send_warps >= launch->nr_warps))
		return cudaErrorInvalidValue;
	launch_early(&config, &early, launch->early);
	return cudaLaunchKernelEx(&config, kernel, *args, send_warps(args->roles, launch));
}

/* Blocks that the current device runs at once. */
template <typename Args>
static cudaError_t most_blocks(ll_kernel<Args> kernel, const struct gpu_launch *launch,
	uint32_t shared_bytes, uint32_t *nr_blocks)
{
	int device, nr_sms, per_sm;
	cudaError_t rc = kernel ? cudaGetDevice(&device) : cudaErrorInvalidValue;

	rc = rc ? rc : cudaDeviceGetAttribute(&nr_sms, cudaDevAttrMultiProcessorCount, device);
	rc = rc ? rc : allow_half(kernel, shared_bytes);
	rc = rc ? rc
		: cudaOccupancyMaxActiveBlocksPerMultiprocessor(
			  &per_sm, kernel, (int)launch->nr_warps * LANES, shared_bytes);
	if (!rc)
		*nr_blocks = (uint32_t)(nr_sms * per_sm);
	return rc;
}

#endif
