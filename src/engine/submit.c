/* SPDX-License-Identifier: Apache-2.0 */
/* What callers do: check, take an operation if somebody wants to know its end, put a command into
 * the ring. */
#include "engine/inside.h"

#include <string.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "engine/memory.h"
#include "engine/message.h"
#include "engine/operation.h"
#include "engine/patience.h"

static uint64_t wait_ns_of(const tern_engine *engine, uint32_t flags)
{
	return flags & TERN_TRY ? 0 : (uint64_t)engine->config.wait_ms * 1000000;
}

static void wake(tern_engine *engine)
{
	if (engine->thread_runs)
		wakeup_signal(&engine->wakeup);
}

static int submit(tern_engine *engine, const struct command *command, uint32_t flags)
{
	struct patience patience;

	if (ring_put(&engine->ring, command)) {
		wake(engine);
		return 0;
	}
	patience = patience_for(engine, wait_ns_of(engine, flags));
	while (patience_left(&patience))
		if (ring_put(&engine->ring, command)) {
			wake(engine);
			return 0;
		}
	return fail(
		TERN_ERR_TIMEOUT, "the ring of %u commands is full", engine->config.ring_entries);
}

/* ---- operations ------------------------------------------------------------------------------ */

static int take_number(tern_engine *engine, enum operation_kind kind, tern_done_fn done, void *ctx,
	bool with_handle, uint32_t flags, uint32_t *number)
{
	struct patience patience;

	*number = operation_take(engine, kind, done, ctx, with_handle);
	if (*number != NONE)
		return 0;
	patience = patience_for(engine, wait_ns_of(engine, flags));
	while (patience_left(&patience)) {
		*number = operation_take(engine, kind, done, ctx, with_handle);
		if (*number != NONE)
			return 0;
	}
	return fail(TERN_ERR_TIMEOUT,
		"%u operations are under way or wait to be asked for, as many as nr_operations",
		engine->config.nr_operations);
}

/* The command goes in, or the operation that was taken for it goes back. */
static int submit_operation(
	tern_engine *engine, struct command *command, uint32_t flags, tern_op *op)
{
	uint32_t number = command->completion;
	tern_op handle = number == NONE ? 0 : operation_handle(engine, number);
	int rc = submit(engine, command, flags);

	if (rc && number != NONE) {
		if (op)
			operation_drop(engine, number);
		operation_drop(engine, number);
	}
	if (!rc && op)
		*op = handle;
	return rc;
}

static int check_memory(const tern_engine *engine, uint32_t peer, const tern_region *local,
	const tern_remote *remote, uint64_t local_offset, uint64_t remote_offset, uint64_t bytes)
{
	if (peer >= engine->setup.nr_peers)
		return fail(TERN_ERR_INVALID, "peer %u of %u", peer, engine->setup.nr_peers);
	if (!bytes)
		return 0;
	if (!local || !remote || local->engine != engine || remote->engine != engine)
		return fail(TERN_ERR_INVALID, "local or remote is NULL or another engine's");
	if (!in_region(local, local_offset, bytes))
		return fail(TERN_ERR_INVALID, "%llu bytes at %llu of a region of %llu",
			(unsigned long long)bytes, (unsigned long long)local_offset,
			(unsigned long long)local->bytes);
	if (!in_remote(remote, peer, remote_offset, bytes))
		return fail(TERN_ERR_INVALID,
			"%llu bytes at %llu of rank %u's region of %llu, to rank %u",
			(unsigned long long)bytes, (unsigned long long)remote_offset, remote->peer,
			(unsigned long long)remote->bytes, peer);
	return 0;
}

static uint16_t id_of_region(const tern_region *region)
{
	return region ? (uint16_t)region->id : COMMAND_NO_MEMORY;
}

static uint16_t id_of_remote(const tern_remote *remote)
{
	return remote ? (uint16_t)remote->id : COMMAND_NO_MEMORY;
}

