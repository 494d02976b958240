/* SPDX-License-Identifier: Apache-2.0 */
/* A peer that was lost, or never there, and now is: another process has its number. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "engine/failure_detector.h"
#include "engine/inside.h"
#include "engine/message.h"
#include "engine/peer.h"
#include "engine/peer_lost.h"

void engine_networks(const tern_engine *engine, struct engine_networks *networks)
{
	*networks = (struct engine_networks){.nr = engine->nr_networks};
	for (uint32_t n = 0; n < engine->nr_networks; n++) {
		memcpy(networks->each[n].name, engine->network_names[n],
			sizeof(networks->each[n].name));
		networks->each[n].nr_nics = engine->networks[n].nr_nics;
	}
}

uint32_t engine_network_of(const tern_engine *engine, uint32_t peer)
{
	return (uint32_t)(engine->peers[peer].network - engine->networks);
}

static int look_up_address(tern_engine *engine, void *ctx)
{
	return engine_address(engine, ctx);
}

int engine_own_address(tern_engine *engine, struct engine_address *mine)
{
	return engine_call(engine, look_up_address, mine);
}

/* ---- a peer that comes ----------------------------------------------------------------------- */

struct admission {
	uint32_t peer, network;
	const struct engine_address *address;
	int lifeline;
};

/* As it was at first. Credits of writes are all back, as its records have ended; it is in the line
 * of those that have something to be posted, or is not. */
static void begin_anew(tern_engine *engine, struct engine_peer *peer)
{
	atomic_store_explicit(&peer->unread_returned, 0, memory_order_relaxed);
	peer->message_credits = engine->config.message_credits;
	peer->fence_pending = peer->spoke = peer->greeted = false;
	peer->said_goodbye = peer->goodbye_sent = peer->knows_goodbye = false;
	peer->suspect_ns = peer->roused_ns = peer->roused_bytes = 0;
	peer->heard_ns = peer->told_ns = peer->progress_ns = engine->now_ns;
}

static int admit(tern_engine *engine, void *ctx)
{
	const struct admission *a = ctx;
	struct engine_peer *peer = &engine->peers[a->peer];
	int rc;

	peer_lost(engine, a->peer, TERN_ERR_PEER_DEAD, "another process takes its place");
	if (a->network >= engine->nr_networks ||
		!engine->nics[engine->networks[a->network].first_nic].transport)
		return fail(TERN_ERR_UNSUPPORTED,
			"rank %u is reached by %s, which is not open here", a->peer,
			a->network < engine->nr_networks ? engine->network_names[a->network]
							 : "no network of this group");
	peer->network = &engine->networks[a->network];
	rc = connect_peer(engine, a->peer, a->address);
	if (!rc && a->lifeline >= 0 && !watch_process(engine, a->peer, a->lifeline))
		rc = fail_errno("watching rank %u's process", a->peer);
	if (rc) {
		disconnect_peer(engine, a->peer);
		return rc;
	}
	begin_anew(engine, peer);
	snprintf(peer->why, sizeof(peer->why), "%s, by which it joined",
		engine->network_names[a->network]);
	atomic_fetch_sub_explicit(&engine->nr_down, 1, memory_order_release);
	peer_publish_down(peer, 0);
	return 0;
}

int engine_admit(tern_engine *engine, uint32_t peer, uint32_t network,
	const struct engine_address *address, int lifeline)
{
	struct admission a = {peer, network, address, lifeline};

	return engine_call(engine, admit, &a);
}

struct meeting {
	uint32_t peer;
	bool met;
};

static int look_whether_met(tern_engine *engine, void *ctx)
{
	struct meeting *m = ctx;
	struct engine_peer *peer = &engine->peers[m->peer];

	if (peer_observe_down(peer))
		return 0;
	if (!peer->greeted)
		peer->greeted = message_control(engine, m->peer, MESSAGE_HEARTBEAT);
	m->met = peer->greeted && peer->spoke;
	return 0;
}

bool engine_has_met(tern_engine *engine, uint32_t peer)
{
	struct meeting m = {.peer = peer};

	return !engine_call(engine, look_whether_met, &m) && m.met;
}

/* ---- who comes ------------------------------------------------------------------------------- */

void peers_begin_lost(tern_engine *engine)
{
	for (uint32_t p = 0; p < engine->setup.nr_peers; p++) {
		struct engine_peer *peer = &engine->peers[p];

		snprintf(peer->why, sizeof(peer->why), "nobody was met there");
		if (p == engine->setup.self)
			continue;
		snprintf(peer->cause, sizeof(peer->cause), "rank %u has not been met", p);
		peer_publish_down(peer, TERN_ERR_PEER_DEAD);
		atomic_fetch_add_explicit(&engine->nr_down, 1, memory_order_release);
	}
}
