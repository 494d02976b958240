/* SPDX-License-Identifier: Apache-2.0 */
/* Records on their way out, and what came of them. */
#include "bench/nccl/records.cuh"
#include "gpu/cuda/common/quantise.cuh"

/* ---- counting -------------------------------------------------------------------------------- */

/* The rank of route i; where records are asked for, only if it opens one: no earlier route of its
 * token goes there. */
static __device__ __forceinline__ uint32_t rank_of_route(
	const struct records *r, uint32_t i, bool records)
{
	uint32_t token = i / r->topk, k = i - token * r->topk, rank = expert_of(r, token, k).rank;

	for (uint32_t j = 0; j < k && records && r->per_rank; j++)
		if (expert_of(r, token, j).rank == rank)
			return UINT32_MAX;
	return rank;
}

/* Where home rows are not the records', as many blocks again, in both kernels. */
static __global__ void __launch_bounds__(THREADS)
	count_sent_tiles(const __grid_constant__ struct records r)
{
	uint32_t nr = r.nr_tokens * r.topk, nr_tiles = nr_tiles_of(nr),
		 tile = blockIdx.x % nr_tiles, i = tile * THREADS + threadIdx.x;
	bool records = blockIdx.x < nr_tiles;

	count_tile(i < nr ? rank_of_route(&r, i, records) : UINT32_MAX, i,
		records ? r.record_index : r.home_index,
		(records ? r.record_tiles : r.home_tiles) + tile, r.nr_ranks, nr_tiles);
}

static __global__ void __launch_bounds__(THREADS)
	count_sent(const __grid_constant__ struct records r)
{
	bool records = blockIdx.x < r.nr_ranks, all = r.home_index == r.record_index;
	uint32_t rank = blockIdx.x - (records ? 0 : r.nr_ranks),
		 nr_tiles = nr_tiles_of(r.nr_tokens * r.topk);
	uint32_t nr =
		sum_tiles((records ? r.record_tiles : r.home_tiles) + rank * nr_tiles, nr_tiles);

	if (threadIdx.x)
		return;
	if (records)
		r.sent[rank].nr_records = nr;
	if (!records || all)
		r.sent[rank].nr_home = nr;
}

static uint32_t tile_bytes(uint32_t nr_keys)
{
	return nr_keys * WARPS * 4;
}

cudaError_t records_count_launch(const struct records *r, cudaStream_t stream)
{
	uint32_t times = r->home_index == r->record_index ? 1 : 2,
		 nr_tiles = (r->nr_tokens * r->topk + THREADS - 1) / THREADS;
	cudaLaunchConfig_t tiles =
		launch_config(times * nr_tiles, THREADS, tile_bytes(r->nr_ranks), stream);
	cudaLaunchConfig_t ranks =
		launch_config(times * r->nr_ranks, THREADS, SHARED_BYTES, stream);
	cudaError_t rc = nr_tiles ? cudaLaunchKernelEx(&tiles, count_sent_tiles, *r) : cudaSuccess;

	return rc ? rc : cudaLaunchKernelEx(&ranks, count_sent, *r);
}

/* ---- packing --------------------------------------------------------------------------------- */

/* Lane k's route to its record; where the record is, if this route opens it, else UINT32_MAX. */
static __device__ __forceinline__ uint32_t write_route(const struct records *r, uint32_t token)
{
	struct record_expert expert = expert_of(r, token, lane());
	bool there = expert.rank != UINT32_MAX;
	uint32_t same = __match_any_sync(
		ALL_LANES, there && r->per_rank ? expert.rank : UINT32_MAX - lane());
	uint32_t opener = __ffs(same) - 1, at = token * r->topk + lane(), index = UINT32_MAX;
	struct record_header *header;

	if (there && opener == lane())
		index = start_of(r->sent, expert.rank).nr_records +
			record_number(r, expert.rank, at);
	index = __shfl_sync(ALL_LANES, index, opener);
	if (!there)
		return UINT32_MAX;
	header = (struct record_header *)(r->send + (uint64_t)index * r->record_bytes);
	((struct record_route *)(header + 1))[__popc(same & lanes_below())] = {
		(int32_t)expert.local, (int32_t)lane(), r->weights ? r->weights[at] : 1.0f,
		r->at_home ? home_number(r, expert.rank, at) : 0};
	if (opener != lane())
		return UINT32_MAX;
	header->token = (int32_t)token;
	header->nr_routes = __popc(same);
	return index;
}

