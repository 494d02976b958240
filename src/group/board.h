/* SPDX-License-Identifier: Apache-2.0 */
/* What members of an elastic group show each other in shared memory: each has a window of its own,
 * which lives as long as somebody maps it. So whoever dies leaves what it has shown, whole. */
#ifndef TERN_GROUP_BOARD_H
#define TERN_GROUP_BOARD_H

#include "base/ordering.h"
#include "group/agreement.h"

#define BOARD_GATHER_BYTES 16384
#define RECORD_WORDS (sizeof(struct agreement_record) / sizeof(uint64_t))
_Static_assert(sizeof(struct agreement_record) % sizeof(uint64_t) == 0, "a record is words");

/* A part of an allgather: of the gatherings with an even number, or of those with an odd one. */
struct gathered {
	_Atomic uint64_t number;
	uint32_t nr;     /* bytes of it */
	uint64_t coming; /* in a copy: the number of the one that `nr` bytes have come of */
	uint8_t bytes[BOARD_GATHER_BYTES];
} __attribute__((aligned(CACHE_LINE)));

struct board {
	_Atomic uint64_t wanted; /* the highest view that somebody wants; written by all */
	_Atomic uint64_t noticed_ns __attribute__((aligned(CACHE_LINE))); /* by the owner: when */
	_Atomic uint64_t version; /* of the owner's record; 0: none */
	_Atomic uint64_t record[2][RECORD_WORDS];
	struct gathered gathered[2];
};

/* The owner's record, whose version has risen by one. */
void board_show(struct board *board, const struct agreement_record *record);
/* The last that was shown; false: none, or the owner is just showing one. Any rank. */
bool board_look(const struct board *board, struct agreement_record *record);

/* Somebody wants this view. */
void board_want(struct board *board, uint64_t view);

#endif
