/* SPDX-License-Identifier: Apache-2.0 */
/* High-throughput dispatch, the receiving warps: heads in, descriptions out, rows copied to this
 * rank's further places. */
#ifndef TERN_GPU_CUDA_HT_DISPATCH_RECEIVE_CUH
#define TERN_GPU_CUDA_HT_DISPATCH_RECEIVE_CUH

#include "gpu/cuda/ht/dispatch_parts.cuh"

/* A part of a row on its way from where it came to, its first place or an early slot, to its other
 * places. */
struct incoming {
	struct part part;
	uint32_t position, lanes; /* lane k's place; whose are stored to */
};

/* What a warp has to count, where gates are. */
struct to_count {
	uint32_t tile; /* lane k's, all of whose row is there with the part under way; else
			  UINT32_MAX */
	struct gate_stored stored;
};

/* What was fetched last is stored. */
template <bool GATED>
static __device__ __forceinline__ void store_copies(const struct gpu_dispatch *d,
	const struct ht_exchange *h, struct dispatch_warp *w, struct incoming *in,
	struct to_count *count)
{
	shared_at buffer;

	if (!in->lanes)
		return;
	buffer = stream_take(&w->stream);
	__syncwarp();
	for (uint32_t left = in->lanes; left; left &= left - 1)
		store_part(d, w, &in->part, d->exchange.windows[d->exchange.rank], placed_rows(h),
			__shfl_sync(ALL_LANES, in->position, __ffs(left) - 1), buffer);
	copies_close();
	in->lanes = 0;
	if constexpr (GATED)
		if (__any_sync(ALL_LANES, count->tile != UINT32_MAX))
			gate_note_rows<true>(&d->gate, &count->stored, count->tile);
}

/* Heads are waited for together, as many as a warp's lanes hold: those of neighbouring tokens and
 * sources. */
struct heads {
	uint32_t shift, nr;     /* of a token's lanes; tokens */
	uint32_t source, token; /* this lane's */
	bool awaited, early;
	uint4 head;
};

/* Waits for all of them, and uses the time. */
template <bool GATED>
static __device__ __forceinline__ bool await_heads(const struct gpu_dispatch *d,
	const struct ht_exchange *h, uint32_t epoch, struct heads *all, struct dispatch_warp *w,
	struct incoming *in, struct to_count *count)
{
	const struct gpu_exchange *e = &d->exchange;
	const uint8_t *from = e->windows[e->rank] +
			      head_at(e, h, all->source, all->token, lane_of_group(all->shift));
	struct patience patience = {0, 0};
	uint32_t missing;

	all->head = make_uint4(UINT32_MAX, 0, UINT32_MAX, epoch);
	do {
		if (all->awaited)
			all->head = piece_acquire(from);
		missing = __ballot_sync(ALL_LANES, all->head.w != epoch);
		if (!missing) {
			copy_in_ready();
			__syncwarp(); /* a vote orders nothing: only now may all lanes read what
					 those with a head have acquired */
			return true;
		}
		store_copies<GATED>(d, h, w, in, count);
		if constexpr (GATED)
			if (gate_has_stored(&count->stored))
				gate_count_rows<true>(&d->gate, &count->stored);
	} while (warp_may_wait(
		&patience, e, all->head.w == epoch ? e->rank : all->source, e->wait_ns));
	if (is_to_report(e, all->head.w != epoch, all->source))
		report_wait(e, GPU_WAIT_ROW, all->source, all->token, epoch, all->head.w,
			patience.start_ns);
	return false;
}

/* Its parts one after the other; the last one is left under way. tile: as to_count's. */
template <bool GATED>
static __device__ __forceinline__ void copy_row(const struct gpu_dispatch *d,
	const struct ht_exchange *h, struct dispatch_warp *w, struct ht_rows rows, uint32_t from,
	uint32_t lanes, uint32_t position, uint32_t tile, struct incoming *in,
	struct to_count *count)
{
	const struct gpu_exchange *e = &d->exchange;
	const uint8_t *window = e->windows[e->rank],
		      *row = window + rows.x + (uint64_t)from * e->row.row_bytes;
	const uint8_t *scales =
		window + rows.scales + (uint64_t)from * e->row.nr_lines * d->scale_bytes;

