/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a peer. However it is found, it is told once, and what needs the peer ends with the
 * same cause. */
#include "engine/peer_lost.h"

#include <stdio.h>

#include "base/error.h"
#include "engine/counts.h"
#include "engine/failure_detector.h"
#include "engine/inside.h"
#include "engine/message.h"
#include "engine/nics.h"
#include "engine/peer.h"
#include "engine/record.h"
#include "engine/request.h"

static void end_records(tern_engine *engine, uint32_t peer, int error, const char *cause)
{
	for (uint32_t i = 0; i < engine->nr_records; i++) {
		struct record *record = &engine->records[i];
		struct request *request = &engine->requests[record->request];

		if (!record->used || record->peer != peer)
			continue;
		request_fail(engine, request, error, cause);
		record_free(engine, record);
		request->outstanding--;
		request_check_ended(engine, request);
	}
}

/* Unsignalled writes that no signalled one followed. There are none where its network has several
 * NICs. */
static void give_back_unsignalled(tern_engine *engine, struct engine_peer *peer)
{
	struct nic *nic = &engine->nics[peer->network->first_nic];

	nic->under_way -= peer->unsignalled;
	nic->unsignalled -= peer->unsignalled;
	peer->under_way -= peer->unsignalled;
	peer->unsignalled = 0;
}

static void end_queued(tern_engine *engine, struct engine_peer *peer, int error, const char *cause)
{
	struct request *request;

	while ((request = queue_first(engine, &peer->writes))) {
		queue_pop(engine, &peer->writes);
		request_fail(engine, request, error, cause);
		request_check_ended(engine, request);
	}
}

static void tell_claimants(tern_engine *engine, uint32_t peer, int error)
{
	for (uint32_t i = 0; i < 256; i++)
		if (engine->claims[i].peer_down)
			engine->claims[i].peer_down(engine->claims[i].ctx, peer, error);
}

void peer_lost(tern_engine *engine, uint32_t number, int error, const char *cause)
{
	struct engine_peer *peer = &engine->peers[number];

	if (peer_observe_down(peer))
		return;
	snprintf(peer->cause, sizeof(peer->cause), "%s", cause);
	peer_publish_down(peer, error);
	atomic_fetch_add_explicit(&engine->nr_down, 1, memory_order_release);
	disconnect_peer(engine, number);
	stop_watching(engine, number);
	end_queued(engine, peer, error, peer->cause);
	end_records(engine, number, error, peer->cause);
	give_back_unsignalled(engine, peer);
	messages_peer_down(engine, number);
	counts_peer_down(engine);
	for (uint32_t p = 0; p < NR_PREFIXES; p++)
		engine->spent[p] = engine->used[p];
	tell_claimants(engine, number, error);
}

struct letting_go {
	uint32_t peer;
	const char *cause;
};

static int let_go(tern_engine *engine, void *ctx)
{
	const struct letting_go *l = ctx;

	peer_lost(engine, l->peer, TERN_ERR_PEER_DEAD, l->cause);
	return 0;
}

int engine_let_go(tern_engine *engine, uint32_t peer, const char *cause)
{
	struct letting_go l = {peer, cause};

	return engine_call(engine, let_go, &l);
}

bool engine_moves_device_memory(const tern_engine *engine)
{
	return engine->caps & TRANSPORT_DEVICE_MEMORY;
}

bool engine_pins(const tern_engine *engine)
{
	return engine->caps & TRANSPORT_PINS;
}

bool engine_shuts_out(const tern_engine *engine)
{
	return engine->caps & TRANSPORT_SHUTS_OUT;
}

int engine_peer_down(const tern_engine *engine, uint32_t peer, const char **text)
{
	int error = peer_observe_down(&engine->peers[peer]);

	if (error && text)
		*text = engine->peers[peer].cause;
	return error;
}

uint64_t engine_polls(const tern_engine *engine)
{
	return polls_observe(engine);
}

uint32_t engine_nr_down(const tern_engine *engine)
{
	return atomic_load_explicit(&engine->nr_down, memory_order_acquire);
}

int tern_engine_peer(const tern_engine *engine, uint32_t peer)
{
	int error;

	if (!engine || peer >= engine->setup.nr_peers)
		return fail(TERN_ERR_INVALID, "peer %u of %u", peer,
			engine ? engine->setup.nr_peers : 0);
	error = peer_observe_down(&engine->peers[peer]);
	return error ? fail(error, "%s", engine->peers[peer].cause) : 0;
}
