/* SPDX-License-Identifier: Apache-2.0 */
/* ptx.cuh in C++: the same functions with the same ordering, and for the same reasons. */
#ifndef TERN_TESTS_DEVICE_EMULATE_DEVICE_H
#define TERN_TESTS_DEVICE_EMULATE_DEVICE_H

/* ---- memory ---------------------------------------------------------------------------------- */

static inline void touches(const void *at, uint32_t bytes)
{
	if (emulated_watches)
		emulated_touches(at, bytes);
}

static inline void word_put(uint32_t *to, uint32_t v)
{
	__atomic_store_n(to, v, __ATOMIC_RELAXED);
}

/* After a fence a relaxed store publishes what is before the fence. ThreadSanitizer knows no
 * fences: the store is a release for it. */
static inline void word_publish(uint32_t *to, uint32_t v)
{
	if (emulated_lane->fenced)
		__atomic_store_n(to, v, __ATOMIC_RELEASE);
	else
		word_put(to, v);
}

/* In parts, as nothing else runs before the lane's pass is over. */
static inline void piece_store(void *to, uint4 v)
{
	uint32_t *words = (uint32_t *)to;

	touches(to, 16);
	emulated_moves();
	if (emulated_delays_stores()) {
		emulated_delay(to, &v, sizeof(v), 1);
		return;
	}
	word_publish(words, v.x);
	word_publish(words + 1, v.y);
	word_publish(words + 2, v.z);
	word_publish(words + 3, v.w);
}

static inline uint4 piece_load(const void *from)
{
	const uint32_t *words = (const uint32_t *)from;

	touches(from, 16);
	emulated_loads(from, 16);
	return {__atomic_load_n(words, __ATOMIC_RELAXED),
		__atomic_load_n(words + 1, __ATOMIC_RELAXED),
		__atomic_load_n(words + 2, __ATOMIC_RELAXED),
		__atomic_load_n(words + 3, __ATOMIC_RELAXED)};
}

static inline uint32_t not_before(uint32_t v)
{
	return v;
}

static inline void word_store(void *to, uint32_t v)
{
	emulated_moves();
	if (emulated_delays_stores())
		emulated_delay(to, &v, sizeof(v), 0);
	else
		word_publish((uint32_t *)to, v);
}

static inline uint32_t word_load(const void *from)
{
	emulated_may_yield();
	emulated_loads(from, 4);
	return __atomic_load_n((const uint32_t *)from, __ATOMIC_RELAXED);
}

static inline void word_release(
	void *to, uint32_t v, int line = __builtin_LINE(), const char *in = __builtin_FUNCTION())
{
	if (emulated_without("word_release", in, line)) {
		word_store(to, v);
		return;
	}
	emulated_fence();
	emulated_moves();
	__atomic_store_n((uint32_t *)to, v, __ATOMIC_RELEASE);
}

static inline uint32_t word_acquire(
	const void *from, int line = __builtin_LINE(), const char *in = __builtin_FUNCTION())
{
	if (emulated_without("word_acquire", in, line))
		return word_load(from);
	emulated_may_yield();
	emulated_loads(from, 4);
	return __atomic_load_n((const uint32_t *)from, __ATOMIC_ACQUIRE);
}

static inline void stores_before(int line = __builtin_LINE(), const char *in = __builtin_FUNCTION())
{
	if (!emulated_without("stores_before", in, line))
		emulated_fence();
}

static inline void stores_before_here(
	int line = __builtin_LINE(), const char *in = __builtin_FUNCTION())
{
	if (!emulated_without("stores_before_here", in, line))
		emulated_fence();
}

static inline uint4 piece_acquire(
	const void *from, int line = __builtin_LINE(), const char *in = __builtin_FUNCTION())
{
	const uint32_t *words = (const uint32_t *)from;

	if (emulated_without("piece_acquire", in, line))
		return piece_load(from);
	touches(from, 16);
	emulated_loads(from, 16);
	return {__atomic_load_n(words, __ATOMIC_ACQUIRE),
		__atomic_load_n(words + 1, __ATOMIC_ACQUIRE),
		__atomic_load_n(words + 2, __ATOMIC_ACQUIRE),
		__atomic_load_n(words + 3, __ATOMIC_ACQUIRE)};
}

