/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency dispatch, receiving: a row's pieces to all its positions, when all plans are noted.
 */
#ifndef TERN_GPU_CUDA_LL_RECEIVE_CUH
#define TERN_GPU_CUDA_LL_RECEIVE_CUH

#include "gpu/cuda/common/gate.cuh"
#include "gpu/cuda/ll/dispatch_send.cuh"
#include "gpu/cuda/ll/take_plans.cuh"

/* A warp's share of the receiving: a segment of a row that may or may not come. Own rows first;
 * then those of all others alternate. */
struct share {
	uint32_t source, token, which;
	uint32_t carrier; /* who stores it */
	const uint8_t *row;
};

/* At most so many tokens are this rank's own. A kernel that only receives need not have been
 * launched, or captured, with as many as have been sent; the one that sent has left their number.
 */
static __device__ __forceinline__ uint32_t own_tokens(const struct gpu_dispatch *d, uint4 state)
{
	return d->roles & GPU_SEND ? d->nr_tokens : min(state.z, d->exchange.max_tokens);
}

/* own: this rank's shares. */
template <int CASE, bool FAR>
static __device__ __forceinline__ struct share share_of(
	const struct gpu_dispatch *d, uint32_t own, uint32_t i)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t j = i < own ? i : i - own, row = gpu_div(j, e->by_row_parts),
		 token = gpu_div(row, e->by_others);
	struct share a;

	a.which = j - row * e->by_row_parts.d;
	a.token = i < own ? row : token;
	a.source = i < own ? e->rank : e->rank + 1 + row - token * e->by_others.d;
	a.source = a.source >= e->nr_ranks ? a.source - e->nr_ranks : a.source;
	a.carrier = carrier_of<FAR>(e, a.source);
	a.row = part_from<FAR, CASE == GPU_ELASTIC>(e, INTERNODE_ROWS, a.source) + e->window.rows +
		((uint64_t)a.source * e->max_tokens + a.token) * e->window.row_bytes;
	return a;
}

/* A row's place among those of a source on another node, where all plans are noted. */
template <bool FAR>
static __device__ __forceinline__ void find_far_row(
	const struct gpu_dispatch *d, const struct positions *p, struct share *a)
{
	const struct gpu_exchange *e = &d->exchange;

	if (lie_by_number<FAR>(e, a->source))
		a->row -= (uint64_t)(a->token -
				     bits_before(p, p->present + a->source * p->stride, a->token)) *
			  e->window.row_bytes;
}

/* Where a warp's segment goes, known before the segment is there: a lane's place in the first few
 * rows, and lanes whose rows are more. */
#define FIRST_ROWS 4
struct row_targets {
	uint8_t *row[FIRST_ROWS];
	uint8_t *scale;        /* of route lane % 8, this lane's line; NULL: not here */
	uint32_t nr, more, in; /* in: a bit for each vector that has something in the row */
};

/* Vector 0's place in a row; the next ones' are 512 bytes further on. */
static __device__ __forceinline__ uint8_t *place_in_row(
	const struct gpu_dispatch *d, struct extent x, uint32_t position)
{
	return d->out_x + (uint64_t)position * d->exchange.row.row_bytes +
	       (x.first + piece_of(0)) * 16;
}

/* All lanes of a line have its scale, and each stores it for another route: number `first` + lane
 * % 8. at: each lane's row, as number_of_scales has it. */
static __device__ __forceinline__ uint8_t *place_of_scale(
	const struct gpu_dispatch *d, struct extent x, uint32_t at, uint32_t first)
{
	uint32_t here = __shfl_sync(ALL_LANES, at, first + lane_id() % 8),
		 line = first_line(x) + line_of(0);

	if (here == UINT32_MAX)
		return NULL;
	if (!d->out_columns)
		return d->out_scales +
		       ((uint64_t)here * d->exchange.row.nr_lines + line) * d->scale_bytes;
	if (d->scale_bytes == 4)
		return d->out_columns + ((uint64_t)line * d->column_stride + here) * 4;
	return d->out_columns + ((uint64_t)(line / 4) * d->column_stride + here) * 4 + line % 4;
}

