/* SPDX-License-Identifier: Apache-2.0 */
/* What a caller wants of received rows beside them, as engines' GEMMs and routers do. */
#include "gpu/cuda/beside/received.cuh"
#include "gpu/cuda/common/launch.cuh"
#include "gpu/cuda/common/wait.cuh"
#include "gpu/cuda/internode/internode.cuh"

#define BESIDE_THREADS 512

/* -1 behind the last row. */
static __device__ __forceinline__ void widen_ids(
	const struct gpu_dispatch *d, const struct gpu_wanted *w, uint64_t thread, uint64_t nr)
{
	uint64_t topk = d->exchange.topk, received = d->out_sums[0] * topk;

	for (uint64_t i = thread; i < w->positions * topk; i += nr)
		w->wide_ids[i] = i < received ? d->out_ids[i] : -1;
}

/* Routes to each local expert, by a block. */
static __device__ __forceinline__ void count_routes(const struct gpu_dispatch *d, uint32_t *counts)
{
	uint64_t all = d->out_sums[0] * d->exchange.topk;

	for (uint32_t l = threadIdx.x; l < d->exchange.nr_local; l += blockDim.x)
		counts[l] = 0;
	__syncthreads();
	for (uint64_t i = threadIdx.x; i < all; i += blockDim.x)
		if (d->out_ids[i] >= 0)
			atomicAdd(&counts[d->out_ids[i]], 1u);
	__syncthreads();
}

static __device__ __forceinline__ void tell_counts(
	const struct gpu_dispatch *d, const struct gpu_wanted *w, const uint32_t *counts)
{
	for (uint32_t l = threadIdx.x; l < d->exchange.nr_local; l += blockDim.x) {
		uint32_t nr = counts[l];

		if (w->expert_counts)
			w->expert_counts[l] = (nr + w->alignment - 1) / w->alignment * w->alignment;
		if (w->expert_totals)
			w->expert_totals[l] += nr;
	}
}

/* A column's element: a float's bits, or four exponents. */
static __device__ __forceinline__ uint32_t column_of_scales(
	const struct gpu_dispatch *d, uint64_t row, uint32_t column)
{
	uint32_t nr = d->exchange.row.nr_lines, four = 0;

	if (d->scale_bytes == 4)
		return ((const uint32_t *)d->out_scales)[row * nr + column];
	for (uint32_t i = 0; i < 4 && column * 4 + i < nr; i++)
		four |= (uint32_t)d->out_scales[row * nr + column * 4 + i] << i * 8;
	return four;
}

/* A column of so many rows is a warp's at a time; neighbouring lanes have neighbouring rows. */
#define BESIDE_ROWS 256

static __device__ __forceinline__ void turn_list(const struct gpu_dispatch *d,
	const struct gpu_wanted *w, uint32_t list, uint32_t warp, uint32_t nr_warps)
{
	uint64_t first = d->out_offsets[list],
		 to = d->padded ? list * w->columns * w->stride : first;
	uint32_t rows = d->out_counts[list], columns = (uint32_t)w->columns,
		 nr_items = (rows + BESIDE_ROWS - 1) / BESIDE_ROWS * columns;

	for (uint32_t item = warp; item < nr_items; item += nr_warps) {
		uint32_t part = item / columns, column = item - part * columns;
		uint32_t row = part * BESIDE_ROWS + threadIdx.x % LANES,
			 end = min(rows, (part + 1) * BESIDE_ROWS);

		for (; row < end; row += LANES)
			w->gemm_scales[to + column * w->stride + row] =
				column_of_scales(d, first + row, column);
	}
}

