/* SPDX-License-Identifier: Apache-2.0 */
/* High throughput, before any row moves: routes are counted in chunks of tokens, counts are
 * exchanged, and every rank computes where its rows go.
 *
 *   dispatch_count_ht   a block a chunk: each route's number among those of its chunk for the same
 *                       expert (by_source: rows for the same rank)
 *   dispatch_place_ht   one block: sums over chunks -> counts to all; counts of all -> capacity,
 *                       offsets, and where each chunk's rows begin
 */
#include "gpu/cuda/ht/count.cuh"
#include "gpu/cuda/internode/internode_ht.cuh"
#include "gpu/cuda/common/launch.cuh"

#define PLACE_THREADS 1024

/* ---- placing --------------------------------------------------------------------------------- */

/* The block's shared memory. Columns: physical experts, then ranks. */
struct sums {
	uint32_t *part;   /* [groups][columns] rows of each group of chunks, then before it */
	uint32_t *mine;   /* [columns] rows of this rank */
	uint32_t *all;    /* [columns] of all sources */
	uint32_t *before; /* [columns] of sources below this rank */
	uint32_t *at;     /* [P] where an expert's rows begin on its rank */
	uint32_t nr_groups;
};

static __host__ __device__ __forceinline__ uint32_t nr_groups_of(uint32_t nr_columns)
{
	return nr_columns < PLACE_THREADS ? PLACE_THREADS / nr_columns : 1;
}

#define AT_ONCE 16 /* chunks whose counts are under way together */

static __device__ __forceinline__ void load_chunks(const struct ht_exchange *h, uint32_t column,
	uint32_t first, uint32_t end, uint32_t (&counts)[AT_ONCE])
{
#pragma unroll
	for (uint32_t j = 0; j < AT_ONCE; j++)
		counts[j] = first + j < end ? h->chunks[(first + j) * h->nr_columns + column] : 0;
}

static __device__ __forceinline__ void sum_chunks(
	const struct ht_exchange *h, const struct sums *s, uint32_t nr_chunks)
{
	uint32_t each = (nr_chunks + s->nr_groups - 1) / s->nr_groups;

	for (uint32_t i = threadIdx.x; i < s->nr_groups * h->nr_columns; i += PLACE_THREADS) {
		uint32_t group = i / h->nr_columns, column = i - group * h->nr_columns,
			 end = min((group + 1) * each, nr_chunks), sum = 0;

		for (uint32_t c = group * each; c < end; c += AT_ONCE) {
			uint32_t here[AT_ONCE];

			load_chunks(h, column, c, end, here);
#pragma unroll
			for (uint32_t j = 0; j < AT_ONCE; j++)
				sum += here[j];
		}
		s->part[i] = sum;
	}
	__syncthreads();
	for (uint32_t column = threadIdx.x; column < h->nr_columns; column += PLACE_THREADS) {
		uint32_t sum = 0;

		for (uint32_t g = 0; g < s->nr_groups; g++) {
			uint32_t here = s->part[g * h->nr_columns + column];

			s->part[g * h->nr_columns + column] = sum;
			sum += here;
		}
		s->mine[column] = sum;
	}
}

/* Who is no member any more has counts of zeros, which this rank's window holds since it was made
 * anew, as nobody stores there; each rank stores their word for itself. */
static __device__ __noinline__ void counts_for_gone(
	const struct gpu_exchange *e, const struct ht_exchange *h, uint32_t epoch)
{
	for (uint32_t i = threadIdx.x; i < e->view->nr_gone; i += PLACE_THREADS)
		word_store(
			e->windows[e->rank] + count_word_at(e, h, epoch, e->view->gone[i]), epoch);
}

