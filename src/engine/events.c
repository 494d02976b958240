/* SPDX-License-Identifier: Apache-2.0 */
/* What transports report. */
#include "engine/events.h"

#include <stdio.h>

#include "engine/counts.h"
#include "engine/inside.h"
#include "engine/message.h"
#include "engine/peer.h"
#include "engine/peer_lost.h"
#include "engine/record.h"
#include "engine/request.h"

#define EVENTS_PER_POLL 64
#define POLLS_PER_STEP 4

static void heard_from(tern_engine *engine, uint32_t peer)
{
	if (peer < engine->setup.nr_peers)
		engine->peers[peer].heard_ns = engine->now_ns;
}

/* The record of a cookie, or NULL if it has been ended in another way. */
static struct record *record_of(tern_engine *engine, uint64_t cookie)
{
	uint32_t number = (uint32_t)cookie;
	struct record *record;

	if (number >= engine->nr_records)
		return NULL;
	record = &engine->records[number];
	return record->used && record->generation == (uint32_t)(cookie >> 32) ? record : NULL;
}

static void record_ended(tern_engine *engine, struct record *record)
{
	struct request *request = &engine->requests[record->request];
	struct engine_peer *peer = &engine->peers[record->peer];

	heard_from(engine, record->peer);
	peer->progress_ns = engine->now_ns;
	record_free(engine, record);
	request->outstanding--;
	request_check_ended(engine, request);
	if (peer->writes.first != NONE)
		peer_activate(engine, record->peer);
}

/* An unsignalled write that failed: its cookie names the request, whose later signalled write will
 * end it. */
static void unsignalled_failed(tern_engine *engine, uint64_t cookie, int error, const char *cause)
{
	uint32_t number = (uint32_t)cookie & ~(1u << 31);

	if (number < engine->nr_requests &&
		engine->requests[number].generation == (uint32_t)(cookie >> 32))
		request_fail(engine, &engine->requests[number], error, cause);
}

static void write_failed(tern_engine *engine, const struct transport_event *event)
{
	struct record *record = record_of(engine, event->cookie);
	int error = event->error < 0 ? event->error : TERN_ERR_SYSTEM;
	char cause[CAUSE_TEXT];

	snprintf(cause, sizeof(cause), "a write to rank %u failed: %s", event->peer,
		event->text ? event->text : tern_strerror(error));
	if (event->cookie & 1u << 31) {
		unsignalled_failed(engine, event->cookie, error, cause);
	} else if (record) {
		request_fail(engine, &engine->requests[record->request], error, cause);
		record_ended(engine, record);
	}
}

static void immediate_arrived(tern_engine *engine, uint32_t peer, uint32_t immediate)
{
	const struct engine_claim *claim = &engine->claims[immediate >> 24];

	engine->stats.immediates++;
	engine->on_their_way[immediate >> 24]--;
	heard_from(engine, peer);
	if (claim->immediate)
		claim->immediate(claim->ctx, peer, immediate);
	else if (!engine->config.immediate ||
		 !engine->config.immediate(engine->config.immediate_ctx, peer, immediate))
		counts_arrive(engine, immediate);
}

static void peer_went(tern_engine *engine, const struct transport_event *event)
{
	int error = event->error < 0 ? event->error : TERN_ERR_PEER_DEAD;
	char cause[CAUSE_TEXT];

	if (event->peer >= engine->setup.nr_peers)
		return;
	if (engine->peers[event->peer].said_goodbye)
		error = TERN_ERR_PEER_LEFT;
	snprintf(cause, sizeof(cause), "rank %u %s: %s", event->peer,
		error == TERN_ERR_PEER_LEFT ? "left" : "is gone",
		event->text ? event->text : "the network says so");
	peer_lost(engine, event->peer, error, cause);
}

static void handle(tern_engine *engine, const struct transport_event *event)
{
	struct record *record;

	switch (event->kind) {
	case EVENT_WRITTEN:
		record = record_of(engine, event->cookie);
		if (record)
			record_ended(engine, record);
		break;
	case EVENT_IMMEDIATE:
		immediate_arrived(engine, event->peer, event->immediate);
		break;
	case EVENT_MESSAGE:
		heard_from(engine, event->peer);
		if (!message_arrived(engine, event->peer, event->data, event->bytes))
			peer_lost(engine, event->peer, TERN_ERR_PROTOCOL,
				"a peer sent more or longer messages than it had credits for");
		break;
	case EVENT_FAILED:
		write_failed(engine, event);
		break;
	case EVENT_PEER_DOWN:
		peer_went(engine, event);
		break;
	}
}

/* A transport that cannot be polled any more takes all peers of its network with it. */
static void network_lost(tern_engine *engine, struct network *network, int error)
{
	char cause[CAUSE_TEXT];

	snprintf(cause, sizeof(cause), "the network failed: %.160s", tern_last_error());
	network->failed = true;
	for (uint32_t p = 0; p < engine->setup.nr_peers; p++)
		if (engine->peers[p].network == network)
			peer_lost(engine, p, error, cause);
}

static bool poll_nic(tern_engine *engine, struct nic *nic)
{
	struct transport_event events[EVENTS_PER_POLL];
	bool any = false;

	for (int i = 0; i < POLLS_PER_STEP; i++) {
		int nr = nic->transport->ops->poll(nic->transport, events, EVENTS_PER_POLL);

		if (nr < 0)
			network_lost(engine, nic->network, nr);
		for (int e = 0; e < nr; e++)
			handle(engine, &events[e]);
		any = any || nr > 0 || nic->transport->moved;
		if (nr < EVENTS_PER_POLL)
			break;
	}
	return any;
}

bool poll_transports(tern_engine *engine)
{
	bool any = false;

	for (uint32_t i = 0; i < engine->nr_nics; i++)
		if (engine->nics[i].transport && !engine->nics[i].network->failed)
			any = poll_nic(engine, &engine->nics[i]) || any;
	return any;
}
