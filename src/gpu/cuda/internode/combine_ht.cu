/* SPDX-License-Identifier: Apache-2.0 */
/* High-throughput combine to and from ranks on other nodes (internode_ht.cuh).
 *
 *   results_out   a token of an internode source by a warp: its head -> y rows -> (sum) -> staging;
 *                 then commands for runs of results
 *   results_in    a token by a warp: its internode results, landing -> this rank's window, where the
 *                 combine's own kernel sums them with all others
 */
#include "gpu/cuda/internode/internode_ht.cuh"
#include "gpu/cuda/common/results.cuh"

#define ND 4 /* vectors of a lane in a segment */

/* ---- sending --------------------------------------------------------------------------------- */

static __device__ __forceinline__ uint8_t *staged_result(const struct gpu_exchange *e,
	const struct ht_exchange *h, uint32_t home, uint32_t token, uint32_t k, uint32_t number)
{
	return part_to<true>(e, INTERNODE_RESULTS, home) + h->window.results +
	       result_number<true>(e, home, token, k, h->window.nr_columns, number) *
		       e->result.row_bytes;
}

static __device__ __forceinline__ void stage_segment(const struct gpu_exchange *e,
	const struct ht_exchange *h, struct extent x, uint32_t source, uint32_t token, uint32_t k,
	uint32_t number, const uint4 (&v)[ND])
{
	uint32_t home = home_first(e, source);

	for (uint32_t r = home; r < home + e->by_replicas.d; r++)
#pragma unroll
		for (int i = 0; i < ND; i++) {
			uint32_t offset;

			if (in_row(x, i, &offset))
				row_store(staged_result(e, h, r, token, k, number) + offset, v[i]);
		}
}

template <int Y>
static __device__ __forceinline__ void stage_results(const struct gpu_combine *c,
	const struct ht_exchange *h, uint32_t source, uint32_t token, uint32_t number, uint2 route,
	uint32_t here)
{
	const struct gpu_exchange *e = &c->exchange;

	for (uint32_t which = 0; which < e->result.nr_segments && here; which++) {
		struct extent x = segment_extent(&e->result, which);
		uint4 v[ND];

		if (!e->at_home) {
			sum_part<Y, ND, 2>(c, route, x, 0, v);
			stage_segment(e, h, x, source, token, 0, number, v);
			continue;
		}
		for (uint32_t left = here; left; left &= left - 1) {
			uint32_t k = __ffs(left) - 1;

			load_part(c, __shfl_sync(ALL_LANES, route.x, k), x, 0, v);
			stage_segment(e, h, x, source, token, k, number, v);
		}
	}
}

/* By one warp, when all have stored what internode ranks get. */
static __device__ __noinline__ void ring_internode_results(
	const struct gpu_exchange *e, const struct ht_exchange *h, uint32_t epoch)
{
	struct internode_table *internode = e->internode;
	uint32_t begun = 0;

	for (uint32_t i = 0; i < internode->nr_internode; i++) {
		const struct internode_rank *home = &internode->ranks[i];
		uint32_t runs = 0, sums = 0;

		for (uint32_t first = 0; first < e->max_tokens; first += LANES) {
			uint32_t token = first + lane_id(),
				 bits = token < e->max_tokens
						? internode->results[i * e->max_tokens + token]
						: 0,
				 mine = 0;

			if (!e->at_home)
				sums += __popc(__ballot_sync(ALL_LANES, bits != 0));
			else if (bits)
				mine = internode_ring_bits(internode, home, INTERNODE_COMBINE,
					(uint64_t)token * e->topk, bits);
			runs += __reduce_add_sync(ALL_LANES, mine);
		}
		begun += internode_ring_sums(internode, home, epoch, runs, sums);
	}
	if (lane_id() == 0)
		internode_has_begun(internode, INTERNODE_COMBINE, begun);
}

/* All tokens that there can be, of a home and not of a source: those that did not come have no
 * bits. False: a head names what there is not, or with gates y was not made in time. */
template <int Y>
static __device__ __forceinline__ bool send_home(const struct gpu_combine *c,
	const struct ht_exchange *h, uint32_t epoch, uint32_t number, uint32_t warp,
	uint32_t nr_warps)
{
	const struct gpu_exchange *e = &c->exchange;
	uint32_t home = e->internode->ranks[number].rank,
		 nr = internode_nr_tokens(e, h, epoch, home); /* the same of all its replicas */

	for (uint32_t token = warp; token < e->max_tokens; token += nr_warps) {
		uint32_t source = home_first(e, home) + token -
				  gpu_div(token, e->by_replicas) * e->by_replicas.d,
			 here = 0, place = 0;
		uint4 head = make_uint4(UINT32_MAX, 0, UINT32_MAX, 0);

		if (token < nr)
			head = internode_token_head(e, h, source, token, epoch);
		if (!check_head(e, e->state->extent, epoch, source, token, head)) /* it may have
										     changed since
										   */
			return false;
		here = __ballot_sync(ALL_LANES, head.x != UINT32_MAX);
		if (here && !e->at_home)
			place = word_load(numbers_from(e, source, token) + 1);
		if (!check_number(e, epoch, source, token, place))
			return false;
		if (c->gate.marks && !await_row_of_y(c, epoch,
					     head.x != UINT32_MAX && head.z != UINT32_MAX, head))
			return false;
		if (source == home) /* once for all of its replicas */
			stage_results<Y>(
				c, h, source, token, place, make_uint2(head.x, head.y), here);
		if (lane_id() == 0)
			e->internode->results[number * e->max_tokens + token] = here;
	}
	return true;
}