/* NULL where it is refused. */
static inline const void *take_struct(
	const tern_engine *engine, const struct struct_kind *kind, const void *args, void *room)
{
	if (engine)
		return struct_in(kind, args, room);
	(void)fail(TERN_ERR_INVALID, "engine is NULL");
	return NULL;
}

int tern_engine_write(tern_engine *engine, const struct tern_write *w, tern_op *op)
{
	struct tern_write room;
	struct command command = {.kind = COMMAND_WRITE, .completion = NONE};
	int rc;

	w = take_struct(engine, &kind_write, w, &room);
	if (!w)
		return TERN_ERR_INVALID;
	rc = check_memory(
		engine, w->peer, w->local, w->remote, w->local_offset, w->remote_offset, w->bytes);
	if (!rc)
		rc = tern_engine_peer(engine, w->peer);
	if (!rc && (op || w->done))
		rc = take_number(engine, OPERATION_PLAIN, w->done, w->ctx, op, w->flags,
			&command.completion);
	if (rc)
		return rc;
	command.flags = w->flags & TERN_IMMEDIATE ? COMMAND_IMMEDIATE : 0;
	command.peer = w->peer;
	command.local = id_of_region(w->local);
	command.remote = id_of_remote(w->remote);
	command.local_offset = w->local_offset;
	command.remote_offset = w->remote_offset;
	command.bytes = w->bytes;
	command.value = w->immediate;
	return submit_operation(engine, &command, w->flags, op);
}

int engine_write(tern_engine *engine, const struct engine_write *w)
{
	struct command command = {.kind = COMMAND_WRITE,
		.flags = (uint8_t)(COMMAND_COUNTED |
				   (w->flags & TERN_IMMEDIATE ? COMMAND_IMMEDIATE : 0)),
		.peer = w->peer,
		.completion = w->counter,
		.local = id_of_region(w->local),
		.remote = id_of_remote(w->remote),
		.local_offset = w->local_offset,
		.remote_offset = w->remote_offset,
		.bytes = w->bytes,
		.value = w->immediate};

	return submit(engine, &command, w->flags);
}

/* ---- lists ----------------------------------------------------------------------------------- */

static bool page_is_inside(
	uint64_t index, uint64_t stride, uint64_t offset, uint64_t bytes, uint64_t room)
{
	uint64_t at;

	return !__builtin_mul_overflow(index, stride, &at) &&
	       !__builtin_add_overflow(at, offset, &at) && at <= room && bytes <= room - at;
}

static int check_pages(const tern_engine *engine, const struct tern_paged_write *w)
{
	int rc = check_memory(engine, w->peer, w->local, w->remote, 0, 0, 1);

	if (rc)
		return rc;
	if (!w->nr_pages || !w->page_bytes || !w->local_pages || !w->remote_pages)
		return fail(TERN_ERR_INVALID, "%u pages of %llu bytes, or a list is NULL",
			w->nr_pages, (unsigned long long)w->page_bytes);
	for (uint32_t i = 0; i < w->nr_pages; i++) {
		if (!page_is_inside(w->local_pages[i], w->local_stride, w->local_offset,
			    w->page_bytes, w->local->bytes))
			return fail(TERN_ERR_INVALID,
				"local page %u, number %u of the list, is outside its region",
				w->local_pages[i], i);
		if (!page_is_inside(w->remote_pages[i], w->remote_stride, w->remote_offset,
			    w->page_bytes, w->remote->bytes))
			return fail(TERN_ERR_INVALID,
				"remote page %u, number %u of the list, is outside its region",
				w->remote_pages[i], i);
	}
	return 0;
}

int tern_engine_write_pages(tern_engine *engine, const struct tern_paged_write *w, tern_op *op)
{
	struct tern_paged_write room;
	struct command command = {.kind = COMMAND_PAGES};
	int rc;

	w = take_struct(engine, &kind_paged_write, w, &room);
	if (!w)
		return TERN_ERR_INVALID;
	rc = check_pages(engine, w);
	if (!rc)
		rc = tern_engine_peer(engine, w->peer);
	if (!rc)
		rc = take_number(engine, OPERATION_PAGES, w->done, w->ctx, op, w->flags,
			&command.completion);
	if (rc)
		return rc;
	command.peer = w->peer;
	engine->operations[command.completion].pages = *w;
	return submit_operation(engine, &command, w->flags, op);
}

