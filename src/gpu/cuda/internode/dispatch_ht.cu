/* SPDX-License-Identifier: Apache-2.0 */
/* High-throughput dispatch to and from ranks on other nodes (internode_ht.cuh).
 *
 *   rows_out   a token by a warp: x -> (quantise) -> staging, at the row's number; its heads, and
 *              ways; then commands
 *   rows_in    two hops: a row by a warp: landing -> the first places of it on ranks of this node.
 *              Then a token of an internode source by a warp: landing, or in two hops that first
 *              place -> the final places of its rows here, descriptions
 */
#include "gpu/cuda/internode/internode_ht.cuh"
#include "gpu/cuda/common/rows.cuh"
#include "gpu/cuda/internode/receive_groups_ht.cuh"

/* ---- sending --------------------------------------------------------------------------------- */

template <int X, int ND>
static __device__ __forceinline__ void stage_piece(const struct gpu_dispatch *d, struct extent x,
	uint32_t rank, uint32_t number, const segment<GPU_FLAG128, x_kind<X>::SCALED, ND> &s)
{
	const struct gpu_exchange *e = &d->exchange;
	uint8_t *row = part_to<true>(e, INTERNODE_X, rank) + far_row_at(e, number);

#pragma unroll
	for (int i = 0; i < ND; i++) {
		uint32_t offset;

		if (!in_row(x, i, &offset))
			continue;
		row_store(row + offset, s.v[i]);
		if constexpr (x_kind<X>::SCALED)
			store_scale(
				d, row + e->row.row_bytes, first_line(x) + line_of(i), s.scale[i]);
	}
}

/* lanes: one for each rank that the row is sent to; rank: that of each. */
template <int X, int ND>
static __device__ __forceinline__ void stage_row(const struct gpu_dispatch *d, uint32_t token,
	uint32_t rank, struct row_number number, uint32_t lanes)
{
	const struct gpu_exchange *e = &d->exchange;

#pragma unroll 1
	for (uint32_t which = 0; which < e->row.nr_segments && lanes; which++) {
		raw_segment<X, ND> raw;
		segment<GPU_FLAG128, x_kind<X>::SCALED, ND> s;

		load_raw(d, token, which, raw);
		make_segment<X, ND>(d, raw, s);
#pragma unroll 1
		for (uint32_t left = lanes; left; left &= left - 1)
			stage_piece<X, ND>(d, segment_extent(&e->row, which),
				__shfl_sync(ALL_LANES, rank, __ffs(left) - 1),
				__shfl_sync(ALL_LANES, number.row, __ffs(left) - 1), s);
	}
}

/* Every internode rank gets one of every token: nobody counts which are missing. */
static __device__ __forceinline__ void stage_heads(const struct gpu_dispatch *d,
	const struct ht_exchange *h, uint32_t epoch, uint32_t token, struct destination to,
	struct row_number number, bool first)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t weight = __float_as_uint(1.0f);

	if (lane_id() < e->topk && d->topk_weights)
		weight = __float_as_uint(d->topk_weights[token * e->topk + lane_id()]);
	for (uint32_t i = 0; i < e->internode->nr_internode && lane_id() < e->topk; i++) {
		uint32_t r = e->internode->ranks[i].rank;
		bool here = to.rank == r;

		piece_store(part_to<true>(e, INTERNODE_HEADS, r) +
				    head_at(e, h, e->rank, token, lane_id()),
			make_uint4(here && (first || !d->by_source) ? to.position : UINT32_MAX,
				weight, here ? to.local : UINT32_MAX, epoch));
		if (here && first) {
			uint32_t *numbers = numbers_to(e, r, token);

			word_store(numbers, number.row);
			word_store(numbers + 1, number.result);
		}
	}
}

