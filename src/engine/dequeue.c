/* SPDX-License-Identifier: Apache-2.0 */
/* From the ring to requests. Whoever wrote a command may be a GPU kernel: every number is checked
 * before it is followed. A command for which there are no requests left is held, with how far it
 * has come, and so are those behind it. */
#include "engine/dequeue.h"

#include <stdio.h>
#include <string.h>

#include "base/trace.h"
#include "engine/counts.h"
#include "engine/inside.h"
#include "engine/memory.h"
#include "engine/message.h"
#include "engine/operation.h"
#include "engine/peer.h"
#include "engine/request.h"
#include "engine/signal.h"

/* A command that is not carried out. An operation ends in take_with_operation. */
static void refuse(tern_engine *engine, const struct command *c, int error, const char *cause)
{
	bool counted = c->flags & COMMAND_COUNTED;

	if (!counted && c->completion < engine->config.nr_operations && error)
		operation_fail(&engine->operations[c->completion], error, cause);
	else
		completion_end(engine, counted ? c->completion : NONE, counted, error, cause);
}

static void refuse_peer(tern_engine *engine, const struct command *c, uint32_t peer)
{
	refuse(engine, c, peer_observe_down(&engine->peers[peer]), engine->peers[peer].cause);
}

static bool bad_numbers(const tern_engine *engine, const struct command *c)
{
	bool counted = c->flags & COMMAND_COUNTED;

	if (c->peer >= engine->setup.nr_peers)
		return true;
	if (c->completion != COMMAND_NONE &&
		(counted ? !counter_of(engine, c->completion)
			 : c->completion >= engine->config.nr_operations))
		return true;
	return c->bytes &&
	       (!in_region(engine->regions[c->local], c->local_offset, c->bytes) ||
		       !in_remote(engine->remotes[c->remote], c->peer, c->remote_offset, c->bytes));
}

static bool take_write(tern_engine *engine, const struct command *c)
{
	struct request *request;

	if (bad_numbers(engine, c)) {
		refuse(engine, c, TERN_ERR_INVALID,
			"a command names a peer, region, offset or completion that there is none "
			"of");
		return true;
	}
	if (peer_observe_down(&engine->peers[c->peer])) {
		refuse_peer(engine, c, c->peer);
		return true;
	}
	if (!c->bytes && !(c->flags & COMMAND_IMMEDIATE)) {
		refuse(engine, c, 0, "");
		return true;
	}
	request = request_take(engine, c->peer, REQUEST_WRITE);
	if (!request)
		return false;
	request_set_memory(request, c->bytes ? engine->regions[c->local] : NULL,
		c->bytes ? engine->remotes[c->remote] : NULL);
	request_set_completion(engine, request, c->completion, c->flags & COMMAND_COUNTED);
	request->local_offset = c->local_offset;
	request->remote_offset = c->remote_offset;
	request->bytes = c->bytes;
	if (c->flags & COMMAND_IMMEDIATE) {
		request->flags |= REQUEST_IMMEDIATE;
		request->immediate = (uint32_t)c->value;
		engine->on_their_way[request->immediate >> 24]++;
	}
	request_queue(engine, request);
	return true;
}

static bool take_pages(tern_engine *engine, const struct command *c)
{
	const struct tern_paged_write *pages = &engine->operations[c->completion].pages;
	struct request *request;

	if (peer_observe_down(&engine->peers[pages->peer])) {
		refuse_peer(engine, c, pages->peer);
		return true;
	}
	request = request_take(engine, pages->peer, REQUEST_PAGES);
	if (!request)
		return false;
	request_set_memory(request, pages->local, pages->remote);
	request_set_completion(engine, request, c->completion, false);
	request->local_offset = pages->local_offset;
	request->remote_offset = pages->remote_offset;
	request->bytes = pages->page_bytes;
	request->value = c->completion;
	if (pages->flags & TERN_IMMEDIATE) {
		request->flags |= REQUEST_IMMEDIATE;
		request->immediate = pages->immediate;
	}
	request_queue(engine, request);
	return true;
}

/* One member's request, from its template. */
static bool take_member(tern_engine *engine, uint32_t number, struct tern_peers *peers, uint32_t i,
	const struct tern_slice *slice, struct tern_region *local, bool immediate)
{
	const struct work_template *member = &peers->members[i];
	struct request *request;

	if (!slice->bytes && !immediate)
		return true;
	if (peer_observe_down(&engine->peers[member->peer])) {
		operation_fail(&engine->operations[number],
			peer_observe_down(&engine->peers[member->peer]),
			engine->peers[member->peer].cause);
		return true;
	}
	request = request_take(engine, member->peer, REQUEST_WRITE);
	if (!request)
		return false;
	request_set_memory(
		request, slice->bytes ? local : NULL, slice->bytes ? member->remote : NULL);
	request_set_completion(engine, request, number, false);
	request->peers = peers;
	peers->uses++;
	request->local_offset = slice->local_offset;
	request->remote_offset = slice->remote_offset;
	request->bytes = slice->bytes;
	if (immediate) {
		request->flags |= REQUEST_IMMEDIATE;
		request->immediate = slice->immediate;
	}
	request_queue(engine, request);
	return true;
}

static bool take_scatter(tern_engine *engine, const struct command *c)
{
	const struct tern_scatter *scatter = &engine->operations[c->completion].scatter;

	for (; engine->command_at < scatter->peers->nr; engine->command_at++)
		if (!take_member(engine, c->completion, scatter->peers, engine->command_at,
			    &scatter->slices[engine->command_at], scatter->local,
			    scatter->flags & TERN_IMMEDIATE))
			return false;
	return true;
}

