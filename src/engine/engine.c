/* SPDX-License-Identifier: Apache-2.0 */
/* Making and ending an engine. */
#include "engine/engine.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "engine/counts.h"
#include "engine/failure_detector.h"
#include "engine/inside.h"
#include "engine/leave.h"
#include "engine/memory.h"
#include "engine/message.h"
#include "engine/nics.h"
#include "engine/operation.h"
#include "engine/patience.h"
#include "engine/peer.h"
#include "engine/proxy.h"
#include "engine/record.h"
#include "engine/request.h"
#include "group/group.h"

#define DEFAULT_HEARTBEAT_MS 500
#define LONGEST_LOOK_NS 20000000u
#define SHORTEST_LOOK_NS 1000000u

void tern_engine_config_init_sized(struct tern_engine_config *config, size_t size)
{
	static const struct tern_engine_config initial = {.transport = "shm",
		.nr_nics = 1,
		.ring_entries = 1024,
		.nr_operations = 1024,
		.depth = 1024,
		.peer_depth = 256,
		.message_bytes = 256,
		.message_credits = 8,
		.core = -1,
		.wait_ms = 30000,
		.heartbeat_ms = -1,
		.timeout_ms = 10000,
		.stripe_bytes = 256 << 10};

	struct_init(&kind_engine_config, config, size, &initial);
}

/* ---- settings -------------------------------------------------------------------------------- */

static int check_core(int core)
{
	cpu_set_t allowed;

	if (core < 0)
		return core == -1 ? 0 : fail(TERN_ERR_INVALID, "core is %d", core);
	if (core >= CPU_SETSIZE || sched_getaffinity(0, sizeof(allowed), &allowed) ||
		!CPU_ISSET((unsigned)core, &allowed))
		return fail(TERN_ERR_INVALID, "core is %d, where this process may not run", core);
	return 0;
}

static int check_config(const struct tern_engine_config *c)
{
	int rc = check_range("nr_nics", c->nr_nics, 1, TERN_MAX_NICS);

	if (!rc)
		rc = check_range("ring_entries", c->ring_entries, 2, 1 << 20);
	if (!rc && (c->ring_entries & (c->ring_entries - 1)))
		rc = fail(TERN_ERR_INVALID, "ring_entries is %u, which is no power of two",
			c->ring_entries);
	if (!rc)
		rc = check_range("nr_operations", c->nr_operations, 1, 65535);
	if (!rc)
		rc = check_range("depth", c->depth, 1, 1 << 16);
	if (!rc)
		rc = check_range("peer_depth", c->peer_depth, 1, 1 << 16);
	if (!rc)
		rc = check_range("message_bytes", c->message_bytes, 8, 1 << 20);
	if (!rc)
		rc = check_range("message_credits", c->message_credits, 1, 1024);
	if (!rc)
		rc = check_range("wait_ms", c->wait_ms, 0, INT_MAX);
	if (!rc)
		rc = check_range("heartbeat_ms", c->heartbeat_ms, -1, INT_MAX);
	if (!rc)
		rc = check_range("timeout_ms", c->timeout_ms, 1, INT_MAX);
	if (!rc && !c->stripe_bytes)
		rc = fail(TERN_ERR_INVALID, "stripe_bytes is 0");
	return rc ? rc : check_core(c->core);
}

/* ---- opening --------------------------------------------------------------------------------- */

