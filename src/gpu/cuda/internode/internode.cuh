/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks on other nodes, in kernels that are made for them (FAR): where their bytes go and come
 * from, waiting for the engine, and commands for its proxy. internode.h.
 *
 * What orders memory between kernels and the proxy, over PCIe:
 *   internode_ring              release: a message's bytes come before the command's turn.      Pairs with ring_peek, which the proxy's copy of the command follows.
 *   internode_staging_free      acquire: pairs with counter_add. The network has read what was
 *                               sent, so kernels behind this one may store to staging; and the
 *                               proxy has copied those commands. By the warp that collects, for the
 *                               other phase; and by the plan of high throughput.
 *   internode_collect           acquire: pairs with internode_word_publish, which the proxy calls
 *                               when a whole message is visible to it, or with gates with
 *                               internode_runs_publish, when its head is; and with
 *                               internode_gone_publish: who sees that a rank is gone sees all of
 *                               its words that came.
 *   internode_arrived           acquire: pairs with the release at the end of internode_collect:
 *                               what one warp has acquired is all blocks'.
 *   internode_last              all warps' stores come before what the last one does: each fences,
 *                               then adds; the last one has added, then fences.
 */
#ifndef TERN_GPU_CUDA_INTERNODE_INTERNODE_CUH
#define TERN_GPU_CUDA_INTERNODE_INTERNODE_CUH

#include "gpu/wire/internode.h"
#include "gpu/cuda/common/kernels.h"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/common/wait.cuh"

/* ---- where ----------------------------------------------------------------------------------- */

/* A rank's window, as mapped here; ELASTIC: the pane of it that is in use. */
template <bool ELASTIC>
__device__ __forceinline__ uint8_t *window_of(const struct gpu_exchange *e, uint32_t rank)
{
	return e->windows[rank] + (ELASTIC ? constant_load(&e->state->pane) : 0);
}

/* Likewise, where kernels are not compiled for elastic exchanges. */
__device__ __forceinline__ uint8_t *window_in_use(const struct gpu_exchange *e, uint32_t rank)
{
	return e->view ? window_of<true>(e, rank) : window_of<false>(e, rank);
}

/* In place of a rank's window, for what is stored to it: offsets stay what they are. */
template <bool FAR, bool ELASTIC = false>
__device__ __forceinline__ uint8_t *part_to(
	const struct gpu_exchange *e, enum internode_part part, uint32_t rank)
{
	return FAR ? e->internode->to[part][rank] : window_of<ELASTIC>(e, rank);
}

/* In place of this rank's window, for what a source has stored. */
template <bool FAR, bool ELASTIC = false>
__device__ __forceinline__ const uint8_t *part_from(
	const struct gpu_exchange *e, enum internode_part part, uint32_t source)
{
	return FAR ? e->internode->from[part][source] : window_of<ELASTIC>(e, e->rank);
}

template <bool FAR>
__device__ __forceinline__ bool is_internode(const struct gpu_exchange *e, uint32_t rank)
{
	return FAR && e->internode->is_internode[rank];
}

/* Which of the results between a home and an internode rank. If they are summed at the expert, the
 * sum's number (numbers.cuh). */