/* To all ranks, and from all. False: somebody's did not come. */
static __device__ __forceinline__ bool exchange_counts(const struct gpu_exchange *e,
	const struct ht_exchange *h, const struct sums *s, uint32_t epoch, uint32_t nr_tokens,
	uint32_t nr_early)
{
	struct patience patience = {0, 0};
	bool good = !e->internode || internode_send_counts(e, h, s->mine, epoch, nr_tokens);

	for (uint32_t r = 0; r < e->nr_ranks; r++) {
		uint32_t *to = (uint32_t *)(e->windows[r] + counts_at(e, h, epoch, e->rank));

		for (uint32_t i = threadIdx.x; i <= early_column(h) && !on_other_node(e, r);
			i += PLACE_THREADS)
			word_store(to + i, i < h->nr_columns       ? s->mine[i]
					   : i == tokens_column(h) ? nr_tokens
								   : nr_early);
		if (threadIdx.x < 2 && e->placement.placed && !on_other_node(e, r))
			word_store(to + placed_column(h) + threadIdx.x,
				e->placement.placed[threadIdx.x]);
	}
	__syncthreads();
	for (uint32_t r = threadIdx.x; r < e->nr_ranks; r += PLACE_THREADS) {
		if (on_other_node(e, r))
			continue;
		stores_before(); /* after the barrier: all threads' counts, not only this one's */
		word_store(e->windows[r] + count_word_at(e, h, epoch, e->rank), epoch);
	}
	if (e->view)
		counts_for_gone(e, h, epoch);
	for (uint32_t r = threadIdx.x; r < e->nr_ranks && good; r += PLACE_THREADS) {
		uint32_t seen;

		if (on_other_node(e, r))
			continue;
		while (good && (seen = word_acquire(e->windows[e->rank] +
						    count_word_at(e, h, epoch, r))) != epoch)
			if (!may_wait(&patience, e, r, e->wait_ns)) {
				report_wait(
					e, GPU_WAIT_COUNTS, r, 0, epoch, seen, patience.start_ns);
				good = false;
			}
	}
	good = __syncthreads_and(good);
	return good && e->internode ? internode_take_counts(e, h, epoch) : good;
}

/* The most tokens that a rank sends. */
static __device__ __forceinline__ uint32_t most_tokens(const struct gpu_exchange *e)
{
	return gpu_div(e->max_tokens + e->by_replicas.d - 1, e->by_replicas);
}

/* A source's count for one column; what no correct peer has counted would lead rows anywhere. */
static __device__ __forceinline__ bool take_count(const struct gpu_exchange *e,
	const struct ht_exchange *h, uint32_t epoch, uint32_t source, uint32_t column,
	uint32_t *count)
{
	bool tokens = column == tokens_column(h);
	uint32_t most = tokens                      ? e->max_tokens
			: column == early_column(h) ? h->window.nr_early
						    : most_tokens(e);

	*count = word_load(
		(uint32_t *)(e->windows[e->rank] + counts_at(e, h, epoch, source)) + column);
	if (*count <= most)
		return true;
	report_broken(e, tokens ? GPU_BROKEN_TOKENS : GPU_BROKEN_ROWS, source, column, *count, most,
		epoch);
	return false;
}

/* All sources have routed by the tables that are here. */
static __device__ __noinline__ bool check_placed(
	const struct gpu_exchange *e, const struct ht_exchange *h, uint32_t epoch)
{
	uint2 mine = placed_of(e);
	bool good = true;

	for (uint32_t r = threadIdx.x; r < e->nr_ranks && mine.y; r += PLACE_THREADS) {
		const uint32_t *at = on_other_node(e, r)
					     ? internode_counts(e, h, epoch, r)
					     : (const uint32_t *)(e->windows[e->rank] +
								  counts_at(e, h, epoch, r));
		uint2 theirs = make_uint2(
			word_load(at + placed_column(h)), word_load(at + placed_column(h) + 1));

		if (is_placed_alike(mine, theirs))
			continue;
		report_broken(e, GPU_BROKEN_PLACED, r, 0, theirs.x, mine.x, epoch);
		good = false;
	}
	return good;
}

