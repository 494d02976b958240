/* SPDX-License-Identifier: Apache-2.0 */
/* The seam between the protocol and what moves the bytes. A half asks where bytes for a place in a peer's window go, stores them
 * there, and publishes the arrival word of the phase when the peer has all of them. On the mapped path that place is the peer's window itself; a path through a
 * transfer engine would hand out staging memory and send it when the word is published. */
#ifndef TERN_PATH_H
#define TERN_PATH_H

#include "exchange.h"

/* Where to store what belongs at `offset` of rank's window. */
static inline uint8_t *path_place(const tern_moe *moe, uint32_t rank, uint64_t offset)
{
	return moe->windows[rank]->base + offset;
}

/* Everything placed for `rank` in this phase is complete: publish the word and wake the rank if it sleeps for it. */
void path_publish(tern_moe *moe, uint32_t rank, uint32_t slot, enum word_kind kind, enum tern_phase phase, uint32_t count);

#endif
