/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks on other nodes, as kernels see them. What belongs to a far rank is stored in pinned host memory (staging) at the offsets that it would have in that rank's
 * window; commands in a ring that the engine's proxy reads then write it into the same places of that rank's pinned memory (landing), where its kernels read it.
 *
 *   message    of a kind, between two far ranks, for one slot:   head | parts        The same offsets in staging and in landing.
 *     counts   head | counts                               (high throughput, for each parity)
 *     dispatch head | plan | rows [T]                      high throughput: head | heads [T] | scales [T] | x [T]
 *     combine  head | results [T][K], summed at the expert [T]
 *   memory     [slot][kind][far rank] messages
 *
 * Rows and results are sparse: those that are used travel in runs, each a write of its own, and the head, with all that is not sparse, in one more. The head says how many runs there are.
 * Each write's immediate tells its kind, slot and source. When the head and so many runs have come, the proxy stores the arrival word of that kind, slot and source: the epoch that
 * the head names. Networks may land bytes in any order, and immediates too, so nothing in landing is looked at before that word is seen.
 *
 * Why no message meets the one before it, in staging or in landing, and no word overtakes another: docs/protocol.md, GPUs on several nodes.
 */
#ifndef TERN_CUDA_FAR_H
#define TERN_CUDA_FAR_H

#include "gpu/wire/ht.h"

enum far_kind {
	FAR_COUNTS_EVEN = 0,
	FAR_COUNTS_ODD = 1,
	FAR_DISPATCH = 2,
	FAR_COMBINE = 3,
	NR_FAR_KINDS,
	FAR_PART = NR_FAR_KINDS /* not a message: a parting word, in three immediates (partings.h) */
};

/* What a message consists of; each is found as in a window, from a base of its own. */
enum far_part {
	FAR_PLAN,
	FAR_ROWS,
	FAR_RESULTS,
	FAR_EVEN_COUNTS,
	FAR_ODD_COUNTS,
	FAR_HEADS,
	FAR_X,
	FAR_SCALES,
	NR_FAR_PARTS
};

#define FAR_HEAD_BYTES 128

struct far_head {
	uint32_t epoch, nr_runs;
};

/* A line for each kind, slot and source, in pinned memory: the arrival word, and whether the source is gone. */
#define FAR_GONE_OFFSET 64

/* Its words come no more; or those that are under way may still come, for that long: a network may report
 * immediates in any order. */
enum far_gone {
	FAR_HERE = 0,
	FAR_LOST = 1,
	FAR_LEFT = 2
};
#define FAR_PEACE_NS 100000000u

/* An immediate: prefix of the exchange (8) | kind (3) | source (12) | slot (4) | is a run (1) | 0 (4). FAR_PART: 9 bits in place of the last three */
#define FAR_IMMEDIATE_RUN (1u << 4)

LL_BOTH uint32_t far_immediate(uint32_t prefix, enum far_kind kind, uint32_t source, uint32_t slot)
{
	return prefix << 24 | (uint32_t)kind << 21 | source << 9 | slot << 5;
}

/* A command as kernels write it: the engine's struct command. */
struct far_command {
	uint32_t turn;
	uint32_t kind_flags; /* COMMAND_WRITE, counted, with an immediate */
	uint32_t peer;
	uint32_t counter;
	uint32_t local_remote; /* 16 bits each */
	uint32_t reserved;
	uint64_t local_offset, remote_offset, bytes, reserved_offset, immediate;
};

/* Where this rank's message of a kind for a rank lies, here and there. */
struct far_message {
	uint8_t *head;
	uint64_t local_offset, remote_offset;
};

struct far_rank {
	uint32_t rank, local_remote;
	struct far_message messages[NR_FAR_KINDS];
};

/* The engine's count of writes that ended, in pinned memory: the low words of its two sums. */
struct far_sent {
	const uint32_t *done, *failed;
};

/* One a slot, in device memory. Set by the host, but for what is marked as the kernels'. */
struct far_table {
	uint32_t nr_far;
	uint32_t kind_flags;
	uint8_t *to[NR_FAR_PARTS][LL_MAX_RANKS]; /* bases in place of windows: staging, or a mapped rank's window */
	uint8_t *from[NR_FAR_PARTS][LL_MAX_RANKS]; /* landing, or this rank's window */
	uint32_t is_far[LL_MAX_RANKS];
	struct far_rank ranks[LL_MAX_RANKS]; /* [nr_far] */
	uint64_t run_bytes[NR_FAR_KINDS], run_offset[NR_FAR_KINDS]; /* of one row or result; of the first, in the message */
	uint64_t head_bytes[NR_FAR_KINDS];   /* the head and all that is not sparse */
	uint32_t immediate[NR_FAR_KINDS], counter[NR_FAR_KINDS];
	struct far_sent sent[NR_FAR_KINDS];
	const uint8_t *words; /* [kind][R] lines, stored by the proxy */
	struct far_command *ring;
	uint32_t ring_mask, ring_shift;
	unsigned long long *tickets, *bytes; /* of all slots: the ring's, and what was sent; the kernels' */
	uint32_t *results; /* [nr_far][T] high throughput: which of a token's results go to that home, a bit each; the kernels' */
	/* The kernels', apart from what others read and from each other: */
	uint32_t apart[32];
	uint32_t begun[NR_FAR_KINDS];	  /* commands, modulo 2^32 */
	uint32_t nr_sent_warps;		  /* of the kernel that runs */
	uint32_t apart_too[64];
	uint32_t collected[NR_FAR_KINDS]; /* epoch: all far ranks' words of the kind have come */
	uint32_t apart_from_next[32];
};

LL_BOTH uint64_t far_align(uint64_t bytes)
{
	return (bytes + 127) / 128 * 128;
}

/* The commands of one slot's last message of each kind to all far ranks, at most. A run is broken at 32 rows, or at a token's results. */
LL_BOTH uint64_t far_most_commands(uint32_t nr_far, uint32_t max_tokens, uint32_t topk, int at_home)
{
	uint64_t rows = max_tokens / 2 + max_tokens / 32 + 2, results = at_home ? (uint64_t)max_tokens * ll_ceil(topk, 2) : max_tokens;

	return nr_far * (rows + results + NR_FAR_KINDS);
}

#endif