static int check_scatter(const tern_engine *engine, const struct tern_scatter *s)
{
	if (!s->peers || s->peers->engine != engine || !s->slices)
		return fail(
			TERN_ERR_INVALID, "peers or slices is NULL, or peers is another engine's");
	for (uint32_t i = 0; i < s->peers->nr; i++) {
		const struct work_template *member = &s->peers->members[i];
		int rc = check_memory(engine, member->peer, s->local, member->remote,
			s->slices[i].local_offset, s->slices[i].remote_offset, s->slices[i].bytes);

		if (rc)
			return rc;
	}
	return 0;
}

int tern_engine_scatter(tern_engine *engine, const struct tern_scatter *s, tern_op *op)
{
	struct tern_scatter room;
	struct command command = {.kind = COMMAND_SCATTER};
	int rc;

	s = take_struct(engine, &kind_scatter, s, &room);
	if (!s)
		return TERN_ERR_INVALID;
	rc = check_scatter(engine, s);
	if (!rc)
		rc = take_number(engine, OPERATION_SCATTER, s->done, s->ctx, op, s->flags,
			&command.completion);
	if (rc)
		return rc;
	engine->operations[command.completion].scatter = *s;
	return submit_operation(engine, &command, s->flags, op);
}

/* ---- immediates ------------------------------------------------------------------------------ */

static int submit_expectation(
	tern_engine *engine, enum command_kind kind, const struct tern_expect *e, tern_op *op)
{
	struct command command = {.kind = (uint8_t)kind};
	struct operation *operation;
	int rc;

	if (e->peers && e->peers->engine != engine)
		return fail(TERN_ERR_INVALID, "peers is another engine's");
	rc = take_number(
		engine, OPERATION_EXPECT, e->done, e->ctx, op, e->flags, &command.completion);
	if (rc)
		return rc;
	operation = &engine->operations[command.completion];
	operation->expect.immediate = e->immediate;
	operation->expect.count = e->count;
	operation->expect.peers = e->peers;
	return submit_operation(engine, &command, e->flags, op);
}

int tern_engine_expect(tern_engine *engine, const struct tern_expect *e, tern_op *op)
{
	struct tern_expect room;

	e = take_struct(engine, &kind_expect, e, &room);
	return e ? submit_expectation(engine, COMMAND_EXPECT, e, op) : TERN_ERR_INVALID;
}

int tern_engine_barrier(tern_engine *engine, const struct tern_barrier *b, tern_op *op)
{
	struct tern_barrier room;
	struct tern_expect expect;

	b = take_struct(engine, &kind_barrier, b, &room);
	if (!b)
		return TERN_ERR_INVALID;
	if (!b->peers)
		return fail(TERN_ERR_INVALID, "peers is NULL");
	expect = (struct tern_expect){.flags = b->flags,
		.immediate = b->immediate,
		.count = b->peers->nr,
		.peers = b->peers,
		.done = b->done,
		.ctx = b->ctx};
	return submit_expectation(engine, COMMAND_BARRIER, &expect, op);
}

/* ---- put with signal ------------------------------------------------------------------------- */

/* Signals that are parked hold requests while their group is not complete, and nothing else may be
 * short of requests because of that: half of them are theirs. */
