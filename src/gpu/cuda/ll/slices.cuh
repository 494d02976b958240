/* SPDX-License-Identifier: Apache-2.0 */
/* What follows from all plans where many rows come (positions.cuh: where few do): each block notes
 * the routes of a slice of the tokens alone, tells the others how many rows it has for each local
 * expert, and adds up what they tell. So a block's work and shared memory follow the rows that it
 * receives, and not those of all ranks.
 *
 *   heads      how many tokens each source has, from line 0 of its plan     -> which slices there are
 *   note       the plan's lines of one slice                                -> bits, counts
 *   tell       counts, with the epoch in each piece                         -> e->slice_counts
 *   add_up     the counts of all slices                                     -> rows of each expert, and of those in earlier slices
 *
 * A slice is up to SLICE_TOKENS tokens of one source; slices are numbered source by source. They
 * are as large as gives each block one; where there are too many tokens for that, a block has
 * several, one after the other. */
#ifndef TERN_GPU_CUDA_LL_SLICES_CUH
#define TERN_GPU_CUDA_LL_SLICES_CUH

#include "gpu/cuda/ll/take_plans.cuh"

struct slices {
	uint32_t *bits; /* [L + 1][SLICE_WORDS] tokens of the slice that go to a local expert; that
			   come here at all */
	uint32_t *rows; /* [L + 1] of this round, likewise */
	uint32_t *before;    /* [L + 2] of these in earlier slices; and tokens that come here, of
				earlier slices of the source */
	uint32_t *start;     /* [L] position of an expert's first row */
	uint32_t *sums;      /* [2 GPU_MAX_WARPS] */
	uint32_t *nr_tokens; /* [R] */
	uint32_t *first;     /* [R + 1] slice of each source */
	uint32_t *failed;    /* some plan did not come, or was none */
	uint32_t *tokens;    /* of a slice */
	uint32_t *drawn;     /* parts of the block's slice that warps have taken */
	uint64_t *placed;    /* a barrier, passed when rows' places are known, or never will be */
	uint8_t *counts;     /* [L + 1] of the slice, up to whole pieces */
	uint16_t *ids;       /* of the slice and its neighbours, whole warps' pieces */
};

/* One slice: tokens first to end of a source. */
struct slice {
	uint32_t number, source, first, end;
};

template <int FORMAT>
__device__ __forceinline__ struct slices slices_in(uint32_t *shared, const struct gpu_exchange *e)
{
	uint32_t columns = e->nr_local + 1;
	struct slices s;

	s.placed = (uint64_t *)shared;
	s.drawn = shared + 2;
	s.bits = shared + 4;
	s.rows = s.bits + columns * SLICE_WORDS;
	s.before = s.rows + columns;
	s.start = s.before + columns + 1;
	s.sums = s.start + e->nr_local;
	s.nr_tokens = s.sums + 2 * GPU_MAX_WARPS;
	s.first = s.nr_tokens + e->nr_ranks;
	s.failed = s.first + e->nr_ranks + 1;
	s.tokens = s.failed + 1;
	s.counts = (uint8_t *)(s.tokens + 1);
	s.ids = (uint16_t *)(s.counts + slice_pieces(e->nr_local) * SLICE_COLUMNS);
	return s;
}

/* By all threads; then a barrier of them. */
__device__ __forceinline__ void slices_open(const struct slices *s, uint32_t nr_receivers)
{
	if (threadIdx.x == 0) {
		barrier_open(in_shared(s->placed), nr_receivers * LANES);
		*s->drawn = nr_receivers;
		*s->failed = 0;
	}
}

/* ---- which slices there are ------------------------------------------------------------------ */

template <int CASE, bool FAR>
__device__ __forceinline__ const uint8_t *head_of_plan(
	const struct gpu_exchange *e, uint32_t source)
{
	return part_from<FAR, CASE == GPU_ELASTIC>(e, INTERNODE_PLAN, source) + e->window.plans +
	       source * e->window.plan_bytes + 7 * 16;
}

/* By who has found another rank's head broken, before that ends this round here: the warps that
 * send may not have begun, and would then send nothing, so that others would hear of an end and not
 * see its reason. This rank's own plan leaves for itself last. */
