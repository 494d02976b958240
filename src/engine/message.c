/* SPDX-License-Identifier: Apache-2.0 */
/* Two-sided messages: small, in order for each peer, with credits, so that a reader who sleeps
 * fills its inbox and no more. Heartbeats and goodbyes go the same way, without credits: they are
 * not kept.
 *
 * Credits. A peer may have message_credits messages unread here; the inbox has room for that many
 * from everybody. Those that were read go back in the header of whatever is sent next, or in a
 * heartbeat of their own once half of them are waiting. */
#include "engine/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/inside.h"
#include "engine/operation.h"
#include "engine/patience.h"
#include "engine/peer.h"

#define SLEEP_SLICE_NS 20000000u

/* ---- opening --------------------------------------------------------------------------------- */

static int inbox_open(tern_engine *engine)
{
	struct inbox *inbox = &engine->inbox;
	uint64_t nr = 16, least = (uint64_t)engine->setup.nr_peers * engine->config.message_credits;

	while (nr < least)
		nr *= 2;
	inbox->mask = nr - 1;
	inbox->slots = calloc(nr, sizeof(*inbox->slots));
	inbox->memory = calloc(nr, engine->config.message_bytes);
	if (!inbox->slots || !inbox->memory)
		return fail(TERN_ERR_NOMEM, "no memory for %llu messages", (unsigned long long)nr);
	for (uint64_t i = 0; i < nr; i++) {
		atomic_store_explicit(&inbox->slots[i].turn, i, memory_order_relaxed);
		inbox->slots[i].data = inbox->memory + i * engine->config.message_bytes;
	}
	return 0;
}

int messages_open(tern_engine *engine)
{
	engine->nr_messages =
		engine->config.ring_entries < 1024 ? engine->config.ring_entries : 1024;
	engine->message_stride =
		(uint32_t)((sizeof(struct outgoing) + engine->config.message_bytes + 15) / 16 * 16);
	engine->messages = calloc(engine->nr_messages, engine->message_stride);
	if (!engine->messages || pool_open(&engine->free_messages, engine->nr_messages))
		return fail(TERN_ERR_NOMEM, "no memory for %u messages", engine->nr_messages);
	return inbox_open(engine);
}

void messages_close(tern_engine *engine)
{
	pool_close(&engine->free_messages);
	free(engine->messages);
	free(engine->inbox.slots);
	free(engine->inbox.memory);
}

struct outgoing *message_at(const tern_engine *engine, uint32_t number)
{
	return (struct outgoing *)(void *)(engine->messages +
					   (size_t)number * engine->message_stride);
}

/* ---- sending (on the proxy) ------------------------------------------------------------------ */

void message_queue(tern_engine *engine, uint32_t number, uint32_t peer, uint32_t completion)
{
	struct queue *queue = &engine->peers[peer].messages;
	struct outgoing *message = message_at(engine, number);

	message->next = NONE;
	message->completion = completion;
	if (queue->last == NONE)
		queue->first = number;
	else
		message_at(engine, queue->last)->next = number;
	queue->last = number;
	engine->nr_messages_queued++;
	if (engine->peers[peer].message_credits)
		peer_activate(engine, peer);
}

void message_free(tern_engine *engine, uint32_t number)
{
	message_at(engine, number)->header.kind = 0; /* a command that names it now is noise */
	pool_give(&engine->free_messages, number);
}

static void end_first(tern_engine *engine, uint32_t peer, int error, const char *cause)
{
	struct queue *queue = &engine->peers[peer].messages;
	uint32_t number = queue->first, completion = message_at(engine, number)->completion;

	queue->first = message_at(engine, number)->next;
	if (queue->first == NONE)
		queue->last = NONE;
	engine->nr_messages_queued--;
	message_free(engine, number);
	completion_end(engine, completion, false, error, cause);
}

