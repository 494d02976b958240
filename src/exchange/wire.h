/* SPDX-License-Identifier: Apache-2.0 */
/* What one rank writes and another reads, byte for byte; native byte order (ranks of a group share
 * it). */
#ifndef TERN_EXCHANGE_WIRE_H
#define TERN_EXCHANGE_WIRE_H

#include <stdint.h>

#include "exchange/placement.h"

/* Arrival word: the epoch above, the rows announced below. Before the first round: the epoch before
 * it. */
#define WORD_RELEASED UINT32_MAX /* in place of a count: rows given back without combine */
/* likewise: stored by the engine, which knows that all is there and not how many rows that is */
#define WORD_UNCOUNTED (UINT32_MAX - 1)

/* likewise: no rows, as a plan is combined again */
#define WORD_REPLAYED (UINT32_MAX - 2)

/* A low-latency region begins with its number of rows and by which tables they were routed, then
 * rows of each local expert. */
struct region_head {
	uint32_t nr_rows;
	struct placed placed;
	uint32_t rows_of[]; /* [max_local] */
};

static inline uint64_t word_make(uint32_t epoch, uint32_t count)
{
	return (uint64_t)epoch << 32 | count;
}

static inline uint32_t word_epoch(uint64_t word)
{
	return (uint32_t)(word >> 32);
}

static inline uint32_t word_count(uint64_t word)
{
	return (uint32_t)word;
}

/* Leave word of a rank that destroyed or gave up its exchange: 0 while it takes part. */
static inline uint64_t leave_status_make(int error, int peer)
{
	return 1ull << 63 | (uint64_t)(uint16_t)(int16_t)error << 32 | (uint32_t)peer;
}

/* In its place, of a rank whose process has ended without one: on GPUs (gpu/host/leave_status.c).
 */
#define LEAVE_DIED (1ull << 62)
/* Likewise, of a rank that may well live: a change of view is wanted, so nothing is waited for. */
#define LEAVE_VIEW (1ull << 61)

static inline int leave_status_error(uint64_t leave_status)
{
	return (int16_t)(leave_status >> 32);
}

static inline int leave_status_peer(uint64_t leave_status)
{
	return (int32_t)(uint32_t)leave_status;
}

/* One route of a row to one local expert of its destination. */
struct route {
	uint32_t position; /* of the row in the received x: by the sender in high-throughput mode,
			      else by the receiver */
	uint16_t expert;   /* local */
	uint16_t k;
	float weight;
};

/* Before each row. Routes are in k order. */
struct row_header {
	uint32_t token;     /* its row in the source's x */
	uint32_t home_row;  /* where the first result of this row goes in the home's combine rows;
			       those of further routes follow it */
	uint32_t nr_routes; /* 1 to topk */
	struct route routes[];
};

/* A chunk: rows of one source for the ranks of one node, each with its payload and scales once. The
 * head, then nr_rows times: struct chunk_row; nr_places times struct chunk_place with its routes;
 * then payload and scales, which end at `bytes`. Rows begin and payloads lie at multiples of
 * CHUNK_ALIGNMENT. */
#define CHUNK_ALIGNMENT 16

struct chunk_head {
	uint32_t slot, epoch;
	uint32_t bytes; /* of the chunk that are used */
	uint32_t nr_rows;
	uint32_t nr_chunks; /* of the source's round to this node; 0 but on the last one that was
			       sent */
	uint32_t reserved[3];
};

struct chunk_row {
	uint32_t bytes; /* from this row to the next */
	uint32_t nr_places;
};

/* One of the ranks that the row is for; its struct row_header follows. */
struct chunk_place {
	uint32_t rank;
	uint32_t row; /* its number among the source's rows for that rank */
};

/* What goes ahead of the combine word where results come in pieces. */
struct results_note {
	uint32_t nr_pieces;
	uint32_t nr_rows;
} __attribute__((aligned(64)));

#endif