template <int CASE, bool FAR>
static __device__ __noinline__ void let_plan_leave(const struct gpu_exchange *e, uint32_t epoch)
{
	struct patience patience = {0, 0};

	while (piece_load(head_of_plan<CASE, FAR>(e, e->rank)).w != epoch &&
		may_wait(&patience, e, e->rank, e->wait_ns))
		;
}

/* By one thread: a source's number of tokens. NEVER: it did not come, or cannot be, or its routes
 * are made by other tables than those here. */
template <int CASE, bool FAR>
__device__ __forceinline__ uint32_t await_head(
	const struct gpu_exchange *e, uint32_t epoch, uint32_t source)
{
	const uint8_t *at = head_of_plan<CASE, FAR>(e, source);
	struct patience patience = {0, 0};
	uint2 mine = placed_of<CASE>(e);
	uint4 head;
	bool fits;

	while ((head = piece_load(at)).w != epoch)
		if (!may_wait(&patience, e, source, e->wait_ns)) {
			report_wait(e, GPU_WAIT_PLAN, source, 0, epoch, head.w, patience.start_ns);
			return NEVER;
		}
	fits = head.z <= e->max_tokens;
	if (fits && (CASE > GPU_ANY || is_placed_alike(mine, make_uint2(head.x, head.y))))
		return head.z;
	let_plan_leave<CASE, FAR>(e, epoch);
	if (fits)
		report_broken(e, GPU_BROKEN_PLACED, source, 0, head.x, mine.x, epoch);
	else
		report_broken(e, GPU_BROKEN_TOKENS, source, 0, head.z, e->max_tokens, epoch);
	return NEVER;
}

/* By one warp, when all heads are there. */
__device__ __forceinline__ void cut_slices(const struct gpu_exchange *e, const struct slices *s)
{
	uint32_t all = 0, next = 0, tokens;

	for (uint32_t r = lane_id(); r < e->nr_ranks; r += LANES)
		all += s->nr_tokens[r];
	all = __reduce_add_sync(ALL_LANES, all);
	tokens = tokens_of_slice(all, e->nr_ranks, gridDim.x);
	for (uint32_t r = 0; r < e->nr_ranks; r += LANES) {
		uint32_t source = r + lane_id(), nr = 0, sum, start;

		if (source < e->nr_ranks)
			nr = max(gpu_ceil(s->nr_tokens[source], tokens), 1u);
		start = next + lanes_before(nr, &sum);
		if (source < e->nr_ranks)
			s->first[source] = start;
		next += sum;
	}
	if (lane_id() == 0) {
		s->first[e->nr_ranks] = next;
		*s->tokens = tokens;
	}
}

/* False: some head did not come. By all receiving warps. */
template <int CASE, bool FAR>
__device__ __forceinline__ bool await_heads(const struct gpu_exchange *e, const struct slices *s,
	uint32_t epoch, bool failed, uint32_t warp, uint32_t nr_warps)
{
	uint32_t thread = warp * LANES + lane_id();

	failed = !internode_arrived<FAR>(
			 e, INTERNODE_DISPATCH, epoch, GPU_WAIT_PLAN, failed, warp, nr_warps) ||
		 failed;
	for (uint32_t r = thread; r < e->nr_ranks && !failed; r += nr_warps * LANES) {
		uint32_t nr = await_head<CASE, FAR>(e, epoch, r);

		failed = nr == NEVER;
		s->nr_tokens[r] = nr;
	}
	if (failed)
		atomicOr(s->failed, 1u);
	warps_sync(nr_warps * LANES);
	if (*s->failed)
		return false;
	if (warp == 0)
		cut_slices(e, s);
	warps_sync(nr_warps * LANES);
	return true;
}

__device__ __forceinline__ struct slice find_slice(
	const struct gpu_exchange *e, const struct slices *s, uint32_t number)
{
	struct slice slice = {number, 0, 0, 0};

	for (uint32_t r = 0; r < e->nr_ranks; r += LANES) {
		bool begun = r + lane_id() < e->nr_ranks && s->first[r + lane_id()] <= number;

		slice.source += __popc(__ballot_sync(ALL_LANES, begun));
	}
	slice.source--;
	slice.first = (number - s->first[slice.source]) * *s->tokens;
	slice.end = min(slice.first + *s->tokens, s->nr_tokens[slice.source]);
	return slice;
}