/* Sends with the credits that are due. 0, TRANSPORT_AGAIN or an error. */
static int send_with_credits(
	tern_engine *engine, uint32_t peer, struct message_header *header, uint32_t bytes)
{
	struct engine_peer *p = &engine->peers[peer];
	struct transport *transport = engine->nics[p->network->first_nic].transport;
	int rc;

	header->credits = atomic_exchange_explicit(&p->unread_returned, 0, memory_order_relaxed);
	rc = transport->ops->send(transport, peer, header, (uint32_t)sizeof(*header) + bytes);
	if (rc)
		atomic_fetch_add_explicit(
			&p->unread_returned, header->credits, memory_order_relaxed);
	else
		p->told_ns = engine->now_ns;
	return rc;
}

int post_messages(tern_engine *engine, uint32_t peer)
{
	struct engine_peer *p = &engine->peers[peer];
	int nr = 0;

	while (p->messages.first != NONE && p->message_credits) {
		struct outgoing *message = message_at(engine, p->messages.first);
		int rc = send_with_credits(engine, peer, &message->header, message->header.bytes);

		if (rc == TRANSPORT_AGAIN) {
			engine->stats.again++;
			break;
		}
		if (rc == TERN_ERR_PEER_DEAD || rc == TERN_ERR_PEER_LEFT)
			return rc;
		if (!rc) {
			p->message_credits--;
			engine->stats.messages_sent++;
		}
		end_first(engine, peer, rc, rc ? tern_last_error() : "");
		nr++;
	}
	return nr;
}

bool message_control(tern_engine *engine, uint32_t peer, enum message_kind kind)
{
	struct message_header header = {.kind = kind};

	if (send_with_credits(engine, peer, &header, 0))
		return false;
	engine->stats.heartbeats_sent += kind == MESSAGE_HEARTBEAT;
	return true;
}

/* For readers that send nothing themselves. */
void messages_return_credits(tern_engine *engine)
{
	uint32_t enough = (engine->config.message_credits + 1) / 2;

	for (uint32_t p = 0; p < engine->setup.nr_peers; p++)
		if (atomic_load_explicit(&engine->peers[p].unread_returned, memory_order_relaxed) >=
				enough &&
			!peer_observe_down(&engine->peers[p]))
			message_control(engine, p, MESSAGE_HEARTBEAT);
}

void messages_peer_down(tern_engine *engine, uint32_t peer)
{
	struct engine_peer *p = &engine->peers[peer];

	while (p->messages.first != NONE)
		end_first(engine, peer, peer_observe_down(p), p->cause);
}

/* ---- arriving (on the proxy) ----------------------------------------------------------------- */

static bool keep(tern_engine *engine, uint32_t peer, const uint8_t *data, uint32_t bytes)
{
	struct inbox *inbox = &engine->inbox;
	struct inbox_slot *slot = &inbox->slots[inbox->tail & inbox->mask];

	if (bytes > engine->config.message_bytes || !slot_is_free(slot, inbox->tail))
		return false;
	slot->peer = peer;
	atomic_store_explicit(&slot->bytes, bytes, memory_order_relaxed);
	memcpy(slot->data, data, bytes);
	slot_fill(slot, inbox->tail++);
	engine->stats.messages_received++;
	wakeup_signal(&inbox->wakeup);
	return true;
}

/* The credit goes back with what is sent next, or at once where many are due. */
static bool hand_over(tern_engine *engine, uint32_t peer, const uint8_t *data, uint32_t bytes)
{
	struct engine_peer *p = &engine->peers[peer];

	engine->stats.messages_received++;
	engine->message_claim.message(engine->message_claim.ctx, peer, data, bytes);
	if (atomic_fetch_add_explicit(&p->unread_returned, 1, memory_order_relaxed) + 1 >=
			(engine->config.message_credits + 1) / 2 &&
		!peer_observe_down(p))
		message_control(engine, peer, MESSAGE_HEARTBEAT);
	return true;
}

