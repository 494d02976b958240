/* SPDX-License-Identifier: Apache-2.0 */
/* Records on their way out, and what came of them. */
#include "bench/nccl/records.cuh"
#include "kernels/cuda/quantise.cuh"

/* ---- counting ------------------------------------------------------------------------------------------------ */

/* Whether route i goes to that rank and, if records are asked for, opens one: no earlier route of its token goes there. */
static __device__ __forceinline__ bool goes_to(const struct records *r, uint32_t i, uint32_t rank, bool records)
{
	uint32_t token = i / r->topk, k = i - token * r->topk;

	if (expert_of(r, token, k).rank != rank)
		return false;
	for (uint32_t j = 0; j < k && records && r->per_rank; j++)
		if (expert_of(r, token, j).rank == rank)
			return false;
	return true;
}

/* A block a rank; where home rows are not the records', as many again. */
static __global__ void __launch_bounds__(THREADS) count_sent(const __grid_constant__ struct records r)
{
	bool records = blockIdx.x < r.nr_ranks, all = r.home_index == r.record_index;
	uint32_t rank = blockIdx.x - (records ? 0 : r.nr_ranks);
	uint32_t nr = count_in_order(r.nr_tokens * r.topk, records ? r.record_index : r.home_index,
		[&](uint32_t i) { return goes_to(&r, i, rank, records); });

	if (threadIdx.x)
		return;
	if (records)
		r.sent[rank].nr_records = nr;
	if (!records || all)
		r.sent[rank].nr_home = nr;
}

cudaError_t records_count_launch(const struct records *r, cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(r->home_index == r->record_index ? r->nr_ranks : 2 * r->nr_ranks, THREADS, SHARED_BYTES, stream);

	return cudaLaunchKernelEx(&config, count_sent, *r);
}

/* ---- packing ------------------------------------------------------------------------------------------------- */

/* Lane k's route to its record; where the record is, if this route opens it, else UINT32_MAX. */
static __device__ __forceinline__ uint32_t write_route(const struct records *r, uint32_t token)
{
	struct record_expert expert = expert_of(r, token, lane());
	bool there = expert.rank != UINT32_MAX;
	uint32_t same = __match_any_sync(ALL_LANES, there && r->per_rank ? expert.rank : UINT32_MAX - lane());
	uint32_t opener = __ffs(same) - 1, at = token * r->topk + lane(), index = UINT32_MAX;
	struct record_header *header;

	if (there && opener == lane())
		index = start_of(r->sent, expert.rank).nr_records + r->record_index[at];
	index = __shfl_sync(ALL_LANES, index, opener);
	if (!there)
		return UINT32_MAX;
	header = (struct record_header *)(r->send + (uint64_t)index * r->record_bytes);
	((struct record_route *)(header + 1))[__popc(same & lanes_below())] = {
		(int32_t)expert.local, (int32_t)lane(), r->weights ? r->weights[at] : 1.0f, r->at_home ? r->home_index[at] : 0};
	if (opener != lane())
		return UINT32_MAX;
	header->token = (int32_t)token;
	header->nr_routes = __popc(same);
	return index;
}

static __device__ __forceinline__ void store_scale(const struct records *r, uint8_t *scales, uint32_t block, uint32_t scale)
{
	if (r->scale_bytes == 4)
		((uint32_t *)scales)[block] = scale;
	else
		scales[block] = (uint8_t)scale;
}

