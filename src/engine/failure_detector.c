/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that go: seen by the end of their process, by their silence, by a write that does not end,
 * or announced by themselves. */
#include "engine/failure_detector.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "engine/inside.h"
#include "engine/message.h"
#include "engine/peer.h"
#include "engine/peer_lost.h"
#include "engine/post.h"
#include "engine/record.h"
#include "engine/request.h"
#include "group/group.h"

#define REFUSED_LOOKS 16 /* in the time of one */

/* ---- processes of this machine --------------------------------------------------------------- */

int watch_processes(tern_engine *engine)
{
	const tern_group *group = engine->setup.group;

	if (!group)
		return 0;
	engine->processes = calloc((size_t)group->nr_ranks, sizeof(*engine->processes));
	engine->process_peers = calloc((size_t)group->nr_ranks, sizeof(*engine->process_peers));
	if (!engine->processes || !engine->process_peers)
		return fail(TERN_ERR_NOMEM, "no memory to watch %d processes", group->nr_ranks);
	for (int r = 0; r < group->nr_ranks; r++) {
		if (group->peers[r].lifeline < 0)
			continue;
		if (!watch_process(engine, (uint32_t)r, group->peers[r].lifeline))
			return fail_errno("watching rank %d's process", r);
	}
	return 0;
}

/* A descriptor of its own: the group closes its one when another process has come in the place. */
bool watch_process(tern_engine *engine, uint32_t peer, int lifeline)
{
	int own = fcntl(lifeline, F_DUPFD_CLOEXEC, 0);
	uint32_t at = 0;

	while (at < engine->nr_processes && engine->process_peers[at] != peer)
		at++;
	if (own < 0)
		return false;
	stop_watching(engine, peer);
	engine->nr_processes += at == engine->nr_processes;
	engine->process_peers[at] = peer;
	engine->processes[at] = (struct pollfd){.fd = own, .events = POLLIN};
	return true;
}

void stop_watching(tern_engine *engine, uint32_t peer)
{
	for (uint32_t i = 0; i < engine->nr_processes; i++) {
		if (engine->process_peers[i] != peer || engine->processes[i].fd < 0)
			continue;
		close(engine->processes[i].fd);
		engine->processes[i].fd = -1; /* poll passes it over */
	}
}

void unwatch_processes(tern_engine *engine)
{
	for (uint32_t i = 0; i < engine->nr_processes; i++)
		if (engine->processes[i].fd >= 0)
			close(engine->processes[i].fd);
	free(engine->processes);
	free(engine->process_peers);
}

/* What a peer sent before it went may still be in the network's queues here, so it is suspected
 * first, and gone one look later. */
static bool is_gone_for_good(tern_engine *engine, struct engine_peer *peer)
{
	if (!peer->suspect_ns)
		peer->suspect_ns = engine->now_ns ? engine->now_ns : 1;
	return engine->now_ns - peer->suspect_ns >= engine->look_every_ns;
}

static void look_at_processes(tern_engine *engine)
{
	char cause[CAUSE_TEXT];

	if (!engine->nr_processes || poll(engine->processes, engine->nr_processes, 0) <= 0)
		return;
	for (uint32_t i = 0; i < engine->nr_processes; i++) {
		uint32_t peer = engine->process_peers[i];

		if (!(engine->processes[i].revents & (POLLIN | POLLHUP)) ||
			engine->peers[peer].said_goodbye ||
			!is_gone_for_good(engine, &engine->peers[peer]))
			continue;
		snprintf(cause, sizeof(cause), "rank %u's process has ended", peer);
		peer_lost(engine, peer, TERN_ERR_PEER_DEAD, cause);
	}
}

/* ---- silence, and writes that do not end ----------------------------------------------------- */

static uint64_t timeout_ns(const tern_engine *engine)
{
	return atomic_load_explicit(&engine->timeout_ns, memory_order_relaxed);
}

void engine_bear_silence(tern_engine *engine, int ms)
{
	uint64_t wish_ns = (uint64_t)(ms > 0 ? ms : 0) * 1000000, now_ns = timeout_ns(engine);

	if (engine->setup.group && engine->setup.group->silence_ms)
		return; /* a setting of its own */
	while (wish_ns > now_ns &&
		!atomic_compare_exchange_weak_explicit(&engine->timeout_ns, &now_ns, wish_ns,
			memory_order_relaxed, memory_order_relaxed))
		;
}

static uint64_t ms_since(const tern_engine *engine, uint64_t then_ns)
{
	return (engine->now_ns - then_ns) / 1000000;
}

static bool is_silent(const tern_engine *engine, const struct engine_peer *peer)
{
	return peer->network->heartbeats && engine->now_ns - peer->heard_ns > timeout_ns(engine);
}

/* Its operation is told, but the network may still read the source: record, credit and region stay
 * in use until it does report, or the peer goes. */
static void give_up(tern_engine *engine, struct record *record)
{
	struct request *request = &engine->requests[record->request];
	char cause[CAUSE_TEXT];

	snprintf(cause, sizeof(cause), "a write to rank %u has not landed in %llu ms", record->peer,
		(unsigned long long)ms_since(engine, record->posted_ns));
	record_unlink(engine, record);
	record->given_up = true;
	request_give_up(engine, request, TERN_ERR_SYSTEM, cause);
}

