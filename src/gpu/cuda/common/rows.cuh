/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens on their way out, in either mode: a warp's piece of x as the caller has it and as it
 * travels, and where it goes. */
#ifndef TERN_GPU_CUDA_COMMON_ROWS_CUH
#define TERN_GPU_CUDA_COMMON_ROWS_CUH

#include "gpu/cuda/common/plan.cuh"
#include "gpu/cuda/common/quantise.cuh"

/* What a warp needs of one segment, as the caller has it. */
template <int X, int ND> struct raw_segment {
	uint4 x[ND][x_kind<X>::LOADS];
	uint32_t scale[X == GPU_X_GIVEN ? ND : 1];
	int32_t id; /* of lane k's route */
};

template <int CASE = GPU_ANY, int X, int ND>
static __device__ __forceinline__ void load_raw(
	const struct gpu_dispatch *d, uint32_t token, uint32_t which, raw_segment<X, ND> &raw)
{
	const struct gpu_exchange *e = &d->exchange;
	const uint8_t *row = d->x + token * d->x_stride,
		      *scales = d->scales + token * d->scales_stride;
	struct extent x = segment_extent(&e->row, which);
	constexpr int LOADS = x_kind<X>::LOADS;

	raw.id = lane_id() < e->topk ? expert_id<CASE>(d, token * e->topk + lane_id()) : -1;
#pragma unroll
	for (int i = 0; i < ND; i++) {
		uint32_t offset;
		bool in = in_row(x, i, &offset);

#pragma unroll
		for (int h = 0; h < LOADS; h++)
			raw.x[i][h] = in ? row_load(row + offset * LOADS + h * 16)
					 : make_uint4(0, 0, 0, 0);
		if (X == GPU_X_GIVEN)
			raw.scale[i] =
				!has_line(x, i) ? 0 /* all lanes of the line have it */
				: d->scale_bytes == 4
					? ((const uint32_t *)scales)[first_line(x) + line_of(i)]
					: scales[first_line(x) + line_of(i)];
	}
}

/* As a segment travels: S has v[ND] and scale[ND]. */
template <int X, int ND, class S>
static __device__ __forceinline__ void make_segment(
	const struct gpu_dispatch *d, const raw_segment<X, ND> &raw, S &s)
{
	if constexpr (x_kind<X>::LOADS > 1) {
		quantise_blocks<X, ND>(raw.x, d->scale_bytes == 1, s.v, s.scale);
	} else {
#pragma unroll
		for (int i = 0; i < ND; i++) {
			s.v[i] = raw.x[i][0];
			if constexpr (X == GPU_X_GIVEN)
				s.scale[i] = raw.scale[i];
		}
	}
}

/* By all lanes of the line, of which one stores. */
static __device__ __forceinline__ void store_scale(
	const struct gpu_dispatch *d, uint8_t *scales, uint64_t at, uint32_t scale)
{
	if (lane_id() % 8)
		return;
	if (d->scale_bytes == 4)
		((uint32_t *)scales)[at] = scale;
	else
		scales[at] = (uint8_t)scale;
}

/* Lane k's destination, and a bit for each different one: the rank's, and if GPU_ANY that of the
 * first lane which has it.
 */
template <int CASE = GPU_ANY>
static __device__ __forceinline__ uint32_t destinations(
	const struct gpu_exchange *e, int32_t id, uint32_t index, uint32_t *rank)
{
	uint32_t physical =
			 lane_id() < e->topk ? physical_expert<CASE>(e, id, index) : GPU_NO_EXPERT,
		 same;

	*rank = physical == GPU_NO_EXPERT ? UINT32_MAX : expert_rank<CASE>(&e->placement, physical);
	if (CASE > GPU_ANY)
		return __reduce_or_sync(ALL_LANES, *rank == UINT32_MAX ? 0 : 1u << *rank);
	same = __match_any_sync(ALL_LANES, *rank);
	return __ballot_sync(ALL_LANES, *rank != UINT32_MAX && is_lowest_of(same));
}

/* Those of the bits that do not stand for this rank. */
template <int CASE>
static __device__ __forceinline__ uint32_t destinations_away(
	const struct gpu_exchange *e, uint32_t bits, uint32_t rank)
{
	return bits &
	       (CASE > GPU_ANY ? ~(1u << e->rank) : __ballot_sync(ALL_LANES, rank != e->rank));
}

/* The rank that the lowest bit stands for. */
template <int CASE>
static __device__ __forceinline__ uint32_t first_destination(uint32_t bits, uint32_t rank)
{
	uint32_t lowest = __ffs(bits) - 1;

	return CASE > GPU_ANY ? lowest : __shfl_sync(ALL_LANES, rank, lowest);
}

/* Ids that no caller should pass. */
template <int CASE = GPU_ANY>
static __device__ __forceinline__ void check_ids(
	const struct gpu_dispatch *d, uint32_t epoch, uint32_t token, int32_t id)
{
	const struct gpu_exchange *e = &d->exchange;
	bool none = lane_id() >= e->topk || id == -1,
	     outside = !none && (uint32_t)id >= e->placement.nr_experts;
	uint32_t same = __match_any_sync(ALL_LANES, none ? -2 - (int32_t)lane_id() : id);
	bool twice = !none && !outside && !is_lowest_of(same);
	uint32_t bad = __ballot_sync(ALL_LANES, outside || twice);

	if (bad && lane_id() == __ffs(bad) - 1)
		complain(e, outside ? GPU_ID_RANGE : GPU_ID_TWICE, token, lane_id(),
			CASE != GPU_PLAIN && d->ids_64
				? ((const int64_t *)d->topk_ids)[token * e->topk + lane_id()]
				: id,
			epoch);
}

#endif
