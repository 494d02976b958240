/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/ring.h"

#include <stdlib.h>

#include "base/error.h"

int ring_open(struct ring *ring, uint32_t entries)
{
	struct command *memory = aligned_alloc(CACHE_LINE, (size_t)entries * sizeof(*memory));

	if (!memory)
		return fail(TERN_ERR_NOMEM, "no memory for a ring of %u commands", entries);
	memset(memory, 0, (size_t)entries * sizeof(*memory));
	ring_open_over(ring, memory, entries);
	return 0;
}

void ring_open_over(struct ring *ring, struct command *memory, uint32_t entries)
{
	memset(ring, 0, sizeof(*ring));
	atomic_store_explicit(&ring->room, entries, memory_order_relaxed);
	ring->mask = entries - 1;
	ring->shift = (uint32_t)__builtin_ctz(entries);
	ring->entries = memory;
}

void ring_close(struct ring *ring)
{
	free(ring->entries);
	ring->entries = NULL;
}
