/* SPDX-License-Identifier: Apache-2.0 */
/* Parting words (wire.h) of ranks that are not mapped: each comes in three immediates, in any order. */
#ifndef TERN_PARTINGS_H
#define TERN_PARTINGS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define PARTING_IMMEDIATES 3

/* A parting in peace counts so much later. All that the rank has sent had landed before, but a network may
 * report immediates in any order, also long after the bytes; the engine's own goodbye waits one look (20 ms
 * at most) for the same reason. */
#define PEACE_NS 100000000u

struct partings {
	/* error | low << 8 | high << 16 of the peer, and a bit for each of the three */
	_Atomic uint32_t *told;    /* [R] */
	_Atomic uint64_t *told_ns; /* [R] when the last of them came */
};

int partings_open(struct partings *partings, uint32_t nr_ranks);
void partings_close(struct partings *partings);

/* What each of the immediates carries, in 9 bits. */
void partings_bits(uint64_t parting, uint32_t bits[PARTING_IMMEDIATES]);

/* On the engine's thread: one of them came. */
void partings_note(struct partings *partings, uint32_t source, uint32_t bits, uint64_t now_ns);

/* Whether all of them have come; and the word then, also of a peace that does not count yet. */
bool partings_told(const struct partings *partings, uint32_t rank);
uint64_t partings_word(const struct partings *partings, uint32_t rank);

/* The word that counts, or 0. */
uint64_t partings_of(const struct partings *partings, uint32_t rank, uint64_t now_ns);

#endif
