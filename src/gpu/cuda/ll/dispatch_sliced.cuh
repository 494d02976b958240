/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency dispatch of many rows: blocks receive slices (slices.cuh), each the rows whose routes
 * it has noted itself. What is sent is the same as in dispatch.cuh, so each rank chooses for
 * itself; only the order in which tokens leave is another. */
#ifndef TERN_GPU_CUDA_LL_DISPATCH_SLICED_CUH
#define TERN_GPU_CUDA_LL_DISPATCH_SLICED_CUH

#include "gpu/cuda/ll/dispatch.cuh"
#include "gpu/cuda/ll/slices.cuh"

/* Part i of a slice's rows: segments and heads, token by token. */
template <bool FAR>
static __device__ __forceinline__ struct share share_in_slice(
	const struct gpu_exchange *e, const struct slice *slice, uint32_t i)
{
	uint32_t row = gpu_div(i, e->by_row_parts);
	struct share a;

	a.source = slice->source;
	a.token = slice->first + row;
	a.which = i - row * e->by_row_parts.d;
	a.row = part_from<FAR>(e, INTERNODE_ROWS, a.source) + e->window.rows +
		((uint64_t)a.source * e->max_tokens + a.token) * e->window.row_bytes;
	return a;
}

template <int FORMAT, int CASE>
static __device__ __forceinline__ struct placed place_in_slice(const struct gpu_dispatch *d,
	const struct slices *s, const struct slice *slice, struct share a)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t physical = GPU_NO_EXPERT, bit = a.token - slice->first, here, before;
	struct placed f = {};

	if (lane_id() < e->topk)
		physical = slice_ids<FORMAT>(e, s, slice, a.token)[lane_id()];
	f.local = local_of<CASE>(e, physical);
	f.position = UINT32_MAX;
	before = slice_bits_before(s, e->nr_local, bit);
	f.number = s->before[e->nr_local + 1] + before;
	if (CASE == GPU_PLAIN || !d->by_source) {
		if (f.local != UINT32_MAX)
			f.position = s->start[f.local] + s->before[f.local] +
				     slice_bits_before(s, f.local, bit);
		return f;
	}
	here = __ballot_sync(ALL_LANES, f.local != UINT32_MAX);
	if (lane_id() == __ffs(here) - 1)
		f.position = s->before[e->nr_local] + before;
	return f;
}

/* Of a source whose last slice this is: rows, for the combine; by_source for the caller, too. */
template <int CASE>
static __device__ __forceinline__ void tell_source(
	const struct gpu_dispatch *d, const struct slices *s, const struct slice *slice)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t earlier = s->before[e->nr_local + 1], rows = earlier + s->counts[e->nr_local];

	if (slice->number + 1 != s->first[slice->source + 1])
		return;
	e->state->nr_from[slice->source] = rows;
	if (CASE != GPU_PLAIN && d->by_source) {
		d->out_counts[slice->source] = rows;
		d->out_offsets[slice->source] = s->before[e->nr_local] - earlier;
	}
}

/* Starts of experts; by block 0 to the caller, with sums. */
template <int CASE>
static __device__ __forceinline__ void place_slices(
	const struct gpu_dispatch *d, const struct slices *s, uint32_t warp, uint32_t nr_warps)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t thread = warp * LANES + lane_id(), arrived = s->rows[e->nr_local];

	if (CASE == GPU_PLAIN || !d->by_source)
		place_experts<CASE>(d, s, (nr_warps - 1 - warp) * LANES + lane_id(),
			nr_warps * LANES, blockIdx.x == 0);
	else if (blockIdx.x == 0 && thread == 0) {
		d->out_sums[0] = d->out_sums[1] = arrived;
		counters_received(e, arrived);
	}
	if (blockIdx.x == 0 && thread == 0)
		e->state->nr_arrived = arrived;
	warps_sync(nr_warps * LANES);
}

/* The first part of a slice that a warp has, on its way. */
template <int FORMAT, bool SCALED, int ND, bool FAR>
static __device__ __forceinline__ void look_for_first(const struct gpu_exchange *e,
	const struct slice *slice, uint32_t warp, segment<FORMAT, SCALED, ND> &pieces)
{
	if (warp < (slice->end - slice->first) * e->by_row_parts.d)
		look_for(e, share_in_slice<FAR>(e, slice, warp), pieces);
}

/* All rows of a slice, whose places are known; the first part has been looked for, and the next one
 * is while one is stored. */
template <int FORMAT, int X, int ND, int CASE, bool FAR>
static __device__ __forceinline__ bool receive_slice(const struct gpu_dispatch *d,
	const struct slices *s, const struct slice *slice, uint32_t epoch, uint32_t warp,
	uint32_t nr_warps, segment<FORMAT, x_kind<X>::SCALED, ND> &pieces)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t nr = (slice->end - slice->first) * e->by_row_parts.d;
	segment<FORMAT, x_kind<X>::SCALED, ND> after;
	struct share a = share_in_slice<FAR>(e, slice, warp), next;

