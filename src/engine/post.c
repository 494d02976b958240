/* SPDX-License-Identifier: Apache-2.0 */
/* From a peer's queue to its transports: one write after the other while there are credits.
 *
 * Credits. A NIC takes `depth` writes at a time and a peer `peer_depth` of them; what is posted
 * holds one of each until it is reported. Unsignalled writes are never reported: they end with the
 * next signalled one to the same peer, which is allowed where writes are in order. At most half of
 * a NIC's and a peer's credits are held by them, so what is left always suffices to post a
 * signalled write, whose end frees the others.
 *
 * Failed. Unsignalled writes are a part of the request at the head of their peer's queue: whatever
 * is last of a request is signalled. If it fails before that, the network may still read its
 * source for some of them, so the request does not end before a closing write has: begin_closing.
 *
 * Again. What a transport puts off stays at the head of its queue and is built anew from the
 * request the next time, with the same arguments: the fence stays in the request's flags, and
 * put_off keeps the NIC and whether it is signalled.
 */
#include "engine/post.h"

#include <stdio.h>

#include "engine/inside.h"
#include "engine/message.h"
#include "engine/peer.h"
#include "engine/peer_lost.h"
#include "engine/record.h"
#include "engine/request.h"

/* more in a row lets all ranks load the same peer at the same time: 1.6x slower at 1 MB, see
 * docs/signals.md */
#define POSTS_PER_TURN 1
#define POSTS_ALONE 16 /* in a step, to the only peer that has any: no poll between two of them */
#define PAGE 4096
#define ROUSE_BYTES (2u << 20)

/* ---- the next write of a request ------------------------------------------------------------ */

uint32_t bound_nic(const struct network *network, const struct request *request)
{
	if (request->put_off)
		return (request->put_off & 0xffu) - 1;
	return request->flags & REQUEST_PINNED
		       ? network->first_nic + request->peer % network->nr_nics
		       : NONE;
}

/* The NIC for a request's next write: the one that it is bound to, else the next one of its peer's
 * network with a credit. */
static uint32_t choose_nic(
	tern_engine *engine, struct network *network, const struct request *request)
{
	uint32_t nr = network->nr_nics, bound = bound_nic(network, request);

	if (bound != NONE)
		return engine->nics[bound].under_way < engine->nics[bound].depth ? bound : NONE;
	for (uint32_t i = 0; i < nr; i++) {
		uint32_t nic = network->first_nic + network->next_nic;

		network->next_nic = network->next_nic + 1 == nr ? 0 : network->next_nic + 1;
		if (engine->nics[nic].under_way < engine->nics[nic].depth)
			return nic;
	}
	return NONE;
}

