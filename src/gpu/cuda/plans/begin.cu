/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning of a round that combines a plan again, in place of its dispatch: what the plan's
 * dispatch had left is put back, and all ranks tell each other that they have come so far. That
 * says that the results of the round before have been summed, so this round's may overwrite them:
 * as a dispatch would, whose words these are, with GPU_REPLAYED in place of a number of tokens. */
#include "gpu/cuda/common/launch.cuh"
#include "gpu/cuda/plans/plans.cuh"

/* ---- what a combine reads -------------------------------------------------------------------- */

/* As kept_route says. */
static __device__ __forceinline__ void restore_local_ids(
	const struct gpu_exchange *e, const struct gpu_kept *k, const uint2 *routes)
{
	uint32_t position = UINT32_MAX;

	for (uint32_t i = 0; i < e->topk; i++)
		position = min(position, routes[i].x);
	for (uint32_t i = 0; i < e->topk && position != UINT32_MAX; i++)
		k->local_ids[(uint64_t)position * e->topk + i] = routes[i].y ? 0 : -1;
}

static __device__ __forceinline__ void restore_rows(
	const struct gpu_exchange *e, const struct gpu_kept *k, struct threads t)
{
	for (uint32_t source = 0; source < e->nr_ranks; source++) {
		uint32_t first = source * e->max_tokens, nr = k->state->nr_from[source];

		for (uint32_t i = t.thread; i < nr; i += t.nr)
			e->row_tokens[first + i] = k->row_tokens[first + i];
		for (uint32_t i = t.thread; i < nr * e->topk; i += t.nr)
			e->row_routes[first * e->topk + i] = k->row_routes[first * e->topk + i];
		for (uint32_t row = t.thread; row < nr && k->local_ids; row += t.nr)
			restore_local_ids(e, k, k->row_routes + (first + row) * e->topk);
	}
}

/* Of a result; beside the heads, where it had come. */
static __device__ __forceinline__ void restore_number(
	const struct gpu_exchange *e, uint32_t source, uint32_t token, uint32_t number)
{
	word_store((uint32_t *)numbers_from(e, source, token) + 1, number);
}

/* As if they had come in this round. Nobody else stores them now: sources do so when they have the
 * counts of all for a later round, which this rank sends behind this one. */
static __device__ __forceinline__ void restore_heads(const struct gpu_exchange *e,
	const struct ht_exchange *h, const struct gpu_kept *k, uint32_t epoch, struct threads t)
{
	uint32_t each = e->max_tokens * e->topk;

	for (uint32_t source = 0; source < e->nr_ranks; source++) {
		uint8_t *heads = kept_heads(e, h, source);

		for (uint32_t i = t.thread; i < each; i += t.nr) {
			uint4 head = k->heads[(uint64_t)source * each + i];

			if (!head.w)
				continue;
			if (on_other_node(e, source))
				restore_number(e, source, gpu_div(i, e->by_topk), head.w - 1);
			head.w = epoch;
			piece_store(heads + (uint64_t)i * 16, head);
		}
	}
}

static __device__ __forceinline__ void restore(const struct gpu_exchange *e,
	const struct ht_exchange *h, const struct gpu_kept *k, uint32_t epoch)
{
	struct threads t = all_threads();
	uint32_t nr = k->state->nr_tokens * e->topk;

	for (uint32_t i = t.thread; i < nr; i += t.nr) {
		e->home_routes[i] = k->home_routes[i];
		if (e->internode)
			e->internode->numbers[i] = k->numbers[i];
		if (k->low)
			e->own_positions[i] = k->own_positions[i];
	}
	if (k->low)
		restore_rows(e, k, t);
	else
		restore_heads(e, h, k, epoch, t);
}

/* By one thread, as the kernels of a dispatch do. */
static __device__ __forceinline__ void restore_state(
	const struct gpu_exchange *e, const struct gpu_kept_state *kept, uint32_t epoch)
{
	struct gpu_state *s = e->state;

	s->epoch_combine = epoch;
	s->nr_tokens = kept->nr_tokens;
	s->abandoned = kept->abandoned;
	s->nr_rows = kept->nr_rows;
	s->nr_arrived = kept->nr_arrived;
	s->extent = kept->extent;
	for (uint32_t r = 0; r < e->nr_ranks; r++)
		s->nr_from[r] = kept->nr_from[r];
	for (uint32_t i = 0; i < HT_TICKETS; i++)
		s->tickets[i] = 0;
}

