/* SPDX-License-Identifier: Apache-2.0 */
/* High-throughput dispatch: each token once to every rank that has one of its experts, straight into its final place there; the receiver copies it to
 * further experts' places.
 *
 *   sending warps     a token each: x -> (quantise) -> rows in the destinations' x; then its heads to all ranks
 *   receiving warps   a token of a source each: waits for its head, describes its rows, copies
 *
 * Floor: the rows' bytes over NVLink; the copies run beside (4 x H200, deepseek-v3: a third of the time in a GPU's own memory).
 */
#include "ht.cuh"
#include "launch.cuh"
#include "rows.cuh"

/* ---- sending ------------------------------------------------------------------------------------------------- */

/* One vector's worth of a row: where it goes, in the row and among the scales. */
template <int X, int ND>
static __device__ __forceinline__ void store_piece(const struct ll_dispatch *d, const struct ht_exchange *h, struct extent x, uint8_t *window,
	uint64_t position, const segment<LL_LINES, x_kind<X>::SCALED, ND> &s)
{
	const struct ll_exchange *e = &d->exchange;

#pragma unroll
	for (int i = 0; i < ND; i++) {
		uint32_t offset;

		if (!in_row(&e->row, x, i, &offset))
			continue;
		row_store(window + h->window.x + position * e->row.row_bytes + offset, s.v[i]);
		if constexpr (x_kind<X>::SCALED)
			store_scale(d, window + h->window.scales, position * e->row.nr_lines + x.first_line + line_of(i), s.scale[i]);
	}
}

/* first: the lanes whose routes are the first to their ranks. */
template <int X, int ND>
static __device__ __forceinline__ void send_row(const struct ll_dispatch *d, const struct ht_exchange *h, uint32_t token, struct destination to, uint32_t first)
{
	const struct ll_exchange *e = &d->exchange;

#pragma unroll 1
	for (uint32_t which = 0; which < e->row.nr_segments && first; which++) {
		raw_segment<X, ND> raw;
		segment<LL_LINES, x_kind<X>::SCALED, ND> s;

		load_raw(d, token, which, raw);
		make_segment<X, ND>(d, raw, s);
#pragma unroll 1
		for (uint32_t left = first; left; left &= left - 1) {
			uint32_t lane = __ffs(left) - 1, rank = __shfl_sync(ALL_LANES, to.rank, lane);

			store_piece<X, ND>(d, h, segment_extent(&e->row, which), e->windows[rank], __shfl_sync(ALL_LANES, to.position, lane), s);
		}
	}
}

/* Behind the row's stores, by every lane's fence: who sees all of a head sees the row. */
static __device__ __forceinline__ void send_heads(const struct ll_dispatch *d, const struct ht_exchange *h, uint32_t epoch, uint32_t token,
	struct destination to, bool first)
{
	const struct ll_exchange *e = &d->exchange;
	uint32_t weight = __float_as_uint(1.0f);

	if (lane_id() < e->topk && d->topk_weights)
		weight = __float_as_uint(d->topk_weights[token * e->topk + lane_id()]);
	__syncwarp();
	__threadfence_system();
	for (uint32_t i = 1; i <= e->nr_ranks && lane_id() < e->topk; i++) {
		uint32_t r = e->rank + i >= e->nr_ranks ? e->rank + i - e->nr_ranks : e->rank + i;
		bool here = to.rank == r;

		piece_store(e->windows[r] + head_at(e, h, e->rank, token),
			make_uint4(here && (first || !d->by_source) ? to.position : UINT32_MAX, weight, here ? to.local : UINT32_MAX, epoch));
	}
}

template <int X, int ND>
static __device__ __forceinline__ void send_all(const struct ll_dispatch *d, const struct ht_exchange *h, uint32_t epoch, uint32_t nr_tokens, uint32_t warp,
	uint32_t nr_warps)
{
	for (uint32_t token = warp; token < nr_tokens; token += nr_warps) {
		struct destination to;
		uint32_t same, first;

		if (!is_mine(&d->exchange, token))
			continue;
		to = find_place(d, h, token);
		same = __match_any_sync(ALL_LANES, to.rank);
		first = __ballot_sync(ALL_LANES, to.rank != UINT32_MAX && (same & ((1u << lane_id()) - 1)) == 0);
		send_row<X, ND>(d, h, token, to, first);
		send_heads(d, h, epoch, token, to, first >> lane_id() & 1);
	}
}

