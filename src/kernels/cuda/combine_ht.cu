/* SPDX-License-Identifier: Apache-2.0 */
/* High-throughput combine: what the experts here made of a token is summed (at_home: each row as it is), stored in the home's window, and summed there.
 *
 *   sending warps     a token of a source each: its head -> y rows -> results; then their words, released behind them
 *   receiving warps   a token each: waits for the words of its results, sums
 *
 * Floor: the results' bytes over NVLink.
 */
#include "ht.cuh"
#include "launch.cuh"
#include "results.cuh"

#define ND 4 /* vectors of a lane in a segment */

static __device__ __forceinline__ void store_result(const struct ll_exchange *e, const struct ht_exchange *h, struct extent x, uint32_t source, uint64_t cell,
	const uint4 (&v)[ND])
{
	uint32_t home = home_first(e, source);

	for (uint32_t r = home; r < home + e->by_replicas.d; r++)
#pragma unroll
		for (int i = 0; i < ND; i++) {
			uint32_t offset;

			if (in_row(&e->result, x, i, &offset))
				row_store(e->windows[r] + h->window.results + cell * e->result.row_bytes + offset, v[i]);
		}
}

/* Behind the results' stores, by every lane's fence. */
static __device__ __forceinline__ void send_words(const struct ll_exchange *e, const struct ht_exchange *h, uint32_t epoch, uint32_t source, uint64_t cell, bool mine)
{
	uint32_t home = home_first(e, source);

	__syncwarp();
	__threadfence_system();
	for (uint32_t r = home; r < home + e->by_replicas.d && mine; r++)
		word_store(e->windows[r] + h->window.result_words + cell * 4, epoch);
}

template <int Y>
static __device__ __forceinline__ void send_token(const struct ll_combine *c, const struct ht_exchange *h, uint32_t epoch, uint32_t source, uint32_t token,
	uint2 route)
{
	const struct ll_exchange *e = &c->exchange;
	uint32_t here = __ballot_sync(ALL_LANES, route.x != UINT32_MAX), first = __ffs(here) - 1;
	uint64_t cell = (uint64_t)token * h->window.nr_columns;

	for (uint32_t which = 0; which < e->result.nr_segments; which++) {
		struct extent x = segment_extent(&e->result, which);
		uint4 v[ND];

		if (!e->at_home) {
			sum_part<Y, ND, 2>(c, route, x, 0, v);
			store_result(e, h, x, source, cell + (h->window.rank_columns ? e->rank : first), v);
			continue;
		}
		for (uint32_t left = here; left; left &= left - 1) {
			uint32_t k = __ffs(left) - 1;

			load_part(c, __shfl_sync(ALL_LANES, route.x, k), x, 0, v);
			store_result(e, h, x, source, cell + k, v);
		}
	}
	if (e->at_home)
		send_words(e, h, epoch, source, cell + lane_id(), here >> lane_id() & 1);
	else
		send_words(e, h, epoch, source, cell + (h->window.rank_columns ? e->rank : first), lane_id() == first);
}

template <int Y>
static __device__ __forceinline__ void send_all(const struct ll_combine *c, const struct ht_exchange *h, uint32_t epoch, uint32_t warp, uint32_t nr_warps)
{
	const struct ll_exchange *e = &c->exchange;
	uint32_t extent = e->state->extent;

	for (uint32_t i = warp; i < e->max_tokens * e->nr_ranks; i += nr_warps) {
		uint32_t token = i / e->nr_ranks, source = e->rank + 1 + i - token * e->nr_ranks;
		uint4 head = make_uint4(UINT32_MAX, 0, UINT32_MAX, 0);

		source = source >= e->nr_ranks ? source - e->nr_ranks : source;
		if (lane_id() < e->topk)
			head = piece_load(e->windows[e->rank] + head_at(e, h, source, token));
		if (head.w != epoch) /* of an earlier round: nothing came */
			head.x = head.z = UINT32_MAX;
		if (!check_head(e, extent, epoch, source, token, head)) /* it may have changed since */
			return;
		if (__any_sync(ALL_LANES, head.x != UINT32_MAX))
			send_token<Y>(c, h, epoch, source, token, make_uint2(head.x, head.y));
	}
}