static int reserve_parking(tern_engine *engine, uint32_t nr)
{
	struct patience patience = patience_for(engine, wait_ns_of(engine, 0));
	uint64_t room = atomic_load_explicit(&engine->parked_room, memory_order_relaxed);

	if (nr > engine->nr_requests / 2)
		return fail(TERN_ERR_INVALID,
			"a group of %u puts; this engine takes %u (as many as ring_entries)", nr,
			engine->nr_requests / 2);
	do {
		while (room >= nr)
			if (atomic_compare_exchange_weak_explicit(&engine->parked_room, &room,
				    room - nr, memory_order_relaxed, memory_order_relaxed))
				return 0;
		room = atomic_load_explicit(&engine->parked_room, memory_order_relaxed);
	} while (patience_left(&patience));
	return fail(TERN_ERR_TIMEOUT, "groups that are not complete hold all but %llu of %u puts",
		(unsigned long long)room, engine->nr_requests / 2);
}

int engine_put_group(tern_engine *engine, enum tern_signal_policy policy, uint32_t nr_puts,
	tern_done_fn done, void *ctx, tern_op *group)
{
	struct operation *operation;
	uint32_t number;
	int rc;

	if ((policy == TERN_SIGNAL_NIC_FENCE || policy == TERN_SIGNAL_PERSEUS) &&
		!(engine->caps & TRANSPORT_FENCE))
		return fail(TERN_ERR_UNSUPPORTED, "%s has neither fences nor order%s",
			engine->description, engine->nr_networks > 1 ? " everywhere" : "");
	rc = reserve_parking(engine, nr_puts);
	if (rc)
		return rc;
	rc = take_number(engine, OPERATION_GROUP, done, ctx, true, 0, &number);
	if (rc) {
		atomic_fetch_add_explicit(&engine->parked_room, nr_puts, memory_order_relaxed);
		return rc;
	}
	operation = &engine->operations[number];
	operation->group.policy = policy;
	operation->group.nr_puts = nr_puts;
	atomic_store_explicit(&operation->group.arrived, 0, memory_order_relaxed);
	*group = operation_handle(engine, number);
	return 0;
}

int tern_engine_put_group(tern_engine *engine, enum tern_signal_policy policy, uint32_t nr_puts,
	tern_done_fn done, void *ctx, tern_op *group)
{
	if (!engine || !group || !nr_puts || policy < TERN_SIGNAL_DECOUPLED ||
		policy > TERN_SIGNAL_IMMEDIATE)
		return fail(TERN_ERR_INVALID, "engine or group is NULL, or %u puts by policy %d",
			nr_puts, policy);
	return engine_put_group(engine, policy, nr_puts, done, ctx, group);
}

static int check_put(
	const tern_engine *engine, const struct operation *group, const struct tern_put *put)
{
	enum tern_signal_policy policy = group->group.policy;
	int rc = check_memory(engine, put->peer, put->local, put->remote, put->local_offset,
		put->remote_offset, put->bytes);

	if (rc || policy == BASELINE_PUT_ONLY || policy == TERN_SIGNAL_IMMEDIATE)
		return rc;
	if (!put->signal_remote || put->signal_remote->engine != engine ||
		put->signal_offset % sizeof(uint64_t) ||
		!in_remote(put->signal_remote, put->peer, put->signal_offset, sizeof(uint64_t)))
		return fail(TERN_ERR_INVALID,
			"signal_remote is not rank %u's, or signal_offset %llu is not in it or no "
			"multiple of 8",
			put->peer, (unsigned long long)put->signal_offset);
	return 0;
}

int tern_engine_put(tern_engine *engine, tern_op op, const struct tern_put *put, uint32_t flags)
{
	struct operation *group = operation_of_handle(engine, op);
	struct command command = {.kind = COMMAND_PUT, .completion = (uint32_t)op - 1};
	int rc;

	if (!group || group->kind != OPERATION_GROUP || !put)
		return fail(TERN_ERR_INVALID, "put is NULL, or %#llx is no group under way",
			(unsigned long long)op);
	rc = check_put(engine, group, put);
	if (rc)
		return rc;
	if (atomic_fetch_add_explicit(&group->group.arrived, 1, memory_order_relaxed) >=
		group->group.nr_puts) {
		atomic_fetch_sub_explicit(&group->group.arrived, 1, memory_order_relaxed);
		return fail(
			TERN_ERR_STATE, "the group has all of its %u puts", group->group.nr_puts);
	}
	command.peer = put->peer;
	command.local = id_of_region(put->local);
	command.remote = id_of_remote(put->remote);
	command.signal_remote = id_of_remote(put->signal_remote);
	command.local_offset = put->local_offset;
	command.remote_offset = put->remote_offset;
	command.bytes = put->bytes;
	command.signal_offset = put->signal_offset;
	command.value = put->signal;
	rc = submit(engine, &command, flags);
	if (rc)
		atomic_fetch_sub_explicit(&group->group.arrived, 1, memory_order_relaxed); /* it may
											      be
											      added
											      again
											    */
	return rc;
}

