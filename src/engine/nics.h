/* SPDX-License-Identifier: Apache-2.0 */
/* The networks of an engine and their NICs. */
#ifndef TERN_ENGINE_NICS_H
#define TERN_ENGINE_NICS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"

/* A network that leads to some of the peers, and its NICs among the engine's: first_nic, nr_nics.
 */
struct network {
	uint32_t first_nic, nr_nics;
	uint32_t caps;   /* enum transport_caps that all of its NICs have; TRANSPORT_TARGET_POLLS
			    and _PINS: that one has */
	bool one_order;  /* all writes to a peer land in the order of posting, whichever they are */
	bool heartbeats; /* silence means something there */
	/* the proxy's own */
	bool failed;       /* it could not be polled any more */
	uint32_t next_nic; /* of its own, whose turn it is */
};

struct nic {
	struct transport *transport; /* NULL: closed, as its network leads to no peer of this rank
				      */
	struct network *network;
	struct transport_info info;
	uint32_t depth, under_way;
	uint32_t unsignalled; /* of these, since the last signalled write of their peer; and those
				 that were put off */
	struct transport_region *words_region;
	uint64_t starved_ns; /* the last look at which it had no credit left */
};

/* While an engine is opened, in this order. */
void number_networks(tern_engine *engine);
int open_networks(tern_engine *engine);
void describe_networks(tern_engine *engine);
int register_words(tern_engine *engine);

void close_networks(tern_engine *engine);

/* On the proxy, where it runs. */
int connect_peer(tern_engine *engine, uint32_t peer, const struct engine_address *address);
void disconnect_peer(tern_engine *engine, uint32_t peer);

#endif
