/* SPDX-License-Identifier: Apache-2.0 */
/* Leaving: what was begun is finished, peers are told, and what cannot end any more is ended. */
#include "engine/leave.h"

#include <string.h>

#include "engine/counts.h"
#include "engine/inside.h"
#include "engine/message.h"
#include "engine/operation.h"
#include "engine/peer.h"
#include "engine/peer_lost.h"
#include "engine/request.h"

#define GOODBYE_NS 1000000000u /* longest wait for peers to have seen it */

static bool is_quiet(const tern_engine *engine)
{
	return engine->nr_free_requests == engine->nr_requests && !engine->nr_messages_queued &&
	       !engine->command_held && !ring_peek(&engine->ring);
}

/* True: all peers know, or are gone. */
static bool goodbyes_seen(tern_engine *engine)
{
	bool all = true;

	for (uint32_t p = 0; p < engine->setup.nr_peers; p++) {
		struct engine_peer *peer = &engine->peers[p];

		if (p == engine->setup.self || peer_observe_down(peer))
			continue;
		if (!peer->goodbye_sent)
			peer->goodbye_sent = message_control(engine, p, MESSAGE_GOODBYE);
		/* A peer that leaves too knows all that it needs. */
		all = all && peer->goodbye_sent && (peer->knows_goodbye || peer->said_goodbye);
	}
	return all;
}

bool leave_done(tern_engine *engine)
{
	if (!engine->leave_ns)
		engine->leave_ns = engine->now_ns + (uint64_t)engine->config.wait_ms * 1000000;
	if (!engine->saying_goodbye) {
		if (!is_quiet(engine) && engine->now_ns < engine->leave_ns)
			return false;
		engine->saying_goodbye = true;
		engine->leave_ns = engine->now_ns + GOODBYE_NS;
	}
	return goodbyes_seen(engine) || engine->now_ns >= engine->leave_ns;
}

static void end_parked(tern_engine *engine, struct operation *group, const char *cause)
{
	while (group->parked != NONE) {
		struct request *signal = &engine->requests[group->parked];

		group->parked = signal->next;
		signal->next = NONE;
		request_fail(engine, signal, TERN_ERR_STATE, cause);
		request_check_ended(engine, signal);
	}
}

/* A group whose last put never came. */
static void end_group(tern_engine *engine, uint32_t number, const char *cause)
{
	struct operation *group = &engine->operations[number];

	end_parked(engine, group, cause);
	if (group->kind != OPERATION_GROUP ||
		!atomic_load_explicit(&group->holders, memory_order_relaxed) ||
		atomic_load_explicit(&group->ended, memory_order_relaxed))
		return;
	operation_fail(group, TERN_ERR_STATE, cause);
	operation_end(engine, number);
}

static void end_command(tern_engine *engine, struct command *command, const char *cause)
{
	bool counted = command->flags & COMMAND_COUNTED;
	uint32_t completion = command->completion;

	if (!counted && completion < engine->config.nr_operations && command->kind != COMMAND_PUT)
		engine->operations[completion].pending = 1;
	else if (!counted)
		completion = NONE;
	completion_end(engine, completion, counted, TERN_ERR_STATE, cause);
}

void end_everything(tern_engine *engine)
{
	const char *cause = "the engine was destroyed";

	memset(engine->claims, 0, sizeof(engine->claims));
	for (uint32_t p = 0; p < engine->setup.nr_peers; p++)
		peer_lost(engine, p, TERN_ERR_STATE, cause);
	engine->stall.kind = STALL_NONE;
	counts_end_all(engine, TERN_ERR_STATE, cause);
	if (engine->command_held)
		end_command(engine, &engine->command, cause);
	while (ring_take(&engine->ring, &engine->command))
		end_command(engine, &engine->command, cause);
	for (uint32_t i = 0; i < engine->config.nr_operations; i++)
		end_group(engine, i, cause);
}