/* What is sent is a part of the operation, and so is what is expected. */
static bool take_barrier(tern_engine *engine, const struct command *c)
{
	struct operation *operation = &engine->operations[c->completion];
	struct tern_slice nothing = {.immediate = operation->expect.immediate};

	for (; engine->command_at < operation->expect.peers->nr; engine->command_at++)
		if (!take_member(engine, c->completion, operation->expect.peers, engine->command_at,
			    &nothing, NULL, true))
			return false;
	operation->pending++;
	counts_expect(engine, c->completion);
	return true;
}

static bool take_expect(tern_engine *engine, const struct command *c)
{
	engine->operations[c->completion].pending++;
	counts_expect(engine, c->completion);
	return true;
}

static bool take_call(tern_engine *engine, const struct command *c)
{
	struct operation *operation = &engine->operations[c->completion];
	int rc = operation->call.fn(engine, operation->call.ctx);

	if (rc)
		operation_fail(operation, rc, tern_last_error());
	return true;
}

static bool take_send(tern_engine *engine, const struct command *c)
{
	if (c->peer >= engine->setup.nr_peers || c->local_offset >= engine->nr_messages ||
		(c->flags & COMMAND_COUNTED) ||
		message_at(engine, (uint32_t)c->local_offset)->header.kind != MESSAGE_DATA) {
		refuse(engine, c, TERN_ERR_INVALID,
			"a command names a peer or message that there is none of");
		return true;
	}
	if (peer_observe_down(&engine->peers[c->peer])) {
		message_free(engine, (uint32_t)c->local_offset);
		refuse_peer(engine, c, c->peer);
		return true;
	}
	if (c->completion < engine->config.nr_operations)
		engine->operations[c->completion].pending++;
	message_queue(engine, (uint32_t)c->local_offset, c->peer, c->completion);
	return true;
}

/* The operation's parts are counted while they are made, and one more, so that it does not end
 * before all are. */
static bool take_with_operation(tern_engine *engine, const struct command *c,
	bool (*take)(tern_engine *, const struct command *))
{
	uint32_t number = c->completion;

	if (!engine->operations[number].pending)
		engine->operations[number].pending = 1;
	if (!take(engine, c))
		return false;
	operation_part_ended(engine, number);
	return true;
}

/* What a command of each kind needs to be done, and the kind of operation that it belongs to. */
static const struct {
	bool (*take)(tern_engine *engine, const struct command *command);
	enum operation_kind operation;
	bool alone; /* does without an operation, too */
} kinds[] = {
	[COMMAND_WRITE] = {take_write, OPERATION_PLAIN, true},
	[COMMAND_PAGES] = {take_pages, OPERATION_PAGES, false},
	[COMMAND_SCATTER] = {take_scatter, OPERATION_SCATTER, false},
	[COMMAND_EXPECT] = {take_expect, OPERATION_EXPECT, false},
	[COMMAND_BARRIER] = {take_barrier, OPERATION_EXPECT, false},
	[COMMAND_PUT] = {signal_take_put, OPERATION_GROUP, false},
	[COMMAND_SEND] = {take_send, OPERATION_PLAIN, true},
	[COMMAND_CALL] = {take_call, OPERATION_CALL, false},
};

/* The operation is alive and of the kind that it should be. */
static bool has_operation(tern_engine *engine, const struct command *c)
{
	const struct operation *operation = &engine->operations[c->completion];

	if ((c->flags & COMMAND_COUNTED) || c->completion >= engine->config.nr_operations)
		return false;
	return atomic_load_explicit(&operation->holders, memory_order_relaxed) &&
	       operation->kind == kinds[c->kind].operation;
}

static bool take_command(tern_engine *engine, const struct command *c)
{
	if (c->kind >= sizeof(kinds) / sizeof(kinds[0]) || !kinds[c->kind].take) {
		engine->stats.failed++;
		return true;
	}
	if (!has_operation(engine, c)) {
		if (kinds[c->kind].alone &&
			((c->flags & COMMAND_COUNTED) || c->completion == COMMAND_NONE))
			return kinds[c->kind].take(engine, c);
		engine->stats.failed++;
		return true;
	}
	return c->kind == COMMAND_PUT ? signal_take_put(engine, c)
				      : take_with_operation(engine, c, kinds[c->kind].take);
}

bool commands_wait(const tern_engine *engine)
{
	for (uint32_t i = 0; i < engine->nr_rings; i++)
		if (ring_peek(engine->rings[i]))
			return true;
	return ring_peek(&engine->ring);
}

/* Callers' first: they can be no more than wait for room, and a device's ring has few. */
static bool next_command(tern_engine *engine)
{
	bool found = ring_take(&engine->ring, &engine->command);

	for (uint32_t i = 0; i < engine->nr_rings && !found; i++)
		found = ring_take(engine->rings[i], &engine->command);
	return found;
}

bool take_commands(tern_engine *engine, uint32_t budget)
{
	uint32_t drained = engine->stall.peer;
	bool taken = false;

	for (uint32_t i = 0; i < budget && !signal_stalled(engine); i++) {
		if (!engine->command_held) {
			if (!next_command(engine))
				break;
			engine->command_held = true;
			engine->command_at = 0;
			engine->stats.operations++;
			trace_moment(TRACE_COMMAND, TRACE_NOBODY);
		}
		if (!take_command(engine, &engine->command))
			break;
		engine->command_held = false;
		taken = true;
	}
	return taken || engine->stall.peer != drained; /* a drain of all peers goes on by one a
							  step: who steps until nothing happens must
							  not stop */
}
