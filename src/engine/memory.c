/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory, peers' descriptors, lists of peers, counters and claims. Control calls: they
 * take a lock, wait for the proxy, and may allocate. Transports are touched on the proxy alone, so
 * that is where registering happens. */
#include "engine/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "engine/counts.h"
#include "engine/inside.h"
#include "engine/operation.h"
#include "engine/patience.h"
#include "engine/peer.h"

#define DESCRIPTOR_MAGIC 0x4e524554u /* "TERN" */

int memory_open(tern_engine *engine)
{
	engine->regions = calloc(MAX_TABLE, sizeof(*engine->regions));
	engine->remotes = calloc(MAX_TABLE, sizeof(*engine->remotes));
	engine->lists = calloc(MAX_TABLE, sizeof(*engine->lists));
	engine->counters = calloc(MAX_COUNTERS, sizeof(*engine->counters));
	if (engine->regions && engine->remotes && engine->lists && engine->counters)
		return 0;
	return fail(TERN_ERR_NOMEM, "no memory for the engine's tables");
}

/* Index 0 is "none" in commands. */
static uint32_t find_free(void *table, uint32_t nr)
{
	void **entries = table;

	for (uint32_t i = 1; i < nr; i++)
		if (!entries[i])
			return i;
	return 0;
}

/* Beyond table_end no entry of any table was ever used. */
static void note_used(tern_engine *engine, uint32_t id)
{
	if (id >= engine->table_end)
		engine->table_end = id + 1;
}

/* ---- giving things up ------------------------------------------------------------------------ */

/* On the first nr NICs, those that are open. */
static void deregister_on_nics(tern_engine *engine, tern_region *region, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++)
		if (engine->nics[i].transport)
			engine->nics[i].transport->ops->dereg(
				engine->nics[i].transport, region->on[i]);
}

struct removal {
	const uint32_t *uses;
	void **entry;        /* of a table */
	tern_region *region; /* to be deregistered too */
};

static int remove_unused(tern_engine *engine, void *ctx)
{
	struct removal *removal = ctx;

	bool begun = engine->setup.scheduler &&
		     (engine->command_held || ring_peek(&engine->ring)); /* else this call came
									    through the ring, behind
									    them */

	if (*removal->uses || begun)
		return fail(TERN_ERR_TIMEOUT,
			"%u parts of operations that are under way use it, and others may",
			*removal->uses);
	*removal->entry = NULL;
	if (removal->region)
		deregister_on_nics(engine, removal->region, engine->nr_nics);
	return 0;
}

/* Commands that name it are ahead of this in the ring, or broke the contract. */
static int remove_within(tern_engine *engine, struct removal *removal, int wait_ms)
{
	struct patience patience =
		patience_for(engine, (uint64_t)(wait_ms > 0 ? wait_ms : 0) * 1000000);
	int rc = engine_on_proxy(engine)
			 ? fail(TERN_ERR_STATE, "a callback of the engine may not give memory up")
			 : engine_call(engine, remove_unused, removal);

	while (rc == TERN_ERR_TIMEOUT && patience_left(&patience))
		rc = engine_call(engine, remove_unused, removal);
	return rc;
}

/* ---- regions --------------------------------------------------------------------------------- */

static int register_on_nics(tern_engine *engine, void *ctx)
{
	tern_region *region = ctx;

	for (uint32_t i = 0; i < engine->nr_nics; i++) {
		struct transport *transport = engine->nics[i].transport;
		int rc = transport ? transport->ops->reg(transport, region->base, region->bytes,
					     &region->on[i], &region->keys[i])
				   : 0;

		if (!rc)
			continue;
		deregister_on_nics(engine, region, i);
		return rc;
	}
	return 0;
}

