/* SPDX-License-Identifier: Apache-2.0 */
/* An engine over a group: settings compared, addresses gathered, everybody heard from once before
 * anybody returns. */
#include "engine/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "engine/message.h"
#include "engine/offers.h"
#include "engine/patience.h"
#include "engine/nics.h"
#include "engine/peer.h"
#include "engine/peer_lost.h"
#include "group/group.h"

static int agree(tern_group *group, const struct tern_engine_config *config)
{
	const struct setting settings[] = {
		{"message_bytes", config->message_bytes},
		{"message_credits", config->message_credits},
	};

	return group_agree_settings(group, settings, sizeof(settings) / sizeof(settings[0]));
}

static int connect_all(tern_engine *engine, tern_group *group)
{
	struct engine_address mine, *all = calloc((size_t)group->nr_ranks, sizeof(*all));
	int rc = all ? engine_address(engine, &mine)
		     : fail(TERN_ERR_NOMEM, "no memory for %d addresses", group->nr_ranks);

	rc = group_agree_status(group, rc, "the engine's addresses");
	if (!rc)
		rc = group_allgather(group, &mine, all, sizeof(mine));
	if (!rc)
		rc = group_agree_status(
			group, engine_connect(engine, all), "the engine's connections");
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
			return fail(
				peer_observe_down(&engine->peers[p]), "%s", engine->peers[p].cause);
	for (uint32_t p = 0; p < engine->setup.nr_peers; p++) {
		if (!greeted[p] || !engine->peers[p].spoke)
			return fail(TERN_ERR_TIMEOUT, "rank %u %s within wait_ms over %s", p,
				greeted[p] ? "was not heard from" : "could not be reached",
				engine->description);
	}
	return 0;
}