/* ---- at home ------------------------------------------------------------------------------------------------- */

/* Lane k's cell of a result that is to come, if it is the one to look after it. */
static __device__ __forceinline__ bool cell_of_lane(const struct ll_exchange *e, const struct ht_exchange *h, uint2 route, uint32_t token, uint64_t *cell)
{
	uint32_t same = __match_any_sync(ALL_LANES, route.x);
	bool first = (same & ((1u << lane_id()) - 1)) == 0;

	*cell = (uint64_t)token * h->window.nr_columns + (h->window.rank_columns ? route.x : lane_id());
	return route.x != UINT32_MAX && (e->at_home || first);
}

static __device__ __forceinline__ bool await_results(const struct ll_exchange *e, const struct ht_exchange *h, uint32_t epoch, uint32_t token, uint2 route)
{
	struct patience patience = {0, 0};
	uint64_t cell;
	bool waits = cell_of_lane(e, h, route, token, &cell);
	uint32_t seen = epoch;

	do {
		if (waits)
			seen = word_acquire(e->windows[e->rank] + h->window.result_words + cell * 4);
		if (__all_sync(ALL_LANES, seen == epoch)) {
			__syncwarp(); /* a vote orders nothing: only now may all lanes read what those that waited have acquired */
			return true;
		}
	} while (may_wait(&patience, e->wait_ns));
	if (seen != epoch)
		report_wait(e, LL_WAIT_RESULT, route.x, token, epoch, seen, patience.start_ns);
	return false;
}

/* Two results at a time, in the order of the sum. */
template <int Y>
static __device__ __forceinline__ void sum_segment(const struct ll_combine *c, const struct ht_exchange *h, uint32_t token, uint2 route, struct extent x)
{
	const struct ll_exchange *e = &c->exchange;
	const uint8_t *results = e->windows[e->rank] + h->window.results + (uint64_t)token * h->window.nr_columns * e->result.row_bytes;
	uint32_t next = next_result(e, route, UINT32_MAX);
	sums<Y, ND> sum = {};

	while (next != UINT32_MAX) {
		uint32_t result[2] = {next, next_result(e, route, next)};
		uint4 v[2][ND];

#pragma unroll
		for (int r = 0; r < 2; r++)
#pragma unroll
			for (int i = 0; i < ND; i++) {
				uint32_t offset, column = h->window.rank_columns ? result[r] : column_of(e, route, result[r]);

				v[r][i] = result[r] != UINT32_MAX && in_row(&e->result, x, i, &offset) ? row_load(results + (uint64_t)column * e->result.row_bytes + offset)
													       : make_uint4(0, 0, 0, 0);
			}
#pragma unroll
		for (int r = 0; r < 2; r++) {
			float weight = __uint_as_float(__shfl_sync(ALL_LANES, route.y, result[r] % LANES));

			if (result[r] == UINT32_MAX)
				break;
#pragma unroll
			for (int i = 0; i < ND; i++)
				add_vector<Y>(sum.of[i], v[r][i], e->at_home && c->weighted, weight);
		}
		next = result[1] == UINT32_MAX ? UINT32_MAX : next_result(e, route, result[1]);
	}
#pragma unroll
	for (int i = 0; i < ND; i++) {
		uint32_t offset;

		if (in_row(&e->result, x, i, &offset))
			row_store(c->out + token * c->out_stride + offset, round_vector<Y>(sum.of[i]));
	}
}

