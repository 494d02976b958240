/* SPDX-License-Identifier: Apache-2.0 */
/* What the path of an elastic exchange knows of its group's view: who lives, and so who is gateway;
 * and what comes of views that are over. Of one that is not elastic all live, in one view. */
#ifndef TERN_PATH_VIEW_H
#define TERN_PATH_VIEW_H

#include "exchange/state.h"

struct path_view {
	_Atomic uint8_t *out; /* [R] shut out */
	uint8_t *alive;       /* [R] members, as the group has them */
	uint64_t halted;      /* the view before which nothing is relayed any more */
	bool is_new; /* this rank joins: what comes is of the view that has it, which it may not
			know yet */
	/* the proxy's own */
	uint64_t least, view; /* that chunks have, at least; of this rank's own chunks */
};

int view_open(tern_moe *moe);
void view_close(tern_moe *moe);

/* Chunks and their credits say of which view they are, in low bits: those of one that is over are
 * nobody's. 0 where it is not elastic. */
#define CHUNK_BITS 9
uint32_t view_bits(const tern_moe *moe);

/* On the proxy: a rank that is shut out; chunks, and credits, of a view that is over. */
bool view_ignores(const tern_moe *moe, uint32_t source);
bool view_is_past(const tern_moe *moe, uint32_t bits);
bool view_is_other(const tern_moe *moe, uint32_t bits);

/* The gateway of a source to another node, and its channel there: topology.h; of an elastic
 * exchange the next one that lives, where every source has a channel. */
uint32_t view_gateway(const tern_moe *moe, uint32_t source, uint32_t node);
uint32_t view_channel(const tern_moe *moe, uint32_t source, uint32_t node);
/* Whether anybody lives there. */
bool view_node_lives(const tern_moe *moe, uint32_t node);

#endif
