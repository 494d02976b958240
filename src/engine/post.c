/* SPDX-License-Identifier: Apache-2.0 */
/* From a peer's queue to its transports: one write after the other while there are credits.
 *
 * Credits. A NIC takes `depth` writes at a time and a peer `peer_depth` of them; what is posted holds one of each until it is reported. Unsignalled writes are never
 * reported: they end with the next signalled one to the same peer, which is allowed where writes are in order. At most half of a NIC's and
 * a peer's credits are held by them, so what is left always suffices to post a signalled write, whose end frees the others.
 *
 * Failed. Unsignalled writes are a part of the item at the head of their peer's queue: whatever is last of an item is signalled. If it fails before that, the network may
 * still read its source for some of them, so the item does not end before a closing write has: begin_closing.
 *
 * Again. What a transport puts off stays at the head of its queue and is built anew from the item the next time, with the same arguments: the fence stays in the item's
 * flags, and put_off keeps the NIC and whether it is signalled.
 */
#include "engine/inside.h"

#include <stdio.h>

#define POSTS_PER_TURN 1 /* more in a row lets all ranks load the same peer at the same time: 1.6x slower at 1 MB, see docs/signals.md */
#define PAGE 4096

/* ---- records -------------------------------------------------------------------------------------------------- */

static void record_link(tern_engine *engine, struct record *record)
{
	struct engine_peer *peer = &engine->peers[record->peer];
	uint32_t number = (uint32_t)(record - engine->records);

	record->next = NONE;
	record->previous = peer->last_record;
	if (peer->last_record == NONE)
		peer->first_record = number;
	else
		engine->records[peer->last_record].next = number;
	peer->last_record = number;
	peer->nr_records++;
}

void record_unlink(tern_engine *engine, struct record *record)
{
	struct engine_peer *peer = &engine->peers[record->peer];

	if (record->previous == NONE)
		peer->first_record = record->next;
	else
		engine->records[record->previous].next = record->next;
	if (record->next == NONE)
		peer->last_record = record->previous;
	else
		engine->records[record->next].previous = record->previous;
	peer->nr_records--;
}

/* Gives its credits back, and those of the unsignalled writes before it. */
void record_free(tern_engine *engine, struct record *record)
{
	struct nic *nic = &engine->nics[record->nic];

	if (!record->given_up)
		record_unlink(engine, record);
	nic->under_way -= 1 + record->covers;
	engine->peers[record->peer].under_way -= 1 + record->covers;
	record->used = false;
	record->generation++;
	record->next = engine->free_records;
	engine->free_records = (uint32_t)(record - engine->records);
}

/* ---- the next write of an item --------------------------------------------------------------------------------- */

