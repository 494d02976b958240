/* SPDX-License-Identifier: Apache-2.0 */
/* High throughput where some ranks are on other nodes. Its kernels know nothing of these but for
 * the plan, whose counts come from all; kernels beside them send to internode ranks and receive
 * from them (internode/dispatch_ht.cu, internode/combine_ht.cu). Those hide from the others what is
 * not theirs:
 *
 *   routes to internode ranks     are taken out of h.routes when they have been sent
 *   heads for internode ranks     go into a sink, where their windows would be
 *   tokens of internode sources   are 0 in this rank's window when the plan has ended; the number
 *                                 is in landing. Their heads are there, too: in the window they
 *                                 have an epoch in two hops alone, and no row (forward_ht.cuh)
 *   results of internode ranks    are copied into the window, words and all, before those at home
 *                                 are summed
 */
#ifndef TERN_GPU_CUDA_INTERNODE_INTERNODE_HT_CUH
#define TERN_GPU_CUDA_INTERNODE_INTERNODE_HT_CUH

#include "gpu/cuda/internode/internode.cuh"
#include "gpu/cuda/ht/ht.cuh"
#include "gpu/cuda/common/launch.cuh"

__device__ __forceinline__ bool on_other_node(const struct gpu_exchange *e, uint32_t rank)
{
	return e->internode && is_internode<true>(e, rank);
}

__device__ __forceinline__ enum internode_kind internode_counts_kind(uint32_t epoch)
{
	return epoch & 1 ? INTERNODE_COUNTS_ODD : INTERNODE_COUNTS_EVEN;
}

/* An internode source's counts of this round, in landing. */
__device__ __forceinline__ const uint32_t *internode_counts(
	const struct gpu_exchange *e, const struct ht_exchange *h, uint32_t epoch, uint32_t source)
{
	return (const uint32_t *)(part_from<true>(e,
					  epoch & 1 ? INTERNODE_ODD_COUNTS : INTERNODE_EVEN_COUNTS,
					  source) +
				  counts_at(e, h, epoch, source));
}

__device__ __forceinline__ uint32_t internode_nr_tokens(
	const struct gpu_exchange *e, const struct ht_exchange *h, uint32_t epoch, uint32_t source)
{
	return min(e->max_tokens, word_load(internode_counts(e, h, epoch, source) + h->nr_columns));
}

/* Does that source send the token, and not a replica of it? */
__device__ __forceinline__ bool sends_token(
	const struct gpu_exchange *e, uint32_t source, uint32_t token)
{
	return home_first(e, source) + token - gpu_div(token, e->by_replicas) * e->by_replicas.d ==
	       source;
}

/* A token's head from an internode source: as in the window. */
__device__ __forceinline__ uint4 internode_token_head(const struct gpu_exchange *e,
	const struct ht_exchange *h, uint32_t source, uint32_t token, uint32_t epoch)
{
	uint4 head = make_uint4(UINT32_MAX, 0, UINT32_MAX, epoch);

	if (lane_id() < e->topk)
		head = piece_load(part_from<true>(e, INTERNODE_HEADS, source) +
				  head_at(e, h, source, token, lane_id()));
	if (head.w != epoch)
		head.x = head.z = UINT32_MAX;
	return head;
}

/* Of a token's row to that rank, or from it, and of its result (numbers.cuh). */
__device__ __forceinline__ uint32_t *numbers_to(
	const struct gpu_exchange *e, uint32_t rank, uint32_t token)
{
	return (uint32_t *)part_to<true>(e, INTERNODE_NUMBERS, rank) + (uint64_t)token * 2;
}

__device__ __forceinline__ const uint32_t *numbers_from(
	const struct gpu_exchange *e, uint32_t source, uint32_t token)
{
	return (const uint32_t *)part_from<true>(e, INTERNODE_NUMBERS, source) +
	       (uint64_t)token * 2;
}

/* Before it is followed; by the warp. */
__device__ __forceinline__ bool check_number(const struct gpu_exchange *e, uint32_t epoch,
	uint32_t source, uint32_t token, uint32_t number)
{
	bool good = number < e->max_tokens;

	if (!good && lane_id() == 0)
		report_broken(
			e, GPU_BROKEN_NUMBER, source, token, number, e->max_tokens - 1, epoch);
	return good;
}

