/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/lab/ways/transfer.h"

#include "gpu/cuda/common/kernels.h"
#include "gpu/cuda/common/stream.cuh"

/* pieces of a row that a lane has under way: a row of 7168 bytes in two turns */
#define UNDER_WAY 7

/* ---- where things are ------------------------------------------------------------------------ */

static __device__ __forceinline__ uint64_t row_at(
	const struct transfer *t, uint32_t peer, uint32_t row)
{
	return ((uint64_t)peer * t->nr_rows + row) * t->row_bytes;
}

static __device__ __forceinline__ uint8_t *place_at(
	const struct transfer *t, uint32_t at, uint32_t source, uint32_t row, uint32_t copy)
{
	return t->places[at] + (uint64_t)copy * t->nr_ranks * t->nr_rows * t->row_bytes +
	       row_at(t, source, row);
}

static __device__ __forceinline__ uint8_t *flag_at(
	const struct transfer *t, uint32_t at, uint32_t source, uint32_t number)
{
	return t->flags[at] + ((uint64_t)source * (t->nr_rows + 1) + number) * TRANSFER_FLAG_BYTES;
}

/* Peers in turn, each rank beginning with the next one; of each peer a unit of rows. */
struct unit {
	uint32_t peer, first, end;
};

static __device__ __forceinline__ bool find_unit(
	const struct transfer *t, uint32_t i, struct unit *u)
{
	uint32_t others = t->nr_ranks - 1, each = t->unit ? t->unit : 1;

	u->peer = (t->rank + 1 + i % others) % t->nr_ranks;
	u->first = i / others * each;
	u->end = min(u->first + each, t->nr_rows);
	return u->first < t->nr_rows;
}

/* ---- words ----------------------------------------------------------------------------------- */

static __device__ __forceinline__ bool in_time(uint64_t start)
{
	return now_ns() - start < TRANSFER_WAIT_NS;
}

/* Behind what all lanes of this warp have stored. */
static __device__ __forceinline__ void raise_flag(uint8_t *flag, uint32_t epoch)
{
	stores_before();
	__syncwarp();
	if (lane_id() == 0)
		word_store(flag, epoch);
}

/* Each lane acquires what is behind the flag. */
static __device__ __forceinline__ bool await_flag(const struct transfer *t, const uint8_t *flag)
{
	uint64_t start = now_ns();

	while (word_acquire(flag) != t->epoch)
		if (!in_time(start))
			return false;
	return true;
}