int tern_engine_register(tern_engine *engine, void *base, uint64_t bytes, tern_region **out)
{
	tern_region *region;
	int rc;

	if (!engine || !base || !bytes || !out)
		return fail(TERN_ERR_INVALID, "engine, base or region is NULL, or bytes is 0");
	if (engine_on_proxy(engine))
		return fail(TERN_ERR_STATE, "a callback of the engine may not register memory");
	region = calloc(1, sizeof(*region));
	if (!region)
		return fail(TERN_ERR_NOMEM, "no memory for a region");
	*region = (struct tern_region){.engine = engine, .base = base, .bytes = bytes};
	rc = engine_call(engine, register_on_nics, region);
	if (rc) {
		free(region);
		return rc;
	}
	pthread_mutex_lock(&engine->tables_lock);
	region->id = find_free(engine->regions, MAX_TABLE);
	if (region->id)
		engine->regions[region->id] = region;
	note_used(engine, region->id);
	pthread_mutex_unlock(&engine->tables_lock);
	if (!region->id) {
		struct removal removal = {.uses = &region->uses,
			.entry = (void **)&engine->regions[0],
			.region = region};

		engine_call(engine, remove_unused, &removal);
		free(region);
		return fail(TERN_ERR_CAPACITY, "%u regions are registered", MAX_TABLE - 1);
	}
	*out = region;
	return 0;
}

int tern_region_descriptor(const tern_region *region, struct tern_descriptor *descriptor)
{
	if (!region || !descriptor)
		return fail(TERN_ERR_INVALID, "region or descriptor is NULL");
	*descriptor = (struct tern_descriptor){.magic = DESCRIPTOR_MAGIC,
		.rank = region->engine->setup.self,
		.nr_nics = region->engine->nr_nics,
		.bytes = region->bytes};
	for (uint32_t i = 0; i < descriptor->nr_nics; i++) {
		descriptor->nic[i].address = region->keys[i].address;
		descriptor->nic[i].bytes = region->keys[i].bytes;
		descriptor->nic[i].key = region->keys[i].key;
	}
	return 0;
}

int tern_region_deregister(tern_region *region, int wait_ms)
{
	struct removal removal;
	tern_engine *engine;
	int rc;

	if (!region)
		return 0;
	engine = region->engine;
	removal = (struct removal){.uses = &region->uses,
		.entry = (void **)&engine->regions[region->id],
		.region = region};
	rc = remove_within(engine, &removal, wait_ms);
	if (!rc)
		free(region);
	return rc;
}

void engine_region_give_up(tern_region *region, int wait_ms, engine_release_fn release, void *ctx)
{
	void *base = region->base;
	uint64_t bytes = region->bytes;

	region->release_ctx = ctx;
	region->release = release;
	if (!tern_region_deregister(region, wait_ms))
		release(ctx, base, bytes);
}

void engine_region_leave(tern_region *region, engine_release_fn release, void *ctx)
{
	region->release_ctx = ctx;
	region->release = release;
}

/* ---- remotes --------------------------------------------------------------------------------- */

static int check_descriptor(const tern_engine *engine, const struct tern_descriptor *d)
{
	const struct network *network;

	if (d->magic != DESCRIPTOR_MAGIC)
		return fail(TERN_ERR_INVALID, "these bytes are no descriptor");
	if (d->rank >= engine->setup.nr_peers)
		return fail(TERN_ERR_INVALID, "a descriptor of rank %u of %u", d->rank,
			engine->setup.nr_peers);
	if (d->nr_nics != engine->nr_nics)
		return fail(TERN_ERR_MISMATCH,
			"rank %u's descriptor is for %u NICs, this engine has %u", d->rank,
			d->nr_nics, engine->nr_nics);
	network = engine->peers[d->rank].network;
	for (uint32_t i = network->first_nic; i < network->first_nic + network->nr_nics; i++)
		if (d->nic[i].bytes != d->bytes)
			return fail(TERN_ERR_MISMATCH,
				"rank %u's descriptor has no key for NIC %u, which leads to it",
				d->rank, i);
	return 0;
}

