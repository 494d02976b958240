/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks on other nodes, as kernels see them. What belongs to an internode rank is stored in staging
 * at the offsets that it would have in that rank's window; commands in a ring that the engine's
 * proxy reads then write it into the same places of that rank's landing, where its kernels read it.
 *
 *   message    of a kind, between two internode ranks, for one slot:   head and what goes with it | rows, apart      The same offsets in staging and in landing.
 *     counts   head | counts                               (high throughput, for each parity)
 *     dispatch head | plan                | rows [T]       high throughput: head | heads [T] | numbers [T] | x with its scales [T]
 *     combine  head                       | results [T][K], summed at the expert [T]
 *   memory     [slot][kind][internode rank] of heads, which the proxy reads: pinned
 *              [slot][kind][internode rank] of rows: the device's, where the network moves that;
 * else pinned (host/internode_rows.h)
 *
 * Rows and results travel in runs, each a write of its own, and the head, with all that is not
 * sparse, in one more. Rows that are used lie together, in the order of their tokens, and results
 * that are summed at the expert as the rows do: one run (cuda/internode/numbers.cuh). Results of
 * routes lie by token and k, and are sparse. The head says how many runs there are. Each
 * write's immediate tells its kind, slot and source. When the head and so many runs have come, the
 * proxy stores the arrival word of that kind, slot and source: the epoch that the head names.
 * Networks may land bytes in any order, and immediates too, so nothing in landing is looked at
 * before that word is seen. With gates a dispatch's runs are told one by one (below).
 *
 * Why no message meets the one before it, in staging or in landing, and no word overtakes another:
 * docs/protocol.md, GPUs on several nodes.
 */
#ifndef TERN_GPU_WIRE_INTERNODE_H
#define TERN_GPU_WIRE_INTERNODE_H

#include "gpu/wire/ht.h"

enum internode_kind {
	INTERNODE_COUNTS_EVEN = 0,
	INTERNODE_COUNTS_ODD = 1,
	INTERNODE_DISPATCH = 2,
	INTERNODE_COMBINE = 3,
	NR_INTERNODE_KINDS,
	INTERNODE_PART = NR_INTERNODE_KINDS /* not a message: a leave word, in three immediates
					       (leave_statuses.h) */
};

/* What a message consists of; each is found as in a window, from a base of its own. */
enum internode_part {
	INTERNODE_PLAN,
	INTERNODE_ROWS,
	INTERNODE_RESULTS,
	INTERNODE_EVEN_COUNTS,
	INTERNODE_ODD_COUNTS,
	INTERNODE_HEADS,
	INTERNODE_X,
	INTERNODE_NUMBERS,
	INTERNODE_WAYS,   /* two hops: struct internode_way, of the rows that this message has */
	INTERNODE_LANDED, /* two hops: rows that are to be passed on; INTERNODE_ROWS: passed on */
	NR_INTERNODE_PARTS
};

#define INTERNODE_HEAD_BYTES 128

/* Two hops: where the gateway of a source passes a row on to, by its number; a piece of 16 bytes,
 * and in high throughput behind it the row's first position on each rank of the node. Before the
 * first way stands one whose token is how many there are; with gates, behind its piece, how many up
 * to each group. */
#define INTERNODE_WAY_BYTES 16
#define INTERNODE_MOST_NEIGHBOURS 64 /* ranks of a node, a bit each */

struct internode_way {
	uint32_t token, to_low, to_high, epoch;
};

/* way_bytes, with so many ranks on the largest node. */
HOST_DEVICE uint32_t internode_way_bytes(uint32_t most_neighbours, int with_positions)
{
	return INTERNODE_WAY_BYTES + (with_positions ? (most_neighbours + 3) / 4 * 16 : 0);
}

struct internode_head {
	uint32_t epoch, nr_runs;
};

/* A line for each kind, slot and source, in pinned memory: the arrival word, and whether the source
 * is gone. Of a dispatch with gates also the epoch of the head that has come, and which of its runs
 * have, a bit each. */
#define INTERNODE_WORD_OFFSET 0
#define INTERNODE_HEAD_OFFSET 4
#define INTERNODE_RUNS_OFFSET 8
#define INTERNODE_GONE_OFFSET 64

/* With gates rows for a rank lie, and travel, by the lowest of that rank's experts that they are
 * for, or of the ranks' that it passes them on to: a run for each group of experts, so that tiles
 * of the first ones begin while others' rows are on their way. A row's group takes two bits in what
 * a rank notes of its tokens (numbers.cuh). */
#define INTERNODE_GROUPS 4u

/* Experts of a group, where a rank has so many at most. */
HOST_DEVICE uint32_t internode_group_experts(uint32_t most_local)
{
	return gpu_ceil(most_local ? most_local : 1, INTERNODE_GROUPS);
}

/* Its words come no more; or those that are under way may still come, for that long: a network may
 * report immediates in any order. */
enum internode_gone {
	INTERNODE_HERE = 0,
	INTERNODE_LOST = 1,
	INTERNODE_LEFT = 2
};
#define INTERNODE_PEACE_NS 100000000u

/* An immediate: prefix of the exchange (8) | kind (3) | source (12) | slot (4) | is a run (1) | its group, where rows travel by groups (4).
 * INTERNODE_PART: 9 bits in place of the last three */
