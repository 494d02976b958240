/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cuda/beside/received.cuh"
#include "gpu/cuda/common/launch.cuh"
#include "gpu/cuda/ht/ht.cuh"

#define BESIDE_THREADS 512

/* ---- weights --------------------------------------------------------------------------------- */

/* High throughput sums this rank's own rows by their heads. */
static __device__ __forceinline__ void weigh_own(
	const struct gpu_exchange *e, const struct ht_exchange *h, uint32_t i, uint32_t weight)
{
	uint32_t token = gpu_div(i, e->by_topk), k = i - token * e->topk;
	uint8_t *at = e->windows[e->rank] + head_at(e, h, e->rank, token, k);
	uint4 head = piece_load(at);

	if (head.w != e->state->epoch_combine)
		return;
	head.y = weight;
	piece_store(at, head);
}

namespace tern
{
static __global__ void __launch_bounds__(BESIDE_THREADS) combine_weights(
	const __grid_constant__ struct gpu_combine c, const __grid_constant__ struct ht_exchange h,
	const __grid_constant__ struct gpu_beside b)
{
	const struct gpu_exchange *e = &c.exchange;
	uint32_t nr = e->state->nr_tokens * e->topk;

	if (e->state->failed)
		return;
	for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < nr;
		i += gridDim.x * blockDim.x) {
		uint32_t weight = __float_as_uint(b.weights[i]);

		e->home_routes[i].y = weight;
		if (!b.low && e->home_routes[i].x == e->rank)
			weigh_own(e, &h, i, weight);
	}
}
} // namespace tern

/* ---- floats ---------------------------------------------------------------------------------- */

/* Lane k's route of a token here, and where its float is; UINT64_MAX: it is not here. */
static __device__ __forceinline__ uint64_t float_at(
	const struct gpu_exchange *e, const struct gpu_beside *b, uint32_t position, bool here)
{
	uint32_t row;

	if (!b->by_source)
		return position == UINT32_MAX ? UINT64_MAX : position;
	row = __reduce_min_sync(ALL_LANES, position); /* the first route has it for all */
	if (row == UINT32_MAX || lane_id() >= e->topk)
		return UINT64_MAX;
	if (b->low)
		here = b->local_ids[(uint64_t)row * e->topk + lane_id()] >= 0;
	return here ? (uint64_t)row * e->topk + lane_id() : UINT64_MAX;
}

/* To all that are home to the source's tokens. */
static __device__ __forceinline__ void send_float(const struct gpu_exchange *e,
	const struct gpu_beside *b, uint32_t epoch, uint32_t source, uint32_t token, uint64_t at)
{
	uint32_t home = home_first(e, source), bits;

	if (at == UINT64_MAX)
		return;
	bits = b->floats ? __float_as_uint(b->floats[at]) : 0;
	for (uint32_t r = home; r < home + e->by_replicas.d; r++)
		piece_store(window_in_use(e, r) + b->cells +
				    ((uint64_t)token * e->topk + lane_id()) * 16,
			make_uint4(bits, epoch, 0, 0)); /* in one half of the piece */
}

/* By a warp, like the next. */
static __device__ __forceinline__ void send_low(const struct gpu_exchange *e,
	const struct gpu_beside *b, uint32_t epoch, uint32_t source, uint32_t row)
{
	uint32_t at = source * e->max_tokens + row, position = UINT32_MAX;

	if (row >= e->state->nr_from[source])
		return;
	if (lane_id() < e->topk)
		position = e->row_routes[at * e->topk + lane_id()].x;
	send_float(e, b, epoch, source, e->row_tokens[at], float_at(e, b, position, false));
}

static __device__ __forceinline__ bool send_high(const struct gpu_exchange *e,
	const struct ht_exchange *h, const struct gpu_beside *b, uint32_t epoch, uint32_t source,
	uint32_t token)
{
	uint4 head = make_uint4(UINT32_MAX, 0, UINT32_MAX, 0);

	if (lane_id() < e->topk)
		head = piece_load(e->windows[e->rank] + head_at(e, h, source, token, lane_id()));
	if (head.w != epoch)
		head.x = head.z = UINT32_MAX;
	if (!check_head(e, e->state->extent, epoch, source, token, head)) /* it may have changed
									     since */
		return false;
	send_float(e, b, epoch, source, token, float_at(e, b, head.x, head.z != UINT32_MAX));
	return true;
}