#pragma unroll 1
	for (uint32_t i = warp; i < nr; i += nr_warps) {
		struct placed f = place_in_slice<FORMAT, CASE>(d, s, slice, a);

		next = share_in_slice<FAR>(e, slice, i + nr_warps);
		if (i + nr_warps < nr)
			look_for(e, next, after);
		if (__any_sync(ALL_LANES, f.local != UINT32_MAX) &&
			!(a.which < e->row.nr_segments
					? receive_segment<FORMAT, x_kind<X>::SCALED, ND, false>(
						  d, epoch, a, f, pieces)
					: describe_row<FORMAT, CASE, false>(d, epoch, a, f, pieces.v[0])))
			return false;
		pieces = after;
		a = next;
	}
	return true;
}

/* All of this block's slices are noted and told before the first is received, since others wait for
 * what they tell. False: some plan did not come, or was none. */
template <int FORMAT, int CASE, bool FAR>
static __device__ __forceinline__ bool note_slices(const struct gpu_dispatch *d,
	const struct slices *s, uint32_t epoch, uint32_t first, uint32_t end, uint32_t warp,
	uint32_t nr_warps)
{
	const struct gpu_exchange *e = &d->exchange;

	for (uint32_t number = first; number < end; number++) {
		struct slice slice = find_slice(e, s, number);

		if (!note_slice<FORMAT, CASE, FAR>(e, s, &slice, epoch, warp, nr_warps))
			return false;
		tell_counts(e, s, &slice, epoch, warp * LANES + lane_id(), nr_warps * LANES);
	}
	if (warp == 0)
		trace_mark(e, 4);
	return true;
}

/* Warps of a block leave together, or when none is waited for any more. */
template <int FORMAT, int X, int ND, int CASE, bool FAR>
static __device__ __forceinline__ void receive_slices(const struct gpu_dispatch *d,
	const struct slices *s, uint4 state, uint32_t warp, uint32_t nr_warps)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t thread = warp * LANES + lane_id(), nr_threads = nr_warps * LANES, epoch = state.x,
		 first, end, of_block;
	segment<FORMAT, x_kind<X>::SCALED, ND> pieces;

	if (!await_heads<FAR>(e, s, epoch, state.w, warp, nr_warps))
		return;
	of_block = (s->first[e->nr_ranks] + gridDim.x - 1) / gridDim.x;
	first = blockIdx.x * of_block;
	end = min(first + of_block, s->first[e->nr_ranks]);
	if (!note_slices<FORMAT, CASE, FAR>(d, s, epoch, first, end, warp, nr_warps))
		return;
#pragma unroll 1
	for (uint32_t number = first; number < end; number++) {
		struct slice slice = find_slice(e, s, number);

		if (of_block > 1 &&
			!note_slice<FORMAT, CASE, FAR>(e, s, &slice, epoch, warp, nr_warps))
			return;
		look_for_first<FORMAT, x_kind<X>::SCALED, ND, FAR>(e, &slice, warp, pieces);
		if (number == first) {
			if (!add_up(e, s, &slice, epoch, warp, nr_warps))
				return;
			place_slices<CASE>(d, s, warp, nr_warps);
			if (warp == 0)
				trace_mark(e, 5);
		}
		if (thread == 0)
			tell_source<CASE>(d, s, &slice);
		if (!receive_slice<FORMAT, X, ND, CASE, FAR>(
			    d, s, &slice, epoch, warp, nr_warps, pieces) &&
			lane_id() == 0)
			atomicOr(s->failed, 1u);
		if (number + 1 == end)
			break;
		warps_sync(nr_threads);
		if (*s->failed)
			return;
		go_on(e, s, number + 1 < s->first[slice.source + 1], thread, nr_threads);
	}
	trace_mark(e, 6);
	if (blockIdx.x == 0 && thread == 0) {
		e->state->epoch_combine = epoch;
		counters_round(e);
	}
}

namespace tern
{
template <int FORMAT, int X, int ND, int CASE = GPU_ANY, bool FAR = false>
static __global__ void __launch_bounds__(512, 1)
	dispatch_ll_sliced(const __grid_constant__ struct gpu_dispatch d, uint32_t send_warps)
{
	BLOCK_MEMORY(shared);
	const struct gpu_exchange *e = &d.exchange;
	uint32_t warp = threadIdx.x / LANES, nr_warps = blockDim.x / LANES;

	if (warp == 0)
		trace_mark(e, 0);
	wait_for_previous();
	let_next_start();
	uint4 state = *(const uint4 *)e->state; /* epoch_dispatch, epoch_combine, nr_tokens, failed
						 */

	if (warp < send_warps) {
		if (FAR && state.w)
			return;
		send_all<FORMAT, X, ND, CASE, FAR, true>(
			&d, state, warp * gridDim.x + blockIdx.x, send_warps * gridDim.x);
		if (FAR && internode_last(e, send_warps * gridDim.x))
			ring_internode_rows(&d, state.x, this_rounds_tokens(&d));
		trace_mark(e, 1);
	} else {
		struct slices s = slices_in<FORMAT>(shared, e);

		receive_slices<FORMAT, X, ND, CASE, FAR>(
			&d, &s, state, warp - send_warps, nr_warps - send_warps);
	}
}
} // namespace tern

#endif