static inline uint4 row_load(const void *from)
{
	touches(from, 16);
	emulated_loads(from, 16);
	return *(const uint4 *)from;
}

static inline uint64_t constant_load(const uint64_t *from)
{
	emulated_loads(from, 8);
	return *from;
}

static inline void row_store(void *to, uint4 v)
{
	touches(to, 16);
	if (emulated_delays_stores())
		emulated_delay(to, &v, sizeof(v), 0);
	else
		*(uint4 *)to = v;
}

static inline uint64_t now_ns()
{
	emulated_yield();
	return emulated_now_ns();
}

/* tern_device.cuh's. */
static inline uint32_t tern_word_acquire(const uint32_t *from)
{
	return word_acquire(from);
}

static inline void tern_word_add(uint32_t *to, uint32_t v, int line = __builtin_LINE(),
	const char *in = __builtin_FUNCTION())
{
	if (!emulated_without("tern_word_add", in, line))
		emulated_fence();
	emulated_moves();
	__atomic_fetch_add(to, v, __ATOMIC_RELEASE);
}

static inline uint64_t tern_now_ns()
{
	return now_ns();
}

static inline void tern_rows_for_copies()
{
}

/* ---- blocks and kernels ---------------------------------------------------------------------- */

static inline void let_next_start()
{
	emulated_let_next_start();
}

static inline void wait_for_previous()
{
	emulated_wait_for_previous();
}

static inline void warps_sync(uint32_t nr_threads)
{
	emulated_barrier(1, nr_threads, 0);
}

static inline void some_warps_sync(uint32_t nr_threads)
{
	emulated_barrier(2, nr_threads, 0);
}

#define BLOCK_MEMORY(name) uint32_t *const name = emulated_lane->shared

/* ---- copies through shared memory ------------------------------------------------------------ */

typedef uintptr_t shared_at;

#define COPY_BARRIER_BYTES 8

static inline shared_at in_shared(const void *pointer)
{
	return (uintptr_t)pointer;
}

static inline uint8_t *shared_pointer(shared_at at)
{
	return (uint8_t *)at;
}

static inline uint4 shared_load(shared_at from)
{
	return *(const uint4 *)from;
}

static inline void shared_store(shared_at to, uint4 v)
{
	*(uint4 *)to = v;
}

static inline void barrier_open(shared_at barrier, uint32_t arrivals)
{
	emulated_barrier_open((uint64_t *)barrier, arrivals);
}

static inline void barrier_arrive(shared_at barrier)
{
	emulated_arrive((uint64_t *)barrier, 0);
}

/* Of code for sm_80 all lanes arrive at it. */
static inline void copy_barrier(shared_at barrier)
{
	barrier_open(barrier, emulated_has_copy_engine() ? 1 : WARP_LANES);
}

/* What the engine may see of a lane's stores is not emulated. */
static inline void copy_out_ready()
{
}

static inline void copy_in_ready()
{
}

/* Where stores are not delayed, copies are not either; done here, so that ThreadSanitizer sees
 * them. */
static inline void copy_in(
	shared_at to, const void *from, uint32_t bytes, shared_at barrier, uint32_t by)
{
	if (emulated_lane->index != by)
		return;
	touches(from, bytes);
	if (emulated_delays_stores()) {
		emulated_copy_in((void *)to, from, bytes, (uint64_t *)barrier);
		return;
	}
	memcpy((void *)to, from, bytes);
	emulated_copied_in((uint64_t *)barrier, bytes);
}

static inline void copy_in_close(shared_at barrier, uint32_t bytes, uint32_t by)
{
	if (emulated_lane->index == by || !emulated_has_copy_engine())
		emulated_arrive((uint64_t *)barrier, emulated_lane->index == by ? bytes : 0);
}