	for (uint32_t number = 0; number < w->parts; number++) {
		struct part p = part_of(d, w, number);
		shared_at buffer = stream_buffer(&w->stream);

		copies_read<DISPATCH_BUFFERS - 2>();
		__syncwarp();
		if (p.scales_bytes && !w->whole_scales)
			store_scales(d, shared_pointer(buffer + w->part_bytes),
				scales + p.scales_at, p.scales_bytes);
		stream_fetch(&w->stream, 0, row + p.at, p.bytes, 0);
		if (w->whole_scales)
			stream_fetch(
				&w->stream, w->part_bytes, scales + p.scales_at, p.scales_bytes, 0);
		stream_fetched(&w->stream, p.bytes + (w->whole_scales ? p.scales_bytes : 0), 0);
		store_copies<GATED>(d, h, w, in, count);
		in->part = p;
		in->position = position;
		in->lanes = lanes;
		if constexpr (GATED)
			count->tile = number + 1 == w->parts ? tile : UINT32_MAX;
	}
}

/* Describes its rows, and begins to copy. tile: as tile_of_head's. */
template <bool GATED>
static __device__ __forceinline__ void take_row(const struct gpu_dispatch *d,
	const struct ht_exchange *h, struct dispatch_warp *w, uint32_t source, uint32_t token,
	bool early, uint4 head, uint32_t tile, struct incoming *in, struct to_count *count)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t here = __ballot_sync(ALL_LANES, head.x != UINT32_MAX), from, same, lanes;

	if (!here)
		return;
	from = __shfl_sync(ALL_LANES, head.x, __ffs(here) - 1);
	describe_rows(d, source, token, head, from);
	if ((d->by_source && !early) || source == e->rank) { /* its sender has stored them all */
		if constexpr (GATED)
			gate_note_rows<true>(&d->gate, &count->stored, tile);
		return;
	}
	/* An expert named twice has one place, and one tile. */
	same = GATED ? 0 : __match_any_sync(ALL_LANES, head.x);
	lanes = __ballot_sync(ALL_LANES, head.x != UINT32_MAX && (early || head.x != from) &&
						 (GATED ? tile != UINT32_MAX : is_lowest_of(same)));
	if (lanes)
		copy_row<GATED>(d, h, w, early ? early_rows(d, h, source) : placed_rows(h),
			early ? token : from, lanes, head.x, tile, in, count);
	else if constexpr (GATED)
		gate_note_rows<true>(&d->gate, &count->stored, tile);
}

/* Lane i's number of tokens of source i, i + 32, ... */
struct source_tokens {
	uint32_t nr[(GPU_MAX_RANKS + LANES - 1) / LANES], most;
};

/* A source's count of one column, of which all have seen that it is none too large. */
static __device__ __forceinline__ uint32_t count_of(const struct gpu_exchange *e,
	const struct ht_exchange *h, uint32_t epoch, uint32_t source, uint32_t column)
{
	return word_load(
		(uint32_t *)(e->windows[e->rank] + counts_at(e, h, epoch, source)) + column);
}

/* Of an abandoned round those alone that left before anybody knew: when their heads are here,
 * nothing is under way any more. */
static __device__ __forceinline__ struct source_tokens count_tokens(
	const struct gpu_exchange *e, const struct ht_exchange *h, uint32_t epoch, bool abandoned)
{
	struct source_tokens t = {};

#pragma unroll
	for (uint32_t i = 0; i < (GPU_MAX_RANKS + LANES - 1) / LANES; i++) {
		uint32_t s = i * LANES + lane_id();

		if (i * LANES >= e->nr_ranks)
			break;
		t.nr[i] = s < e->nr_ranks
				  ? min(e->max_tokens, count_of(e, h, epoch, s, tokens_column(h)))
				  : 0;
		if (abandoned && s < e->nr_ranks)
			t.nr[i] = min(t.nr[i],
				min(h->window.nr_early, count_of(e, h, epoch, s, early_column(h))));
		t.most = max(t.most, __reduce_max_sync(ALL_LANES, t.nr[i]));
	}
	return t;
}

