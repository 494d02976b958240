/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels say in PTX, or in words of CUDA that C++ does not have. All of it, so that the
 * kernels can also be run on a CPU, where tests/device/emulate/device.h says the same in C++. Loads
 * and stores come with the ordering that the protocol needs, each named for its use. */
#ifndef TERN_GPU_CUDA_COMMON_PTX_CUH
#define TERN_GPU_CUDA_COMMON_PTX_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* ---- memory ---------------------------------------------------------------------------------- */

/* A piece into a window, mine or a peer's. Relaxed: a piece needs no order towards any other, since
 * it says itself which round it is of. 128-bit, so that its 16 bytes arrive together. */
__device__ __forceinline__ void piece_store(void *to, uint4 v)
{
	asm volatile("{ .reg .b64 lo, hi; .reg .b128 v;\n\t"
		     "mov.b64 lo, {%1, %2}; mov.b64 hi, {%3, %4}; mov.b128 v, {lo, hi};\n\t"
		     "st.relaxed.sys.global.b128 [%0], v; }" ::"l"(to),
		     "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
		     : "memory");
}

/* A piece of my own window, past the L1 cache, which peers' stores do not reach. Volatile, which is
 * relaxed too: of a relaxed load ptxas leaves out words that nobody uses, and what is left in two
 * loads may be of two rounds. */
__device__ __forceinline__ uint4 piece_load(const void *from)
{
	uint4 v;

	asm volatile("{ .reg .b64 lo, hi; .reg .b128 v;\n\t"
		     "ld.volatile.global.b128 v, [%4]; mov.b128 {lo, hi}, v;\n\t"
		     "mov.b64 {%0, %1}, lo; mov.b64 {%2, %3}, hi; }"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "l"(from)
		     : "memory");
	return v;
}

/* The value, of which nothing is made ahead of what stands ahead of this: it may still be on its
 * way, and compilers would wait for it as early as they can. */
__device__ __forceinline__ uint32_t not_before(uint32_t v)
{
	asm volatile("" : "+r"(v)::"memory");
	return v;
}

/* Arrival words announce what an earlier kernel of this stream has finished: its end was the
 * release. */
__device__ __forceinline__ void word_store(void *to, uint32_t v)
{
	asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}

__device__ __forceinline__ uint32_t word_load(const void *from)
{
	uint32_t v;

	asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
	return v;
}

/* The same where the word announces other stores: those come before it, and loads after it. */
__device__ __forceinline__ void word_release(void *to, uint32_t v)
{
	asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}

__device__ __forceinline__ uint32_t word_acquire(const void *from)
{
	uint32_t v;

	asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
	return v;
}

/* All that this lane has stored, and what it has seen of others', comes before what it stores from
 * here on. */