static __device__ __forceinline__ bool sum_sources(const struct gpu_exchange *e,
	const struct ht_exchange *h, const struct sums *s, uint32_t epoch)
{
	bool good = !e->placement.placed || check_placed(e, h, epoch);

	for (uint32_t column = threadIdx.x; column <= early_column(h); column += PLACE_THREADS) {
		uint32_t all = 0, before = 0;

#pragma unroll 4
		for (uint32_t r = 0; r < e->nr_ranks; r++) {
			uint32_t here;

			good &= take_count(e, h, epoch, r, column, &here);
			if (r == e->rank && column < h->nr_columns)
				here = s->mine[column]; /* by these its rows will be placed */
			all += here;
			before += r < e->rank ? here : 0;
		}
		if (column < h->nr_columns) {
			s->all[column] = all;
			s->before[column] = before;
		}
	}
	return __syncthreads_and(good);
}

static __device__ __forceinline__ uint32_t aligned(const struct gpu_dispatch *d, uint32_t rows)
{
	return d->by_alignment.d == 1
		       ? rows
		       : (rows + d->by_alignment.d - 1) / d->by_alignment.d * d->by_alignment.d;
}

/* Experts by rank: a rank's first, and which one is there. In blocks they are in order, and no
 * table is looked at. */
static __device__ __forceinline__ uint32_t first_of(
	const struct gpu_exchange *e, const struct ht_exchange *h, uint32_t rank)
{
	return e->placement.per_rank ? rank * e->placement.per_rank : h->first[rank];
}

static __device__ __forceinline__ uint32_t expert_at(
	const struct gpu_exchange *e, const struct ht_exchange *h, uint32_t i)
{
	return e->placement.per_rank ? i : h->order[i];
}

/* A rank's received rows, by one warp. */
struct rank_rows {
	uint64_t rows, extent;
	uint32_t over; /* rows that are more than it takes; 0: it takes all */
};

/* Where a rank's experts begin; a lane has neighbouring ones. */
static __device__ __forceinline__ struct rank_rows place_rank(const struct gpu_dispatch *d,
	const struct ht_exchange *h, const struct sums *s, uint32_t rank)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t first = first_of(e, h, rank), nr = first_of(e, h, rank + 1) - first,
		 each = (nr + LANES - 1) / LANES, begin = min(lane_id() * each, nr),
		 end = min(begin + each, nr);
	uint32_t span = 0, rows = 0, most = 0, last = 0, all, offset;
	struct rank_rows r;

	if (d->by_source) {
		r.rows = r.extent = s->all[h->nr_physical + rank];
		r.over = r.rows > d->capacity ? (uint32_t)r.rows : 0;
		return r;
	}
	for (uint32_t i = begin; i < end; i++) {
		uint32_t here = s->all[expert_at(e, h, first + i)];

		rows += here;
		most = max(most, here);
		span += aligned(d, here);
	}
	offset = lanes_before(span, &all);
	for (uint32_t i = begin; i < end; i++) {
		uint32_t p = expert_at(e, h, first + i);

		s->at[p] = d->padded ? (uint32_t)(i * d->capacity) : offset;
		last = offset + s->all[p];
		offset += aligned(d, s->all[p]);
	}
	last = __reduce_max_sync(ALL_LANES, last);
	r.rows = __reduce_add_sync(ALL_LANES, rows);
	r.extent = d->padded ? nr * d->capacity : last;
	most = d->padded ? __reduce_max_sync(ALL_LANES, most) : last;
	r.over = most > d->capacity ? most : 0;
	return r;
}

/* What tern_received says of this rank. */
static __device__ __forceinline__ void publish_counts(const struct gpu_dispatch *d,
	const struct ht_exchange *h, const struct sums *s, uint32_t epoch, bool abandoned)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t rows = 0;

	if (!d->by_source) {
		for (uint32_t l = threadIdx.x; l < e->nr_local; l += PLACE_THREADS) {
			uint32_t p = expert_at(e, h, first_of(e, h, e->rank) + l);

			d->out_counts[l] = abandoned ? 0 : s->all[p];
			d->out_offsets[l] = s->at[p];
		}
		return;
	}
	for (uint32_t r = 0; r < e->nr_ranks && threadIdx.x == 0; r++) {
		uint32_t here;

		take_count(e, h, epoch, r, h->nr_physical + e->rank, &here);

		d->out_counts[r] = abandoned ? 0 : here;
		d->out_offsets[r] = abandoned ? 0 : rows;
		rows += here;
	}
}