int tern_engine_import(
	tern_engine *engine, const struct tern_descriptor *descriptor, tern_remote **out)
{
	tern_remote *remote;
	int rc;

	if (!engine || !descriptor || !out)
		return fail(TERN_ERR_INVALID, "engine, descriptor or remote is NULL");
	rc = check_descriptor(engine, descriptor);
	if (rc)
		return rc;
	remote = calloc(1, sizeof(*remote));
	if (!remote)
		return fail(TERN_ERR_NOMEM, "no memory for a descriptor");
	*remote = (struct tern_remote){
		.engine = engine, .bytes = descriptor->bytes, .peer = descriptor->rank};
	for (uint32_t i = 0; i < descriptor->nr_nics; i++)
		remote->keys[i] = (struct transport_key){descriptor->nic[i].address,
			descriptor->nic[i].bytes, descriptor->nic[i].key};
	pthread_mutex_lock(&engine->tables_lock);
	remote->id = find_free(engine->remotes, MAX_TABLE);
	if (remote->id)
		engine->remotes[remote->id] = remote;
	note_used(engine, remote->id);
	pthread_mutex_unlock(&engine->tables_lock);
	if (!remote->id) {
		free(remote);
		return fail(TERN_ERR_CAPACITY, "%u descriptors are imported", MAX_TABLE - 1);
	}
	*out = remote;
	return 0;
}

int tern_remote_forget(tern_remote *remote, int wait_ms)
{
	struct removal removal;
	int rc;

	if (!remote)
		return 0;
	removal = (struct removal){
		.uses = &remote->uses, .entry = (void **)&remote->engine->remotes[remote->id]};
	rc = remove_within(remote->engine, &removal, wait_ms);
	if (!rc)
		free(remote);
	return rc;
}

/* ---- lists of peers -------------------------------------------------------------------------- */

static int check_members(
	const tern_engine *engine, const uint32_t *ranks, tern_remote *const *remotes, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++) {
		if (ranks[i] >= engine->setup.nr_peers)
			return fail(TERN_ERR_INVALID, "ranks[%u] is %u of %u", i, ranks[i],
				engine->setup.nr_peers);
		if (remotes && remotes[i] &&
			(remotes[i]->engine != engine || remotes[i]->peer != ranks[i]))
			return fail(TERN_ERR_INVALID, "remotes[%u] is rank %u's, not rank %u's", i,
				remotes[i]->peer, ranks[i]);
		for (uint32_t j = 0; j < i; j++)
			if (ranks[j] == ranks[i])
				return fail(
					TERN_ERR_INVALID, "rank %u is in the list twice", ranks[i]);
	}
	return 0;
}

int tern_peers_create(tern_engine *engine, const uint32_t *ranks, tern_remote *const *remotes,
	uint32_t nr, tern_peers **out)
{
	tern_peers *peers;
	uint32_t id;
	int rc;

	if (!engine || !ranks || !nr || !out)
		return fail(
			TERN_ERR_INVALID, "engine, ranks or peers is NULL, or the list is empty");
	rc = check_members(engine, ranks, remotes, nr);
	if (rc)
		return rc;
	peers = calloc(1, sizeof(*peers) + nr * sizeof(peers->members[0]));
	if (!peers)
		return fail(TERN_ERR_NOMEM, "no memory for a list of %u peers", nr);
	peers->engine = engine;
	peers->nr = nr;
	for (uint32_t i = 0; i < nr; i++)
		peers->members[i] = (struct work_template){
			.peer = ranks[i], .remote = remotes ? remotes[i] : NULL};
	pthread_mutex_lock(&engine->tables_lock);
	id = find_free(engine->lists, MAX_TABLE);
	if (id)
		engine->lists[id] = peers;
	note_used(engine, id);
	pthread_mutex_unlock(&engine->tables_lock);
	if (!id) {
		free(peers);
		return fail(TERN_ERR_CAPACITY, "%u lists of peers", MAX_TABLE - 1);
	}
	peers->id = id;
	*out = peers;
	return 0;
}