/* ---- who has begun --------------------------------------------------------------------------- */

/* By one thread. */
static __device__ __forceinline__ bool check_begun(
	const struct gpu_exchange *e, uint32_t epoch, uint32_t source, uint32_t told)
{
	if (told != GPU_REPLAYED)
		report_broken(e, GPU_BROKEN_REPLAY, source, 0, told, e->max_tokens, epoch);
	return told == GPU_REPLAYED;
}

/* By the block; its first warp waits. The network has read this rank's last results, so those of
 * this round may be staged. */
static __device__ __forceinline__ bool results_have_left(const struct gpu_exchange *e)
{
	return __syncthreads_and(
		threadIdx.x >= LANES || internode_staging_free(e, INTERNODE_COMBINE));
}

/* To internode ranks: the head alone, behind what all threads have staged. */
template <bool FAR>
static __device__ __forceinline__ bool exchange_far_plans(
	const struct gpu_exchange *e, uint32_t epoch)
{
	struct internode_table *internode = e->internode;

	if (!FAR)
		return true;
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < internode->nr_internode; i += blockDim.x)
		internode_ring_head(internode, &internode->ranks[i], INTERNODE_DISPATCH, epoch, 0);
	if (threadIdx.x == 0)
		internode_has_begun(internode, INTERNODE_DISPATCH, internode->nr_internode);
	return results_have_left(e) &&
	       __syncthreads_and(threadIdx.x >= LANES ||
				 internode_collect(e, INTERNODE_DISPATCH, epoch, GPU_WAIT_PLAN));
}

/* Low latency: the end of line 0 of a plan. It is a piece of its own, and what is left of the line
 * is not looked at. */
#define PLAN_HEAD_OFFSET (7 * 16)

static __device__ __forceinline__ bool await_plan_head(
	const struct gpu_exchange *e, const uint8_t *head, uint32_t epoch, uint32_t source)
{
	struct patience patience = {0, 0};
	uint4 v;

	while ((v = piece_load(head)).w != epoch)
		if (!may_wait(&patience, e, source, e->wait_ns)) {
			report_wait(e, GPU_WAIT_PLAN, source, 0, epoch, v.w, patience.start_ns);
			return false;
		}
	return check_begun(e, epoch, source, v.z);
}

template <bool FAR>
static __device__ __forceinline__ bool begin_low(const struct gpu_exchange *e, uint32_t epoch)
{
	uint64_t at = e->window.plans + PLAN_HEAD_OFFSET;
	bool good = true;

	for (uint32_t r = threadIdx.x; r < e->nr_ranks; r += blockDim.x)
		piece_store(
			part_to<FAR>(e, INTERNODE_PLAN, r) + at + e->rank * e->window.plan_bytes,
			make_uint4(0, 0, GPU_REPLAYED, epoch));
	if (!exchange_far_plans<FAR>(e, epoch))
		return false;
	for (uint32_t r = threadIdx.x; r < e->nr_ranks && good; r += blockDim.x)
		good = await_plan_head(e,
			part_from<FAR>(e, INTERNODE_PLAN, r) + at + r * e->window.plan_bytes, epoch,
			r);
	return __syncthreads_and(good);
}

static __device__ __forceinline__ uint32_t *tokens_at(const struct gpu_exchange *e,
	const struct ht_exchange *h, uint32_t rank, uint32_t epoch, uint32_t source)
{
	return (uint32_t *)(e->windows[rank] + counts_at(e, h, epoch, source)) + tokens_column(h);
}

/* High throughput's counts: nobody looks at the others. */
static __device__ __forceinline__ void tell_counts(
	const struct gpu_exchange *e, const struct ht_exchange *h, uint32_t epoch)
{
	for (uint32_t r = threadIdx.x; r < e->nr_ranks; r += blockDim.x) {
		if (on_other_node(e, r))
			continue;
		word_store(tokens_at(e, h, r, epoch, e->rank), GPU_REPLAYED);
		stores_before();
		word_store(e->windows[r] + count_word_at(e, h, epoch, e->rank), epoch);
	}
}

