/* SPDX-License-Identifier: Apache-2.0 */
/* An engine over a group: settings compared, addresses gathered, everybody heard from once before anybody returns. */
#include "inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Up to the devices, whose names may differ. */
static uint64_t hash_of(const char *text)
{
	uint64_t hash = 0xcbf29ce484222325u;

	while (text && *text && *text != '@')
		hash = (hash ^ (uint8_t)*text++) * 0x100000001b3u;
	return hash;
}

static uint32_t config_nr_nics(const struct tern_engine_config *config)
{
	const char *at = config->transport ? strchr(config->transport, '@') : NULL;
	uint32_t nr = at ? 1 : config->nr_nics;

	for (; at && *at; at++)
		nr += *at == ',';
	return nr;
}

/* "eth0,eth1": a NIC on each. */
static int take_devices(struct tern_engine_config *c, char *list)
{
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

/* "ofi:tcp;ofi_rxm@eth0,eth1" is transport ofi with provider tcp;ofi_rxm on two devices. What is found points into *names. */
static int find_transport(struct tern_engine_config *config, struct engine_network *network, char **names)
{
	static const struct transport_ops *const known[] = {&transport_shm, &transport_ofi, &transport_verbs, &transport_sim};
	const char *name = config->transport;
	size_t length = name ? strcspn(name, ":@") : 0;
	char *provider, *devices;
	int rc = 0;

	for (size_t i = 0; name && i < sizeof(known) / sizeof(known[0]); i++)
		if (strlen(known[i]->name) == length && !memcmp(known[i]->name, name, length))
			network->ops = known[i];
	if (!network->ops)
		return fail(TERN_ERR_INVALID, "transport is \"%.200s\"; shm, ofi, ofi:PROVIDER and verbs are known, and @DEVICE,DEVICE behind them",
			name ? name : "(NULL)");
	devices = *names = strdup(name);
	if (!devices)
		return fail(TERN_ERR_NOMEM, "no memory for a network's name");
	provider = strsep(&devices, "@");
	network->provider = provider[length] ? provider + length + 1 : NULL;
	rc = devices ? take_devices(config, devices) : 0;
	network->nr_nics = config->nr_nics;
	memcpy(network->devices, config->devices, sizeof(network->devices));
	return rc;
}

static int agree(tern_group *group, const struct tern_engine_config *config)
{
	const struct setting settings[] = {
		{"the transport (by hash)", hash_of(config->transport)},
		{"nr_nics", config_nr_nics(config)},
		{"message_bytes", config->message_bytes},
		{"message_credits", config->message_credits},
		{"the size of tern_engine_config", config->size},
	};

	return group_agree_settings(group, settings, sizeof(settings) / sizeof(settings[0]));
}

static int connect_all(tern_engine *engine, tern_group *group)
{
	struct engine_address mine, *all = calloc((size_t)group->nr_ranks, sizeof(*all));
	int rc = all ? engine_address(engine, &mine) : fail(TERN_ERR_NOMEM, "no memory for %d addresses", group->nr_ranks);

	rc = group_agree_status(group, rc, "the engine's addresses");
	if (!rc)
		rc = group_allgather(group, &mine, all, sizeof(mine));
	if (!rc)
		rc = group_agree_status(group, engine_connect(engine, all), "the engine's connections");
	free(all);
	return rc;
}

/* On the proxy: a first message to everybody, which also makes networks connect that do so late. */
static int greet(tern_engine *engine, void *ctx)
{
	bool *greeted = ctx;

	for (uint32_t p = 0; p < engine->setup.nr_peers; p++)
		greeted[p] = greeted[p] || message_control(engine, p, MESSAGE_HEARTBEAT);
	return 0;
}

/* A peer that is lost first: others may be silent because they have given up over it. */
static int missing_one(tern_engine *engine, void *ctx)
{
	const bool *greeted = ctx;

	for (uint32_t p = 0; p < engine->setup.nr_peers; p++)
		if (peer_observe_down(&engine->peers[p]))
			return fail(peer_observe_down(&engine->peers[p]), "%s", engine->peers[p].cause);
	for (uint32_t p = 0; p < engine->setup.nr_peers; p++) {
		if (!greeted[p] || !engine->peers[p].spoke)
			return fail(TERN_ERR_TIMEOUT, "rank %u %s within wait_ms over %s", p, greeted[p] ? "was not heard from" : "could not be reached",
				engine->description);
	}
	return 0;
}

static int meet_all(tern_engine *engine)
{
	struct patience patience = patience_for(engine, (uint64_t)engine->config.wait_ms * 1000000);
	bool *greeted = calloc(engine->setup.nr_peers, sizeof(*greeted));
	int rc = greeted ? TERN_ERR_TIMEOUT : fail(TERN_ERR_NOMEM, "no memory for %u peers", engine->setup.nr_peers);

	while (rc == TERN_ERR_TIMEOUT && patience_left(&patience)) {
		rc = engine_call(engine, greet, greeted);
		if (!rc)
			rc = engine_call(engine, missing_one, greeted);
	}
	free(greeted);
	return rc;
}

static void give_up(tern_engine *engine)
{
	if (!engine)
		return;
	engine->setup.group = NULL;
	engine->config.wait_ms = 0;
	tern_engine_destroy(engine);
}

static void take_driver(const struct driver *driver, struct tern_engine_config *config, struct engine_setup *setup)
{
	if (!driver)
		return;
	setup->driver = driver;
	if (driver->configure)
		driver->configure(driver->ctx, config);
	setup->networks[0] = (struct engine_network){.ops = driver->transport, .simulated = driver->network, .nr_nics = config->nr_nics};
}

static int open_engine(struct tern_engine_config *config, struct engine_setup *setup, tern_engine **engine)
{
	char *names = NULL;
	int rc = setup->driver ? 0 : find_transport(config, &setup->networks[0], &names);

	rc = rc ? rc : engine_open(config, setup, engine);
	if (rc)
		free(names);
	else
		(*engine)->names = names;
	return rc;
}

int tern_engine_create(tern_group *group, const struct tern_engine_config *config, tern_engine **out)
{
	struct engine_setup setup = {.group = group, .nr_networks = 1};
	struct tern_engine_config adapted;
	tern_engine *engine = NULL;
	int rc;

	if (!group || !config || !out || config->size != sizeof(*config))
		return fail(TERN_ERR_INVALID, "group, config or engine is NULL, or config was not set by tern_engine_config_init");
	setup.self = (uint32_t)group->rank;
	setup.nr_peers = (uint32_t)group->nr_ranks;
	adapted = *config;
	take_driver(group->driver, &adapted, &setup);
	rc = agree(group, &adapted);
	if (rc)
		return rc;
	rc = group_agree_status(group, open_engine(&adapted, &setup, &engine), "creating an engine");
	if (!rc)
		rc = connect_all(engine, group);
	if (!rc)
		rc = group_agree_status(group, engine_start(engine), "starting an engine");
	if (!rc)
		rc = group_agree_status(group, meet_all(engine), "meeting over the engine");
	if (rc) {
		give_up(engine);
		return rc;
	}
	group->nr_engines++;
	*out = engine;
	return 0;
}

int tern_engine_rank(const tern_engine *engine)
{
	return engine ? (int)engine->setup.self : fail(TERN_ERR_INVALID, "engine is NULL");
}

int tern_engine_nr_peers(const tern_engine *engine)
{
	return engine ? (int)engine->setup.nr_peers : fail(TERN_ERR_INVALID, "engine is NULL");
}

const char *tern_engine_describe(const tern_engine *engine)
{
	return engine ? engine->description : "";
}
