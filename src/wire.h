/* SPDX-License-Identifier: Apache-2.0 */
/* What one rank writes and another reads, byte for byte; native byte order (ranks of a group share it). */
#ifndef TERN_WIRE_H
#define TERN_WIRE_H

#include <stdint.h>

/* Arrival word: the epoch above, the rows announced below. Before the first round: the epoch before it. */
#define WORD_RELEASED UINT32_MAX /* in place of a count: rows given back without combine */

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

/* Parting word of a rank that destroyed or gave up its exchange: 0 while it takes part. */
static inline uint64_t parting_make(int error, int peer)
{
	return 1ull << 63 | (uint64_t)(uint16_t)(int16_t)error << 32 | (uint32_t)peer;
}

static inline int parting_error(uint64_t parting)
{
	return (int16_t)(parting >> 32);
}

static inline int parting_peer(uint64_t parting)
{
	return (int32_t)(uint32_t)parting;
}

/* One route of a row to one local expert of its destination. */
struct route {
	uint32_t position; /* of the row in the received x: by the sender in high-throughput mode, else by the receiver */
	uint16_t expert;   /* local */
	uint16_t k;
	float weight;
};

/* Before each row. Routes are in k order. */
struct row_header {
	uint32_t token;	    /* its row in the source's x */
	uint32_t home_row;  /* where the first result of this row goes in the home's combine rows; those of further routes follow it */
	uint32_t nr_routes; /* 1 to topk */
	struct route routes[];
};

#endif
