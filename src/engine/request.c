/* SPDX-License-Identifier: Apache-2.0 */
/* Requests: one peer's part of an operation, from the peer's queue to its last completion. */
#include "engine/request.h"

#include "engine/inside.h"
#include "engine/operation.h"
#include "engine/peer.h"

struct request *request_take(tern_engine *engine, uint32_t peer, enum request_kind kind)
{
	uint32_t number = engine->free_requests, generation;
	struct request *request;

	if (number == NONE)
		return NULL;
	request = &engine->requests[number];
	engine->free_requests = request->next;
	engine->nr_free_requests--;
	generation = request->generation + 1;
	*request = (struct request){.kind = kind,
		.generation = generation,
		.peer = peer,
		.next = NONE,
		.completion = NONE,
		.partner = NONE};
	return request;
}

uint32_t request_number(const tern_engine *engine, const struct request *request)
{
	return (uint32_t)(request - engine->requests);
}

static void request_free(tern_engine *engine, struct request *request)
{
	request->generation++;
	request->next = engine->free_requests;
	engine->free_requests = request_number(engine, request);
	engine->nr_free_requests++;
}

struct request *queue_first(tern_engine *engine, struct queue *queue)
{
	return queue->first == NONE ? NULL : &engine->requests[queue->first];
}

void request_take_up_again(tern_engine *engine, struct request *request)
{
	if (request->put_off & PUT_OFF_UNSIGNALLED)
		engine->nics[(request->put_off & 0xff) - 1].unsignalled--;
	request->put_off = 0;
}

void queue_pop(tern_engine *engine, struct queue *queue)
{
	struct request *request = &engine->requests[queue->first];

	request_take_up_again(engine, request);
	request->flags &= (uint8_t)~REQUEST_QUEUED;
	queue->first = request->next;
	if (queue->first == NONE)
		queue->last = NONE;
	request->next = NONE;
}

void request_queue(tern_engine *engine, struct request *request)
{
	struct engine_peer *peer = &engine->peers[request->peer];
	uint32_t number = request_number(engine, request);

	request->flags |= REQUEST_QUEUED;
	request->next = NONE;
	if (peer->writes.last == NONE) {
		peer->writes.first = number;
		if (!peer->nr_records)
			peer->progress_ns = engine->now_ns; /* its time-out begins now */
	} else {
		engine->requests[peer->writes.last].next = number;
	}
	peer->writes.last = number;
	peer_activate(engine, request->peer);
}

void request_fail(tern_engine *engine, struct request *request, int error, const char *cause)
{
	if (request->error)
		return;
	request->error = error;
	if (request->completion != NONE && !(request->flags & (REQUEST_COUNTED | REQUEST_TOLD)))
		operation_fail(&engine->operations[request->completion], error, cause);
}

/* Its signal, if that is still parked, is not sent. It may have gone and its request be another's
 * by now: then the generation differs. */
static void put_ended(tern_engine *engine, struct request *put)
{
	struct request *signal = put->partner == NONE ? NULL : &engine->requests[put->partner];

	engine->operations[put->completion].puts_pending--;
	if (put->error && signal && signal->generation == (uint32_t)put->value &&
		!(signal->flags & REQUEST_QUEUED) && !signal->outstanding)
		request_fail(engine, signal, put->error, engine->operations[put->completion].cause);
}

static void tell(tern_engine *engine, struct request *request, const char *cause)
{
	if (request->flags & REQUEST_PUT)
		put_ended(engine, request);
	completion_end(engine, request->completion, request->flags & REQUEST_COUNTED,
		request->error, cause);
}

void request_give_up(tern_engine *engine, struct request *request, int error, const char *cause)
{
	request_fail(engine, request, error, cause);
	if (request->flags & REQUEST_TOLD)
		return;
	request->flags |= REQUEST_TOLD;
	tell(engine, request, cause);
}

static void request_end(tern_engine *engine, struct request *request)
{
	if (request->local)
		request->local->uses--;
	if (request->remote)
		request->remote->uses--;
	if (request->peers)
		request->peers->uses--;
	if (!(request->flags & REQUEST_TOLD))
		tell(engine, request, "an earlier part failed");
	request_free(engine, request);
}

/* Nothing of it is queued or under way: it has ended, or its immediate may follow its bytes. */
void request_check_ended(tern_engine *engine, struct request *request)
{
	if (request->outstanding || (request->flags & REQUEST_QUEUED))
		return;
	if (!request->error && (request->flags & REQUEST_LAST) &&
		(request->flags & REQUEST_IMMEDIATE))
		request_queue(engine, request);
	else
		request_end(engine, request);
}
