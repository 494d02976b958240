/* SPDX-License-Identifier: Apache-2.0 */
/* Put with signal: how a signal is kept behind its put.
 *
 *   policy              after each put                                 after the group's last put
 *   put-only            -                                              -
 *   coupled             hold the ring until that peer's writes         -
 *                       have landed, then the signal
 *   coupled-all-peers   hold the ring until every rank's have, one     -
 *                       rank after the other, then the signal
 *   decoupled           park the signal                                hold the ring until the puts have landed, then all signals
 *   nic-fence           the signal at once, behind a fence             -
 *   perseus             park the signal                                all signals at once, the first to each peer behind a fence
 *   immediate           -  (the put carries it)                        -
 *
 * coupled-all-peers is what NVSHMEM 3.4.5 does over libfabric: its fence drains the endpoints of
 * all ranks in turn.
 *
 * A fence orders its write, and all later ones to the same peer, behind all earlier ones
 * (libfabric's FI_FENCE). So one is enough for any number of signals, and each peer has a bit that
 * says whether something was put there since its last fence. The fenced signal itself keeps the
 * flag until a transport has taken it. Fences and order hold within one NIC, so puts and signals of
 * these policies stay on their peer's own.
 *
 * When a put fails, its parked signal is not sent. A signal that was posted behind a fence cannot
 * be called back.
 */
#include "engine/signal.h"

#include "engine/inside.h"
#include "engine/memory.h"
#include "engine/operation.h"
#include "engine/peer.h"
#include "engine/request.h"

static bool parks(enum tern_signal_policy policy)
{
	return policy != TERN_SIGNAL_NIC_FENCE;
}

static bool stays_on_one_nic(enum tern_signal_policy policy)
{
	return policy == TERN_SIGNAL_NIC_FENCE || policy == TERN_SIGNAL_PERSEUS;
}

static bool has_signal(enum tern_signal_policy policy)
{
	return policy != BASELINE_PUT_ONLY && policy != TERN_SIGNAL_IMMEDIATE;
}

/* ---- signals on their way -------------------------------------------------------------------- */

static void send_signal(tern_engine *engine, struct request *signal)
{
	struct engine_peer *peer = &engine->peers[signal->peer];

	if ((signal->flags & REQUEST_PINNED) && peer->fence_pending &&
		!(peer->network->caps & TRANSPORT_ORDERED))
		signal->flags |= REQUEST_FENCE;
	if (signal->flags & REQUEST_PINNED)
		peer->fence_pending = false;
	request_queue(engine, signal);
}

static void park(tern_engine *engine, struct operation *group, struct request *signal)
{
	uint32_t number = request_number(engine, signal);

	if (group->last_parked == NONE)
		group->parked = number;
	else
		engine->requests[group->last_parked].next = number;
	group->last_parked = number;
}

static void send_parked(tern_engine *engine, struct operation *group)
{
	uint32_t number = group->parked;

	group->parked = group->last_parked = NONE;
	while (number != NONE) {
		struct request *signal = &engine->requests[number];
		struct engine_peer *peer = &engine->peers[signal->peer];

		number = signal->next;
		signal->next = NONE;
		if (peer_observe_down(peer))
			request_fail(engine, signal, peer_observe_down(peer), peer->cause);
		if (signal->error)
			request_check_ended(engine, signal);
		else
			send_signal(engine, signal);
	}
}

/* ---- holding up the ring --------------------------------------------------------------------- */

static void stall(tern_engine *engine, enum stall_kind kind, uint32_t peer, uint32_t group)
{
	engine->stall = (struct stall){
		.kind = kind, .peer = peer, .group = group, .polled = engine->stats.steps};
	engine->stats.drains++;
}

static bool peer_is_drained(const tern_engine *engine, uint32_t peer)
{
	return !engine->peers[peer].nr_records && engine->peers[peer].writes.first == NONE;
}

/* Every rank's completions are polled for at least once, as a library does that drains one endpoint
 * after the other. */
static bool all_are_drained(tern_engine *engine)
{
	struct stall *s = &engine->stall;

	while (s->peer < engine->setup.nr_peers && peer_is_drained(engine, s->peer)) {
		if (s->peer != engine->setup.self && s->polled == engine->stats.steps)
			return false;
		s->polled = engine->stats.steps;
		s->peer++;
	}
	return s->peer == engine->setup.nr_peers;
}

bool signal_stalled(tern_engine *engine)
{
	struct operation *group = &engine->operations[engine->stall.group];

	switch (engine->stall.kind) {
	case STALL_NONE:
		return false;
	case STALL_PEER:
		if (!peer_is_drained(engine, engine->stall.peer))
			return true;
		break;
	case STALL_ALL_PEERS:
		if (!all_are_drained(engine))
			return true;
		break;
	case STALL_GROUP:
		if (group->puts_pending)
			return true;
		break;
	}
	engine->stall.kind = STALL_NONE;
	send_parked(engine, group);
	return false;
}

