/* SPDX-License-Identifier: Apache-2.0 */
/* Results, in either mode: a warp's piece of what the experts made of a token, summed; and in which
 * order a home sums what comes. */
#ifndef TERN_GPU_CUDA_COMMON_RESULTS_CUH
#define TERN_GPU_CUDA_COMMON_RESULTS_CUH

#include "gpu/cuda/common/numbers.cuh"
#include "gpu/cuda/common/plan.cuh"

#define CHUNK(ND) ((ND) < 4 ? (ND) : 4) /* vectors summed at a time: what registers hold */

/* No load here is under a condition: the compiler would have the warp wait for it before what else
 * could be under way. A lane without anything in the row loads its first bytes, which nobody uses.
 */
template <bool ALONE = false, int N>
static __device__ __forceinline__ void load_part(
	const struct gpu_combine *c, uint32_t position, struct extent x, int first, uint4 (&v)[N])
{
	const uint8_t *row = c->y + position * c->y_stride;

#pragma unroll
	for (int i = 0; i < N; i++) {
		uint32_t offset;
		bool in = in_row<ALONE>(x, first + i, &offset);

		v[i] = row_load(row + (in ? offset : 0));
	}
}

static __device__ __forceinline__ float weight_of(const struct gpu_combine *c, uint32_t bits)
{
	return c->weighted ? __uint_as_float(bits) : 1;
}

/* N vectors of a token's rows here, weighted and summed. Several rows are loaded before the first
 * is needed. */
template <int Y, int N, int ROWS>
static __device__ __forceinline__ void sum_part(
	const struct gpu_combine *c, uint2 route, struct extent x, int first, uint4 *out)
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
			float weight = weight_of(c, __shfl_sync(ALL_LANES, route.y, k[r] % LANES));

			if (k[r] == LANES)
				break;
#pragma unroll
			for (int i = 0; i < N; i++)
				add_vector<Y>(sum[i], v[r][i], weight);
		}
	}
#pragma unroll
	for (int i = 0; i < N; i++)
		out[i] = round_vector<Y>(sum[i]);
}

/* Rows of a token's sum that are loaded together. */
#define BATCH 4

/* What a token's sum here is made of, in the order of k: the first rows, and which lanes know of
 * more. */
struct addends {
	const uint8_t *row[2 * BATCH];
	float weight[2 * BATCH];
	int nr;
	uint32_t more;
};

/* Rows FIRST to FIRST + BATCH - 1; left: the lanes that know of them and of those behind; here: of
 * any, and there is one. Where there are no so many, the first. */
template <int FIRST>
static __device__ __forceinline__ uint32_t find_rows(
	const struct gpu_combine *c, uint2 route, uint32_t here, uint32_t left, struct addends &a)
{
#pragma unroll
	for (int r = FIRST; r < FIRST + BATCH; r++) {
		a.row[r] = c->y + __shfl_sync(ALL_LANES, route.x, __ffs(left ? left : here) - 1) *
					  c->y_stride;
		left &= left - 1;
	}
	return left;
}

static __device__ __forceinline__ void find_weights(
	const struct gpu_combine *c, uint2 route, uint32_t here, struct addends &a)
{
#pragma unroll
	for (int r = 0; r < 2 * BATCH; r++) {
		a.weight[r] = weight_of(c, __shfl_sync(ALL_LANES, route.y, __ffs(here) - 1));
		here &= here - 1;
	}
}

/* Vector i of rows FIRST to FIRST + BATCH - 1. Where there are no so many, the first bytes of one,
 * as in load_part. */
template <int FIRST, bool ALONE>
static __device__ __forceinline__ void load_batch(const struct gpu_combine *c,
	const struct addends &a, struct extent x, int i, uint4 (&v)[BATCH])
{
	uint32_t offset;
	bool in = in_row<ALONE>(x, i, &offset);

#pragma unroll
	for (int r = 0; r < BATCH; r++)
		v[r] = row_load(a.row[FIRST + r] + (in && FIRST + r < a.nr ? offset : 0));
}

template <int Y, int FIRST>
static __device__ __forceinline__ void add_batch(
	const struct addends &a, const uint4 (&v)[BATCH], float (&sum)[y_kind<Y>::PER_VECTOR])
{
#pragma unroll
	for (int r = 0; r < BATCH; r++)
		if (FIRST + r < a.nr)
			add_vector<Y>(sum, v[r], a.weight[FIRST + r]);
}

/* The sum of a token's rows here, vector by vector. */
template <int Y> struct summation {
	struct addends a;
	uint4 first[BATCH]; /* of the vector that is next */
};

/* Vector i, while the next one's first rows are on their way (LAST: there is no next one). */
template <int Y, bool LAST, bool ALONE>
static __device__ __forceinline__ uint4 sum_vector(
	const struct gpu_combine *c, struct summation<Y> &s, uint2 route, struct extent x, int i)
{
	float sum[y_kind<Y>::PER_VECTOR] = {};
	uint4 second[BATCH], next[BATCH];

	if (s.a.nr > BATCH)
		load_batch<BATCH, ALONE>(c, s.a, x, i, second);
	if (!LAST)
		load_batch<0, ALONE>(c, s.a, x, i + 1, next);
	add_batch<Y, 0>(s.a, s.first, sum);
	if (s.a.nr > BATCH)
		add_batch<Y, BATCH>(s.a, second, sum);
	for (uint32_t left = s.a.more; left; left &= left - 1) {
		uint32_t k = __ffs(left) - 1;
		uint4 one[1];

		load_part<ALONE>(c, __shfl_sync(ALL_LANES, route.x, k), x, i, one);
		add_vector<Y>(sum, one[0], weight_of(c, __shfl_sync(ALL_LANES, route.y, k)));
	}
#pragma unroll
	for (int r = 0; r < BATCH && !LAST; r++)
		s.first[r] = next[r];
	return round_vector<Y>(sum);
}

/* The next result of a token in the order of its sum, after `last`; UINT32_MAX: none. At the
 * expert: a rank. At home: a k. */
static __device__ __forceinline__ uint32_t next_result(
	const struct gpu_exchange *e, uint2 route, uint32_t last)
{
	uint32_t mine = route.x == UINT32_MAX ? UINT32_MAX : e->at_home ? lane_id() : route.x;

	return __reduce_min_sync(ALL_LANES, last == UINT32_MAX || mine > last ? mine : UINT32_MAX);
}

/* The first route of which that is the result. */
static __device__ __forceinline__ uint32_t first_of_result(
	const struct gpu_exchange *e, uint2 route, uint32_t result)
{
	uint32_t same = __ballot_sync(ALL_LANES, route.x == result);

	return e->at_home ? result : __ffs(same) - 1;
}

template <int Y, int ND> struct sums {
	float of[ND][y_kind<Y>::PER_VECTOR];
};

#endif