static __device__ __forceinline__ void store_scale(
	const struct records *r, uint8_t *scales, uint32_t block, uint32_t scale)
{
	if (r->scale_bytes == 4)
		((uint32_t *)scales)[block] = scale;
	else
		scales[block] = (uint8_t)scale;
}

template <int X>
static __device__ __forceinline__ void write_row(
	const struct records *r, uint32_t token, const uint32_t *opened)
{
	constexpr int LOADS = x_kind<X>::LOADS;
	const uint8_t *x = r->x + (uint64_t)token * r->x_bytes;
	uint32_t nr_vectors = r->row_bytes / 16;

	for (uint32_t first = threadIdx.x - lane(); first < nr_vectors; first += THREADS) {
		uint32_t i = first + lane(), scale = 0;
		uint4 raw[1][LOADS], v;

		for (int h = 0; h < LOADS; h++)
			raw[0][h] = i < nr_vectors ? row_load(x + ((uint64_t)i * LOADS + h) * 16)
						   : make_uint4(0, 0, 0, 0);
		if constexpr (LOADS > 1)
			quantise_blocks<X, 1>(raw, r->scale_bytes == 1, &v, &scale);
		else
			v = raw[0][0];
		for (uint32_t k = 0; k < r->topk && i < nr_vectors; k++) {
			uint8_t *record = r->send + (uint64_t)opened[k] * r->record_bytes;

			if (opened[k] == UINT32_MAX)
				continue;
			row_store(record + r->row_at + (uint64_t)i * 16, v);
			if (LOADS > 1 && lane() % 8 == 0)
				store_scale(r, record + r->scales_at, i / 8, scale);
		}
	}
}

static __device__ __forceinline__ void copy_scales(
	const struct records *r, uint32_t token, const uint32_t *opened)
{
	const uint8_t *scales = r->scales + (uint64_t)token * r->scales_bytes;

	for (uint32_t k = 0; k < r->topk; k++)
		for (uint32_t i = threadIdx.x; i < r->scales_bytes && opened[k] != UINT32_MAX;
			i += THREADS)
			r->send[(uint64_t)opened[k] * r->record_bytes + r->scales_at + i] =
				scales[i];
}

/* A block a token. */
template <int X>
static __global__ void __launch_bounds__(THREADS)
	pack_records(const __grid_constant__ struct records r)
{
	BLOCK_MEMORY(opened);

	if (threadIdx.x < LANES)
		opened[lane()] = write_route(&r, blockIdx.x);
	__syncthreads();
	write_row<X>(&r, blockIdx.x, opened);
	if (X == GPU_X_GIVEN)
		copy_scales(&r, blockIdx.x, opened);
}

cudaError_t records_pack_launch(const struct records *r, cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(r->nr_tokens, THREADS, SHARED_BYTES, stream);

	switch (r->x_kind) {
	case GPU_X_GIVEN:
		return cudaLaunchKernelEx(&config, pack_records<GPU_X_GIVEN>, *r);
	case GPU_X_BF16:
		return cudaLaunchKernelEx(&config, pack_records<GPU_X_BF16>, *r);
	case GPU_X_FP16:
		return cudaLaunchKernelEx(&config, pack_records<GPU_X_FP16>, *r);
	case GPU_X_FP32:
		return cudaLaunchKernelEx(&config, pack_records<GPU_X_FP32>, *r);
	}
	return cudaLaunchKernelEx(&config, pack_records<GPU_X_COPY>, *r);
}

/* ---- what came ------------------------------------------------------------------------------- */

static __device__ __forceinline__ const struct record_header *record_at(
	const struct records *r, uint32_t i)
{
	return (const struct record_header *)(r->recv + (uint64_t)i * r->record_bytes);
}

static __global__ void __launch_bounds__(THREADS)
	count_received_tiles(const __grid_constant__ struct records r, uint32_t nr_records)
{
	uint32_t i = blockIdx.x * THREADS + threadIdx.x, record = i / r.most_routes,
		 j = i - record * r.most_routes, key = UINT32_MAX;

	if (record < nr_records && j < record_at(&r, record)->nr_routes)
		key = (uint32_t)((const struct record_route *)(record_at(&r, record) + 1))[j].local;
	count_tile(key, i, r.received_index, r.received_tiles + blockIdx.x, r.nr_local, gridDim.x);
}

