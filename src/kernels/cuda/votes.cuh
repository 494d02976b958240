/* SPDX-License-Identifier: Apache-2.0 */
/* Positions where routes are few (LL_VOTES): no tables of bits. A block keeps all sources' ids one behind the other, and a warp that has a row's
 * segment counts by votes which routes come before it: one barrier, and nothing that all warps have to do first.
 *
 *   ids    [source][token][k], LL_NO_EXPERT behind a source's last token
 *   key    local expert << 16 | source * T + token: rows lie in the order of their keys. Equal keys (an expert named twice) are one row.
 *
 * For LL_PLAIN, one warp's piece of plan for a source (T x K <= 224), K a power of two from 2 to 32.
 */
#ifndef TERN_CUDA_VOTES_CUH
#define TERN_CUDA_VOTES_CUH

#include "once.cuh"

#define NO_KEY UINT32_MAX

/* Route number i's key, if it ends here. */
__device__ __forceinline__ uint32_t route_key(const struct ll_exchange *e, const struct positions *p, uint32_t i)
{
	uint32_t local = i < e->nr_ranks * p->ids_stride ? local_of<LL_PLAIN>(e, p->ids[i]) : UINT32_MAX;

	return local == UINT32_MAX ? NO_KEY : local << 16 | ll_div(i, e->by_topk);
}

/* Only the first of equal keys counts. All are of one token, so of one step. */
__device__ __forceinline__ uint32_t first_of_equals(uint32_t key)
{
	uint32_t same = __match_any_sync(ALL_LANES, key);

	return same & ((1u << lane_id()) - 1) ? NO_KEY : key;
}

/* A source's ids in the block's memory; by one warp. */
template <int FORMAT> __device__ __forceinline__ void spread_ids(const struct positions *p, uint32_t source, uint32_t nr_ids, uint4 v)
{
	constexpr uint32_t N = plan_line<FORMAT>::LANE_IDS;
	uint32_t first = (lane_id() - lane_id() / 8) * N, none = LL_NO_EXPERT << 16 | LL_NO_EXPERT;
	uint32_t *to = (uint32_t *)(p->ids + source * p->ids_stride + first);
	const uint32_t words[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
	for (uint32_t i = 0; i < N / 2; i++)
		if (lane_id() % 8 != 7 && first + 2 * i < p->ids_stride)
			to[i] = first + 2 * i < nr_ids ? words[i] : none;
}

/* All sources' ids, by the last warps: the first ones have rows to look for. False: some plan did not come. */
template <int FORMAT>
__device__ __forceinline__ bool take_ids(const struct ll_exchange *e, const struct positions *p, uint32_t epoch, bool failed, uint32_t warp, uint32_t nr_warps)
{
	bool good = !failed;

	for (uint32_t s = nr_warps - 1 - warp; s < e->nr_ranks; s += nr_warps) {
		struct plan_piece piece = {s, 0, {}, {}};
		uint32_t nr_tokens = 0;

		look_at_plan(e, &piece);
		good = good && await_plan<FORMAT>(e, epoch, &piece, &nr_tokens);
		spread_ids<FORMAT>(p, s, nr_tokens * e->topk, piece.v);
		if (lane_id() == 0)
			p->nr_tokens[s] = good ? nr_tokens : UINT32_MAX;
	}
	warps_sync(nr_warps * LANES);
	for (uint32_t s = 0; s < e->nr_ranks; s++)
		good = good && p->nr_tokens[s] != UINT32_MAX;
	return good;
}

/* Lane k's position: rows with smaller keys. */
__device__ __forceinline__ uint32_t position_by_votes(const struct ll_exchange *e, const struct positions *p, uint32_t source, uint32_t token,
	uint32_t local)
{
	uint32_t nr = e->nr_ranks * p->ids_stride, mine = local == UINT32_MAX ? NO_KEY : local << 16 | (source * e->max_tokens + token);
	uint32_t here = __ballot_sync(ALL_LANES, mine != NO_KEY), position = mine == NO_KEY ? UINT32_MAX : 0;

	for (uint32_t i = lane_id(); i - lane_id() < nr; i += LANES) {
		uint32_t key = first_of_equals(route_key(e, p, i));

		for (uint32_t left = here; left; left &= left - 1) {
			uint32_t k = __ffs(left) - 1, before = __popc(__ballot_sync(ALL_LANES, key < __shfl_sync(ALL_LANES, mine, k)));

			position += k == lane_id() ? before : 0;
		}
	}
	return position;
}

/* A source's tokens before `token` that have a route to here. */
__device__ __forceinline__ uint32_t rows_by_votes(const struct ll_exchange *e, const struct positions *p, uint32_t source, uint32_t token)
{
	uint32_t first = source * p->ids_stride, end = first + token * e->topk, rows = 0;
	uint32_t heads = __ballot_sync(ALL_LANES, (lane_id() & (e->topk - 1)) == 0);

	for (uint32_t i = first; i < end; i += LANES) {
		uint32_t at = i + lane_id(), here = __ballot_sync(ALL_LANES, at < end && route_key(e, p, at) != NO_KEY);

		for (uint32_t step = 1; step < e->topk; step *= 2)
			here |= here >> step; /* a token's first bit: any of its routes */
		rows += __popc(here & heads);
	}
	return rows;
}

/* By one warp of one block: what the caller is told of experts, and the combine of sources. Counts in the place of bases. */
__device__ __forceinline__ void publish_votes(const struct ll_dispatch *d, const struct positions *p)
{
	const struct ll_exchange *e = &d->exchange;
	uint32_t start = 0, arrived = 0;

	for (uint32_t x = lane_id(); x < e->nr_local; x += LANES)
		p->base[x] = 0;
	__syncwarp();
	for (uint32_t i = lane_id(); i - lane_id() < e->nr_ranks * p->ids_stride; i += LANES) {
		uint32_t key = first_of_equals(route_key(e, p, i)), x = key == NO_KEY ? NO_KEY : key >> 16, same = __match_any_sync(ALL_LANES, x);

		if (x != NO_KEY && lane_id() == __ffs(same) - 1)
			p->base[x] += __popc(same);
		__syncwarp();
	}
	for (uint32_t first = 0; first < e->nr_local; first += LANES) {
		uint32_t x = first + lane_id(), rows = x < e->nr_local ? p->base[x] : 0, all, before = lanes_before(rows, &all);

		if (x < e->nr_local) {
			d->out_counts[x] = rows;
			d->out_offsets[x] = start + before;
		}
		start += all;
	}
	if (lane_id() == 0) {
		d->out_sums[0] = d->out_sums[1] = start;
		tally_received(e, start);
	}
	for (uint32_t s = 0; s < e->nr_ranks; s++) {
		uint32_t rows = rows_by_votes(e, p, s, e->max_tokens);

		if (lane_id() == 0)
			e->state->nr_from[s] = rows;
		arrived += rows;
	}
	if (lane_id() == 0)
		e->state->nr_arrived = arrived;
}

#endif