#define INTERNODE_IMMEDIATE_RUN (1u << 4)
#define INTERNODE_IMMEDIATE_GROUP 0xfu

HOST_DEVICE uint32_t internode_immediate(
	uint32_t prefix, enum internode_kind kind, uint32_t source, uint32_t slot)
{
	return prefix << 24 | (uint32_t)kind << 21 | source << 9 | slot << 5;
}

/* A command as kernels write it: the engine's struct command. */
struct internode_command {
	uint32_t turn;
	uint32_t kind_flags; /* COMMAND_WRITE, counted, with an immediate */
	uint32_t peer;
	uint32_t counter;
	uint32_t local_remote; /* 16 bits each */
	uint32_t reserved;
	uint64_t local_offset, remote_offset, bytes, reserved_offset, immediate;
};

/* Where this rank's message of a kind for a rank lies, here and there. */
struct internode_message {
	uint8_t *head;
	uint64_t local_offset, remote_offset;
	uint64_t local_rows, remote_rows; /* of the first row or result, in memory of its own */
};

struct internode_rank {
	uint32_t rank, local_remote, local_remote_rows;
	struct internode_message messages[NR_INTERNODE_KINDS];
};

/* The engine's count of writes that ended, in pinned memory: the low words of its two sums. */
struct internode_sent {
	const uint32_t *done, *failed;
};

/* One a slot, in device memory. Set by the host, but for what is marked as the kernels'. */
struct internode_table {
	uint32_t nr_internode;
	uint32_t kind_flags;
	uint8_t *to[NR_INTERNODE_PARTS][GPU_MAX_RANKS]; /* bases in place of windows: staging, or a
							   mapped rank's window */
	uint8_t *from[NR_INTERNODE_PARTS][GPU_MAX_RANKS]; /* landing, or this rank's window */
	uint32_t is_internode[GPU_MAX_RANKS];             /* 0; else its number in ranks, + 1 */
	struct internode_rank ranks[GPU_MAX_RANKS];       /* [nr_internode] */
	uint64_t run_bytes[NR_INTERNODE_KINDS];           /* of one row or result */
	uint64_t head_bytes[NR_INTERNODE_KINDS];          /* the head and all that is not sparse */
	uint32_t immediate[NR_INTERNODE_KINDS], counter[NR_INTERNODE_KINDS];
	struct internode_sent sent[NR_INTERNODE_KINDS];
	const uint8_t *words; /* [kind][R] lines, stored by the proxy */
	struct internode_command *ring;
	uint32_t ring_mask, ring_shift;
	unsigned long long *tickets, *bytes; /* of all slots: the ring's, and what was sent; the
						kernels' */
	uint32_t *results; /* [nr_internode][T] high throughput: which of a token's results go to
			      that home, a bit each; the kernels' */
	uint32_t two_hops; /* rows go once to each node, and are passed on there */
	uint32_t via[GPU_MAX_RANKS];     /* the rank that a row for this one is sent to */
	uint32_t carrier[GPU_MAX_RANKS]; /* who stores a source's rows in this rank's window */
	uint32_t place_on_node[GPU_MAX_RANKS], nr_neighbours;
	uint32_t neighbours[INTERNODE_MOST_NEIGHBOURS]; /* ranks of this node, this one too */
	uint64_t ways_offset;  /* in a dispatch message, behind all else that is not sparse */
	uint32_t way_bytes;    /* of one */
	uint32_t nr_positions; /* high throughput: as many as a window has room for */
	uint8_t *going; /* [nr_internode][words] of 16 bytes: this rank's tokens that go to each, a
			   bit each; that are sent to each, for it or to be passed on; and the
			   epoch. With gates in two hops [2][nr_internode][words]
			   (cuda/internode/groups.cuh). The kernels' */
	uint32_t *numbers; /* [T][K] of this rank's tokens: of the result of lane k's rank among
			      those that come from there; the kernels' */
	/* The kernels', apart from what others read and from each other: */
	uint32_t apart[32];
	uint32_t begun[NR_INTERNODE_KINDS]; /* commands, modulo 2^32 */
	uint32_t nr_sent_warps;             /* of the kernel that runs */
	uint32_t apart_too[64];
	uint32_t collected[NR_INTERNODE_KINDS]; /* epoch: all internode ranks' words of the kind
						   have come */
	uint32_t apart_from_next[32];
	/* Gates: */
	struct gpu_divisor by_group; /* experts of a group */
	uint32_t *runs; /* [nr_internode][INTERNODE_GROUPS] epoch: that run has come, or it is none;
			   the kernels' */
};

HOST_DEVICE uint64_t internode_align(uint64_t bytes)
{
	return (bytes + 127) / 128 * 128;
}

HOST_DEVICE uint32_t internode_going_words(uint32_t max_tokens)
{
	return gpu_ceil(max_tokens, 32);
}

/* The commands of one slot's last message of each kind to all internode ranks, at most. A run of
 * results of routes is broken at a token's. */
HOST_DEVICE uint64_t internode_most_commands(
	uint32_t nr_internode, uint32_t max_tokens, uint32_t topk, int at_home, int gated)
{
	uint64_t results = at_home ? (uint64_t)max_tokens * gpu_ceil(topk, 2) : 1,
		 rows = gated ? INTERNODE_GROUPS : 1;

	return nr_internode * (rows + results + NR_INTERNODE_KINDS);
}

#endif