template <bool SCALED, int ND>
static __device__ __forceinline__ struct row_targets find_targets(
	const struct gpu_dispatch *d, struct extent x, uint32_t position, uint32_t scales_at)
{
	uint32_t here = __ballot_sync(ALL_LANES, position != UINT32_MAX);
	struct row_targets t;

	t.nr = __popc(here);
	t.in = 0;
	t.scale = SCALED ? place_of_scale(d, x, scales_at, 0) : NULL;
#pragma unroll
	for (int r = 0; r < FIRST_ROWS; r++) {
		t.row[r] = place_in_row(d, x, __shfl_sync(ALL_LANES, position, __ffs(here) - 1));
		here &= here - 1;
	}
	t.more = here;
#pragma unroll
	for (int i = 0; i < ND; i++) {
		uint32_t offset;

		t.in |= (uint32_t)in_row(x, i, &offset) << i;
	}
	return t;
}

template <int FORMAT, bool SCALED, int ND>
static __device__ __forceinline__ void store_scales(const struct gpu_dispatch *d,
	const segment<FORMAT, SCALED, ND> &s, struct extent x, uint8_t *to)
{
#pragma unroll
	for (int i = 0; i < ND; i++) {
		if (!to || !has_line(x, i))
			continue;
		if (d->scale_bytes == 4)
			*(uint32_t *)(to + i * d->scale_step) = s.scale[i];
		else
			to[i * d->scale_step] = (uint8_t)s.scale[i];
	}
}

template <int FORMAT, bool SCALED, int ND>
static __device__ __forceinline__ void store_row(
	const segment<FORMAT, SCALED, ND> &s, uint32_t in, uint8_t *row)
{
#pragma unroll
	for (int i = 0; i < ND; i++)
		if (in >> i & 1)
			row_store(row + i * 512, s.v[i]);
}

template <int FORMAT, bool SCALED, int ND>
static __device__ __forceinline__ void store_rows(const struct gpu_dispatch *d,
	const segment<FORMAT, SCALED, ND> &s, struct extent x, const struct row_targets &t,
	uint32_t position, uint32_t scales_at)
{
#pragma unroll
	for (int r = 0; r < FIRST_ROWS; r++)
		if (r < t.nr)
			store_row(s, t.in, t.row[r]);
	if constexpr (SCALED) {
		store_scales(d, s, x, t.scale);
		for (uint32_t first = 8; first < d->exchange.topk; first += 8)
			store_scales(d, s, x, place_of_scale(d, x, scales_at, first));
	}
	for (uint32_t here = t.more; here; here &= here - 1)
		store_row(s, t.in,
			place_in_row(d, x, __shfl_sync(ALL_LANES, position, __ffs(here) - 1)));
}

/* Lane k's local expert, if its route ends here; else UINT32_MAX. Of a token that was not sent
 * nobody has noted ids, and no table is to be asked. */
template <int CASE>
static __device__ __forceinline__ uint32_t local_expert(
	const struct gpu_exchange *e, const struct positions *p, struct share a)
{
	uint32_t physical = GPU_NO_EXPERT;

	if (lane_id() < e->topk && (CASE > GPU_ANY || a.token < p->nr_tokens[a.source]))
		physical = p->ids[a.source * p->ids_stride + a.token * e->topk + lane_id()];
	return local_of<CASE>(e, physical);
}

/* What is known of a row as soon as all plans are there: lane k's local expert, and, of its
 * source's rows for that expert, how many come before it. */
struct found {
	uint32_t local, before;
	bool here; /* does any of the row's routes end here? */
};

template <int CASE>
static __device__ __forceinline__ struct found find_row(
	const struct gpu_dispatch *d, const struct positions *p, struct share a)
{
	const struct gpu_exchange *e = &d->exchange;
	struct found f = {local_expert<CASE>(e, p, a), 0, false};

	f.here = p->present[a.source * p->stride + a.token / 32] >> a.token % 32 & 1;
	if (CASE != GPU_PLAIN && d->by_source)
		f.before = bits_before(p, p->present + a.source * p->stride, a.token);
	else if (f.local != UINT32_MAX)
		f.before = bits_before(
			p, p->bits + (a.source * e->nr_local + f.local) * p->stride, a.token);
	return f;
}