template <int Y>
static __device__ __forceinline__ void results_out(
	const struct gpu_combine *c, const struct ht_exchange *h)
{
	const struct gpu_exchange *e = &c->exchange;
	uint32_t warp = threadIdx.x / LANES * gridDim.x + blockIdx.x,
		 nr_warps = blockDim.x / LANES * gridDim.x;
	uint4 state = *(const uint4 *)e->state; /* epoch_dispatch, epoch_combine, nr_tokens, failed
						 */

	if (state.w || e->state->abandoned)
		return;
	for (uint32_t i = 0; i < e->internode->nr_internode; i++)
		if (!send_home<Y>(c, h, state.y, i, warp, nr_warps))
			return;
	if (internode_last(e, nr_warps))
		ring_internode_results(e, h, state.y);
}

/* ---- at home --------------------------------------------------------------------------------- */

static __device__ __forceinline__ void fetch_result(
	const uint8_t *from, uint8_t *to, uint32_t bytes)
{
#pragma unroll 4
	for (uint32_t at = lane_id() * 16; at < bytes; at += LANES * 16)
		row_store(to + at, row_load(from + at));
}

static __device__ __forceinline__ void fetch_token(
	const struct gpu_exchange *e, const struct ht_exchange *h, uint32_t epoch, uint32_t token)
{
	uint2 route = lane_id() < e->topk ? e->home_routes[token * e->topk + lane_id()]
					  : make_uint2(UINT32_MAX, 0);
	uint32_t same = __match_any_sync(ALL_LANES, route.x);
	bool comes = route.x != UINT32_MAX && is_internode<true>(e, route.x) &&
		     (e->at_home || is_lowest_of(same));
	uint64_t cell = (uint64_t)token * h->window.nr_columns +
			(h->window.rank_columns ? route.x : lane_id());
	uint8_t *window = e->windows[e->rank];

	for (uint32_t left = __ballot_sync(ALL_LANES, comes); left; left &= left - 1) {
		uint32_t k = __ffs(left) - 1, rank = __shfl_sync(ALL_LANES, route.x, k);
		uint64_t result = result_number<true>(e, rank, token, k, h->window.nr_columns,
			e->internode->numbers[token * e->topk + k]);
		uint64_t to = (uint64_t)token * h->window.nr_columns +
			      (h->window.rank_columns ? rank : k);

		fetch_result(part_from<true>(e, INTERNODE_RESULTS, rank) + h->window.results +
				     result * e->result.row_bytes,
			window + h->window.results + to * e->result.row_bytes, e->result.row_bytes);
	}
	if (comes) /* read behind this kernel's end */
		word_store(window + h->window.result_words + cell * 4, epoch);
}

static __device__ __forceinline__ void results_in(
	const struct gpu_combine *c, const struct ht_exchange *h)
{
	const struct gpu_exchange *e = &c->exchange;
	uint32_t warp = threadIdx.x / LANES * gridDim.x + blockIdx.x,
		 nr_warps = blockDim.x / LANES * gridDim.x;
	uint4 state = *(const uint4 *)e->state;

	if (e->state->abandoned ||
		!internode_arrived<true>(e, INTERNODE_COMBINE, state.y, GPU_WAIT_RESULT, state.w,
			threadIdx.x / LANES, blockDim.x / LANES) ||
		state.w)
		return;
	for (uint32_t token = warp; token < state.z; token += nr_warps)
		fetch_token(e, h, state.y, token);
}

namespace tern
{
/* One name for both ways, as profilers know a half by its name. */
template <int ROLE, int Y>
static __global__ void __launch_bounds__(512) combine_internode(
	const __grid_constant__ struct gpu_combine c, const __grid_constant__ struct ht_exchange h)
{
	if constexpr (ROLE == GPU_SEND)
		results_out<Y>(&c, &h);
	else
		results_in(&c, &h);
}
} // namespace tern

/* ---- launching ------------------------------------------------------------------------------- */

static internode_kernel<struct gpu_combine> choose(const struct gpu_combine *c)
{
	return c->kind == GPU_Y_BF16   ? tern::combine_internode<GPU_SEND, GPU_Y_BF16>
	       : c->kind == GPU_Y_FP16 ? tern::combine_internode<GPU_SEND, GPU_Y_FP16>
				       : tern::combine_internode<GPU_SEND, GPU_Y_FP32>;
}

/* Results that come are copied, whatever they are of. */
static const internode_kernel<struct gpu_combine> receive_kernel =
	tern::combine_internode<GPU_RECEIVE, GPU_Y_BF16>;

cudaError_t internode_combine_prepare(const struct gpu_combine *c)
{
	return internode_prepare<struct gpu_combine>(choose(c), receive_kernel);
}

cudaError_t internode_combine_launch(const struct gpu_combine *c, const struct ht_exchange *h,
	const struct gpu_launch *launch, enum gpu_roles role, cudaStream_t stream)
{
	return internode_launch(
		role == GPU_SEND ? choose(c) : receive_kernel, c, h, launch, stream);
}