static __device__ __forceinline__ void send_floats(
	const struct gpu_exchange *e, const struct ht_exchange *h, const struct gpu_beside *b)
{
	uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / LANES,
		 nr_warps = gridDim.x * blockDim.x / LANES, epoch = e->state->epoch_combine;

	for (uint32_t i = warp; i < e->nr_ranks * e->max_tokens; i += nr_warps) {
		uint32_t token = gpu_div(i, e->by_ranks), source = i - token * e->nr_ranks;

		if (b->low)
			send_low(e, b, epoch, source, token);
		else if (!send_high(e, h, b, epoch, source, token))
			return;
	}
}

/* One float, by one thread. */
static __device__ __forceinline__ bool await_float(const struct gpu_exchange *e,
	const struct gpu_beside *b, uint32_t epoch, uint32_t i, uint32_t rank)
{
	const uint8_t *cell = window_in_use(e, e->rank) + b->cells + (uint64_t)i * 16;
	struct patience patience = {0, 0};
	uint4 v;

	while ((v = piece_load(cell)).y != epoch)
		if (!may_wait(&patience, e, rank, e->wait_ns)) {
			report_wait(e, GPU_WAIT_RESULT, rank, gpu_div(i, e->by_topk), epoch, v.y,
				patience.start_ns);
			return false;
		}
	b->out_floats[i] = __uint_as_float(v.x);
	return true;
}

static __device__ __forceinline__ void receive_floats(
	const struct gpu_exchange *e, const struct gpu_beside *b)
{
	uint32_t nr = e->state->nr_tokens * e->topk, epoch = e->state->epoch_combine;
	bool abandoned = !b->low && e->state->abandoned;

	for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < nr;
		i += gridDim.x * blockDim.x) {
		uint32_t rank = abandoned ? UINT32_MAX : e->home_routes[i].x;

		if (rank == UINT32_MAX)
			b->out_floats[i] = 0;
		else if (!await_float(e, b, epoch, i, rank))
			return;
	}
}

namespace tern
{
/* Who waits has sent all that others wait for. Why floats of the next round may overwrite these: as
 * results, they follow this rank's dispatch of that round, which is behind this kernel. */
static __global__ void __launch_bounds__(BESIDE_THREADS) combine_floats(
	const __grid_constant__ struct gpu_combine c, const __grid_constant__ struct ht_exchange h,
	const __grid_constant__ struct gpu_beside b)
{
	const struct gpu_exchange *e = &c.exchange;

	if (e->state->failed)
		return;
	if (b.roles & GPU_SEND && (b.low || !e->state->abandoned))
		send_floats(e, &h, &b);
	if (b.roles & GPU_RECEIVE && b.out_floats)
		receive_floats(e, &b);
}
} // namespace tern

/* ---- launching ------------------------------------------------------------------------------- */

cudaError_t combine_weights_launch(const struct gpu_combine *c, const struct ht_exchange *h,
	const struct gpu_beside *b, uint32_t nr_blocks, cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(nr_blocks, BESIDE_THREADS, 0, stream);

	return cudaLaunchKernelEx(&config, tern::combine_weights, *c, *h, *b);
}

cudaError_t combine_floats_launch(const struct gpu_combine *c, const struct ht_exchange *h,
	const struct gpu_beside *b, uint32_t nr_blocks, cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(nr_blocks, BESIDE_THREADS, 0, stream);

	return cudaLaunchKernelEx(&config, tern::combine_floats, *c, *h, *b);
}

cudaError_t beside_prepare(void)
{
	cudaError_t rc = load_kernel((const void *)tern::combine_weights);

	rc = rc ? rc : load_kernel((const void *)tern::combine_floats);
	rc = rc ? rc : count_routes_prepare();
	return rc ? rc : dispatch_beside_prepare();
}