/* ---- receiving ----------------------------------------------------------------------------------------------- */

/* This lane's part of a token's head; waits for all of it. */
static __device__ __forceinline__ bool await_head(const struct ll_dispatch *d, const struct ht_exchange *h, uint32_t epoch, uint32_t source, uint32_t token,
	uint4 *head)
{
	const struct ll_exchange *e = &d->exchange;
	const uint8_t *from = e->windows[e->rank] + head_at(e, h, source, token);
	struct patience patience = {0, 0};

	*head = make_uint4(UINT32_MAX, 0, UINT32_MAX, epoch);
	do {
		if (lane_id() < e->topk)
			*head = piece_acquire(from);
		if (__all_sync(ALL_LANES, head->w == epoch)) {
			__syncwarp(); /* a vote orders nothing: only now may all lanes read what those with a head have acquired */
			return true;
		}
	} while (may_wait(&patience, e->wait_ns));
	if (lane_id() == 0)
		report_wait(e, LL_WAIT_ROW, source, token, epoch, head->w, patience.start_ns);
	return false;
}

#define COPY_VECTORS 7 /* of a lane, under way together */

/* A row from its first place to this rank's others. */
static __device__ __forceinline__ void copy_row(const struct ll_dispatch *d, uint32_t from, uint32_t to_lanes, uint32_t position)
{
	const struct ll_exchange *e = &d->exchange;
	uint32_t bytes = e->row.row_bytes, scales = e->row.nr_lines * d->scale_bytes;

#pragma unroll 1
	for (uint32_t start = 0; start < bytes && to_lanes; start += COPY_VECTORS * LANES * 16) {
		uint32_t at = start + lane_id() * 16;
		uint4 v[COPY_VECTORS];

#pragma unroll
		for (uint32_t i = 0; i < COPY_VECTORS; i++)
			if (at + i * LANES * 16 < bytes)
				v[i] = row_load(d->out_x + (uint64_t)from * bytes + at + i * LANES * 16);
		for (uint32_t left = to_lanes; left; left &= left - 1) {
			uint64_t to = __shfl_sync(ALL_LANES, position, __ffs(left) - 1);

#pragma unroll
			for (uint32_t i = 0; i < COPY_VECTORS; i++)
				if (at + i * LANES * 16 < bytes)
					row_store(d->out_x + to * bytes + at + i * LANES * 16, v[i]);
		}
	}
	for (uint32_t left = to_lanes; left && scales; left &= left - 1) {
		uint64_t to = __shfl_sync(ALL_LANES, position, __ffs(left) - 1);

		for (uint32_t i = lane_id(); i < e->row.nr_lines; i += LANES)
			if (d->scale_bytes == 4)
				((uint32_t *)d->out_scales)[to * e->row.nr_lines + i] = ((uint32_t *)d->out_scales)[(uint64_t)from * e->row.nr_lines + i];
			else
				d->out_scales[to * e->row.nr_lines + i] = d->out_scales[(uint64_t)from * e->row.nr_lines + i];
	}
}

static __device__ __forceinline__ void take_row(const struct ll_dispatch *d, uint32_t source, uint32_t token, uint4 head)
{
	uint32_t here = __ballot_sync(ALL_LANES, head.x != UINT32_MAX), from, same;

	if (!here)
		return;
	from = __shfl_sync(ALL_LANES, head.x, __ffs(here) - 1);
	describe_rows(d, source, token, head, from);
	if (d->by_source)
		return;
	same = __match_any_sync(ALL_LANES, head.x); /* an expert named twice has one place */
	copy_row(d, from, __ballot_sync(ALL_LANES, head.x != UINT32_MAX && head.x != from && (same & ((1u << lane_id()) - 1)) == 0), head.x);
}

