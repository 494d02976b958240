/* SPDX-License-Identifier: Apache-2.0 */
/* Leave words (wire.h) of ranks that are not mapped: each comes in three immediates, in any order.
 */
#ifndef TERN_PATH_LEAVE_STATUS_H
#define TERN_PATH_LEAVE_STATUS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define LEAVE_IMMEDIATES 3

/* A leave_status in peace counts so much later. All that the rank has sent had landed before, but a
 * network may report immediates in any order, also long after the bytes; the engine's own goodbye
 * waits one look (20 ms at most) for the same reason. */
#define PEACE_NS 100000000u

struct leave_statuses {
	/* error | low << 8 | high << 16 of the peer, and a bit for each of the three */
	_Atomic uint32_t *told;    /* [R] */
	_Atomic uint64_t *told_ns; /* [R] when the last of them came */
};

int leave_statuses_open(struct leave_statuses *leave_statuses, uint32_t nr_ranks);
void leave_statuses_close(struct leave_statuses *leave_statuses);

/* Another process has this rank's place. */
void leave_statuses_forget(struct leave_statuses *leave_statuses, uint32_t rank);

/* What each of the immediates carries, in 9 bits. */
void leave_statuses_bits(uint64_t leave_status, uint32_t bits[LEAVE_IMMEDIATES]);

/* On the engine's thread: one of them came. */
void leave_statuses_note(
	struct leave_statuses *leave_statuses, uint32_t source, uint32_t bits, uint64_t now_ns);

/* Whether all of them have come; and the word then, also of a peace that does not count yet. */
bool leave_statuses_told(const struct leave_statuses *leave_statuses, uint32_t rank);
uint64_t leave_statuses_word(const struct leave_statuses *leave_statuses, uint32_t rank);

/* The word that counts, or 0. */
uint64_t leave_statuses_of(
	const struct leave_statuses *leave_statuses, uint32_t rank, uint64_t now_ns);

#endif