/* ---- a slice's routes ------------------------------------------------------------------------ */

/* Ids from a plan's first piece that the slice has something of. */
template <int FORMAT>
__device__ __forceinline__ uint32_t first_four(const struct gpu_exchange *e, const struct slice *s)
{
	return s->first * e->topk / (4 * plan_line<FORMAT>::IDS);
}

/* Those of a token. */
template <int FORMAT>
__device__ __forceinline__ const uint16_t *slice_ids(const struct gpu_exchange *e,
	const struct slices *s, const struct slice *slice, uint32_t token)
{
	return s->ids + token * e->topk - first_four<FORMAT>(e, slice) * 4 * plan_line<FORMAT>::IDS;
}

/* A piece of the slice's plan: awaited, checked, and its ids that are the slice's noted. False: it
 * did not come, or names what cannot be. */
template <int FORMAT, int CASE, bool FAR>
__device__ __forceinline__ bool take_slice_piece(const struct gpu_exchange *e,
	const struct slices *s, const struct slice *slice, uint32_t epoch, uint32_t four)
{
	constexpr uint32_t N = plan_line<FORMAT>::LANE_IDS, IDS = 4 * plan_line<FORMAT>::IDS,
			   STEPS = (IDS + LANES - 1) / LANES;
	struct plan_piece piece = {slice->source, four, {}};
	struct patience patience = {0, 0};
	uint32_t nr_tokens = s->nr_tokens[slice->source], line = 4 * four + lane_id() / 8;
	uint16_t *ids = s->ids + (four - first_four<FORMAT>(e, slice)) * IDS;
	uint32_t *words = (uint32_t *)ids + (lane_id() - lane_id() / 8) * (N / 2);
	uint32_t from = slice->first * e->topk, end = slice->end * e->topk;
	bool bad = false;

	look_at_plan<CASE, FAR>(e, &piece);
	while (!__all_sync(
		ALL_LANES, plan_line_there<FORMAT>(e, epoch, line, nr_tokens, piece.v))) {
		if (!warp_may_wait(&patience, e, slice->source, e->wait_ns)) {
			if (lane_id() == 7)
				report_wait(e, GPU_WAIT_PLAN, slice->source, four, epoch, piece.v.w,
					patience.start_ns);
			return false;
		}
		look_at_plan<CASE, FAR>(e, &piece);
	}
	const uint32_t v[4] = {piece.v.x, piece.v.y, piece.v.z, piece.v.w};

#pragma unroll
	for (uint32_t i = 0; i < N / 2; i++)
		if (lane_id() % 8 != 7)
			words[i] = v[i];
	__syncwarp();
#pragma unroll 1
	for (uint32_t i = 0; i < STEPS; i++) {
		uint32_t at = four * IDS + i * LANES + lane_id(), token = gpu_div(at, e->by_topk),
			 physical, local, bit = token - slice->first;

		if (at < from || at >= end || i * LANES + lane_id() >= IDS)
			continue;
		physical = ids[i * LANES + lane_id()];
		bad |= !is_good_route(e, slice->source, token, physical);
		local = bad ? UINT32_MAX : local_of<CASE>(e, physical);
		if (local == UINT32_MAX)
			continue;
		atomicOr(&s->bits[local * SLICE_WORDS + bit / 32], 1u << bit % 32);
		atomicOr(&s->bits[e->nr_local * SLICE_WORDS + bit / 32], 1u << bit % 32);
	}
	if (!__any_sync(ALL_LANES, bad))
		return true;
	report_routes(e, epoch, slice->source, s->ids - first_four<FORMAT>(e, slice) * IDS,
		max(from, four * IDS) + lane_id(), min(end, (four + 1) * IDS));
	return false;
}

__device__ __forceinline__ uint32_t count_column(const struct slices *s, uint32_t column)
{
	uint4 v = *(const uint4 *)(s->bits + column * SLICE_WORDS);

	return __popc(v.x) + __popc(v.y) + __popc(v.z) + __popc(v.w);
}

