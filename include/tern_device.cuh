/* SPDX-License-Identifier: Apache-2.0 */
/* tern_device.cuh: how a kernel reads received rows while others still come, and says which rows of
 * y are there: tern.h, "gates". For CUDA C++, alone or in CUTLASS; a gate is a kernel's argument,
 * by value.
 *
 *     uint32_t round = tern_gate_round(&gate);
 *     for (each of L experts) {
 *             if (!tern_counts(&gate, round, expert, &first, &rows))
 *                     break;                                      the exchange has failed
 *             for (uint32_t tile = 0; tile * gate.tile_rows < rows; tile++) {
 *                     if (!tern_wait_rows(&gate, round, expert, tile))
 *                             break;
 *                     ... rows first + tile * tile_rows ... are there
 *             }
 *     }
 *     ...                             all of a tile's rows of y are stored, and the block has met
 *     tern_tile_done(&gate, expert, tile);                        by one thread, once for each mark
 *
 * Any thread may call these. What it has waited for, others of its block may read behind a barrier,
 * and copies by tensor maps that it begins itself. No wait outlives wait_ns.
 */
#ifndef TERN_DEVICE_CUH
#define TERN_DEVICE_CUH

#include "tern.h"

#ifdef __CUDACC__
__device__ __forceinline__ uint32_t tern_word_acquire(const uint32_t *from)
{
	uint32_t v;

	asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
	return v;
}

__device__ __forceinline__ void tern_word_add(uint32_t *to, uint32_t v)
{
	asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}

__device__ __forceinline__ uint64_t tern_now_ns(void)
{
	uint64_t t;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}

/* What has been acquired is there for copies by tensor maps, too. */
__device__ __forceinline__ void tern_rows_for_copies(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("fence.proxy.async;" ::: "memory");
#endif
}
#endif

#define TERN_POLLS_PER_LOOK 256 /* at the clock, and at whether the exchange has failed */

/* Until the word has come as far as `wanted`, round the corner of 2^32. */
__device__ __forceinline__ bool tern_wait_word(
	const struct tern_gate *gate, const uint32_t *word, uint32_t wanted)
{
	uint64_t since = 0;

	for (uint32_t polls = 1; (int32_t)(tern_word_acquire(word) - wanted) < 0; polls++) {
		if (polls % TERN_POLLS_PER_LOOK)
			continue;
		since = since ? since : tern_now_ns();
		if (tern_word_acquire(gate->failed) || tern_now_ns() - since > gate->wait_ns)
			return false;
	}
	return true;
}

/* The round that the dispatch ahead of this kernel has begun. */
__device__ __forceinline__ uint32_t tern_gate_round(const struct tern_gate *gate)
{
	return tern_word_acquire(&gate->words[0]);
}

/* An expert's first row position and number of rows, of all experts known at once. False: they did
 * not come. */
__device__ __forceinline__ bool tern_counts(const struct tern_gate *gate, uint32_t round,
	uint32_t expert, uint64_t *first, uint32_t *rows)
{
	if (!tern_wait_word(gate, &gate->words[1], round))
		return false;
	*first = gate->offsets[expert];
	*rows = gate->counts[expert];
	return true;
}

/* All rows of an expert's tile are there. False: they did not come. */
__device__ __forceinline__ bool tern_wait_rows(
	const struct tern_gate *gate, uint32_t round, uint32_t expert, uint32_t tile)
{
	bool there = tern_wait_word(
		gate, &gate->ready[expert * gate->tiles + tile], round * gate->whole);

	tern_rows_for_copies();
	return there;
}

__device__ __forceinline__ void tern_tile_done(
	const struct tern_gate *gate, uint32_t expert, uint32_t tile)
{
	tern_word_add(&gate->done[expert * gate->tiles + tile], 1);
}

#endif