/* ---- messages and calls ---------------------------------------------------------------------- */

static int take_message(tern_engine *engine, uint32_t flags, uint32_t *number)
{
	struct patience patience;

	*number = pool_take(&engine->free_messages);
	if (*number != POOL_EMPTY)
		return 0;
	patience = patience_for(engine, wait_ns_of(engine, flags));
	while (patience_left(&patience)) {
		*number = pool_take(&engine->free_messages);
		if (*number != POOL_EMPTY)
			return 0;
	}
	return fail(TERN_ERR_TIMEOUT, "%u messages wait to be sent", engine->nr_messages);
}

int tern_engine_send(tern_engine *engine, const struct tern_send *s, tern_op *op)
{
	struct tern_send room;
	struct command command = {.kind = COMMAND_SEND, .completion = NONE};
	struct outgoing *message;
	uint32_t number;
	int rc = 0;

	s = take_struct(engine, &kind_send, s, &room);
	if (!s)
		return TERN_ERR_INVALID;
	if (s->peer >= engine->setup.nr_peers || s->bytes > engine->config.message_bytes ||
		(!s->data && s->bytes))
		rc = fail(TERN_ERR_INVALID,
			"a message of %u bytes to peer %u; message_bytes is %u, nr_peers %u",
			s->bytes, s->peer, engine->config.message_bytes, engine->setup.nr_peers);
	if (!rc)
		rc = tern_engine_peer(engine, s->peer);
	if (!rc)
		rc = take_message(engine, s->flags, &number);
	if (rc)
		return rc;
	message = message_at(engine, number);
	message->header = (struct message_header){.kind = MESSAGE_DATA, .bytes = s->bytes};
	if (s->bytes)
		memcpy(message->data, s->data, s->bytes);
	if (op || s->done)
		rc = take_number(engine, OPERATION_PLAIN, s->done, s->ctx, op, s->flags,
			&command.completion);
	command.peer = s->peer;
	command.local_offset = number;
	if (!rc)
		rc = submit_operation(engine, &command, s->flags, op);
	if (rc)
		message_free(engine, number);
	return rc;
}

int engine_call(tern_engine *engine, int (*fn)(tern_engine *engine, void *ctx), void *ctx)
{
	struct command command = {.kind = COMMAND_CALL};
	struct operation *operation;
	int rc;

	if (!engine->thread_runs || engine_on_proxy(engine))
		return fn(engine, ctx); /* before the proxy runs, after it, and where a scheduler
					   steps in this very thread */
	rc = take_number(engine, OPERATION_CALL, NULL, NULL, true, 0, &command.completion);
	if (rc)
		return rc;
	operation = &engine->operations[command.completion];
	operation->call.fn = fn;
	operation->call.ctx = ctx;
	rc = submit(engine, &command, 0);
	if (rc) {
		operation_drop(engine, command.completion);
		operation_drop(engine, command.completion);
		return rc;
	}
	/* fn's context is on the caller's stack, so there is no leaving before it has run. The
	 * proxy comes to it: what can hold up the ring, a drain or a lack of requests, ends with
	 * its writes' time-outs. */
	while (!atomic_load_explicit(&operation->ended, memory_order_acquire))
		(void)operation_wait(engine, command.completion, 1000000000u);
	rc = operation_wait(engine, command.completion, 0);
	operation_drop(engine, command.completion);
	return rc;
}