/* The position of lane k's row; by_source the first route has it for all. */
template <int CASE>
static __device__ __forceinline__ uint32_t position_of(
	const struct gpu_dispatch *d, const struct positions *p, struct share a, struct found f)
{
	if (CASE != GPU_PLAIN && d->by_source) {
		uint32_t here = __ballot_sync(ALL_LANES, f.local != UINT32_MAX);

		return lane_id() == __ffs(here) - 1 ? p->base[a.source] + f.before : UINT32_MAX;
	}
	return f.local == UINT32_MAX
		       ? UINT32_MAX
		       : p->start[f.local] + p->base[a.source * d->exchange.nr_local + f.local] +
				 f.before;
}

/* What the caller is told of a row. */
template <int CASE>
static __device__ __forceinline__ void tell_row(const struct gpu_dispatch *d, struct share a,
	uint32_t local, uint32_t position, uint32_t weight)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t at;

	if (CASE == GPU_PLAIN || !d->by_source) {
		if (position != UINT32_MAX)
			d->out_rows[position] =
				make_int4((int)a.source, (int)a.token, (int)lane_id(), (int)weight);
		return;
	}
	at = __reduce_min_sync(ALL_LANES, position);
	if (lane_id() < e->topk) {
		d->out_ids[(uint64_t)at * e->topk + lane_id()] = (int32_t)local;
		d->out_weights[(uint64_t)at * e->topk + lane_id()] =
			__uint_as_float(local == UINT32_MAX ? 0 : weight);
	}
	if (lane_id() == 0)
		d->out_rows[at] = make_int4((int)a.source, (int)a.token, -1, 0);
}

/* Where lane k's row goes, if it does, and which of its source's rows here it is. */
struct placed {
	uint32_t local, position, number;
	uint32_t first; /* the expert's first row; where gates are */
};

static __device__ __forceinline__ uint32_t gate_tile(const struct gpu_gate *g, struct placed f)
{
	return f.position == UINT32_MAX ? UINT32_MAX : tile_of(g, f.local, f.position - f.first);
}

/* For the combine, and for the caller. weight: of lane k's route. */
template <int CASE, bool GATED>
static __device__ __forceinline__ void note_row(
	const struct gpu_dispatch *d, struct share a, struct placed f, uint32_t weight)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t row = a.source * e->max_tokens + f.number;

	if (lane_id() == 0)
		e->row_tokens[row] = a.token;
	if (lane_id() < e->topk)
		e->row_routes[row * e->topk + lane_id()] = make_uint2(f.position, weight);
	if constexpr (GATED)
		if (lane_id() < e->topk)
			d->gate.route_tiles[row * e->topk + lane_id()] = gate_tile(&d->gate, f);
	if (lane_id() < e->topk && a.source == e->rank)
		e->own_positions[a.token * e->topk + lane_id()] = f.position;
	tell_row<CASE>(d, a, f.local, f.position, weight);
}

/* One piece of work with a row's head. */
template <int FORMAT, int CASE, bool GATED>
static __device__ __forceinline__ bool describe_row(
	const struct gpu_dispatch *d, uint32_t epoch, struct share a, struct placed f, uint4 head)
{
	const struct gpu_exchange *e = &d->exchange;
	struct patience patience = {0, 0};

	while (!__all_sync(
		ALL_LANES, !in_head<FORMAT>(e) || !has_epoch<FORMAT>() || head.w == epoch)) {
		if (in_head<FORMAT>(e))
			head = piece_load(a.row + lane_id() * 16);
		if (warp_may_wait(&patience, e, a.carrier, e->wait_ns))
			continue;
		if (lane_id() == 7)
			report_wait(e, GPU_WAIT_ROW, a.carrier, a.token, epoch, head.w,
				patience.start_ns);
		return false;
	}
	note_row<CASE, GATED>(d, a, f, weight_of_head<FORMAT>(head));
	return true;
}

/* Lane k's row in lists of scales: its position, or, where each expert has columns of its own, as
 * many elements on as they are longer than its rows. */
static __device__ __forceinline__ uint32_t number_of_scales(
	const struct gpu_dispatch *d, struct placed f)
{
	return f.position == UINT32_MAX ? UINT32_MAX : f.position + f.local * d->list_skip;
}