/* ---- puts ------------------------------------------------------------------------------------ */

static struct request *make_put(
	tern_engine *engine, const struct command *c, struct operation *group)
{
	bool immediate = group->group.policy == TERN_SIGNAL_IMMEDIATE;
	struct request *put;

	if (!c->bytes && !immediate)
		return NULL;
	put = request_take(engine, c->peer, REQUEST_WRITE);
	request_set_memory(put, c->bytes ? engine->regions[c->local] : NULL,
		c->bytes ? engine->remotes[c->remote] : NULL);
	request_set_completion(engine, put, c->completion, false);
	put->local_offset = c->local_offset;
	put->remote_offset = c->remote_offset;
	put->bytes = c->bytes;
	put->flags |= REQUEST_PUT | (immediate ? REQUEST_IMMEDIATE : 0) |
		      (stays_on_one_nic(group->group.policy) ? REQUEST_PINNED : 0);
	put->immediate = (uint32_t)c->value;
	group->puts_pending++;
	return put;
}

static struct request *make_signal(
	tern_engine *engine, const struct command *c, struct operation *group)
{
	struct request *signal;

	if (!has_signal(group->group.policy))
		return NULL;
	signal = request_take(engine, c->peer, REQUEST_SIGNAL);
	request_set_memory(signal, NULL, engine->remotes[c->signal_remote]);
	request_set_completion(engine, signal, c->completion, false);
	signal->remote_offset = c->signal_offset;
	signal->bytes = sizeof(signal->value);
	signal->value = c->value;
	signal->flags |= stays_on_one_nic(group->group.policy) ? REQUEST_PINNED : 0;
	return signal;
}

static void send_put(tern_engine *engine, struct request *put, struct request *signal)
{
	if (!put)
		return;
	if (signal) {
		put->partner = request_number(engine, signal);
		put->value = signal->generation;
	}
	if (put->flags & REQUEST_PINNED)
		engine->peers[put->peer].fence_pending = true;
	request_queue(engine, put);
}

static bool is_bad(
	const tern_engine *engine, const struct command *c, const struct operation *group)
{
	if (group->kind != OPERATION_GROUP || c->peer >= engine->setup.nr_peers)
		return true;
	if (c->bytes && (!in_region(engine->regions[c->local], c->local_offset, c->bytes) ||
				!in_remote(engine->remotes[c->remote], c->peer, c->remote_offset,
					c->bytes)))
		return true;
	return has_signal(group->group.policy) &&
	       !in_remote(engine->remotes[c->signal_remote], c->peer, c->signal_offset,
		       sizeof(uint64_t));
}

/* The group's puts are all here. */
static void last_put(tern_engine *engine, uint32_t number, struct operation *group)
{
	atomic_fetch_add_explicit(&engine->parked_room, group->group.nr_puts, memory_order_relaxed);
	if (group->group.policy == TERN_SIGNAL_PERSEUS)
		send_parked(engine, group);
	else if (group->group.policy == TERN_SIGNAL_DECOUPLED && group->parked != NONE)
		stall(engine, STALL_GROUP, 0, number);
	operation_part_ended(engine, number);
}

static void take_good_put(tern_engine *engine, const struct command *c, struct operation *group)
{
	struct request *put = make_put(engine, c, group), *signal = make_signal(engine, c, group);

	send_put(engine, put, signal);
	if (!signal)
		return;
	if (!parks(group->group.policy)) {
		send_signal(engine, signal);
		return;
	}
	park(engine, group, signal);
	if (group->group.policy == BASELINE_COUPLED)
		stall(engine, STALL_PEER, c->peer, c->completion);
	else if (group->group.policy == BASELINE_COUPLED_ALL_PEERS)
		stall(engine, STALL_ALL_PEERS, 0, c->completion);
}

bool signal_take_put(tern_engine *engine, const struct command *c)
{
	struct operation *group = &engine->operations[c->completion];

	if (engine->nr_free_requests < 2)
		return false;
	if (!group->pending)
		group->pending = 1; /* until the last put */
	if (is_bad(engine, c, group))
		operation_fail(group, TERN_ERR_INVALID,
			"a put names a group, peer, region or offset that there is none of");
	else if (peer_observe_down(&engine->peers[c->peer]))
		operation_fail(group, peer_observe_down(&engine->peers[c->peer]),
			engine->peers[c->peer].cause);
	else
		take_good_put(engine, c, group);
	if (++group->puts_taken == group->group.nr_puts)
		last_put(engine, c->completion, group);
	return true;
}
