/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of commands: any number of writers, one reader, no locks, no clearing.
 *
 *   writer   room -= 1 (none left: room += 1, full)   ticket = tail++   fill entry[ticket]   entry.turn = lap of ticket   (release)
 *   reader   entry[head].turn == lap of head?         (acquire)         copy it   head++     room += 1                    (release)
 *
 * A writer that found room always gets an entry that is free, so a ticket is never given back and
 * no hole is left. Two atomic additions and one release store: what a GPU thread can do over PCIe
 * as well as a CPU thread.
 *
 * Why the entry is free. Tickets up to t were drawn by t + 1 writers that found room. The last of
 * them to find it (in the order of `room`) saw at least t + 1 - entries additions by the reader, so
 * it saw entry t - entries read. Its own ticket is t or an earlier one, and the additions to `tail`
 * are acquire and release, so whoever drew t comes after it, and so after that reading.
 */
#ifndef TERN_ENGINE_RING_H
#define TERN_ENGINE_RING_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "engine/command.h"
#include "base/ordering.h"

struct ring {
	_Atomic int64_t room __attribute__((aligned(CACHE_LINE)));  /* entries that nobody has asked
								       for; below 0 while writers
								       that found none put it back */
	_Atomic uint64_t tail __attribute__((aligned(CACHE_LINE))); /* next ticket */
	uint64_t head __attribute__((aligned(CACHE_LINE)));         /* the reader's alone */
	uint64_t mask;
	uint32_t shift; /* log2 of entries */
	struct command *entries;
} __attribute__((aligned(CACHE_LINE)));

int ring_open(struct ring *ring, uint32_t entries); /* a power of two */
/* Over the caller's entries, all zeros: a ring without room and tail, whose one writer draws
 * tickets by itself and never has more commands in it than entries: a device. It publishes an entry
 * as ring_publish does. */
void ring_open_over(struct ring *ring, struct command *memory, uint32_t entries);
void ring_close(struct ring *ring);

/* The first lap is 1, so that a fresh ring's zeros are no command. Modulo 2^32: an entry is at most
 * one lap behind. */
static inline uint32_t ring_lap(const struct ring *ring, uint64_t ticket)
{
	return (uint32_t)(ticket >> ring->shift) + 1;
}

/* Acquire: pairs with ring_give_back. False: full. */
static inline bool ring_find_room(struct ring *ring)
{
	if (atomic_fetch_sub_explicit(&ring->room, 1, memory_order_acq_rel) > 0)
		return true;
	atomic_fetch_add_explicit(&ring->room, 1, memory_order_release);
	return false;
}

/* Acquire and release: who draws a later ticket comes after all that drew earlier ones found room.
 */
static inline uint64_t ring_draw(struct ring *ring)
{
	return atomic_fetch_add_explicit(&ring->tail, 1, memory_order_acq_rel);
}

/* Release: the entry's other bytes, and all that the writer stored for the command, come before its
 * turn. Pairs with ring_peek. */
static inline void ring_publish(struct command *entry, uint32_t lap)
{
	atomic_store_explicit(&entry->turn, lap, memory_order_release);
}

/* One command in. False: full, nothing was done. A false answer may come one entry early while
 * others are being refused. */
static inline bool ring_put(struct ring *ring, const struct command *command)
{
	struct command *entry;
	uint64_t ticket;

	if (!ring_find_room(ring))
		return false;
	ticket = ring_draw(ring);
	entry = &ring->entries[ticket & ring->mask];
	memcpy((char *)entry + sizeof(entry->turn), (const char *)command + sizeof(entry->turn),
		sizeof(*entry) - sizeof(entry->turn));
	ring_publish(entry, ring_lap(ring, ticket));
	return true;
}

/* Acquire: pairs with ring_publish. Is there a command at the head? A writer between its ticket and
 * its turn hides those behind it for that moment. */
static inline bool ring_peek(const struct ring *ring)
{
	return atomic_load_explicit(&ring->entries[ring->head & ring->mask].turn,
		       memory_order_acquire) == ring_lap(ring, ring->head);
}

/* Release: the reader's copy comes before the entry is written anew. */
static inline void ring_give_back(struct ring *ring)
{
	ring->head++;
	atomic_fetch_add_explicit(&ring->room, 1, memory_order_release);
}

static inline bool ring_take(struct ring *ring, struct command *command)
{
	if (!ring_peek(ring))
		return false;
	memcpy((char *)command + sizeof(command->turn),
		(char *)&ring->entries[ring->head & ring->mask] + sizeof(command->turn),
		sizeof(*command) - sizeof(command->turn));
	ring_give_back(ring);
	return true;
}

#endif
