/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency dispatch of many rows: blocks receive slices (slices.cuh), each the rows whose routes
 * it has noted itself. Of few, in an exchange that could have many: as in dispatch.cuh, where no
 * rank has more. What is sent is the same as in dispatch.cuh, so each rank chooses for
 * itself; only the order in which tokens leave is another. */
#ifndef TERN_GPU_CUDA_LL_DISPATCH_SLICED_CUH
#define TERN_GPU_CUDA_LL_DISPATCH_SLICED_CUH

#include "gpu/cuda/ll/dispatch.cuh"
#include "gpu/cuda/ll/slices.cuh"

/* Part i of a slice's rows: segments and heads, token by token. Rows from other nodes lie by their
 * number, which is known when what comes before the slice has been added up. */
template <int CASE, bool FAR>
static __device__ __forceinline__ struct share share_in_slice(
	const struct gpu_exchange *e, const struct slices *s, const struct slice *slice, uint32_t i)
{
	uint32_t row = gpu_div(i, e->by_row_parts), place;
	struct share a;

	a.source = slice->source;
	a.token = slice->first + row;
	a.which = i - row * e->by_row_parts.d;
	a.carrier = carrier_of<FAR>(e, a.source);
	place = lie_by_number<FAR>(e, a.source)
			? s->before[e->nr_local + 1] + slice_bits_before(s, e->nr_local, row)
			: a.token;
	a.row = part_from<FAR, CASE == GPU_ELASTIC>(e, INTERNODE_ROWS, a.source) + e->window.rows +
		((uint64_t)a.source * e->max_tokens + place) * e->window.row_bytes;
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

/* How a block's warps share the parts of a slice. */
struct parts {
	uint32_t *drawn; /* the next one, in shared memory; NULL: each warp takes every step-th */
	uint32_t i, step, nr;
};

static __device__ __forceinline__ uint32_t next_part(const struct parts *p)
{
	if (!p->drawn)
		return p->i + p->step;
	return __shfl_sync(ALL_LANES, lane_id() == 0 ? atomicAdd(p->drawn, 1u) : 0, 0);
}

template <int FORMAT, bool SCALED, int ND, int CASE, bool FAR>
static __device__ __forceinline__ void look_for_part(const struct gpu_exchange *e,
	const struct slices *s, const struct slice *slice, uint32_t i, uint32_t nr,
	segment<FORMAT, SCALED, ND> &pieces)
{
	if (i < nr)
		look_for(e, share_in_slice<CASE, FAR>(e, s, slice, i), pieces);
}

/* Of a slice's parts the first that this warp takes. */
template <int FORMAT, bool SCALED, int ND, int CASE, bool FAR>
static __device__ __forceinline__ void look_for_first(const struct gpu_exchange *e,
	const struct slices *s, const struct slice *slice, uint32_t warp,
	segment<FORMAT, SCALED, ND> &pieces)
{
	look_for_part<FORMAT, SCALED, ND, CASE, FAR>(
		e, s, slice, warp, (slice->end - slice->first) * e->by_row_parts.d, pieces);
}

/* Rows of a slice, whose places are known; this warp's first part has been looked for, and the next
 * one is while one is stored. */
template <int FORMAT, int X, int ND, int CASE, bool FAR>
static __device__ __forceinline__ bool receive_slice(const struct gpu_dispatch *d,
	const struct slices *s, const struct slice *slice, uint32_t epoch, struct parts *p,
	segment<FORMAT, x_kind<X>::SCALED, ND> &pieces)
{
	const struct gpu_exchange *e = &d->exchange;
	segment<FORMAT, x_kind<X>::SCALED, ND> after;

#pragma unroll 1
	while (p->i < p->nr) {
		struct share a = share_in_slice<CASE, FAR>(e, s, slice, p->i);
		struct placed f = place_in_slice<FORMAT, CASE>(d, s, slice, a);

		p->i = next_part(p);
		look_for_part<FORMAT, x_kind<X>::SCALED, ND, CASE, FAR>(
			e, s, slice, p->i, p->nr, after);
		if (__any_sync(ALL_LANES, f.local != UINT32_MAX) &&
			!(a.which < e->row.nr_segments
					? receive_segment<FORMAT, x_kind<X>::SCALED, ND>(
						  d, epoch, a, f, pieces)
					: describe_row<FORMAT, CASE, false>(
						  d, epoch, a, f, pieces.v[0])))
			return false;
		pieces = after;
	}
	return true;
}

template <int X, int ND>
static __device__ __forceinline__ void load_own_part(const struct gpu_dispatch *d,
	const struct slice *slice, uint32_t i, uint32_t nr, raw_segment<X, ND> &raw)
{
	uint32_t row = gpu_div(i, d->exchange.by_row_parts);

	if (i < nr)
		load_raw(d, slice->first + row, i - row * d->exchange.by_row_parts.d, raw);
}

/* Lane k's of a token of this rank. */
static __device__ __forceinline__ uint32_t own_weight(const struct gpu_dispatch *d, uint32_t token)
{
	if (!d->topk_weights || lane_id() >= d->exchange.topk)
		return __float_as_uint(1.0f);
	return __float_as_uint(d->topk_weights[token * d->exchange.topk + lane_id()]);
}

/* Rows of this rank's own slice, from where the caller has them to their places: no window sees
 * them. */
template <int FORMAT, int X, int ND, int CASE>
static __device__ __forceinline__ void take_own_slice(const struct gpu_dispatch *d,
	const struct slices *s, const struct slice *slice, struct parts *p)
{
	const struct gpu_exchange *e = &d->exchange;
	raw_segment<X, ND> raw, after;

	load_own_part(d, slice, p->i, p->nr, raw);
#pragma unroll 1
	while (p->i < p->nr) {
		struct share a = share_in_slice<CASE, false>(e, s, slice, p->i);
		struct placed f = place_in_slice<FORMAT, CASE>(d, s, slice, a);
		bool here = __any_sync(ALL_LANES, f.local != UINT32_MAX);

		p->i = next_part(p);
		load_own_part(d, slice, p->i, p->nr, after);
		if (here && a.which == e->row.nr_segments) {
			note_row<CASE, false>(d, a, f, own_weight(d, a.token));
		} else if (here) {
			constexpr bool SCALED = x_kind<X>::SCALED;
			struct extent x = segment_extent(&e->row, a.which);
			uint32_t scales_at = SCALED ? number_of_scales(d, f) : 0;
			struct row_targets targets =
				find_targets<SCALED, ND>(d, x, f.position, scales_at);
			segment<FORMAT, SCALED, ND> pieces;

			make_segment<X, ND>(d, raw, pieces);
			store_rows(d, pieces, x, targets, f.position, scales_at);
		}
		raw = after;
	}
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

/* A block's slices, as soon as heads are there. */
struct own_slices {
	uint32_t first, end;
	bool alone; /* no block has more than one */
};

static __device__ __forceinline__ struct own_slices own_slices_of(
	const struct gpu_exchange *e, const struct slices *s)
{
	uint32_t nr = s->first[e->nr_ranks], of_block = gpu_ceil(nr, gridDim.x);
	struct own_slices o = {blockIdx.x * of_block, 0, of_block <= 1};

	o.end = min(o.first + of_block, nr);
	return o;
}

/* All that has to be known before rows of this block's first slice can be stored; one lane's part
 * is looked for meanwhile. False: it failed. By all receiving warps. */
template <int FORMAT, int X, int ND, int CASE, bool FAR>
static __device__ __forceinline__ bool place_first_slice(const struct gpu_dispatch *d,
	const struct slices *s, uint4 state, uint32_t warp, uint32_t nr_warps,
	segment<FORMAT, x_kind<X>::SCALED, ND> &pieces)
{
	const struct gpu_exchange *e = &d->exchange;
	struct own_slices own;
	struct slice slice;

	if (!forward_rows<FAR>(e, state.x, state.w, warp, nr_warps))
		state.w = 1; /* others of the block may not have seen that */
	if (!await_heads<CASE, FAR>(e, s, state.x, state.w, warp, nr_warps))
		return false;
	own = own_slices_of(e, s);
	if (!note_slices<FORMAT, CASE, FAR>(d, s, state.x, own.first, own.end, warp, nr_warps))
		return false;
	if (own.first >= own.end)
		return true;
	slice = find_slice(e, s, own.first);
	if (!own.alone && !note_slice<FORMAT, CASE, FAR>(e, s, &slice, state.x, warp, nr_warps))
		return false;
	if (!FAR)
		look_for_first<FORMAT, x_kind<X>::SCALED, ND, CASE, FAR>(
			e, s, &slice, warp, pieces);
	if (!add_up(e, s, &slice, state.x, warp, nr_warps))
		return false;
	if (FAR)
		look_for_first<FORMAT, x_kind<X>::SCALED, ND, CASE, FAR>(
			e, s, &slice, warp, pieces);
	place_slices<CASE>(d, s, warp, nr_warps);
	if (warp == 0)
		trace_mark(e, 5);
	return true;
}

/* From one slice of this block to its next one. False: it failed. By all receiving warps. */
template <int FORMAT, int X, int ND, int CASE, bool FAR>
static __device__ __forceinline__ bool place_next_slice(const struct gpu_dispatch *d,
	const struct slices *s, struct slice *slice, uint32_t epoch, uint32_t warp,
	uint32_t nr_warps, segment<FORMAT, x_kind<X>::SCALED, ND> &pieces)
{
	const struct gpu_exchange *e = &d->exchange;

	warps_sync(nr_warps * LANES);
	if (*s->failed)
		return false;
	go_on(e, s, slice->number + 1 < s->first[slice->source + 1], warp * LANES + lane_id(),
		nr_warps * LANES);
	*slice = find_slice(e, s, slice->number + 1);
	if (!FAR)
		look_for_first<FORMAT, x_kind<X>::SCALED, ND, CASE, FAR>(e, s, slice, warp, pieces);
	if (!note_slice<FORMAT, CASE, FAR>(e, s, slice, epoch, warp, nr_warps))
		return false;
	if (FAR)
		look_for_first<FORMAT, x_kind<X>::SCALED, ND, CASE, FAR>(e, s, slice, warp, pieces);
	return true;
}

/* By warps that have sent all that they send: false where there is nothing to help with. */
static __device__ __forceinline__ bool may_help(
	const struct gpu_exchange *e, const struct slices *s)
{
	struct own_slices own;

	while (!barrier_passed(in_shared(s->placed), 0))
		;
	if (*s->failed)
		return false;
	own = own_slices_of(e, s);
	return own.alone && own.first < own.end;
}

/* warp: of those that receive from the start, nr_warps in all; helps: it has sent before. Receiving
 * warps of a block leave together, or when none is waited for any more. */
template <int FORMAT, int X, int ND, int CASE, bool FAR, bool KEPT>
static __device__ __forceinline__ void receive_slices(const struct gpu_dispatch *d,
	const struct slices *s, uint4 state, bool helps, uint32_t warp, uint32_t nr_warps)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t thread = warp * LANES + lane_id(), epoch = state.x;
	segment<FORMAT, x_kind<X>::SCALED, ND> pieces;
	struct own_slices own;
	struct slice slice;
	struct parts p = {s->drawn, 0, nr_warps, 0};
	bool good = true;

	if (helps) {
		if (!may_help(e, s))
			return;
	} else {
		good = place_first_slice<FORMAT, X, ND, CASE, FAR>(
			d, s, state, warp, nr_warps, pieces);
		barrier_arrive(in_shared(s->placed)); /* each for itself, as racecheck follows it */
		if (!good)
			return;
	}
	own = own_slices_of(e, s);
	slice = find_slice(e, s, own.first);
	p.drawn = d->helps && own.alone ? s->drawn : NULL;
	p.i = helps ? next_part(&p) : warp;
	if (helps)
		look_for_first<FORMAT, x_kind<X>::SCALED, ND, CASE, FAR>(e, s, &slice, p.i, pieces);
#pragma unroll 1
	while (own.first < own.end) {
		p.nr = (slice.end - slice.first) * e->by_row_parts.d;
		if (thread == 0 && !helps)
			tell_source<CASE>(d, s, &slice);
		if (KEPT && d->keeps && slice.source == e->rank)
			take_own_slice<FORMAT, X, ND, CASE>(d, s, &slice, &p);
		else if (!receive_slice<FORMAT, X, ND, CASE, FAR>(
				 d, s, &slice, epoch, &p, pieces) &&
			 lane_id() == 0)
			atomicOr(s->failed, 1u);
		if (slice.number + 1 == own.end)
			break;
		if (!place_next_slice<FORMAT, X, ND, CASE, FAR>(
			    d, s, &slice, epoch, warp, nr_warps, pieces))
			return;
		p.i = warp;
	}
	trace_mark(e, 6);
	if (blockIdx.x == 0 && thread == 0 && !helps) {
		e->state->epoch_combine = epoch;
		counters_round(e);
	}
}

/* Few tokens, as far as this rank knows: all plans are noted, as where there is room for any.
 * False: some rank has more. By all receiving warps. */
template <int FORMAT, int X, int ND, int CASE>
static __device__ __forceinline__ bool receive_few(const struct gpu_dispatch *d, uint32_t *shared,
	uint4 state, uint32_t warp, uint32_t nr_warps)
{
	const struct gpu_exchange *e = &d->exchange;
	const enum gpu_format format = (enum gpu_format)FORMAT;
	struct positions p;

	if (own_tokens(d, state) > d->noted_tokens)
		return false;
	p = positions_in<FORMAT>(
		shared + slices_bytes(format, e->nr_ranks, e->nr_local, e->topk) / 4, e,
		positions_room(format, d->noted_tokens, e->topk, e->max_tokens));
	p.tokens = d->noted_tokens;
	return receive_all<FORMAT, X, ND, CASE, false, false>(d, &p, state, warp, nr_warps, 0);
}

namespace tern
{
/* EITHER: where no rank has many tokens, all plans are noted; who sends cannot know whether they
 * are, so own rows go through the window. So do those that are quantised, or they would be twice.
 */
template <int FORMAT, int X, int ND, int CASE = GPU_ANY, bool FAR = false, bool EITHER = false>
static __global__ void __launch_bounds__(512, 1)
	dispatch_ll_sliced(const __grid_constant__ struct gpu_dispatch d, uint32_t send_warps)
{
	constexpr bool KEPT = CASE == GPU_PLACED && !EITHER && x_kind<X>::LOADS == 1;
	BLOCK_MEMORY(shared);
	const struct gpu_exchange *e = &d.exchange;
	uint32_t warp = warp_id(), nr_warps = blockDim.x / LANES;
	struct slices s = slices_in<FORMAT>(shared, e);

	if (warp == 0)
		trace_mark(e, 0);
	if (send_warps < nr_warps) {
		slices_open(&s, nr_warps - send_warps);
		__syncthreads();
	}
	wait_for_previous();
	let_next_start();
	uint4 state = *(const uint4 *)e->state; /* epoch_dispatch, epoch_combine, nr_tokens, failed
						 */

	if (warp < send_warps &&
		!send_and_ring<FORMAT, X, ND, CASE, FAR, true, KEPT>(&d, state, warp, send_warps))
		return;
	if (EITHER && warp >= send_warps &&
		receive_few<FORMAT, X, ND, CASE>(
			&d, shared, state, warp - send_warps, nr_warps - send_warps))
		return;
	if (send_warps < nr_warps && (warp >= send_warps || d.helps))
		receive_slices<FORMAT, X, ND, CASE, FAR, KEPT>(
			&d, &s, state, warp < send_warps, warp - send_warps, nr_warps - send_warps);
}
} // namespace tern

#endif