__device__ __forceinline__ void stores_before()
{
	asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/* The same to threads of this GPU. */
__device__ __forceinline__ void stores_before_here()
{
	asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

__device__ __forceinline__ uint4 piece_acquire(const void *from)
{
	uint4 v;

	asm volatile("{ .reg .b64 lo, hi; .reg .b128 v;\n\t"
		     "ld.acquire.sys.global.b128 v, [%4]; mov.b128 {lo, hi}, v;\n\t"
		     "mov.b64 {%0, %1}, lo; mov.b64 {%2, %3}, hi; }"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "l"(from)
		     : "memory");
	return v;
}

/* Rows of x and y: read once, and written by nobody while the kernel runs. Not .nc: with a
 * dependent launch the kernel ahead may have written them while this one was already on its SM. */
__device__ __forceinline__ uint4 row_load(const void *from)
{
	uint4 v;

	asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "l"(from));
	return v;
}

/* What nobody writes while any kernel runs: loaded once, wherever the compiler likes. */
__device__ __forceinline__ uint64_t constant_load(const uint64_t *from)
{
	uint64_t v;

	asm("ld.global.nc.u64 %0, [%1];" : "=l"(v) : "l"(from));
	return v;
}

__device__ __forceinline__ void row_store(void *to, uint4 v)
{
	*(uint4 *)to = v;
}

__device__ __forceinline__ uint64_t now_ns()
{
	uint64_t t;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}

/* ---- blocks and kernels ---------------------------------------------------------------------- */

/* Programmatic dependent launch: the kernel behind may be scheduled; and: all that the kernel ahead
 * has written is there. */
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void let_next_start()
{
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ void wait_for_previous()
{
	asm volatile("griddepcontrol.wait;" ::: "memory");
}
#else
__device__ __forceinline__ void let_next_start()
{
}

__device__ __forceinline__ void wait_for_previous()
{
}
#endif

/* A barrier of some of a block's warps. */
__device__ __forceinline__ void warps_sync(uint32_t nr_threads)
{
	asm volatile("bar.sync 1, %0;" ::"r"(nr_threads) : "memory");
}

/* Of fewer of them, while the others may already be at the one above. racecheck forgets that one of
 * a block's warps meets the others there when it has been at this one in between. */
__device__ __forceinline__ void some_warps_sync(uint32_t nr_threads)
{
	if (nr_threads == 32)
		__syncwarp();
	else
		asm volatile("bar.sync 2, %0;" ::"r"(nr_threads) : "memory");
}

/* Declares the block's dynamic shared memory. */
#define BLOCK_MEMORY(name) extern __shared__ __align__(128) uint32_t name[]

/* ---- copies through shared memory ------------------------------------------------------------ */

/* Called by all lanes of a warp; addresses and sizes are multiples of 16. On sm_90 and later lane
 * `by` hands them to the copy engine, with the addresses that it has; before, all lanes copy,
 * asynchronously on the way in.
 *
 *   copy_in     memory -> shared memory; after the last of them copy_in_close: the barrier's phase
 *               ends when all its bytes are there
 *   copy_out    shared memory -> memory, this GPU's or a peer's. copies_close ends a group of them
 *   copies_read<N>   all groups of this lane's but the last N have read their shared memory: it may
 *                    be written again
 *   copies_done<N>   all groups of this lane's but the last N are where they belong: it may
 *                    announce them, behind a fence
 *   copy_out_ready   what this lane has written to shared memory is there for copies that are begun
 *                    after the next __syncwarp
 *   copy_in_ready    likewise what it has acquired from others' kernels */
typedef uint32_t shared_at; /* an address in the block's shared memory */

#define COPY_BARRIER_BYTES 8

__device__ __forceinline__ shared_at in_shared(const void *pointer)
{
	return (uint32_t)__cvta_generic_to_shared(pointer);
}

__device__ __forceinline__ uint8_t *shared_pointer(shared_at at)
{
	return (uint8_t *)__cvta_shared_to_generic(at);
}

__device__ __forceinline__ uint4 shared_load(shared_at from)
{
	uint4 v;

	asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "r"(from)
		     : "memory");
	return v;
}

__device__ __forceinline__ void shared_store(shared_at to, uint4 v)
{
	asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y),
		     "r"(v.z), "r"(v.w)
		     : "memory");
}

/* Has its phase ended? Does not wait, where copy_there may for a while. */
__device__ __forceinline__ bool barrier_passed(shared_at barrier, uint32_t parity)
{
	uint32_t passed;

	asm volatile("{ .reg .pred p;\n\t"
		     "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n\t"
		     "selp.u32 %0, 1, 0, p; }"
		     : "=r"(passed)
		     : "r"(barrier), "r"(parity)
		     : "memory");
	return passed;
}

/* Of as many arrivals, for warps that pass something on. What a lane has done before it arrives
 * comes before what others do that see the phase ended. */
__device__ __forceinline__ void barrier_open(shared_at barrier, uint32_t arrivals)
{
	asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(shared_at barrier)
{
	asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier)
		     : "memory");
}

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ bool copy_there(shared_at barrier, uint32_t parity)
{
	uint32_t there;

	asm volatile("{ .reg .pred p;\n\t"
		     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
		     "selp.u32 %0, 1, 0, p; }"
		     : "=r"(there)
		     : "r"(barrier), "r"(parity)
		     : "memory");
	return there;
}

/* By one lane; then copy_out_ready and a barrier of those that use it. */
__device__ __forceinline__ void copy_barrier(shared_at barrier)
{
	barrier_open(barrier, 1);
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void copy_out_ready()
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void copy_in_ready()
{
	asm volatile("fence.proxy.async.global;" ::: "memory");
}

__device__ __forceinline__ void copy_in(
	shared_at to, const void *from, uint32_t bytes, shared_at barrier, uint32_t by)
{
	if (threadIdx.x % 32 == by)
		asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
			     "[%0], [%1], %2, [%3];" ::"r"(to),
			     "l"(from), "r"(bytes), "r"(barrier)
			     : "memory");
}

