/* SPDX-License-Identifier: Apache-2.0 */
/* The networks of an engine and their NICs. NICs are numbered through, network after network, and
 * so on all ranks, as descriptors and addresses are by NIC. A network that leads to no peer of this
 * rank keeps its numbers, and its NICs stay closed. */
#include "engine/nics.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/rank_list.h"
#include "engine/inside.h"
#include "engine/message.h"
#include "engine/peer.h"

/* Which network leads to which peer, and where its NICs are. */
void number_networks(tern_engine *engine)
{
	const struct engine_setup *setup = &engine->setup;

	engine->nr_networks = setup->nr_networks;
	for (uint32_t n = 0; n < setup->nr_networks; n++) {
		engine->networks[n].first_nic = engine->nr_nics;
		engine->networks[n].nr_nics = setup->networks[n].nr_nics;
		engine->nr_nics += setup->networks[n].nr_nics;
	}
	for (uint32_t p = 0; p < setup->nr_peers; p++)
		engine->peers[p].network =
			&engine->networks[setup->network_of ? setup->network_of[p] : 0];
}

/* ---- opening --------------------------------------------------------------------------------- */

static uint32_t least_message(const tern_engine *engine)
{
	return engine->config.message_bytes + (uint32_t)sizeof(struct message_header);
}

static int open_transport(const tern_engine *engine, const struct engine_network *from,
	uint32_t number, struct transport **transport, struct transport_info *info)
{
	struct transport_options options = {.provider = from->provider,
		.device = from->devices[number],
		.network = from->simulated,
		.self = engine->setup.self,
		.nr_peers = engine->setup.nr_peers,
		.depth = engine->config.depth,
		.message_bytes = least_message(engine)};

	return from->ops->open(&options, transport, info);
}

int engine_open_beside(
	const tern_engine *engine, struct transport **transport, struct transport_info *info)
{
	if (engine->nr_networks > 1)
		return fail(TERN_ERR_UNSUPPORTED,
			"the engine reaches its peers over several networks: %s",
			engine->description);
	return open_transport(engine, &engine->setup.networks[0], 0, transport, info);
}

static int open_nic(
	tern_engine *engine, const struct engine_network *from, uint32_t number, struct nic *nic)
{
	const struct transport_info *info = &nic->info;
	int rc = open_transport(engine, from, number, &nic->transport, &nic->info);

	if (rc) {
		nic->transport = NULL;
		return rc;
	}
	if (!info->depth || !info->write_bytes || info->message_bytes < least_message(engine))
		return fail(TERN_ERR_UNSUPPORTED,
			"%s takes %u writes at a time, of %llu bytes, and messages of %u bytes; %u "
			"are needed",
			info->name, info->depth, (unsigned long long)info->write_bytes,
			info->message_bytes, least_message(engine));
	nic->depth = info->depth < engine->config.depth ? info->depth : engine->config.depth;
	engine->nr_records += nic->depth;
	return 0;
}

/* It is enough if one has that: bytes land only while the target polls, regions are pinned. */
#define BURDENS ((uint32_t)(TRANSPORT_TARGET_POLLS | TRANSPORT_PINS))

/* What both have. */
static uint32_t common_caps(uint32_t caps, uint32_t others)
{
	return (caps & others) | ((caps | others) & BURDENS);
}

static int open_network(
	tern_engine *engine, const struct engine_network *from, struct network *network)
{
	struct nic *nics = &engine->nics[network->first_nic];

	for (uint32_t i = 0; i < network->nr_nics; i++) {
		int rc = open_nic(engine, from, i, &nics[i]);

		if (rc)
			return rc;
		nics[i].network = network;
		network->caps =
			i ? common_caps(network->caps, nics[i].info.caps) : nics[i].info.caps;
	}
	network->one_order = (network->caps & TRANSPORT_ORDERED) && network->nr_nics == 1;
	return 0;
}

int open_networks(tern_engine *engine)
{
	engine->caps = ~BURDENS;
	for (uint32_t i = 0; i < engine->nr_networks; i++) {
		struct network *network = &engine->networks[i];
		int rc;

		if (!engine->setup.networks[i].ops)
			continue;
		rc = open_network(engine, &engine->setup.networks[i], network);
		if (rc)
			return rc;
		engine->caps = common_caps(engine->caps,
			network->caps | (network->caps & TRANSPORT_ORDERED ? TRANSPORT_FENCE : 0));
	}
	return 0;
}