static __device__ __forceinline__ void place_chunks(const struct gpu_dispatch *d,
	const struct ht_exchange *h, const struct sums *s, uint32_t nr_chunks)
{
	uint32_t each = (nr_chunks + s->nr_groups - 1) / s->nr_groups;

	for (uint32_t i = threadIdx.x; i < s->nr_groups * h->nr_columns; i += PLACE_THREADS) {
		uint32_t group = i / h->nr_columns, column = i - group * h->nr_columns,
			 end = min((group + 1) * each, nr_chunks);
		uint32_t at = s->part[i] + s->before[column] +
			      (column < h->nr_physical ? s->at[column] : 0);

		for (uint32_t c = group * each; c < end; c += AT_ONCE) {
			uint32_t here[AT_ONCE];

			load_chunks(h, column, c, end, here);
#pragma unroll
			for (uint32_t j = 0; j < AT_ONCE; j++) {
				if (c + j < end)
					h->chunks[(c + j) * h->nr_columns + column] = at;
				at += here[j];
			}
		}
	}
}

/* Tokens below nr that this rank sends. */
static __device__ __forceinline__ uint32_t own_tokens(const struct gpu_exchange *e, uint32_t nr)
{
	return (nr + e->by_replicas.d - 1 - (e->rank - home_first(e, e->rank))) / e->by_replicas.d;
}

/* By all threads; a thread has a column. */
static __device__ __forceinline__ void counters_round_of(const struct gpu_exchange *e,
	const struct ht_exchange *h, const struct sums *s, uint32_t nr_tokens)
{
	struct gpu_counters *t = e->counters;

	for (uint32_t column = threadIdx.x; t && column < h->nr_columns; column += PLACE_THREADS) {
		uint32_t nr = s->mine[column];

		if (!nr)
			continue;
		counters_add(column < h->nr_physical ? &t->routes : &t->rows, nr);
		if (column < h->nr_physical)
			counters_add(&t->load[h->logical[column]], nr);
		else if (column != h->nr_physical + e->rank)
			counters_add(&t->rows_away, nr);
	}
	if (!t || threadIdx.x)
		return;
	counters_round(e);
	counters_add(&t->tokens, own_tokens(e, nr_tokens));
	counters_add(&t->tokens_away, e->state->nr_away);
}

namespace tern
{
static __global__ void __launch_bounds__(PLACE_THREADS)
	dispatch_place_ht(const __grid_constant__ struct gpu_dispatch d,
		const __grid_constant__ struct ht_exchange h, uint32_t nr_early)
{
	BLOCK_MEMORY(shared);
	const struct gpu_exchange *e = &d.exchange;
	uint32_t columns = h.nr_columns, groups = nr_groups_of(columns), over = 0;
	struct sums s = {shared, shared + groups * columns, shared + (groups + 1) * columns,
		shared + (groups + 2) * columns, shared + (groups + 3) * columns, groups};
	struct rank_rows mine = {0, 0, 0};

	let_next_start(); /* early rows need no more of it than two words */
	wait_for_previous();
	uint4 state = *(const uint4 *)e->state; /* epoch_dispatch, epoch_combine, nr_tokens, failed
						 */
	uint32_t epoch = state.x, nr_tokens = this_rounds_tokens(&d),
		 nr_chunks = (nr_tokens + HT_CHUNK - 1) / HT_CHUNK;

	if (state.w)
		return;
	trace_mark(e, GPU_TRACE_PLAN);
	sum_chunks(&h, &s, nr_chunks);
	__syncthreads();
	if (!exchange_counts(e, &h, &s, epoch, nr_tokens, nr_early))
		return;
	if (threadIdx.x == PLACE_THREADS - 1) /* it has no column */
		word_release(&e->state->exchanged, epoch);
	if (!sum_sources(e, &h, &s, epoch))
		return;
	for (uint32_t r = threadIdx.x / LANES; r < e->nr_ranks; r += PLACE_THREADS / LANES) {
		struct rank_rows rank = place_rank(&d, &h, &s, r);

		over |= rank.over;
		if (r == e->rank)
			mine = rank;
		if (rank.over && lane_id() == 0)
			complain(e, GPU_OVER_CAPACITY, r, 0, rank.over, epoch);
	}
	over = __syncthreads_or(over);
	publish_counts(&d, &h, &s, epoch, over);
	if (threadIdx.x == e->rank % (PLACE_THREADS / LANES) * LANES) {
		d.out_sums[0] = over ? 0 : mine.rows;
		d.out_sums[1] = over ? 0 : mine.extent;
		counters_received(e, over ? 0 : mine.rows);
		e->state->extent = over ? 0 : mine.extent;
	}
	trace_mark(e, GPU_TRACE_PLANS);
	place_chunks(&d, &h, &s, nr_chunks);
	if (!over)
		counters_round_of(e, &h, &s, nr_tokens);
	if (e->internode)
		internode_hide_tokens(e, &h, epoch);
	if (threadIdx.x == 0) {
		e->state->epoch_combine = epoch;
		e->state->nr_tokens = nr_tokens;
		e->state->abandoned = over != 0;
		e->state->nr_arrived = s.all[h.nr_physical + e->rank];
		e->state->nr_away = 0;
		for (uint32_t i = 0; i < HT_TICKETS; i++)
			e->state->tickets[i] = i == HT_TICKETS_ROWS ? nr_early : 0;
	}
}
} // namespace tern

