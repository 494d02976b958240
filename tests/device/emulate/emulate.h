/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs on a CPU: the same kernels as C++, each of CUDA's threads a fiber. This is no GPU. It shows
 * what kernels compute, whether they stay within their memory, and whether their protocol holds for
 * many orders of events; it says nothing of a GPU's speed, and of its memory model only what stands
 * below.
 *
 * One thread at a time runs all devices: whoever waits for a stream. What runs next is drawn from
 * TERN_EMULATED_SEED, so with one thread a run repeats exactly.
 *
 *   a pass       each lane of a warp that can run does so until it meets the others (shuffles,
 *                votes), waits at a barrier, yields, or ends. Nothing else runs within: what a
 *                warp's lanes store in one instruction, and load in one, is whole, as GPU_FLAG128
 *                needs it.
 *   a turn       some passes of one warp; then another warp of any block of any device
 *   stores       through the named functions of ptx.cuh are delayed, each by itself, and arrive in
 *                any order (TERN_EMULATED_STORES=delayed), but for what fences, releases and a
 *                kernel's end say; or are there at once (=direct), which ThreadSanitizer
 *                understands
 *   time         goes on with each turn; faster when lanes only poll, so that bounded waits end
 *                soon
 *
 * Settings of the environment: TERN_EMULATED_GPUS (4), TERN_EMULATED_SMS (8), each of which holds
 * one block; TERN_EMULATED_SEED (1); TERN_EMULATED_STORES; TERN_EMULATED_LINES (1; 0: no whole
 * lines arrive at peers, as over PCIe); TERN_EMULATED_PROCESSES (none): a file that all processes
 * name whose devices map each other's memory; TERN_EMULATED_NVLINK_DOMAIN (0: all devices reach
 * each other's memory; else so many in a row); TERN_EMULATED_BLOCK_KIB (227): shared memory of a
 * block; TERN_EMULATED_CODE (90; 80: kernels do what their code for sm_80 does: lanes store what
 * the copy engine would, and no kernel waits for the one ahead); TERN_EMULATED_WITHOUT (none): a
 * mistake that tests have to find, pass_heads:stores_before or gate_publish:__syncwarp:2: what
 * function `pass_heads` calls so to order memory is left out, all of it or what it comes to
 * second. */
#ifndef TERN_TESTS_DEVICE_EMULATE_EMULATE_H
#define TERN_TESTS_DEVICE_EMULATE_EMULATE_H

#include "cuda_runtime_api.h"
#include "tests/device/emulate/fiber.h"

#define WARP_LANES 32

enum lane_state {
	LANE_READY,
	LANE_YIELDS,
	LANE_MEETS,
	LANE_AT_BARRIER,
	LANE_ENDED
};

/* What changing places takes lies in one line of a cache. */
struct emulated_lane {
	struct fiber fiber;
	struct emulated_warp *warp;
	uint32_t *shared;
	uint32_t thread, block; /* threadIdx.x, blockIdx.x */
	enum lane_state state;
	uint32_t index;
	struct emulated_lane *next_free;
	uint32_t barrier;
	uint32_t fenced; /* stores of this lane from here on are releases */
	uint32_t nr_delayed;
	uint32_t copy_group; /* of copies out of shared memory, that is open */
	uint32_t copies_out; /* of this lane, under way */
};

/* In a library of its own: those with kernels share it. */
#pragma GCC visibility push(default)

#ifdef __cplusplus
extern "C" {
#endif

/* Of the lane that runs. */
extern struct emulated_lane *emulated_lane;
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

/* ---- for tests, by dlsym --------------------------------------------------------------------- */

/* While no stream holds anything. What runs from here on follows from the seed, as long as only the
 * calling thread uses the devices. */
void emulated_reseed(uint64_t seed);
/* Which warps have run since then, and for how long: a hash. */
uint64_t emulated_history(void);

/* What the driver says of writes by a network: an ordering of CUDA's, below 0 where it does not
 * know the attribute; and what flushing does, on whatever thread it is asked for. NULL: there is
 * none. */
void emulated_rdma(int ordering, void (*flush)(void *ctx), void *ctx);

/* From here on, or no more, what kernels load from pinned memory and store there is counted, but
 * for single words. Returns how many bytes that was. */
uint64_t emulated_watch(int on);

/* ---- for kernels ----------------------------------------------------------------------------- */

/* Is what orders memory here left out on purpose (TERN_EMULATED_WITHOUT)? Says so on standard error
 * when it is for the first time. in: the function that calls it, at `line`. */
bool emulated_without(const char *what, const char *in, int line);

enum meeting {
	MEET_SYNC,
	MEET_SHUFFLE,
	MEET_VOTE,
	MEET_MATCH,
	MEET_REDUCE
};

/* All lanes of the warp meet here, each with a value. line: of the source, the same for all.
 * Returns what lane `from` brought. */
uint64_t emulated_meet(enum meeting what, uint32_t mask, uint64_t value, uint32_t from, int line);
/* Likewise; lanes whose value is not 0, or is the same as this lane's. */
uint32_t emulated_ballot(uint32_t mask, uint32_t value, int line);
uint32_t emulated_match(uint32_t mask, uint32_t value, int line);
enum reduction {
	REDUCE_ADD,
	REDUCE_MIN,
	REDUCE_MAX,
	REDUCE_OR
};
uint32_t emulated_reduce(enum reduction how, uint32_t mask, uint32_t value, int line);

/* Returns whether any, and all, threads brought something but 0: bits 0 and 1. */
uint32_t emulated_barrier(uint32_t id, uint32_t nr_threads, uint32_t value);

void emulated_yield(void);
/* Now and then. */
void emulated_may_yield(void);
uint64_t emulated_now_ns(void);
uint32_t emulated_has_copy_engine(void); /* sm_90 and later */
void emulated_let_next_start(void);
void emulated_wait_for_previous(void);

/* Whether stores are delayed; then this one is. whole: with those of its line that other lanes do
 * in this pass. */
uint32_t emulated_delays_stores(void);
void emulated_delay(void *to, const void *value, uint32_t bytes, uint32_t whole);
/* All that comes before, of this lane and of lanes it has met in __syncwarp or at a barrier, is
 * there. */
void emulated_fence(void);
/* The copy engine. but: groups of this lane's copies, not counting the open one; only_reads: have
 * they read? */
void emulated_barrier_open(uint64_t *barrier, uint32_t arrivals);
void emulated_copy_in(void *shared, const void *from, uint32_t bytes, uint64_t *barrier);
void emulated_copied_in(uint64_t *barrier, uint32_t bytes); /* it is there already */
void emulated_arrive(uint64_t *barrier, uint32_t bytes);    /* after it, so many more bytes are
							       expected */
uint32_t emulated_copy_there(const uint64_t *barrier, uint32_t parity);
void emulated_copy_out(void *to, const void *shared, uint32_t bytes);
uint32_t emulated_copies_left(uint32_t but, uint32_t only_reads);
/* What is counted. */
extern int emulated_watches;
void emulated_touches(const void *at, uint32_t bytes);
/* A load may not overtake this lane's own store to the same place. */
void emulated_loads(const void *from, uint32_t bytes);
/* Something has happened but polling. */
void emulated_moves(void);

typedef void (*emulated_run)(const void *call);
size_t emulated_shared_bytes(const void *kernel);
cudaError_t emulated_launch(
	const cudaLaunchConfig_t *config, emulated_run run, const void *call, size_t bytes);

/* For tests, who find it by name: calls that manage memory, of this process, so far. */
unsigned emulated_memory_calls(void);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