__device__ __forceinline__ void copy_in_close(shared_at barrier, uint32_t bytes, uint32_t by)
{
	if (threadIdx.x % 32 == by)
		asm volatile(
			"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
			"r"(bytes)
			: "memory");
}

__device__ __forceinline__ void copy_out(void *to, shared_at from, uint32_t bytes, uint32_t by)
{
	if (threadIdx.x % 32 == by)
		asm volatile(
			"cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
			"r"(from), "r"(bytes)
			: "memory");
}

/* A lane that has copied nothing has empty groups. */
__device__ __forceinline__ void copies_close()
{
	asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

template <int N> __device__ __forceinline__ void copies_read()
{
	asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

template <int N> __device__ __forceinline__ void copies_done()
{
	asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}
#else
__device__ __forceinline__ bool copy_there(shared_at barrier, uint32_t parity)
{
	return barrier_passed(barrier, parity);
}

__device__ __forceinline__ void copy_barrier(shared_at barrier)
{
	barrier_open(barrier, 32);
}

__device__ __forceinline__ void copy_out_ready()
{
}

__device__ __forceinline__ void copy_in_ready()
{
}

__device__ __forceinline__ const uint8_t *address_of_lane(const void *address, uint32_t lane)
{
	uint64_t bits = (uint64_t)address;
	uint32_t high = __shfl_sync(0xffffffffu, (uint32_t)(bits >> 32), lane),
		 low = __shfl_sync(0xffffffffu, (uint32_t)bits, lane);

	return (const uint8_t *)((uint64_t)high << 32 | low);
}

__device__ __forceinline__ void copy_in(
	shared_at to, const void *from, uint32_t bytes, shared_at barrier, uint32_t by)
{
	const uint8_t *all = address_of_lane(from, by);

	for (uint32_t at = threadIdx.x % 32 * 16; at < bytes; at += 32 * 16)
		asm volatile(
			"cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at), "l"(all + at)
			: "memory");
}

__device__ __forceinline__ void copy_in_close(shared_at barrier, uint32_t bytes, uint32_t by)
{
	__threadfence_block(); /* what this lane has stored in the usual way */
	asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void copy_out(void *to, shared_at from, uint32_t bytes, uint32_t by)
{
	uint8_t *all = (uint8_t *)address_of_lane(to, by);

	for (uint32_t at = threadIdx.x % 32 * 16; at < bytes; at += 32 * 16)
		*(uint4 *)(all + at) = shared_load(from + at);
}

__device__ __forceinline__ void copies_close()
{
}

template <int N> __device__ __forceinline__ void copies_read()
{
	__syncwarp();
}

template <int N> __device__ __forceinline__ void copies_done()
{
}
#endif

/* ---- numbers --------------------------------------------------------------------------------- */

__device__ __forceinline__ float fp16_number(uint32_t h)
{
	float value;

	asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(value) : "r"(h));
	return value;
}

/* 1 / value within one unit in the last place, where that is a normal number. */
__device__ __forceinline__ float reciprocal_near(float value)
{
	float near;

	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(near) : "f"(value));
	return near;
}

/* Of the lower 16 bits and of the upper. */
__device__ __forceinline__ uint32_t max_of_halves(uint32_t a, uint32_t b)
{
	return __vmaxu2(a, b);
}

__device__ __forceinline__ uint32_t add_to_halves(uint32_t a, uint32_t b)
{
	return __vadd2(a, b);
}

/* Two numbers rounded to nearest, ties to even: the lower 16 bits are the first. */
__device__ __forceinline__ uint32_t bf16_pair(float low, float high)
{
	uint32_t pair;

	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
	return pair;
}

__device__ __forceinline__ uint32_t fp16_pair(float low, float high)
{
	uint32_t pair;

	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
	return pair;
}

#if __CUDA_ARCH__ >= 890
__device__ __forceinline__ uint32_t e4m3_pair(float low, float high)
{
	uint16_t pair;

	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
	return pair;
}
#endif

#endif