static inline bool copy_there(shared_at barrier, uint32_t parity)
{
	if (emulated_copy_there((const uint64_t *)barrier, parity))
		return true;
	emulated_yield();
	return false;
}

static inline bool barrier_passed(shared_at barrier, uint32_t parity)
{
	return copy_there(barrier, parity);
}

/* Without a copy engine these are stores like others. */
static inline void lanes_copy_out(void *to, shared_at from, uint32_t bytes, uint32_t by)
{
	uint8_t *all = (uint8_t *)emulated_meet(
		MEET_SHUFFLE, 0xffffffffu, (uint64_t)(uintptr_t)to, by, __LINE__);

	for (uint32_t at = emulated_lane->index * 16; at < bytes; at += WARP_LANES * 16)
		row_store(all + at, shared_load(from + at));
}

static inline void copy_out(void *to, shared_at from, uint32_t bytes, uint32_t by)
{
	if (!emulated_has_copy_engine()) {
		lanes_copy_out(to, from, bytes, by);
		return;
	}
	if (emulated_lane->index != by)
		return;
	touches(to, bytes);
	emulated_moves();
	if (emulated_delays_stores())
		emulated_copy_out(to, (const void *)from, bytes);
	else
		memcpy(to, (const void *)from, bytes);
}

static inline void copies_close()
{
	emulated_lane->copy_group++;
}

template <int N>
static inline void copies_read(int line = __builtin_LINE(), const char *in = __builtin_FUNCTION())
{
	if (emulated_without("copies_read", in, line))
		return;
	if (!emulated_has_copy_engine())
		__syncwarp();
	while (emulated_copies_left(N, 1))
		emulated_yield();
}

template <int N>
static inline void copies_done(int line = __builtin_LINE(), const char *in = __builtin_FUNCTION())
{
	if (emulated_without("copies_done", in, line))
		return;
	while (emulated_copies_left(N, 0))
		emulated_yield();
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* IEEE 754's binary16, subnormals and all; a NaN is quiet. */
static inline float fp16_number(uint32_t h)
{
	uint32_t sign = (h & 0x8000) << 16, exponent = h >> 10 & 31, rest = h & 0x3ff;

	if (exponent == 31)
		return __uint_as_float(sign | 0x7f800000u | rest << 13 | (rest ? 0x400000u : 0));
	if (exponent)
		return __uint_as_float(sign | (exponent + 112) << 23 | rest << 13);
	return __uint_as_float(sign | __float_as_uint((float)rest * 0x1p-24f));
}

/* To nearest, ties to even; NaN becomes the one that cvt gives. */
static inline uint32_t bf16_of(float value)
{
	uint32_t bits = __float_as_uint(value);

	return value != value ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static inline uint32_t fp16_of(float value)
{
	uint32_t bits = __float_as_uint(value), sign = bits >> 16 & 0x8000,
		 rest = bits & 0x7fffffff;

	if (value != value)
		return 0x7fff;
	if (rest >= 0x477ff000) /* 65520 and more */
		return sign | 0x7c00;
	if (rest < 0x38800000) /* below 2^-14: added to 0.5, whose last place is 2^-24 */
		return sign | (__float_as_uint(__uint_as_float(rest) + 0.5f) - 0x3f000000);
	return sign | (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13;
}

static inline float reciprocal_near(float value)
{
	return 1 / value;
}

static inline uint32_t max_of_halves(uint32_t a, uint32_t b)
{
	uint32_t low = max(a & 0xffff, b & 0xffff), high = max(a >> 16, b >> 16);

	return high << 16 | low;
}

static inline uint32_t add_to_halves(uint32_t a, uint32_t b)
{
	return ((a & 0xffff0000u) + (b & 0xffff0000u)) | ((a + b) & 0xffff);
}

static inline uint32_t bf16_pair(float low, float high)
{
	return bf16_of(low) | bf16_of(high) << 16;
}

static inline uint32_t fp16_pair(float low, float high)
{
	return fp16_of(low) | fp16_of(high) << 16;
}

#endif