/* ---- launching ------------------------------------------------------------------------------- */

static uint32_t place_shared(const struct ht_exchange *h)
{
	return 4 * (nr_groups_of(h->nr_columns) + 4) * h->nr_columns;
}

static uint32_t count_shared(const struct ht_exchange *h)
{
	return 4 * CHUNK_WORDS * h->nr_columns + 4;
}

/* When an exchange is made. */
static cudaError_t ht_plan_prepare(const struct ht_exchange *h)
{
	cudaError_t rc = load_kernel((const void *)tern::dispatch_count_ht);

	if (!rc && place_shared(h) > 48 * 1024)
		rc = allow_shared((const void *)tern::dispatch_place_ht);
	if (!rc && count_shared(h) > 48 * 1024)
		rc = allow_shared((const void *)tern::dispatch_count_ht);
	return rc ? rc : load_kernel((const void *)tern::dispatch_place_ht);
}

cudaError_t ht_plan_launch(const struct gpu_dispatch *args, const struct ht_exchange *h,
	const struct gpu_launch *launch, cudaStream_t stream)
{
	uint32_t nr_chunks = (args->nr_tokens + HT_CHUNK - 1) / HT_CHUNK;
	cudaLaunchConfig_t count = launch_config(nr_chunks, COUNT_THREADS, count_shared(h), stream);
	cudaLaunchConfig_t place = launch_config(1, PLACE_THREADS, place_shared(h), stream);
	cudaLaunchAttribute early[2] = {};
	cudaError_t rc = cudaSuccess;

	launch_early(&count, &early[0], launch->early);
	launch_early(&place, &early[1], launch->early);
	if (nr_chunks)
		rc = cudaLaunchKernelEx(&count, tern::dispatch_count_ht, *args, *h);
	return rc ? rc
		  : cudaLaunchKernelEx(&place, tern::dispatch_place_ht, *args, *h,
			    ht_early_tokens(args, h, launch));
}

cudaError_t ht_most_blocks(const struct gpu_dispatch *dispatch, const struct gpu_combine *combine,
	const struct ht_exchange *h, uint32_t *nr_blocks)
{
	int device, nr_sms, of_dispatch, of_combine;
	cudaError_t rc = cudaGetDevice(&device);

	rc = rc ? rc : ht_plan_prepare(h);
	rc = rc ? rc : cudaDeviceGetAttribute(&nr_sms, cudaDevAttrMultiProcessorCount, device);
	rc = rc ? rc : ht_dispatch_blocks(dispatch, h, GPU_MAX_WARPS, &of_dispatch);
	rc = rc ? rc : ht_combine_blocks(combine, h, &of_combine);
	if (!rc)
		*nr_blocks = (uint32_t)nr_sms *
			     (uint32_t)(of_dispatch < of_combine ? of_dispatch : of_combine);
	return rc;
}