static __device__ __forceinline__ bool await_counts(
	const struct gpu_exchange *e, const struct ht_exchange *h, uint32_t epoch, uint32_t source)
{
	const uint8_t *word = e->windows[e->rank] + count_word_at(e, h, epoch, source);
	struct patience patience = {0, 0};
	uint32_t seen;

	while ((seen = word_acquire(word)) != epoch)
		if (!may_wait(&patience, e, source, e->wait_ns)) {
			report_wait(e, GPU_WAIT_COUNTS, source, 0, epoch, seen, patience.start_ns);
			return false;
		}
	return true;
}

/* Internode ranks get as counts what this rank last told itself. */
static __device__ __forceinline__ bool send_far_counts(
	const struct gpu_exchange *e, const struct ht_exchange *h, uint32_t epoch)
{
	const uint32_t *mine =
		(const uint32_t *)(e->windows[e->rank] + counts_at(e, h, epoch, e->rank));

	return !e->internode ||
	       (internode_send_counts(e, h, mine, epoch, GPU_REPLAYED) && results_have_left(e));
}

static __device__ __forceinline__ bool take_far_counts(const struct gpu_exchange *e, uint32_t epoch)
{
	return !e->internode || __syncthreads_and(threadIdx.x >= LANES ||
						  internode_collect(e, internode_counts_kind(epoch),
							  epoch, GPU_WAIT_COUNTS));
}

/* A source's number of tokens, where it came. */
static __device__ __forceinline__ const uint32_t *told_by(
	const struct gpu_exchange *e, const struct ht_exchange *h, uint32_t epoch, uint32_t source)
{
	return on_other_node(e, source) ? internode_counts(e, h, epoch, source) + tokens_column(h)
					: tokens_at(e, h, e->rank, epoch, source);
}

static __device__ __forceinline__ bool begin_high(
	const struct gpu_exchange *e, const struct ht_exchange *h, uint32_t epoch)
{
	bool good = send_far_counts(e, h, epoch);

	tell_counts(e, h, epoch);
	for (uint32_t r = threadIdx.x; r < e->nr_ranks && good; r += blockDim.x)
		good = on_other_node(e, r) || await_counts(e, h, epoch, r);
	if (!__syncthreads_and(good) || !take_far_counts(e, epoch))
		return false;
	for (uint32_t r = threadIdx.x; r < e->nr_ranks && good; r += blockDim.x)
		good = check_begun(e, epoch, r, word_load(told_by(e, h, epoch, r)));
	return __syncthreads_and(good);
}

template <bool FAR>
static __device__ __forceinline__ bool begin(const struct gpu_exchange *e,
	const struct ht_exchange *h, const struct gpu_kept *k, uint32_t epoch)
{
	return k->low ? begin_low<FAR>(e, epoch) : begin_high(e, h, epoch);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

namespace tern
{
/* One block waits; nobody waits for the others. */
template <bool FAR>
static __global__ void __launch_bounds__(PLAN_THREADS) combine_begin(
	const __grid_constant__ struct gpu_combine c, const __grid_constant__ struct ht_exchange h,
	const __grid_constant__ struct gpu_kept k)
{
	const struct gpu_exchange *e = &c.exchange;
	uint32_t epoch = word_load(&e->state->epoch_dispatch);

	if (__syncthreads_or(word_load(&e->state->failed))) /* an earlier kernel has */
		return;
	restore(e, &h, &k, epoch);
	if (blockIdx.x == 0 && begin<FAR>(e, &h, &k, epoch) && threadIdx.x == 0)
		restore_state(e, k.state, epoch);
}
} // namespace tern

typedef void (*begin_kernel)(
	const struct gpu_combine, const struct ht_exchange, const struct gpu_kept);

static begin_kernel choose(bool far)
{
	return far ? tern::combine_begin<true> : tern::combine_begin<false>;
}

cudaError_t combine_begin_launch(const struct gpu_combine *c, const struct ht_exchange *h,
	const struct gpu_kept *k, uint32_t nr_blocks, cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(nr_blocks, PLAN_THREADS, 0, stream);

	return cudaLaunchKernelEx(&config, choose(c->exchange.internode != NULL), *c, *h, *k);
}

cudaError_t combine_begin_prepare(void)
{
	cudaError_t rc = load_kernel((const void *)choose(false));

	return rc ? rc : load_kernel((const void *)choose(true));
}
