/* SPDX-License-Identifier: Apache-2.0 */
/* A round's routes into a plan, behind its dispatch and before its combine. It waits for nobody. */
#include "gpu/cuda/common/launch.cuh"
#include "gpu/cuda/plans/plans.cuh"

/* An id that is none has been told of; again, it is no route. */
static __device__ __forceinline__ void keep_route(
	const struct gpu_dispatch *d, const struct gpu_kept *k, uint32_t i)
{
	const struct gpu_exchange *e = &d->exchange;
	int32_t id = expert_id(d, i);

	k->ids[i] = (uint32_t)id < e->placement.nr_experts ? id : -1;
	k->weights[i] = d->topk_weights ? d->topk_weights[i] : 1.0f;
	k->home_routes[i] = e->home_routes[i];
	if (e->internode)
		k->numbers[i] = e->internode->numbers[i];
	if (k->low)
		k->own_positions[i] = e->own_positions[i];
}

static __device__ __forceinline__ void keep_state(
	const struct gpu_state *s, struct gpu_kept_state *kept, uint32_t nr_ranks)
{
	kept->nr_tokens = s->nr_tokens;
	kept->abandoned = s->abandoned;
	kept->nr_rows = s->nr_rows;
	kept->nr_arrived = s->nr_arrived;
	kept->extent = s->extent;
	for (uint32_t r = 0; r < nr_ranks; r++)
		kept->nr_from[r] = s->nr_from[r];
}

/* Where the first route of a row has its position for all, and weights are of no use to the
 * combine, their place says whether the route is here. first: of its source. */
static __device__ __forceinline__ uint2 kept_route(
	const struct gpu_exchange *e, const struct gpu_kept *k, uint32_t first, uint32_t i)
{
	uint2 route = e->row_routes[first + i];
	uint32_t row = gpu_div(i, e->by_topk) * e->topk, position = UINT32_MAX;

	if (!k->local_ids)
		return route;
	for (uint32_t j = 0; j < e->topk; j++)
		position = min(position, e->row_routes[first + row + j].x);
	if (position != UINT32_MAX)
		route.y = k->local_ids[(uint64_t)position * e->topk + i - row] >= 0;
	return route;
}

/* By all threads: low latency's rows of each source. */
static __device__ __forceinline__ void keep_rows(
	const struct gpu_exchange *e, const struct gpu_kept *k, struct threads t)
{
	for (uint32_t source = 0; source < e->nr_ranks; source++) {
		uint32_t first = source * e->max_tokens,
			 nr = min(e->state->nr_from[source], e->max_tokens);

		for (uint32_t i = t.thread; i < nr; i += t.nr)
			k->row_tokens[first + i] = e->row_tokens[first + i];
		for (uint32_t i = t.thread; i < nr * e->topk; i += t.nr)
			k->row_routes[first * e->topk + i] = kept_route(e, k, first * e->topk, i);
	}
}

/* High throughput's heads: those of this round that name a place, or an expert here. */
static __device__ __forceinline__ void keep_heads(const struct gpu_exchange *e,
	const struct ht_exchange *h, const struct gpu_kept *k, struct threads t)
{
	uint32_t epoch = e->state->epoch_combine, each = e->max_tokens * e->topk;

	for (uint32_t source = 0; source < e->nr_ranks; source++) {
		const uint8_t *heads = kept_heads(e, h, source);

		for (uint32_t i = t.thread; i < each; i += t.nr) {
			uint4 head = piece_load(heads + (uint64_t)i * 16);

			head.w = head.w == epoch && (head.x != UINT32_MAX || head.z != UINT32_MAX);
			if (head.w && on_other_node(e, source))
				head.w = 1 +
					 word_load(numbers_from(e, source, gpu_div(i, e->by_topk)) +
						   1);
			k->heads[(uint64_t)source * each + i] = head;
		}
	}
}

/* Beside the plan: rows by their positions. */
static __device__ __forceinline__ void tell_beside(const struct gpu_dispatch *d,
	const struct gpu_kept *k, const struct gpu_plan_beside *b, uint32_t nr, struct threads t)
{
	uint64_t rows = min(d->out_sums[1], b->nr_rows), topk = d->exchange.topk;

	for (uint64_t i = t.thread; i < rows && b->tokens; i += t.nr)
		b->tokens[i] = d->out_rows[i].y;
	for (uint64_t i = t.thread; i < rows * topk && b->wide_ids; i += t.nr)
		b->wide_ids[i] = d->out_ids[i];
	for (uint32_t i = t.thread; i < nr && b->topk_ids; i += t.nr)
		b->topk_ids[i] = k->ids[i];
}

namespace tern
{
static __global__ void __launch_bounds__(PLAN_THREADS) dispatch_keep(
	const __grid_constant__ struct gpu_dispatch d, const __grid_constant__ struct ht_exchange h,
	const __grid_constant__ struct gpu_kept k, const __grid_constant__ struct gpu_plan_beside b)
{
	const struct gpu_exchange *e = &d.exchange;
	struct threads t = all_threads();
	uint32_t nr = e->state->nr_tokens * e->topk;

	if (e->state->failed)
		return;
	if (t.thread == 0)
		keep_state(e->state, k.state, e->nr_ranks);
	for (uint32_t i = t.thread; i < nr; i += t.nr)
		keep_route(&d, &k, i);
	if (k.low)
		keep_rows(e, &k, t);
	else
		keep_heads(e, &h, &k, t);
	tell_beside(&d, &k, &b, nr, t);
}
} // namespace tern

cudaError_t dispatch_keep_launch(const struct gpu_dispatch *d, const struct ht_exchange *h,
	const struct gpu_kept *k, const struct gpu_plan_beside *b, uint32_t nr_blocks,
	cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(nr_blocks, PLAN_THREADS, 0, stream);

	return cudaLaunchKernelEx(&config, tern::dispatch_keep, *d, *h, *k, *b);
}

cudaError_t plans_prepare(void)
{
	cudaError_t rc = load_kernel((const void *)tern::dispatch_keep);

	return rc ? rc : combine_begin_prepare();
}