/* The pieces have been looked for already. */
template <int FORMAT, bool SCALED, int ND>
static __device__ __forceinline__ bool receive_segment(const struct gpu_dispatch *d, uint32_t epoch,
	struct share a, struct placed f, segment<FORMAT, SCALED, ND> &s)
{
	const struct gpu_exchange *e = &d->exchange;
	struct extent x = segment_extent(&e->row, a.which);
	uint32_t scales_at = SCALED ? number_of_scales(d, f) : 0;
	struct row_targets targets = find_targets<SCALED, ND>(d, x, f.position, scales_at);

	if (!segment_await(e, s, x,
		    a.row + LL_HEAD_BYTES + (uint64_t)a.which * e->row.segment_bytes, epoch,
		    (struct awaited){GPU_WAIT_ROW, a.carrier, a.token}))
		return false;
	segment_unpack(s);
	store_rows(d, s, x, targets, f.position, scales_at);
	return true;
}

/* A head's pieces go where those of a segment's first vector would. */
template <int FORMAT, bool SCALED, int ND>
static __device__ __forceinline__ void look_for(
	const struct gpu_exchange *e, struct share a, segment<FORMAT, SCALED, ND> &s)
{
	if (a.which < e->row.nr_segments)
		segment_look(
			s, a.row + LL_HEAD_BYTES + (uint64_t)a.which * e->row.segment_bytes, 0);
	else
		s.v[0] = piece_load(a.row + lane_id() % 16 * 16);
}

/* Does this warp help place_rows? Then it does that first. */
template <int CASE>
static __device__ __forceinline__ bool places_rows(
	const struct gpu_dispatch *d, uint32_t warp, uint32_t nr_warps)
{
	return CASE == GPU_PLAIN || !d->by_source
		       ? (nr_warps - 1 - warp) * LANES < d->exchange.nr_local
		       : warp == 0;
}

/* All plans are noted: positions, and for the caller and the combine how many rows there are.
 * gate_round: of gates. */
template <int CASE, bool GATED>
static __device__ __forceinline__ void place_rows(const struct gpu_dispatch *d,
	const struct positions *p, uint32_t warp, uint32_t nr_warps, uint32_t gate_round)
{
	if (CASE == GPU_PLAIN || !d->by_source) /* the last warps have the fewest rows */
		place_experts<CASE>(d, p, (nr_warps - 1 - warp) * LANES + lane_id(),
			nr_warps * LANES, blockIdx.x == (GATED ? gridDim.x - 1 : 0));
	else if (warp == 0)
		place_sources(d, p, blockIdx.x == 0);
	if (blockIdx.x == gridDim.x - 1 && warp == 0)
		count_rows(&d->exchange, p);
	warps_sync(nr_warps * LANES);
	if (GATED && warp == nr_warps - 1) /* behind the barrier: the counts are stored */
		gate_open(
			d, [&](uint32_t local) { return rows_of_expert(&d->exchange, p, local); },
			warp, nr_warps, gate_round);
	if (warp == 0)
		trace_mark(&d->exchange, 5);
}

template <int FORMAT, int X, int ND, int CASE, bool GATED>
static __device__ __forceinline__ bool receive_part(const struct gpu_dispatch *d,
	const struct positions *p, uint32_t epoch, struct share a, struct found f,
	segment<FORMAT, x_kind<X>::SCALED, ND> &s, struct gate_stored *stored)
{
	struct placed at = {f.local, position_of<CASE>(d, p, a, f), 0, 0};

	if (GATED && f.local != UINT32_MAX)
		at.first = p->start[f.local];
	if (a.which < d->exchange.row.nr_segments) {
		if (!receive_segment<FORMAT, x_kind<X>::SCALED, ND>(d, epoch, a, at, s))
			return false;
		if constexpr (GATED)
			gate_note_rows(&d->gate, stored, gate_tile(&d->gate, at));
		return true;
	}
	at.number = bits_before(p, p->present + a.source * p->stride, a.token);
	return describe_row<FORMAT, CASE, GATED>(d, epoch, a, at, s.v[0]);
}

#endif