template <int Y>
static __device__ __forceinline__ void receive_all(const struct ll_combine *c, const struct ht_exchange *h, uint32_t epoch, uint32_t nr_tokens, bool abandoned,
	uint32_t warp, uint32_t nr_warps)
{
	const struct ll_exchange *e = &c->exchange;

	for (uint32_t token = warp; token < nr_tokens; token += nr_warps) {
		uint2 route = make_uint2(UINT32_MAX, 0);

		if (lane_id() < e->topk && !abandoned)
			route = e->home_routes[token * e->topk + lane_id()];
		if (!await_results(e, h, epoch, token, route))
			return;
		for (uint32_t which = 0; which < e->result.nr_segments; which++)
			sum_segment<Y>(c, h, token, route, segment_extent(&e->result, which));
	}
}

template <int Y>
static __global__ void __launch_bounds__(512) combine_ht(const __grid_constant__ struct ll_combine c, const __grid_constant__ struct ht_exchange h, uint32_t send_warps)
{
	const struct ll_exchange *e = &c.exchange;
	uint32_t warp = threadIdx.x / LANES, nr_warps = blockDim.x / LANES;

	wait_for_previous();
	let_next_start();
	uint4 state = *(const uint4 *)e->state; /* epoch_dispatch, epoch_combine, nr_tokens, failed */
	bool abandoned = e->state->abandoned;

	if (state.w)
		return;
	if (warp < send_warps) {
		if (!c.release && !abandoned && blockIdx.x == 0 && threadIdx.x == 0)
			tally_results(e);
		if (!c.release && !abandoned)
			send_all<Y>(&c, &h, state.y, warp * gridDim.x + blockIdx.x, send_warps * gridDim.x);
		return;
	}
	if (blockIdx.x == 0 && warp == send_warps && lane_id() == 0)
		e->state->epoch_dispatch = ht_epoch_after(state.y); /* read by kernels behind this one */
	if (!c.release)
		receive_all<Y>(&c, &h, state.y, state.z, abandoned, (warp - send_warps) * gridDim.x + blockIdx.x, (nr_warps - send_warps) * gridDim.x);
}

/* ---- launching ----------------------------------------------------------------------------------------------- */

typedef void (*combine_kernel)(const struct ll_combine, const struct ht_exchange, uint32_t);

static combine_kernel choose(const struct ll_combine *c)
{
	return c->kind == LL_Y_BF16 ? combine_ht<LL_Y_BF16> : c->kind == LL_Y_FP16 ? combine_ht<LL_Y_FP16> : combine_ht<LL_Y_FP32>;
}

cudaError_t ht_combine_launch(const struct ll_combine *c, const struct ht_exchange *h, const struct ll_launch *launch, cudaStream_t stream)
{
	uint32_t send_warps = c->roles == LL_SEND ? launch->nr_warps : c->roles == LL_RECEIVE ? 0 : launch->send_warps;
	cudaLaunchConfig_t config = launch_config(launch->nr_blocks, launch->nr_warps * LANES, 0, stream);

	return cudaLaunchKernelEx(&config, choose(c), *c, *h, send_warps);
}

cudaError_t ht_most_blocks(const struct ll_dispatch *dispatch, const struct ll_combine *combine, const struct ht_exchange *h, const struct ll_launch *launch,
	uint32_t *nr_blocks)
{
	int device, nr_sms, of_dispatch, of_combine;
	cudaError_t rc = cudaGetDevice(&device);

	rc = rc ? rc : ht_plan_prepare(h);
	rc = rc ? rc : cudaDeviceGetAttribute(&nr_sms, cudaDevAttrMultiProcessorCount, device);
	rc = rc ? rc : ht_dispatch_blocks(dispatch, launch->nr_warps, &of_dispatch);
	rc = rc ? rc : cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_combine, choose(combine), (int)launch->nr_warps * LANES, 0);
	if (!rc)
		*nr_blocks = (uint32_t)nr_sms * (uint32_t)(of_dispatch < of_combine ? of_dispatch : of_combine);
	return rc;
}