int tern_peers_destroy(tern_peers *peers, int wait_ms)
{
	struct removal removal;
	int rc;

	if (!peers)
		return 0;
	removal = (struct removal){
		.uses = &peers->uses, .entry = (void **)&peers->engine->lists[peers->id]};
	rc = remove_within(peers->engine, &removal, wait_ms);
	if (!rc)
		free(peers);
	return rc;
}

/* When the proxy has ended. */
void memory_close(tern_engine *engine)
{
	for (uint32_t i = 1; i < engine->table_end; i++) {
		tern_region *region = engine->regions[i];

		if (region)
			deregister_on_nics(engine, region, engine->nr_nics);
		if (region && region->release) {
			region->next_given_up = engine->given_up;
			engine->given_up = region;
		} else {
			free(region);
		}
		free(engine->remotes[i]);
		free(engine->lists[i]);
	}
	free(engine->regions);
	free(engine->remotes);
	free(engine->lists);
	free(engine->counters);
}

void memory_release(tern_engine *engine)
{
	tern_region *region;

	while ((region = engine->given_up)) {
		engine->given_up = region->next_given_up;
		region->release(region->release_ctx, region->base, region->bytes);
		free(region);
	}
}

/* ---- counters and claims --------------------------------------------------------------------- */

int engine_counters_open(tern_engine *engine, struct engine_counters *counters)
{
	uint32_t most = (1u << COUNTER_BITS) - 1, place;

	if (!counters->nr || counters->nr > most)
		return fail(TERN_ERR_CAPACITY, "%u counters; 1 to %u can be opened together",
			counters->nr, most);
	pthread_mutex_lock(&engine->tables_lock);
	place = find_free(engine->counters, MAX_COUNTERS);
	counters->id = place << COUNTER_BITS;
	if (place)
		engine->counters[place] = counters;
	pthread_mutex_unlock(&engine->tables_lock);
	return place ? 0
		     : fail(TERN_ERR_CAPACITY, "counters were opened %u times", MAX_COUNTERS - 1);
}

static int forget_counters(tern_engine *engine, void *ctx)
{
	engine->counters[*(uint32_t *)ctx >> COUNTER_BITS] = NULL;
	return 0;
}

void engine_counters_close(tern_engine *engine, const struct engine_counters *counters)
{
	uint32_t id = counters->id;

	engine_call(engine, forget_counters, &id);
}

struct ringing {
	struct ring *ring;
	bool attach, awake;
	bool at_once; /* detached with what is in it: nothing moves any more */
};

static int set_ring(tern_engine *engine, void *ctx)
{
	const struct ringing *ringing = ctx;
	uint32_t at = 0;

	if (ringing->attach && engine->nr_rings == MAX_RINGS)
		return fail(
			TERN_ERR_CAPACITY, "%d rings of devices; an engine has no more", MAX_RINGS);
	if (ringing->attach) {
		engine->keeps_awake[engine->nr_rings] = ringing->awake;
		engine->nr_awake += ringing->awake;
		engine->rings[engine->nr_rings++] = ringing->ring;
		return 0;
	}
	if (!ringing->at_once && ring_peek(ringing->ring))
		return TERN_ERR_TIMEOUT;
	while (engine->rings[at] != ringing->ring)
		at++;
	engine->nr_awake -= engine->keeps_awake[at];
	engine->rings[at] = engine->rings[--engine->nr_rings];
	engine->keeps_awake[at] = engine->keeps_awake[engine->nr_rings];
	return 0;
}

int engine_ring_attach(tern_engine *engine, struct ring *ring, bool awake)
{
	struct ringing ringing = {.ring = ring, .attach = true, .awake = awake};

	return engine_call(engine, set_ring, &ringing);
}

