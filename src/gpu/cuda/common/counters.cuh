/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics, counted where a kernel knows them anyway. Added up in device memory by atomics that
 * nothing waits for, so rounds that a graph replays count like others, and the host reads them when
 * it is asked. Order is none of their business: who reads them has waited for the stream. */
#ifndef TERN_GPU_CUDA_COMMON_COUNTERS_CUH
#define TERN_GPU_CUDA_COMMON_COUNTERS_CUH

#include "gpu/cuda/common/segment.cuh"

__device__ __forceinline__ void counters_add(uint64_t *at, uint64_t nr)
{
	atomicAdd((unsigned long long *)at, (unsigned long long)nr);
}

/* A token that this rank sends; by one warp. rank: of lane k's route, UINT32_MAX: none; rows: to
 * different ranks; away: of these to others than this one. */
__device__ __forceinline__ void counters_token(
	const struct gpu_exchange *e, int32_t id, uint32_t rank, uint32_t rows, uint32_t away)
{
	uint32_t lane = lane_id(), routes, nr;

	if (!e->counters)
		return;
	routes = __popc(__ballot_sync(ALL_LANES, rank != UINT32_MAX));
	nr = lane == 0 ? 1 : lane == 1 ? routes : lane == 2 ? rows : lane == 3 ? away : away != 0;
	if (lane < 5 && nr)
		counters_add(&e->counters->tokens + lane, nr);
	if (rank != UINT32_MAX)
		counters_add(&e->counters->load[id], 1);
}

/* By one thread, when it is known what a round brings here. */
__device__ __forceinline__ void counters_received(const struct gpu_exchange *e, uint32_t rows)
{
	e->state->nr_rows = rows;
	if (e->counters && rows)
		counters_add(&e->counters->rows_received, rows);
}

/* By one thread, of a combine that is no release. */
__device__ __forceinline__ void counters_results(const struct gpu_exchange *e)
{
	uint32_t nr = e->at_home ? e->state->nr_rows : e->state->nr_arrived;

	if (e->counters && nr)
		counters_add(&e->counters->results, (uint64_t)nr * e->by_replicas.d);
}

__device__ __forceinline__ void counters_round(const struct gpu_exchange *e)
{
	if (e->counters)
		counters_add(&e->counters->rounds, 1);
}

#endif
