/* SPDX-License-Identifier: Apache-2.0 */
/* Results, in either mode: a warp's piece of what the experts made of a token, summed; and in which order a home sums what comes. */
#ifndef TERN_CUDA_RESULTS_CUH
#define TERN_CUDA_RESULTS_CUH

#include "numbers.cuh"
#include "plan.cuh"

#define CHUNK(ND) ((ND) < 4 ? (ND) : 4) /* vectors summed at a time: what registers hold */

template <int N> static __device__ __forceinline__ void load_part(const struct ll_combine *c, uint32_t position, struct extent x, int first, uint4 (&v)[N])
{
	const uint8_t *row = c->y + position * c->y_stride;

#pragma unroll
	for (int i = 0; i < N; i++) {
		uint32_t offset;

		v[i] = in_row(&c->exchange.result, x, first + i, &offset) ? row_load(row + offset) : make_uint4(0, 0, 0, 0);
	}
}

/* N vectors of a token's rows here, weighted and summed. Several rows are loaded before the first is needed. */
template <int Y, int N, int ROWS>
static __device__ __forceinline__ void sum_part(const struct ll_combine *c, uint2 route, struct extent x, int first, uint4 *out)
{
	uint32_t here = __ballot_sync(ALL_LANES, route.x != UINT32_MAX);
	float sum[N][y_kind<Y>::PER_VECTOR] = {};

	while (here) {
		uint4 v[ROWS][N];
		uint32_t k[ROWS];
#pragma unroll
		for (int r = 0; r < ROWS; r++) {
			k[r] = here ? __ffs(here) - 1 : LANES;
			if (here)
				load_part(c, __shfl_sync(ALL_LANES, route.x, k[r]), x, first, v[r]);
			here &= here - 1;
		}
#pragma unroll
		for (int r = 0; r < ROWS; r++) {
			float weight = __uint_as_float(__shfl_sync(ALL_LANES, route.y, k[r] % LANES));

			if (k[r] == LANES)
				break;
#pragma unroll
			for (int i = 0; i < N; i++)
				add_vector<Y>(sum[i], v[r][i], c->weighted, weight);
		}
	}
#pragma unroll
	for (int i = 0; i < N; i++)
		out[i] = round_vector<Y>(sum[i]);
}

/* The next result of a token in the order of its sum, after `last`; UINT32_MAX: none. At the expert: a rank. At home: a k. */
static __device__ __forceinline__ uint32_t next_result(const struct ll_exchange *e, uint2 route, uint32_t last)
{
	uint32_t mine = route.x == UINT32_MAX ? UINT32_MAX : e->at_home ? lane_id() : route.x;

	return __reduce_min_sync(ALL_LANES, last == UINT32_MAX || mine > last ? mine : UINT32_MAX);
}

/* The column in which that result lies. */
static __device__ __forceinline__ uint32_t column_of(const struct ll_exchange *e, uint2 route, uint32_t result)
{
	uint32_t same = __ballot_sync(ALL_LANES, route.x == result);

	return e->at_home ? result : __ffs(same) - 1;
}

template <int Y, int ND> struct sums {
	float of[ND][y_kind<Y>::PER_VECTOR];
};

#endif
