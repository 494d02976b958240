/* SPDX-License-Identifier: Apache-2.0 */
/* A peer as the proxy sees it: its queues, credits and times, whether it is down, and the line of
 * those that have something to be posted. */
#ifndef TERN_ENGINE_PEER_H
#define TERN_ENGINE_PEER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/inside.h"

#define WHY_TEXT 256

struct queue {
	uint32_t first, last;
};

struct engine_peer {
	_Atomic int down; /* 0, or why: peer_publish_down, peer_observe_down */
	char cause[CAUSE_TEXT];
	_Atomic uint32_t unread_returned; /* messages that were read and whose credits have not gone
					     back */
	struct network *network;          /* that leads to it; set once */
	/* the proxy's own */
	struct queue writes, messages;
	uint32_t next_active;
	bool active, fence_pending, spoke; /* spoke: a message of its came */
	bool greeted;                      /* it was told something since it was admitted */
	uint32_t under_way;                /* credits taken */
	uint32_t unsignalled;              /* of these, since the last signalled write */
	uint32_t nr_records, first_record, last_record;
	uint32_t message_credits;
	uint64_t heard_ns, told_ns, progress_ns;
	struct engine_traffic posted;
	uint64_t roused_ns, roused_bytes; /* when it was last told that more comes, and of
					     what was posted until then */
	bool said_goodbye, goodbye_sent, knows_goodbye; /* it leaves; it was told that this rank
							   does; it has answered */
	uint64_t suspect_ns; /* when it was first seen gone; 0: it was not */
	char why[WHY_TEXT];  /* its network leads to it; set once */
};

/* Release: the cause comes before it. Pairs with peer_observe_down. */
static inline void peer_publish_down(struct engine_peer *peer, int error)
{
	atomic_store_explicit(&peer->down, error, memory_order_release);
}

static inline int peer_observe_down(const struct engine_peer *peer)
{
	return atomic_load_explicit(&peer->down, memory_order_acquire);
}

/* To the end of the line: there is something to be posted to it. */
static inline void peer_activate(tern_engine *engine, uint32_t peer)
{
	struct engine_peer *p = &engine->peers[peer];

	if (p->active)
		return;
	p->active = true;
	p->next_active = NONE;
	if (engine->last_active == NONE)
		engine->first_active = peer;
	else
		engine->peers[engine->last_active].next_active = peer;
	engine->last_active = peer;
}

#endif