/* By all receiving warps, who have met behind it. False: it failed. */
template <int FORMAT, int CASE, bool FAR>
__device__ __forceinline__ bool note_slice(const struct gpu_exchange *e, const struct slices *s,
	const struct slice *slice, uint32_t epoch, uint32_t warp, uint32_t nr_warps)
{
	uint32_t thread = warp * LANES + lane_id(), nr_threads = nr_warps * LANES,
		 columns = e->nr_local + 1, from = first_four<FORMAT>(e, slice),
		 end = gpu_ceil(slice->end * e->topk, 4 * plan_line<FORMAT>::IDS);
	bool good = true;

	for (uint32_t i = thread; i < columns * SLICE_WORDS; i += nr_threads)
		s->bits[i] = 0;
	warps_sync(nr_threads);
	for (uint32_t four = from + warp; four < end && slice->first < slice->end && good;
		four += nr_warps)
		good = take_slice_piece<FORMAT, CASE, FAR>(e, s, slice, epoch, four);
	if (!good && lane_id() == 0)
		atomicOr(s->failed, 1u);
	warps_sync(nr_threads);
	for (uint32_t c = thread; c < slice_pieces(e->nr_local) * SLICE_COLUMNS; c += nr_threads)
		s->counts[c] = c < columns ? count_column(s, c) : 0;
	warps_sync(nr_threads);
	return !*s->failed;
}

/* ---- what other blocks count ----------------------------------------------------------------- */

__device__ __forceinline__ uint8_t *counts_of_slice(
	const struct gpu_exchange *e, uint32_t piece, uint32_t number)
{
	return e->slice_counts + ((uint64_t)piece * e->most_slices + number) * 16;
}

__device__ __forceinline__ void tell_counts(const struct gpu_exchange *e, const struct slices *s,
	const struct slice *slice, uint32_t epoch, uint32_t thread, uint32_t nr_threads)
{
	for (uint32_t p = thread; p < slice_pieces(e->nr_local); p += nr_threads) {
		const uint32_t *words = (const uint32_t *)(s->counts + p * SLICE_COLUMNS);

		piece_store(counts_of_slice(e, p, slice->number),
			make_uint4(words[0], words[1], words[2], epoch));
	}
}

/* One column of a piece. */
__device__ __forceinline__ uint32_t count_in(uint4 v, uint32_t column)
{
	uint32_t word = column / 4 == 0 ? v.x : column / 4 == 1 ? v.y : v.z;

	return word >> column % 4 * 8 & 0xff;
}

/* The sum over all lanes of each column of their pieces, to the lane of that number. Two columns a
 * word: a count is a byte, and lanes and looks at once are few. */
__device__ __forceinline__ uint32_t add_columns(const uint32_t (&sums)[6])
{
	uint32_t mine = 0;

#pragma unroll
	for (uint32_t q = 0; q < 6; q++) {
		uint32_t sum = __reduce_add_sync(ALL_LANES, sums[q]);

		if (lane_id() / 4 == q / 2 && lane_id() % 2 == q % 2)
			mine = lane_id() % 4 / 2 ? sum >> 16 : sum & 0xffff;
	}
	return mine;
}

__device__ __forceinline__ void add_piece(uint32_t (&sums)[6], uint4 v)
{
	const uint32_t words[3] = {v.x, v.y, v.z};

#pragma unroll
	for (uint32_t q = 0; q < 6; q++)
		sums[q] += words[q / 2] >> q % 2 * 8 & 0x00ff00ff;
}

#define SLICE_LOOKS 4 /* of a lane at once */

