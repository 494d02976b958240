/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of an elastic group's gatherings, as each rank counts them. They rise by one, but for
 * a newcomer's first, which is GATHERINGS_SKIPPED beyond the last that somebody had begun when it
 * was let in. Pure. */
#ifndef TERN_GROUP_GATHERINGS_H
#define TERN_GROUP_GATHERINGS_H

#include "group/agreement.h"

/* Numbers of gatherings that follow each other: a newcomer's first has the second. Members are at
 * most one gathering apart, so there are at most two that one of them has not come to. */
struct jump {
	uint64_t from, to; /* to 0: none */
};

struct gatherings {
	uint64_t number;      /* of the one under way, or of the last one */
	struct jump jumps[2]; /* those to come, of which the second is behind the first */
	uint64_t entry;       /* the last that was a newcomer's first */
	uint64_t complete;    /* the last that this rank has completed */
};

/* A newcomer's first is this one. */
static inline void gatherings_jump(struct gatherings *g, uint64_t to)
{
	bool is_past = !g->jumps[0].to || g->number >= g->jumps[0].to || g->jumps[0].to == to;

	g->jumps[is_past ? 0 : 1] = (struct jump){to - GATHERINGS_SKIPPED, to};
}

/* Of a newcomer, in the view that has it. */
static inline void gatherings_come(struct gatherings *g, uint64_t first)
{
	g->number = g->complete = first - GATHERINGS_SKIPPED;
	gatherings_jump(g, first);
}

static inline bool gatherings_entry_is_next(const struct gatherings *g)
{
	return g->jumps[0].to && g->number == g->jumps[0].from;
}

static inline void gatherings_next(struct gatherings *g)
{
	if (!gatherings_entry_is_next(g)) {
		g->number++;
		return;
	}
	g->number = g->entry = g->jumps[0].to;
	g->jumps[0] = g->jumps[1];
	g->jumps[1] = (struct jump){0, 0};
}

#endif