static int meet_all(tern_engine *engine)
{
	struct patience patience = patience_for(engine, (uint64_t)engine->config.wait_ms * 1000000);
	bool *greeted = calloc(engine->setup.nr_peers, sizeof(*greeted));
	int rc = greeted ? TERN_ERR_TIMEOUT
			 : fail(TERN_ERR_NOMEM, "no memory for %u peers", engine->setup.nr_peers);

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

/* ---- which networks -------------------------------------------------------------------------- */

/* What one creation needs, and no engine after it. */
struct creation {
	tern_group *group;
	struct tern_engine_config config;
	struct engine_setup setup;
	struct network_list list;
	struct offers *all; /* [nr_ranks] */
	struct network_plan plan;
	tern_engine *engine;
};

static int list_networks(struct creation *c)
{
	const struct scheduler *scheduler = c->group->scheduler;

	if (!scheduler)
		return network_list_parse(&c->config, &c->list);
	c->list.nr = 1;
	c->list.each[0] = (struct engine_network){.ops = scheduler->transport,
		.simulated = scheduler->network,
		.nr_nics = c->config.nr_nics};
	memcpy(c->list.name[0], "simulated", sizeof("simulated"));
	return 0;
}

static int gather_offers(struct creation *c)
{
	struct offers mine = {0};
	int rc = list_networks(c);

	c->all = calloc((size_t)c->group->nr_ranks, sizeof(*c->all));
	c->plan.network_of = calloc((size_t)c->group->nr_ranks, sizeof(*c->plan.network_of));
	if (!rc && (!c->all || !c->plan.network_of))
		rc = fail(TERN_ERR_NOMEM, "no memory for the networks of %d ranks",
			c->group->nr_ranks);
	rc = group_agree_status(c->group, rc, "creating an engine");
	if (rc)
		return rc;
	network_list_offer(&c->list, &mine);
	rc = group_allgather(c->group, &mine, c->all, sizeof(mine));
	return rc ? rc : offers_check(c->all, (uint32_t)c->group->nr_ranks);
}

/* This rank's own of the planned networks: opened if they lead to somebody. */
static void set_up_networks(struct creation *c)
{
	c->setup.nr_networks = c->plan.nr;
	c->setup.network_of = c->plan.network_of;
	for (uint32_t n = 0; n < c->plan.nr; n++) {
		c->setup.networks[n] =
			(struct engine_network){.nr_nics = c->plan.each[n].offer->nr_nics};
		for (uint32_t i = 0; i < c->list.nr && c->plan.each[n].here; i++)
			if (!strcmp(c->list.name[i], c->plan.each[n].offer->name))
				c->setup.networks[n] = c->list.each[i];
	}
}

/* For people, as long as the engine lives. */
static void keep_reasons(struct creation *c)
{
	char text[OFFER_WHY];

	for (uint32_t p = 0; p < c->setup.nr_peers; p++) {
		struct engine_peer *peer = &c->engine->peers[p];

		offers_why(c->all, c->setup.self, p, text);
		snprintf(peer->why, sizeof(peer->why), "%s, %.*s",
			c->plan.each[c->plan.network_of[p]].offer->name, WHY_TEXT - OFFER_NAME - 3,
			text);
	}
}

/* By which others know them that come later. */
static void keep_names(struct creation *c)
{
	for (uint32_t n = 0; n < c->plan.nr; n++)
		memcpy(c->engine->network_names[n], c->plan.each[n].offer->name, OFFER_NAME);
}

static int open_engine(struct creation *c)
{
	int rc = offers_plan(c->all, c->setup.nr_peers, c->setup.self, &c->plan);

	if (rc)
		return rc; /* all ranks come to the same, and need not be told */
	set_up_networks(c);
	rc = group_agree_status(
		c->group, engine_open(&c->config, &c->setup, &c->engine), "creating an engine");
	if (!c->engine)
		return rc;
	c->engine->names = c->list.texts;
	c->list.texts = NULL;
	keep_reasons(c);
	keep_names(c);
	return rc;
}

static int create(struct creation *c)
{
	int rc = agree(c->group, &c->config);

	rc = rc ? rc : gather_offers(c);
	rc = rc ? rc : open_engine(c);
	rc = rc ? rc : connect_all(c->engine, c->group);
	if (!rc)
		rc = group_agree_status(c->group, engine_start(c->engine), "starting an engine");
	if (!rc)
		rc = group_agree_status(c->group, meet_all(c->engine), "meeting over the engine");
	if (rc)
		give_up(c->engine);
	free(c->all);
	free(c->plan.network_of);
	free(c->list.texts);
	return rc;
}

/* ---- of a rank that comes when others are there ---------------------------------------------- */

/* Those of the list that can be used here; one that cannot may lead to nobody. */
static int set_up_known(struct creation *c, const struct engine_networks *networks)
{
	struct offers mine;
	uint32_t nr_open = 0;

	network_list_offer(&c->list, &mine);
	c->setup.nr_networks = networks->nr;
	for (uint32_t n = 0; n < networks->nr; n++) {
		c->setup.networks[n] =
			(struct engine_network){.nr_nics = networks->each[n].nr_nics};
		for (uint32_t i = 0; i < c->list.nr; i++)
			if (!strncmp(c->list.name[i], networks->each[n].name, OFFER_NAME) &&
				c->list.each[i].nr_nics == networks->each[n].nr_nics &&
				!mine.each[i].cause[0]) {
				c->setup.networks[n] = c->list.each[i];
				nr_open++;
			}
	}
	return nr_open ? 0
		       : fail(TERN_ERR_UNSUPPORTED,
				 "the members use %.*s%s, which this rank does not offer, or "
				 "cannot "
				 "use: %s",
				 OFFER_NAME, networks->each[0].name,
				 networks->nr > 1 ? " and more" : "",
				 mine.nr && mine.each[0].cause[0] ? mine.each[0].cause
								  : "it is not named");
}

/* A rank reaches itself by the first that is open. */
static int connect_self(tern_engine *engine)
{
	uint32_t self = engine->setup.self, n = 0;
	struct engine_address mine;
	int rc;

	while (!engine->setup.networks[n].ops)
		n++;
	engine->peers[self].network = &engine->networks[n];
	rc = engine_address(engine, &mine);
	rc = rc ? rc : connect_peer(engine, self, &mine);
	engine->connected = !rc;
	return rc;
}

static int create_alone(struct creation *c, const struct engine_networks *networks)
{
	int rc = list_networks(c);

	rc = rc ? rc : set_up_known(c, networks);
	rc = rc ? rc : engine_open(&c->config, &c->setup, &c->engine);
	if (!rc) {
		c->engine->names = c->list.texts;
		c->list.texts = NULL;
		for (uint32_t n = 0; n < networks->nr; n++)
			snprintf(c->engine->network_names[n], OFFER_NAME, "%.*s", OFFER_NAME - 1,
				networks->each[n].name);
		peers_begin_lost(c->engine);
		rc = connect_self(c->engine);
		rc = rc ? rc : engine_start(c->engine);
	}
	free(c->list.texts);
	if (rc)
		give_up(c->engine);
	return rc;
}

int engine_create_alone(tern_group *group, const struct tern_engine_config *config,
	const struct engine_networks *networks, tern_engine **out)
{
	struct creation c = {.group = group, .config = *config};
	uint64_t nr_nics = 0;
	int rc;

	for (uint32_t n = 0; n < networks->nr && n < TERN_MAX_NICS; n++)
		nr_nics += networks->each[n].nr_nics;
	if (!networks->nr || networks->nr > TERN_MAX_NICS || nr_nics > TERN_MAX_NICS)
		return fail(TERN_ERR_PROTOCOL,
			"the members have %u networks of %llu NICs; 1 to %d are possible",
			networks->nr, (unsigned long long)nr_nics, TERN_MAX_NICS);
	c.setup = (struct engine_setup){.group = group,
		.self = (uint32_t)group->rank,
		.nr_peers = (uint32_t)group->nr_ranks};
	rc = create_alone(&c, networks);
	if (rc)
		return rc;
	group->nr_engines++;
	*out = c.engine;
	return 0;
}

int tern_engine_create(
	tern_group *group, const struct tern_engine_config *config, tern_engine **out)
{
	struct creation c = {.group = group};
	int rc;

	if (!group || !out)
		return fail(TERN_ERR_INVALID, "group or engine is NULL");
	if (group->view)
		return fail(TERN_ERR_UNSUPPORTED,
			"an engine of a group that has lost members (view %llu): only exchanges "
			"that are elastic can be made then",
			(unsigned long long)group->view);
	tern_engine_config_init(&c.config);
	rc = struct_read(&kind_engine_config, config, &c.config);
	if (rc)
		return rc;
	c.setup = (struct engine_setup){.group = group,
		.self = (uint32_t)group->rank,
		.nr_peers = (uint32_t)group->nr_ranks,
		.scheduler = group->scheduler};
	if (group->scheduler && group->scheduler->configure)
		group->scheduler->configure(group->scheduler->ctx, &c.config);
	rc = create(&c);
	if (rc)
		return rc;
	group->nr_engines++;
	*out = c.engine;
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

const char *engine_why(const tern_engine *engine, uint32_t peer)
{
	return engine->peers[peer].why;
}
