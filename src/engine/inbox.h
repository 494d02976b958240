/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that came and wait to be read: filled by the proxy, read by any thread. */
#ifndef TERN_ENGINE_INBOX_H
#define TERN_ENGINE_INBOX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/wakeup.h"

struct inbox_slot {
	_Atomic uint64_t turn;  /* position: free for it; position + 1: filled */
	_Atomic uint32_t bytes; /* read by who may lose the slot to another reader */
	uint32_t peer;
	uint8_t *data;
};

struct inbox {
	_Atomic uint64_t head;
	uint64_t tail; /* the proxy's own */
	uint64_t mask;
	struct inbox_slot *slots;
	uint8_t *memory;
	struct wakeup wakeup;
};

/* Release: what is in the slot comes before its turn. Pairs with slot_is_filled. */
static inline void slot_fill(struct inbox_slot *slot, uint64_t position)
{
	atomic_store_explicit(&slot->turn, position + 1, memory_order_release);
}

static inline bool slot_is_filled(const struct inbox_slot *slot, uint64_t position)
{
	return atomic_load_explicit(&slot->turn, memory_order_acquire) == position + 1;
}

/* Release: the reader's copy comes before the slot is filled anew. Pairs with slot_is_free. */
static inline void slot_give_back(struct inbox_slot *slot, uint64_t position, uint64_t entries)
{
	atomic_store_explicit(&slot->turn, position + entries, memory_order_release);
}

static inline bool slot_is_free(const struct inbox_slot *slot, uint64_t position)
{
	return atomic_load_explicit(&slot->turn, memory_order_acquire) == position;
}

#endif
