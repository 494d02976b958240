/* SPDX-License-Identifier: Apache-2.0 */
/* The networks of a setting, and what this rank can do with them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/offers.h"
#include "transport/presence.h"

/* ---- the setting ----------------------------------------------------------------------------- */

const struct transport_ops *network_list_extra;

static const struct transport_ops *known_transport(const char *name, size_t length)
{
	const struct transport_ops *const known[] = {
		&transport_shm, &transport_ofi, &transport_verbs, network_list_extra};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (known[i] && strlen(known[i]->name) == length &&
			!memcmp(known[i]->name, name, length))
			return known[i];
	return NULL;
}

static int take_devices(const char *setting, char *devices, struct engine_network *network)
{
	char *name;

	network->nr_nics = 0;
	while ((name = strsep(&devices, ","))) {
		if (!*name)
			return fail(TERN_ERR_INVALID,
				"transport is \"%s\": a device without a name", setting);
		if (network->nr_nics < TERN_MAX_NICS)
			network->devices[network->nr_nics] = name;
		network->nr_nics++;
	}
	if (network->nr_nics > TERN_MAX_NICS)
		return fail(TERN_ERR_INVALID, "transport is \"%s\": %u devices; %d are possible",
			setting, network->nr_nics, TERN_MAX_NICS);
	return 0;
}

/* What follows the colon is libfabric's provider, which both ends have to share, or a device of
 * verbs. */
static int name_network(const struct engine_network *network, char *name)
{
	const char *provider = network->provider ? network->provider : OFI_DEFAULT_PROVIDER;
	bool ofi = network->ops == &transport_ofi;
	int length = snprintf(name, OFFER_NAME, "%s%s%s", network->ops->name, ofi ? ":" : "",
		ofi ? provider : "");

	return length < OFFER_NAME ? 0
				   : fail(TERN_ERR_INVALID,
					     "\"%s\" is too long for a provider's name", provider);
}

/* "ofi:tcp;ofi_rxm@eth0,eth1" is transport ofi with provider tcp;ofi_rxm on two devices. */
static int take_network(const struct tern_engine_config *config, char *text,
	struct engine_network *network, char *name)
{
	char *devices = text, *provider = strsep(&devices, "@");
	size_t length = strcspn(provider, ":");
	int rc = 0;

	*network = (struct engine_network){.ops = known_transport(provider, length),
		.provider = provider[length] ? provider + length + 1 : NULL,
		.nr_nics = config->nr_nics};
	if (!network->ops)
		return fail(TERN_ERR_INVALID,
			"transport is \"%.200s\"; shm, ofi, ofi:PROVIDER and verbs are known, "
			"@DEVICE,DEVICE behind "
			"each, and + between several",
			config->transport);
	if (devices)
		rc = take_devices(config->transport, devices, network);
	else
		memcpy(network->devices, config->devices, sizeof(network->devices));
	return rc ? rc : name_network(network, name);
}

static bool is_named_twice(const struct network_list *list, const char *name)
{
	for (uint32_t i = 0; i < list->nr; i++)
		if (!strcmp(list->name[i], name))
			return true;
	return false;
}

static int take_networks(const struct tern_engine_config *config, struct network_list *list)
{
	bool all_have_devices = true;
	char *rest = list->texts, *text;

	while ((text = strsep(&rest, "+"))) {
		struct engine_network network;
		char name[OFFER_NAME];
		bool has_devices = strchr(text, '@');
		int rc = take_network(config, text, &network, name);

		if (!rc && is_named_twice(list, name))
			rc = fail(TERN_ERR_INVALID, "transport is \"%s\": %s twice",
				config->transport, name);
		if (!rc && list->nr == TERN_MAX_NICS)
			rc = fail(TERN_ERR_INVALID, "transport is \"%s\"; %d networks are possible",
				config->transport, TERN_MAX_NICS);
		if (rc)
			return rc;
		all_have_devices = all_have_devices && has_devices;
		memcpy(list->name[list->nr], name, sizeof(name));
		list->each[list->nr++] = network;
	}
	if (all_have_devices && (config->devices[0] || config->nr_nics > 1))
		return fail(TERN_ERR_INVALID,
			"transport is \"%s\", and devices or nr_nics are set too",
			config->transport);
	return 0;
}

int network_list_parse(const struct tern_engine_config *config, struct network_list *list)
{
	int rc;

	*list = (struct network_list){.texts = strdup(config->transport ? config->transport : "")};
	if (!list->texts)
		return fail(TERN_ERR_NOMEM, "no memory for the names of networks");
	if (config->nr_nics < 1 || config->nr_nics > TERN_MAX_NICS)
		rc = fail(TERN_ERR_INVALID, "nr_nics is %u; 1 to %d are possible", config->nr_nics,
			TERN_MAX_NICS);
	else
		rc = take_networks(config, list);
	if (rc) {
		free(list->texts);
		list->texts = NULL;
	}
	return rc;
}

/* ---- what can be used ------------------------------------------------------------------------ */

static int probe_verbs(const char *device, struct offer *offer)
{
	struct verbs_facts facts;
	int rc = verbs_probe(device, &facts);

	if (!rc)
		snprintf(offer->reaches, sizeof(offer->reaches), "%s", facts.link);
	return rc;
}

static int try_to_open(const struct engine_network *network, const char *device)
{
	struct transport_options options = {.provider = network->provider,
		.device = device,
		.network = network->simulated,
		.nr_peers = 1,
		.depth = 64,
		.message_bytes = 64};
	struct transport *transport;
	struct transport_info info;
	int rc = network->ops->open(&options, &transport, &info);

	if (!rc)
		network->ops->close(transport);
	return rc;
}

static int find_out(const struct engine_network *network, bool last, struct offer *offer)
{
	int rc = 0;

	if (network->ops == &transport_shm)
		return shm_probe(offer->reaches, sizeof(offer->reaches));
	for (uint32_t i = 0; i < network->nr_nics && !rc; i++) {
		if (network->ops == &transport_verbs)
			rc = probe_verbs(
				network->devices[i] ? network->devices[i] : network->provider,
				offer);
		else if (!last)
			rc = try_to_open(network, network->devices[i]);
	}
	return rc;
}

/* What it said last, without its own name before it. */
static void note_cause(const char *name, struct offer *offer)
{
	const char *cause = tern_last_error();
	size_t length = strlen(name);

	if (!strncmp(cause, name, length) && !strncmp(cause + length, ": ", 2))
		cause += length + 2;
	snprintf(offer->cause, sizeof(offer->cause), "%.*s", (int)sizeof(offer->cause) - 1, cause);
}

void network_list_offer(const struct network_list *list, struct offers *mine)
{
	memset(mine, 0, sizeof(*mine));
	mine->nr = list->nr;
	for (uint32_t i = 0; i < list->nr; i++) {
		struct offer *offer = &mine->each[i];

		memcpy(offer->name, list->name[i], sizeof(offer->name));
		offer->nr_nics = list->each[i].nr_nics;
		if (find_out(&list->each[i], i + 1 == list->nr, offer))
			note_cause(list->each[i].ops->name, offer);
	}
}
