/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that come with a combine and not with its dispatch, where rows are summed at the expert:
 * they go to the experts' ranks first, a piece of 16 bytes for each route, its weight and the epoch
 * in one half. All threads of the kernel send them before they do anything else, and a warp that
 * sums rows looks for theirs while the rows are on their way.
 *
 * Why weights of the next round may overwrite these: they follow this rank's combine, which has
 * seen all its results, and who makes a result has read its weights.
 */
#ifndef TERN_GPU_CUDA_LL_LATE_WEIGHTS_CUH
#define TERN_GPU_CUDA_LL_LATE_WEIGHTS_CUH

#include "gpu/cuda/common/plan.cuh"
#include "gpu/cuda/common/wait.cuh"

static __device__ __forceinline__ uint8_t *weights_at(
	const struct gpu_combine *c, uint32_t rank, uint32_t source, uint32_t route)
{
	const struct gpu_exchange *e = &c->exchange;

	return e->windows[rank] + c->weight_cells +
	       ((uint64_t)source * e->max_tokens * e->topk + route) * 16;
}

/* The first loads do not wait to hear which round it is: there are as many routes at least. */
template <bool LATE>
static __device__ __forceinline__ void send_weights(const struct gpu_combine *c, uint4 state)
{
	const struct gpu_exchange *e = &c->exchange;
	uint32_t nr = LATE && c->weights_come && !c->release ? c->late_tokens * e->topk : 0;

#pragma unroll 1
	for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < nr;
		i += gridDim.x * blockDim.x) {
		uint32_t rank = e->home_routes[i].x, weight = __float_as_uint(c->late_weights[i]);

		if (!state.w && i < state.z * e->topk && rank != UINT32_MAX && rank != e->rank)
			piece_store(
				weights_at(c, rank, e->rank, i), make_uint4(weight, state.y, 0, 0));
	}
}

/* Of a token's routes: what lane k has seen of the weight of its own. */
static __device__ __forceinline__ uint4 look_for_weight(
	const struct gpu_combine *c, uint32_t source, uint32_t token, uint2 route)
{
	const struct gpu_exchange *e = &c->exchange;
	uint32_t at = token * e->topk + lane_id();

	if (route.x == UINT32_MAX || !c->weights_come)
		return make_uint4(0, 0, 0, 0);
	if (source == e->rank)
		return make_uint4(__float_as_uint(c->late_weights[at]), 0, 0, 0);
	return piece_load(weights_at(c, e->rank, source, at));
}

/* Sets the weights of the routes that end here. seen: of look_for_weight. By a warp. */
static __device__ __forceinline__ bool await_weights(const struct gpu_combine *c, uint32_t epoch,
	uint32_t source, uint32_t token, uint4 seen, uint2 *route)
{
	const struct gpu_exchange *e = &c->exchange;
	bool waits = route->x != UINT32_MAX && source != e->rank && c->weights_come;
	struct patience patience = {0, 0};

	while (!__all_sync(ALL_LANES, !waits || seen.y == epoch)) {
		if (waits)
			seen = piece_load(
				weights_at(c, e->rank, source, token * e->topk + lane_id()));
		if (warp_may_wait(&patience, e, source, e->wait_ns))
			continue;
		if (lane_id() == 0)
			report_wait(e, GPU_WAIT_WEIGHTS, source, token, epoch, seen.y,
				patience.start_ns);
		return false;
	}
	if (c->weights_come)
		route->y = seen.x;
	return true;
}

#endif