/* This lane's of the heads from number `first` on. */
static __device__ __forceinline__ void choose_heads(const struct gpu_exchange *e,
	const struct ht_exchange *h, uint32_t epoch, const struct source_tokens *tokens,
	uint32_t first, struct heads *all)
{
	uint32_t i = first + group_of_lane(all->shift), nr = 0, here;

	all->token = gpu_div(i, e->by_ranks);
	all->source = e->rank + i - all->token * e->nr_ranks;
	all->source = all->source >= e->nr_ranks ? all->source - e->nr_ranks : all->source;
#pragma unroll
	for (uint32_t j = 0; j < (GPU_MAX_RANKS + LANES - 1) / LANES; j++) {
		if (j * LANES >= e->nr_ranks)
			break;
		here = __shfl_sync(ALL_LANES, tokens->nr[j], all->source % LANES);
		nr = all->source / LANES == j ? here : nr;
	}
	all->awaited = all->token < nr && lane_of_group(all->shift) < e->topk &&
		       sender_among(e, all->source, all->token) == all->source;
	all->early = all->awaited && all->token < h->window.nr_early &&
		     all->token < count_of(e, h, epoch, all->source, early_column(h));
}

template <bool GATED>
static __device__ __forceinline__ void receive_all(const struct gpu_dispatch *d,
	const struct ht_exchange *h, struct dispatch_warp *w, uint32_t epoch, bool abandoned)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t *tickets = &e->state->tickets[HT_TICKETS_COPIES],
		 ticket = lane_id() == 0 ? atomicAdd(tickets, 1u) : 0, extent = e->state->extent;
	bool good = true;
	struct source_tokens tokens = count_tokens(e, h, epoch, abandoned);
	struct incoming in = {};
	struct to_count count;
	struct heads all = {};

	if constexpr (GATED)
		gate_nothing_stored(&count.stored);

	all.shift = token_shift(e->topk);
	all.nr = LANES >> all.shift;
	while (good) {
		uint32_t first = __shfl_sync(ALL_LANES, ticket, 0) * all.nr;

		if (gpu_div(first, e->by_ranks) >= tokens.most)
			break;
		if (lane_id() == 0)
			ticket = atomicAdd(tickets, 1u);
		choose_heads(e, h, epoch, &tokens, first, &all);
		if (!await_heads<GATED>(d, h, epoch, &all, w, &in, &count))
			break;
		for (uint32_t i = 0; i < all.nr && good; i++) {
			uint32_t from = lane_in_group(all.shift, i),
				 source = __shfl_sync(ALL_LANES, all.source, i << all.shift);
			uint32_t token = __shfl_sync(ALL_LANES, all.token, i << all.shift),
				 early = __shfl_sync(ALL_LANES, all.early, i << all.shift),
				 tile = UINT32_MAX;
			uint4 head;

			head.x =
				__shfl_sync(ALL_LANES, all.awaited ? all.head.x : UINT32_MAX, from);
			head.y = __shfl_sync(ALL_LANES, all.head.y, from);
			head.z =
				__shfl_sync(ALL_LANES, all.awaited ? all.head.z : UINT32_MAX, from);
			head.x = lane_id() >> all.shift == 0 ? head.x : UINT32_MAX;
			head.z = lane_id() >> all.shift == 0 ? head.z : UINT32_MAX;
			good = check_head(e, extent, epoch, source, token, head);
			if constexpr (GATED)
				good = good && tile_of_head(d, epoch, source, token, head, &tile);
			if (good)
				take_row<GATED>(
					d, h, w, source, token, early, head, tile, &in, &count);
		}
	}
	store_copies<GATED>(d, h, w, &in, &count);
	if constexpr (GATED)
		gate_count_rows<true>(&d->gate, &count.stored);
	copies_read<0>();
}

#endif