/* Pieces p of slices g, g + 32, ...; the last slice's where there are no so many. By a warp. */
__device__ __forceinline__ bool await_counts(const struct gpu_exchange *e, uint32_t epoch,
	uint32_t p, uint32_t g, uint32_t nr, uint4 (&v)[SLICE_LOOKS])
{
	struct patience patience = {0, 0};
	bool there;

	for (;;) {
		there = true;
#pragma unroll
		for (uint32_t i = 0; i < SLICE_LOOKS; i++)
			v[i] = piece_load(counts_of_slice(e, p, min(g + i * LANES, nr - 1)));
#pragma unroll
		for (uint32_t i = 0; i < SLICE_LOOKS; i++)
			there &= v[i].w == epoch;
		if (__all_sync(ALL_LANES, there))
			return true;
		if (warp_may_wait(&patience, e, e->rank, e->wait_ns))
			continue;
		if (lane_id() == __ffs(__ballot_sync(ALL_LANES, !there)) - 1)
			report_wait(e, GPU_WAIT_PLAN, e->rank, g, epoch, v[0].w, patience.start_ns);
		return false;
	}
}

/* One piece of all slices' counts, by a warp. */
__device__ __forceinline__ bool add_up_piece(const struct gpu_exchange *e, const struct slices *s,
	const struct slice *slice, uint32_t epoch, uint32_t p)
{
	uint32_t nr = s->first[e->nr_ranks], of_source = s->first[slice->source],
		 present = e->nr_local - p * SLICE_COLUMNS, rows = 0, before = 0, within = 0;

	for (uint32_t g = lane_id(); g - lane_id() < nr; g += SLICE_LOOKS * LANES) {
		uint32_t all[6] = {}, earlier[6] = {}, mine = 0;
		uint4 v[SLICE_LOOKS];

		if (!await_counts(e, epoch, p, g, nr, v))
			return false;
#pragma unroll
		for (uint32_t i = 0; i < SLICE_LOOKS; i++) {
			uint32_t number = g + i * LANES;

			if (number < nr)
				add_piece(all, v[i]);
			if (number < slice->number)
				add_piece(earlier, v[i]);
			if (number < slice->number && number >= of_source &&
				present < SLICE_COLUMNS)
				mine += count_in(v[i], present);
		}
		rows += add_columns(all);
		before += add_columns(earlier);
		within += __reduce_add_sync(ALL_LANES, mine);
	}
	if (lane_id() < SLICE_COLUMNS && p * SLICE_COLUMNS + lane_id() <= e->nr_local) {
		s->rows[p * SLICE_COLUMNS + lane_id()] = rows;
		s->before[p * SLICE_COLUMNS + lane_id()] = before;
	}
	if (lane_id() == 0 && present < SLICE_COLUMNS)
		s->before[e->nr_local + 1] = within;
	return true;
}

/* What comes before this slice, by all receiving warps. False: it failed. */
__device__ __forceinline__ bool add_up(const struct gpu_exchange *e, const struct slices *s,
	const struct slice *slice, uint32_t epoch, uint32_t warp, uint32_t nr_warps)
{
	bool good = true;

	for (uint32_t p = warp; p < slice_pieces(e->nr_local) && good; p += nr_warps)
		good = add_up_piece(e, s, slice, epoch, p);
	if (!good && lane_id() == 0)
		atomicOr(s->failed, 1u);
	warps_sync(nr_warps * LANES);
	return !*s->failed;
}

/* From the slice behind us, whose counts are still there, to the next one. */
__device__ __forceinline__ void go_on(const struct gpu_exchange *e, const struct slices *s,
	bool same_source, uint32_t thread, uint32_t nr_threads)
{
	for (uint32_t c = thread; c <= e->nr_local; c += nr_threads)
		s->before[c] += s->counts[c];
	if (thread == 0)
		s->before[e->nr_local + 1] =
			same_source ? s->before[e->nr_local + 1] + s->counts[e->nr_local] : 0;
	warps_sync(nr_threads);
}

__device__ __forceinline__ uint32_t count_expert(
	const struct gpu_exchange *, const struct slices *s, uint32_t expert)
{
	return s->rows[expert];
}

/* Of a column's tokens in the slice those before number `token`. */
__device__ __forceinline__ uint32_t slice_bits_before(
	const struct slices *s, uint32_t column, uint32_t token)
{
	uint4 v = *(const uint4 *)(s->bits + column * SLICE_WORDS);

	return __popc(earlier_bits(v.x, (int)token)) + __popc(earlier_bits(v.y, (int)token - 32)) +
	       __popc(earlier_bits(v.z, (int)token - 64)) +
	       __popc(earlier_bits(v.w, (int)token - 96));
}

#endif