static uint64_t shorter(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* How much of a run of bytes goes into one write. */
static uint64_t piece_bytes(const tern_engine *engine, const struct request *request,
	const struct nic *nic, uint64_t total, uint64_t left)
{
	uint64_t piece = shorter(left, nic->info.write_bytes);
	uint32_t nr = nic->network->nr_nics;

	if (nr > 1 && total >= engine->config.stripe_bytes && !(request->flags & REQUEST_PINNED))
		piece = shorter(piece, (total / nr + PAGE - 1) / PAGE * PAGE);
	return piece;
}

/* Whether this piece is the last of the request's bytes. */
static bool next_piece(tern_engine *engine, struct request *request, const struct nic *nic,
	struct transport_write *write)
{
	uint64_t from = request->local_offset + request->at,
		 to = request->remote_offset + request->at, total = request->bytes;
	bool last_run = true;

	if (request->kind == REQUEST_PAGES) {
		const struct tern_paged_write *pages = &engine->operations[request->value].pages;

		from += pages->local_pages[request->page] * pages->local_stride;
		to += pages->remote_pages[request->page] * pages->remote_stride;
		last_run = request->page + 1 == pages->nr_pages;
	}
	write->bytes = piece_bytes(engine, request, nic, total, total - request->at);
	write->offset = to;
	if (write->bytes)
		write->from = request->kind == REQUEST_SIGNAL ? (const void *)&request->value
							      : request->local->base + from;
	return last_run && request->at + write->bytes == total;
}

static bool is_first_piece(const struct request *request)
{
	return !request->at && !request->page;
}

static bool keeps_order(const struct network *network, const struct request *request)
{
	return network->one_order ||
	       ((network->caps & TRANSPORT_ORDERED) && (request->flags & REQUEST_PINNED));
}

/* An immediate may travel with the last piece if that is the only one, or if pieces land in order.
 */
static bool carries_immediate(
	const struct network *network, const struct request *request, bool last)
{
	if (!(request->flags & REQUEST_IMMEDIATE))
		return false;
	return (request->flags & REQUEST_LAST) ||
	       (last && (is_first_piece(request) || keeps_order(network, request)));
}

static bool may_go_unsignalled(
	const tern_engine *engine, const struct request *request, const struct nic *nic, bool last)
{
	const struct engine_peer *peer = &engine->peers[request->peer];

	if (request->put_off)
		return request->put_off & PUT_OFF_UNSIGNALLED;
	return !last && !request->error && nic->network->one_order &&
	       nic->unsignalled < nic->depth / 2 &&
	       peer->unsignalled < engine->config.peer_depth / 2;
}

/* Where a write's bytes come from: a copy in the work request, a word of the engine's own, or the
 * region. */
static void set_source(tern_engine *engine, struct request *request, const struct nic *nic,
	uint32_t nic_number, struct transport_write *write)
{
	if (!write->bytes)
		return;
	if (write->bytes <= nic->info.inline_bytes)
		write->flags |= WRITE_INLINE;
	if (request->kind != REQUEST_SIGNAL) {
		write->region = request->local->on[nic_number];
	} else if (!(write->flags & WRITE_INLINE)) {
		engine->words[engine->free_records] = request->value;
		write->from = &engine->words[engine->free_records];
		write->region = nic->words_region;
	}
}

static bool build_write(tern_engine *engine, struct request *request, uint32_t nic_number,
	struct transport_write *write)
{
	struct nic *nic = &engine->nics[nic_number];
	bool last = true;

	*write = (struct transport_write){.peer = request->peer, .flags = WRITE_SIGNALLED};
	if (!(request->flags & REQUEST_LAST) && request->bytes)
		last = next_piece(engine, request, nic, write);
	if (write->bytes)
		write->key = &request->remote->keys[nic_number];
	if (carries_immediate(nic->network, request, last)) {
		write->flags |= WRITE_IMMEDIATE;
		write->immediate = request->immediate;
	}
	if (request->flags & REQUEST_FENCE)
		write->flags |= WRITE_FENCE;
	set_source(engine, request, nic, nic_number, write);
	if (may_go_unsignalled(engine, request, nic, last)) {
		write->flags &= ~(uint32_t)WRITE_SIGNALLED;
		write->cookie = (uint64_t)request->generation << 32 | 1u << 31 |
				request_number(engine, request);
	} else {
		write->cookie = (uint64_t)engine->records[engine->free_records].generation << 32 |
				engine->free_records;
	}
	return last;
}

/* ---- posted ---------------------------------------------------------------------------------- */

static void take_record(tern_engine *engine, struct request *request, uint32_t nic)
{
	struct record *record = &engine->records[engine->free_records];
	struct engine_peer *peer = &engine->peers[request->peer];

	engine->free_records = record->next;
	record->request = request_number(engine, request);
	record->peer = request->peer;
	record->nic = nic;
	record->covers = peer->unsignalled;
	record->used = true;
	record->given_up = false;
	record->posted_ns = engine->now_ns;
	engine->nics[nic].unsignalled -= peer->unsignalled;
	peer->unsignalled = 0;
	record_link(engine, record);
	request->outstanding++;
}

static void advance(struct request *request, const struct transport_write *write)
{
	request->at += write->bytes;
	if (request->kind == REQUEST_PAGES && request->at == request->bytes) {
		request->page++;
		request->at = 0;
	}
	request->flags &= (uint8_t)~REQUEST_FENCE;
	if (write->flags & WRITE_IMMEDIATE)
		request->flags &= (uint8_t)~REQUEST_IMMEDIATE;
}

/* More writes wait to be posted to a peer that would sleep between two of them. It hears of them in
 * the order of the writes, so there is word among so many bytes, too: one that slept has to take
 * them in slices before it hears the next. */
static void rouse(tern_engine *engine, uint32_t number)
{
	struct engine_peer *peer = &engine->peers[number];

	if (!(peer->network->caps & TRANSPORT_TARGET_POLLS) || peer->writes.first == NONE ||
		(peer->roused_ns && engine->now_ns - peer->roused_ns < AWAKE_NS / 4 &&
			peer->posted.bytes - peer->roused_bytes < ROUSE_BYTES))
		return;
	if (message_control(engine, number, MESSAGE_MORE)) {
		peer->roused_ns = engine->now_ns;
		peer->roused_bytes = peer->posted.bytes;
	}
	stay_awake(engine);
}

static void note_posted(tern_engine *engine, struct request *request, uint32_t nic,
	const struct transport_write *write, bool last)
{
	struct engine_peer *peer = &engine->peers[request->peer];

	engine->stats.writes++;
	engine->stats.bytes += write->bytes;
	peer->posted.nr_writes++;
	peer->posted.bytes += write->bytes;
	engine->nics[nic].under_way++;
	peer->under_way++;
	peer->progress_ns = engine->now_ns;
	if (write->flags & WRITE_SIGNALLED) {
		take_record(engine, request, nic);
	} else {
		peer->unsignalled++;
		engine->nics[nic].unsignalled++;
	}
	if (request->flags & REQUEST_LAST)
		request->flags &= (uint8_t)~REQUEST_IMMEDIATE;
	else
		advance(request, write);
	if (last) {
		request->flags |= REQUEST_LAST;
		queue_pop(engine, &peer->writes);
	}
	rouse(engine, request->peer);
}

static void put_off(tern_engine *engine, struct request *request, uint32_t nic,
	const struct transport_write *write)
{
	engine->stats.again++;
	if (request->put_off)
		return;
	request->put_off = (uint16_t)(nic + 1);
	if (!(write->flags & WRITE_SIGNALLED)) {
		request->put_off |= PUT_OFF_UNSIGNALLED;
		engine->nics[nic].unsignalled++;
	}
}

/* What is left of a request that failed goes no further. True: nothing of it is unsignalled, so
 * the rest of it ends by itself. Else its first piece, which the network has taken once, is to be
 * written again with a signal; what a failed operation leaves at its target means nothing. */
static bool begin_closing(tern_engine *engine, struct request *request)
{
	if (!engine->peers[request->peer].unsignalled)
		return true;
	if (request->put_off & PUT_OFF_UNSIGNALLED)
		request_take_up_again(engine, request);
	request->at = request->page = 0;
	request->flags &= (uint8_t) ~(REQUEST_IMMEDIATE | REQUEST_FENCE);
	return false;
}

static void refused(tern_engine *engine, struct request *request, int rc)
{
	struct engine_peer *peer = &engine->peers[request->peer];
	char cause[CAUSE_TEXT];

	if (rc == TERN_ERR_PEER_DEAD || rc == TERN_ERR_PEER_LEFT) {
		peer_lost(engine, request->peer, rc, tern_last_error());
	} else if (request->error) { /* the closing write */
		snprintf(cause, sizeof(cause), "writes to rank %u cannot be ended: %.120s",
			request->peer, tern_last_error());
		peer_lost(engine, request->peer, TERN_ERR_PEER_DEAD, cause);
	} else {
		request_fail(engine, request, rc, tern_last_error());
		if (peer->unsignalled)
			return;
		queue_pop(engine, &peer->writes);
		request_check_ended(engine, request);
	}
}

/* One write of the request at the head. False: nothing more goes to this peer for now. */
static bool post_head(tern_engine *engine, struct engine_peer *peer, struct request *request)
{
	struct transport_write write;
	uint32_t nic;
	bool last;
	int rc;

	if (request->error && begin_closing(engine, request)) {
		queue_pop(engine, &peer->writes);
		request_check_ended(engine, request);
		return true;
	}
	nic = peer->under_way < engine->config.peer_depth
		      ? choose_nic(engine, peer->network, request)
		      : NONE;
	if (nic == NONE)
		return false;
	last = build_write(engine, request, nic, &write);
	rc = engine->nics[nic].transport->ops->write(engine->nics[nic].transport, &write);
	if (rc == TRANSPORT_AGAIN) {
		put_off(engine, request, nic, &write);
		return false;
	}
	request_take_up_again(engine, request);
	if (rc < 0)
		refused(engine, request, rc);
	else
		note_posted(engine, request, nic, &write, last || request->error);
	return true;
}

static uint32_t pop_active(tern_engine *engine)
{
	uint32_t peer = engine->first_active;

	engine->first_active = engine->peers[peer].next_active;
	if (engine->first_active == NONE)
		engine->last_active = NONE;
	engine->peers[peer].active = false;
	return peer;
}

static uint32_t post_peer(tern_engine *engine, uint32_t number)
{
	struct engine_peer *peer = &engine->peers[number];
	struct request *request;
	int messages = post_messages(engine, number);
	uint32_t posted = messages != 0;

	if (messages < 0)
		peer_lost(engine, number, messages, tern_last_error());
	while (posted < POSTS_PER_TURN && (request = queue_first(engine, &peer->writes)) &&
		post_head(engine, peer, request))
		posted++;
	if (peer->writes.first != NONE || (peer->messages.first != NONE && peer->message_credits))
		peer_activate(engine, number);
	return posted;
}

bool post_work(tern_engine *engine, uint32_t budget)
{
	uint32_t posted = 0, last = engine->last_active;
	uint32_t peer = NONE;

	while (engine->first_active != NONE && posted < budget && peer != last) {
		peer = pop_active(engine);
		posted += post_peer(engine, peer);
	}
	while (posted && posted < POSTS_ALONE && engine->first_active != NONE &&
		engine->first_active == engine->last_active) {
		uint32_t more = post_peer(engine, pop_active(engine));

		if (!more)
			break;
		posted += more;
	}
	return posted > 0;
}