/* Two hops: to each gateway what it has to know of the row; lanes and rank as in stage_row. */
static __device__ __forceinline__ void stage_ways(const struct gpu_exchange *e, uint32_t epoch,
	uint32_t token, struct destination to, struct row_number number, uint32_t rank,
	uint32_t lanes, bool first)
{
	for (uint32_t left = e->internode->two_hops ? lanes : 0; left; left &= left - 1) {
		uint32_t gateway = __shfl_sync(ALL_LANES, rank, __ffs(left) - 1),
			 row = __shfl_sync(ALL_LANES, number.row, __ffs(left) - 1);

		tell_way(e, epoch, token, gateway, row, to.rank);
		tell_positions(e, gateway, row, to.rank, to.position, first);
	}
}

/* The lowest lanes of those with the same rank, where that is on another node. */
static __device__ __forceinline__ uint32_t lanes_of_far_ranks(
	const struct gpu_exchange *e, uint32_t rank)
{
	uint32_t same = __match_any_sync(ALL_LANES, rank);

	return __ballot_sync(ALL_LANES, internode_number(e, rank) && is_lowest_of(same));
}

template <int X, int ND>
static __device__ __forceinline__ void stage_token(const struct gpu_dispatch *d,
	const struct ht_exchange *h, uint32_t epoch, uint32_t token, struct row_number number)
{
	const struct gpu_exchange *e = &d->exchange;
	struct destination to = find_place(d, h, token, load_route(d, h, token));
	bool first = lanes_of_far_ranks(e, to.rank) >> lane_id() & 1;
	uint32_t via = via_rank(e, to.rank), lanes = lanes_of_far_ranks(e, via);

	stage_row<X, ND>(d, token, via, number, lanes);
	stage_ways(e, epoch, token, to, number, via, lanes, first);
	stage_heads(d, h, epoch, token, to, number, first);
	if (internode_number(e, to.rank))
		h->routes[token * e->topk + lane_id()].x = UINT32_MAX;
}

/* For its results also of a token that a replica sends. GATED: rows lie by groups. */
template <bool GATED>
static __device__ __forceinline__ bool number_token(const struct gpu_exchange *e, uint32_t epoch,
	uint32_t token, uint32_t nr_tokens, struct row_number *number)
{
	struct row_number by_group;
	uint32_t index = token * e->topk + lane_id(),
		 rank = lane_id() < e->topk ? e->home_routes[index].x : UINT32_MAX;

	if (!find_number<false>(e, epoch, rank, token, nr_tokens, number))
		return false;
	if (lane_id() < e->topk)
		e->internode->numbers[index] = number->result;
	if (!GATED)
		return true;
	if (!find_number_by_group<false>(e, epoch, via_rank(e, rank), token, nr_tokens, &by_group))
		return false;
	number->row = by_group.row;
	return true;
}

template <int X, int ND, bool GATED>
static __device__ __forceinline__ void rows_out(
	const struct gpu_dispatch *d, const struct ht_exchange *h)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t warp = threadIdx.x / LANES * gridDim.x + blockIdx.x,
		 nr_warps = blockDim.x / LANES * gridDim.x;
	uint4 state = *(const uint4 *)e->state; /* epoch_dispatch, epoch_combine, nr_tokens, failed
						 */

	if (state.w || e->state->abandoned)
		return;
	note_all_going<false>(d, state.y, state.z, warp, nr_warps);
	if (GATED)
		note_all_groups(d, state.y, state.z, warp, nr_warps);
	for (uint32_t token = warp; token < state.z; token += nr_warps) {
		struct row_number number;

		if (!number_token<GATED>(e, state.y, token, state.z, &number))
			return;
		if (is_mine(e, token))
			stage_token<X, ND>(d, h, state.y, token, number);
	}
	if (!internode_last(e, nr_warps))
		return;
	if (GATED)
		ring_internode_groups(e, state.y, state.z);
	else
		ring_internode_rows(e, state.y, state.z);
}

/* ---- receiving ------------------------------------------------------------------------------- */

