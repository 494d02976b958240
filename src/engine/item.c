/* SPDX-License-Identifier: Apache-2.0 */
/* Items: one peer's part of an operation, from the peer's queue to its last completion. */
#include "engine/inside.h"

struct item *item_take(tern_engine *engine, uint32_t peer, enum item_kind kind)
{
	uint32_t number = engine->free_items, generation;
	struct item *item;

	if (number == NONE)
		return NULL;
	item = &engine->items[number];
	engine->free_items = item->next;
	engine->nr_free_items--;
	generation = item->generation + 1;
	*item = (struct item){.kind = kind, .generation = generation, .peer = peer, .next = NONE, .completion = NONE, .partner = NONE};
	return item;
}

uint32_t item_number(const tern_engine *engine, const struct item *item)
{
	return (uint32_t)(item - engine->items);
}

static void item_free(tern_engine *engine, struct item *item)
{
	item->generation++;
	item->next = engine->free_items;
	engine->free_items = item_number(engine, item);
	engine->nr_free_items++;
}

void peer_activate(tern_engine *engine, uint32_t peer)
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

struct item *queue_first(tern_engine *engine, struct queue *queue)
{
	return queue->first == NONE ? NULL : &engine->items[queue->first];
}

/* What was put off is posted, or will not be. */
void item_take_up_again(tern_engine *engine, struct item *item)
{
	if (item->put_off & PUT_OFF_UNSIGNALLED)
		engine->nics[(item->put_off & 0xff) - 1].unsignalled--;
	item->put_off = 0;
}

void queue_pop(tern_engine *engine, struct queue *queue)
{
	struct item *item = &engine->items[queue->first];

	item_take_up_again(engine, item);
	item->flags &= (uint8_t)~ITEM_QUEUED;
	queue->first = item->next;
	if (queue->first == NONE)
		queue->last = NONE;
	item->next = NONE;
}

void item_queue(tern_engine *engine, struct item *item)
{
	struct engine_peer *peer = &engine->peers[item->peer];
	uint32_t number = item_number(engine, item);

	item->flags |= ITEM_QUEUED;
	item->next = NONE;
	if (peer->writes.last == NONE) {
		peer->writes.first = number;
		if (!peer->nr_records)
			peer->progress_ns = engine->now_ns; /* its time-out begins now */
	} else {
		engine->items[peer->writes.last].next = number;
	}
	peer->writes.last = number;
	peer_activate(engine, item->peer);
}

void item_end(tern_engine *engine, struct item *item)
{
	if (item->local)
		item->local->uses--;
	if (item->remote)
		item->remote->uses--;
	if (item->peers)
		item->peers->uses--;
	if (!(item->flags & ITEM_TOLD)) {
		if (item->flags & ITEM_PUT)
			signal_put_ended(engine, item);
		completion_end(engine, item->completion, item->flags & ITEM_COUNTED, item->error, "an earlier part failed");
	}
	item_free(engine, item);
}

void item_fail(tern_engine *engine, struct item *item, int error, const char *cause)
{
	if (item->error)
		return;
	item->error = error;
	if (item->completion != NONE && !(item->flags & (ITEM_COUNTED | ITEM_TOLD)))
		operation_fail(&engine->operations[item->completion], error, cause);
}

/* Nothing of it is queued or under way: it has ended, or its immediate may follow its bytes. */
void item_check_ended(tern_engine *engine, struct item *item)
{
	if (item->outstanding || (item->flags & ITEM_QUEUED))
		return;
	if (!item->error && (item->flags & ITEM_LAST) && (item->flags & ITEM_IMMEDIATE))
		item_queue(engine, item);
	else
		item_end(engine, item);
}