void engine_ring_detach(tern_engine *engine, struct ring *ring)
{
	struct ringing ringing = {.ring = ring};
	struct patience patience = patience_for(
		engine, atomic_load_explicit(&engine->timeout_ns, memory_order_relaxed));
	int rc = engine_call(engine, set_ring, &ringing);

	while (rc == TERN_ERR_TIMEOUT && patience_left(&patience))
		rc = engine_call(engine, set_ring, &ringing);
	ringing.at_once = true;
	if (rc)
		engine_call(engine, set_ring, &ringing);
}

uint16_t engine_region_id(const tern_region *region)
{
	return (uint16_t)region->id;
}

uint16_t engine_remote_id(const tern_remote *remote)
{
	return (uint16_t)remote->id;
}

struct claiming {
	uint8_t prefix;
	const struct engine_claim *claim;
};

static int set_claim(tern_engine *engine, void *ctx)
{
	const struct claiming *claiming = ctx;
	struct engine_claim *entry = &engine->claims[claiming->prefix];

	if (claiming->claim && entry->immediate)
		return fail(TERN_ERR_STATE, "immediates with prefix %u are claimed already",
			claiming->prefix);
	*entry = claiming->claim ? *claiming->claim : (struct engine_claim){0};
	engine->used[claiming->prefix] = true;
	return 0;
}

void engine_ask_again(tern_engine *engine, uint8_t prefix)
{
	engine->nr_asked_again += !engine->asked_again[prefix];
	engine->asked_again[prefix] = true;
}

int engine_claim(tern_engine *engine, uint8_t prefix, const struct engine_claim *claim)
{
	struct claiming claiming = {prefix, claim};

	return engine_call(engine, set_claim, &claiming);
}

int engine_unclaim(tern_engine *engine, uint8_t prefix)
{
	struct claiming claiming = {prefix, NULL};

	return engine_call(engine, set_claim, &claiming);
}

static int set_message_claim(tern_engine *engine, void *ctx)
{
	const struct engine_message_claim *claim = ctx;

	engine->message_claim = claim ? *claim : (struct engine_message_claim){0};
	return 0;
}

int engine_claim_messages(tern_engine *engine, const struct engine_message_claim *claim)
{
	return engine_call(engine, set_message_claim, (void *)(uintptr_t)claim);
}

/* ---- questions ------------------------------------------------------------------------------- */

static int copy_stats(tern_engine *engine, void *ctx)
{
	*(struct tern_engine_stats *)ctx = engine->stats;
	return 0;
}

static int copy_traffic(tern_engine *engine, void *ctx)
{
	struct engine_traffic *all = ctx;

	for (uint32_t p = 0; p < engine->setup.nr_peers; p++)
		all[p] = engine->peers[p].posted;
	return 0;
}

int engine_traffic(tern_engine *engine, struct engine_traffic *all)
{
	return engine_call(engine, copy_traffic, all);
}

int tern_engine_stats(const tern_engine *engine, struct tern_engine_stats *stats)
{
	struct tern_engine_stats now;
	int rc;

	if (!engine)
		return fail(TERN_ERR_INVALID, "engine is NULL");
	rc = engine_call((tern_engine *)(uintptr_t)engine, copy_stats, &now);
	return rc ? rc : struct_out(&kind_engine_stats, stats, &now);
}

struct asked_count {
	uint32_t immediate;
	uint64_t count;
};

static int look_up_count(tern_engine *engine, void *ctx)
{
	struct asked_count *asked = ctx;

	asked->count = counts_of(engine, asked->immediate);
	return 0;
}

int tern_engine_count(tern_engine *engine, uint32_t immediate, uint64_t *count)
{
	struct asked_count asked = {.immediate = immediate};
	int rc;

	if (!engine || !count)
		return fail(TERN_ERR_INVALID, "engine or count is NULL");
	rc = engine_call(engine, look_up_count, &asked);
	if (!rc)
		*count = asked.count;
	return rc;
}