template <int X> static __device__ __forceinline__ void write_row(const struct records *r, uint32_t token, const uint32_t *opened)
{
	constexpr int LOADS = x_kind<X>::LOADS;
	const uint8_t *x = r->x + (uint64_t)token * r->x_bytes;
	uint32_t nr_vectors = r->row_bytes / 16;

	for (uint32_t first = threadIdx.x - lane(); first < nr_vectors; first += THREADS) {
		uint32_t i = first + lane(), scale = 0;
		uint4 raw[LOADS], v;

		for (int h = 0; h < LOADS; h++)
			raw[h] = i < nr_vectors ? row_load(x + ((uint64_t)i * LOADS + h) * 16) : make_uint4(0, 0, 0, 0);
		if constexpr (LOADS > 1)
			v = quantise_block<X>(raw, r->scale_bytes == 1, &scale);
		else
			v = raw[0];
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

static __device__ __forceinline__ void copy_scales(const struct records *r, uint32_t token, const uint32_t *opened)
{
	const uint8_t *scales = r->scales + (uint64_t)token * r->scales_bytes;

	for (uint32_t k = 0; k < r->topk; k++)
		for (uint32_t i = threadIdx.x; i < r->scales_bytes && opened[k] != UINT32_MAX; i += THREADS)
			r->send[(uint64_t)opened[k] * r->record_bytes + r->scales_at + i] = scales[i];
}

/* A block a token. */
template <int X> static __global__ void __launch_bounds__(THREADS) pack_records(const __grid_constant__ struct records r)
{
	BLOCK_MEMORY(opened);

	if (threadIdx.x < LANES)
		opened[lane()] = write_route(&r, blockIdx.x);
	__syncthreads();
	write_row<X>(&r, blockIdx.x, opened);
	if (X == LL_X_GIVEN)
		copy_scales(&r, blockIdx.x, opened);
}

cudaError_t records_pack_launch(const struct records *r, cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(r->nr_tokens, THREADS, SHARED_BYTES, stream);

	switch (r->x_kind) {
	case LL_X_GIVEN:
		return cudaLaunchKernelEx(&config, pack_records<LL_X_GIVEN>, *r);
	case LL_X_BF16:
		return cudaLaunchKernelEx(&config, pack_records<LL_X_BF16>, *r);
	case LL_X_FP16:
		return cudaLaunchKernelEx(&config, pack_records<LL_X_FP16>, *r);
	case LL_X_FP32:
		return cudaLaunchKernelEx(&config, pack_records<LL_X_FP32>, *r);
	}
	return cudaLaunchKernelEx(&config, pack_records<LL_X_COPY>, *r);
}

/* ---- what came ----------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ const struct record_header *record_at(const struct records *r, uint32_t i)
{
	return (const struct record_header *)(r->recv + (uint64_t)i * r->record_bytes);
}

/* A block an expert. */
static __global__ void __launch_bounds__(THREADS) count_received(const __grid_constant__ struct records r, uint32_t nr_records)
{
	uint32_t most = r.most_routes, nr = count_in_order(nr_records * most, r.received_index, [&](uint32_t i) {
		const struct record_header *header = record_at(&r, i / most);

		return i % most < header->nr_routes && ((const struct record_route *)(header + 1))[i % most].local == (int32_t)blockIdx.x;
	});

	if (threadIdx.x == 0)
		r.counts[blockIdx.x] = nr;
}

/* One warp. */
static __global__ void find_offsets(const __grid_constant__ struct records r)
{
	uint32_t base = 0;

	for (uint32_t first = 0; first < r.nr_local; first += LANES) {
		uint32_t l = first + lane(), rows = l < r.nr_local ? (r.counts[l] + r.alignment - 1) / r.alignment * r.alignment : 0, sum = rows;

		for (uint32_t by = 1; by < LANES; by *= 2) {
			uint32_t before = __shfl_up_sync(ALL_LANES, sum, by);

			sum += lane() < by ? 0 : before;
		}
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

/* By lane j of the record: where its route's row goes, and where its result will. UINT32_MAX: there is none. */
static __device__ __forceinline__ uint32_t place_route(const struct records *r, uint32_t record)
{
	const struct record_header *header = record_at(r, record);
	const struct record_route *route = (const struct record_route *)(header + 1) + lane();
	uint32_t at = record * r->most_routes + lane(), source = source_of(r, record), position;

	if (lane() >= header->nr_routes) {
		if (lane() < r->most_routes)
			r->places[at] = {UINT32_MAX, 0, 0};
		return UINT32_MAX;
	}
	position = (uint32_t)r->offsets[route->local] + r->received_index[at];
	r->rows[position] = {(int32_t)source, header->token, route->k, route->weight};
	r->places[at] = {position, r->at_home ? start_of(r->received, source).nr_home + route->home : record, route->weight};
	return position;
}

/* A block a record. */
static __global__ void __launch_bounds__(THREADS) place_rows(const __grid_constant__ struct records r)
{
	BLOCK_MEMORY(positions);
	const uint8_t *record = (const uint8_t *)record_at(&r, blockIdx.x);

	if (threadIdx.x < LANES)
		positions[lane()] = place_route(&r, blockIdx.x);
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < r.row_bytes / 16; i += THREADS) {
		uint4 v = row_load(record + r.row_at + (uint64_t)i * 16);

		for (uint32_t j = 0; j < r.most_routes; j++)
			if (positions[j] != UINT32_MAX)
				row_store(r.rows_x + (uint64_t)positions[j] * r.row_bytes + (uint64_t)i * 16, v);
	}
	for (uint32_t i = threadIdx.x; i < r.scales_bytes; i += THREADS)
		for (uint32_t j = 0; j < r.most_routes; j++)
			if (positions[j] != UINT32_MAX)
				r.rows_scales[(uint64_t)positions[j] * r.scales_bytes + i] = record[r.scales_at + i];
}

cudaError_t records_place_launch(const struct records *r, uint32_t nr_records, cudaStream_t stream)
{
	cudaLaunchConfig_t counting = launch_config(r->nr_local, THREADS, SHARED_BYTES, stream), offsets = launch_config(1, LANES, 0, stream),
			   placing = launch_config(nr_records, THREADS, SHARED_BYTES, stream);
	cudaError_t rc = r->nr_local ? cudaLaunchKernelEx(&counting, count_received, *r, nr_records) : cudaSuccess;

	rc = rc ? rc : cudaLaunchKernelEx(&offsets, find_offsets, *r);
	return rc || !nr_records ? rc : cudaLaunchKernelEx(&placing, place_rows, *r);
}