static int open_requests(tern_engine *engine)
{
	engine->nr_requests = engine->config.ring_entries * 2;
	if (engine->nr_requests < engine->setup.nr_peers * 4)
		engine->nr_requests = engine->setup.nr_peers * 4;
	if (engine->nr_requests < 256)
		engine->nr_requests = 256;
	engine->requests = calloc(engine->nr_requests, sizeof(*engine->requests));
	engine->records = calloc(engine->nr_records, sizeof(*engine->records));
	engine->words =
		aligned_alloc(4096, (engine->nr_records * sizeof(uint64_t) + 4095) / 4096 * 4096);
	if (!engine->requests || !engine->records || !engine->words)
		return fail(TERN_ERR_NOMEM, "no memory for %u requests and %u writes",
			engine->nr_requests, engine->nr_records);
	for (uint32_t i = 0; i < engine->nr_requests; i++)
		engine->requests[i].next = i + 1 < engine->nr_requests ? i + 1 : NONE;
	for (uint32_t i = 0; i < engine->nr_records; i++)
		engine->records[i].next = i + 1 < engine->nr_records ? i + 1 : NONE;
	engine->nr_free_requests = engine->nr_requests;
	atomic_store_explicit(&engine->parked_room, engine->nr_requests / 2, memory_order_relaxed);
	return 0;
}

static int open_operations(tern_engine *engine)
{
	engine->operations = calloc(engine->config.nr_operations, sizeof(*engine->operations));
	if (!engine->operations ||
		pool_open(&engine->free_operations, engine->config.nr_operations))
		return fail(TERN_ERR_NOMEM, "no memory for %u operations",
			engine->config.nr_operations);
	for (uint32_t i = 0; i < engine->config.nr_operations; i++) {
		atomic_store_explicit(&engine->operations[i].generation, 1, memory_order_relaxed);
		engine->operations[i].parked = NONE;
	}
	return 0;
}

static int open_peers(tern_engine *engine)
{
	engine->peers = calloc(engine->setup.nr_peers, sizeof(*engine->peers));
	if (!engine->peers)
		return fail(TERN_ERR_NOMEM, "no memory for %u peers", engine->setup.nr_peers);
	number_networks(engine);
	for (uint32_t p = 0; p < engine->setup.nr_peers; p++) {
		struct engine_peer *peer = &engine->peers[p];

		peer->writes = peer->messages = (struct queue){NONE, NONE};
		peer->first_record = peer->last_record = peer->next_active = NONE;
		peer->message_credits = engine->config.message_credits;
	}
	engine->first_active = engine->last_active = engine->free_requests = NONE;
	engine->free_requests = 0;
	return 0;
}

/* Each network for itself: whether a peer is to be heard from is then the same at both ends,
 * whatever else they use. */
static int set_heartbeats(tern_engine *engine)
{
	int heartbeat_ms = engine->config.heartbeat_ms;
	bool any = false;

	for (uint32_t i = 0; i < engine->nr_networks; i++) {
		struct network *network = &engine->networks[i];

		network->heartbeats = heartbeat_ms > 0 ||
				      (heartbeat_ms < 0 && !(network->caps & TRANSPORT_SEES_DEATH));
		any = any || (network->heartbeats && engine->setup.networks[i].ops);
	}
	return heartbeat_ms < 0 ? any * DEFAULT_HEARTBEAT_MS : heartbeat_ms;
}

static void set_times(tern_engine *engine)
{
	uint64_t shortest, timeout_ns = (uint64_t)engine->config.timeout_ms * 1000000;
	int heartbeat_ms = set_heartbeats(engine);

	if (heartbeat_ms > engine->config.timeout_ms / 3 && heartbeat_ms)
		heartbeat_ms = engine->config.timeout_ms / 3 ? engine->config.timeout_ms / 3
							     : 1; /* several have to be lost */
	engine->heartbeat_ns = (uint64_t)heartbeat_ms * 1000000;
	atomic_init(&engine->timeout_ns, timeout_ns);
	shortest = engine->heartbeat_ns && engine->heartbeat_ns < timeout_ns ? engine->heartbeat_ns
									     : timeout_ns;
	shortest /= 4;
	engine->look_every_ns = shortest > LONGEST_LOOK_NS    ? LONGEST_LOOK_NS
				: shortest < SHORTEST_LOOK_NS ? SHORTEST_LOOK_NS
							      : shortest;
}