static __device__ __forceinline__ void receive_all(const struct ll_dispatch *d, const struct ht_exchange *h, uint32_t epoch, uint32_t warp, uint32_t nr_warps)
{
	const struct ll_exchange *e = &d->exchange;
	uint32_t nr_tokens[(LL_MAX_RANKS + LANES - 1) / LANES], most = 0, extent = e->state->extent;

#pragma unroll
	for (uint32_t i = 0; i < (LL_MAX_RANKS + LANES - 1) / LANES; i++) {
		uint32_t s = i * LANES + lane_id();

		nr_tokens[i] = s < e->nr_ranks ? min(e->max_tokens, word_load((uint32_t *)(e->windows[e->rank] + counts_at(e, h, epoch, s)) + h->nr_columns)) : 0;
		most = max(most, __reduce_max_sync(ALL_LANES, nr_tokens[i]));
	}
	for (uint32_t i = warp;; i += nr_warps) {
		uint32_t token = i / e->nr_ranks, source = e->rank + i - token * e->nr_ranks, nr = 0;
		uint4 head;

		if (token >= most)
			return;
		source = source >= e->nr_ranks ? source - e->nr_ranks : source;
#pragma unroll
		for (uint32_t j = 0; j < (LL_MAX_RANKS + LANES - 1) / LANES; j++)
			nr = source / LANES == j ? __shfl_sync(ALL_LANES, nr_tokens[j], source % LANES) : nr;
		if (token >= nr || sender_among(e, source, token) != source)
			continue;
		if (!await_head(d, h, epoch, source, token, &head) || !check_head(e, extent, epoch, source, token, head))
			return;
		take_row(d, source, token, head);
	}
}

template <int X, int ND>
static __global__ void __launch_bounds__(512) dispatch_ht(const __grid_constant__ struct ll_dispatch d, const __grid_constant__ struct ht_exchange h, uint32_t send_warps)
{
	const struct ll_exchange *e = &d.exchange;
	uint32_t warp = threadIdx.x / LANES, nr_warps = blockDim.x / LANES;

	wait_for_previous();
	let_next_start();
	uint4 state = *(const uint4 *)e->state; /* epoch_dispatch, epoch_combine, nr_tokens, failed */

	if (state.w || e->state->abandoned)
		return;
	if (warp < send_warps)
		send_all<X, ND>(&d, &h, state.y, state.z, warp * gridDim.x + blockIdx.x, send_warps * gridDim.x);
	else
		receive_all(&d, &h, state.y, (warp - send_warps) * gridDim.x + blockIdx.x, (nr_warps - send_warps) * gridDim.x);
}

/* ---- launching ----------------------------------------------------------------------------------------------- */

typedef void (*dispatch_kernel)(const struct ll_dispatch, const struct ht_exchange, uint32_t);

static dispatch_kernel choose(const struct ll_dispatch *d)
{
	switch (d->kind) {
	case LL_X_COPY:
		return dispatch_ht<LL_X_COPY, 4>;
	case LL_X_GIVEN:
		return dispatch_ht<LL_X_GIVEN, 2>;
	case LL_X_BF16:
		return dispatch_ht<LL_X_BF16, 2>;
	case LL_X_FP16:
		return dispatch_ht<LL_X_FP16, 2>;
	case LL_X_FP32:
		return dispatch_ht<LL_X_FP32, 2>;
	}
	return NULL;
}

cudaError_t ht_dispatch_blocks(const struct ll_dispatch *d, uint32_t nr_warps, int *per_sm)
{
	return cudaOccupancyMaxActiveBlocksPerMultiprocessor(per_sm, choose(d), (int)nr_warps * LANES, 0);
}

cudaError_t ht_dispatch_launch(const struct ll_dispatch *d, const struct ht_exchange *h, const struct ll_launch *launch, cudaStream_t stream)
{
	uint32_t send_warps = d->roles == LL_SEND ? launch->nr_warps : d->roles == LL_RECEIVE ? 0 : launch->send_warps;
	cudaLaunchConfig_t config = launch_config(launch->nr_blocks, launch->nr_warps * LANES, 0, stream);

	return cudaLaunchKernelEx(&config, choose(d), *d, *h, send_warps);
}