template <bool FAR>
__device__ __forceinline__ uint64_t result_number(const struct gpu_exchange *e, uint32_t rank,
	uint32_t token, uint32_t column, uint32_t nr_columns, uint32_t number)
{
	return is_internode<FAR>(e, rank)
		       ? (e->at_home ? (uint64_t)token * e->topk + column : number)
		       : (uint64_t)token * nr_columns + column;
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* By one warp, before others store to staging: what lay there has been sent. */
static __device__ __noinline__ bool internode_staging_free(
	const struct gpu_exchange *e, enum internode_kind kind)
{
	const struct internode_sent *sent = &e->internode->sent[kind];
	uint32_t begun = word_load(&e->internode->begun[kind]), ended;
	struct patience patience = {0, 0};

	do {
		ended = word_acquire(sent->done) + word_acquire(sent->failed);
		if (__all_sync(ALL_LANES, ended == begun)) {
			__syncwarp();
			return true;
		}
	} while (warp_may_wait(&patience, e, e->rank, e->wait_ns));
	if (lane_id() == 0)
		report_wait(e, GPU_WAIT_SENT, e->rank, kind, begun, ended, patience.start_ns);
	return false;
}

/* One internode rank's word, by one lane. AT: which of its line. patience: of all that it waits
 * for.
 */
template <uint32_t AT>
static __device__ __noinline__ bool internode_await_word(const struct gpu_exchange *e,
	enum internode_kind kind, uint32_t epoch, enum gpu_wait reason, uint32_t rank,
	struct patience *patience)
{
	const uint8_t *line = e->internode->words +
			      ((uint64_t)kind * e->nr_ranks + rank) * GPU_LINE_BYTES,
		      *word = line + AT;
	uint64_t start_ns = now_ns(), limit_ns = e->wait_ns;
	struct patience peace = {0, 0};
	uint32_t seen;

	while ((seen = word_acquire(word)) != epoch) {
		uint32_t gone = word_acquire(line + INTERNODE_GONE_OFFSET);

		if (gone == INTERNODE_LEFT && limit_ns > INTERNODE_PEACE_NS) {
			patience = &peace;
			limit_ns = INTERNODE_PEACE_NS;
		}
		if (gone == INTERNODE_LOST ? word_acquire(word) == epoch
					   : may_wait(patience, e, e->rank, limit_ns))
			continue;
		report_wait(e, reason, rank, 0, epoch, seen, start_ns);
		return false;
	}
	return true;
}

/* By one warp of all: every internode rank's word of this kind. Others do not poll over PCIe. */
template <uint32_t AT = INTERNODE_WORD_OFFSET>
static __device__ __noinline__ bool internode_collect(const struct gpu_exchange *e,
	enum internode_kind kind, uint32_t epoch, enum gpu_wait reason)
{
	struct internode_table *internode = e->internode;
	struct patience patience = {0, 0};
	bool good = true;

	for (uint32_t i = lane_id(); i < internode->nr_internode && good; i += LANES) {
		wait_for_another(&patience);
		good = internode_await_word<AT>(
			e, kind, epoch, reason, internode->ranks[i].rank, &patience);
	}
	good = __all_sync(ALL_LANES, good);
	__syncwarp(); /* a vote orders nothing: what each lane has acquired is lane 0's to pass on
		       */
	if (good && lane_id() == 0)
		word_release(&internode->collected[kind], epoch);
	return good;
}

#define POLLS_PER_FAILURE 64 /* looks at whether another warp has given up */

/* By one warp of each other block. The one that collects is the one to report; this bound is there
 * in case that one could not. */
static __device__ __noinline__ void internode_await(const struct gpu_exchange *e,
	enum internode_kind kind, uint32_t epoch, enum gpu_wait reason)
{
	struct patience patience = {0, 0};
	uint32_t seen;

	do {
		seen = word_acquire(&e->internode->collected[kind]);
		if (__all_sync(ALL_LANES, seen == epoch))
			return;
		if (patience.polls % POLLS_PER_FAILURE == 0 &&
			__any_sync(ALL_LANES, word_load(&e->state->failed) != 0))
			return;
	} while (warp_may_wait(&patience, e, e->rank, 2 * e->wait_ns));
	if (lane_id() == 0)
		report_wait(e, reason, e->rank, 0, epoch, seen, patience.start_ns);
}

/* By all warps of a block that receive, before they look at anything in landing: warp counts them,
 * and failed is what each has seen of an earlier failure. The first waits for all, as polls by all
 * would hold up everything that shares the word's part of the cache. The one that collects also
 * sees to it that the other phase's staging is free: its answers have come. */
template <bool FAR, uint32_t AT = INTERNODE_WORD_OFFSET>
__device__ __forceinline__ bool internode_arrived(const struct gpu_exchange *e,
	enum internode_kind kind, uint32_t epoch, enum gpu_wait reason, bool failed, uint32_t warp,
	uint32_t nr_warps)
{
	if (!FAR)
		return true;
	if (warp == 0 && !__any_sync(ALL_LANES, failed)) {
		if (blockIdx.x)
			internode_await(e, kind, epoch, reason);
		else if (internode_staging_free(e, kind == INTERNODE_DISPATCH ? INTERNODE_COMBINE
									      : INTERNODE_DISPATCH))
			internode_collect<AT>(e, kind, epoch, reason);
	}
	warps_sync(nr_warps * LANES);
	return __all_sync(ALL_LANES, word_acquire(&e->internode->collected[kind]) == epoch);
}

/* ---- commands -------------------------------------------------------------------------------- */

/* After all that a warp has stored. True for the last of nr. */
static __device__ __noinline__ bool internode_last(const struct gpu_exchange *e, uint32_t nr)
{
	uint32_t last = 0;

	__syncwarp();
	__threadfence_system();
	if (lane_id() == 0)
		last = atomicAdd(&e->internode->nr_sent_warps, 1u) == nr - 1;
	last = __shfl_sync(ALL_LANES, last, 0);
	if (!last)
		return false;
	if (lane_id() == 0)
		e->internode->nr_sent_warps = 0;
	__threadfence_system();
	__syncwarp();
	return true;
}

/* By one lane: a part of a message into the ring.
 *
 * Why the entry is free. The proxy takes commands in the order of their tickets, so the entry of
 * ticket t - entries is free when any command from it on is known to have ended. A slot draws no
 * ticket before it has acquired the end of all but its last message of each kind
 * (internode_staging_free), and draws are acquire and release: a slot that draws t comes after all
 * that others knew when they drew earlier ones. Were none of the last `entries` commands known to
 * have ended, all slots together would have more than their last messages: more than there are
 * entries. */
static __device__ __noinline__ void internode_ring(const struct internode_table *internode,
	const struct internode_rank *to, enum internode_kind kind, uint32_t local_remote,
	uint64_t local, uint64_t remote, uint64_t bytes, uint32_t immediate)
{
	unsigned long long ticket;
	struct internode_command *entry;
	uint32_t *words;

	__threadfence();
	ticket = atomicAdd(internode->tickets, 1ull);
	__threadfence();
	entry = &internode->ring[ticket & internode->ring_mask];
	words = (uint32_t *)entry;
	atomicAdd(internode->bytes, (unsigned long long)bytes);
	piece_store(
		words + 4, make_uint4(local_remote, 0, (uint32_t)local, (uint32_t)(local >> 32)));
	piece_store(words + 8, make_uint4((uint32_t)remote, (uint32_t)(remote >> 32),
				       (uint32_t)bytes, (uint32_t)(bytes >> 32)));
	piece_store(words + 12, make_uint4(0, 0, immediate, 0));
	word_store(words + 1, internode->kind_flags);
	word_store(words + 2, to->rank);
	word_store(words + 3, internode->counter[kind]);
	word_release(words, (uint32_t)(ticket >> internode->ring_shift) + 1);
}

/* By one lane: rows or results `first` to `first` + nr - 1. */
__device__ __forceinline__ void internode_ring_run(const struct internode_table *internode,
	const struct internode_rank *to, enum internode_kind kind, uint64_t first, uint32_t nr,
	uint32_t group = 0)
{
	uint64_t offset = first * internode->run_bytes[kind];

	internode_ring(internode, to, kind, to->local_remote_rows,
		to->messages[kind].local_rows + offset, to->messages[kind].remote_rows + offset,
		nr * internode->run_bytes[kind],
		internode->immediate[kind] | INTERNODE_IMMEDIATE_RUN | group);
}

/* By any lanes, each for itself: runs of the results from `first` on whose bits are set. Returns
 * how many. */
static __device__ __noinline__ uint32_t internode_ring_bits(const struct internode_table *internode,
	const struct internode_rank *to, enum internode_kind kind, uint64_t first, uint32_t bits)
{
	uint32_t runs = 0;

	for (; bits; runs++) {
		uint32_t start = __ffs(bits) - 1, rest = ~(bits >> start),
			 nr = rest ? __ffs(rest) - 1 : 32;

		internode_ring_run(internode, to, kind, first + start, nr);
		bits = start + nr < 32 ? bits >> (start + nr) << (start + nr) : 0;
	}
	return runs;
}

/* By one lane: the message's head, with `bytes` in all of what is not sparse. */
__device__ __forceinline__ void internode_ring_head(const struct internode_table *internode,
	const struct internode_rank *to, enum internode_kind kind, uint32_t epoch, uint32_t nr_runs,
	uint64_t bytes)
{
	const struct internode_message *m = &to->messages[kind];

	word_store(m->head, epoch);
	word_store(m->head + 4, nr_runs);
	internode_ring(internode, to, kind, to->local_remote, m->local_offset, m->remote_offset,
		bytes, internode->immediate[kind]);
}

__device__ __forceinline__ void internode_ring_head(const struct internode_table *internode,
	const struct internode_rank *to, enum internode_kind kind, uint32_t epoch, uint32_t nr_runs)
{
	internode_ring_head(internode, to, kind, epoch, nr_runs, internode->head_bytes[kind]);
}

/* By a warp: a home's results that are summed here, which lie together, and the head behind all
 * that it gets; runs: commands of others that it has got. Returns all of them. */
__device__ __forceinline__ uint32_t internode_ring_sums(const struct internode_table *internode,
	const struct internode_rank *home, uint32_t epoch, uint32_t runs, uint32_t sums)
{
	runs += sums != 0;
	if (lane_id() == 0 && sums)
		internode_ring_run(internode, home, INTERNODE_COMBINE, 0, sums);
	if (lane_id() == 0)
		internode_ring_head(internode, home, INTERNODE_COMBINE, epoch, runs);
	return runs + 1;
}

/* By one lane, after all of a kind's commands of this round. */
__device__ __forceinline__ void internode_has_begun(
	struct internode_table *internode, enum internode_kind kind, uint32_t nr_commands)
{
	internode->begun[kind] += nr_commands;
}

#endif