static int open_parts(tern_engine *engine)
{
	int rc = ring_open(&engine->ring, engine->config.ring_entries);

	if (!rc)
		rc = open_operations(engine);
	if (!rc)
		rc = open_peers(engine);
	if (!rc)
		rc = open_networks(engine);
	if (!rc)
		describe_networks(engine);
	if (!rc)
		rc = open_requests(engine);
	if (!rc)
		rc = register_words(engine);
	if (!rc)
		rc = messages_open(engine);
	if (!rc)
		rc = counts_open(engine);
	if (!rc)
		rc = memory_open(engine);
	return rc ? rc : watch_processes(engine);
}

static void engine_close(tern_engine *engine)
{
	if (engine->regions)
		memory_close(engine);
	close_networks(engine);
	memory_release(engine);
	counts_close(engine);
	messages_close(engine);
	pool_close(&engine->free_operations);
	ring_close(&engine->ring);
	pthread_mutex_destroy(&engine->tables_lock);
	free(engine->operations);
	free(engine->peers);
	free(engine->requests);
	free(engine->records);
	free(engine->words);
	unwatch_processes(engine);
	free(engine->names);
	free(engine);
}

int engine_open(const struct tern_engine_config *config, const struct engine_setup *setup,
	tern_engine **out)
{
	tern_engine *engine;
	int rc = check_config(config);

	if (rc)
		return rc;
	engine = aligned_alloc(
		CACHE_LINE, (sizeof(*engine) + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
	if (!engine)
		return fail(TERN_ERR_NOMEM, "no memory for an engine");
	memset(engine, 0, sizeof(*engine));
	engine->config = *config;
	engine->setup = *setup;
	engine->stats.size = sizeof(engine->stats);
	pthread_mutex_init(&engine->tables_lock, NULL);
	rc = open_parts(engine);
	if (rc) {
		engine_close(engine);
		return rc;
	}
	set_times(engine);
	*out = engine;
	return 0;
}

int engine_start(tern_engine *engine)
{
	const struct scheduler *scheduler = engine->setup.scheduler;
	int rc;

	if (scheduler) { /* one without this steps its engines by itself */
		if (scheduler->engine)
			scheduler->engine(scheduler->ctx, engine, true);
		return 0;
	}
	engine->thread_runs = true; /* before it does */
	rc = pthread_create(&engine->thread, NULL, proxy_main, engine);
	if (!rc)
		return 0;
	engine->thread_runs = false;
	return fail(TERN_ERR_SYSTEM, "the proxy thread: %s", strerror(rc));
}

/* ---- ending ---------------------------------------------------------------------------------- */

/* The scheduler of a group runs the other ranks in this one's waits; others do so only when this
 * returns. */
static void leave_stepped(tern_engine *engine)
{
	const struct scheduler *scheduler = engine->setup.scheduler;

	if (!scheduler->engine)
		engine->config.wait_ms = 0;
	engine_step(engine, engine_now(engine));
	while (!leave_done(engine) && scheduler->engine) {
		scheduler->idle(scheduler->ctx, engine_next_ns(engine));
		engine_step(engine, engine_now(engine));
	}
	engine_step(engine, engine_now(engine));
	if (scheduler->engine)
		scheduler->engine(scheduler->ctx, engine, false);
}

static void stop(tern_engine *engine)
{
	atomic_store_explicit(&engine->leaving, 1, memory_order_release);
	if (engine->thread_runs) {
		wakeup_signal(&engine->wakeup);
		pthread_join(engine->thread, NULL);
		engine->thread_runs = false;
	} else if (engine->setup.scheduler && engine->connected) {
		leave_stepped(engine);
	}
}

int tern_engine_destroy(tern_engine *engine)
{
	if (!engine)
		return 0;
	if (engine_on_proxy(engine))
		return fail(TERN_ERR_STATE, "a callback of the engine may not destroy it");
	stop(engine);
	if (engine->connected)
		end_everything(engine);
	if (engine->setup.group)
		engine->setup.group->nr_engines--;
	engine_close(engine);
	return 0;
}
