/* SPDX-License-Identifier: Apache-2.0 */
/* Leaving: what was begun is finished, peers are told, and what cannot end any more is ended. */
#include "inside.h"

#include <string.h>

#define GOODBYE_NS 1000000000u /* longest wait for peers to have seen it */

static bool is_quiet(const tern_engine *engine)
{
	return engine->nr_free_items == engine->nr_items && !engine->nr_messages_queued && !engine->command_held && !ring_peek(&engine->ring);
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

/* One look, after each step of a proxy that is to end. True: it may. */
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

/* After the proxy has ended: nothing is left unanswered. */
void end_everything(tern_engine *engine)
{
	const char *cause = "the engine was destroyed";
	struct command command;

	memset(engine->claims, 0, sizeof(engine->claims));
	for (uint32_t p = 0; p < engine->setup.nr_peers; p++)
		peer_lost(engine, p, TERN_ERR_STATE, cause);
	engine->stall.kind = STALL_NONE;
	counts_end_all(engine, TERN_ERR_STATE, cause);
	for (uint32_t i = 0; i < engine->config.nr_operations; i++) {
		struct operation *group = &engine->operations[i];

		while (group->parked != NONE) {
			struct item *signal = &engine->items[group->parked];

			group->parked = signal->next;
			signal->next = NONE;
			item_fail(engine, signal, TERN_ERR_STATE, cause);
			item_check_ended(engine, signal);
		}
	}
	while (engine->command_held || ring_take(&engine->ring, &command)) {
		if (engine->command_held)
			command = engine->command;
		engine->command_held = false;
		if (!(command.flags & COMMAND_COUNTED) && command.completion < engine->config.nr_operations &&
			engine->operations[command.completion].kind != OPERATION_GROUP)
			engine->operations[command.completion].pending = 1;
		else if (!(command.flags & COMMAND_COUNTED))
			command.completion = NONE;
		completion_end(engine, command.completion, command.flags & COMMAND_COUNTED, TERN_ERR_STATE, cause);
	}
}