bool message_arrived(tern_engine *engine, uint32_t peer, const void *data, uint32_t bytes)
{
	struct message_header header;
	struct engine_peer *p = &engine->peers[peer];

	if (peer >= engine->setup.nr_peers || bytes < sizeof(header) || peer_observe_down(p))
		return true;
	p->spoke = true;
	memcpy(&header, data, sizeof(header));
	if (header.credits) {
		p->message_credits += header.credits;
		peer_activate(engine, peer);
	}
	switch (header.kind) {
	case MESSAGE_DATA:
		return (engine->message_claim.message ? hand_over : keep)(engine, peer,
			(const uint8_t *)data + sizeof(header), bytes - (uint32_t)sizeof(header));
	case MESSAGE_GOODBYE:
		p->said_goodbye = true; /* failure_detector.c ends it a little later: its last
					   immediates may still be coming out of the network */
		message_control(engine, peer, MESSAGE_GOODBYE_SEEN);
		break;
	case MESSAGE_GOODBYE_SEEN:
		p->knows_goodbye = true;
		break;
	case MESSAGE_MORE:
		stay_awake(engine);
		break;
	default:
		break;
	}
	return true;
}

/* ---- receiving (any thread) ------------------------------------------------------------------ */

/* 0: taken; TERN_ERR_TIMEOUT: nothing there; TERN_ERR_CAPACITY. */
static int try_receive(tern_engine *engine, uint32_t *peer, void *data, uint32_t *bytes)
{
	struct inbox *inbox = &engine->inbox;
	uint64_t head = atomic_load_explicit(&inbox->head, memory_order_relaxed);

	for (;;) {
		struct inbox_slot *slot = &inbox->slots[head & inbox->mask];
		uint32_t length;

		if (!slot_is_filled(slot, head)) {
			uint64_t now = atomic_load_explicit(&inbox->head, memory_order_relaxed);

			if (now == head)
				return TERN_ERR_TIMEOUT;
			head = now; /* somebody else took it */
			continue;
		}
		length = atomic_load_explicit(&slot->bytes, memory_order_relaxed);
		if (length > *bytes) {
			uint32_t room = *bytes;

			*bytes = length;
			return fail(TERN_ERR_CAPACITY, "the message has %u bytes, the room %u",
				length, room);
		}
		if (!atomic_compare_exchange_strong_explicit(&inbox->head, &head, head + 1,
			    memory_order_relaxed, memory_order_relaxed))
			continue;
		*peer = slot->peer;
		*bytes = length;
		memcpy(data, slot->data, length);
		slot_give_back(slot, head, inbox->mask + 1);
		return 0;
	}
}

/* A peer that ran out of credits waits for half of them. */
static void give_credit(tern_engine *engine, uint32_t peer)
{
	uint32_t due = atomic_fetch_add_explicit(
			       &engine->peers[peer].unread_returned, 1, memory_order_relaxed) +
		       1;

	if (due == (engine->config.message_credits + 1) / 2 && engine->thread_runs)
		wakeup_signal(&engine->wakeup);
}

int tern_engine_recv(tern_engine *engine, uint32_t *peer, void *data, uint32_t *bytes, int wait_ms)
{
	struct patience patience;
	uint32_t from;
	int rc;

	if (!engine || !bytes || (!data && *bytes))
		return fail(TERN_ERR_INVALID, "engine, data or bytes is NULL");
	patience = patience_for(engine, (uint64_t)(wait_ms > 0 ? wait_ms : 0) * 1000000);
	while ((rc = try_receive(engine, &from, data, bytes)) == TERN_ERR_TIMEOUT) {
		if (!patience_left(&patience))
			return fail(TERN_ERR_TIMEOUT, "no message came within %d ms", wait_ms);
		if (!engine->setup.scheduler && patience.rounds > 500) {
			uint32_t count = wakeup_listen(&engine->inbox.wakeup);

			rc = try_receive(engine, &from, data, bytes);
			if (rc == TERN_ERR_TIMEOUT)
				wakeup_sleep(&engine->inbox.wakeup, count, SLEEP_SLICE_NS);
			wakeup_leave(&engine->inbox.wakeup);
			if (rc != TERN_ERR_TIMEOUT)
				break;
		}
	}
	if (rc)
		return rc;
	give_credit(engine, from);
	if (peer)
		*peer = from;
	return 0;
}
