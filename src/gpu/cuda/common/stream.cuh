/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that pass through a block's shared memory on their way: each warp has buffers there, which a
 * copy fills while the warp works on others. So as many bytes are under way as buffers hold,
 * however few SMs there are. */
#ifndef TERN_GPU_CUDA_COMMON_STREAM_CUH
#define TERN_GPU_CUDA_COMMON_STREAM_CUH

#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/common/segment.cuh"

/* A warp's buffers, one after the other, are filled and taken in turn. */
struct stream {
	shared_at buffers, barriers;
	uint32_t nr, bytes; /* buffers, and of each */
	uint32_t fill, take;
	uint32_t parity; /* of the phase that ends when buffer take is full */
};

HOST_DEVICE uint32_t stream_shared_bytes(uint32_t nr_warps, uint32_t nr, uint32_t bytes)
{
	return nr_warps * nr * (bytes + COPY_BARRIER_BYTES);
}

/* By all of a warp: its buffers of `bytes` in the block's shared memory, behind them all barriers.
 */
__device__ __forceinline__ struct stream stream_open(
	shared_at shared, uint32_t warp, uint32_t nr_warps, uint32_t nr, uint32_t bytes)
{
	struct stream s;

	s.buffers = shared + warp * nr * bytes;
	s.barriers = shared + nr_warps * nr * bytes + warp * nr * COPY_BARRIER_BYTES;
	s.nr = nr;
	s.bytes = bytes;
	s.fill = s.take = s.parity = 0;
	if (lane_id() < nr)
		copy_barrier(s.barriers + lane_id() * COPY_BARRIER_BYTES);
	copy_out_ready();
	__syncwarp();
	return s;
}

/* The one that is filled next. */
__device__ __forceinline__ shared_at stream_buffer(const struct stream *s)
{
	return s->buffers + s->fill * s->bytes;
}

/* Into it. It is free: what was in it has been read by all lanes, or by copies that copies_read has
 * waited for. by: the lane that has the address. */
__device__ __forceinline__ void stream_fetch(
	const struct stream *s, uint32_t at, const void *from, uint32_t bytes, uint32_t by)
{
	copy_in(stream_buffer(s) + at, from, bytes, s->barriers + s->fill * COPY_BARRIER_BYTES, by);
}

__device__ __forceinline__ void stream_filled(struct stream *s)
{
	s->fill = s->fill + 1 == s->nr ? 0 : s->fill + 1;
}

/* That was all that is fetched into it. */
__device__ __forceinline__ void stream_fetched(struct stream *s, uint32_t bytes, uint32_t by)
{
	copy_in_close(s->barriers + s->fill * COPY_BARRIER_BYTES, bytes, by);
	stream_filled(s);
}

/* Waits for the buffer that was filled first, as one waits for a load. */
__device__ __forceinline__ shared_at stream_take(struct stream *s)
{
	shared_at buffer = s->buffers + s->take * s->bytes,
		  barrier = s->barriers + s->take * COPY_BARRIER_BYTES;

	while (!copy_there(barrier, s->parity))
		;
	s->take++;
	if (s->take == s->nr) {
		s->take = 0;
		s->parity ^= 1;
	}
	return buffer;
}

#endif