/* Lists are shared out among blocks: one after the other, each would be a trip to memory. */
static __device__ __forceinline__ void turn_scales(
	const struct gpu_dispatch *d, const struct gpu_wanted *w)
{
	uint32_t nr_lists = d->by_source ? d->exchange.nr_ranks : d->exchange.nr_local;
	uint32_t nr_parts = max(gridDim.x / max(nr_lists, 1u), 1u), nr_warps = blockDim.x / LANES;

	for (uint32_t unit = blockIdx.x; unit < nr_lists * nr_parts; unit += gridDim.x) {
		uint32_t list = unit / nr_parts, part = unit - list * nr_parts;

		turn_list(d, w, list, part * nr_warps + threadIdx.x / LANES, nr_parts * nr_warps);
	}
}

namespace tern
{
static __global__ void __launch_bounds__(BESIDE_THREADS) dispatch_beside(
	const __grid_constant__ struct gpu_dispatch d, const __grid_constant__ struct gpu_wanted w)
{
	BLOCK_MEMORY(counts);
	uint64_t thread = blockIdx.x * blockDim.x + threadIdx.x, nr = gridDim.x * blockDim.x;

	wait_for_previous();
	if (d.exchange.state->failed)
		return;
	if (blockIdx.x == 0 && (w.expert_counts || w.expert_totals)) {
		if (d.by_source)
			count_routes(&d, counts);
		tell_counts(&d, &w, d.by_source ? counts : d.out_counts);
	}
	if (w.wide_ids)
		widen_ids(&d, &w, thread, nr);
	if (w.gemm_scales)
		turn_scales(&d, &w);
}
} // namespace tern

/* ---- how long each source is waited for ------------------------------------------------------ */

/* Its word, or where its plan is in this rank's window: that comes first of all that it sends. */
static __device__ __forceinline__ uint32_t epoch_of(const struct gpu_exchange *e, uint32_t source)
{
	if (e->internode && is_internode<true>(e, source))
		return word_acquire(
			e->internode->words +
			((uint64_t)INTERNODE_DISPATCH * e->nr_ranks + source) * GPU_LINE_BYTES);
	return piece_load(window_in_use(e, e->rank) + e->window.plans +
			  source * e->window.plan_bytes + 7 * 16)
		.w;
}

namespace tern
{
/* One that does not come in time is the next kernel's to report. */
static __global__ void __launch_bounds__(128)
	dispatch_waits(const __grid_constant__ struct gpu_dispatch d, uint64_t *waited_ns)
{
	const struct gpu_exchange *e = &d.exchange;
	uint32_t epoch = e->state->epoch_dispatch;
	uint64_t start_ns = now_ns();
	struct patience patience = {0, 0};
	bool waits = true;

	for (uint32_t r = threadIdx.x; r < e->nr_ranks; r += blockDim.x) {
		wait_for_another(&patience);
		while (waits && epoch_of(e, r) != epoch)
			waits = may_wait(&patience, e, r, e->wait_ns);
		waited_ns[r] += now_ns() - start_ns;
	}
}
} // namespace tern

cudaError_t dispatch_waits_launch(
	const struct gpu_dispatch *d, uint64_t *waited_ns, cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(1, 128, 0, stream);

	return cudaLaunchKernelEx(&config, tern::dispatch_waits, *d, waited_ns);
}

cudaError_t dispatch_beside_launch(const struct gpu_dispatch *d, const struct gpu_wanted *w,
	const struct gpu_launch *launch, cudaStream_t stream)
{
	uint32_t shared = d->by_source ? d->exchange.nr_local * sizeof(uint32_t) : 0;
	cudaLaunchAttribute early = {};
	cudaLaunchConfig_t config =
		launch_config(launch->nr_blocks, BESIDE_THREADS, shared, stream);
	cudaError_t rc = shared > 48 * 1024 ? allow_shared((const void *)tern::dispatch_beside)
					    : cudaSuccess;

	launch_early(&config, &early, launch->early);
	return rc ? rc : cudaLaunchKernelEx(&config, tern::dispatch_beside, *d, *w);
}

cudaError_t dispatch_beside_prepare(void)
{
	cudaError_t rc = load_kernel((const void *)tern::dispatch_beside);

	return rc ? rc : load_kernel((const void *)tern::dispatch_waits);
}