static __global__ void __launch_bounds__(THREADS)
	count_received(const __grid_constant__ struct records r, uint32_t nr_records)
{
	uint32_t nr_tiles = nr_tiles_of(nr_records * r.most_routes),
		 nr = sum_tiles(r.received_tiles + blockIdx.x * nr_tiles, nr_tiles);

	if (threadIdx.x == 0)
		r.counts[blockIdx.x] = nr;
}

/* One warp. */
static __global__ void find_offsets(const __grid_constant__ struct records r)
{
	uint32_t base = 0;

	for (uint32_t first = 0; first < r.nr_local; first += LANES) {
		uint32_t l = first + lane(),
			 rows = l < r.nr_local ? (r.counts[l] + r.alignment - 1) / r.alignment *
							 r.alignment
					       : 0,
			 sum = sum_to_lane(rows);

		if (l < r.nr_local)
			r.offsets[l] = base + sum - rows;
		base += __shfl_sync(ALL_LANES, sum, LANES - 1);
	}
}

static __device__ __forceinline__ uint32_t source_of(const struct records *r, uint32_t record)
{
	uint32_t source = 0, end = r->received[0].nr_records;

	while (record >= end)
		end += r->received[++source].nr_records;
	return source;
}

/* By lane j of the record: where its route's row goes, and where its result will. UINT32_MAX: there
 * is none. */
static __device__ __forceinline__ uint32_t place_route(
	const struct records *r, uint32_t record, uint32_t nr_tiles)
{
	const struct record_header *header = record_at(r, record);
	const struct record_route *route = (const struct record_route *)(header + 1) + lane();
	uint32_t at = record * r->most_routes + lane(), source = source_of(r, record), position;

	if (lane() >= header->nr_routes) {
		if (lane() < r->most_routes)
			r->places[at] = {UINT32_MAX, 0, 0};
		return UINT32_MAX;
	}
	position =
		(uint32_t)r->offsets[route->local] + number_of(r->received_index, r->received_tiles,
							     nr_tiles, (uint32_t)route->local, at);
	r->rows[position] = {(int32_t)source, header->token, route->k, route->weight};
	r->places[at] = {position,
		r->at_home ? start_of(r->received, source).nr_home + route->home : record,
		route->weight};
	return position;
}

/* A block a record. */
static __global__ void __launch_bounds__(THREADS)
	place_rows(const __grid_constant__ struct records r)
{
	BLOCK_MEMORY(positions);
	const uint8_t *record = (const uint8_t *)record_at(&r, blockIdx.x);

	if (threadIdx.x < LANES)
		positions[lane()] =
			place_route(&r, blockIdx.x, nr_tiles_of(gridDim.x * r.most_routes));
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < r.row_bytes / 16; i += THREADS) {
		uint4 v = row_load(record + r.row_at + (uint64_t)i * 16);

		for (uint32_t j = 0; j < r.most_routes; j++)
			if (positions[j] != UINT32_MAX)
				row_store(r.rows_x + (uint64_t)positions[j] * r.row_bytes +
						  (uint64_t)i * 16,
					v);
	}
	for (uint32_t i = threadIdx.x; i < r.scales_bytes; i += THREADS)
		for (uint32_t j = 0; j < r.most_routes; j++)
			if (positions[j] != UINT32_MAX)
				r.rows_scales[(uint64_t)positions[j] * r.scales_bytes + i] =
					record[r.scales_at + i];
}

cudaError_t records_place_launch(const struct records *r, uint32_t nr_records, cudaStream_t stream)
{
	uint32_t nr_tiles = (nr_records * r->most_routes + THREADS - 1) / THREADS;
	cudaLaunchConfig_t tiles =
		launch_config(nr_tiles, THREADS, tile_bytes(r->nr_local), stream);
	cudaLaunchConfig_t experts = launch_config(r->nr_local, THREADS, SHARED_BYTES, stream),
			   offsets = launch_config(1, LANES, 0, stream);
	cudaLaunchConfig_t placing = launch_config(nr_records, THREADS, SHARED_BYTES, stream);
	cudaError_t rc = nr_records && r->nr_local
				 ? cudaLaunchKernelEx(&tiles, count_received_tiles, *r, nr_records)
				 : cudaSuccess;

	if (!rc && r->nr_local)
		rc = cudaLaunchKernelEx(&experts, count_received, *r, nr_records);
	rc = rc ? rc : cudaLaunchKernelEx(&offsets, find_offsets, *r);
	return rc || !nr_records ? rc : cudaLaunchKernelEx(&placing, place_rows, *r);
}
