/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels find in CUDA's header of this name, for C++ on a CPU; and device.h, what they say in PTX. */
#ifndef EMULATED_CUDA_RUNTIME_H
#define EMULATED_CUDA_RUNTIME_H

#include "cuda_runtime_api.h"
#include "tests/device/emulate/emulate.h"

#include <math.h>
#include <string.h>
#include <tuple>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)

/* ---- launching ----------------------------------------------------------------------------------------------- */

template <typename... Params> struct emulated_call {
	void (*kernel)(Params...);
	std::tuple<Params...> args;

	static void run(const void *call)
	{
		const emulated_call *c = (const emulated_call *)call;

		std::apply(c->kernel, c->args);
	}
};

template <typename... Params, typename... Given>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(Params...), Given &&...given)
{
	emulated_call<Params...> call = {kernel, {given...}};

	if (config->dynamicSmemBytes > emulated_shared_bytes((const void *)kernel))
		return cudaErrorInvalidValue;
	return emulated_launch(config, emulated_call<Params...>::run, &call, sizeof(call));
}

/* An SM holds one block. */
template <typename Kernel>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *nr, Kernel kernel, int nr_threads, size_t shared_bytes)
{
	*nr = nr_threads <= 1024 && shared_bytes <= emulated_shared_bytes((const void *)kernel) ? 1 : 0;
	return cudaSuccess;
}

/* ---- vectors and numbers ------------------------------------------------------------------------------------- */

static inline uint2 make_uint2(uint32_t x, uint32_t y)
{
	return {x, y};
}

static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
	return {x, y, z, w};
}

static inline int4 make_int4(int32_t x, int32_t y, int32_t z, int32_t w)
{
	return {x, y, z, w};
}

static inline uint32_t min(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static inline uint32_t max(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static inline uint32_t __float_as_uint(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static inline float __uint_as_float(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static inline float __fadd_rn(float a, float b)
{
	return a + b;
}

static inline float __fmul_rn(float a, float b)
{
	return a * b;
}

static inline float __fmaf_rn(float a, float b, float c)
{
	return fmaf(a, b, c);
}

static inline float __fdiv_rn(float a, float b)
{
	return a / b;
}

static inline uint32_t __popc(uint32_t bits)
{
	return (uint32_t)__builtin_popcount(bits);
}

static inline uint32_t __ffs(uint32_t bits)
{
	return (uint32_t)__builtin_ffs((int)bits);
}

/* ---- warps and blocks ---------------------------------------------------------------------------------------- */

static inline void __syncwarp(int line = __builtin_LINE(), const char *in = __builtin_FUNCTION())
{
	if (!emulated_without("__syncwarp", in, line))
		emulated_meet(MEET_SYNC, 0xffffffffu, 0, 0, line);
}

static inline uint32_t __shfl_sync(uint32_t mask, uint32_t value, uint32_t lane, int line = __builtin_LINE())
{
	return (uint32_t)emulated_meet(MEET_SHUFFLE, mask, value, lane % WARP_LANES, line);
}

static inline uint32_t __shfl_up_sync(uint32_t mask, uint32_t value, uint32_t by, int line = __builtin_LINE())
{
	uint32_t lane = emulated_lane->index;

	return (uint32_t)emulated_meet(MEET_SHUFFLE, mask, value, lane < by ? lane : lane - by, line);
}

static inline uint32_t __shfl_xor_sync(uint32_t mask, uint32_t value, uint32_t with, int line = __builtin_LINE())
{
	return (uint32_t)emulated_meet(MEET_SHUFFLE, mask, value, emulated_lane->index ^ with, line);
}

static inline uint32_t __ballot_sync(uint32_t mask, bool value, int line = __builtin_LINE())
{
	return emulated_ballot(mask, value, line);
}

static inline bool __all_sync(uint32_t mask, bool value, int line = __builtin_LINE())
{
	return emulated_ballot(mask, value, line) == 0xffffffffu;
}

static inline bool __any_sync(uint32_t mask, bool value, int line = __builtin_LINE())
{
	return emulated_ballot(mask, value, line) != 0;
}

static inline uint32_t __match_any_sync(uint32_t mask, uint32_t value, int line = __builtin_LINE())
{
	return emulated_match(mask, value, line);
}

static inline uint32_t __reduce_add_sync(uint32_t mask, uint32_t value, int line = __builtin_LINE())
{
	return emulated_reduce(REDUCE_ADD, mask, value, line);
}

static inline uint32_t __reduce_min_sync(uint32_t mask, uint32_t value, int line = __builtin_LINE())
{
	return emulated_reduce(REDUCE_MIN, mask, value, line);
}

static inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t value, int line = __builtin_LINE())
{
	return emulated_reduce(REDUCE_MAX, mask, value, line);
}

static inline uint32_t __reduce_or_sync(uint32_t mask, uint32_t value, int line = __builtin_LINE())
{
	return emulated_reduce(REDUCE_OR, mask, value, line);
}

static inline uint32_t block_threads()
{
	return blockDim.x * blockDim.y * blockDim.z;
}

static inline void __syncthreads()
{
	emulated_barrier(0, block_threads(), 0);
}

static inline int __syncthreads_or(int value)
{
	return emulated_barrier(0, block_threads(), value != 0) & 1;
}

static inline int __syncthreads_and(int value)
{
	return emulated_barrier(0, block_threads(), value != 0) >> 1;
}

/* ---- memory -------------------------------------------------------------------------------------------------- */

static inline void __threadfence_system(int line = __builtin_LINE(), const char *in = __builtin_FUNCTION())
{
	if (!emulated_without("__threadfence_system", in, line))
		emulated_fence();
}

static inline void __threadfence(int line = __builtin_LINE(), const char *in = __builtin_FUNCTION())
{
	if (!emulated_without("__threadfence", in, line))
		emulated_fence();
}

/* Relaxed, but for what a fence before them says. */
static inline uint32_t atomicExch(uint32_t *at, uint32_t value)
{
	emulated_moves();
	return emulated_lane->fenced ? __atomic_exchange_n(at, value, __ATOMIC_RELEASE) : __atomic_exchange_n(at, value, __ATOMIC_RELAXED);
}

static inline uint32_t atomicOr(uint32_t *at, uint32_t value)
{
	return __atomic_fetch_or(at, value, __ATOMIC_RELAXED);
}

static inline uint32_t atomicMin(uint32_t *at, uint32_t value)
{
	uint32_t seen = __atomic_load_n(at, __ATOMIC_RELAXED);

	while (value < seen && !__atomic_compare_exchange_n(at, &seen, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
	return seen;
}

static inline uint32_t atomicMax(uint32_t *at, uint32_t value)
{
	uint32_t seen = __atomic_load_n(at, __ATOMIC_RELAXED);

	while (value > seen && !__atomic_compare_exchange_n(at, &seen, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
	return seen;
}

/* Between fences, as kernels use it: ThreadSanitizer knows no fences, so it is given what the two make of the addition. */
template <typename Word> static inline Word atomicAdd(Word *at, Word value)
{
	emulated_moves();
	return __atomic_fetch_add(at, value, emulated_lane->fenced ? __ATOMIC_ACQ_REL : __ATOMIC_RELAXED);
}

static inline long long clock64()
{
	return (long long)emulated_now_ns();
}

#include "tests/device/emulate/device.h"
#endif
