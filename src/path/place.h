/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks are mapped, where in their windows bytes go, and what is published of them. */
#ifndef TERN_PATH_PLACE_H
#define TERN_PATH_PLACE_H

#include "exchange/state.h"

static inline bool path_is_mapped(const tern_moe *moe, uint32_t rank)
{
	return moe->windows[rank] != NULL;
}

/* Whether some ranks of this exchange are not mapped by others: all make their part of the way to
 * them. */
static inline bool path_has_engine(const tern_moe *moe)
{
	return moe->engine != NULL;
}

/* Of a rank that is mapped. */
static inline uint8_t *path_window(const tern_moe *moe, uint32_t rank, uint64_t offset)
{
	return moe->windows[rank]->base + offset;
}

/* What was placed for a rank in a phase, and what its arrival word says. */
struct publication {
	uint32_t slot;
	enum word_kind kind;
	enum tern_phase phase;
	uint32_t count;
	/* Sent where the rank is not mapped: */
	const uint8_t *from;
	uint64_t offset, bytes; /* in its window */
};

#endif
