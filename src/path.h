/* SPDX-License-Identifier: Apache-2.0 */
/* The seam between the protocol and what moves the bytes. A half asks where bytes for a place in a peer's window go,
 * stores them there, and publishes the arrival word of the phase when all are stored. On the mapped path that place is
 * the peer's window itself. On the engine path (path_engine.c) it is a staging copy of the window, and publishing sends
 * the piece that was filled in. */
#ifndef TERN_PATH_H
#define TERN_PATH_H

#include "exchange.h"

/* Where to store what belongs at `offset` of rank's window. */
static inline uint8_t *path_place(const tern_moe *moe, uint32_t rank, uint64_t offset)
{
	return moe->places[rank] + offset;
}

/* What was placed for a rank in a phase, and what its arrival word says. */
struct publication {
	uint32_t slot;
	enum word_kind kind;
	enum tern_phase phase;
	uint32_t count;
	uint64_t offset, bytes; /* the piece of the rank's window that was placed */
};

/* Everything placed for `rank` is complete: hand it over, publish the word and wake the rank if it sleeps for it. Fails
 * where the rank cannot be reached any more; the exchange is then over. */
int path_publish(tern_moe *moe, uint32_t rank, const struct publication *publication);

/* Before a half places anything: staging of the slot's previous round is free, or TERN_ERR_TIMEOUT as any wait. */
int path_begin(tern_moe *moe, uint32_t slot, enum word_kind kind);

/* Stores an arrival word and rings: by the rank that sends, or by its engine for a rank that is not mapped. */
void path_deliver(struct arrival *arrival, struct doorbell *bell, uint64_t word);

/* Collective: the ways to all ranks, once windows are mapped. Undone by paths_close. */
int paths_open(tern_moe *moe);
void paths_close(tern_moe *moe);

/* This rank leaves, or gives up because of `peer`: parting word as in wire.h. */
void path_part(tern_moe *moe, uint64_t parting);

/* The parting word of a rank, 0 while it takes part. */
uint64_t path_parting(const tern_moe *moe, uint32_t rank);

/* After a change of wait_ms: who is silent for that long is not yet dead. */
void path_bear_silence(const tern_moe *moe);

/* True if the rank's process is known to have ended, or its network to be gone; *text tells the latter's cause, or is
 * NULL. */
bool path_is_lost(const tern_moe *moe, uint32_t rank, const char **text);

#endif