/* One flag for all: when all sending warps of all blocks have stored. */
static __device__ void tell_all(const struct transfer *t, uint32_t nr_senders)
{
	stores_before();
	__syncwarp();
	if (lane_id() == 0 && atomicAdd(t->blocks_done, 1) + 1 == nr_senders) {
		*t->blocks_done = 0;
		stores_before();
		for (uint32_t i = 1; i < t->nr_ranks; i++)
			word_store(flag_at(t, (t->rank + i) % t->nr_ranks, t->rank, t->nr_rows),
				t->epoch);
	}
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* This lane's next pieces of a row, from `first` on; and to each of nr places that lie `apart`. */
static __device__ __forceinline__ void load_pieces(
	uint4 (&v)[UNDER_WAY], const uint8_t *from, uint32_t first, uint32_t bytes)
{
#pragma unroll
	for (int i = 0; i < UNDER_WAY; i++)
		if (first + i * LANES * 16 < bytes)
			v[i] = row_load(from + first + i * LANES * 16);
}

static __device__ __forceinline__ void store_pieces(uint8_t *to, uint64_t apart, uint32_t nr,
	const uint4 (&v)[UNDER_WAY], uint32_t first, uint32_t bytes)
{
	for (uint32_t n = 0; n < nr; n++)
#pragma unroll
		for (int i = 0; i < UNDER_WAY; i++)
			if (first + i * LANES * 16 < bytes)
				row_store(to + n * apart + first + i * LANES * 16, v[i]);
}

/* One row, read once, to each of nr places. */
static __device__ __forceinline__ void copy_row(
	uint8_t *to, uint64_t apart, uint32_t nr, const uint8_t *from, uint32_t bytes)
{
	for (uint32_t first = lane_id() * 16; first < bytes; first += UNDER_WAY * LANES * 16) {
		uint4 v[UNDER_WAY];

		load_pieces(v, from, first, bytes);
		store_pieces(to, apart, nr, v, first, bytes);
	}
}

/* Each line's last word makes way for the epoch. What it was is lost: that this takes 3 % more
 * bytes is known. */
static __device__ __forceinline__ void send_lines(
	uint8_t *to, const uint8_t *from, uint32_t bytes, uint32_t epoch)
{
	for (uint32_t first = lane_id() * 16; first < bytes; first += UNDER_WAY * LANES * 16) {
		uint4 v[UNDER_WAY];

		load_pieces(v, from, first, bytes);
#pragma unroll
		for (int i = 0; i < UNDER_WAY; i++) {
			v[i].w = lane_id() % 8 == 7 ? epoch : v[i].w;
			if (first + i * LANES * 16 < bytes)
				piece_store(to + first + i * LANES * 16, v[i]);
		}
	}
}

static __device__ __forceinline__ bool take_lines(
	const struct transfer *t, uint8_t *to, uint64_t apart, const uint8_t *from)
{
	uint64_t start = now_ns();

	for (uint32_t at = 0; at < t->row_bytes; at += UNDER_WAY * LANES * 16) {
		uint32_t first = at + lane_id() * 16;
		uint4 v[UNDER_WAY];
		bool there;

		do {
			there = true;
#pragma unroll
			for (int i = 0; i < UNDER_WAY; i++)
				if (first + i * LANES * 16 < t->row_bytes)
					v[i] = piece_load(from + first + i * LANES * 16);
#pragma unroll
			for (int i = 0; i < UNDER_WAY; i++)
				there &= first + i * LANES * 16 >= t->row_bytes ||
					 lane_id() % 8 != 7 || v[i].w == t->epoch;
			if (!in_time(start))
				return false;
		} while (!__all_sync(ALL_LANES, there));
		store_pieces(to, apart, t->copies, v, first, t->row_bytes);
	}
	return true;
}

/* A unit's rows through buffers: rows come in while the one before goes out, to nr places. */
static __device__ void stream_rows(struct stream *s, uint8_t *to, uint64_t apart, uint32_t nr,
	const uint8_t *from, uint32_t bytes, uint32_t nr_rows)
{
	uint32_t fetched = 0;

	for (uint32_t row = 0; row < nr_rows; row++) {
		shared_at buffer;

		for (; fetched < nr_rows && fetched < row + TRANSFER_BUFFERS - 1; fetched++) {
			copies_read<TRANSFER_BUFFERS - 2>();
			__syncwarp();
			stream_fetch(s, 0, from + (uint64_t)fetched * bytes, bytes, 0);
			stream_fetched(s, bytes, 0);
		}
		buffer = stream_take(s);
		__syncwarp();
		for (uint32_t n = 0; n < nr; n++)
			copy_out(to + n * apart + (uint64_t)row * bytes, buffer, bytes, 0);
		copies_close();
	}
}

/* ---- both sides ------------------------------------------------------------------------------ */

static __device__ __forceinline__ bool is_bulk(const struct transfer *t)
{
	return t->way == PUSH_BULK || t->way == PUSH_BULK_TO_PLACES || t->way == PULL_BULK;
}

static __device__ __forceinline__ bool to_places(const struct transfer *t)
{
	return t->way == PUSH_TO_PLACES || t->way == PUSH_BULK_TO_PLACES;
}

static __device__ void send_unit(const struct transfer *t, struct stream *s, struct unit u)
{
	uint64_t apart = (uint64_t)t->nr_ranks * t->nr_rows * t->row_bytes;
	uint32_t nr = to_places(t) ? t->copies : 1;
	uint8_t *to = to_places(t) ? place_at(t, u.peer, t->rank, u.first, 0)
				   : t->window[u.peer] + row_at(t, t->rank, u.first);
	const uint8_t *from = t->from[t->rank] + row_at(t, u.peer, u.first);

	if (is_bulk(t)) {
		stream_rows(s, to, apart, nr, from, t->row_bytes, u.end - u.first);
		copies_done<0>();
		return;
	}
	for (uint32_t row = 0; row < u.end - u.first; row++)
		if (t->way == PUSH_LINES)
			send_lines(to + (uint64_t)row * t->row_bytes,
				from + (uint64_t)row * t->row_bytes, t->row_bytes, t->epoch);
		else
			copy_row(to + (uint64_t)row * t->row_bytes, apart, nr,
				from + (uint64_t)row * t->row_bytes, t->row_bytes);
}

static __device__ void send_rows(
	const struct transfer *t, struct stream *s, uint32_t warp, uint32_t nr_warps)
{
	struct unit u;

	for (uint32_t i = warp; find_unit(t, i, &u); i += nr_warps) {
		send_unit(t, s, u);
		if (t->unit && t->way != PUSH_LINES)
			raise_flag(flag_at(t, u.peer, t->rank, u.first), t->epoch);
	}
	if (!t->unit && t->way != PUSH_LINES)
		tell_all(t, nr_warps);
}

static __device__ bool take_unit(
	const struct transfer *t, struct stream *s, struct unit u, bool pull)
{
	uint64_t apart = (uint64_t)t->nr_ranks * t->nr_rows * t->row_bytes;
	const uint8_t *from = pull ? t->from[u.peer] + row_at(t, t->rank, u.first)
				   : t->window[t->rank] + row_at(t, u.peer, u.first);
	uint8_t *to = place_at(t, t->rank, u.peer, u.first, 0);

	if (t->way != PUSH_LINES &&
		!await_flag(
			t, flag_at(t, t->rank, u.peer, t->unit && !pull ? u.first : t->nr_rows)))
		return false;
	if (to_places(t))
		return true;
	if (t->way == PULL_BULK) {
		copy_in_ready();
		__syncwarp();
		stream_rows(s, to, apart, t->copies, from, t->row_bytes, u.end - u.first);
		return true;
	}
	for (uint32_t row = 0; row < u.end - u.first;
		row++, to += t->row_bytes, from += t->row_bytes)
		if (t->way != PUSH_LINES)
			copy_row(to, apart, t->copies, from, t->row_bytes);
		else if (!take_lines(t, to, apart, from))
			return false;
	return true;
}

static __global__ void __launch_bounds__(TRANSFER_WARPS *LANES, 1)
	transfer_kernel(const __grid_constant__ struct transfer t)
{
	BLOCK_MEMORY(shared);
	uint32_t warp = threadIdx.x / LANES, senders = TRANSFER_WARPS / 2;
	bool pull = t.way == PULL_LOADS || t.way == PULL_BULK;
	struct stream s = {};
	struct unit u;

	if (is_bulk(&t) && warp < senders) /* rows pass through shared memory on one side */
		s = stream_open(in_shared(shared), warp, senders, TRANSFER_BUFFERS, t.row_bytes);
	if (pull && blockIdx.x == 0 && warp == 0 && lane_id() < t.nr_ranks) /* an earlier kernel
									       made the rows */
		word_store(flag_at(&t, lane_id(), t.rank, t.nr_rows), t.epoch);
	if (!pull && warp < senders) {
		send_rows(&t, &s, warp * gridDim.x + blockIdx.x, senders * gridDim.x);
		return;
	}
	if (t.way == PULL_BULK && warp >= senders)
		return;
	warp -= pull ? 0 : senders;
	senders = t.way == PULL_LOADS ? TRANSFER_WARPS : senders;
	for (uint32_t i = warp * gridDim.x + blockIdx.x; find_unit(&t, i, &u);
		i += senders * gridDim.x)
		if (!take_unit(&t, &s, u, pull))
			return;
	copies_done<0>();
}

cudaError_t transfer_launch(const struct transfer *t, uint32_t nr_blocks, cudaStream_t stream)
{
	uint32_t shared = stream_shared_bytes(TRANSFER_WARPS / 2, TRANSFER_BUFFERS, t->row_bytes);
	cudaError_t rc = cudaFuncSetAttribute(
		transfer_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);

	if (rc)
		return rc;
	transfer_kernel<<<nr_blocks, TRANSFER_WARPS * LANES, shared, stream>>>(*t);
	return cudaGetLastError();
}

static __global__ void compare_kernel(
	const __grid_constant__ struct transfer t, unsigned long long *different)
{
	uint64_t per_row = t.row_bytes / 16,
		 nr = (uint64_t)t.copies * t.nr_ranks * t.nr_rows * per_row;
	unsigned long long sum = 0;

	for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < nr;
		i += (uint64_t)gridDim.x * blockDim.x) {
		uint64_t number = i / per_row;
		uint32_t row = (uint32_t)(number % t.nr_rows),
			 source = (uint32_t)(number / t.nr_rows % t.nr_ranks),
			 copy = (uint32_t)(number / t.nr_rows / t.nr_ranks);
		uint64_t at = i % per_row * 16;
		uint4 a, b;

		if (source == t.rank)
			continue;
		a = *(const uint4 *)(place_at(&t, t.rank, source, row, copy) + at);
		b = *(const uint4 *)(t.from[source] + row_at(&t, t.rank, row) + at);
		sum += a.x != b.x || a.y != b.y || a.z != b.z ||
		       (a.w != b.w && (t.way != PUSH_LINES || at % 128 != 112));
	}
	if (sum)
		atomicAdd(different, sum);
}

cudaError_t transfer_compare(
	const struct transfer *t, unsigned long long *different, cudaStream_t stream)
{
	compare_kernel<<<264, 512, 0, stream>>>(*t, different);
	return cudaGetLastError();
}