static __device__ __forceinline__ void rows_in(
	const struct gpu_dispatch *d, const struct ht_exchange *h)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t warp = threadIdx.x / LANES * gridDim.x + blockIdx.x,
		 nr_warps = blockDim.x / LANES * gridDim.x;
	uint4 state = *(const uint4 *)e->state;

	if (e->state->abandoned ||
		!internode_arrived<true>(e, INTERNODE_DISPATCH, state.y, GPU_WAIT_ROW, state.w,
			threadIdx.x / LANES, blockDim.x / LANES) ||
		state.w ||
		(e->internode->two_hops &&
			!forward_sources(e, state.y, warp, nr_warps, forward_high{d, h})))
		return;
	for (uint32_t i = 0; i < e->internode->nr_internode; i++) {
		uint32_t source = e->internode->ranks[i].rank,
			 nr = internode_nr_tokens(e, h, state.y, source);

		for (uint32_t token = warp; token < nr; token += nr_warps)
			if (sends_token(e, source, token) &&
				!take_token(d, h, state.y, source, token))
				return;
	}
}

namespace tern
{
/* One name for both ways, as profilers know a half by its name. GATED: others read rows meanwhile.
 */
template <int ROLE, int X, int ND, bool GATED = false>
static __global__ void __launch_bounds__(512) dispatch_internode(
	const __grid_constant__ struct gpu_dispatch d, const __grid_constant__ struct ht_exchange h)
{
	if constexpr (ROLE == GPU_SEND)
		rows_out<X, ND, GATED>(&d, &h);
	else if constexpr (GATED)
		rows_in_by_group(&d, &h);
	else
		rows_in(&d, &h);
}
} // namespace tern

/* ---- launching ------------------------------------------------------------------------------- */

/* Of what layers' kernels read. NULL: there is none. */
static internode_kernel<struct gpu_dispatch> choose_gated(const struct gpu_dispatch *d)
{
	return d->kind == GPU_X_COPY    ? tern::dispatch_internode<GPU_SEND, GPU_X_COPY, 4, true>
	       : d->kind == GPU_X_GIVEN ? tern::dispatch_internode<GPU_SEND, GPU_X_GIVEN, 2, true>
	       : d->kind == GPU_X_BF16  ? tern::dispatch_internode<GPU_SEND, GPU_X_BF16, 2, true>
					: NULL;
}

static internode_kernel<struct gpu_dispatch> choose(const struct gpu_dispatch *d)
{
	if (d->gate.row_bits)
		return choose_gated(d);
	switch (d->kind) {
	case GPU_X_COPY:
		return tern::dispatch_internode<GPU_SEND, GPU_X_COPY, 4>;
	case GPU_X_GIVEN:
		return tern::dispatch_internode<GPU_SEND, GPU_X_GIVEN, 2>;
	case GPU_X_BF16:
		return tern::dispatch_internode<GPU_SEND, GPU_X_BF16, 2>;
	case GPU_X_FP16:
		return tern::dispatch_internode<GPU_SEND, GPU_X_FP16, 2>;
	case GPU_X_FP32:
		return tern::dispatch_internode<GPU_SEND, GPU_X_FP32, 2>;
	}
	return NULL;
}

/* Rows that come are copied, whatever they are of. */
static internode_kernel<struct gpu_dispatch> receive_kernel(const struct gpu_dispatch *d)
{
	return d->gate.row_bits ? tern::dispatch_internode<GPU_RECEIVE, GPU_X_COPY, 4, true>
				: tern::dispatch_internode<GPU_RECEIVE, GPU_X_COPY, 4>;
}

cudaError_t internode_dispatch_prepare(const struct gpu_dispatch *d)
{
	return internode_prepare<struct gpu_dispatch>(choose(d), receive_kernel(d));
}

cudaError_t internode_dispatch_launch(const struct gpu_dispatch *d, const struct ht_exchange *h,
	const struct gpu_launch *launch, enum gpu_roles role, cudaStream_t stream)
{
	return internode_launch(
		role == GPU_SEND ? choose(d) : receive_kernel(d), d, h, launch, stream);
}