/* By the plan's block. Barriers order what one warp acquires before what all do, and what all store
 * before its commands. */
static __device__ __noinline__ bool internode_send_counts(const struct gpu_exchange *e,
	const struct ht_exchange *h, const uint32_t *mine, uint32_t epoch, uint32_t nr_tokens)
{
	enum internode_kind kind = internode_counts_kind(epoch);
	struct internode_table *internode = e->internode;
	bool good = threadIdx.x >= LANES ||
		    (internode_staging_free(e, kind) &&
			    internode_staging_free(e, INTERNODE_DISPATCH)); /* the combine's: by
									       whoever collects */

	if (!__syncthreads_and(good))
		return false;
	for (uint32_t i = 0; i < internode->nr_internode; i++) {
		uint32_t *to = (uint32_t *)(part_to<true>(e,
						    epoch & 1 ? INTERNODE_ODD_COUNTS
							      : INTERNODE_EVEN_COUNTS,
						    internode->ranks[i].rank) +
					    counts_at(e, h, epoch, e->rank));

		for (uint32_t c = threadIdx.x; c <= h->nr_columns; c += blockDim.x)
			word_store(to + c, c < h->nr_columns ? mine[c] : nr_tokens);
		if (threadIdx.x < 2 && e->placement.placed)
			word_store(to + placed_column(h) + threadIdx.x,
				e->placement.placed[threadIdx.x]);
	}
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < internode->nr_internode; i += blockDim.x)
		internode_ring_head(internode, &internode->ranks[i], kind, epoch, 0);
	if (threadIdx.x == 0)
		internode_has_begun(internode, kind, internode->nr_internode);
	return true;
}

/* All internode sources' counts into this rank's window, each column by the thread that adds it. */
static __device__ __noinline__ bool internode_take_counts(
	const struct gpu_exchange *e, const struct ht_exchange *h, uint32_t epoch)
{
	const struct internode_table *internode = e->internode;
	bool good = threadIdx.x >= LANES ||
		    internode_collect(e, internode_counts_kind(epoch), epoch, GPU_WAIT_COUNTS);

	if (!__syncthreads_and(good))
		return false;
	for (uint32_t i = 0; i < internode->nr_internode; i++) {
		uint32_t source = internode->ranks[i].rank,
			 *to = (uint32_t *)(e->windows[e->rank] + counts_at(e, h, epoch, source));
		const uint32_t *from = internode_counts(e, h, epoch, source);

		for (uint32_t c = threadIdx.x; c <= h->nr_columns; c += blockDim.x)
			word_store(to + c, word_load(from + c));
	}
	__syncthreads();
	return true;
}

/* From the kernels that wait for heads in the window. */
static __device__ __noinline__ void internode_hide_tokens(
	const struct gpu_exchange *e, const struct ht_exchange *h, uint32_t epoch)
{
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < e->internode->nr_internode; i += blockDim.x)
		word_store((uint32_t *)(e->windows[e->rank] +
					counts_at(e, h, epoch, e->internode->ranks[i].rank)) +
				   h->nr_columns,
			0);
}

/* ---- launching ------------------------------------------------------------------------------- */

template <class Half> using internode_kernel = void (*)(const Half, const struct ht_exchange);

/* Loads both, as loading may wait for kernels under way. */
template <class Half>
static cudaError_t internode_prepare(internode_kernel<Half> out, internode_kernel<Half> in)
{
	cudaError_t rc = load_kernel((const void *)out);

	return rc ? rc : load_kernel((const void *)in);
}

template <class Half>
static cudaError_t internode_launch(internode_kernel<Half> kernel, const Half *half,
	const struct ht_exchange *h, const struct gpu_launch *launch, cudaStream_t stream)
{
	cudaLaunchConfig_t config =
		launch_config(launch->nr_blocks, launch->nr_warps * LANES, 0, stream);

	return cudaLaunchKernelEx(&config, kernel, *half, *h);
}

#endif