/* The NIC for an item's next write: the one that put it off, its peer's own if pinned, else the next one of its peer's network with a credit. */
static uint32_t choose_nic(tern_engine *engine, struct network *network, const struct item *item)
{
	uint32_t nr = network->nr_nics;

	if (item->put_off || (item->flags & ITEM_PINNED)) {
		uint32_t nic = item->put_off ? (item->put_off & 0xffu) - 1 : network->first_nic + item->peer % nr;

		return engine->nics[nic].under_way < engine->nics[nic].depth ? nic : NONE;
	}
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
static uint64_t piece_bytes(const tern_engine *engine, const struct item *item, const struct nic *nic, uint64_t total, uint64_t left)
{
	uint64_t piece = shorter(left, nic->info.write_bytes);
	uint32_t nr = nic->network->nr_nics;

	if (nr > 1 && total >= engine->config.stripe_bytes && !(item->flags & ITEM_PINNED))
		piece = shorter(piece, (total / nr + PAGE - 1) / PAGE * PAGE);
	return piece;
}

/* Whether this piece is the last of the item's bytes. */
static bool next_piece(tern_engine *engine, struct item *item, const struct nic *nic, struct transport_write *write)
{
	uint64_t from = item->local_offset + item->at, to = item->remote_offset + item->at, total = item->bytes;
	bool last_run = true;

	if (item->kind == ITEM_PAGES) {
		const struct tern_paged_write *pages = &engine->operations[item->value].pages;

		from += pages->local_pages[item->page] * pages->local_stride;
		to += pages->remote_pages[item->page] * pages->remote_stride;
		last_run = item->page + 1 == pages->nr_pages;
	}
	write->bytes = piece_bytes(engine, item, nic, total, total - item->at);
	write->offset = to;
	if (write->bytes)
		write->from = item->kind == ITEM_SIGNAL ? (const void *)&item->value : item->local->base + from;
	return last_run && item->at + write->bytes == total;
}

static bool is_first_piece(const struct item *item)
{
	return !item->at && !item->page;
}

static bool keeps_order(const struct network *network, const struct item *item)
{
	return network->one_order || ((network->caps & TRANSPORT_ORDERED) && (item->flags & ITEM_PINNED));
}

/* An immediate may travel with the last piece if that is the only one, or if pieces land in order. */
static bool carries_immediate(const struct network *network, const struct item *item, bool last)
{
	if (!(item->flags & ITEM_IMMEDIATE))
		return false;
	return (item->flags & ITEM_LAST) || (last && (is_first_piece(item) || keeps_order(network, item)));
}

static bool may_go_unsignalled(const tern_engine *engine, const struct item *item, const struct nic *nic, bool last)
{
	const struct engine_peer *peer = &engine->peers[item->peer];

	if (item->put_off)
		return item->put_off & PUT_OFF_UNSIGNALLED;
	return !last && !item->error && nic->network->one_order && nic->unsignalled < nic->depth / 2 &&
	       peer->unsignalled < engine->config.peer_depth / 2;
}

/* Where a write's bytes come from: a copy in the work request, a word of the engine's own, or the region. */
static void set_source(tern_engine *engine, struct item *item, const struct nic *nic, uint32_t nic_number, struct transport_write *write)
{
	if (!write->bytes)
		return;
	if (write->bytes <= nic->info.inline_bytes)
		write->flags |= WRITE_INLINE;
	if (item->kind != ITEM_SIGNAL) {
		write->region = item->local->on[nic_number];
	} else if (!(write->flags & WRITE_INLINE)) {
		engine->words[engine->free_records] = item->value;
		write->from = &engine->words[engine->free_records];
		write->region = nic->words_region;
	}
}

static bool build_write(tern_engine *engine, struct item *item, uint32_t nic_number, struct transport_write *write)
{
	struct nic *nic = &engine->nics[nic_number];
	bool last = true;

	*write = (struct transport_write){.peer = item->peer, .flags = WRITE_SIGNALLED};
	if (!(item->flags & ITEM_LAST) && item->bytes)
		last = next_piece(engine, item, nic, write);
	if (write->bytes)
		write->key = &item->remote->keys[nic_number];
	if (carries_immediate(nic->network, item, last)) {
		write->flags |= WRITE_IMMEDIATE;
		write->immediate = item->immediate;
	}
	if (item->flags & ITEM_FENCE)
		write->flags |= WRITE_FENCE;
	set_source(engine, item, nic, nic_number, write);
	if (may_go_unsignalled(engine, item, nic, last)) {
		write->flags &= ~(uint32_t)WRITE_SIGNALLED;
		write->cookie = (uint64_t)item->generation << 32 | 1u << 31 | item_number(engine, item);
	} else {
		write->cookie = (uint64_t)engine->records[engine->free_records].generation << 32 | engine->free_records;
	}
	return last;
}

/* ---- posted ----------------------------------------------------------------------------------------------------- */

static void take_record(tern_engine *engine, struct item *item, uint32_t nic)
{
	struct record *record = &engine->records[engine->free_records];
	struct engine_peer *peer = &engine->peers[item->peer];

	engine->free_records = record->next;
	record->item = item_number(engine, item);
	record->peer = item->peer;
	record->nic = nic;
	record->covers = peer->unsignalled;
	record->used = true;
	record->given_up = false;
	record->posted_ns = engine->now_ns;
	engine->nics[nic].unsignalled -= peer->unsignalled;
	peer->unsignalled = 0;
	record_link(engine, record);
	item->outstanding++;
}

static void advance(struct item *item, const struct transport_write *write)
{
	item->at += write->bytes;
	if (item->kind == ITEM_PAGES && item->at == item->bytes) {
		item->page++;
		item->at = 0;
	}
	item->flags &= (uint8_t)~ITEM_FENCE;
	if (write->flags & WRITE_IMMEDIATE)
		item->flags &= (uint8_t)~ITEM_IMMEDIATE;
}

static void note_posted(tern_engine *engine, struct item *item, uint32_t nic, const struct transport_write *write, bool last)
{
	struct engine_peer *peer = &engine->peers[item->peer];

	engine->stats.writes++;
	engine->stats.bytes += write->bytes;
	peer->posted.nr_writes++;
	peer->posted.bytes += write->bytes;
	engine->nics[nic].under_way++;
	peer->under_way++;
	peer->progress_ns = engine->now_ns;
	if (write->flags & WRITE_SIGNALLED) {
		take_record(engine, item, nic);
	} else {
		peer->unsignalled++;
		engine->nics[nic].unsignalled++;
	}
	if (item->flags & ITEM_LAST)
		item->flags &= (uint8_t)~ITEM_IMMEDIATE;
	else
		advance(item, write);
	if (last) {
		item->flags |= ITEM_LAST;
		queue_pop(engine, &peer->writes);
	}
}

static void put_off(tern_engine *engine, struct item *item, uint32_t nic, const struct transport_write *write)
{
	engine->stats.again++;
	if (item->put_off)
		return;
	item->put_off = (uint16_t)(nic + 1);
	if (!(write->flags & WRITE_SIGNALLED)) {
		item->put_off |= PUT_OFF_UNSIGNALLED;
		engine->nics[nic].unsignalled++;
	}
}

/* What is left of an item that failed goes no further. True: nothing of it is unsignalled, so the rest of it ends by itself. Else its first piece, which the network has taken
 * once, is to be written again with a signal; what a failed operation leaves at its target means nothing. */
static bool begin_closing(tern_engine *engine, struct item *item)
{
	if (!engine->peers[item->peer].unsignalled)
		return true;
	if (item->put_off & PUT_OFF_UNSIGNALLED)
		item_take_up_again(engine, item);
	item->at = item->page = 0;
	item->flags &= (uint8_t) ~(ITEM_IMMEDIATE | ITEM_FENCE);
	return false;
}

static void refused(tern_engine *engine, struct item *item, int rc)
{
	struct engine_peer *peer = &engine->peers[item->peer];
	char cause[CAUSE_TEXT];

	if (rc == TERN_ERR_PEER_DEAD || rc == TERN_ERR_PEER_LEFT) {
		peer_lost(engine, item->peer, rc, tern_last_error());
	} else if (item->error) { /* the closing write */
		snprintf(cause, sizeof(cause), "writes to rank %u cannot be ended: %.120s", item->peer, tern_last_error());
		peer_lost(engine, item->peer, TERN_ERR_PEER_DEAD, cause);
	} else {
		item_fail(engine, item, rc, tern_last_error());
		if (peer->unsignalled)
			return;
		queue_pop(engine, &peer->writes);
		item_check_ended(engine, item);
	}
}

/* One write of the item at the head. False: nothing more goes to this peer for now. */
static bool post_head(tern_engine *engine, struct engine_peer *peer, struct item *item)
{
	struct transport_write write;
	uint32_t nic;
	bool last;
	int rc;

	if (item->error && begin_closing(engine, item)) {
		queue_pop(engine, &peer->writes);
		item_check_ended(engine, item);
		return true;
	}
	nic = peer->under_way < engine->config.peer_depth ? choose_nic(engine, peer->network, item) : NONE;
	if (nic == NONE)
		return false;
	last = build_write(engine, item, nic, &write);
	rc = engine->nics[nic].transport->ops->write(engine->nics[nic].transport, &write);
	if (rc == TRANSPORT_AGAIN) {
		put_off(engine, item, nic, &write);
		return false;
	}
	item_take_up_again(engine, item);
	if (rc < 0)
		refused(engine, item, rc);
	else
		note_posted(engine, item, nic, &write, last || item->error);
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
	struct item *item;
	uint32_t posted = post_messages(engine, number);

	while (posted < POSTS_PER_TURN && (item = queue_first(engine, &peer->writes)) && post_head(engine, peer, item))
		posted++;
	if (peer->writes.first != NONE || (peer->messages.first != NONE && peer->message_credits))
		peer_activate(engine, number);
	return posted;
}

/* Peers with work take turns. True: something was posted. */
bool post_work(tern_engine *engine, uint32_t budget)
{
	uint32_t posted = 0, last = engine->last_active;
	uint32_t peer = NONE;

	while (engine->first_active != NONE && posted < budget && peer != last) {
		peer = pop_active(engine);
		posted += post_peer(engine, peer);
	}
	return posted > 0;
}