static bool is_stuck(const tern_engine *engine, const struct engine_peer *peer, uint64_t since_ns)
{
	uint64_t waited = engine->now_ns - since_ns;

	return waited > timeout_ns(engine) &&
	       (engine->now_ns - peer->progress_ns > timeout_ns(engine) ||
		       waited / 4 > timeout_ns(engine));
}

static void look_at_nics(tern_engine *engine)
{
	for (uint32_t i = 0; i < engine->nr_nics; i++)
		if (engine->nics[i].under_way >= engine->nics[i].depth)
			engine->nics[i].starved_ns = engine->now_ns;
}

/* For how long a NIC that would do for this write has had room. */
static uint64_t room_ns(
	const tern_engine *engine, const struct engine_peer *peer, const struct request *request)
{
	uint32_t bound = bound_nic(peer->network, request), first = peer->network->first_nic;
	uint64_t starved_ns = UINT64_MAX;

	if (bound != NONE)
		return engine->now_ns - engine->nics[bound].starved_ns;
	for (uint32_t i = first; i < first + peer->network->nr_nics; i++)
		if (engine->nics[i].starved_ns < starved_ns)
			starved_ns = engine->nics[i].starved_ns;
	return engine->now_ns - starved_ns;
}

/* Its first write is not taken. Where others' writes hold all credits that is not this peer's
 * doing: they end, or their peers go; but no wait is for ever. */
static bool is_refused(
	const tern_engine *engine, const struct engine_peer *peer, const struct request *request)
{
	uint64_t waited = engine->now_ns - peer->progress_ns;

	return waited / 4 > timeout_ns(engine) ||
	       (waited > timeout_ns(engine) && room_ns(engine, peer, request) > timeout_ns(engine));
}

static void look_at_writes(tern_engine *engine, struct engine_peer *peer)
{
	struct request *request = queue_first(engine, &peer->writes);

	while (peer->first_record != NONE &&
		is_stuck(engine, peer, engine->records[peer->first_record].posted_ns))
		give_up(engine, &engine->records[peer->first_record]);
	if (request && !request->outstanding && is_refused(engine, peer, request)) {
		char cause[CAUSE_TEXT];

		snprintf(cause, sizeof(cause),
			"the network has taken no write to rank %u for %llu ms", request->peer,
			(unsigned long long)ms_since(engine, peer->progress_ns));
		if (peer->unsignalled) { /* and none will end those of the request that it has
					    taken: post.c */
			peer_lost(engine, request->peer, TERN_ERR_PEER_DEAD, cause);
			return;
		}
		queue_pop(engine, &peer->writes);
		request_fail(engine, request, TERN_ERR_SYSTEM, cause);
		request_check_ended(engine, request);
		peer->progress_ns = engine->now_ns;
	}
}

/* One that the network refuses is due again soon: a few refusals in a row may not make this rank
 * silent. */
static void say_something(tern_engine *engine, uint32_t number)
{
	if (!message_control(engine, number, MESSAGE_HEARTBEAT))
		engine->next_look_ns = engine->now_ns + engine->look_every_ns / REFUSED_LOOKS;
}

static void look_at_peer(tern_engine *engine, uint32_t number)
{
	struct engine_peer *peer = &engine->peers[number];
	char cause[CAUSE_TEXT];

	if (peer_observe_down(peer))
		return;
	if (peer->said_goodbye && is_gone_for_good(engine, peer)) {
		snprintf(cause, sizeof(cause), "rank %u left", number);
		peer_lost(engine, number, TERN_ERR_PEER_LEFT, cause);
		return;
	}
	if (number != engine->setup.self && is_silent(engine, peer)) {
		snprintf(cause, sizeof(cause), "nothing was heard from rank %u for %llu ms", number,
			(unsigned long long)ms_since(engine, peer->heard_ns));
		peer_lost(engine, number, TERN_ERR_PEER_DEAD, cause);
		return;
	}
	look_at_writes(engine, peer);
	if (peer->network->heartbeats && number != engine->setup.self &&
		engine->now_ns - peer->told_ns >= engine->heartbeat_ns)
		say_something(engine, number);
}

/* A proxy that was held up itself has no right to call others silent. */
static void forgive_own_absence(tern_engine *engine)
{
	uint64_t gap = engine->now_ns - engine->last_look_ns;

	if (engine->setup.scheduler || gap < timeout_ns(engine) / 2)
		return;
	for (uint32_t p = 0; p < engine->setup.nr_peers; p++) {
		engine->peers[p].heard_ns = engine->now_ns;
		engine->peers[p].progress_ns = engine->now_ns;
	}
}

void look_after_peers(tern_engine *engine)
{
	forgive_own_absence(engine);
	look_at_processes(engine);
	look_at_nics(engine);
	engine->next_look_ns = engine->now_ns + engine->look_every_ns;
	for (uint32_t p = 0; p < engine->setup.nr_peers; p++)
		look_at_peer(engine, p);
	messages_return_credits(engine);
	engine->last_look_ns = engine->now_ns;
}