/* Where signals' words come from when they do not fit into the work request. */
int register_words(tern_engine *engine)
{
	struct transport_key key;

	for (uint32_t i = 0; i < engine->nr_nics; i++) {
		struct nic *nic = &engine->nics[i];
		int rc = !nic->transport || nic->info.inline_bytes >= sizeof(uint64_t)
				 ? 0
				 : nic->transport->ops->reg(nic->transport, engine->words,
					   engine->nr_records * sizeof(uint64_t),
					   &nic->words_region, &key);

		if (rc)
			return rc;
	}
	return 0;
}

void close_networks(tern_engine *engine)
{
	for (uint32_t i = 0; i < engine->nr_nics; i++) {
		struct nic *nic = &engine->nics[i];

		if (nic->transport && nic->words_region)
			nic->transport->ops->dereg(nic->transport, nic->words_region);
		if (nic->transport)
			nic->transport->ops->close(nic->transport);
	}
}

/* ---- for people ------------------------------------------------------------------------------ */

/* "ofi (tcp;ofi_rxm), 1 NIC"; where there are several networks also to which ranks. */
static size_t describe_network(const tern_engine *engine, uint8_t number, char *text, size_t bytes)
{
	const struct network *network = &engine->networks[number];
	const struct transport_info *info = &engine->nics[network->first_nic].info;
	size_t at = (size_t)snprintf(text, bytes, "%s (%s), %u NIC%s", info->name, info->provider,
		network->nr_nics, network->nr_nics == 1 ? "" : "s");

	if (!engine->setup.network_of || engine->nr_networks == 1 || at + 8 >= bytes)
		return at < bytes ? at : bytes - 1;
	at += (size_t)snprintf(text + at, bytes - at, ", to ");
	return at + rank_list(text + at, bytes - at, engine->setup.network_of,
			    engine->setup.nr_peers, number);
}

void describe_networks(tern_engine *engine)
{
	size_t at = 0, bytes = sizeof(engine->description);

	for (uint8_t i = 0; i < engine->nr_networks && at + 8 < bytes; i++) {
		if (!engine->setup.networks[i].ops)
			continue;
		at += (size_t)snprintf(engine->description + at, bytes - at, "%s", at ? "; " : "");
		at += describe_network(engine, i, engine->description + at, bytes - at);
	}
}

/* ---- addresses and connections --------------------------------------------------------------- */

int engine_address(tern_engine *engine, struct engine_address *mine)
{
	int rc = 0;

	memset(mine, 0, sizeof(*mine));
	for (uint32_t i = 0; i < engine->nr_nics && !rc; i++) {
		struct transport *transport = engine->nics[i].transport;

		if (!transport)
			continue;
		mine->bytes[i] = TRANSPORT_ADDRESS_BYTES;
		rc = transport->ops->address(transport, mine->address[i], &mine->bytes[i]);
	}
	return rc;
}

int connect_peer(tern_engine *engine, uint32_t peer, const struct engine_address *address)
{
	const struct network *network = engine->peers[peer].network;

	for (uint32_t i = network->first_nic; i < network->first_nic + network->nr_nics; i++) {
		struct transport *transport = engine->nics[i].transport;
		int rc = !address->bytes[i] || address->bytes[i] > TRANSPORT_ADDRESS_BYTES
				 ? fail(TERN_ERR_PROTOCOL,
					   "rank %u's address has %u bytes; 1 to %u are possible",
					   peer, address->bytes[i], TRANSPORT_ADDRESS_BYTES)
				 : transport->ops->connect(
					   transport, peer, address->address[i], address->bytes[i]);

		if (rc)
			return rc;
	}
	return 0;
}

void disconnect_peer(tern_engine *engine, uint32_t peer)
{
	const struct network *network = engine->peers[peer].network;
	struct nic *nics = &engine->nics[network->first_nic];

	for (uint32_t i = 0; i < network->nr_nics; i++)
		if (nics[i].transport)
			nics[i].transport->ops->disconnect(nics[i].transport, peer);
}

int engine_connect(tern_engine *engine, const struct engine_address *all)
{
	for (uint32_t p = 0; p < engine->setup.nr_peers; p++) {
		int rc = connect_peer(engine, p, &all[p]);

		if (rc)
			return rc;
	}
	engine->connected = true;
	return 0;
}
