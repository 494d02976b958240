/* SPDX-License-Identifier: Apache-2.0 */
/* Making and ending an engine. */
#include "inside.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_HEARTBEAT_MS 500
#define LONGEST_LOOK_NS 20000000u
#define SHORTEST_LOOK_NS 1000000u

void tern_engine_config_init(struct tern_engine_config *config)
{
	*config = (struct tern_engine_config){.size = sizeof(*config),
		.transport = "shm",
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
}

/* ---- settings ---------------------------------------------------------------------------------------------------------- */

static int check_range(const char *name, uint64_t value, uint64_t least, uint64_t most)
{
	if (value >= least && value <= most)
		return 0;
	return fail(TERN_ERR_INVALID, "%s is %llu; %llu to %llu are possible", name, (unsigned long long)value, (unsigned long long)least,
		(unsigned long long)most);
}

static int check_core(int core)
{
	cpu_set_t allowed;

	if (core < 0)
		return core == -1 ? 0 : fail(TERN_ERR_INVALID, "core is %d", core);
	if (core >= CPU_SETSIZE || sched_getaffinity(0, sizeof(allowed), &allowed) || !CPU_ISSET((unsigned)core, &allowed))
		return fail(TERN_ERR_INVALID, "core is %d, where this process may not run", core);
	return 0;
}

static int check_config(const struct tern_engine_config *c)
{
	int rc = check_range("nr_nics", c->nr_nics, 1, TERN_MAX_NICS);

	if (!rc)
		rc = check_range("ring_entries", c->ring_entries, 2, 1 << 20);
	if (!rc && (c->ring_entries & (c->ring_entries - 1)))
		rc = fail(TERN_ERR_INVALID, "ring_entries is %u, which is no power of two", c->ring_entries);
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
	if (!rc && (c->wait_ms < 0 || c->heartbeat_ms < -1 || c->timeout_ms < 1))
		rc = fail(TERN_ERR_INVALID, "wait_ms is %d, heartbeat_ms %d, timeout_ms %d", c->wait_ms, c->heartbeat_ms, c->timeout_ms);
	if (!rc && !c->stripe_bytes)
		rc = fail(TERN_ERR_INVALID, "stripe_bytes is 0");
	return rc ? rc : check_core(c->core);
}

uint32_t config_nr_nics(const struct tern_engine_config *config)
{
	const char *at = config->transport ? strchr(config->transport, '@') : NULL;
	uint32_t nr = at ? 1 : config->nr_nics;

	for (; at && *at; at++)
		nr += *at == ',';
	return nr;
}

/* "eth0,eth1": a NIC on each. */
static int take_devices(tern_engine *engine, char *list)
{
	struct tern_engine_config *c = &engine->config;
	uint32_t nr = config_nr_nics(c);
	char *name;

	if (c->devices[0] || c->nr_nics > 1)
		return fail(TERN_ERR_INVALID, "transport is \"%s\", and devices or nr_nics are set too", c->transport);
	if (nr > TERN_MAX_NICS)
		return fail(TERN_ERR_INVALID, "transport is \"%s\": %u devices; %d are possible", c->transport, nr, TERN_MAX_NICS);
	c->nr_nics = 0;
	while ((name = strsep(&list, ","))) {
		if (!*name)
			return fail(TERN_ERR_INVALID, "transport is \"%s\": a device without a name", c->transport);
		c->devices[c->nr_nics++] = name;
	}
	return 0;
}

/* "ofi:tcp;ofi_rxm@eth0,eth1" is transport ofi with provider tcp;ofi_rxm on two devices. */
static int find_transport(tern_engine *engine, const char *name)
{
	static const struct transport_ops *const known[] = {&transport_shm, &transport_ofi, &transport_verbs, &transport_sim};
	size_t length = name ? strcspn(name, ":@") : 0;
	char *provider, *devices;

	if (engine->setup.ops)
		return 0;
	for (size_t i = 0; name && i < sizeof(known) / sizeof(known[0]); i++)
		if (strlen(known[i]->name) == length && !memcmp(known[i]->name, name, length))
			engine->setup.ops = known[i];
	if (!engine->setup.ops || strlen(name) >= sizeof(engine->transport_name))
		return fail(TERN_ERR_INVALID, "transport is \"%.200s\"; shm, ofi, ofi:PROVIDER and verbs are known, and @DEVICE,DEVICE behind them",
			name ? name : "(NULL)");
	devices = strcpy(engine->transport_name, name);
	provider = strsep(&devices, "@");
	engine->setup.provider = provider[length] ? provider + length + 1 : NULL;
	return devices ? take_devices(engine, devices) : 0;
}

/* ---- opening -------------------------------------------------------------------------------------------------------------- */

static struct transport_options nic_options(const tern_engine *engine, uint32_t number)
{
	const struct tern_engine_config *config = &engine->config;

	return (struct transport_options){.provider = engine->setup.provider,
		.device = config->devices[number],
		.network = engine->setup.network,
		.self = engine->setup.self,
		.nr_peers = engine->setup.nr_peers,
		.depth = config->depth,
		.message_bytes = config->message_bytes + (uint32_t)sizeof(struct message_header)};
}

int engine_open_beside(const tern_engine *engine, struct transport **transport, struct transport_info *info)
{
	struct transport_options options = nic_options(engine, 0);

	return engine->setup.ops->open(&options, transport, info);
}

static int open_nic(tern_engine *engine, uint32_t number)
{
	const struct tern_engine_config *config = &engine->config;
	struct nic *nic = &engine->nics[number];
	struct transport_options options = nic_options(engine, number);
	int rc = engine->setup.ops->open(&options, &nic->transport, &nic->info);

	if (rc) {
		nic->transport = NULL;
		return rc;
	}
	if (!nic->info.depth || !nic->info.write_bytes || nic->info.message_bytes < options.message_bytes)
		return fail(TERN_ERR_UNSUPPORTED, "%s takes %u writes at a time, of %llu bytes, and messages of %u bytes; %u are needed", nic->info.name,
			nic->info.depth, (unsigned long long)nic->info.write_bytes, nic->info.message_bytes, options.message_bytes);
	nic->depth = nic->info.depth < config->depth ? nic->info.depth : config->depth;
	engine->nr_records += nic->depth;
	engine->caps &= nic->info.caps;
	return 0;
}

static int open_nics(tern_engine *engine)
{
	uint32_t polls = 0;

	engine->caps = UINT32_MAX;
	for (uint32_t i = 0; i < engine->config.nr_nics; i++) {
		int rc = open_nic(engine, i);

		if (rc)
			return rc;
		polls |= engine->nics[i].info.caps & TRANSPORT_TARGET_POLLS;
	}
	engine->caps |= polls; /* this one is a burden: one NIC that has it is enough */
	snprintf(engine->description, sizeof(engine->description), "%s (%s), %u NIC%s", engine->nics[0].info.name, engine->nics[0].info.provider,
		engine->config.nr_nics, engine->config.nr_nics == 1 ? "" : "s");
	return 0;
}

static int open_items(tern_engine *engine)
{
	engine->nr_items = engine->config.ring_entries * 2;
	if (engine->nr_items < engine->setup.nr_peers * 4)
		engine->nr_items = engine->setup.nr_peers * 4;
	if (engine->nr_items < 256)
		engine->nr_items = 256;
	engine->items = calloc(engine->nr_items, sizeof(*engine->items));
	engine->records = calloc(engine->nr_records, sizeof(*engine->records));
	engine->words = aligned_alloc(4096, (engine->nr_records * sizeof(uint64_t) + 4095) / 4096 * 4096);
	if (!engine->items || !engine->records || !engine->words)
		return fail(TERN_ERR_NOMEM, "no memory for %u items and %u writes", engine->nr_items, engine->nr_records);
	for (uint32_t i = 0; i < engine->nr_items; i++)
		engine->items[i].next = i + 1 < engine->nr_items ? i + 1 : NONE;
	for (uint32_t i = 0; i < engine->nr_records; i++)
		engine->records[i].next = i + 1 < engine->nr_records ? i + 1 : NONE;
	engine->nr_free_items = engine->nr_items;
	atomic_store_explicit(&engine->parked_room, engine->nr_items / 2, memory_order_relaxed);
	return 0;
}

/* Where signals' words come from when they do not fit into the work request. */
static int register_words(tern_engine *engine)
{
	struct transport_key key;

	for (uint32_t i = 0; i < engine->config.nr_nics; i++) {
		struct nic *nic = &engine->nics[i];
		int rc = nic->info.inline_bytes >= sizeof(uint64_t) ? 0 :
			nic->transport->ops->reg(nic->transport, engine->words, engine->nr_records * sizeof(uint64_t), &nic->words_region, &key);

		if (rc)
			return rc;
	}
	return 0;
}

static int open_operations(tern_engine *engine)
{
	engine->operations = calloc(engine->config.nr_operations, sizeof(*engine->operations));
	if (!engine->operations || pool_open(&engine->free_operations, engine->config.nr_operations))
		return fail(TERN_ERR_NOMEM, "no memory for %u operations", engine->config.nr_operations);
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
	for (uint32_t p = 0; p < engine->setup.nr_peers; p++) {
		struct engine_peer *peer = &engine->peers[p];

		peer->writes = peer->messages = (struct queue){NONE, NONE};
		peer->first_record = peer->last_record = peer->next_active = NONE;
		peer->message_credits = engine->config.message_credits;
	}
	engine->first_active = engine->last_active = engine->free_items = NONE;
	engine->free_items = 0;
	return 0;
}

static void set_times(tern_engine *engine)
{
	uint64_t shortest, timeout_ns = (uint64_t)engine->config.timeout_ms * 1000000;
	int heartbeat_ms = engine->config.heartbeat_ms;

	if (heartbeat_ms < 0)
		heartbeat_ms = engine->caps & TRANSPORT_SEES_DEATH ? 0 : DEFAULT_HEARTBEAT_MS;
	if (heartbeat_ms > engine->config.timeout_ms / 3 && heartbeat_ms)
		heartbeat_ms = engine->config.timeout_ms / 3 ? engine->config.timeout_ms / 3 : 1; /* several have to be lost */
	engine->heartbeat_ns = (uint64_t)heartbeat_ms * 1000000;
	atomic_init(&engine->timeout_ns, timeout_ns);
	shortest = engine->heartbeat_ns && engine->heartbeat_ns < timeout_ns ? engine->heartbeat_ns : timeout_ns;
	shortest /= 4;
	engine->look_every_ns = shortest > LONGEST_LOOK_NS ? LONGEST_LOOK_NS : shortest < SHORTEST_LOOK_NS ? SHORTEST_LOOK_NS : shortest;
}

static int open_parts(tern_engine *engine)
{
	int rc = find_transport(engine, engine->config.transport);

	if (!rc)
		rc = ring_open(&engine->ring, engine->config.ring_entries);
	if (!rc)
		rc = open_operations(engine);
	if (!rc)
		rc = open_peers(engine);
	if (!rc)
		rc = open_nics(engine);
	if (!rc)
		rc = open_items(engine);
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

int engine_open(const struct tern_engine_config *config, const struct engine_setup *setup, tern_engine **out)
{
	tern_engine *engine;
	int rc = check_config(config);

	if (rc)
		return rc;
	engine = aligned_alloc(CACHE_LINE, (sizeof(*engine) + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
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

int engine_address(tern_engine *engine, struct engine_address *mine)
{
	int rc = 0;

	memset(mine, 0, sizeof(*mine));
	for (uint32_t i = 0; i < engine->config.nr_nics && !rc; i++) {
		struct transport *transport = engine->nics[i].transport;

		mine->bytes[i] = TRANSPORT_ADDRESS_BYTES;
		rc = transport->ops->address(transport, mine->address[i], &mine->bytes[i]);
	}
	return rc;
}

int engine_connect(tern_engine *engine, const struct engine_address *all)
{
	for (uint32_t i = 0; i < engine->config.nr_nics; i++) {
		struct transport *transport = engine->nics[i].transport;

		for (uint32_t p = 0; p < engine->setup.nr_peers; p++) {
			int rc = all[p].bytes[i] > TRANSPORT_ADDRESS_BYTES ? fail(TERN_ERR_PROTOCOL, "rank %u's address is too long", p) :
				transport->ops->connect(transport, p, all[p].address[i], all[p].bytes[i]);

			if (rc)
				return rc;
		}
	}
	engine->connected = true;
	return 0;
}

int engine_start(tern_engine *engine)
{
	const struct driver *driver = engine->setup.driver;
	int rc;

	if (driver) { /* one without this steps its engines by itself */
		if (driver->engine)
			driver->engine(driver->ctx, engine, true);
		return 0;
	}
	engine->thread_runs = true; /* before it does */
	rc = pthread_create(&engine->thread, NULL, proxy_main, engine);
	if (!rc)
		return 0;
	engine->thread_runs = false;
	return fail(TERN_ERR_SYSTEM, "the proxy thread: %s", strerror(rc));
}

uint32_t engine_caps(const tern_engine *engine)
{
	return engine->caps;
}

/* ---- ending ------------------------------------------------------------------------------------------------------------------ */

void engine_close(tern_engine *engine)
{
	if (engine->regions)
		memory_close(engine);
	for (uint32_t i = 0; i < engine->config.nr_nics; i++) {
		struct nic *nic = &engine->nics[i];

		if (nic->transport && nic->words_region)
			nic->transport->ops->dereg(nic->transport, nic->words_region);
		if (nic->transport)
			nic->transport->ops->close(nic->transport);
	}
	memory_release(engine);
	counts_close(engine);
	messages_close(engine);
	pool_close(&engine->free_operations);
	ring_close(&engine->ring);
	pthread_mutex_destroy(&engine->tables_lock);
	free(engine->operations);
	free(engine->peers);
	free(engine->items);
	free(engine->records);
	free(engine->words);
	free(engine->processes);
	free(engine->process_peers);
	free(engine);
}

/* The driver of a group runs the other ranks in this one's waits; others do so only when this returns. */
static void leave_stepped(tern_engine *engine)
{
	const struct driver *driver = engine->setup.driver;

	if (!driver->engine)
		engine->config.wait_ms = 0;
	engine_step(engine, engine_now(engine));
	while (!leave_done(engine) && driver->engine) {
		driver->idle(driver->ctx, engine_next_ns(engine));
		engine_step(engine, engine_now(engine));
	}
	engine_step(engine, engine_now(engine));
	if (driver->engine)
		driver->engine(driver->ctx, engine, false);
}

static void stop(tern_engine *engine)
{
	atomic_store_explicit(&engine->leaving, 1, memory_order_release);
	if (engine->thread_runs) {
		bell_ring(&engine->bell);
		pthread_join(engine->thread, NULL);
		engine->thread_runs = false;
	} else if (engine->setup.driver && engine->connected) {
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
